"""Every import inside the package points down the floors; what crosses a floor sideways is drawn here, arrow by arrow.

The table is the architecture. A new file is given a floor here before its imports are allowed; a new arrow on one floor
is either drawn here, with the reason it exists, or it is a mistake.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kstore"

FLOORS: dict[str, int] = {
    "errors": 0,
    "closing": 0,
    "names": 0,
    "arguments": 0,
    "_wire": 0,
    "_arrowc": 0,
    "crc32c": 0,
    "compression": 1,
    "_core": 1,
    "_pack": 1,
    "_scan": 1,
    "_columns": 2,
    "_columnread": 2,
    "_batchtable": 2,
    "_columnstream": 2,
    "_index": 1,
    "fs": 1,
    "openfiles": 1,
    "_turn": 1,
    "config": 1,
    "brokerconfig": 1,
    "cautions": 1,
    "settings": 1,
    "descriptors": 1,
    "locks": 1,
    "logfile": 2,
    "indexfile": 2,
    "checkpoint": 2,
    "epochs": 2,
    "scheduler": 2,
    "topics": 2,
    "placement": 2,
    "_writer": 2,
    "_producers": 2,
    "_numbered": 3,
    "_consume": 2,
    "_route": 2,
    "legacy": 2,
    "validation": 3,
    "segment": 3,
    "producer": 4,
    "stability": 4,
    "roll": 3,
    "retention": 3,
    "reading": 4,
    "recovery": 4,
    "readonly": 5,
    "upkeep": 4,
    "hosts": 5,
    "deletion": 5,
    "writer": 5,
    "_arrow": 2,
    "_columnpack": 3,
    "_jsonlines": 3,
    "_columnroute": 4,
    "columnsources": 4,
    "appends": 6,
    "columnappends": 6,
    "reads": 6,
    "columnreads": 6,
    "log": 7,
    "catalog": 8,
    "internaltopics": 8,
    "groupstate": 8,
    "consumer": 8,
    "groups": 9,
    "transactionlog": 8,
    "transactions": 9,
    "producerwrites": 10,
    "producers": 11,
    "logdir": 8,
    "keeper": 9,
    "topicwrites": 9,
    "topiccolumns": 9,
    "topicreads": 9,
    "store": 12,
    "_dump": 2,
    "schemas": 1,
    "coordinator": 2,
    "grouprecords": 3,
    "transactionrecords": 4,
    "snapshotfile": 2,
    "txnindex": 2,
    "dumpindexes": 6,
    "dump": 7,
    "dumpranges": 7,
    "fulldump": 8,
    "_verify": 2,
    "gaps": 2,
    "findings": 1,
    "indexcheck": 5,
    "segmentcheck": 6,
    "producercheck": 7,
    "verify": 9,
    "repair": 10,
    "rootrepair": 9,
    "undisturbed": 0,
    "loads": 2,
    "adoption": 3,
    "adopt": 11,
    "spark": 13,
    "cli": 13,
    "__main__": 14,
}

# Arrows between files of one floor. `errors` is open to all, and needs none.
SIDEWAYS: dict[tuple[str, str], str] = {
    ("settings", "fs"): "a server.properties is a file",
    ("config", "brokerconfig"): "one mapping may carry both tables' names, and an unknown name is refused by one",
    ("config", "cautions"): "the sentences about one are its own",
    ("brokerconfig", "cautions"): "the same",
    ("cautions", "settings"): "how a value is written for people",
    ("config", "settings"): "what a table is made of",
    ("brokerconfig", "settings"): "the same",
    ("topics", "checkpoint"): "a topic id has one text",
    ("epochs", "checkpoint"): "the epochs' file has the checkpoints' common form",
    ("_core", "compression"): "a compressed batch is decoded where it is met",
    ("_pack", "_core"): "what is written is a Record when it is read; writer cut from reader by length",
    ("_pack", "compression"): "a batch is compressed where it is closed",
    ("_route", "_consume"): "a record read from one topic may be appended to another",
    ("_writer", "_producers"): "a numbered record is judged and written in one step",
    ("_scan", "_core"): "records found in a file are decoded as everywhere",
    ("_scan", "compression"): "a search for a timestamp looks into compressed batches",
    ("fs", "descriptors"): "one door, three rooms: what owns a descriptor and knows the fork rule",
    ("fs", "locks"): "and who may write",
    ("recovery", "producer"): "the state is replayed segment by segment, as they are recovered",
    ("stability", "producer"): "the same replay, from outside",
    ("columnappends", "appends"): "columns are stored as records are",
    ("_columnread", "_columns"): "what it makes",
    ("_columnread", "_producers"): "which batches it leaves out",
    ("_batchtable", "_columns"): "the same",
    ("_batchtable", "_columnread"): "one walk over batches, with their records and without",
    ("_batchtable", "_producers"): "and which batches both leave out",
    ("_columnstream", "_columns"): "what it streams",
    ("columnreads", "reads"): "columns are found as records are",
    ("topiccolumns", "topicwrites"): "columns go where records go, and what is known of a topic is known once",
    ("locks", "descriptors"): "a lock is a descriptor",
}

# The rooms behind that door, which nobody but `fs` enters.
BEHIND_FS = {"descriptors", "locks"}

# The public names, and nothing else: it may see every floor.
FACE = "__init__"


def imports_of(path: Path) -> set[str]:
    """The modules of this package that a source file imports at run time (an arrow for type checkers alone is none)."""
    text = path.read_text(encoding="utf-8")
    found = _python_imports(ast.parse(text)) if path.suffix == ".py" else _cython_imports(text)
    return {name for name in found if name != path.stem}


def _python_imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for other in node.orelse:
                found |= _python_imports(other)
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("kstore.")}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module == "kstore" or (node.level == 1 and not module):
                found |= {alias.name for alias in node.names}
            elif module.startswith("kstore.") or node.level == 1:
                found.add(module.removeprefix("kstore.").split(".")[0])
        else:
            found |= _python_imports(node)
    return found


def _cython_imports(text: str) -> set[str]:
    found = set(re.findall(r"^\s*from kstore\.(\w+) c?import ", text, re.MULTILINE))
    found |= set(re.findall(r"^\s*c?import kstore\.(\w+)", text, re.MULTILINE))
    for names in re.findall(r"^\s*from (?:kstore|\.) c?import ([\w, ]+)", text, re.MULTILINE):
        found |= {name.split()[0] for name in names.split(",")}
    found |= set(re.findall(r'^\s*cdef extern from "(\w+)\.h"', text, re.MULTILINE)) & {"crc32c"}
    return found


def wrong_arrows(importer: str, imported: set[str]) -> list[str]:
    """What is wrong with one file's imports, as sentences."""
    if importer == FACE:
        return []
    if importer not in FLOORS:
        return [f"{importer} has no floor: give it one in FLOORS"]
    wrong = []
    for name in sorted(imported - {"errors"}):
        if name not in FLOORS:
            wrong.append(f"{importer} imports {name}, which has no floor")
        elif FLOORS[name] > FLOORS[importer]:
            wrong.append(f"{importer} (floor {FLOORS[importer]}) imports {name} from floor {FLOORS[name]} above it")
        elif FLOORS[name] == FLOORS[importer] and (importer, name) not in SIDEWAYS:
            wrong.append(f"{importer} imports {name} on its own floor {FLOORS[importer]}: an arrow that is not drawn")
    return wrong


SOURCES = sorted(path for path in PACKAGE.iterdir() if path.suffix in {".py", ".pyx", ".pxd"})
COMMANDS = sorted((PACKAGE / "cli").glob("*.py"))
SPARKS = sorted((PACKAGE / "spark").glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_file_imports_from_lower_floors_only(path: Path) -> None:
    assert wrong_arrows(path.stem, imports_of(path)) == []


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_a_command_imports_from_lower_floors_only(path: Path) -> None:
    assert wrong_arrows("cli", imports_of(path) - {"cli"}) == []


@pytest.mark.parametrize("path", SPARKS, ids=lambda path: path.name)
def test_what_spark_uses_imports_from_lower_floors_only(path: Path) -> None:
    assert wrong_arrows("spark", imports_of(path) - {"spark"}) == []


def test_only_fs_enters_the_rooms_behind_it() -> None:
    found = {path.stem for path in SOURCES if imports_of(path) & BEHIND_FS}
    assert found <= {"fs", *BEHIND_FS}


def test_every_sideways_arrow_that_is_drawn_is_there() -> None:
    drawn = {arrow for arrow in SIDEWAYS if any(path.stem == arrow[0] for path in SOURCES)}
    found = {(path.stem, name) for path in SOURCES for name in imports_of(path)}
    assert drawn <= found


# Calls that reach the disk; `fs.something(...)` is the way there for everybody else.
DOORS = re.compile(
    r"open|io\.open|mmap\.mmap|(fcntl|shutil)\.\w+|.*\.(write_bytes|write_text|read_bytes|read_text|touch)"
    r"|os\.(open|fdopen|p?readv?|p?writev?|rename|replace|unlink|remove|fsync|fdatasync|f?truncate|mkdir|makedirs|rmdir"
    r"|sendfile|posix_fallocate|link|symlink|utime|listdir|scandir|stat|fstat)"
)


def calls_that_reach_the_disk(text: str) -> list[str]:
    """Each call in a Python source that only `fs` may make, with its line."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [f"line {call.lineno}: {name}" for call in calls if DOORS.fullmatch(name := ast.unparse(call.func))]


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if path.suffix == ".py" and path.stem not in {"fs", *BEHIND_FS}],
    ids=lambda path: path.name,
)
def test_only_fs_opens_maps_syncs_renames_locks_or_deletes(path: Path) -> None:
    assert calls_that_reach_the_disk(path.read_text(encoding="utf-8")) == []


def test_a_call_that_reaches_the_disk_is_named_with_its_line() -> None:
    assert calls_that_reach_the_disk("fs.open(1)\nos.pwrite(1, b'', 0)\nopen('x')") == [
        "line 2: os.pwrite",
        "line 3: open",
    ]


def test_an_import_upwards_is_named() -> None:
    assert wrong_arrows("fs", {"log"}) == ["fs (floor 1) imports log from floor 7 above it"]


def test_an_import_across_a_floor_is_named_unless_it_is_drawn() -> None:
    assert wrong_arrows("fs", {"_index"}) == ["fs imports _index on its own floor 1: an arrow that is not drawn"]
    assert wrong_arrows("_core", {"compression", "errors"}) == []


def test_a_file_without_a_floor_is_named() -> None:
    assert wrong_arrows("newcomer", set()) == ["newcomer has no floor: give it one in FLOORS"]
    assert wrong_arrows("log", {"newcomer"}) == ["log imports newcomer, which has no floor"]


@pytest.mark.parametrize(
    "text",
    [
        "from kstore._wire cimport load32",
        "cimport kstore._wire",
        "from kstore cimport _wire",
        "    from kstore._wire import x",
    ],
)
def test_cython_imports_are_seen(text: str) -> None:
    assert _cython_imports(text) == {"_wire"}


@pytest.mark.parametrize(
    "text",
    ["from kstore import fs", "from kstore.fs import size", "import kstore.fs", "def f():\n    from . import fs"],
)
def test_python_imports_are_seen_wherever_they_stand(text: str) -> None:
    assert _python_imports(ast.parse(text)) == {"fs"}


def test_imports_for_type_checkers_are_no_arrows() -> None:
    assert _python_imports(ast.parse("if TYPE_CHECKING:\n    from kstore.log import Log")) == set()
