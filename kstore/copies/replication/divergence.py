"""Finds where a follower's log diverges from its leader's, by leader epochs alone (SEMANTICS 10.9, 10.20 to 10.22).

Invariant: an epoch ends where the next higher one starts, on both sides.
"""

from __future__ import annotations

from typing import NamedTuple

from kstore.errors import OffsetOutOfRangeError
from kstore.files.epochs import NO_EPOCH, NO_OFFSET, EpochEntry, LeaderEpochCache
from kstore.log.reading.view import out_of_range


class Truncation(NamedTuple):
    """The follower's next step: truncate to `offset`, and then, unless `complete` is true, ask the leader again."""

    offset: int
    complete: bool


class Restart(NamedTuple):
    """How a follower continues: it truncates to `offset`.

    With `fully` it deletes all records and restarts at `offset`. With `drops_epochs` it removes the leader epochs that
    start at its log end.
    """

    offset: int
    fully: bool
    drops_epochs: bool = False


class Ends(NamedTuple):
    """A log's leader epochs, start, end and high watermark."""

    epochs: LeaderEpochCache
    log_start_offset: int
    log_end_offset: int
    high_watermark: int


def find_diverging(leader: Ends, fetch_offset: int, last_fetched_epoch: int | None) -> EpochEntry | None:
    """Check a fetch as a leader does (SEMANTICS 10.9, 10.20); return the diverging epoch and its end, or None.

    `last_fetched_epoch` is the follower's latest epoch. Raises `OffsetOutOfRangeError` if the offset is outside the
    leader's log, or if the leader does not know where the epoch ends.
    """
    start, end = leader.log_start_offset, leader.log_end_offset
    if last_fetched_epoch is not None and fetch_offset >= start:
        known = leader.epochs.find_end_offset(last_fetched_epoch, end)
        if known.epoch == NO_EPOCH or known.offset == NO_OFFSET:
            raise OffsetOutOfRangeError(
                f"the leader does not know where leader epoch {last_fetched_epoch} ends; its log starts at {start} and "
                f"ends at {end}, and its latest epoch is {leader.epochs.latest_epoch}",
                log_start_offset=start,
                log_end_offset=end,
            )
        if known.epoch < last_fetched_epoch or known.offset < fetch_offset:
            return known
    if not start <= fetch_offset <= end:
        raise out_of_range(fetch_offset, start, end)
    return None


def find_truncation(answer: EpochEntry, follower: Ends) -> Truncation:
    """Decide where a follower truncates after a leader's answer (SEMANTICS 10.21)."""
    end = follower.log_end_offset
    if answer.offset == NO_OFFSET:
        return Truncation(follower.high_watermark, True)
    if answer.epoch == NO_EPOCH:
        return Truncation(min(answer.offset, end), True)
    own = follower.epochs.find_end_offset(answer.epoch, end)
    if own.offset == NO_OFFSET:
        return Truncation(min(answer.offset, end), True)
    if own.epoch != answer.epoch:
        return Truncation(min(own.offset, end), False)
    return Truncation(min(own.offset, answer.offset, end), True)


def find_restart(leader: Ends, log_end_offset: int) -> Restart:
    """Decide how a follower continues if its log end offset is outside the leader's log (SEMANTICS 10.22)."""
    if leader.log_end_offset < log_end_offset:
        return Restart(leader.log_end_offset, False)
    if leader.log_start_offset > log_end_offset:
        return Restart(leader.log_start_offset, True)
    return Restart(log_end_offset, False)


def find_common_end(leader: Ends, follower: Ends) -> Restart:
    """Run the whole protocol and return the result. Its `offset` is the follower's log end if nothing is truncated."""
    epochs, end = LeaderEpochCache("", follower.epochs.entries), follower.log_end_offset
    own_end, known = end, len(epochs.entries)
    while True:
        try:
            diverging = find_diverging(leader, end, epochs.latest_epoch)
        except OffsetOutOfRangeError:
            restart = find_restart(leader, end)
            if restart.fully:
                return restart
            if restart.offset == end:
                break
            end = restart.offset  # epochs below the offset may differ too
        else:
            if diverging is None:
                break
            # Terminates: each answer is below the end, or has a lower epoch than the follower's latest.
            end = find_truncation(diverging, follower._replace(epochs=epochs, log_end_offset=end)).offset
        epochs.truncate_from_end(end)
    return Restart(end, False, end == own_end and len(epochs.entries) < known)
