"""The header of a batch: Python's layout is C's, and no other module takes a header apart."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kstore.codec import header
from kstore.codec._pack import encode_batch
from tests.support import reference
from tests.test_docs import wire_constants

PACKAGE = Path(header.__file__).parents[1]
FIELDS = {name: field for name, field in vars(header).items() if isinstance(field, header.Field)}

# Bytes that each field of a batch or message has; `[12:16]` in a module is a header taken apart by number.
EXTENTS = {(field.at, field.end) for field in FIELDS.values()} | {(field.at, None) for field in FIELDS.values()}

# Big-endian numbers of other formats.
OTHER_NUMBERS = {
    "codec/compression.py": "frames of snappy-java and LZ4",
    "codec/coordinator/record_texts.py": "the version and kind of a coordinator's record",
    "decoders/avro_types.py": "the digits of an Avro decimal",
    "objects/aiven_manifest.py": "the sizes of chunks in a manifest",
    "store/coordinator/group_state.py": "the kind of a group's record",
    "tools/dump/dump_options.py": "a decoded key or value as a number",
}
OTHER_SLICES = {"codec/compression.py"}


def headers_taken_apart(text: str, *, numbers: bool = True, slices: bool = True) -> list[str]:
    """Each place in a Python source where a header is sliced or unpacked by number, with its line."""
    places = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "int.from_bytes" and numbers:
            places.append((node.lineno, "int.from_bytes"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(">qi(i[bB]|I)", node.value):
            places.append((node.lineno, f"a header's format {node.value!r}"))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and slices:
            low, high = _number(node.slice.lower), _number(node.slice.upper)
            if low and (low, high) in EXTENTS and (high is not None or node.slice.upper is None):
                places.append((node.lineno, ast.unparse(node)))
    return [f"line {line}: {what}" for line, what in sorted(places)]


def _number(node: ast.expr | None) -> int | None:
    """The number of a bound: of `8`, and of `position + 8`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        node = node.right
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_this_module_takes_a_header_apart(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    if name != "codec/header.py":
        text = path.read_text(encoding="utf-8")
        assert headers_taken_apart(text, numbers=name not in OTHER_NUMBERS, slices=name not in OTHER_SLICES) == []


def test_a_module_that_takes_a_header_apart_is_named_with_its_line() -> None:
    text = (
        "size = 12 + int.from_bytes(batch[8:12], 'big')\n"
        "crc = batch[at + 17 : at + 21]\n"
        "form = struct.Struct('>qiiBIhiqqqhii')\n"
        "body = batch[21:]\n"
        "names = fields[:11]\n"
        "rest = batch[at:]\n"
    )
    assert headers_taken_apart(text) == [
        "line 1: batch[8:12]",
        "line 1: int.from_bytes",
        "line 2: batch[at + 17:at + 21]",
        "line 3: a header's format '>qiiBIhiqqqhii'",
        "line 4: batch[21:]",
    ]


def test_every_field_lies_where_c_says() -> None:
    constants = wire_constants()
    for name, field in FIELDS.items():
        assert constants[f"{name}_AT"] == field.at, name
    assert constants["RECORDS_AT"] == header.HEADER_BYTES
    assert constants["HEADER_UP_TO_MAGIC"] == header.UP_TO_MAGIC_BYTES
    for name in ("LOG_OVERHEAD", "MIN_V0_MESSAGE", "MIN_V1_MESSAGE", "CODEC_MASK", "TIMESTAMP_TYPE_BIT"):
        assert getattr(header, name) == constants[name]
    for name in ("TRANSACTIONAL_BIT", "CONTROL_BIT", "DELETE_HORIZON_BIT"):
        assert getattr(header, name) == constants[name]


def test_a_header_is_read_as_the_oracle_reads_it() -> None:
    data = b"\0" * 5 + encode_batch(
        [(b"k", b"v", 7, ()), (b"k", b"w", 9, ())], base_offset=1 << 40, partition_leader_epoch=3, producer_id=5,
        producer_epoch=2, base_sequence=11,
    )  # fmt: skip
    read = header.read_header(data, 5)
    assert read == (1 << 40, len(data) - 17, 3, 2, read.crc, 0, 1, 7, 9, 5, 2, 11, 2)
    assert read.last_offset == header.last_offset_of(data, 5) == (1 << 40) + 1
    assert header.size_of(data, 5) == len(data) - 5
    assert header.records_of(data, 5) == 2
    assert header.crc_holds(data[5:])
    assert [header.BASE_TIMESTAMP.of(data, 5), header.MAX_TIMESTAMP.of(data, 5)] == [7, 9]


def test_a_field_is_written_where_it_is_read() -> None:
    for name, field in FIELDS.items():
        batch = bytearray(reference.HEADER_BYTES)
        field.put(batch, 1)
        assert field.of(batch) == 1, name
        assert bytes(batch[field.at : field.end]) == field.bytes_of(1)
        assert not any(batch[: field.at])
        assert not any(batch[field.end :])


def test_a_last_offset_wraps_as_in_java() -> None:
    batch = bytearray(reference.HEADER_BYTES)
    header.BASE_OFFSET.put(batch, (1 << 63) - 1)
    header.LAST_OFFSET_DELTA.put(batch, 1)
    header.MAGIC.put(batch, 2)
    assert header.last_offset_of(batch) == -(1 << 63)
    header.MAGIC.put(batch, 1)
    assert header.last_offset_of(batch) == (1 << 63) - 1
