"""Walks over log files by descriptor: what a scan gathers, where it stops, and the searches that start at an index."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore._core import decode_batches
from kstore.codec._batches import check_batch
from kstore.errors import CorruptRecordError, InvalidRecordError, StorageError
from kstore.files._index_search import OffsetEntries, TimeEntries, offset_entry, time_entry
from kstore.files._log_scan import scan
from kstore.files._log_search import find_batch, find_behind, find_timestamp, last_offset
from tests.support import reference
from tests.support.reference import Rec, message, record, wrapper

T = 1_700_000_000_000
INT64 = (1 << 63) - 1

Opened = Callable[[bytes], tuple[int, int]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """`fd, size = opened(data)`: a file of these bytes."""
    made: list[int] = []

    def make(data: bytes) -> tuple[int, int]:
        path = tmp_path / f"{len(made)}.log"
        path.write_bytes(data)
        made.append(os.open(path, os.O_RDONLY))
        return made[-1], len(data)

    yield make  # type: ignore[misc]
    for fd in made:
        os.close(fd)


def batch(first: int, count: int = 1, value: bytes = b"", **fields: int) -> bytes:
    return reference.encode([Rec(i, T + i % 1000, None, value) for i in range(first, first + count)], **fields)


def sized(offset: int, size: int, stamp: int, **fields: int) -> bytes:
    """A batch of one record that is exactly `size` bytes."""
    for n in range(size):
        data = reference.encode([Rec(offset, stamp, None, bytes(n))], **fields)
        if len(data) == size:
            return data
    raise AssertionError(size)


# ---- scan


def test_a_sound_file_is_scanned_to_its_end(opened: Opened) -> None:
    data = batch(10, 3) + message(13, b"k", b"v", timestamp=T) + wrapper([Rec(14, T, None, b"")], 1) + batch(20)
    fd, size = opened(data)
    found = scan(fd, 0, size, 10)
    assert (found.stop, found.reason, found.end_position, found.position) == ("end", None, size, 0)
    assert (found.batches, found.next_offset, found.last_position) == (4, 21, size - len(batch(20)))
    assert (found.max_timestamp, found.max_timestamp_offset, found.first_timestamp) == (T + 20, 20, T + 12)


def test_an_empty_file_has_no_next_offset(opened: Opened) -> None:
    found = scan(*opened(b"")[:1], 0, 0, 5)
    assert (found.stop, found.next_offset, found.batches, found.last_position) == ("end", None, 0, -1)
    assert (found.max_timestamp, found.first_timestamp) == (-1, -1)
    assert (found.index_entries, found.time_entries, found.epochs, found.producer_batches) == (b"", b"", [], [])


def test_index_entries_come_out_as_in_the_worked_example(opened: Opened) -> None:
    """SEMANTICS 3.16: sizes 148, 149 and 150; SEMANTICS 8.16 gives the same entries as live appends."""
    sizes = [148] * 3 + [149] * 30 + [150] * 77
    fd, size = opened(b"".join(sized(i, n, T + i) for i, n in enumerate(sizes[:109])))
    found = scan(fd, 0, size, 0)
    assert size == 16314
    assert list(struct.iter_unpack(">ii", found.index_entries)) == [(28, 4169), (56, 8364), (84, 12564)]
    assert list(struct.iter_unpack(">qi", found.time_entries)) == [(T + 28, 28), (T + 56, 56), (T + 84, 84)]


def test_one_entry_in_two_batches_as_in_the_second_worked_example(opened: Opened) -> None:
    """SEMANTICS 3.17."""
    sizes = [148] * 3 + [149] * 30 + [150] * 16
    fd, size = opened(b"".join(sized(i, n, T + i) for i, n in enumerate(sizes)))
    found = scan(fd, 0, size, 0, index_interval_bytes=150)
    assert size == 7314
    assert [offset for offset, _ in struct.iter_unpack(">ii", found.index_entries)] == list(range(2, 49, 2))
    assert len(found.time_entries) == 288


def test_time_entries_only_rise(opened: Opened) -> None:
    """SEMANTICS 15, V26: an equal or smaller maximum adds no entry."""
    stamps = [1000, 1001, 1002, 1050, 1004, 1005, 1006, 1007]
    fd, size = opened(b"".join(sized(i, 100, t) for i, t in enumerate(stamps)))
    found = scan(fd, 0, size, 0, index_interval_bytes=150)
    assert list(struct.iter_unpack(">ii", found.index_entries)) == [(2, 200), (4, 400), (6, 600)]
    assert list(struct.iter_unpack(">qi", found.time_entries)) == [(1002, 2), (1050, 3)]
    assert (found.max_timestamp, found.max_timestamp_offset) == (1050, 3)


def test_the_interval_is_passed_strictly(opened: Opened) -> None:
    fd, size = opened(b"".join(sized(i, 100, -1) for i in range(5)))
    for interval, offsets in ((99, [1, 2, 3, 4]), (100, [2, 4]), (199, [2, 4]), (200, [3]), (0, [1, 2, 3, 4])):
        found = scan(fd, 0, size, 0, index_interval_bytes=interval)
        assert [offset for offset, _ in struct.iter_unpack(">ii", found.index_entries)] == offsets
        assert found.time_entries == b"", "no timestamps, no time entries"


def test_epochs_are_gathered_where_they_rise(opened: Opened) -> None:
    epochs = [-1, 2, 2, 1, 5, 5, 3]
    fd, size = opened(b"".join(batch(i, leader_epoch=e) for i, e in enumerate(epochs)))
    assert scan(fd, 0, size, 0).epochs == [(2, 1), (5, 4)]
    assert scan(fd, 0, size, 0, latest_epoch=2).epochs == [(5, 4)]
    assert scan(fd, 0, size, 0, latest_epoch=5).epochs == []


def test_batches_of_producers_are_gathered_with_what_their_state_needs(opened: Opened) -> None:
    plain = batch(0)
    mine = batch(1, 2, producer_id=7, producer_epoch=3, base_sequence=11, attributes=reference.TRANSACTIONAL)
    fd, size = opened(plain + mine + plain[:0] + batch(3))
    assert scan(fd, 0, size, 0).producer_batches == [(len(plain), len(mine), 1, 2, 7, 3, 11, T + 2, 0x10)]


def test_a_file_cut_at_any_byte_ends_with_its_last_whole_batch(opened: Opened, tmp_path: Path) -> None:
    """FORMAT 2.7; the rest is torn, never an error."""
    parts = [batch(0, 2), message(2, None, b"v"), batch(3)]
    data = b"".join(parts)
    ends = [0, len(parts[0]), len(parts[0] + parts[1]), len(data)]
    fd, size = opened(data)
    for cut in range(size + 1):
        found = scan(fd, 0, cut, 0)
        assert found.end_position == max(end for end in ends if end <= cut)
        assert found.stop == ("end" if cut in ends else "torn")
        assert (found.reason is None) == (cut in ends)


def test_a_file_that_is_shorter_than_it_was_said_to_be_is_torn(opened: Opened) -> None:
    data = batch(0) + batch(1)
    fd, size = opened(data)
    for end in (size + 1, size + 18, size + 100, size + (1 << 40)):
        found = scan(fd, 0, end, 0)
        assert (found.stop, found.end_position) == ("torn", size)
    truncated, _ = opened(data[:-5])
    found = scan(truncated, 0, size, 0)
    assert (found.stop, found.end_position) == ("torn", len(batch(0)))


@pytest.mark.parametrize("make", [lambda i: batch(i, 2, b"v"), lambda i: message(i, b"k", b"v", timestamp=T)])
def test_any_flipped_bit_that_a_checksum_covers_ends_the_scan(make: Callable[[int], bytes], tmp_path: Path) -> None:
    before, good, after = make(0), make(5), make(9)
    outside = set(range(8)) | ({12, 13, 14, 15} if good[16] == 2 else set())
    fd = os.open(tmp_path / "x.log", os.O_RDWR | os.O_CREAT)
    try:
        for bit in (bit for bit in range(len(good) * 8) if bit // 8 not in outside):
            bad = bytearray(good)
            bad[bit // 8] ^= 0x80 >> bit % 8
            os.pwrite(fd, before + bad + after, 0)
            found = scan(fd, 0, len(before + good + after), 0)
            assert (found.end_position, found.batches) == (len(before), 1)
            assert found.stop in ("size", "magic", "crc", "torn")
    finally:
        os.close(fd)


def test_zeros_after_the_last_batch_are_a_size_that_cannot_be(opened: Opened) -> None:
    """SEMANTICS 8.17: 17 bytes or fewer are a torn tail, more have a length of 0."""
    good = batch(0)
    for zeros, stop in ((0, "end"), (1, "torn"), (17, "torn"), (18, "size"), (5000, "size")):
        fd, size = opened(good + bytes(zeros))
        assert (scan(fd, 0, size, 0).stop, scan(fd, 0, size, 0).end_position) == (stop, len(good))


@pytest.mark.parametrize("magic", [3, -1])
def test_an_unknown_magic_ends_the_scan(magic: int, opened: Opened) -> None:
    fd, size = opened(batch(0) + batch(1, magic=magic))
    found = scan(fd, 0, size, 0)
    assert (found.stop, found.batches) == ("magic", 1)
    assert str(magic) in str(found.reason)


def test_offsets_that_do_not_rise_end_the_scan(opened: Opened) -> None:
    for second in (
        batch(5),
        batch(4),
        reference.batch(record(0, 0, None, b""), 1, base_offset=9, last_offset_delta=-1),
    ):
        fd, size = opened(batch(4) + batch(5) + second)
        found = scan(fd, 0, size, 4)
        assert (found.stop, found.batches, found.next_offset) == ("order", 2, 6)
    fd, size = opened(batch(5) + batch(6))
    assert scan(fd, 0, size, 0).stop == "end"


def test_a_batch_behind_a_gap_ends_the_scan_where_the_next_one_begins_below_its_end(opened: Opened) -> None:
    """Its base offset was raised, or the next one's was lowered; no CRC covers either."""
    for following, batches in ((batch(10), 4), (batch(9), 1), (batch(8), 1), (batch(5), 1), (batch(4), 2)):
        fd, size = opened(batch(4) + batch(8, 2) + following + batch(11))
        found = scan(fd, 0, size, 4)
        assert (found.stop, found.batches) == ("end" if batches == 4 else "order", batches)


def test_a_gap_around_the_end_of_what_was_flushed_ends_the_scan(opened: Opened) -> None:
    fd, size = opened(batch(4) + batch(5) + batch(9, 3))
    for flushed_end, batches in ((-1, 3), (5, 3), (6, 3), (7, 2), (8, 2), (9, 2), (10, 2), (11, 2), (12, 3)):
        found = scan(fd, 0, size, 4, flushed_end=flushed_end)
        assert (found.stop, found.batches) == ("end" if batches == 3 else "gap", batches)


def test_offsets_that_an_index_cannot_hold_end_the_scan(opened: Opened) -> None:
    """SEMANTICS 8.16: relative offsets 0 to 2^31 - 1."""
    for base in (0, 1 << 40, INT64 - (1 << 32)):
        fd, size = opened(batch(base) + batch(base + (1 << 31) - 1))
        assert scan(fd, 0, size, base).stop == "end"
        fd, size = opened(batch(base) + batch(base + (1 << 31)))
        found = scan(fd, 0, size, base)
        assert (found.stop, found.batches) == ("range", 1)
    fd, size = opened(batch(9))
    assert scan(fd, 0, size, 10).stop == "range"
    assert scan(fd, 0, size, 9).stop == "end"


def test_the_last_offset_there_is_can_be_scanned(opened: Opened) -> None:
    fd, size = opened(batch(INT64))
    assert scan(fd, 0, size, INT64).next_offset == INT64 + 1


@pytest.mark.parametrize("size", [262_143, 262_144, 262_145, 1_000_000])
def test_batches_larger_than_the_window_are_checked_piece_by_piece(size: int, opened: Opened) -> None:
    value = bytes(i * 7 & 0xFF for i in range(size - 84))
    big = reference.encode(
        [Rec(1, T + 1, None, value)], producer_id=4, producer_epoch=0, base_sequence=0, leader_epoch=6
    )
    data = batch(0) + big + batch(2) + big.replace(big[:8], struct.pack(">q", 3), 1)
    fd, end = opened(data)
    found = scan(fd, 0, end, 0)
    assert (found.stop, found.batches, found.epochs) == ("end", 4, [(6, 1)])
    assert [one[:4] for one in found.producer_batches] == [
        (len(batch(0)), len(big), 1, 1),
        (end - len(big), len(big), 3, 3),
    ]
    for at in (len(batch(0)) + 70, len(batch(0)) + len(big) // 2, len(batch(0)) + len(big) - 2):
        broken = bytearray(data)
        broken[at] ^= 1
        fd, end = opened(bytes(broken))
        assert (scan(fd, 0, end, 0).stop, scan(fd, 0, end, 0).batches) == ("crc", 1)
        assert scan(fd, 0, end, 0, check_crc=False).batches == 4


def test_a_scan_from_the_middle_counts_from_there(opened: Opened) -> None:
    parts = [sized(i, 100, T + i) for i in range(10)]
    fd, size = opened(b"".join(parts))
    found = scan(fd, 500, size, 0, index_interval_bytes=150)
    assert (found.batches, found.position, found.first_timestamp) == (5, 500, T + 5)
    assert list(struct.iter_unpack(">ii", found.index_entries)) == [(7, 700), (9, 900)]


def test_a_descriptor_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    try:
        for act in (
            lambda: scan(fd, 0, 100, 0, path="some.log"),
            lambda: find_batch(fd, 0, 100, 0, path="some.log"),
            lambda: last_offset(fd, 0, 100, path="some.log"),
            lambda: find_timestamp(fd, 0, 100, 0, path="some.log"),
        ):
            with pytest.raises(StorageError) as caught:
                act()
            assert caught.value.errno
            assert caught.value.filename == "some.log"
    finally:
        os.close(fd)


# ---- searches


GAPPED = [batch(0, 5), batch(5), message(6, None, b"v", timestamp=T), batch(10, 5, b"x" * 3000), batch(20, 2)]
SPANS = [(0, 4), (5, 5), (6, 6), (10, 14), (20, 21)]


def test_the_batch_of_an_offset_or_the_next_after_a_gap_is_found(opened: Opened) -> None:
    """SEMANTICS 3.18a."""
    fd, size = opened(b"".join(GAPPED))
    starts = [sum(map(len, GAPPED[:i])) for i in range(len(GAPPED))]
    for offset in range(23):
        expected = next((i for i, (_, last) in enumerate(SPANS) if last >= offset), None)
        for floor in starts[: (expected or 0) + 1]:
            found = find_batch(fd, floor, size, offset)
            if expected is None:
                assert found is None
            else:
                assert found is not None
                assert found[:4] == (starts[expected], len(GAPPED[expected]), *SPANS[expected])
    assert find_batch(fd, 0, size, 0) == (0, len(GAPPED[0]), 0, 4, T + 4, 2)
    assert find_batch(fd, 0, size - 1, 20) is None, "a batch that is not all there is none"
    assert find_batch(fd, size, size, 0) is None


def test_the_last_offset_is_that_of_the_last_whole_batch(opened: Opened) -> None:
    """SEMANTICS 8.10."""
    fd, size = opened(b"".join(GAPPED))
    ends = [sum(map(len, GAPPED[: i + 1])) for i in range(len(GAPPED))]
    for cut in range(size + 1):
        whole = sum(end <= cut for end in ends)
        assert last_offset(fd, 0, cut) == ((SPANS[whole - 1][1], ends[whole - 1]) if whole else None)
    assert last_offset(fd, ends[2], size) == (21, size)
    assert last_offset(fd, size, size) is None


def test_searches_refuse_what_cannot_be_a_batch(opened: Opened) -> None:
    """SEMANTICS 4.13."""
    for bad in (bytes(100), batch(5, magic=9), struct.pack(">qi", 5, 13) + bytes(60)):
        fd, size = opened(batch(0) + bad)
        for act in (
            lambda fd=fd, size=size: find_batch(fd, 0, size, 5, path="x.log"),
            lambda fd=fd, size=size: last_offset(fd, 0, size, path="x.log"),
            lambda fd=fd, size=size: find_timestamp(fd, 0, size, T + 5, path="x.log"),
        ):
            with pytest.raises(CorruptRecordError) as caught:
                act()
            assert (caught.value.path, caught.value.position) == ("x.log", len(batch(0)))


def at_times(*stamps: int, first: int = 0, **fields: int) -> bytes:
    return reference.encode([Rec(first + i, t, None, b"v") for i, t in enumerate(stamps)], **fields)


def test_the_first_record_at_or_after_a_time_is_found_in_log_order(opened: Opened) -> None:
    """SEMANTICS 15, V12: 10, 30, 20, 40, 40."""
    for data in (
        b"".join(at_times(t, first=i) for i, t in enumerate((10, 30, 20, 40, 40))),
        at_times(10, 30, 20, 40, 40),
        at_times(10, 30, 20, 40, 40, codec=reference.ZSTD),
        wrapper([Rec(i, t, None, b"") for i, t in enumerate((10, 30, 20, 40, 40))], reference.GZIP),
        b"".join(message(i, None, b"", timestamp=t) for i, t in enumerate((10, 30, 20, 40, 40))),
    ):
        fd, size = opened(data)
        answers = [find_timestamp(fd, 0, size, t) for t in (0, 10, 15, 20, 30, 31, 40, 41)]
        assert [None if a is None else a[:2] for a in answers] == [
            (10, 0), (10, 0), (30, 1), (30, 1), (30, 1), (40, 3), (40, 3), None,
        ]  # fmt: skip


def test_records_below_the_least_offset_do_not_count(opened: Opened) -> None:
    """SEMANTICS 5.5 step 3."""
    fd, size = opened(at_times(10, 30, 20) + at_times(5, 40, first=3))
    assert find_timestamp(fd, 0, size, 10, 1) == (30, 1, -1)
    assert find_timestamp(fd, 0, size, 10, 2) == (20, 2, -1)
    assert find_timestamp(fd, 0, size, 10, 3) == (40, 4, -1)
    assert find_timestamp(fd, 0, size, 10, 5) is None


def test_an_append_time_batch_matches_with_its_first_record_in_range(opened: Opened) -> None:
    """SEMANTICS 5.7."""
    fd, size = opened(at_times(1, 2, 3, attributes=reference.APPEND_TIME, max_timestamp=50, leader_epoch=8))
    assert find_timestamp(fd, 0, size, 50) == (50, 0, 8)
    assert find_timestamp(fd, 0, size, 10, 2) == (50, 2, 8)
    assert find_timestamp(fd, 0, size, 51) is None


@pytest.mark.parametrize(("stamps", "found"), [((10, 30, 20), 1), ((40, 30, 30), 1), ((40, 20), None)])
def test_an_exact_time_is_searched_only_in_the_first_batch_that_reaches_it(
    opened: Opened, stamps: tuple[int, ...], found: int | None
) -> None:
    """SEMANTICS 5.4: 30 is what the header of the first batch says is its greatest timestamp, true or not."""
    for codec in (0, reference.ZSTD):
        first = at_times(*stamps, max_timestamp=30, codec=codec)
        fd, size = opened(at_times(29) + first + at_times(30, first=8))
        assert find_timestamp(fd, 0, size, 30, exactly=True) == (None if found is None else (30, found, -1))


def test_only_batches_that_can_match_are_opened_and_those_are_checked(opened: Opened) -> None:
    early, late = bytearray(at_times(1, 2)), bytearray(at_times(10, 20, first=2))
    early[-2] ^= 1
    fd, size = opened(bytes(early) + bytes(late))
    assert find_timestamp(fd, 0, size, 5) == (10, 2, -1)
    late[-2] ^= 1
    fd, size = opened(bytes(early) + bytes(late))
    with pytest.raises(CorruptRecordError, match="CRC") as caught:
        find_timestamp(fd, 0, size, 5)
    assert caught.value.position == len(early)
    assert find_timestamp(fd, 0, size, 5, check_crc=False) == (10, 2, -1)


Indexes = tuple[TimeEntries, OffsetEntries]


def indexes_of(data: bytes, *numbers: int, base_offset: int = 0) -> Indexes:
    """The indexes with an entry of each of these batches, of all by default; in the time index if its time is later."""
    batches, latest = list(decode_batches(data)), -1
    times, offsets = bytearray(), bytearray()
    for batch in (batches[number] for number in numbers or range(len(batches))):
        offsets += offset_entry(batch.last_offset - base_offset, batch.position)
        if batch.max_timestamp > latest:
            latest = batch.max_timestamp
            times += time_entry(latest, batch.last_offset - base_offset)
    return TimeEntries(times, base_offset), OffsetEntries(offsets, base_offset)


@pytest.mark.parametrize("codec", [0, reference.ZSTD])
@pytest.mark.parametrize("value_bytes", [1, 9000])
@pytest.mark.parametrize("base_offset", [0, 7])
def test_a_look_behind_the_batch_that_entries_name_finds_what_the_whole_search_does(
    opened: Opened, codec: int, value_bytes: int, base_offset: int
) -> None:
    stamps = ((10, 12), (20, 26), (14, 19), (30, 30, 31), (40,))
    offsets = [base_offset + first for first in (0, 2, 4, 6, 9)]
    data = b"".join(
        reference.encode([Rec(first + i, t, None, bytes(value_bytes)) for i, t in enumerate(each)], codec=codec)
        for first, each in zip(offsets, stamps, strict=True)
    )
    fd, size = opened(data)
    every = indexes_of(data, base_offset=base_offset)
    for number in (0, 1, 3, 4):
        batch = list(decode_batches(data))[number]
        named = indexes_of(data, *range(max(number - 1, 0), number + 1), base_offset=base_offset)
        for stamp in range(batch.max_timestamp + 1, 43):
            for least in (0, offsets[number] + 1, batch.last_offset + 1):
                right = find_timestamp(fd, 0, size, stamp, least)
                assert find_behind(fd, size, stamp, least, *named, None) == right
                for _ in range(2):
                    assert find_behind(fd, size, stamp, least, *every, None) in (right, None)
        assert find_behind(fd, size, batch.max_timestamp + 1, batch.last_offset + 2, *named, None) is None


def test_a_search_behind_a_batch_gives_nothing_where_any_byte_has_changed(opened: Opened) -> None:
    data = at_times(10, 12) + at_times(20, 26, first=2) + at_times(30, 31, first=4)
    named, wanted, stop = (*(batch.position for batch in list(decode_batches(data))[1:]), len(data))
    right = (30, 4, -1)
    fd, size = opened(data)
    proved = indexes_of(data)
    assert find_behind(fd, size, 27, 0, *proved, None) == right
    looked_at = [*range(named, named + 12), named + 16, *range(named + 23, named + 27), *range(named + 35, named + 43)]
    for at in [*looked_at, *(at for at in range(wanted, stop) if not wanted + 12 <= at < wanted + 16)]:
        wrong = bytearray(data)
        wrong[at] ^= 1
        fd, size = opened(bytes(wrong))
        for entries in (indexes_of(data), indexes_of(data, 0, 1)):
            assert find_behind(fd, size, 27, 0, *entries, None) is None, at
        # The header of the batch before it was right once, and is not read again.
        assert find_behind(fd, size, 27, 0, *proved, None) == (right if at < wanted else None), at
    for at in range(named, stop):
        fd, size = opened(data[:at])
        for entries in (indexes_of(data), proved):
            assert find_behind(fd, stop, 27, 0, *entries, None) is None
            assert find_behind(fd, size, 27, 0, *entries, None) is None


@pytest.mark.parametrize("proved", [False, True])
@pytest.mark.parametrize("by", [-1, 1])
def test_an_entry_that_lies_is_found_out_also_if_it_lies_only_after_a_search(
    opened: Opened, proved: bool, by: int
) -> None:
    data = at_times(10, 12) + at_times(20, 26, first=2) + at_times(30, 31, first=4) + at_times(40, first=6)
    fd, size = opened(data)
    lies = [(index, number, field) for index in (0, 1) for number in range(4) for field in (0, 1)]
    for index, number, field in lies:
        entries = [indexes_of(data)[index].all_entries() for index in (0, 1)]
        buffers = [bytearray(), bytearray()]
        makers = (time_entry, offset_entry)
        for n in (0, 1):
            buffers[n] += b"".join(makers[n](*entry) for entry in entries[n])
        both = TimeEntries(buffers[0], 0), OffsetEntries(buffers[1], 0)
        for stamp in range(13, 32) if proved else ():
            assert find_behind(fd, size, stamp, 0, *both, None) == find_timestamp(fd, 0, size, stamp)
        lie = list(entries[index][number])
        lie[field] += by
        bytes_each = both[index].entry_bytes
        buffers[index][number * bytes_each : (number + 1) * bytes_each] = makers[index](*lie)
        for stamp in range(13, 32):
            found = find_behind(fd, size, stamp, 0, *both, None)
            assert found in (None, find_timestamp(fd, 0, size, stamp)), (index, number, field, stamp)


def test_a_search_through_a_bomb_ends_at_the_limit(opened: Opened) -> None:
    section = record(0, 0, None, bytes(1 << 20))
    data = reference.batch(reference.compress(4, section), 1, attributes=4, max_timestamp=T)
    fd, size = opened(data)
    assert find_timestamp(fd, 0, size, 0) == (0, 0, -1)
    with pytest.raises(CorruptRecordError, match="allowed"):
        find_timestamp(fd, 0, size, 0, max_decompressed_bytes=1 << 19)


shapes = st.tuples(st.integers(1, 4), st.integers(0, 3), st.sampled_from([0, 10, 2100, 5000]), st.integers(0, 50))


@given(st.lists(shapes, max_size=30), st.integers(0, 60), st.integers(0, 60))
def test_searches_agree_with_reading_everything(
    tmp_path_factory: pytest.TempPathFactory, shape: list[tuple[int, int, int, int]], offset: int, stamp: int
) -> None:
    data, at = b"", 0
    for count, gap, size, time in shape:
        at += gap
        data += reference.encode([Rec(at + i, time + i, None, bytes(size)) for i in range(count)])
        at += count
    path = tmp_path_factory.mktemp("scan") / "x.log"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        everything = list(decode_batches(data))
        holder = next((one for one in everything if one.last_offset >= offset), None)
        found = find_batch(fd, 0, len(data), offset)
        assert (found is None) == (holder is None)
        if found and holder:
            assert found == (holder.position, holder.size_bytes, holder.base_offset, holder.last_offset,
                             holder.max_timestamp, 2)  # fmt: skip
        matching = ((r.timestamp, r.offset, -1) for one in everything for r in one if r.timestamp >= stamp)
        assert find_timestamp(fd, 0, len(data), stamp) == next(matching, None)
        assert last_offset(fd, 0, len(data)) == ((everything[-1].last_offset, len(data)) if everything else None)
        found_all = scan(fd, 0, len(data), 0)
        assert (found_all.stop, found_all.batches) == ("end", len(everything))
        assert found_all.max_timestamp == max((one.max_timestamp for one in everything), default=-1)
    finally:
        os.close(fd)


# ---- check_batch


def test_a_batch_tells_its_true_maximum_and_whether_offsets_are_consecutive() -> None:
    """SEMANTICS 1.13 and 1.19."""
    items = [record(5, 0, b"k", b""), record(9, 1, b"k", b""), record(-3, 2, b"k", b"")]
    found = check_batch(reference.batch(b"".join(items), 3, base_timestamp=T))
    assert (found.count, found.max_timestamp, found.consecutive, found.errors) == (3, T + 9, True, [])
    for codec in range(5):
        section = reference.compress(codec, b"".join([items[0], items[2], items[1]]))
        found = check_batch(b"pad" + reference.batch(section, 3, attributes=codec), position=3)
        assert (found.consecutive, found.max_timestamp) == (False, 9)


def test_records_outside_the_time_limits_are_listed_one_by_one() -> None:
    """SEMANTICS 1.17: equality is accepted, -1 always."""
    stamps = (T - 100, T - 101, T + 50, T + 51, -1, T)
    data = reference.encode([Rec(i, t, None, b"") for i, t in enumerate(stamps)])
    found = check_batch(data, now_ms=T, before_max_ms=100, after_max_ms=50)
    assert [(index, about_time) for index, _, about_time in found.errors] == [(1, True), (3, True)]
    assert check_batch(data, create_time=False, now_ms=T, before_max_ms=0, after_max_ms=0).errors == []


def test_a_claim_of_append_time_is_an_error_only_where_the_rule_says() -> None:
    """SEMANTICS 1.17, the quirk included."""
    data = reference.encode([Rec(0, T, None, b"")], attributes=reference.APPEND_TIME)
    assert check_batch(data, now_ms=T).errors == []
    assert [error[2] for error in check_batch(data, create_time=False).errors] == [True]
    no_time = reference.encode([Rec(0, -1, None, b"")], attributes=reference.APPEND_TIME)
    assert [error[2] for error in check_batch(no_time, now_ms=T).errors] == [True]


def test_a_null_key_comes_before_the_timestamp() -> None:
    """SEMANTICS 1.16: the first failing check gives the record's error."""
    data = reference.encode([Rec(0, 5, None, b""), Rec(1, 5, b"", b"")])
    found = check_batch(data, require_key=True, now_ms=T, before_max_ms=0)
    assert [(index, about_time) for index, _, about_time in found.errors] == [(0, False), (1, True)]


@pytest.mark.parametrize(
    ("section", "count"),
    [(b"", 1), (record(0, 0, None, b""), 2), (record(0, 0, None, b"") + b"x", 1), (b"\x01", 1), (b"", -1)],
)
def test_a_broken_structure_is_an_invalid_record(section: bytes, count: int) -> None:
    """SEMANTICS 1.15."""
    for codec in (0, 3):
        data = reference.batch(reference.compress(codec, section), count, attributes=codec)
        with pytest.raises(InvalidRecordError):
            check_batch(data)


@pytest.mark.parametrize("position", [-1, 1, 1 << 40])
def test_there_must_be_a_batch_to_check(position: int) -> None:
    data: Sequence[bytes] = [batch(0), b"", b"x" * 60, batch(0)[:-1], message(0, None, b"v" * 60)]
    for one in data:
        with pytest.raises(InvalidRecordError):
            check_batch(one, position=position)
    for one in data[1:]:
        with pytest.raises(InvalidRecordError):
            check_batch(one)
