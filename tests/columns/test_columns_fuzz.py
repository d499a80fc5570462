"""Any bytes whatever as columns: the rows that the record reader gives, or its very complaint, in every layout."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore._core import RecordIterator, decode_batches
from kstore.columns._column_reader import decode_columns
from kstore.columns._columns import LAYOUTS, Columns
from kstore.errors import CorruptRecordError
from tests.search.test_fuzz import CORPUS, LIMIT, mutate
from tests.support import reference
from tests.support.reference import Rec

T = 1_700_000_000_000
LEAST = -(2**63)
Outcome = tuple[list[tuple[Any, ...]], tuple[str, int] | None]


def by_records(data: bytes, check_crc: bool = True) -> Outcome:
    """What the record reader makes of the whole batches in `data`."""
    rows: list[tuple[Any, ...]] = []
    try:
        for batch in decode_batches(data, check_crc, max_decompressed_bytes=LIMIT):
            chunk = [(bytes(batch), None, batch.position)]
            for r in RecordIterator(chunk, LEAST, check_crc=check_crc, max_decompressed_bytes=LIMIT):
                headers = tuple((name.encode(errors="surrogateescape"), value) for name, value in r.headers)
                rows.append((r.offset, r.timestamp, r.key, r.value, headers))
    except CorruptRecordError as error:
        return rows, _told(error)
    return rows, None


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    names = [[(name.encode(), value) for name, value in row] for row in columns.headers]
    parts = (columns.offsets.tolist(), columns.timestamps.tolist(), columns.keys, columns.values, names)
    return [
        (offset, timestamp, key, value, tuple(row)) for offset, timestamp, key, value, row in zip(*parts, strict=True)
    ]


def by_columns(data: bytes, layout: str, check_crc: bool = True) -> Outcome:
    wanted = ("offset", "timestamp", "key", "value", "headers")
    try:
        found = decode_columns(data, columns=wanted, layout=layout, check_crc=check_crc, max_decompressed_bytes=LIMIT)
    except CorruptRecordError as error:
        return [], _told(error)
    return rows_of(found), None


def _told(error: CorruptRecordError) -> tuple[str, int]:
    """Without a library's own words for it: zstd's depend on the frames that its context has seen before."""
    return re.sub("(does not decompress): .*", r"\1", error.reason), error.position


def as_shown(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Names of headers as columns have them; how many signs stand for what is not UTF-8, each decoder has its way."""
    return [(*row[:4], tuple((_shown(name), value) for name, value in row[4])) for row in rows]


def _shown(name: bytes) -> str:
    return re.sub("\ufffd+", "\ufffd", name.decode(errors="replace"))


def check(data: bytes, check_crc: bool = True) -> None:
    rows, fault = by_records(data, check_crc)
    for layout in LAYOUTS:
        found, found_fault = by_columns(data, layout, check_crc)
        assert found_fault == fault, layout
        if fault is None:
            assert as_shown(found) == as_shown(rows), layout


@pytest.mark.parametrize("data", CORPUS)
def test_sound_batches_of_every_kind_are_the_rows_that_the_record_reader_gives(data: bytes) -> None:
    check(data)
    check(data * 3)


@pytest.mark.parametrize("data", [CORPUS[0], CORPUS[3], CORPUS[-1]])
def test_batches_cut_at_every_byte_are_left_out_or_refused_as_records_are(data: bytes) -> None:
    for end in range(len(data)):
        check(data + data[:end])
        if end >= 12:
            check(data[:8] + (end - 12).to_bytes(4, "big") + data[12:end], check_crc=False)


def test_every_flipped_bit_has_the_same_outcome_as_in_the_record_reader() -> None:
    data = reference.encode([Rec(i, T + i, b"k%d" % i, b"value", ((b"h", None),) * (i == 1)) for i in range(3)])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        check(bytes(flipped), check_crc=False)


def test_mutated_batches_have_the_same_outcome_as_in_the_record_reader(
    rng: random.Random, budget: Callable[[float], float]
) -> None:
    end = time.monotonic() + budget(3)
    while time.monotonic() < end:
        data = b"".join(mutate(rng, rng.choice(CORPUS)) for _ in range(rng.choice((1, 1, 2, 4))))
        check(data, check_crc=rng.random() < 0.5)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_have_the_same_outcome_as_in_the_record_reader(data: bytes, check_crc: bool) -> None:
    check(data, check_crc)


@given(st.binary(max_size=200), st.integers(0, 20), st.integers(-1, 300))
def test_any_bytes_as_a_record_section_have_the_same_outcome(section: bytes, count: int, last_delta: int) -> None:
    check(reference.batch(section, count, last_offset_delta=last_delta))


@given(
    st.lists(
        st.tuples(st.integers(-3, 300), st.integers(-(2**40), 2**40), st.none() | st.binary(), st.none() | st.binary()),
        max_size=12,
    ),
    st.integers(-1, 300),
    st.sampled_from((0, LEAST, 2**63 - 200, -1)),
)
def test_records_with_unordered_offsets_are_the_rows_of_the_record_reader(
    items: list[tuple[int, int, bytes | None, bytes | None]], last_delta: int, base: int
) -> None:
    section = b"".join(reference.record(timestamp, delta, key, value) for delta, timestamp, key, value in items)
    check(reference.batch(section, len(items), last_offset_delta=last_delta, base_offset=base))


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=5))
def test_header_names_that_are_not_utf8_have_a_replacement_sign(names: list[bytes]) -> None:
    check(reference.encode([Rec(0, T, None, b"v", tuple((name, b"x") for name in names))]))
