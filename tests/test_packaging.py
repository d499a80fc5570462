"""The sdist is complete, the README's links work on an index, and the supported versions of Python are one list."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_string
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PYTHONS = [
    each.rpartition(" ")[2]
    for each in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", each)
]
TEXTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "Makefile"]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an sdist that was made from a copy of the repository, without git."""
    copy = tmp_path_factory.mktemp("sdist") / "copy"
    elsewhere = (".git", ".venv", ".*_cache", "build", "dist", "demo", "target", "*.egg-info", "*.so")
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(*elsewhere))
    subprocess.run([sys.executable, "setup.py", "-q", "sdist"], check=True, cwd=copy, capture_output=True)
    with tarfile.open(next((copy / "dist").iterdir())) as archive:
        files = ((member.name.partition("/")[2], archive.extractfile(member)) for member in archive)
        return {name: file.read() for name, file in files if file}


def test_the_sdist_has_every_file_of_the_repository(sdist: dict[str, bytes]) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files"], check=True, cwd=REPOSITORY, capture_output=True, text=True)
    tracked = {name for name in listed.stdout.splitlines() if (REPOSITORY / name).exists()}
    left_out = {name for name in tracked if name.startswith(".git") or name.count("/") == 0}
    assert tracked - sdist.keys() - left_out == set()
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml", "setup.py"} <= sdist.keys()


def test_the_sdist_has_nothing_that_was_compiled(sdist: dict[str, bytes]) -> None:
    made = [name for name in sdist if name.endswith((".so", ".pyc")) or re.match(r"kstore/(?!c/).*\.c$", name)]
    assert made == []


def test_links_of_the_readme_work_on_the_page_of_an_index(sdist: dict[str, bytes]) -> None:
    page = str(message_from_string(sdist["PKG-INFO"].decode()).get_payload())
    links = re.findall(r'\]\(([^)]*)\)|src(?:set)?="([^"]*)"', page)
    assert links
    for link in map("".join, links):
        assert re.match(r"https?://|mailto:|#", link), f"{link} is a path"
        of_repository = re.match(rf"{PROJECT['urls']['Repository']}/(blob|raw)/main/([^#]*)", link)
        assert not of_repository or (REPOSITORY / of_repository[2]).exists(), f"{link}: there is no such file"


def test_classifiers_name_each_python_from_the_lowest_on() -> None:
    lowest = int(PYTHONS[0].partition(".")[2])
    assert [f"3.{minor}" for minor in range(lowest, lowest + len(PYTHONS))] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{PYTHONS[0].replace('.', '')}"


def test_texts_name_the_pythons_of_the_classifiers() -> None:
    lowest, ranges = [], []
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        lowest += re.findall(r"Python (3\.\d+) or newer", text)
        ranges += re.findall(r"Python (3\.\d+) to (3\.\d+)(?!\.?\d)", text)
    assert set(lowest) == {PYTHONS[0]}
    assert set(ranges) == {(PYTHONS[0], PYTHONS[-1])}


def test_wheels_can_be_built_for_each_python_of_the_classifiers() -> None:
    script = (REPOSITORY / "packaging/wheels.py").read_text(encoding="utf-8")
    jars = re.search(r"^JARS = \{(.*)\}$", script, re.MULTILINE)
    assert jars
    assert re.findall(r'"(3\.\d+)":', jars[1]) == PYTHONS


@pytest.mark.skipif(not WORKFLOWS, reason="not a checkout")
def test_workflows_try_the_pythons_of_the_classifiers() -> None:
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    matrices = [re.findall(r"3\.\d+", each) for text in texts for each in re.findall(r"python: \[(.*)\]", text)]
    builds = [re.findall(r"cp(\d)(\d+)-", each) for text in texts for each in re.findall(r"CIBW_BUILD: (.*)", text)]
    assert matrices
    assert all(matrix == PYTHONS for matrix in matrices)
    assert builds
    assert all([f"{major}.{minor}" for major, minor in build] == PYTHONS for build in builds)
