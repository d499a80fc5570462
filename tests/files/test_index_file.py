"""Index files: their sizes, what may be appended, what a truncation and a rebuild leave, what counts as sound.

Rule numbers are those of SEMANTICS 3; rows named OffsetIndexTest and TimeIndexTest are Kafka's own cases.
"""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files.index_file import IndexFile, OffsetIndex, TimeIndex
from tests.support.indexfiles import (
    BASE,
    FULL_BYTES,
    bytes_of,
    contents,
    fill,
    packed,
    refuse,
    reopened,
)
from tests.support.indexfiles import offsets as offsets
from tests.support.indexfiles import times as times

INT_MAX = 2**31 - 1


# ---- geometry ----


@pytest.mark.parametrize(
    ("max_bytes", "offset_size", "offset_full_at", "time_size", "time_full_at"),
    [
        (FULL_BYTES, 10485760, 1310720, 10485756, 873812),
        (300, 296, 37, 300, 24),
        (24, 24, 3, 24, 1),
        (12, 8, 1, 12, 0),
    ],
)
def test_sizes_and_fullness_are_those_of_the_table(
    tmp_path: Path, max_bytes: int, offset_size: int, offset_full_at: int, time_size: int, time_full_at: int
) -> None:
    """SEMANTICS 3.1, 3.2, 3.3. TimeIndexTest.testEntrySize."""
    offsets = OffsetIndex(tmp_path / "a.index", 0, max_bytes)
    times = TimeIndex(tmp_path / "a.timeindex", 0, max_bytes)
    for index, size, full_at in ((offsets, offset_size, offset_full_at), (times, time_size, time_full_at)):
        assert index.grow()
        assert bytes_of(index) == bytes(size)
        assert (index.entries, index.max_entries) == (0, size // index.entry_bytes)
        if full_at:
            index.entries = full_at - 1
            assert not index.is_full
        index.entries = full_at
        assert index.is_full


@pytest.mark.parametrize(("max_bytes", "kind"), [(7, OffsetIndex), (8, TimeIndex), (11, TimeIndex), (0, OffsetIndex)])
def test_a_size_with_no_room_for_one_entry_is_refused(
    tmp_path: Path, max_bytes: int, kind: type[OffsetIndex] | type[TimeIndex]
) -> None:
    """SEMANTICS 3.1: 4 to 11 pass as a setting, and fail for the time index."""
    index = kind(tmp_path / "x", 0, max_bytes)
    with pytest.raises(ValueError, match=f"of {max_bytes} bytes an entry alone takes {index.entry_bytes}"):
        index.grow()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
@pytest.mark.parametrize("extra", [0, 1, 7, 11])
def test_all_of_an_existing_file_is_taken_for_entries(tmp_path: Path, kind: type[IndexFile], extra: int) -> None:
    """SEMANTICS 3.4: also the zeros at the end of one that a crash left untrimmed; a trailing remainder is not."""
    size = kind(tmp_path / "x", 0, 0).entry_bytes
    (tmp_path / "x").write_bytes(bytes(10 * size + extra % size))
    index = kind(tmp_path / "x", 0, 20 * size)
    assert (index.entries, index.max_entries, index.is_full) == (10, 10, True)
    index.grow()
    assert (index.entries, index.max_entries) == (10, 20)
    assert len(bytes_of(index)) == 20 * size


def test_an_active_index_is_trimmed_and_grown_again_with_its_entries(offsets: OffsetIndex) -> None:
    """SEMANTICS 3.5."""
    offsets.append(46, 100)
    offsets.append(50, 200)
    assert len(bytes_of(offsets)) == 240
    assert offsets.trim()
    assert bytes_of(offsets) == struct.pack(">iiii", 1, 100, 5, 200)
    assert not offsets.trim()
    again = reopened(offsets)
    assert contents(again) == [(46, 100), (50, 200)]
    assert again.is_full
    assert again.grow()
    assert not again.is_full
    assert bytes_of(again) == struct.pack(">iiii", 1, 100, 5, 200) + bytes(224)
    again.append(51, 300)
    assert contents(again) == [(46, 100), (50, 200), (51, 300)]


def test_an_index_without_entries_is_trimmed_to_nothing(offsets: OffsetIndex, times: TimeIndex) -> None:
    """SEMANTICS 2.9: either file may become 0 bytes."""
    offsets.trim()
    times.trim()
    assert bytes_of(offsets) == bytes_of(times) == b""
    assert offsets.lookup(50) == (BASE, 0)
    assert times.lookup(50) == (-1, BASE)
    assert (offsets.entries, offsets.max_entries, offsets.is_full) == (0, 0, True)


def test_growing_tells_whether_the_size_changed(times: TimeIndex) -> None:
    """TimeIndexTest.testResize."""
    fill(times, 3)
    assert [times.grow(slots * 12) for slots in (30, 15, 60)] == [False, True, True]
    assert len(bytes_of(times)) == 720
    assert contents(times) == [(10, 55), (20, 65), (30, 75)]


def test_a_smaller_size_never_cuts_entries(offsets: OffsetIndex) -> None:
    for number in range(1, 6):
        offsets.append(BASE + number, number)
    offsets.grow(3 * 8)
    assert contents(offsets) == [(BASE + number, number) for number in range(1, 6)]
    assert offsets.is_full
    assert len(bytes_of(offsets)) == 40


def test_growing_remembers_the_size(offsets: OffsetIndex) -> None:
    offsets.grow(400)
    offsets.trim()
    offsets.grow()
    assert offsets.max_entries == 50


# ---- appending ----


def test_a_full_offset_index_takes_no_entry(offsets: OffsetIndex) -> None:
    """OffsetIndexTest.appendTooMany; SEMANTICS 3.9."""
    for number in range(30):
        assert not offsets.is_full
        offsets.append(46 + number, number)
    assert offsets.is_full
    with pytest.raises(ValueError, match="full: 30 entries of at most 30"):
        offsets.append(46 + 30, 1000)
    assert offsets.entries == 30


@pytest.mark.parametrize("offset", [51, 50, 45])
def test_an_offset_at_or_below_the_last_is_refused(offsets: OffsetIndex, offset: int) -> None:
    """OffsetIndexTest.appendOutOfOrder; SEMANTICS 3.9."""
    offsets.append(51, 0)
    with pytest.raises(ValueError, match=f"offset {offset} does not follow the last entry's, 51"):
        offsets.append(offset, 1)
    assert contents(offsets) == [(51, 0)]
    offsets.append(52, 1)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + INT_MAX + 1, -(2**63), 2**70])
def test_an_offset_that_is_no_relative_offset_is_refused(offsets: OffsetIndex, times: TimeIndex, offset: int) -> None:
    """SEMANTICS 3.9."""
    with pytest.raises(ValueError, match="is not within 0 to 2147483647 of the base offset 45"):
        offsets.append(offset, 1)
    with pytest.raises(ValueError, match="is not within 0 to 2147483647 of the base offset 45"):
        times.maybe_append(1, offset)
    assert offsets.entries == times.entries == 0


@pytest.mark.parametrize("offset", [BASE, BASE + INT_MAX])
def test_the_least_and_the_greatest_relative_offset_are_taken(
    offsets: OffsetIndex, times: TimeIndex, offset: int
) -> None:
    """SEMANTICS 3.9; OffsetIndexTest.testSanityLastOffsetEqualToBaseOffset."""
    offsets.append(offset, INT_MAX)
    times.maybe_append(2**63 - 1, offset)
    assert (offsets.sound_entries(), times.sound_entries()) == (1, 1)
    assert offsets.last == (offset, INT_MAX)
    assert times.last == (2**63 - 1, offset)


def test_a_position_that_31_bits_do_not_hold_is_refused(offsets: OffsetIndex) -> None:
    for position in (-1, INT_MAX + 1):
        with pytest.raises(ValueError, match="position"):
            offsets.append(50, position)
    assert offsets.entries == 0


def test_the_reserved_slot_is_for_the_closing_entry(times: TimeIndex) -> None:
    """TimeIndexTest.testIsFull and TimeIndexTest.testAppend; SEMANTICS 3.3, 3.8."""
    assert not times.is_full
    fill(times, 28)
    assert not times.is_full
    times.maybe_append(290, BASE + 290)
    assert times.is_full
    with pytest.raises(ValueError, match="full: 29 entries of at most 30, one reserved"):
        times.maybe_append(10_000, 1000)
    with pytest.raises(ValueError, match="offset 280 is below the last entry's, 335"):
        times.maybe_append(10_000, 280, force=True)
    assert times.maybe_append(10_000, 1000, force=True)
    assert times.last == (10_000, 1000)
    assert times.entries == times.max_entries == 30


def test_the_closing_entry_finds_room_in_a_file_that_is_full_to_the_last_slot(times: TimeIndex) -> None:
    """A rebuilt, trimmed index gets its closing entry (SEMANTICS 8.18) as well; lookups before it do not hide it."""
    fill(times, 3)
    times.trim()
    assert times.last == (30, 75)
    assert times.maybe_append(40, 90, force=True)
    assert contents(times) == [(10, 55), (20, 65), (30, 75), (40, 90)]
    assert not times.trim()
    assert len(bytes_of(times)) == 48


def test_a_time_entry_is_only_added_for_a_later_timestamp(times: TimeIndex) -> None:
    """SEMANTICS 3.8: an equal one is skipped in silence, a lower timestamp or offset is an error."""
    assert not times.maybe_append(-1, 50)
    assert times.maybe_append(0, 50)
    assert not times.maybe_append(0, 60)
    assert times.maybe_append(1, 50)
    with pytest.raises(ValueError, match="timestamp 0 is below the last entry's, 1"):
        times.maybe_append(0, 60)
    with pytest.raises(ValueError, match="offset 49 is below the last entry's, 50"):
        times.maybe_append(1, 49)
    assert contents(times) == [(0, 50), (1, 50)]


def test_times_without_timestamps_leave_an_empty_index(times: TimeIndex) -> None:
    """SEMANTICS 3.8."""
    for offset in range(50, 60):
        assert not times.maybe_append(-1, offset)
    times.trim()
    assert bytes_of(times) == b""


def test_one_slot_of_time_index_is_only_for_force(tmp_path: Path) -> None:
    """SEMANTICS 3.2: always full."""
    times = TimeIndex(tmp_path / "x", 0, 12)
    times.grow()
    with pytest.raises(ValueError, match="full: 0 entries of at most 1"):
        times.maybe_append(1, 1)
    assert times.maybe_append(1, 1, force=True)


# ---- truncation ----


def test_truncating_an_offset_index_step_by_step(tmp_path: Path) -> None:
    """OffsetIndexTest.truncate."""
    index = OffsetIndex(tmp_path / "x", 0, 10 * 8)
    index.grow()
    for number in range(1, 10):
        index.append(number, number)
    index.truncate_to(12)
    assert (index.lookup(10), index.last) == ((9, 9), (9, 9))
    index.append(10, 10)
    index.truncate_to(10)
    assert (index.lookup(10), index.last) == ((9, 9), (9, 9))
    index.append(10, 10)
    index.truncate_to(9)
    assert (index.lookup(10), index.last) == ((8, 8), (8, 8))
    index.append(9, 9)
    index.truncate_to(5)
    assert (index.lookup(10), index.last) == ((4, 4), (4, 4))
    index.append(5, 5)
    index.truncate_to(0)
    assert (index.entries, index.last) == (0, (0, 0))


def test_truncating_a_time_index_goes_by_offset_and_takes_an_exact_match(times: TimeIndex) -> None:
    """TimeIndexTest.testTruncate; SEMANTICS 3.15."""
    fill(times, 29)
    times.truncate_to(0)
    assert times.entries == 0
    fill(times, 29)
    times.truncate_to(55)
    assert times.entries == 0
    fill(times, 29)
    times.truncate_to(76)
    assert contents(times) == [(10, 55), (20, 65), (30, 75)]


def test_what_a_truncation_drops_is_zeros_on_the_disk(offsets: OffsetIndex) -> None:
    """Otherwise another process would take it for entries; the file is at full size again (SEMANTICS 3.5)."""
    for number in range(1, 30):
        offsets.append(BASE + number, number)
    offsets.truncate_to(BASE + 3)
    assert bytes_of(offsets) == struct.pack(">iiii", 1, 1, 2, 2) + bytes(224)


def test_truncating_a_sealed_index_makes_it_an_active_one(offsets: OffsetIndex) -> None:
    for number in range(1, 30):
        offsets.append(BASE + number, number)
    offsets.trim()
    again = reopened(offsets)
    again.truncate_to(BASE + 10)
    assert (again.entries, again.max_entries) == (9, 30)
    again.append(BASE + 10, 10)
    assert again.lookup(BASE + 20) == (BASE + 10, 10)


# ---- rebuilding ----


@pytest.mark.parametrize(
    "before",
    [b"", packed((46, 1)), packed((46, 5), (50, 9)) + bytes(80), b"\xff" * 100, None],
    ids=["empty", "short", "same and zeros", "nonsense", "missing"],
)
def test_a_replaced_file_holds_the_new_entries_and_nothing_else(tmp_path: Path, before: bytes | None) -> None:
    """SEMANTICS 8.15."""
    path = tmp_path / "x"
    if before is not None:
        path.write_bytes(before)
    index = OffsetIndex(path, BASE, 80)
    if before:
        index.lookup(50)
    new = packed((46, 5), (50, 9))
    assert index.replace(new)
    assert path.read_bytes() == new
    assert contents(index) == [(46, 5), (50, 9)]
    index.grow()
    index.append(60, 12)
    assert contents(reopened(index))[:3] == [(46, 5), (50, 9), (60, 12)]


def test_replacing_with_what_is_there_writes_nothing_and_has_it_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that wrote it may have died before its sync, and the recovery point will say that it is durable."""
    data = packed((46, 5), (50, 9))
    (tmp_path / "x").write_bytes(data)
    index = OffsetIndex(tmp_path / "x", BASE, 80)
    for name in ("pwrite", "truncate"):
        monkeypatch.setattr(fs, name, refuse)
    synced: list[int] = []
    monkeypatch.setattr(fs, "fdatasync", synced.append)
    assert not index.replace(data)
    assert contents(index) == [(46, 5), (50, 9)]
    assert not synced
    index.flush()
    assert len(synced) == 1


def test_replacing_the_start_of_an_untrimmed_file_only_cuts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed((46, 5), (50, 9))
    (tmp_path / "x").write_bytes(data + bytes(800))
    index = OffsetIndex(tmp_path / "x", BASE, 80)
    monkeypatch.setattr(fs, "pwrite", refuse)
    assert index.replace(data)
    assert (tmp_path / "x").read_bytes() == data


def test_bytes_that_are_not_whole_entries_are_refused(offsets: OffsetIndex) -> None:
    with pytest.raises(ValueError, match="9 bytes are not whole entries of 8"):
        offsets.replace(bytes(9))


def test_an_index_that_was_missing_can_be_made_empty(tmp_path: Path) -> None:
    """SEMANTICS 8.8, the time index."""
    times = TimeIndex(tmp_path / "x", 0, 1000)
    with pytest.raises(StorageError) as caught:
        times.entries  # noqa: B018
    assert caught.value.errno == errno.ENOENT
    assert isinstance(caught.value, FileNotFoundError)
    times.create_empty()
    assert (tmp_path / "x").read_bytes() == b""
    assert times.last == (-1, 0)


# ---- soundness of a file ----


def test_only_a_trimmed_sound_file_looks_trimmed(offsets: OffsetIndex, times: TimeIndex, tmp_path: Path) -> None:
    assert not OffsetIndex(tmp_path / "missing", BASE, 80).looks_trimmed(100)
    offsets.append(46, 5)
    fill(times, 2)
    assert not reopened(offsets).looks_trimmed(100)
    assert not reopened(times).looks_trimmed(100)
    offsets.trim()
    times.trim()
    assert reopened(offsets).looks_trimmed(100)
    assert reopened(offsets).looks_trimmed(6)
    assert not reopened(offsets).looks_trimmed(5)
    assert reopened(times).looks_trimmed(100)
    assert not reopened(times).looks_trimmed(0)
    for index in (offsets, times):
        Path(index.path).write_bytes(bytes_of(index) + b"\0")
        assert not reopened(index).looks_trimmed(100)
        Path(index.path).write_bytes(b"")
        assert reopened(index).looks_trimmed(0)
