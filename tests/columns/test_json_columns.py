"""Columns as JSON: the text is what Python's own encoder makes of the same rows, whatever the bytes are."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.columns import _arrow, _json_columns
from kstore.errors import InvalidColumnError

pa = pytest.importorskip("pyarrow")


def column(array: Any, role: str = "value") -> _arrow.Column:
    return next(_arrow.Source("c", role, array))[role]


def lines(*fields: Any, prefix: bytes = b"") -> list[bytes]:
    found = bytes(_json_columns.render_rows(fields, prefix=prefix, lines=True))
    assert found == b"" or found.endswith(b"\n")
    return found.split(b"\n")[:-1]


def expected(name: str, value: bytes | None) -> bytes:
    row: dict[str, str | None] = {}
    try:
        row[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        row[f"{name}_base64"] = base64.b64encode(value or b"").decode()
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


AWKWARD = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.text(alphabet='"\\\n\r\t\b\f\0\x1f \x7fa', max_size=40).map(str.encode),
)


@given(name=st.text(max_size=5), values=st.lists(AWKWARD, max_size=20))
def test_bytes_are_text_where_they_are_utf8_and_base64_elsewhere(name: str, values: list[bytes | None]) -> None:
    assert lines((name, "text", column(pa.array(values, pa.binary())))) == [expected(name, each) for each in values]


@pytest.mark.parametrize(
    "data", [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"abcdefgh\xff", b"\x80"], ids=repr
)
def test_what_looks_like_utf8_and_is_not_becomes_base64(data: bytes) -> None:
    assert lines(("v", "text", column(pa.array([data])))) == [expected("v", data)]


@pytest.mark.parametrize("size", range(1, 20))
def test_a_sign_to_escape_is_found_at_each_place(size: int) -> None:
    values = [
        b"x" * place + sign + b"y" * (size - place - 1) for place in range(size) for sign in (b'"', b"\\", b"\x1f")
    ]
    assert lines(("v", "text", column(pa.array(values)))) == [expected("v", each) for each in values]


@given(st.one_of(st.text(alphabet="0123456789+-.eE ", max_size=8), st.floats().map(repr), st.integers().map(str)))
def test_text_stays_a_number_exactly_where_json_has_one(text: str) -> None:
    try:
        is_number = text == text.strip() and isinstance(json.loads(text), int | float) and text[-1] != "y"
    except ValueError:
        is_number = False
    is_number = is_number and text not in ("NaN", "Infinity", "-Infinity")
    (line,) = lines(("v", "number", column(pa.array([text.encode()]))))
    assert line == (b'{"v":%b}' % text.encode() if is_number else expected("v", text.encode()))
    assert _json_columns.are_numbers(column(pa.array([None, text.encode()]))) == is_number


def test_nulls_alone_are_no_numbers() -> None:
    assert not _json_columns.are_numbers(column(pa.array([None, None], pa.binary())))
    assert not _json_columns.are_numbers(column(pa.array([], pa.binary())))


def test_whole_numbers_raw_json_and_headers_have_their_ways() -> None:
    headers = pa.array(
        [[("a", b"x"), ("a", None), ("é", b"\xff")], []],
        pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])),
    )
    found = lines(
        ("n", "int", column(pa.array([-(2**63), None]), "timestamp")),
        ("r", "raw", column(pa.array(['{"x":[1]}', None]))),
        ("headers", "headers", column(headers, "headers")),
        prefix=b'"topic":"t",',
    )
    assert [json.loads(line) for line in found] == [
        {
            "topic": "t", "n": -(2**63), "r": {"x": [1]},
            "headers": [{"key": "a", "value": "x"}, {"key": "a", "value": None}, {"key": "é", "value_base64": "/w=="}],
        },
        {"topic": "t", "n": None, "r": None, "headers": []},
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()])
def test_numbers_of_each_width_are_written(kind: Any) -> None:
    bits = kind.bit_width - (0 if str(kind).startswith("u") else 1)
    values = [0, 1, 2**bits - 1, None] + ([] if str(kind).startswith("u") else [-1, -(2**bits)])
    found = lines(("n", "int", column(pa.array(values, kind), "timestamp")))
    assert [json.loads(line)["n"] for line in found] == values


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view(), pa.binary(3),
     pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)  # fmt: skip
def test_bytes_lie_in_any_of_arrows_layouts(kind: Any) -> None:
    array = pa.array(["abc", None, "ab\n", "def"], kind).slice(1)
    assert [json.loads(line)["v"] for line in lines(("v", "text", column(array)))] == [None, "ab\n", "def"]


def test_ends_say_where_each_object_ends() -> None:
    text = _json_columns.render_rows([("v", "text", column(pa.array([b"", b"abc"])))])
    assert bytes(text) == b'{"v":""}{"v":"abc"}'
    assert memoryview(text.ends).cast("q").tolist() == [0, 8, len(text)]
    for nothing in (_json_columns.render_rows([]), _json_columns.Text()):
        assert (bytes(nothing), memoryview(nothing.ends).cast("q").tolist()) == (b"", [0])


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be written as int"):
        _json_columns.render_rows([("v", "int", column(pa.array([b"x"])))])
    with pytest.raises(TypeError, match="cannot be written as text"):
        _json_columns.render_rows([("v", "text", column(pa.array([1]), "timestamp"))])
    with pytest.raises(KeyError):
        _json_columns.render_rows([("v", "what", column(pa.array([b"x"])))])  # type: ignore[list-item]


def test_unsound_offsets_are_refused() -> None:
    offsets = pa.py_buffer(memoryview(bytes(pa.array([0, 9, 3], pa.int32()).buffers()[1]))[:12])
    array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(InvalidColumnError, match="row 0"):
        _json_columns.render_rows([("v", "text", column(array))])
