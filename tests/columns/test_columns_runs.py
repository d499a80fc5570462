"""Columns in, runs of records, which are written without a look at each: their bytes are those of the records."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.errors import InvalidRecordError, InvalidTimestampError
from tests.support import arrowstructs as arrow

T = 1_700_000_000_000
Rows = list[bytes | None]

# Sizes of a column's rows: below, around and above those at which a varint or a copy grows, or a run ends.
SIZES: dict[str, tuple[int, ...]] = {
    "nothing": (0,),
    "equal": (10,),
    "up to a short copy": tuple(range(18)),
    "around a length of one byte": tuple(range(50, 62)),
    "around a size of one byte": tuple(range(61, 68)),
    "around the longest copy": (0, 16, 31, 63, 64, 65, 127, 128, 129),
    "around what runs take": (0, 100, 255, 256, 257),
}

LAYOUTS: dict[str, Callable[[Rows], Any]] = {
    "binary": lambda rows: arrow.binary(rows, "z", skip=3),
    "large_binary": lambda rows: arrow.binary(rows, "Z", skip=3),
    "binary_view": lambda rows: arrow.views(rows, "vz", skip=3),
    "dictionary": lambda rows: arrow.dictionary(rows, "i", skip=3),
    "list": list,
}


def some_rows(rng: random.Random, sizes: tuple[int, ...], count: int, nulls: bool = False) -> Rows:
    return [None if nulls and rng.random() < 0.2 else rng.randbytes(rng.choice(sizes)) for _ in range(count)]


def row_by_row(values: Rows, keys: Rows | None, times: list[int] | None, **options: Any) -> bytes:
    packer = Packer(options.pop("batch_bytes"), 1 << 24, now_ms=T, **options)
    every = zip(keys or [None] * len(values), values, times or [None] * len(values), strict=True)
    assert packer.pack(iter([(key, value, time, None) for key, value, time in every]), 1 << 31) is False
    return bytes(packer.buffer)


def by_columns(values: Any, keys: Any, times: list[int] | None, **options: Any) -> bytes:
    packer = Packer(options.pop("batch_bytes"), 1 << 24, now_ms=T, **options)
    stamps = None if times is None else np.array(times, np.int64)
    for rows in ColumnInput(values, keys, stamps, None, T):
        assert _column_encoder.pack(packer, rows, 1 << 31) is False
    _column_encoder.close(packer)
    return bytes(packer.buffer)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("nulls", [False, True], ids=["", "nulls"])
def test_rows_of_any_sizes_give_the_batches_of_the_records(
    layout: str, sizes: str, nulls: bool, rng: random.Random
) -> None:
    make = LAYOUTS[layout]
    values = some_rows(rng, SIZES[sizes], 700, nulls)
    for batch_bytes in (100, 1000, 16_384, 1 << 20):
        wanted = row_by_row(values, None, None, batch_bytes=batch_bytes)
        assert by_columns(make(values), None, None, batch_bytes=batch_bytes) == wanted
        for key_sizes in ((16,), (0, 5, 40), (63, 64)):
            keys = some_rows(rng, key_sizes, 700, nulls)
            wanted = row_by_row(values, keys, None, batch_bytes=batch_bytes)
            assert by_columns(make(values), make(keys), None, batch_bytes=batch_bytes) == wanted


@pytest.mark.parametrize("size", [0, 1, 10, 15, 16, 17, 32, 33, 48, 53, 54, 55, 56, 57])
@pytest.mark.parametrize("step", [0, 1, 90, 20_000], ids=["one time", "1 ms", "90 ms", "20 s"])
def test_values_of_one_size_give_the_batches_of_the_records(size: int, step: int, rng: random.Random) -> None:
    """Their records have one size each, too, until the number or the time takes another byte."""
    for count in (3, 4, 65, 200, 17_000):
        values = some_rows(rng, (size,), count)
        times = [T + step * number for number in range(count)] if step else None
        for batch_bytes in (16_384, 1 << 24):
            wanted = row_by_row(values, None, times, batch_bytes=batch_bytes)
            assert by_columns(arrow.binary(values, "z"), None, times, batch_bytes=batch_bytes) == wanted


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 63, 64, 65, 8191, 8192, 8193, 20_000])
def test_numbers_of_more_bytes_follow_those_of_fewer(count: int) -> None:
    rows: Rows = [b"%d" % (number % 7) for number in range(count)]
    wanted = row_by_row(rows, None, None, batch_bytes=1 << 20)
    assert by_columns(arrow.binary(rows), None, None, batch_bytes=1 << 20) == wanted


@pytest.mark.parametrize("later", [-(1 << 21), -8193, -64, -1, 1, 63, 64, 8191, 8192, 1 << 20, (1 << 20) - 1, 1 << 40])
def test_times_that_change_between_runs_and_within_are_each_records_own(later: int, rng: random.Random) -> None:
    rows = some_rows(rng, (10,), 1000)
    for times in (
        [T] + [T + later] * 999,
        [T] * 512 + [T + later] * 488,
        [T + later * (number % 2) for number in range(1000)],
        [-1] * 300 + [T] * 700,
    ):
        wanted = row_by_row(rows, None, times, batch_bytes=16_384)
        assert by_columns(arrow.binary(rows), None, times, batch_bytes=16_384) == wanted


@pytest.mark.parametrize("width", [1, 10, 16, 17, 60, 64, 65, 256, 257])
def test_arrays_of_equal_rows_give_the_batches_of_the_records(width: int, rng: random.Random) -> None:
    data = np.frombuffer(rng.randbytes(500 * width), np.uint8).reshape(500, width)
    for array in (data, data[::-1], data[::3], data[:, : width // 2 + 1]):
        rows: Rows = [bytes(row) for row in array]
        assert by_columns(array, None, None, batch_bytes=3000) == row_by_row(rows, None, None, batch_bytes=3000)
    padded = data.reshape(-1).view(f"S{width}")
    stripped: Rows = list(padded)
    assert by_columns(padded, None, None, batch_bytes=3000) == row_by_row(stripped, None, None, batch_bytes=3000)


@pytest.mark.parametrize("at", [0, 3, 255, 256, 999])
def test_a_row_without_a_key_ends_a_run_where_keys_must_be(at: int) -> None:
    keys: Rows = [b"key"] * 1000
    values: Rows = [b"value"] * 1000
    wanted = row_by_row(values, keys, None, batch_bytes=5000, require_key=True)
    assert by_columns(arrow.binary(values), arrow.binary(keys), None, batch_bytes=5000, require_key=True) == wanted
    keys[at] = None
    with pytest.raises(InvalidRecordError, match=f"record {at}: "):
        by_columns(arrow.binary(values), arrow.binary(keys), None, batch_bytes=5000, require_key=True)


# Rows that differ in all: times that rise, headers on some, sizes on both sides of each piece that is copied.
VARIED: dict[str, tuple[int, ...]] = {
    **SIZES,
    "around each piece of a copy": (0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256),
    "around two bytes of length": (0, 20, 4095, 4096, 8100, 8176, 8191, 8192, 8200, 20_000),
}
HEADERS: dict[str, list[Any]] = {
    "no headers": [None],
    "headers on some": [None, [], [("name", b"value")], [("a", None), ("b", b"v" * 300)]],
}


@pytest.mark.parametrize("layout", ["binary", "binary_view", "list"])
@pytest.mark.parametrize("sizes", VARIED)
@pytest.mark.parametrize("headers", HEADERS)
def test_rows_that_differ_in_all_give_the_batches_of_the_records(
    layout: str, sizes: str, headers: str, rng: random.Random
) -> None:
    make = LAYOUTS[layout]
    values = some_rows(rng, VARIED[sizes], 700, nulls=True)
    given = [rng.choice(HEADERS[headers]) for _ in values]
    for most in (3, 40, 40_000):  # milliseconds between two rows: the last rows are beyond three bytes of a varint
        times = [T + number for number in np.cumsum([rng.randrange(most) for _ in values]).tolist()]
        for keys in (None, some_rows(rng, (0, 5, 40, 63, 64, 300), 700, nulls=True)):
            for batch_bytes in (1000, 16_384, 1 << 20):
                packer = Packer(batch_bytes, 1 << 24, now_ms=T)
                records = zip(keys or [None] * 700, values, times, given, strict=True)
                assert packer.pack(iter(list(records)), 1 << 31) is False
                wanted = bytes(packer.buffer)
                packer = Packer(batch_bytes, 1 << 24, now_ms=T)
                columns = ColumnInput(
                    make(values),
                    None if keys is None else make(keys),
                    np.array(times, np.int64),
                    None if headers == "no headers" else given,
                    T,
                )
                for rows in columns:
                    assert _column_encoder.pack(packer, rows, 1 << 31) is False
                _column_encoder.close(packer)
                assert bytes(packer.buffer) == wanted


@pytest.mark.parametrize("at", [0, 1, 255, 256, 699])
@pytest.mark.parametrize("bad", [-2, -(2**63)])
def test_a_time_that_is_none_among_rising_ones_is_refused_with_its_row(at: int, bad: int) -> None:
    times = [T + number for number in range(700)]
    times[at] = bad
    with pytest.raises(InvalidTimestampError, match=f"record {at}: "):
        by_columns(arrow.binary([b"value"] * 700), None, times, batch_bytes=5000)


@pytest.mark.parametrize("at", [0, 1, 255, 256, 699])
def test_the_largest_time_and_no_time_among_rising_ones_are_taken(at: int) -> None:
    rows: Rows = [b"value"] * 700
    for time in (2**63 - 1, -1):
        times = [T + number for number in range(700)]
        times[at] = time
        wanted = row_by_row(rows, None, times, batch_bytes=5000)
        assert by_columns(arrow.binary(rows), None, times, batch_bytes=5000) == wanted


@pytest.mark.parametrize("start", [0, T, *(2**63 - size for size in (1 << 21, (1 << 20) + 1, 1 << 20, 8192, 64, 5))])
def test_runs_of_rising_times_end_where_a_time_takes_another_byte(start: int, rng: random.Random) -> None:
    rising = [*range(40), *range(60, 70), *range(8180, 8200), *range((1 << 20) - 6, 1 << 20)]
    rising = [start + number for number in rising if start + number < 2**63]
    falling = rising[::-1]
    beyond = [min(start + (1 << 20) + number, 2**63 - 1) for number in range(-2, 3)]
    for times in (rising * 3, rising + falling + rising, rising + beyond + falling, rising[-1:] + rising, falling):
        for sizes in ((10,), (0, 70), (20, 120, 190), (192, 193, 256), (1, 257)):
            rows = some_rows(rng, sizes, len(times), nulls=len(sizes) > 2)
            for keys in (None, some_rows(rng, (3, 16), len(times))):
                wanted = row_by_row(rows, keys, times, batch_bytes=1 << 20)
                given = None if keys is None else arrow.binary(keys)
                assert by_columns(arrow.binary(rows), given, times, batch_bytes=1 << 20) == wanted


@pytest.mark.parametrize("at", [1, 5, 255, 256, 300, 600, 699])
@pytest.mark.parametrize(("first", "bad"), [(T, T + 21), (-1, 999)], ids=["too late", "too early"])
def test_a_time_outside_of_what_is_taken_ends_a_run_of_rising_ones(at: int, first: int, bad: int) -> None:
    limits = {"before_max_ms": T - 1000, "after_max_ms": 20}
    good = 1000 if first < 0 else T + 20
    times = [first if number == 0 else good - number % 5 * (first >= 0) for number in range(700)]
    wanted = row_by_row([b"value"] * 700, None, times, batch_bytes=1 << 20, **limits)
    assert by_columns(arrow.binary([b"value"] * 700), None, times, batch_bytes=1 << 20, **limits) == wanted
    times[at] = bad
    with pytest.raises(InvalidTimestampError, match=f"record {at}: "):
        by_columns(arrow.binary([b"value"] * 700), None, times, batch_bytes=1 << 20, **limits)
