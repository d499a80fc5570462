"""Every import inside kstore points down: from a package to a lower one, and never in a circle.

The order of the packages is in `support/layers.py`. It is the architecture: a new package gets its place there first.
Imports for type checkers, `cimport` and `#include` count, since a reader follows them too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import purpose
from tests.support import layers
from tests.support.layers import (
    INSIDE,
    KSTORE,
    LEAVES,
    PACKAGES,
    PUBLIC,
    c_includes,
    circles,
    cython_imports,
    package_of,
    python_imports,
    rank,
)

MODULES = sorted(layers.sources())
ARROWS = sorted(layers.arrows())


def wrong_arrow(importer: str, imported: str) -> str | None:
    """What is wrong with one import, as a sentence; None if it may be there."""
    if importer in {"", PUBLIC}:
        return None
    for module in (importer, imported):
        if package_of(module) not in PACKAGES:
            return f"{module} is in no package: give {package_of(module)} its place in PACKAGES"
    if rank(imported) > rank(importer):
        return f"{importer} imports {imported} from above it"
    leaf, other = package_of(importer), package_of(imported)
    if other in LEAVES and leaf != other and other not in LEAVES.get(leaf, ()):
        return f"{importer} imports {imported}, and {other} is a leaf"
    return None


@pytest.mark.parametrize("module", MODULES)
def test_a_file_imports_from_its_own_package_and_lower_ones_only(module: str) -> None:
    wrong = [wrong_arrow(importer, imported) for importer, imported in ARROWS if importer == module]
    assert [sentence for sentence in wrong if sentence] == []


def test_no_imports_run_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for importer, imported in ARROWS:
        if importer not in {"", PUBLIC}:
            graph.setdefault(importer, set()).add(imported)
    assert circles(graph) == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """They are named without their folders in documents, in budgets and in the tables of a run."""
    files = sorted(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in Counter(files).items() if count > 1] == []


def test_every_package_of_tests_says_in_one_line_what_it_is_for() -> None:
    packages = {path.parent for path in Path(__file__).parent.rglob("*.py")}
    assert len(packages) >= 20
    assert [package for package in packages if not re.fullmatch(r"\S.{19,100}\.", purpose(package))] == []


def test_names_of_tests_are_shorter_than_80_characters() -> None:
    files = Path(__file__).parent.rglob("test_*.py")
    names = [name for file in files for name in re.findall(r"\bdef (test_\w+)", file.read_text(encoding="utf-8"))]
    assert len(names) > 1000
    assert [name for name in names if len(name) >= 80] == []


def test_every_package_is_there_and_says_what_it_owns() -> None:
    for package in PACKAGES:
        folder = KSTORE / package
        if package == "c":
            assert folder.is_dir()
        elif folder.is_dir():
            text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
            assert text, f"kstore/{package}/__init__.py has no docstring"
        else:
            assert (KSTORE / f"{package}.py").exists(), package
    for package, names in INSIDE.items():
        for name in names:
            assert (KSTORE / package / name).is_dir() or (KSTORE / package / f"{name}.py").exists(), f"{package}/{name}"


# pytest's and Spark's plugins are found by the name of their folder, which lies by itself.
FOLDERS = [
    folder
    for folder in sorted(path for path in KSTORE.rglob("*") if path.is_dir())
    if not {"discovery", "__pycache__"} & set(folder.parts) and any(folder.rglob("*.py"))
]


def modules_in(folder: Path) -> set[str]:
    """The names by which an editor finds the modules of a folder: `_search.pyx` and `search.py` have one."""
    stems = {path.stem for path in folder.iterdir() if path.suffix in {".py", ".pyx"}}
    return {stem.lstrip("_") for stem in stems - {"__init__", "__main__"}}


def test_no_two_folders_have_modules_of_one_name() -> None:
    names = Counter(name for folder in (KSTORE, *FOLDERS) for name in modules_in(folder))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(KSTORE)))
def test_a_folder_has_five_modules_and_is_a_package_or_a_part_of_one(folder: Path) -> None:
    assert len(folder.relative_to(KSTORE).parts) <= 2
    assert len(modules_in(folder)) >= 5 or any(part.parent == folder for part in FOLDERS)


# Calls that reach the disk; the package `disk` makes them for all others.
DISK_CALLS = re.compile(
    r"open|io\.open|mmap\.mmap|(fcntl|shutil)\.\w+|.*\.(write_bytes|write_text|read_bytes|read_text|touch)"
    r"|os\.(open|fdopen|p?readv?|p?writev?|rename|replace|unlink|remove|fsync|fdatasync|f?truncate|mkdir|makedirs|rmdir"
    r"|sendfile|posix_fallocate|link|symlink|utime|listdir|scandir|stat|fstat)"
)


def calls_that_reach_the_disk(text: str) -> list[str]:
    """Each call in a Python source that only the package `disk` may make, with its line."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [f"line {call.lineno}: {name}" for call in calls if DISK_CALLS.fullmatch(name := ast.unparse(call.func))]


# These read and write files of the user's, which are no part of a log.
USERS_FILES = {"cli", "spark"}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(KSTORE.rglob("*.py")) if path.relative_to(KSTORE).parts[0] not in {"disk", *USERS_FILES}],
    ids=lambda path: str(path.relative_to(KSTORE)),
)
def test_only_the_disk_package_opens_maps_syncs_renames_locks_or_deletes(path: Path) -> None:
    assert calls_that_reach_the_disk(path.read_text(encoding="utf-8")) == []


def test_a_call_that_reaches_the_disk_is_named_with_its_line() -> None:
    assert calls_that_reach_the_disk("fs.open(1)\nos.pwrite(1, b'', 0)\nopen('x')") == [
        "line 2: os.pwrite",
        "line 3: open",
    ]


# What a `Log` keeps to itself.
IN_A_LOG = re.compile(r"(?<!\bself)\.(_view|_writer|_writable|_leading)\b")


def reaches_into_a_log(text: str) -> list[str]:
    """The private names of a log that a source takes of an object of another class."""
    taken = set(IN_A_LOG.findall(text))
    return sorted(name for name in taken if not re.search(rf"\bself\.{name}\b", text))


def test_only_the_modules_of_a_log_reach_into_it() -> None:
    """A store, a replication and the metrics have a `HostedLog`."""
    paths = [path for path in KSTORE.rglob("*.py*") if path.suffix in {".py", ".pyx"}]
    others = [path for path in paths if path.relative_to(KSTORE).parts[0] != "log"]
    reaching = {str(path): reaches_into_a_log(path.read_text(encoding="utf-8")) for path in others}
    assert {path: names for path, names in reaching.items() if names} == {}


def test_a_private_name_of_a_log_is_named() -> None:
    assert reaches_into_a_log("writer = log._writer\nview = entry.log._view\nlog.read()") == ["_view", "_writer"]


def test_an_import_upwards_is_named() -> None:
    assert wrong_arrow("disk.fs", "log.log") == "disk.fs imports log.log from above it"
    assert wrong_arrow("log.segments.roll", "log.writing.writer") == (
        "log.segments.roll imports log.writing.writer from above it"
    )
    assert wrong_arrow("log.writing.writer", "log.segments.roll") is None
    assert wrong_arrow("codec._pack", "_core") is None


def test_an_import_from_a_leaf_is_named() -> None:
    assert wrong_arrow("spark.staging", "tools.check.repair") == (
        "spark.staging imports tools.check.repair, and tools is a leaf"
    )
    assert wrong_arrow("cli.commands.repair_command", "tools.check.repair") is None
    assert wrong_arrow("tools.dump.full_dump", "tools.check.recheck") is None


def test_a_file_without_a_package_is_named() -> None:
    assert wrong_arrow("attic.box", "disk.fs") == "attic.box is in no package: give attic its place in PACKAGES"


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


@pytest.mark.parametrize(
    "text",
    [
        "from kstore.codec._wire cimport load32",
        "cimport kstore.codec._wire",
        "from kstore.codec cimport _wire",
        "    from kstore.codec._wire import x",
    ],
)
def test_cython_imports_are_seen(text: str) -> None:
    assert {name for name in cython_imports(text) if name.startswith("codec._wire")}


@pytest.mark.parametrize(
    "text",
    [
        "from kstore.disk import fs",
        "from kstore.disk.fs import size",
        "import kstore.disk.fs",
        "def f():\n    from kstore.disk import fs",
        "if TYPE_CHECKING:\n    from kstore.disk.fs import size",
    ],
)
def test_python_imports_are_seen_wherever_they_stand(text: str) -> None:
    assert {name for name in python_imports(ast.parse(text)) if name.startswith("disk.fs")}


def test_includes_are_seen() -> None:
    text = '#include "columns/blocks.h"\ncdef extern from "record.h" nogil:'
    assert c_includes(text) == {"c.columns.blocks", "c.record"}
