"""Whether a log was cut between two looks at its directory, or only cleaned: what a reader of another process can know.

A truncation cuts the file of one segment in place and removes all segments behind it. A cleaning replaces files of
segments that are not active by new ones, sets their times to those of the old ones, and keeps the base offset of the
first segment of each group. So:

- the last segment is still the same file, and its last batch still stands: nothing was cut, since a cut takes the end;
- it is the same file, and its last batch does not stand: it was cut;
- it has gone, or is another file: it was rolled and then cleaned, or it was cut away. It was cut away where a segment
  begins at a new offset below the old end; where the segment before it is the same file and has changed, or is followed
  by another base than before; where the segment before it is another file, written later than the last one was; where a
  newer leader epoch begins below the old end, as in a broker that was told to truncate; and where the log ends below
  its old end. Else it was cleaned.

Invariant: a cleaning must never be taken for a cut. So a cut that is followed by as many appends, a roll and a cleaning
that joins the segment with those around it, all between two looks, is taken for a cleaning where no leader epoch tells
of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from kstore.files.epochs import LeaderEpochCache

FileState = tuple[int, int]  # size and time of modification


class Before(NamedTuple):
    """What is known of an earlier look at a log that had a segment."""

    bases: tuple[int, ...]
    files: tuple[int, ...]  # inode numbers of the segments' files
    end_offset: int  # one past the last sound batch
    last_epoch: int  # the leader epoch of the last batch, -1 if it is not known
    last_ns: int  # when the last segment's file had been changed
    second_last: FileState | None  # of the segment before it


def last_kept(before: Before, bases: tuple[int, ...], files: tuple[int, ...]) -> int:
    """The number of the last segment that is still the same file, -1 for none: no cut was below it."""
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
    """The lowest offset from which on records may have been cut since `before`; None where nothing was cut.

    `bases` and `files` are those of now. `last_stands` says whether the last batch is where it was, in the file that
    was the last one; `state_of` gives the state of the file of a segment that is there now.
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
