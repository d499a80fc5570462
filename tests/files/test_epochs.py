"""epochs.py: the leader epochs of a log and their file (SEMANTICS 10; LeaderEpochFileCacheTest)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files.epochs import UNDEFINED, EpochEntry, LeaderEpochCache

STD = ((2, 6), (3, 8), (4, 11))


def cache(*entries: tuple[int, int]) -> LeaderEpochCache:
    """A cache in memory; nothing is written unless `assign` or `flush` is called."""
    return LeaderEpochCache("unwritten", entries)


def listed(epochs: LeaderEpochCache) -> list[tuple[int, int]]:
    return [tuple(entry) for entry in epochs.entries]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader-epoch-checkpoint"


# The file


def test_opening_makes_an_empty_file_and_reading_alone_makes_none(path: Path) -> None:
    assert listed(LeaderEpochCache.open(path, create=False)) == []
    assert not path.exists()
    assert listed(LeaderEpochCache.open(path)) == []
    assert path.read_bytes() == b""


def test_one_entry_for_epoch_0_at_offset_0_is_8_bytes(path: Path) -> None:
    LeaderEpochCache.open(path).assign(0, 0)
    assert path.read_bytes() == b"0\n1\n0 0\n"


def test_the_worked_example_is_what_is_written(path: Path) -> None:
    """FORMAT 14.6."""
    assert LeaderEpochCache.open(path).assign_all([(0, 1000), (3, 1042)])
    assert path.read_bytes() == b"0\n2\n0 1000\n3 1042\n"


def test_assigning_is_on_disk_before_it_returns(path: Path) -> None:
    """SEMANTICS 10.3; LeaderEpochFileCacheTest.shouldPersistEpochsBetweenInstances.
    LeaderEpochCheckpointFileWithFailureHandlerTest.shouldRetainValuesEvenIfCheckpointIsRecreated."""
    epochs = LeaderEpochCache.open(path)
    assert epochs.assign(2, 6)
    assert not epochs.dirty
    assert listed(LeaderEpochCache.open(path)) == [(2, 6)]


def test_a_brokers_file_reads_as_it_stands(golden: Callable[[str], Path]) -> None:
    path = golden("epochs") / "dir" / "epochs-0" / "leader-epoch-checkpoint"
    epochs = LeaderEpochCache.open(path)
    assert listed(epochs) == [(0, 0), (2, 27), (8, 63), (12, 90)]
    assert not epochs.dirty
    before = path.read_bytes()
    epochs.truncate_from_end(90)
    epochs.flush()
    epochs.assign(12, 90)
    assert path.read_bytes() == before


def test_a_file_out_of_order_is_replayed_as_assignments(path: Path) -> None:
    """SEMANTICS 10.8."""
    path.write_bytes(b"0\n4\n1 5\n2 6\n1 7\n1 9\n")
    assert listed(LeaderEpochCache.open(path)) == [(1, 7)]


@pytest.mark.parametrize(
    "text",
    [
        b"1\n0\n",
        b"0\n1\n0\n",
        b"0\n1\n0 0 0\n",
        b"0\n1\n-1 0\n",
        b"0\n1\n0 -1\n",
        b"0\n2\n0 0\n",
        b"0\n1\nx 0\n",
        b"\0\0",
    ],
)
def test_a_malformed_file_is_a_storage_error(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(StorageError, match="malformed") as caught:
        LeaderEpochCache.open(path)
    assert caught.value.filename == str(path)


def test_truncation_changes_the_memory_at_once_and_the_file_when_it_is_flushed(path: Path) -> None:
    """SEMANTICS 10.7."""
    epochs = LeaderEpochCache.open(path)
    epochs.assign_all(STD)
    epochs.truncate_from_end(11)
    assert epochs.dirty
    assert listed(LeaderEpochCache.open(path)) == [*STD]
    epochs.flush()
    assert listed(LeaderEpochCache.open(path)) == [*STD[:2]]
    epochs.truncate_from_start(7)
    epochs.flush()
    assert listed(LeaderEpochCache.open(path)) == [(2, 7), (3, 8)]


def test_a_flush_with_nothing_to_write_touches_nothing(path: Path) -> None:
    epochs = LeaderEpochCache.open(path)
    epochs.assign_all(STD)
    before = path.stat()
    epochs.flush()
    LeaderEpochCache.open(path).flush()
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    epochs.truncate_from_end(11)
    epochs.flush()
    assert path.stat().st_ino != before.st_ino


def test_a_write_that_fails_leaves_the_cache_dirty(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = LeaderEpochCache.open(path)

    def fail(*_: object) -> None:
        raise StorageError(5, "broken", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(fs, "write_atomically", fail)
        with pytest.raises(StorageError):
            epochs.assign(1, 0)
    assert epochs.dirty
    epochs.flush()
    assert listed(LeaderEpochCache.open(path)) == [(1, 0)]


def test_clearing_in_memory_leaves_the_file_and_clearing_with_a_flush_empties_it(path: Path) -> None:
    """SEMANTICS 10.8, 10.8a; LeaderEpochFileCacheTest.shouldClearAllEntries."""
    epochs = LeaderEpochCache.open(path)
    epochs.assign_all(STD)
    epochs.clear()
    epochs.flush()
    assert (listed(epochs), listed(LeaderEpochCache.open(path))) == ([], [*STD])
    epochs = LeaderEpochCache.open(path)
    epochs.clear_and_flush()
    assert (listed(epochs), path.read_bytes()) == ([], b"0\n0\n")


# Assigning (SEMANTICS 10.3)


@pytest.mark.parametrize(
    ("before", "new", "after"),
    [
        ([], (2, 10), [(2, 10)]),
        ([(2, 9)], (2, 10), [(2, 9)]),
        ([(2, 9)], (2, 9), [(2, 9)]),
        ([(2, 9)], (2, 8), [(2, 8)]),
        ([(2, 9)], (3, 9), [(3, 9)]),
        ([(2, 9)], (3, 10), [(2, 9), (3, 10)]),
        ([(1, 5), (2, 6)], (1, 7), [(1, 7)]),
        ([(5, 11), (6, 12), (7, 13)], (7, 12), [(5, 11), (7, 12)]),
        ([(0, 0)], (1, 0), [(1, 0)]),
        ([(1, 5), (2, 6), (3, 7)], (0, 6), [(0, 6)]),
    ],
)
def test_an_entry_displaces_those_that_are_not_below_it_in_both(
    path: Path, before: list[tuple[int, int]], new: tuple[int, int], after: list[tuple[int, int]]
) -> None:
    """LeaderEpochFileCacheTest.shouldNotOverwriteLogEndOffsetForALeaderEpochOnceItHasBeenAssigned,
    LeaderEpochFileCacheTest.shouldNotOverwriteOffsetForALeaderEpochOnceItHasBeenAssigned,
    LeaderEpochFileCacheTest.shouldTruncateIfMatchingEpochButEarlierStartingOffset,
    LeaderEpochFileCacheTest.shouldEnforceMonotonicallyIncreasingEpochs."""
    epochs = LeaderEpochCache(path, before)
    assert epochs.assign(*new) is (before != after)
    assert listed(epochs) == after
    assert epochs.latest == after[-1]


@pytest.mark.parametrize("entry", [(-1, 0), (0, -1), (2**31, 0), (0, 2**63)])
def test_an_epoch_or_offset_out_of_range_is_refused(path: Path, entry: tuple[int, int]) -> None:
    epochs = LeaderEpochCache(path)
    with pytest.raises(ValueError, match="is not in"):
        epochs.assign(*entry)
    assert not path.exists()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_epochs_and_offsets_strictly_increase_whatever_was_assigned(entries: list[tuple[int, int]]) -> None:
    """SEMANTICS 10.2."""
    found = listed(cache(*entries))
    for one, two in pairwise(found):
        assert one[0] < two[0]
        assert one[1] < two[1]
    if entries:
        latest = found[-1]
        assert latest[0] == entries[-1][0]
        assert latest[1] <= entries[-1][1]


# Questions


@pytest.mark.parametrize(
    ("entries", "epoch", "end", "expected"),
    [
        ([], 0, 73, UNDEFINED),
        ([], -1, 73, UNDEFINED),
        ([], 7, 0, UNDEFINED),
        ([(2, 11), (3, 12)], -1, 20, UNDEFINED),
        ([(2, 10)], 2, 11, (2, 11)),
        ([(2, 100)], 3, 200, UNDEFINED),
        ([(5, 11), (6, 12), (7, 13)], 4, 20, (4, 11)),
        ([(0, 10), (2, 13), (4, 17)], 1, 20, (0, 13)),
        ([(0, 10), (2, 13), (4, 17)], 2, 20, (2, 17)),
        ([(0, 10), (2, 13), (4, 17)], 3, 20, (2, 17)),
        ([(0, 10), (2, 13), (4, 17)], 4, 20, (4, 20)),
        ([(5, 11), (7, 12)], 5, 20, (5, 12)),
        ([(5, 11), (7, 12)], 6, 20, (5, 12)),
        ([(1, 7)], 2, 8, UNDEFINED),
        ([(1, 7)], 1, 8, (1, 8)),
    ],
)
def test_the_end_of_an_epoch_is_where_the_next_one_starts(
    entries: list[tuple[int, int]], epoch: int, end: int, expected: EpochEntry
) -> None:
    """SEMANTICS 10.5, row by row. LeaderEpochFileCacheTest.shouldAddEpochAndMessageOffsetToCache,
    LeaderEpochFileCacheTest.shouldReturnUndefinedOffsetIfUndefinedEpochRequested,
    LeaderEpochFileCacheTest.shouldReturnUnsupportedIfNoEpochRecorded,
    LeaderEpochFileCacheTest.shouldReturnUnsupportedIfNoEpochRecordedAndUndefinedEpochRequested,
    LeaderEpochFileCacheTest.shouldReturnFirstEpochIfRequestedEpochLessThanFirstEpoch,
    LeaderEpochFileCacheTest.shouldReturnNextAvailableEpochIfThereIsNoExactEpochForTheOneRequested,
    LeaderEpochFileCacheTest.shouldReturnInvalidOffsetIfEpochIsRequestedWhichIsNotCurrentlyTracked,
    LeaderEpochFileCacheTest.shouldSupportEpochsThatDoNotStartFromZero,
    LeaderEpochFileCacheTest.shouldFetchEndOffsetOfEmptyCache."""
    assert cache(*entries).find_end_offset(epoch, end) == expected


def test_ends_move_as_leaders_change(path: Path) -> None:
    """LeaderEpochFileCacheTest.shouldIncreaseAndTrackEpochsAsLeadersChangeManyTimes."""
    epochs = LeaderEpochCache.open(path)
    epochs.assign(0, 0)
    epochs.assign(1, 0)
    assert epochs.find_end_offset(1, 0) == (1, 0)
    assert epochs.find_end_offset(0, 5) == (0, 0)
    epochs.assign(2, 5)
    assert epochs.find_end_offset(2, 10) == (2, 10)
    assert epochs.find_end_offset(1, 10) == (1, 5)
    assert epochs.find_end_offset(0, 10) == (0, 0)


def test_a_followers_messages_assign_once_an_epoch(path: Path) -> None:
    """LeaderEpochFileCacheTest.shouldIncreaseAndTrackEpochsAsFollowerReceivesManyMessages."""
    epochs = LeaderEpochCache.open(path)
    for offset in range(9):
        assert epochs.assign(offset // 3, offset) is (offset % 3 == 0)
        assert epochs.find_end_offset(offset // 3, offset + 1) == (offset // 3, offset + 1)
    assert [epochs.find_end_offset(epoch, 9).offset for epoch in range(3)] == [3, 6, 9]


@pytest.mark.parametrize(("offset", "epoch"), [(25, 1), (20, 1), (30, 5), (50, 5), (5, None), (10, 0), (29, 1)])
def test_an_offset_was_written_in_the_last_epoch_that_starts_at_or_before_it(offset: int, epoch: int | None) -> None:
    """SEMANTICS 10.6. LeaderEpochFileCacheTest.shouldFetchEpochForGivenOffset."""
    assert cache((0, 10), (1, 20), (5, 30)).find_epoch(offset) == epoch


def test_neighbours_of_an_epoch() -> None:
    """LeaderEpochFileCacheTest.testFindPreviousEntry, LeaderEpochFileCacheTest.testFindNextEpoch,
    LeaderEpochFileCacheTest.shouldFetchLatestEpochOfEmptyCache, LeaderEpochFileCacheTest.testPreviousEpoch,
    LeaderEpochFileCacheTest.testFindPreviousEpoch."""
    epochs = cache((2, 10), (4, 15), (10, 20))
    assert [epochs.find_previous(epoch) for epoch in (2, 4, 10)] == [None, (2, 10), (4, 15)]
    epochs.truncate_from_end(18)
    assert epochs.latest_epoch == 4
    assert epochs.find_previous(4) == (2, 10)
    epochs = cache((0, 0), (1, 100), (2, 200))
    assert [epochs.find_next(epoch) for epoch in (-1, 0, 1, 2, 100)] == [(0, 0), (1, 100), (2, 200), None, None]
    empty = cache()
    assert (empty.latest, empty.latest_epoch, empty.find_next(0), empty.find_previous(0)) == (None,) * 4
    assert empty.find_epoch(0) is None


# Truncating (SEMANTICS 10.7)


@pytest.mark.parametrize(
    ("end", "left"),
    [(-1, 3), (0, 0), (6, 0), (7, 1), (8, 1), (9, 2), (11, 2), (12, 3)],
)
def test_truncating_from_the_end_drops_what_starts_at_or_after_it(end: int, left: int) -> None:
    """LeaderEpochFileCacheTest.shouldDropEntriesOnEpochBoundaryWhenRemovingLatestEntries,
    LeaderEpochFileCacheTest.shouldDropEntriesBetweenEpochBoundaryWhenRemovingNewest,
    LeaderEpochFileCacheTest.shouldNotResetEpochHistoryTailIfUndefinedPassed."""
    epochs = cache(*STD)
    epochs.truncate_from_end(end)
    assert listed(epochs) == [*STD[:left]]
    assert epochs.dirty is (left < 3)


@pytest.mark.parametrize(
    ("start", "after"),
    [
        (1, [*STD]),
        (6, [*STD]),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (15, [(4, 15)]),
    ],
)
def test_truncating_from_the_start_keeps_the_epoch_that_goes_on(start: int, after: list[tuple[int, int]]) -> None:
    """LeaderEpochFileCacheTest.shouldPreserveResetOffsetOnClearEarliestIfOneExists,
    LeaderEpochFileCacheTest.shouldUpdateSavedOffsetWhenOffsetToClearToIsBetweenEpochs,
    LeaderEpochFileCacheTest.shouldNotClearAnythingIfOffsetToEarly,
    LeaderEpochFileCacheTest.shouldNotClearAnythingIfOffsetToFirstOffset,
    LeaderEpochFileCacheTest.shouldUpdateOffsetBetweenEpochBoundariesOnClearEarliest,
    LeaderEpochFileCacheTest.shouldRetainLatestEpochOnClearAllEarliestAndUpdateItsOffset."""
    epochs = cache(*STD)
    epochs.truncate_from_start(start)
    assert listed(epochs) == after
    assert epochs.dirty is (after != [*STD])


def test_truncating_an_empty_cache_is_no_error() -> None:
    """LeaderEpochFileCacheTest.shouldClearEarliestOnEmptyCache and
    LeaderEpochFileCacheTest.shouldClearLatestOnEmptyCache."""
    epochs = cache()
    epochs.truncate_from_start(7)
    epochs.truncate_from_end(7)
    assert listed(epochs) == []
    assert not epochs.dirty
