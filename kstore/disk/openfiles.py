"""The budget of files that the logs of this process keep open while no call uses them.

After a read, files stay open and indexes stay mapped, since opening one again takes a hundred times as long as a
lookup. A `Holder` has such files: a sealed segment, an index file, a log open for writing. The budget counts
descriptors; a map counts as one, and so does each 64 KiB of a copied index. Above the budget, holders that were not
used since the last check close their files first. If the process has no descriptor left, the budget is lower for a
minute (`make_room`).

Invariant: using a file only sets a flag. There is no list in order of use, and no lock.
"""

from __future__ import annotations

import logging
import os
import resource
import time
import weakref
from collections import deque
from typing import Protocol

from kstore.errors import StorageError

logger = logging.getLogger("kstore")

MOST_BY_DEFAULT = 8192
LEAST = 8
"""The least budget; with less, a single lookup could close a file that it has just opened."""
TIGHT_SECONDS = 60.0
"""How long the budget is lower after the process had no descriptor left; other code may close files in this time."""
LOOK_EVERY = 64
"""The number of opened descriptors after which the process's limit is read again."""
_OTHERS_SECONDS, _PAUSE = 5.0, 0.001


class Holder(Protocol):
    """Something that holds files open. All methods may be called from any thread."""

    listed: bool
    """Whether the holder is in this module's ring, False at first; only this module sets it."""

    def holds(self) -> int:
        """Return the number of descriptors that the holder holds now."""

    def was_used(self) -> bool:
        """Return whether the holder was used since the last call."""

    def let_go(self) -> None:
        """Close the files that are not in use; must not wait for a thread that may wait for the caller."""


_limit: int | None = None
_ring: deque[weakref.ref[Holder]] = deque()
_room = 0  # descriptors that may still be opened within the budget, by the last count
_unsure = 0  # descriptors opened since the last count; how many were closed since then is not known
_trusted = 0  # a new count is made once more than this many descriptors were opened since the last count
_counted_for = 0  # the budget at the last count
_next_look = 0  # the budget is computed again once `_unsure` is this high: the process's limit may have changed
_least_limit: int | None = None  # a lower budget for a minute after the process had no descriptor left
_least_limit_until = 0.0  # the end of the lower budget, by the monotonic clock
# The sweep (closing of unused files) in progress. Not a lock, since an interrupt could leave a lock taken forever;
# `setdefault` and `del` are atomic.
_sweeping: dict[str, object] = {}


def limit() -> int:
    """Return the budget: the value that was set, or half of the process's limit, at most `MOST_BY_DEFAULT`.

    The budget is lower for a minute after the process had no descriptor left.
    """
    global _least_limit
    may_open = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = MOST_BY_DEFAULT if may_open < 0 else min(may_open // 2, MOST_BY_DEFAULT)
    most = max(LEAST, most) if _limit is None else _limit
    if _least_limit is not None and time.monotonic() >= _least_limit_until:
        _least_limit = None
    return most if _least_limit is None else min(most, max(LEAST, _least_limit))


def set_limit(most: int | None) -> None:
    """Set the budget of the whole process (None: the default); if more files are open, close some now."""
    global _limit, _least_limit
    if most is not None and most < LEAST:
        raise ValueError(f"a limit of {most} open files; the least is {LEAST}")
    _limit, _least_limit = most, None
    _sweep(None, limit())


def held() -> int:
    """Return the number of descriptors held now. Takes time proportional to the number of holders."""
    holders = {id(holder): holder for reference in tuple(_ring) if (holder := reference()) is not None}
    return sum(holder.holds() for holder in holders.values())


def make_room() -> bool:
    """Close a quarter of the open files, and lower the budget for a minute; return False if none could be closed.

    Called when no descriptor is left; the caller may hold locks. If another thread is sweeping, this call waits until
    that thread has closed a file, which may need a sync first. It waits at most 5 seconds, since the other thread may
    be waiting for one of the caller's locks.
    """
    global _least_limit, _least_limit_until
    before = held()
    if before == 0:
        return False
    _least_limit, _least_limit_until = before * 3 // 4, time.monotonic() + TIGHT_SECONDS
    deadline = time.monotonic() + _OTHERS_SECONDS
    while not _sweep(None, _least_limit):
        if held() < before or time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE)
    return held() < before


def opened(holder: Holder, count: int = 1) -> None:
    """Record that the holder has opened `count` more descriptors; above the budget, close files of other holders."""
    global _room, _unsure, _next_look
    if not holder.listed:
        holder.listed = True
        _ring.append(weakref.ref(holder))
    _room -= count
    _unsure += count
    if _room < 0 or _unsure > _trusted:
        _sweep(holder, limit())
    elif _unsure >= _next_look:
        _next_look = _unsure + LOOK_EVERY
        if (most := limit()) != _counted_for:
            _sweep(holder, most)


def _sweep(newcomer: Holder | None, most: int) -> bool:
    """Close files until slightly fewer than `most` are open; return False if another thread is sweeping."""
    global _room, _unsure, _trusted, _counted_for, _next_look
    this_sweep = object()
    try:
        if _sweeping.setdefault("by", this_sweep) is not this_sweep:
            return False
        if newcomer is None or most != _counted_for or _unsure > min(_trusted, most // 16):
            count = _count()
            _room, _unsure = most - count, 0
            _trusted = LOOK_EVERY + count  # so each open checks one holder on average
            _counted_for, _next_look = most, LOOK_EVERY
        if _room < 0:
            _reduce(most // 1024, newcomer)
        if _room < 0:
            _room = most // 64  # all files are in use: the next few are opened without another sweep
        return True
    finally:
        if _sweeping.get("by") is this_sweep:
            del _sweeping["by"]


def _count() -> int:
    """Count the held descriptors, and remove holders without any from the ring, as most logs may hold none."""
    held_by: dict[int, int] = {}
    for _ in range(len(_ring)):
        holder = _ring[0]()
        if holder is None:
            _ring.popleft()
            continue
        held_by[id(holder)] = holder.holds()
        _keep_or_drop(holder, held_by[id(holder)])
    return sum(held_by.values())


def _keep_or_drop(holder: Holder, holds: int) -> None:
    """Move the first holder of the ring to its end, or remove it if it holds nothing."""
    if holds:
        _ring.rotate(-1)
        return
    holder.listed = False
    _ring.popleft()
    if holder.holds() and not holder.listed:  # another thread opened a file and saw the holder still listed
        holder.listed = True
        _ring.append(weakref.ref(holder))


def _reduce(spare: int, newcomer: Holder | None) -> None:
    """Close files of the ring's holders until `spare` descriptors are free; go round the ring at most twice.

    Skip holders that were used since the last check. `spare` is small, since some holders sync before they close files.
    """
    global _room
    for _ in range(2 * len(_ring)):
        if _room >= spare:
            break
        holder = _ring[0]()
        if holder is None:
            _ring.popleft()
            continue
        before = holder.holds()
        if holder is not newcomer and not holder.was_used():
            try:
                holder.let_go()
            except StorageError as error:
                logger.warning("while closing files that were not in use: %s", error)
        left = holder.holds()
        _room += before - left
        _keep_or_drop(holder, left)


def _forget() -> None:
    """Start empty in a forked child: its logs are closed, and a sweep by a thread of the parent never ends there."""
    _ring.clear()
    _sweeping.clear()


os.register_at_fork(after_in_child=_forget)
