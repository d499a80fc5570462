"""Cases of Kafka's own suites about the fetcher threads of followers: what is truncated, started anew and copied.

Each test cites the case that it rebuilds; `tests/testcases.md` says which test holds each case. A batch is given as
(base offset, leader epoch, value), as the suites do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.copies.replication.divergence import Ends, Truncation, find_truncation
from kstore.files.epochs import EpochEntry, LeaderEpochCache
from kstore.log.hosted_log import HostedLog
from tests.support.batches import NOW, messages_of, v2
from tests.support.copied import catch_up, follower
from tests.support.replicas import PARTITION, State, state_of

pytestmark = pytest.mark.usefixtures("no_syncs")

Batch = tuple[int, int, bytes]


def encoded(batches: Sequence[Batch]) -> bytes:
    return b"".join(
        v2(messages_of([value]), base_offset=offset, leader_epoch=epoch) for offset, epoch, value in batches
    )


def make(root: Path, batches: Sequence[Batch], *, start: int | None = None) -> Path:
    """A directory with a log of these batches; one that begins above 0 starts at its first batch, or at `start`."""
    with kstore.Log.open(root / PARTITION, clock=lambda: NOW) as log:
        first = start if start is not None else batches[0][0] if batches else 0
        if first > 0:
            log.truncate_fully_and_start_at(first)
        if batches:
            log.append_as_follower(encoded(batches))
    return root


def state(root: Path) -> State:
    with kstore.Log.open(root / PARTITION, clock=lambda: NOW) as log:
        HostedLog(log).writer.epochs.flush()
        return state_of(root, log.log_start_offset, log.log_end_offset)


def follow(leader: Path, root: Path) -> dict[str, Any]:
    """Follow until all is copied; the stats."""
    with kstore.Log.open(root / PARTITION, clock=lambda: NOW) as log:
        copy = follower(leader / PARTITION, log)
        catch_up(copy)
        stats = copy.stats()
    assert state(root) == state(leader)
    return stats


def cuts(stats: dict[str, Any]) -> list[int]:
    return [truncation["offset"] for truncation in stats["truncations"]]


def test_an_empty_follower_fetches_all(tmp_path: Path) -> None:
    """AbstractFetcherThreadTest.testSimpleFetch."""
    leader = make(tmp_path / "leader", [(0, 0, b"a"), (1, 0, b"b")])
    stats = follow(leader, tmp_path / "follower")
    assert (stats["log_end_offset"], cuts(stats)) == (2, [])


def test_logs_without_one_epoch_in_common_are_reconciled(tmp_path: Path) -> None:
    """AbstractFetcherThreadTest.testTruncation."""
    follower = make(tmp_path / "follower", [(0, 0, b"a"), (1, 2, b"b"), (2, 4, b"c")])
    leader = make(tmp_path / "leader", [(0, 1, b"a"), (1, 3, b"b"), (2, 5, b"c")])
    assert cuts(follow(leader, follower)) == [0]


def test_a_diverging_epoch_takes_the_last_batch_alone(tmp_path: Path) -> None:
    """AbstractFetcherThreadTest.testDivergingEpochs."""
    follower = make(tmp_path / "follower", [(0, 0, b"a"), (1, 2, b"b"), (2, 4, b"c")])
    leader = make(tmp_path / "leader", [(0, 0, b"a"), (1, 2, b"b"), (2, 5, b"d")])
    assert cuts(follow(leader, follower)) == [2]


def test_a_follower_truncates_once_and_then_takes_records_and_high_watermark(tmp_path: Path) -> None:
    """AbstractFetcherThreadTest.testTruncateOnFetchDoesNotProcessPartitionData."""
    common = [(0, 0, b"a"), (1, 0, b"b"), (2, 2, b"c")]
    follower = make(tmp_path / "follower", [*common, (3, 4, b"d"), (4, 4, b"e"), (5, 4, b"f")])
    leader = make(tmp_path / "leader", [*common, (3, 5, b"g"), (4, 5, b"h")])
    stats = follow(leader, follower)
    assert (cuts(stats), stats["log_end_offset"]) == ([3], 5)


def test_a_follower_of_an_emptied_leader_is_emptied(tmp_path: Path) -> None:
    """AbstractFetcherThreadTest.testFollowerFetchOutOfRangeHigh."""
    batches = [(0, 0, b"a"), (1, 0, b"b"), (2, 0, b"c")]
    follower, leader = make(tmp_path / "follower", batches), make(tmp_path / "leader", batches)
    follow(leader, follower)
    with kstore.Log.open(leader / PARTITION, clock=lambda: NOW) as log:
        log.truncate_fully_and_start_at(0)
    stats = follow(leader, follower)
    assert (stats["log_start_offset"], stats["log_end_offset"]) == (0, 0)


def test_a_follower_below_the_leaders_start_begins_anew_there(tmp_path: Path) -> None:
    """AbstractFetcherThreadTest.testFollowerFetchOutOfRangeLow."""
    follower = make(tmp_path / "follower", [(0, 0, b"a")])
    leader = make(tmp_path / "leader", [(2, 4, b"c")])
    stats = follow(leader, follower)
    assert (stats["log_start_offset"], stats["log_end_offset"]) == (2, 3)


@pytest.mark.parametrize("start", [0, 10])
def test_an_empty_follower_begins_where_the_leaders_log_starts(tmp_path: Path, start: int) -> None:
    """AbstractFetcherThreadTest.testEmptyFollowerFetchTieredStorageDisabledLeaderLogStartOffsetZero,
    AbstractFetcherThreadTest.testEmptyFollowerFetchTieredStorageDisabledLeaderLogStartOffsetNonZero."""
    follower = make(tmp_path / "follower", [])
    leader = make(tmp_path / "leader", [(start + i, 0, b"v") for i in range(3)])
    stats = follow(leader, follower)
    assert (stats["log_start_offset"], stats["log_end_offset"]) == (start, start + 3)


def test_a_follower_that_has_all_truncates_nothing_and_has_no_lag(tmp_path: Path) -> None:
    """AbstractFetcherThreadTest.testTruncationSkippedIfNoEpochChange,
    ReplicaFetcherThreadTest.testLagIsUpdatedWhenNoRecords."""
    leader = make(tmp_path / "leader", [(0, 0, b"a"), (1, 2, b"b"), (2, 4, b"c")])
    for _ in range(2):
        stats = follow(leader, tmp_path / "follower")
        assert (cuts(stats), stats["lag_records"], stats["lag_bytes"]) == ([], 0, 0)


def test_a_follower_takes_batches_up_to_the_leader_epoch_that_it_knows(partition: Path) -> None:
    """AbstractFetcherThreadTest.testReplicateBatchesUpToLeaderEpoch."""
    with kstore.Log.open(partition) as log:
        log.append_as_follower(encoded([(0, 0, b"c"), (1, 4, b"d"), (2, 5, b"e")]), leader_epoch=4)
        assert (log.log_end_offset, [epoch for epoch, _ in HostedLog(log).writer.epochs.entries]) == (2, [0, 4])


def test_a_diverging_epoch_that_the_follower_never_had_takes_it_back_step_by_step() -> None:
    """ReplicaFetcherThreadTest.shouldTruncateIfLeaderRepliesWithDivergingEpochNotKnownToFollower."""

    def truncation(answer: tuple[int, int], entries: Sequence[tuple[int, int]], end: int) -> Truncation:
        return find_truncation(EpochEntry(*answer), Ends(LeaderEpochCache("unwritten", entries), 0, end, 115))

    for leader_end in (140, 141):
        assert truncation((4, leader_end), [(2, 119), (4, 129), (5, 149)], 200) == (leader_end, True)
    assert truncation((3, 130), [(2, 119), (4, 129)], 140) == (129, False)
    assert truncation((2, 120), [(1, 0), (3, 119)], 129) == (119, False)
