"""What the logs of this process keep open although nobody needs it just now, and how much of that there may be.

A file that was looked into stays open, and an index stays mapped, because opening costs a hundred times what looking
up does. Each such thing has a `Holder`, which tells what it holds and can let go of it: a sealed segment, an index
file, a log that is open for writing. One budget is for all of them, counted in descriptors; a map has one too, and
64 KiB of an index that was copied to memory count as one. When it is exceeded, those that were not used since they
were last looked at let go first.

The hardest rule: whoever uses a thing pays nothing for this but a mark, so there is no list to keep in order and no
lock to take: the marks are looked at when something is opened and the budget is exceeded, and by one thread.
"""

from __future__ import annotations

import logging
import os
import resource
import weakref
from collections import deque
from typing import Protocol

from kstore.errors import StorageError

logger = logging.getLogger("kstore")

MOST_BY_DEFAULT = 8192
LEAST = 8
"""Below that a single lookup would not find what it has just opened."""


class Holder(Protocol):
    """Something that holds files open. All of it may be called from any thread."""

    listed: bool
    """This module's: whether the holder is known here. False at first."""

    def holds(self) -> int:
        """How much it holds now, in descriptors."""

    def was_used(self) -> bool:
        """Whether it was used since this was last asked."""

    def let_go(self) -> None:
        """Let go of what is not in use; waits for nobody who may be waiting for the caller."""


_limit: int | None = None
_ring: deque[weakref.ref[Holder]] = deque()
_room = 0  # how much more may be opened before somebody has to let go, as far as is known
_unsure = 0  # how much was opened since all was counted: what was closed by itself since then is not known
_trusted = 0  # and how much of that is no reason to count again
_sweeping: dict[str, object] = {}  # who sweeps; not a lock, which an interrupt behind its taking would leave taken


def limit() -> int:
    """How much may be held: what was set, else half of what the process may open, at most `MOST_BY_DEFAULT`."""
    if _limit is not None:
        return _limit
    may_open = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(LEAST, MOST_BY_DEFAULT if may_open < 0 else min(may_open // 2, MOST_BY_DEFAULT))


def set_limit(most: int | None) -> None:
    """Set the budget of the whole process, None for the default; what is above it is closed now."""
    global _limit
    if most is not None and most < LEAST:
        raise ValueError(f"a limit of {most} open files; the least is {LEAST}")
    _limit = most
    _sweep(None)


def held() -> int:
    """Count what is held now. Takes time in proportion to it."""
    holders = {id(holder): holder for reference in tuple(_ring) if (holder := reference()) is not None}
    return sum(holder.holds() for holder in holders.values())


def opened(holder: Holder, count: int = 1) -> None:
    """Hear that the holder has opened `count` more; others may have to let go for it."""
    global _room, _unsure
    if not holder.listed:
        holder.listed = True
        _ring.append(weakref.ref(holder))
    _room -= count
    _unsure += count
    if _room < 0 or _unsure > _trusted:
        _sweep(holder)


def _sweep(newcomer: Holder | None) -> None:
    """Bring what is held to the limit and a little below it, unless another thread is at it."""
    global _room, _unsure, _trusted
    mine = object()
    try:
        if _sweeping.setdefault("by", mine) is not mine:
            return
        most = limit()
        if newcomer is None or _unsure > min(_trusted, most // 16):
            count = held()
            _room, _unsure = most - count, 0
            _trusted = 64 + count // 8  # not without end: the process's own limit may be lowered
        if _room < 0:
            _reduce(most // 1024, newcomer)
        if _room < 0:
            _room = most // 64  # all is in use: the next few that are opened need not go round again
    finally:
        if _sweeping.get("by") is mine:
            del _sweeping["by"]


def _reduce(spare: int, newcomer: Holder | None) -> None:
    """Go round, twice at the most, until there is room for `spare`: what was used has a second chance.

    Not much at a time: some have to wait for the disk before they can let go.
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
                logger.warning("while closing what was not in use: %s", error)
        left = holder.holds()
        _room += before - left
        if left:
            _ring.rotate(-1)
            continue
        holder.listed = False
        _ring.popleft()
        if holder.holds() and not holder.listed:  # opened again by a thread that had seen it listed
            holder.listed = True
            _ring.append(weakref.ref(holder))


def _forget() -> None:
    """In a forked child logs are closed, and the locks of those that held files may never be given back."""
    _ring.clear()
    _sweeping.clear()


os.register_at_fork(after_in_child=_forget)
