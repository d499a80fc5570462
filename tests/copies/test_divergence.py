"""divergence.py: where a follower's log leaves its leader's (SEMANTICS 10.9, 10.20, 10.21, 10.22)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.copies.replication.divergence import (
    Ends,
    Restart,
    Truncation,
    find_common_end,
    find_diverging,
    find_restart,
    find_truncation,
)
from kstore.errors import OffsetOutOfRangeError
from kstore.files.epochs import UNDEFINED, EpochEntry, LeaderEpochCache


def ends(*entries: tuple[int, int], end: int, start: int = 0, watermark: int = 0) -> Ends:
    return Ends(LeaderEpochCache("unwritten", entries), start, end, watermark)


# The leader's half


def test_the_latest_epoch_ends_at_the_log_end_so_a_follower_below_it_reads_on() -> None:
    leader = ends((0, 0), (2, 10), end=20)
    assert find_diverging(leader, 20, 2) is None
    assert find_diverging(leader, 11, 2) is None


def test_a_follower_beyond_the_end_of_its_epoch_is_told_where_that_epoch_ended() -> None:
    leader = ends((0, 0), (2, 10), end=20)
    assert find_diverging(leader, 10, 0) is None
    assert find_diverging(leader, 11, 0) == (0, 10)
    assert find_diverging(leader, 21, 2) == (2, 20)


def test_an_epoch_that_the_leader_never_had_is_answered_with_the_one_below() -> None:
    leader = ends((0, 0), (2, 10), (5, 15), end=20)
    assert find_diverging(leader, 12, 3) == (2, 15)


def test_an_offset_below_the_leaders_start_is_out_of_range_whatever_the_epochs() -> None:
    leader = ends((2, 10), (5, 15), end=20, start=10)
    with pytest.raises(OffsetOutOfRangeError, match="offset 9 is not in the log, which starts at 10"):
        find_diverging(leader, 9, 3)
    assert find_diverging(leader, 16, 3) == (2, 15)


def test_an_epoch_that_is_newer_than_all_of_the_leaders_is_out_of_range() -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"where leader epoch 6 ends.*its latest epoch is 5"):
        find_diverging(ends((5, 15), end=20), 16, 6)


def test_without_an_epoch_only_the_offset_is_compared() -> None:
    leader = ends(end=20, start=10)
    assert find_diverging(leader, 20, None) is None
    for offset in (9, 21):
        with pytest.raises(OffsetOutOfRangeError):
            find_diverging(leader, offset, None)


# The follower's half: the table of SEMANTICS 10.21


def test_an_undefined_end_offset_truncates_to_the_high_watermark() -> None:
    assert find_truncation(UNDEFINED, ends((1, 0), end=20, watermark=7)) == Truncation(7, True)


@pytest.mark.parametrize(("end", "to"), [(9, 9), (10, 10), (11, 10)])
def test_an_end_offset_without_an_epoch_is_the_least_of_both_ends(end: int, to: int) -> None:
    assert find_truncation(EpochEntry(-1, 10), ends((1, 0), end=end)) == Truncation(to, True)


def test_an_epoch_that_the_follower_lacks_truncates_to_its_floor_and_asks_again() -> None:
    assert find_truncation(EpochEntry(3, 30), ends((1, 0), (4, 12), end=20)) == Truncation(12, False)


def test_a_known_epoch_truncates_to_the_least_of_three_ends() -> None:
    follower = ends((1, 0), (4, 12), end=20)
    assert find_truncation(EpochEntry(1, 30), follower) == Truncation(12, True)
    assert find_truncation(EpochEntry(1, 5), follower) == Truncation(5, True)
    assert find_truncation(EpochEntry(4, 30), follower) == Truncation(20, True)


def test_a_follower_without_that_epoch_takes_the_leaders_end() -> None:
    assert find_truncation(EpochEntry(5, 10), ends((1, 0), (4, 12), end=20)) == Truncation(10, True)


# Out of range: SEMANTICS 10.22


def test_an_offset_out_of_range_truncates_starts_anew_or_goes_on() -> None:
    leader = ends(end=20, start=10)
    assert find_restart(leader, 21) == Restart(20, False)
    assert find_restart(leader, 20) == Restart(20, False)
    assert find_restart(leader, 10) == Restart(10, False)
    assert find_restart(leader, 9) == Restart(10, True)


def test_below_the_end_of_a_leader_without_that_epoch_the_epochs_are_compared_again() -> None:
    leader, follower = ends((0, 1), (4, 3), (5, 5), (7, 7), end=10, start=1), ends((0, 6), (5, 10), (8, 11), end=11)
    assert find_restart(leader, 11) == Restart(10, False)
    assert find_common_end(leader, follower) == Restart(3, False)


def test_an_epoch_that_the_leader_never_had_is_dropped_without_a_record() -> None:
    follower = ends((0, 0), (4, 10), end=10)
    assert find_common_end(ends((0, 0), (5, 10), end=15), follower) == Restart(10, False, drops_epochs=True)
    assert find_common_end(ends((0, 0), (5, 8), end=15), follower) == Restart(8, False)
    assert find_common_end(ends((0, 0), (4, 10), (5, 12), end=15), follower) == Restart(10, False)


# Both halves: histories in which each epoch has one leader


def ends_of(log: list[tuple[int, int]]) -> Ends:
    entries: list[tuple[int, int]] = []
    for offset, (epoch, _) in enumerate(log):
        if not entries or entries[-1][0] != epoch:
            entries.append((epoch, offset))
    return ends(*entries, end=len(log))


@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(1, 12))
def test_what_stays_is_all_that_both_logs_have_in_common(seed: int, count: int, terms: int) -> None:
    """Leaders in turn append, and each other log follows at times: what stays is the longest common beginning."""
    rng = random.Random(seed)
    logs: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for epoch in range(terms):
        leader = logs[rng.randrange(count)]
        leader.extend((epoch, rng.randrange(2**60)) for _ in range(rng.randrange(1, 4)))
        for log in logs:
            if log is not leader and rng.random() < 0.5:
                kept = find_common_end(ends_of(leader), ends_of(log)).offset
                common = next(
                    (i for i, (a, b) in enumerate(zip(leader, log, strict=False)) if a != b), min(len(leader), len(log))
                )
                assert kept == common
                log[kept:] = leader[kept : rng.randrange(kept, len(leader) + 1)]
