"""Columns in: every layout gives the bytes that its records would one by one; what is refused says where and why."""

from __future__ import annotations

import gc
import itertools
import os
import random
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore._core import decode_batches
from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.errors import (
    InvalidColumnError,
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from kstore.log import batch_packer
from kstore.log.writing._appender import set_pwrite_hook
from kstore.types import AppendInfo
from tests.conftest import ManualClock, sanitized
from tests.support import arrowstructs as arrow

T = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Sizes at which the encoder does something else: varints of one, two and three bytes, copies of other widths, views.
SIZES = [0, 1, 2, 3, 4, 7, 8, 12, 13, 15, 16, 31, 32, 33, 63, 64, 65, 100, 127, 128, 1024, 1025, 8191, 8192]


def packer(batch_bytes: int = 1 << 20, max_batch_bytes: int = 1 << 24, **options: Any) -> Packer:
    return Packer(batch_bytes, max_batch_bytes, now_ms=options.pop("now_ms", T), **options)


def row_by_row(records: Sequence[Any], **options: Any) -> bytes:
    packed = packer(**options)
    assert packed.pack(iter(records), 1 << 31) is False
    return bytes(packed.buffer)


def by_columns(
    values: Any, keys: Any = None, timestamps: Any = None, headers: Any = None, *, limit: int = 1 << 31, **options: Any
) -> bytes:
    packed = packer(**options)
    given = b""
    for rows in ColumnInput(values, keys, timestamps, headers, T):
        while _column_encoder.pack(packed, rows, limit):
            given += bytes(packed.buffer)
            packed.clear()
    _column_encoder.close(packed)
    return given + bytes(packed.buffer)


def values_in(data: bytes) -> list[bytes | None]:
    return [record.value for batch in decode_batches(data) for record in batch]


# ---- every layout, every pattern of nulls, every slice

row = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.builds(lambda size, seed: bytes([seed]) * size, st.sampled_from(SIZES), st.integers(0, 255)),
)

LAYOUTS: dict[str, Callable[[arrow.Rows, int], Any]] = {
    "binary": lambda rows, skip: arrow.binary(rows, "z", skip=skip),
    "utf8": lambda rows, skip: arrow.binary(rows, "u", skip=skip),
    "large_binary": lambda rows, skip: arrow.binary(rows, "Z", skip=skip),
    "large_utf8": lambda rows, skip: arrow.binary(rows, "U", skip=skip),
    "binary_view": lambda rows, skip: arrow.views(rows, "vz", skip=skip),
    "utf8_view": lambda rows, skip: arrow.views(rows, "vu", skip=skip, per_buffer=1),
    "dictionary of binary": lambda rows, skip: arrow.dictionary(rows, "i", skip=skip),
    "dictionary of views": lambda rows, skip: arrow.dictionary(rows, "S", skip=skip, make=arrow.views),
    "list": lambda rows, skip: list(rows),
    "objects": lambda rows, skip: np.array([*rows, None], object)[:-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@given(rows=st.lists(row, max_size=30), skip=st.sampled_from([0, 1, 7, 8, 9]), batch_bytes=st.sampled_from([200, 9000]))
def test_values_of_any_layout_give_the_batches_of_the_records(
    layout: str, rows: list[bytes | None], skip: int, batch_bytes: int
) -> None:
    wanted = row_by_row([(None, one) for one in rows], batch_bytes=batch_bytes)
    assert by_columns(LAYOUTS[layout](rows, skip), batch_bytes=batch_bytes) == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_rows_than_a_block_of_the_encoder_give_the_batches_of_the_records(layout: str) -> None:
    rows = [None if number % 7 == 3 else b"%d" % number * (number % 5) for number in range(1000)]
    wanted = row_by_row([(None, one) for one in rows], batch_bytes=3000)
    assert by_columns(LAYOUTS[layout](rows, 3), batch_bytes=3000) == wanted
    assert by_columns(LAYOUTS[layout](rows, 3), batch_bytes=3000, limit=1) == wanted


@pytest.mark.parametrize("batch_bytes", [32_700, 33_000, 65_600, 300_000, 1 << 20])
def test_batches_whose_checksum_is_made_in_pieces_are_those_of_the_records(
    batch_bytes: int, rng: random.Random
) -> None:
    rows = [b"%d" % number * rng.randrange(20) for number in range(30_000)]
    data = by_columns(arrow.binary(rows), batch_bytes=batch_bytes)
    assert data == row_by_row(rows, batch_bytes=batch_bytes)
    assert all(batch.count for batch in decode_batches(data, check_crc=True))


def test_a_batch_begun_by_columns_may_be_ended_by_records_and_the_other_way_round() -> None:
    packed = packer()
    rows = [b"%d" % number * 9 for number in range(3000)]
    for at in range(0, 3000, 1000):
        for part in ColumnInput(rows[at : at + 500], None, None, None, T):
            assert _column_encoder.pack(packed, part, 1 << 31) is False
        for row in rows[at + 500 : at + 1000]:
            for part in ColumnInput([row], None, None, None, T):
                _column_encoder.pack(packed, part, 1 << 31)
    _column_encoder.hand_over(packed, packer())  # nothing is finished: the open batch goes on
    packed.pack(iter([b"last"]), 1 << 31)
    assert bytes(packed.buffer) == row_by_row([*rows, b"last"])


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 511, 512, 513])
def test_any_number_of_rows_around_a_block_is_packed(count: int) -> None:
    rows = [b"%d" % number for number in range(count)]
    assert by_columns(arrow.binary(rows)) == row_by_row(rows)


@pytest.mark.parametrize("format", "cCsSiIlL")
@pytest.mark.parametrize("skip", [0, 5])
def test_indices_of_any_width_look_words_up(format: str, skip: int) -> None:
    rows = [b"red", None, b"green", b"red", b"", b"blue"]
    assert values_in(by_columns(arrow.dictionary(rows, format, skip=skip))) == rows


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("width", [0, 1, 16])
def test_rows_of_fixed_size_are_taken_whole(width: int, skip: int) -> None:
    rows = [b"\0" * width, None, b"x" * width]
    assert values_in(by_columns(arrow.fixed(rows, width, skip=skip))) == rows


def test_nulls_of_no_type_are_nulls() -> None:
    assert by_columns(arrow.nulls(3), arrow.nulls(3), arrow.nulls(3), arrow.nulls(3)) == row_by_row([(None, None)] * 3)


def test_a_null_in_the_dictionary_is_null() -> None:
    column = arrow.dictionary([b"a", b"b", b"a"])
    assert column.dictionary is not None
    column.dictionary = arrow.binary([b"a", None])
    assert values_in(by_columns(column)) == [b"a", None, b"a"]


def test_a_bitmap_is_passed_over_where_nothing_is_said_to_be_null() -> None:
    column = arrow.binary([b"a", None, b"c"])
    column.null_count = 0
    assert values_in(by_columns(column)) == [b"a", b"", b"c"]


# ---- keys, timestamps, headers

pairs = st.lists(st.tuples(st.binary(max_size=70), st.one_of(st.none(), st.binary(max_size=70))), max_size=4)
records = st.lists(
    st.tuples(row, row, st.one_of(st.none(), st.integers(-1, T + 10**9)), st.one_of(st.none(), pairs)), max_size=20
)


def as_records(rows: Sequence[tuple[Any, Any, Any, Any]]) -> list[tuple[Any, Any, Any, Any]]:
    """As `append_many` takes them: names of headers are str there."""
    return [
        (key, value, time, None if found is None else [(n.decode("utf-8", "surrogateescape"), v) for n, v in found])
        for key, value, time, found in rows
    ]


@pytest.mark.parametrize("codec", [0, 3])
@given(rows=records, format=st.sampled_from(["+m", "+l", "+L"]), skip=st.sampled_from([0, 9]), cut=st.integers(0, 20))
def test_columns_in_step_give_the_batches_of_the_records(
    codec: int, rows: list[tuple[Any, Any, Any, Any]], format: str, skip: int, cut: int
) -> None:
    keys, values, times, headers = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    utf8 = all(name.decode("utf-8", "surrogateescape").isprintable() for found in headers for name, _ in found or ())
    given = by_columns(
        arrow.Stream([arrow.views(values[:cut]), arrow.views(values[cut:])], like=arrow.views([])),
        arrow.binary(keys, skip=skip),
        arrow.numbers(times, skip=skip),
        arrow.headers(headers, format, skip=skip, make=arrow.binary if utf8 else arrow.views),
        batch_bytes=500,
        compression=codec,
    )
    assert given == row_by_row(as_records(rows), batch_bytes=500, compression=codec)


def test_streams_with_other_chunk_borders_go_in_step() -> None:
    rows = [(b"k%d" % number, b"v%d" % number) for number in range(100)]
    keys, values = [key for key, _ in rows], [value for _, value in rows]

    def stream(column: list[bytes], *borders: int) -> arrow.Stream:
        cuts = [0, *borders, len(column)]
        chunks = [arrow.binary(column[a:b]) for a, b in itertools.pairwise(cuts)]
        return arrow.Stream(chunks, like=arrow.binary([]))

    given = by_columns(stream(values, 1, 1, 50, 51), stream(keys, 0, 0, 7, 50, 99), batch_bytes=300)
    assert given == row_by_row(rows, batch_bytes=300)


@pytest.mark.parametrize(
    ("format", "given", "wanted"),
    [
        ("tss:", [1, 0, None, 1_600_000_000], [1000, 0, T, 1_600_000_000_000]),
        ("tsm:UTC", [1, 0, -1, T], [1, 0, -1, T]),
        ("tsu:Europe/Berlin", [999, 1000, -1000, 1_600_000_000_123_999], [0, 1, -1, 1_600_000_000_123]),
        ("tsn:", [999_999, 1_000_000, -1_000_000, 2**63 - 1], [0, 1, -1, 9_223_372_036_854]),
        ("tdD", [0, 1, None], [0, 86_400_000, T]),
        ("tdm", [0, 86_400_000], [0, 86_400_000]),
        ("l", [-1, 2**63 - 1], [-1, 2**63 - 1]),
        ("i", [-1, 2**31 - 1], [-1, 2**31 - 1]),
        ("I", [2**32 - 1], [2**32 - 1]),
        ("c", [-1, 127], [-1, 127]),
        ("C", [255], [255]),
        ("s", [-1, 2**15 - 1], [-1, 2**15 - 1]),
        ("S", [2**16 - 1], [2**16 - 1]),
        ("L", [2**63 - 1], [2**63 - 1]),
    ],
)
def test_timestamps_of_any_unit_are_milliseconds_that_have_begun(
    format: str, given: list[int | None], wanted: list[int]
) -> None:
    data = by_columns([None] * len(given), None, arrow.numbers(given, format, skip=3))
    assert [record.timestamp for batch in decode_batches(data) for record in batch] == wanted


@pytest.mark.parametrize(
    ("format", "bad"),
    [("tsm:", -2), ("l", -(2**63)), ("tsu:", -1), ("tsu:", -999), ("tsu:", -1001), ("tsn:", -1), ("tss:", -1),
     ("tss:", 2**63 // 1000 + 1), ("L", 2**63), ("tdD", -1)],
)  # fmt: skip
def test_a_time_before_the_epoch_or_beyond_is_refused_by_its_row(format: str, bad: int) -> None:
    times = arrow.numbers([0] * 300 + [bad], format)
    with pytest.raises(InvalidTimestampError, match=r"^record 300: ") as caught:
        by_columns([b"v"] * 301, None, times)
    assert caught.value.record_errors[0][0] == 300


def test_one_time_is_for_all_records() -> None:
    assert by_columns([b"a", b"b"], None, 5) == row_by_row([(None, b"a", 5, None), (None, b"b", 5, None)])
    assert by_columns([b"a"], None, np.int64(-1)) == row_by_row([(None, b"a", -1, None)])


@pytest.mark.parametrize("bad", [-2, 2**63])
def test_one_time_out_of_range_is_refused(bad: int) -> None:
    with pytest.raises(InvalidTimestampError, match=str(bad)):
        by_columns([b"a"], None, bad)


def test_headers_may_be_what_append_many_takes() -> None:
    headers: list[Any] = [None, [], {"a": b"1"}, (("b", None), ("b", bytearray(b"2")))]
    rows = [(None, b"v", None, one) for one in headers]
    assert by_columns([b"v"] * 4, None, None, headers) == row_by_row(rows)


@pytest.mark.parametrize("bad", [[("h",)], [(b"h", b"x")], [("h", "text")], 7])
def test_a_header_that_is_none_is_refused_by_its_row(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"2|iterable"):
        by_columns([b"v"] * 3, None, None, [None, None, bad])


@pytest.mark.parametrize("format", ["+m", "+L"])
@pytest.mark.parametrize(
    "with_headers", [[], [0], [1], [254, 255], [255, 256], [256, 257], [511], [599], [*range(600)]]
)
def test_headers_of_single_rows_among_many_without_any_stay_in_their_row(format: str, with_headers: list[int]) -> None:
    """Rows are gathered 256 at a time."""
    headers = [[(b"at", b"%d" % number)] if number in with_headers else [] for number in range(600)]
    rows = [(None, None, None, [("at", value) for _, value in found]) for found in headers]
    assert by_columns(arrow.nulls(600), None, None, arrow.headers(headers, format)) == row_by_row(rows)


def test_headers_of_many_rows_and_of_one_huge_row_fit() -> None:
    headers = [[(b"name", bytes([number % 256]) * 100)] * (number % 4) for number in range(2000)]
    headers[1500] = [(b"huge", b"h" * 300_000), (b"", b"")]
    rows = [(None, None, None, one) for one in headers]
    wanted = row_by_row(as_records(rows), batch_bytes=10_000)
    assert by_columns(arrow.nulls(2000), None, None, arrow.headers(headers), batch_bytes=10_000) == wanted


def test_a_table_gives_its_columns_by_name_and_passes_over_those_that_say_where() -> None:
    columns = {
        "offset": arrow.numbers([7, 8, 9]),
        "key": arrow.binary([b"a", b"b", None]),
        "value": arrow.views([b"1", None, b"3" * 20]),
        "headers": arrow.headers([[(b"h", b"x")], None, []]),
        "timestamp": arrow.numbers([1000, 2000, 3000], "tsu:UTC"),
        "producer_id": arrow.numbers([0, 0, 0]),
    }
    rows = [(b"a", b"1", 1, [("h", b"x")]), (b"b", None, 2, None), (None, b"3" * 20, 3, [])]
    assert by_columns(arrow.table(columns, 3)) == row_by_row(rows)
    assert by_columns(arrow.table(columns, 2, offset=1)) == row_by_row(rows[1:])
    stream = arrow.Stream([arrow.table(columns, 1), arrow.table(columns, 2, offset=1)], like=arrow.table(columns, 0))
    assert by_columns(stream) == row_by_row(rows)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["key"], "no column 'value'"),
        (["value", "keys"], "a column 'keys'"),
        (["value", "value"], "two columns 'value'"),
    ],
)
def test_a_table_with_other_columns_is_refused(names: list[str], message: str) -> None:
    found = arrow.Array("+s", 1, [None], [arrow.binary([b"x"]).named(name) for name in names])
    with pytest.raises(ValueError, match=message):
        by_columns(found)


@pytest.mark.parametrize("given", ["key", "timestamp", "headers"])
def test_a_column_that_is_given_twice_is_refused(given: str) -> None:
    columns = {
        "value": arrow.binary([b"v"]),
        "key": arrow.binary([b"k"]),
        "timestamp": arrow.numbers([1]),
        "headers": arrow.headers([None]),
    }
    beside: dict[str, Any] = {"key": [b"k"], "timestamp": 1, "headers": [None]}
    arguments = [beside[name] if name == given else None for name in ("key", "timestamp", "headers")]
    with pytest.raises(ValueError, match=f"a column '{given}'"):
        by_columns(arrow.table({"value": columns["value"], given: columns[given]}, 1), *arguments)


# ---- NumPy


def test_nul_bytes_at_the_end_of_numpy_strings_are_padding_and_those_inside_are_not() -> None:
    rows = np.array([b"ab", b"", b"a\0b", b"abcde", b"x\0\0"])
    assert values_in(by_columns(rows)) == rows.tolist() == [b"ab", b"", b"a\0b", b"abcde", b"x"]


def test_numpy_void_rows_and_rows_of_bytes_are_taken_whole() -> None:
    cells = np.arange(24, dtype=np.uint8).reshape(4, 6) % 3
    wanted = [row.tobytes() for row in cells]
    assert values_in(by_columns(cells)) == wanted
    assert values_in(by_columns(cells.view("V6").ravel())) == wanted
    assert values_in(by_columns(cells.view(np.int8))) == wanted


def test_numpy_arrays_with_steps_are_read_where_they_lie() -> None:
    cells = np.frombuffer(bytes(range(120)), np.uint8).reshape(10, 12)
    for cut in (cells[::2], cells[::-1], cells[3:9:3, 2:7], cells[:, ::2], cells[:, :1], cells[:, :0], cells[:0]):
        assert values_in(by_columns(cut)) == [row.tobytes() for row in cut]
    words = np.array([b"a", b"bb", b"ccc", b"dddd"])
    assert values_in(by_columns(words[::-2])) == [b"dddd", b"bb"]
    assert by_columns([None] * 2, None, np.arange(5)[::3]) == row_by_row([(None, None, 0, None), (None, None, 3, None)])


def test_a_structured_array_gives_its_fields() -> None:
    kind = np.dtype([("timestamp", "M8[us]"), ("value", "u1", (3,)), ("key", "S4")])
    rows = np.array([(np.datetime64(5, "ms"), [1, 2, 3], b"k"), (np.datetime64("NaT"), [4, 5, 6], b"")], kind)
    wanted = row_by_row([(b"k", b"\1\2\3", 5, None), (b"", b"\4\5\6", None, None)])
    assert by_columns(rows) == wanted


def test_a_structured_array_with_other_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="the fields value, keys"):
        by_columns(np.zeros(1, [("value", "S1"), ("keys", "S1")]))


def test_masked_rows_are_null() -> None:
    words = np.ma.array([b"a", b"b", b"c"], mask=[False, True, False])
    assert values_in(by_columns(words)) == [b"a", None, b"c"]
    objects = np.ma.array(np.array([b"a", b"b"], object), mask=[True, False])
    assert values_in(by_columns(objects)) == [None, b"b"]
    times = np.ma.array([1, 2, 3], mask=[True, False, False])
    assert by_columns([None] * 3, None, times) == row_by_row([(None, None, time, None) for time in (None, 2, 3)])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "10ms", "m", "h", "D", "M", "ps"])
def test_numpy_times_of_any_unit_are_milliseconds(unit: str) -> None:
    times = np.array(["1970-02-01", "NaT", "1970-03-01"], f"M8[{unit}]")
    wanted = [31 * 86_400_000, None, 59 * 86_400_000]
    assert by_columns([None] * 3, None, times) == row_by_row([(None, None, time, None) for time in wanted])


def test_numpy_numbers_of_either_byte_order_are_read() -> None:
    wanted = row_by_row([(None, None, 258, None)])
    for kind in (">i8", "<i8", ">u2", "<u2", ">M8[ms]"):
        assert by_columns([None], None, np.array([258]).astype(kind)) == wanted


# ---- what is no column


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"one",), "values must be a column, not one bytes"),
        (("one",), "values must be a column, not one str"),
        ((None,), "values must speak"),
        ((iter([b"one"]),), "values must speak"),
        ((7,), "values must speak"),
        ((["text"],), "row 0 of values"),
        (([b"x", 7],), "row 1 of values"),
        (([b"x"], ["text"]), "row 0 of keys"),
        (([b"x"], None, [1.5]), "row 0 of timestamps"),
        (([b"x"], None, 1.5), "timestamps must speak"),
        (([b"x"], None, True), "timestamps must speak"),
        (([b"x"], None, np.array([1.5])), "timestamps: a NumPy array"),
        (([b"x"], None, None, np.array([1])), "headers: NumPy"),
        ((np.array(["text"]),), "encode it first"),
        ((np.arange(3, dtype=np.uint8),), "values: a NumPy array of 1 dimensions of uint8"),
        ((np.zeros((2, 2, 2), np.uint8),), "3 dimensions"),
        ((np.array(b"x"),), "without a dimension"),
        ((arrow.numbers([1]),), "values: Arrow type 'l'"),
        ((arrow.binary([b"x"]), arrow.numbers([1])), "keys: Arrow type 'l'"),
        (([b"x"], None, arrow.binary([b"x"])), "timestamps: Arrow type 'z'"),
        (([b"x"], None, arrow.numbers([1], "g")), "timestamps: Arrow type 'g'"),
        (([b"x"], None, None, arrow.binary([b"x"])), "headers: Arrow type 'z'"),
        (([b"x"], None, None, arrow.Array("+l", 0, [None, b"\0" * 4], [arrow.numbers([])])), "pairs"),
        ((arrow.dictionary([b"a"], make=lambda rows: arrow.dictionary(rows)),), "dictionary of dictionaries"),
        ((arrow.dictionary([b"a"], make=lambda rows: arrow.numbers([1])),), "Arrow type 'l'"),
    ],
)
def test_what_is_no_column_is_a_type_error_that_names_it(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        by_columns(*arguments)


@pytest.mark.parametrize(
    ("format", "word"),
    [("l", "int64"), ("ttm", "time"), ("d:20,0", "decimal"), ("+r", "run-end encoded"), ("+vl", "list_view")],
)
def test_an_arrow_type_that_is_not_taken_is_named_in_words(format: str, word: str) -> None:
    with pytest.raises(TypeError, match=rf"values: Arrow type '{re.escape(format)}' \({word}\) is not taken"):
        by_columns(arrow.numbers([1], format))
    with pytest.raises(TypeError, match=r"values: Arrow type 'q' is not taken"):
        by_columns(arrow.numbers([1], "q"))


def test_an_index_of_pandas_is_told_what_makes_a_column_of_it() -> None:
    pandas = pytest.importorskip("pandas")
    times = pandas.DatetimeIndex(["2023-01-01"], tz="UTC")
    with pytest.raises(TypeError, match=r"not DatetimeIndex; its to_series\(\) is taken"):
        by_columns([b"x"], None, times)
    (batch,) = decode_batches(by_columns([b"x"], None, times.to_series()))
    assert batch.max_timestamp == 1_672_531_200_000


def test_a_list_of_times_that_no_number_holds_is_refused_by_its_row() -> None:
    with pytest.raises(InvalidTimestampError, match="row 1 of timestamps is 9223372036854775808"):
        by_columns([b"x"] * 2, None, [0, 2**63])


def test_known_lengths_are_compared_before_anything_is_packed() -> None:
    with pytest.raises(InvalidColumnError, match="values has 2 rows and keys has 3"):
        ColumnInput([b"a", b"b"], arrow.binary([b"a"] * 3), None, None, T)
    assert issubclass(InvalidColumnError, ValueError)


@pytest.mark.parametrize("longer", ["values", "keys"])
def test_a_stream_that_ends_early_names_both_columns(longer: str) -> None:
    def stream(*counts: int) -> arrow.Stream:
        return arrow.Stream([arrow.binary([b"x"] * count) for count in counts], like=arrow.binary([]))

    values, keys = (stream(2, 2), stream(3)) if longer == "values" else (stream(3), stream(2, 2))
    shorter = "keys" if longer == "values" else "values"
    with pytest.raises(InvalidColumnError, match=f"{shorter} has 3 rows and {longer} has more, 4 so far"):
        by_columns(values, keys)


# ---- into a log


@pytest.fixture
def log(partition: Path, clock: ManualClock, no_syncs: None) -> Any:
    with kstore.Log.open(partition, clock=clock) as opened:
        yield opened


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_log_filled_by_columns_has_the_files_of_one_filled_by_records(
    root: Path, clock: ManualClock, no_syncs: None, codec: str, threads: int
) -> None:
    rows = [(b"k%d" % number, b"value " * (number % 50), T + number // 100) for number in range(6000)]
    keys, values, times = map(list, zip(*rows, strict=True))
    settings = {"segment_bytes": 150_000, "index_interval_bytes": 500, "segment_index_bytes": 400}
    with kstore.Log.open(root / "a-0", clock=clock, **settings) as log:
        wanted = log.append_many(
            ((key, value, time, None) for key, value, time in rows), compression=codec, batch_bytes=7000
        )
        segments = len(log.segments)
    with kstore.Log.open(root / "b-0", clock=clock, **settings) as log:
        given = log.append_columns(
            arrow.binary(values),
            keys=arrow.views(keys),
            timestamps=np.array(times),
            compression=codec,
            batch_bytes=7000,
            threads=threads,
        )
    assert given == wanted == AppendInfo(0, 5999, T + 59, -1)
    assert files(root / "a-0") == files(root / "b-0")
    assert segments > 3 or codec != "none"


def test_the_time_of_an_append_is_the_logs_where_the_topic_says_so(partition: Path, clock: ManualClock) -> None:
    with kstore.Log.open(partition, clock=clock, message_timestamp_type="LogAppendTime") as log:
        info = log.append_columns([b"a", b"b"], timestamps=[5, 6])
        assert info == AppendInfo(0, 1, clock.now, clock.now)
        assert [record.timestamp for record in log.read()] == [clock.now] * 2


def test_no_rows_append_nothing(log: kstore.Log) -> None:
    for nothing in ([], arrow.binary([]), np.zeros((0, 3), np.uint8), arrow.Stream([], like=arrow.binary([]))):
        assert log.append_columns(nothing) == AppendInfo()
    assert log.log_end_offset == 0


def test_sync_and_leader_epoch_are_as_in_append_many(log: kstore.Log) -> None:
    log.append_columns([b"a"], leader_epoch=3, sync=True)
    assert next(iter(log.read_batches())).partition_leader_epoch == 3
    assert log.stats()["log_end_offset"] == 1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_refused_row_leaves_the_batches_before_its_own(log: kstore.Log, codec: str, threads: int) -> None:
    values: list[bytes] = [b"v" * 1000] * 2000
    times: list[int] = [T] * 2000
    times[1234] = -7
    with pytest.raises(InvalidTimestampError, match="record 1234: ") as caught:
        log.append_columns(values, timestamps=np.array(times), batch_bytes=10_100, compression=codec, threads=threads)
    # Nine records of about a kilobyte go into a batch: 1,234 is the second of the 138th.
    assert caught.value.appended == AppendInfo(0, 1232, T, -1)
    assert log.log_end_offset == 1233
    assert log.append_columns([b"next"]).first_offset == 1233


def test_a_compacted_log_takes_no_row_without_a_key(partition: Path, clock: ManualClock) -> None:
    with kstore.Log.open(partition, clock=clock, cleanup_policy="compact") as log:
        with pytest.raises(InvalidRecordError, match="record 0: a compacted"):
            log.append_columns([b"a", b"b"])
        with pytest.raises(InvalidRecordError, match="record 1: a compacted") as caught:
            log.append_columns([b"a", b"b"], keys=[b"k", None])
        assert caught.value.appended == AppendInfo()
        assert log.append_columns([b"a", None], keys=[b"k", b""]).last_offset == 1


@pytest.mark.parametrize(("before", "after"), [(1000, 1 << 60), (1 << 60, 1000), (0, 0)])
def test_times_too_far_from_now_are_refused_and_their_neighbours_are_not(
    partition: Path, clock: ManualClock, no_syncs: None, before: int, after: int
) -> None:
    settings = {"message_timestamp_before_max_ms": before, "message_timestamp_after_max_ms": after}
    now = clock.now
    with kstore.Log.open(partition, clock=clock, **settings) as log:
        good = [-1, now, max(now - before, 0), min(now + after, 2**63 - 1)]
        assert log.append_columns([b"v"] * 4, timestamps=good).last_offset == 3
        for bad in (now - before - 1, now + after + 1):
            if bad >= 0:
                with pytest.raises(InvalidTimestampError, match="record 2: "):
                    log.append_columns([b"v"] * 3, timestamps=[now, -1, bad])


def test_a_record_that_no_batch_may_hold_is_refused_and_its_neighbour_goes_alone(
    partition: Path, clock: ManualClock, no_syncs: None
) -> None:
    # 61 bytes of header, a length of two bytes, seven of other fields, two of them the value's size.
    with kstore.Log.open(partition, clock=clock, max_message_bytes=1000) as log:
        fits, too_large = b"f" * 930, b"t" * 931
        info = log.append_columns([b"small", fits, b"small"], batch_bytes=100)
        assert info.last_offset == 2
        assert [batch.size_bytes for batch in log.read_batches()] == [73, 1000, 73]
        with pytest.raises(RecordTooLargeError, match=r"record 1: a batch of 1001 bytes.*1000") as caught:
            log.append_columns([b"small", too_large], batch_bytes=100)
        assert caught.value.appended == AppendInfo(3, 3, clock.now, -1)


def test_a_record_larger_than_a_segment_is_named_so(partition: Path, clock: ManualClock, no_syncs: None) -> None:
    with kstore.Log.open(partition, clock=clock, segment_bytes=500) as log:
        with pytest.raises(RecordBatchTooLargeError, match="record 1: ") as caught:
            log.append_columns([b"small", b"x" * 1000])
        assert caught.value.appended == AppendInfo(0, 0, clock.now, -1)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_that_compression_made_larger_than_a_limit_is_split(
    root: Path, clock: ManualClock, no_syncs: None, threads: int, rng: Any
) -> None:
    values = [rng.randbytes(300) for _ in range(100)]
    with kstore.Log.open(root / "a-0", clock=clock, max_message_bytes=5000) as log:
        log.append_many(values, compression="gzip")
    with kstore.Log.open(root / "b-0", clock=clock, max_message_bytes=5000) as log:
        log.append_columns(values, compression="gzip", threads=threads)
        with pytest.raises(RecordTooLargeError, match="record 1: ") as caught:
            log.append_columns([b"small", rng.randbytes(5000)], compression="gzip", threads=threads)
        assert caught.value.appended == AppendInfo(100, 100, clock.now, -1)
        log.truncate_to(100)
    assert files(root / "a-0")["00000000000000000000.log"] == files(root / "b-0")["00000000000000000000.log"]


def test_a_read_only_log_and_a_closed_one_refuse_columns(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        pass
    with pytest.raises(LogClosedError):
        log.append_columns([b"a"])
    with kstore.Log.open(partition, mode="r") as log, pytest.raises(LogClosedError, match="mode='a'"):
        log.append_columns([b"a"])


@pytest.mark.parametrize("threads", [0, 257, 1.5, True])
def test_a_number_of_threads_that_makes_no_sense_is_refused(log: kstore.Log, threads: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="threads"):
        log.append_columns([b"a"], threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_write_that_fails_ends_the_call_and_nothing_follows_it(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    stored = []
    store = batch_packer.store

    def failing(writer: Any, packer: Packer, tally: Any, **options: Any) -> tuple[int, int]:
        if len(stored) == 2:
            raise kstore.StorageError(28, "No space left on device")
        stored.append(len(packer))
        return store(writer, packer, tally, **options)

    monkeypatch.setattr(batch_packer, "store", failing)
    with pytest.raises(kstore.StorageError, match="No space") as caught:
        log.append_columns(np.zeros((12_000, 1000), np.uint8), threads=threads)
    assert len(stored) == 2
    assert isinstance(caught.value.appended, kstore.AppendInfo)
    assert (caught.value.appended.first_offset, caught.value.appended.last_offset) == (0, log.log_end_offset - 1)
    assert sum(batch.count for batch in log.read_batches()) == log.log_end_offset > 0


def test_what_a_stream_raises_leaves_the_batches_before_it(log: kstore.Log) -> None:
    chunk = arrow.binary([b"x" * 1000] * 700)
    with pytest.raises(InvalidColumnError, match="failed after 1400 rows: the disk is on fire") as caught:
        log.append_columns(arrow.Stream([chunk] * 3, like=chunk, fail_at=2), batch_bytes=102_000)
    assert caught.value.appended is not None
    assert caught.value.appended.last_offset == log.log_end_offset - 1 == 1299


def test_threads_append_columns_side_by_side(log: kstore.Log) -> None:
    def append(name: bytes) -> None:
        for number in range(20):
            log.append_columns(arrow.binary([name + b"%d" % number] * 300), batch_bytes=100_000, compression="lz4")

    workers = [threading.Thread(target=append, args=(name,)) for name in (b"a", b"b", b"c")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    batches = [[record.value for record in batch] for batch in log.read_batches()]
    assert sorted(map(len, batches)) == [300] * 60
    assert all(len(set(batch)) == 1 for batch in batches)


def test_the_memory_of_a_call_is_given_back(log: kstore.Log) -> None:
    column = [b"value"] * 50

    def call() -> None:
        log.append_columns(arrow.binary(column), keys=arrow.views(column), headers=arrow.headers([None] * 50))
        with pytest.raises(InvalidColumnError):
            log.append_columns(arrow.binary(column), keys=arrow.views(column[1:]))

    gc.collect()  # what tests before this one left
    before = arrow.alive()
    for _ in range(20):
        call()
    assert arrow.alive() == before


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({}, 3 << 19, (3 << 19) + 16_384),
        ({"threads": 2}, 1 << 19, (1 << 19) + 16_384),
        ({"compression": "lz4"}, 1, 1 << 19),
    ],
)
def test_columns_are_written_in_larger_pieces_by_one_thread_without_a_codec(
    log: kstore.Log, options: dict[str, Any], least: int, most: int
) -> None:
    sizes = []

    def note(fd: int, data: memoryview, position: int) -> int:
        sizes.append(len(data))
        return os.pwrite(fd, data, position)

    set_pwrite_hook(note)
    try:
        log.append_columns(arrow.binary([b"v" * 1000] * 5000), batch_bytes=16_384, **options)
    finally:
        set_pwrite_hook(None)
    assert least <= max(sizes) <= most


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_call_leaves_nothing_for_the_garbage_collector(log: kstore.Log, codec: str, threads: int) -> None:
    """What it held goes when it returns: a packer's megabyte is not left for later."""

    def call() -> None:
        log.append_columns(np.zeros((30_000, 100), np.uint8), keys=[b"k"] * 30_000, compression=codec, threads=threads)
        with pytest.raises(InvalidTimestampError):
            log.append_columns([b"a"] * 3, timestamps=[1, 2, -5], compression=codec, threads=threads)

    call()
    gc.collect()
    gc.disable()
    try:
        call()
        assert not [kind for kind in map(type, unreachable()) if kind.__module__.startswith("kstore")]
    finally:
        gc.enable()


def unreachable() -> list[object]:
    """What only the garbage collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("calls", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_small_calls_leave_the_process_at_its_size(partition: Path, no_syncs: None, calls: int) -> None:
    if sanitized():
        pytest.skip("the sanitizer keeps what was freed")
    values, keys = np.array([b"value"] * 3), [b"key"] * 3
    with kstore.Log.open(partition, segment_bytes=1 << 30) as log:
        for _ in range(2000):
            log.append_columns(values, keys=keys)
        grown = []
        for _ in range(4):  # what a call keeps, it keeps in each round; what others take, they take in some
            before = resident_bytes()
            for _ in range(calls):
                log.append_columns(values, keys=keys, timestamps=5)
            grown.append(resident_bytes() - before)
            if grown[-1] < 2 << 20:
                return
        pytest.fail(f"each round left more bytes: {grown}")


# ---- out of a log, and in again


@pytest.mark.parametrize("layout", ["binary", "large_binary", "view"])
@given(rows=records, batch_bytes=st.sampled_from([100, 1000]))
def test_records_that_went_through_columns_are_the_records(
    tmp_path_factory: pytest.TempPathFactory, layout: str, rows: list[tuple[Any, Any, Any, Any]], batch_bytes: int
) -> None:
    if not all(is_text(name) for *_, found in rows for name, _ in found or ()):
        return  # names of headers come out as text
    data = row_by_row(as_records(rows), batch_bytes=batch_bytes)
    names = ("key", "value", "timestamp", "headers")
    columns = kstore.decode_columns(data, columns=names, layout=layout)
    assert by_columns(columns, batch_bytes=batch_bytes) == data


def is_text(name: bytes) -> bool:
    return name.decode(errors="replace").encode() == name


def test_a_log_is_a_column_source_as_it_is(root: Path, clock: ManualClock, no_syncs: None) -> None:
    rows = [(b"k%d" % number, b"v" * number, T - number) for number in range(500)]
    with kstore.Log.open(root / "a-0", clock=clock, segment_bytes=20_000) as source:
        source.append_many(((key, value, time, None) for key, value, time in rows), batch_bytes=700)
        with kstore.Log.open(root / "b-0", clock=clock) as log:
            assert log.append_columns(source).last_offset == 499
            assert [(record.key, record.value, record.timestamp) for record in log.read()] == rows
            assert log.append_columns(source.read_columns(498)).last_offset == 501
        assert source.append_columns(source).last_offset == 999  # as it was when it was handed over
