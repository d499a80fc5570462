"""Fetches the C sources of lz4 and zstd for a wheel, which links them statically: fetch_codecs.py [directory].

They are taken from the sdists that codecs.txt names with their hashes. KSTORE_CODECS=<directory> makes setup.py compile
them and add `dist-info` of the directory to the wheel's own: the licences of the libraries, and an SBOM with both.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = ROOT / "packaging/codecs.txt"

# Of each library: where its sources are in which sdist, and its licence.
LIBRARIES = {"lz4": ("lz4-*/lz4libs", "BSD-2-Clause"), "zstd": ("zstandard-*/zstd", "BSD-3-Clause")}


def fetch(directory: Path) -> None:
    """Write the sources of each library into a folder of its name, and `dist-info`, unless they are there already."""
    pins, fetched = PINNED.read_text(encoding="utf-8"), directory / PINNED.name
    if fetched.exists() and fetched.read_text(encoding="utf-8") == pins:
        return
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "dist-info/licenses").mkdir(parents=True)
    components = []
    with tempfile.TemporaryDirectory() as scratch:
        download = ["download", "-q", "--no-deps", "--no-binary=lz4,zstandard", "--require-hashes", "-r", str(PINNED)]
        subprocess.run([sys.executable, "-m", "pip", *download, "-d", scratch], check=True)
        for sdist in Path(scratch).glob("*.tar.gz"):
            with tarfile.open(sdist) as archive:
                archive.extractall(scratch, filter="data")
        for name, (folder, license_id) in LIBRARIES.items():
            (unpacked,) = Path(scratch).glob(folder)
            sources = shutil.copytree(unpacked, directory / name)
            header = (sources / f"{name}.h").read_text(encoding="utf-8")
            # lz4's licence is the comment at the head of its files.
            text = sources / "LICENSE"
            license_text = text.read_text(encoding="utf-8") if text.exists() else header.partition("*/")[0] + "*/\n"
            (directory / f"dist-info/licenses/LICENSE.{name}").write_text(license_text, encoding="utf-8")
            version = re.findall(r"#define (?:LZ4|ZSTD)_VERSION_(?:MAJOR|MINOR|RELEASE) +(\d+)", header)
            components.append(component(name, ".".join(version), license_id))
    sboms = directory / "dist-info/sboms"
    sboms.mkdir()
    (sboms / "kstore.cdx.json").write_text(json.dumps(sbom(components), indent=2) + "\n", encoding="utf-8")
    fetched.write_text(pins, encoding="utf-8")


def component(name: str, version: str, license_id: str) -> dict[str, object]:
    purl = f"pkg:generic/{name}@{version}"
    licenses = [{"license": {"id": license_id}}]
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "licenses": licenses, "purl": purl}


def sbom(components: list[dict[str, object]]) -> dict[str, object]:
    """Return the SBOM of a wheel as CycloneDX's JSON: kstore, and the libraries that are linked into it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kstore = component(project["name"], project["version"], project["license"])
    kstore["purl"] = kstore["bom-ref"] = f"pkg:pypi/{project['name']}@{project['version']}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": kstore},
        "components": components,
        "dependencies": [{"ref": kstore["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }


if __name__ == "__main__":
    fetch(Path(*sys.argv[1:] or [ROOT / "build/codecs"]))
