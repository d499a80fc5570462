"""What the documents say is so: their examples run, their tables match the constants, what they point to is there."""

from __future__ import annotations

import ast
import importlib
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import kstore
from kstore import cli

REPOSITORY = Path(__file__).parent.parent
FORMAT = REPOSITORY / "docs" / "format.md"
SPARK = REPOSITORY / "docs" / "spark.md"  # test_spark.py runs its examples
DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "u32": 4}


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def table_after(path: Path, marker: str) -> list[list[str]]:
    """The rows of the table that follows `<!-- checked: marker -->`, without its two heading lines."""
    after = text_of(path).split(f"<!-- checked: {marker} -->", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[0].splitlines()[2:]]


def code_blocks(path: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(path), re.MULTILINE | re.DOTALL)


def wire_constants() -> dict[str, int]:
    """The enums of `_wire.pxd`, worked out as the compiler does: each from those before it."""
    constants: dict[str, int] = {}
    source = text_of(REPOSITORY / "kstore" / "_wire.pxd")
    for name, expression in re.findall(r"^    ([A-Z][A-Z0-9_]*) = ([^#\n]+)", source, re.MULTILINE):
        tree = ast.parse(expression.strip(), mode="eval")
        assert all(
            isinstance(node, ast.Expression | ast.BinOp | ast.operator | ast.Name | ast.Load | ast.Constant)
            for node in ast.walk(tree)
        )
        constants[name] = eval(compile(tree, "_wire.pxd", "eval"), {}, constants)
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
    assert {value for name, value in wire_constants().items() if name.endswith("_AT")} == places


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


@pytest.mark.parametrize("path", sorted({*DOCUMENTS} - {FORMAT, SPARK}), ids=lambda path: path.name)
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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_points_to_is_there(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    named = re.findall(r"`((?:docs|tests|bench|examples|kstore)/[\w./-]+\.\w+)`", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_that_a_document_names_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(REPOSITORY / "Makefile"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)`", text_of(path))) <= targets


def test_every_public_name_has_a_docstring() -> None:
    bare = [
        name
        for name in getattr(kstore, "__all__", ())
        if callable(getattr(kstore, name)) and not getattr(kstore, name).__doc__
    ]
    assert bare == []
