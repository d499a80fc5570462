"""Searching in index entries: floor, upper bound and soundness against lists, on good entries and on any bytes at all.

Rule numbers are those of SEMANTICS 3; rows named OffsetIndexTest and TimeIndexTest are Kafka's own cases.
"""

from __future__ import annotations

import gc
import itertools
import random
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.config import cautions
from kstore.files._index_search import (
    OFFSET_ENTRY_BYTES,
    OFFSET_ENTRY_FIELDS,
    TIME_ENTRY_BYTES,
    TIME_ENTRY_FIELDS,
    Entries,
    OffsetEntries,
    TimeEntries,
    offset_entry,
    time_entry,
)
from kstore.files.index_file import OffsetIndex
from tests.conftest import SEED

Pair = tuple[int, int]

BASE = 45
INT_MAX = 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

COUNTS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000]


def offset_bytes(pairs: list[Pair], base_offset: int = BASE) -> bytes:
    return b"".join(struct.pack(">ii", offset - base_offset, position) for offset, position in pairs)


def time_bytes(pairs: list[Pair], base_offset: int = BASE) -> bytes:
    return b"".join(struct.pack(">qi", timestamp, offset - base_offset) for timestamp, offset in pairs)


def floor(pairs: list[Pair], target: int, otherwise: Pair) -> Pair:
    slot = bisect_right(pairs, target, key=lambda pair: pair[0])
    return pairs[slot - 1] if slot else otherwise


@st.composite
def offset_pairs(draw: st.DrawFn) -> list[Pair]:
    offsets = sorted(draw(st.sets(st.integers(0, INT_MAX) | st.integers(0, 200), max_size=60)))
    positions = sorted(draw(st.sets(st.integers(1, INT_MAX), min_size=len(offsets), max_size=len(offsets))))
    return [(BASE + offset, position) for offset, position in zip(offsets, positions, strict=True)]


@st.composite
def time_pairs(draw: st.DrawFn) -> list[Pair]:
    timestamps = sorted(draw(st.sets(st.integers(1, LONG_MAX) | st.integers(1, 300), max_size=60)))
    offsets = sorted(draw(st.lists(st.integers(0, INT_MAX), min_size=len(timestamps), max_size=len(timestamps))))
    return [(timestamp, BASE + offset) for timestamp, offset in zip(timestamps, offsets, strict=True)]


targets = st.lists(st.integers(LONG_MIN, LONG_MAX) | st.integers(0, 300), max_size=40)


@given(pairs=offset_pairs(), wanted=targets)
def test_an_offset_lookup_gives_the_floor(pairs: list[Pair], wanted: list[int]) -> None:
    """SEMANTICS 3.13; every key and both its neighbours are asked for too."""
    entries = OffsetEntries(offset_bytes(pairs), BASE)
    wanted += [pair[0] + step for pair in pairs for step in (-1, 0, 1)]
    expected = [floor(pairs, target, (BASE, 0)) for target in wanted]
    assert [entries.lookup(target) for target in wanted] == expected


@given(pairs=time_pairs(), wanted=targets)
def test_a_timestamp_lookup_gives_the_floor(pairs: list[Pair], wanted: list[int]) -> None:
    """SEMANTICS 3.13."""
    entries = TimeEntries(time_bytes(pairs), BASE)
    wanted += [min(pair[0] + step, LONG_MAX) for pair in pairs for step in (-1, 0, 1)]
    expected = [floor(pairs, target, (-1, BASE)) for target in wanted]
    assert [entries.lookup(target) for target in wanted] == expected


@given(pairs=offset_pairs(), position=st.integers(LONG_MIN, LONG_MAX) | st.integers(0, 500))
def test_the_upper_bound_is_the_first_entry_at_or_behind_the_position(pairs: list[Pair], position: int) -> None:
    """SEMANTICS 3.14; an exact hit of the first entry does not count, as in Kafka."""
    with TemporaryDirectory() as folder:
        index = OffsetIndex(f"{folder}/x", BASE, 8 * len(pairs) + 8)
        index.replace(offset_bytes(pairs))
        for wanted in [position, *(pair[1] + step for pair in pairs for step in (-1, 0, 1))]:
            slot = bisect_left(pairs, wanted, key=lambda pair: pair[1])
            if slot == 0 and pairs and pairs[0][1] == wanted:
                slot = 1
            assert index.offset_from(wanted) == (pairs[slot][0] if slot < len(pairs) else None)
        index.close()


@given(pairs=offset_pairs(), offset=st.integers(LONG_MIN, LONG_MAX))
def test_a_truncation_keeps_the_offset_entries_below(pairs: list[Pair], offset: int) -> None:
    """SEMANTICS 3.15: an exact match goes."""
    entries = OffsetEntries(offset_bytes(pairs), BASE)
    for wanted in [offset, *(pair[0] + step for pair in pairs for step in (-1, 0, 1))]:
        assert entries.entries_below(wanted) == sum(pair[0] < wanted for pair in pairs)


@given(pairs=time_pairs(), offset=st.integers(LONG_MIN, LONG_MAX))
def test_a_truncation_of_a_time_index_goes_by_its_offsets(pairs: list[Pair], offset: int) -> None:
    """SEMANTICS 3.15."""
    entries = TimeEntries(time_bytes(pairs), BASE)
    for wanted in [offset, *(pair[1] + step for pair in pairs for step in (-1, 0, 1))]:
        assert entries.entries_below(wanted) == sum(pair[1] < wanted for pair in pairs)


@pytest.mark.parametrize("count", COUNTS)
def test_every_slot_of_an_index_of_any_size_is_found(count: int) -> None:
    pairs = [(BASE + 10 * number, 100 * number) for number in range(1, count + 1)]
    entries = OffsetEntries(offset_bytes(pairs), BASE)
    times = TimeEntries(time_bytes([(position, offset) for offset, position in pairs]), BASE)
    wanted = [BASE + 10 * number + step for number in range(count + 2) for step in (-1, 0, 1)]
    assert [entries.lookup(target) for target in wanted] == [floor(pairs, target, (BASE, 0)) for target in wanted]
    assert [entries.entry(slot) for slot in range(count)] == pairs
    assert [times.lookup(position) for _, position in pairs] == [(position, offset) for offset, position in pairs]


# How much each key lies above the one before it, of so many: a search guesses that all lie alike.
GAPS: dict[str, Callable[[random.Random, int, int], int]] = {
    "even": lambda rng, number, count: 10,
    "varied": lambda rng, number, count: rng.randint(1, 20),
    "in bursts": lambda rng, number, count: 1 if number // 100 % 3 else 1000,
    "growing": lambda rng, number, count: 1 + number,
    "shrinking": lambda rng, number, count: 1 + count - number,
    "a first one far below": lambda rng, number, count: INT_MAX // 2 if number == 1 else 3,
    "a last one far above": lambda rng, number, count: INT_MAX // 2 if number == count - 1 else 3,
}


@pytest.mark.parametrize("count", [63, 64, 65, 66, 500, 20_000])
@pytest.mark.parametrize("gaps", GAPS)
def test_every_key_and_its_neighbours_are_found_however_unevenly_keys_lie(gaps: str, count: int) -> None:
    """SEMANTICS 3.13."""
    rng = random.Random(f"{SEED}:{gaps}:{count}")
    keys = list(itertools.accumulate(GAPS[gaps](rng, number, count) for number in range(count)))
    pairs = [(BASE + key, number) for number, key in enumerate(keys)]
    step = (LONG_MAX - 2) // keys[-1]  # the same keys, spread over all that a timestamp can be
    stamps = [(key * step, BASE + number) for number, key in enumerate(keys)]
    entries, times = OffsetEntries(offset_bytes(pairs), BASE), TimeEntries(time_bytes(stamps), BASE)
    few = pairs if count < 1000 else rng.sample(pairs, 1000) + pairs[:2] + pairs[-2:]
    for wanted in [key + by for key, _ in few for by in (-1, 0, 1)]:
        assert entries.lookup(wanted) == floor(pairs, wanted, (BASE, 0))
        assert entries.entries_below(wanted) == bisect_left(pairs, wanted, key=lambda pair: pair[0])
        stamp = min((wanted - BASE) * step, LONG_MAX)
        assert times.lookup(stamp) == floor(stamps, stamp, (-1, BASE))


def test_times_that_floating_point_numbers_do_not_tell_apart_are_found() -> None:
    stamps = [(LONG_MAX - 300 + 2 * number, BASE + number) for number in range(150)]
    times = TimeEntries(time_bytes(stamps), BASE)
    for stamp in range(LONG_MAX - 302, LONG_MAX + 1):
        assert times.lookup(stamp) == floor(stamps, stamp, (-1, BASE))


def test_a_full_index_of_ten_mebibytes_is_searched_from_end_to_end() -> None:
    """SEMANTICS 3.2: 1,310,720 entries."""
    count = 10_485_760 // OFFSET_ENTRY_BYTES
    columns = np.empty((count, 2), dtype=">i4")
    columns[:, 0] = np.arange(1, count + 1) * 3
    columns[:, 1] = np.arange(1, count + 1)
    entries = OffsetEntries(columns.tobytes(), 0)
    assert entries.max_entries == entries.entries == 1_310_720
    end = 3 * count
    wanted = np.concatenate([np.arange(-2, 3000), np.arange(3000, end, 997), np.arange(end - 5, end + 5)])
    found = np.array([entries.lookup(target) for target in wanted.tolist()])
    slots = np.clip(wanted // 3, 0, count)
    assert np.array_equal(found[:, 0], slots * 3)
    assert np.array_equal(found[:, 1], slots)
    assert entries.lookup(3 * count - 1) == (3 * count - 3, count - 1)


def test_the_worked_example_of_the_format_is_read() -> None:
    """FORMAT 14.4 and 14.5."""
    offsets = OffsetEntries(bytes.fromhex("000000290000106b00000055000020db"), 1000)
    assert [offsets.lookup(offset) for offset in (1040, 1041, 1042)] == [(1000, 0), (1041, 4203), (1041, 4203)]
    assert [offsets.lookup(offset) for offset in (1084, 1085, 9999)] == [(1041, 4203), (1085, 8411), (1085, 8411)]
    start = 0x018BCFE56800
    times = TimeEntries(bytes.fromhex("0000018bcfe56800 00000029 0000018bcfe57b88 00000055"), 1000)
    assert [times.lookup(start - 1), times.lookup(start + 4999)] == [(-1, 1000), (start, 1041)]


def test_lookup_on_no_entries_and_beyond_the_last() -> None:
    """OffsetIndexTest.lookupExtremeCases."""
    assert OffsetEntries(b"", BASE).lookup(BASE) == (BASE, 0)
    entries = OffsetEntries(offset_bytes([(46 + i, i) for i in range(30)]), BASE)
    assert entries.lookup(BASE) == (BASE, 0)
    assert entries.lookup(75) == (75, 29)


def test_upper_bounds_by_position(tmp_path: Path) -> None:
    """OffsetIndexTest.testFetchUpperBoundOffset: each pair asked for is an entry's position plus a size."""
    index = OffsetIndex(tmp_path / "x", BASE, 80)
    index.replace(b"")
    assert index.offset_from(5) is None
    index.replace(offset_bytes([(45, 0), (46, 10), (47, 23), (48, 37)]))
    asked = [(0, 5), (0, 10), (0, 23), (0, 22), (10, 24), (37, 1), (0, 200), (10, 200)]
    bounds = [index.offset_from(position + size) for position, size in asked]
    assert bounds == [46, 46, 47, 47, 48, None, None, None]


def test_time_entries_are_read_slot_by_slot() -> None:
    """TimeIndexTest.testEntry, testEntrySize, TimeIndexTest.testParseEntry."""
    entries = TimeEntries(time_bytes([(10 * i, 45 + 10 * i) for i in range(1, 30)]), BASE)
    assert [entries.entry(slot) for slot in range(4)] == [(10, 55), (20, 65), (30, 75), (40, 85)]
    assert entries.entry_bytes == TIME_ENTRY_BYTES == 12
    assert TimeEntries(bytes.fromhex("0000000000000001 00000001"), 45).entry(0) == (1, 46)


@pytest.mark.parametrize("entries", [OffsetEntries(bytes(24), 0, 2), TimeEntries(bytes(36), 0, 2)])
def test_a_slot_that_is_not_in_use_is_refused(entries: Entries) -> None:
    """OffsetIndexTest.testEntryOverflow, TimeIndexTest.testEntryOverflow."""
    for slot in (-1, 2, 3, LONG_MIN, LONG_MAX):
        with pytest.raises(IndexError, match=f"slot {slot} of an index with 2 entries"):
            entries.entry(slot)
    assert entries.entry(1)[1] == 0
    entries.entries = 0
    with pytest.raises(IndexError):
        entries.entry(0)


def test_the_last_entry_of_none_is_what_a_lookup_without_a_hit_gives() -> None:
    """TimeIndexTest.testLastEntry."""
    assert OffsetEntries(b"", BASE).last == (BASE, 0)
    assert TimeEntries(b"", BASE).last == (-1, BASE)
    assert TimeEntries(time_bytes([(1, 46)]), BASE).last == (1, 46)


def test_the_time_index_is_full_one_entry_early() -> None:
    """SEMANTICS 3.3."""
    offsets, times = OffsetEntries(bytes(24), 0, 0), TimeEntries(bytes(36), 0, 0)
    full = []
    for entries in range(4):
        offsets.entries = times.entries = entries
        full.append((offsets.is_full, times.is_full))
    assert full == [(False, False), (False, False), (False, True), (True, True)]
    assert TimeEntries(bytes(12), 0, 0).is_full  # SEMANTICS 3.2: one slot is always full


def test_entries_behind_the_number_in_use_are_not_seen() -> None:
    pairs = [(46, 5), (50, 10), (60, 20)]
    entries = OffsetEntries(offset_bytes(pairs), BASE, 1)
    assert (entries.entries, entries.max_entries, entries.size_bytes) == (1, 3, 8)
    assert entries.lookup(70) == entries.last == (46, 5)
    entries.entries = 3
    assert entries.lookup(70) == (60, 20)
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match="room for 3"):
            entries.entries = wrong
    with pytest.raises(ValueError, match="room for 3"):
        OffsetEntries(offset_bytes(pairs), BASE, 4)
    assert entries.entries == 3


def test_an_entry_cut_at_the_end_of_the_buffer_is_no_entry() -> None:
    """SEMANTICS 3.4."""
    for extra in range(8):
        assert OffsetEntries(offset_bytes([(46, 5), (50, 10)]) + b"\xff" * extra, BASE).entries == 2
    for extra in range(12):
        assert TimeEntries(time_bytes([(1, 46)]) + b"\xff" * extra, BASE).entries == 1


def test_a_buffer_that_is_written_to_shows_the_new_entry_once_it_is_counted() -> None:
    buffer = bytearray(24)
    entries = OffsetEntries(buffer, BASE, 0)
    buffer[:8] = struct.pack(">ii", 4, 160)
    assert entries.lookup(100) == (BASE, 0)
    entries.entries = 1
    assert entries.lookup(100) == (49, 160)


@pytest.mark.parametrize("kind", [OffsetEntries, TimeEntries])
@given(data=st.binary(max_size=400) | st.binary(min_size=12 * 65, max_size=12 * 300), wanted=targets)
def test_any_bytes_give_an_answer_whose_key_is_at_or_below_the_target(
    kind: type[OffsetEntries] | type[TimeEntries], data: bytes, wanted: list[int]
) -> None:
    entries = kind(data, BASE)
    nothing = (BASE, 0) if kind is OffsetEntries else (-1, BASE)
    for target in wanted:
        found = entries.lookup(target)
        assert found == nothing or found[0] <= target
        assert 0 <= entries.entries_below(target) <= entries.entries
    assert 0 <= entries.sound_entries() <= entries.entries


@pytest.mark.parametrize("base_offset", [LONG_MAX, LONG_MAX - INT_MAX, 0])
def test_offsets_at_the_end_of_what_is_possible(base_offset: int) -> None:
    entries = OffsetEntries(struct.pack(">ii", INT_MAX if base_offset < LONG_MAX else 0, 7), base_offset)
    last = base_offset + (INT_MAX if base_offset < LONG_MAX else 0)
    assert entries.lookup(LONG_MAX) == (last, 7)
    assert entries.lookup(LONG_MIN) == (base_offset, 0)
    assert entries.entries_below(LONG_MIN) == 0


@given(pairs=offset_pairs(), zeros=st.integers(0, 5))
def test_rising_entries_are_sound_and_the_zeros_behind_them_are_not(pairs: list[Pair], zeros: int) -> None:
    """FORMAT 7.5."""
    assert OffsetEntries(offset_bytes(pairs) + bytes(8 * zeros), BASE).sound_entries() == len(pairs)


@given(pairs=time_pairs(), zeros=st.integers(0, 5))
def test_rising_time_entries_are_sound_and_the_zeros_behind_them_are_not(pairs: list[Pair], zeros: int) -> None:
    """FORMAT 8.3; a file of zeros alone has no entry either."""
    assert TimeEntries(time_bytes(pairs) + bytes(12 * zeros), BASE).sound_entries() == len(pairs)


@pytest.mark.parametrize(
    ("second", "sound"),
    [((51, 11), 3), ((50, 11), 1), ((49, 11), 1), ((51, 10), 1), ((51, 0), 1), ((44, 11), 1), ((60, 11), 2)],
)
def test_an_offset_entry_that_does_not_rise_ends_the_sound_ones(second: Pair, sound: int) -> None:
    assert OffsetEntries(offset_bytes([(50, 10), second, (60, 20)]), BASE).sound_entries() == sound


@pytest.mark.parametrize(
    ("second", "sound"), [((11, 50), 3), ((11, 51), 3), ((10, 51), 1), ((9, 51), 1), ((11, 49), 1), ((-1, 51), 1)]
)
def test_a_time_entry_that_does_not_rise_ends_the_sound_ones(second: Pair, sound: int) -> None:
    assert TimeEntries(time_bytes([(10, 50), second, (20, 60)]), BASE).sound_entries() == sound


def test_timestamp_zero_is_an_entry_unless_all_of_it_is_zero() -> None:
    assert TimeEntries(time_bytes([(0, 46), (5, 50)]), BASE).sound_entries() == 2
    assert TimeEntries(time_bytes([(0, 45), (5, 50)]), BASE).sound_entries() == 0


def test_entries_without_a_buffer_say_so() -> None:
    with pytest.raises(ValueError, match="no buffer"):
        Entries(0).entries  # noqa: B018


@given(pairs=time_pairs())
def test_entries_are_listed_in_their_order_and_written_as_they_are_read(pairs: list[Pair]) -> None:
    data = b"".join(time_entry(timestamp, offset - BASE) for timestamp, offset in pairs)
    assert data == time_bytes(pairs)
    assert TimeEntries(data, BASE).all_entries() == pairs
    offsets = [(offset, timestamp % 1000) for timestamp, offset in pairs]
    data = b"".join(offset_entry(offset - BASE, position) for offset, position in offsets)
    assert data == offset_bytes(offsets)
    assert OffsetEntries(data, BASE).all_entries() == offsets


def test_the_sizes_of_entries_are_those_that_the_settings_count_with() -> None:
    assert (OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES) == (cautions.OFFSET_ENTRY_BYTES, cautions.TIME_ENTRY_BYTES)
    assert np.dtype(OFFSET_ENTRY_FIELDS).itemsize == OFFSET_ENTRY_BYTES
    assert np.dtype(TIME_ENTRY_FIELDS).itemsize == TIME_ENTRY_BYTES


class InCycle(OffsetEntries):
    """Entries that only the garbage collector finds."""

    def __init__(self, buffer: bytearray) -> None:
        super().__init__(buffer, BASE)
        self.itself = self


def test_entries_that_the_garbage_collector_frees_release_their_buffer(capfd: pytest.CaptureFixture[str]) -> None:
    buffer = bytearray(80)
    InCycle(buffer)
    gc.collect()
    buffer.append(1)  # a buffer that is exported still cannot grow
    InCycle(bytearray(80))
    gc.collect()
    assert "exported buffers" not in capfd.readouterr().err
