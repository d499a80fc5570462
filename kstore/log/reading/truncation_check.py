"""Decides whether another process truncated a log between two reads of its directory, or only cleaned it.

A truncation cuts one segment's file in place and removes all segments after it. A cleaning replaces the files of
segments that are not active, gives the new files the old files' times of modification, and keeps the base offset of the
first segment of each group. So the state of the segment that was the last at the first read shows what happened:

- The segment is the same file with the same last batch: nothing was cut, because a truncation removes the end.
- The segment is the same file without that batch: it was cut.
- The segment is gone or is another file: a truncation removed it, or it was rolled and then cleaned. It was removed if
  any of the following holds; otherwise it was cleaned:
  - A segment starts at a new base offset below the old log end.
  - The last segment that is still the same file has changed, or is followed by another segment than before.
  - The segment before it is another file, with a later time of modification than the old last segment had.
  - A newer leader epoch starts below the old log end, as when a broker is told to truncate.
  - The log ends below its old end.

Invariant: a cleaning is never reported as a truncation. So a truncation is not found if, before the second read and
without a new leader epoch, it is followed by appends of as many records, a roll, and a cleaning that joins the segment
with its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from kstore.files.epochs import LeaderEpochCache

FileState = tuple[int, int]  # size and time of modification


class Before(NamedTuple):
    """The result of an earlier read of a log that had at least one segment."""

    bases: tuple[int, ...]
    files: tuple[int, ...]  # inode numbers of the segments' files
    end_offset: int  # one past the last sound batch
    last_epoch: int  # the leader epoch of the last batch, -1 if it is not known
    last_ns: int  # the last segment's time of modification
    second_last: FileState | None  # the state of the segment before the last


def last_kept(before: Before, bases: tuple[int, ...], files: tuple[int, ...]) -> int:
    """Return the number of the last segment that is still the same file, or -1. No cut was below this segment."""
    now = dict(zip(bases, files, strict=True))
    kept = [number for number, base in enumerate(before.bases) if now.get(base) == before.files[number]]
    return kept[-1] if kept else -1


def cut_between(
    before: Before,
    bases: tuple[int, ...],
    files: tuple[int, ...],
    *,
    last_stands: Callable[[], bool],
    state_of: Callable[[int], FileState],
    epochs: Callable[[], LeaderEpochCache],
) -> int | None:
    """Return the lowest offset at which records may have been cut since `before`; None if nothing was cut.

    `bases` and `files` are the present base offsets and files. `last_stands` says whether the old last segment still
    has its last batch in place. `state_of` returns the state of a present segment's file.
    """
    kept = last_kept(before, bases, files)
    last = len(before.bases) - 1
    if kept == last:
        return None if last_stands() else before.bases[last]
    lowest = before.bases[kept] if kept >= 0 else -1
    if not bases:
        return lowest
    old_last = before.bases[last]
    known = set(before.bases)
    if any(base not in known and base < before.end_offset for base in bases):
        return lowest
    if kept >= 0:
        following = bases[bisect_right(bases, lowest) :][:1]
        if following != (before.bases[kept + 1],):
            return lowest
        state = state_of(lowest)
        if state[1] > before.last_ns or (kept == last - 1 and state != before.second_last):
            return lowest
    number = bisect_left(bases, old_last) - 1
    is_replaced = number >= 0 and bases[number] != lowest and bases[number + 1 : number + 2] == (old_last,)
    if is_replaced and state_of(bases[number])[1] > before.last_ns:
        return lowest
    if before.last_epoch >= 0:
        for epoch, start in epochs().entries:
            if epoch > before.last_epoch:
                return start if start < before.end_offset else None
    return None
