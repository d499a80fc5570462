"""What the documents say is so: their examples run, their tables match the constants, what they point to is there."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import kstore
from kstore import cli
from kstore.files import follower_file, gap_files, load_files, stream_positions, topic_files
from kstore.store.bulk_loads.commit import BulkLoads
from tests.support.staging import stage_task

REPOSITORY = Path(__file__).parent.parent
FORMAT = REPOSITORY / "docs" / "format.md"
SPARK = REPOSITORY / "docs" / "spark.md"  # test_spark.py runs its examples
TESTING = REPOSITORY / "docs" / "testing.md"  # its examples are tests
# test_guide.py runs the examples of these.
GUIDE, COOKBOOK, ANALYTICS = (REPOSITORY / "docs" / name for name in ("guide.md", "cookbook.md", "analytics.md"))
DOCUMENTS = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")),
    *(REPOSITORY / name for name in ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", ".github/pull_request_template.md")),
    *(REPOSITORY / name for name in ("bench/NOTES.md", "tests/testcases.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
RULES = sorted((REPOSITORY / "docs" / "rules").glob("*.md"))
SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "u32": 4}


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def table_after(path: Path, marker: str) -> list[list[str]]:
    """The rows of the table that follows `<!-- checked: marker -->`, without its two heading lines."""
    after = text_of(path).split(f"<!-- checked: {marker} -->", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[0].splitlines()[2:]]


def cited_tests(text: str) -> list[tuple[str, str]]:
    """The tests that a text cites as `test_x.py` or `test_x.py::test_y`, which all are there: file and function."""
    cited = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", text)
    for file, test in cited:
        (path,) = (REPOSITORY / "tests").rglob(file)
        assert not test or re.search(rf"^def {test}\(", text_of(path), re.MULTILINE), f"{file}::{test}"
    return cited


def code_blocks(path: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(path), re.MULTILINE | re.DOTALL)


def wire_constants(comment: str = "") -> dict[str, int]:
    """The enums of `wire.h` below a comment, worked out as the compiler does: each from those before it."""
    constants: dict[str, int] = {}
    source = text_of(REPOSITORY / "kstore" / "c" / "wire.h")
    if comment:
        source = source.split(f"/* {comment}", 1)[1].split("};", 1)[0]
    for name, expression in re.findall(r"^    KS_([A-Z][A-Z0-9_]*) = ([^/,\n]+)", source, re.MULTILINE):
        tree = ast.parse(expression.strip().replace("KS_", ""), mode="eval")
        assert all(
            isinstance(node, ast.Expression | ast.BinOp | ast.operator | ast.Name | ast.Load | ast.Constant)
            for node in ast.walk(tree)
        )
        constants[name] = eval(compile(tree, "wire.h", "eval"), {}, constants)
    return constants


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["batch header", "offset index entry", "time index entry", "snapshot"])
def test_a_layout_has_no_gap_and_no_overlap(marker: str) -> None:
    at = 0
    for place, size, kind, field, *_ in table_after(FORMAT, marker):
        assert int(place) == at, field
        if size:
            assert int(size) == SIZES[kind], field
            at += int(size)


def test_the_header_table_matches_the_constants_of_the_core() -> None:
    constants = wire_constants()
    for place, _, _, field, *_ in table_after(FORMAT, "batch header"):
        name = field.removeprefix("partition ").replace(" ", "_").upper() + "_AT"
        assert constants[name] == int(place), field


def test_every_field_of_the_core_is_in_the_header_table() -> None:
    places = {int(row[0]) for row in table_after(FORMAT, "batch header")}
    constants = wire_constants("Record batch of format 2")
    assert {value for name, value in constants.items() if name.endswith("_AT")} == places


def test_the_attribute_table_matches_the_constants_of_the_core() -> None:
    masks = {int(row[1], 16) for row in table_after(FORMAT, "attributes")}
    names = ["CODEC_MASK", "TIMESTAMP_TYPE_BIT", "TRANSACTIONAL_BIT", "CONTROL_BIT", "DELETE_HORIZON_BIT"]
    assert masks == {wire_constants()[name] for name in names}


# --- the worked example -----------------------------------------------------------------------------------------------


def hex_dumps() -> dict[str, bytes]:
    """The files of the worked example: path to the bytes that the page shows."""
    section = text_of(FORMAT).split("## A log in hex", 1)[1]
    found = {}
    for path, dump in re.findall(r"^`(data/\S+)`.*\n\n((?:    [0-9a-f]{4}  .*\n)+)", section, re.MULTILINE):
        found[path] = bytes.fromhex("".join(line[10:] for line in dump.splitlines()))
    return found


def test_the_worked_example_comes_out_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = hex_dumps()
    assert len(shown) == 6
    (example,) = code_blocks(FORMAT)
    exec(example, {"kstore": kstore})
    for path, expected in shown.items():
        assert Path(path).read_bytes() == expected, path


def test_the_worked_example_shows_every_file_that_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code_blocks(FORMAT)[0], {"kstore": kstore})
    written = {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size
    }
    assert written == set(hex_dumps())


def test_the_notes_beside_the_hex_quote_the_bytes_that_stand_there() -> None:
    log = hex_dumps()["data/orders-0/00000000000000000000.log"]
    notes = re.findall(r"^\| (\d+) \| `([0-9a-f ]+)` \|", text_of(FORMAT), re.MULTILINE)
    assert len(notes) > 20
    for place, quoted in notes:
        wanted = bytes.fromhex(quoted)
        assert log[int(place) : int(place) + len(wanted)] == wanted, f"at {place}"


def test_the_batches_in_the_hex_are_sound() -> None:
    log = hex_dumps()["data/orders-0/00000000000000000000.log"]
    assert [(batch.base_offset, batch.count) for batch in kstore.decode_batches(log)] == [(0, 2), (2, 2)]
    assert struct.unpack(">ii", hex_dumps()["data/orders-0/00000000000000000000.index"]) == (3, 93)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_the_page_of_settings_is_what_the_table_of_settings_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    page = importlib.import_module("make_configuration").page()
    assert text_of(REPOSITORY / "docs" / "configuration.md") == page, "make docs writes it anew"


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_page_of_commands_shows_what_they_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    made = importlib.import_module("make_cli")
    assert set(made.SECTIONS) == set(cli.COMMANDS)
    assert text_of(REPOSITORY / "docs" / "cli.md") == made.page(), "make docs writes it anew"


# --- examples and pointers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted({*DOCUMENTS} - {FORMAT, SPARK, GUIDE, COOKBOOK, ANALYTICS, TESTING}), ids=lambda path: path.name
)
def test_the_python_examples_run_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    blocks = code_blocks(path)
    if not blocks:
        return
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr


def test_the_examples_of_tests_pass(tmp_path: Path) -> None:
    (tmp_path / "test_examples.py").write_text("\n".join(code_blocks(TESTING)), encoding="utf-8")
    done = run_with_plugin(tmp_path)
    assert done.returncode == 0, done.stdout
    tests = sum(len(re.findall(r"^ *def test_", block, re.MULTILINE)) for block in code_blocks(TESTING))
    assert f"{tests} passed in" in done.stdout.splitlines()[-1], done.stdout  # and no warning


def test_a_confirmation_without_a_sync_fails_as_the_page_shows(tmp_path: Path) -> None:
    blocks = "\n".join(code_blocks(TESTING)).replace(", sync=True)", ")")
    (tmp_path / "test_examples.py").write_text(blocks, encoding="utf-8")
    done = run_with_plugin(tmp_path, "-k", "order_that_was_confirmed")
    assert done.returncode == 1
    (shown,) = code_blocks(TESTING, "text")
    printed = {re.sub(r" +", " ", line) for line in done.stdout.splitlines()}
    assert [line for line in shown.splitlines() if re.sub(r" +", " ", line) not in printed] == [], done.stdout


def run_with_plugin(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the directory, with the plugin of this copy of kstore."""
    package = Path(kstore.__file__).parents[1]
    plugin = REPOSITORY / "kstore" / "testing" / "discovery"
    there = [str(package), str(plugin), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_kstore", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in there if path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("path", [*DOCUMENTS, *RULES], ids=lambda path: path.name)
def test_what_a_document_points_to_is_there(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    named = re.findall(r"`((?:docs|tests|bench|examples|kstore)/[\w./-]+\.\w+)`", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("path", [*DOCUMENTS, *RULES], ids=lambda path: path.name)
def test_a_source_file_that_a_document_names_is_there(path: Path) -> None:
    """Also by its name alone: `fs.py`, `wire.h`."""
    folders = [REPOSITORY / name for name in ("kstore", "tests", "docs", "bench", "examples")]
    names = {each.name for folder in folders for each in folder.rglob("*")} | {"setup.py"}
    named = re.findall(r"`(?:[\w.-]+/)*(\w+\.(?:py|pyx|pxd|pyi|h))\b", text_of(path))
    assert [name for name in named if name not in names] == []


def test_the_questions_of_the_design_page_are_answered_by_files_that_are_there() -> None:
    text = text_of(REPOSITORY / "docs" / "design.md").split("## Where is it done?", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (.+\?) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) >= 12
    for question, files in rows:
        assert all((REPOSITORY / file).is_file() for file in re.findall(r"`([^`]+)`", files)), question


def test_the_picture_of_the_packages_is_what_the_imports_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    made = importlib.import_module("make_layers")
    assert text_of(made.PICTURE) == made.picture(), "make docs draws it anew"


def make_targets(path: Path) -> set[str]:
    """What a document says to make: in code spans, in blocks, and in the help of the Makefile."""
    return set(re.findall(r"(?:`|^ {4}|echo ')make ([a-z-]+)", text_of(path), re.MULTILINE))


@pytest.mark.parametrize("path", [*DOCUMENTS, REPOSITORY / "Makefile"], ids=lambda path: path.name)
def test_every_make_target_that_a_document_names_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(REPOSITORY / "Makefile"), re.MULTILINE))
    assert make_targets(path) <= targets


def test_make_targets_are_found_in_spans_and_in_blocks(tmp_path: Path) -> None:
    assert make_targets(REPOSITORY / "README.md") >= {"demo", "test", "demo-spark"}
    assert make_targets(REPOSITORY / "Makefile") >= {"demo", "soak", "docs"}
    page = tmp_path / "page.md"
    page.write_text("`make one` and `make two-words X=1`, but they make three\n\n    make four   # why\n")
    assert make_targets(page) == {"one", "two-words", "four"}


def test_every_public_name_has_a_docstring() -> None:
    bare = [
        name
        for name in getattr(kstore, "__all__", ())
        if callable(getattr(kstore, name)) and not getattr(kstore, name).__doc__
    ]
    assert bare == []


# --- files of our own -------------------------------------------------------------------------------------------------


def fields_of(value: object, at: str = "") -> set[str]:
    """The places of all fields of a JSON document; `*` for an item of a list, and for a name that is data."""
    if isinstance(value, dict):
        found = set()
        for name, each in value.items():
            place = f"{at}.*" if at == "topics" else f"{at}.{name}" if at else name
            found |= fields_of(each, place) | ({place} if at != "topics" else set())
        return {name for name in found if not name.startswith(("applications.", "offsets.", "topics.*.config."))}
    if isinstance(value, list):
        return set().union(*(fields_of(each, f"{at}.*") for each in value if isinstance(each, dict)))
    return set()


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What kstore has written into each of its own files."""
    root = tmp_path / "root"
    found: dict[str, object] = {}

    def keep(name: str) -> None:
        found[Path(name).name] = json.loads((root / name).read_bytes())

    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t", config={"retention.ms": "-1"})
        keep("kstore-topics.json")
        rows = stage_task(root, 0, "t", {0: [(b"k", b"v")]}, partitions=1)
        real = BulkLoads._carry_out
        with monkeypatch.context() as patch:
            patch.setattr(BulkLoads, "_carry_out", lambda *given: (keep("kstore-commit.json"), real(*given)))
            store.adopt(rows, txn=("a", 1))
        keep("kstore-loads.json")
    follower_file.write_role(root, follower_file.FollowerRole(("/srv/leader",), ("t",)))
    keep("kstore-follower.json")
    gap_files.write_gaps(root / "t-0", [(1, 2)])
    keep("t-0/kstore-gaps.json")
    stream_positions.write_positions(str(root), stream_positions.StreamPositions("GROUP", 1, {("t", 0): 1}, {}))
    keep("../root.kstore-positions/GROUP.json")
    return found


def test_each_file_of_ours_has_the_fields_that_the_page_lists(own_files: dict[str, object]) -> None:
    for name, content in own_files.items():
        listed = {row[0].strip("`") for row in table_after(FORMAT, name)}
        assert listed == fields_of(content), name
        assert isinstance(content, dict)
        assert content["version"] == 1


def test_the_limits_of_the_files_of_ours_are_those_that_the_page_tells() -> None:
    limits = {
        "kstore-topics.json": topic_files.MAX_FILE_BYTES,
        "kstore-commit.json": load_files.MAX_COMMIT_BYTES,
        "kstore-loads.json": load_files.MAX_LOADS_BYTES,
        "kstore-gaps.json": gap_files.MAX_FILE_BYTES,
        "kstore-follower.json": follower_file.MAX_BYTES,
        "GROUP.json": stream_positions.MAX_BYTES,
    }
    for name, limit in limits.items():
        section = text_of(FORMAT).split(f"### `{name}`", 1)[1].split("\n### ", 1)[0]
        assert f"at most {limit >> 20} MiB" in section or f"At most {limit >> 20} MiB" in section, name
