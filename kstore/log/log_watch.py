"""Waits, in a thread or an event loop, until one of several logs has news.

A log that this process writes calls a bell (`Writer.waiters`); others are watched or polled (`disk.watches`).
Invariant: the wait starts before the last check, so that no change is missed between the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from kstore.base.weak import weak_method
from kstore.disk import watches
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.view import View
from kstore.log.writing.writer import Writer, watching

if TYPE_CHECKING:
    from kstore.base import loops

# Seconds between two polls in an event loop. Without news the pauses grow until a waiting task costs about a thousandth
# of a core: waking the event loop takes up to 0.2 ms.
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.0002, 0.25, 1.25
WAKE_SECONDS = 0.0002
LOOK_SHARE = 9  # a pause is at least this many times as long as the call of `has_news` before it
IDLE_SHARE = 999  # and grows to this many times


def wait_for_news(
    views: Sequence[View], has_news: Callable[[], bool], timeout: float | None, *, longest_wait: float | None = None
) -> bool:
    """Wait until `has_news()` returns true; return False after `timeout` seconds.

    `has_news` is called when a view may have changed, and about every `longest_wait` seconds (less often if the call
    takes long).
    """
    if not _are_own(views):
        return watches.wait(_directories(views), has_news, timeout, longest_wait=longest_wait)
    deadline = math.inf if timeout is None else monotonic() + timeout
    bell: SimpleQueue[None] = SimpleQueue()
    with watching(views, partial(bell.put, None)):
        while True:
            began = monotonic()
            if has_news():
                return True
            seconds = _until_next(began, deadline, longest_wait)
            if seconds <= 0:
                return False
            with suppress(Empty):
                bell.get(timeout=None if seconds == math.inf else seconds)


async def await_news(
    views: Sequence[View], has_news: Callable[[], bool], timeout: float | None, *, longest_wait: float | None = None
) -> bool:
    """Do what `wait_for_news` does, without blocking the event loop."""
    from kstore.base import loops  # imports asyncio

    deadline = math.inf if timeout is None else monotonic() + timeout
    bell = loops.Bell(loops.running())
    if not _are_own(views):
        return await _watched(bell, _directories(views), has_news, deadline, longest_wait)
    # The writer must not keep the bell alive: collecting the task of a closed loop then unregisters the bell.
    with watching(views, weak_method(bell.ring)):
        while True:
            bell.clear()
            began = monotonic()
            if has_news():
                return True
            seconds = _until_next(began, deadline, longest_wait)
            if seconds <= 0:
                return False
            await bell.wait(None if seconds == math.inf else seconds)


def _are_own(views: Sequence[View]) -> bool:
    return bool(views) and all(isinstance(view, Writer) for view in views)


def _directories(views: Sequence[View]) -> list[str]:
    directories: dict[str, None] = {}
    for view in views:
        if not isinstance(view, ReadOnlyView):
            return []  # of an own log and of another process's: polled
        directories |= dict.fromkeys(view.watched_directories)
    return [*directories]


def _until_next(began: float, deadline: float, longest_wait: float | None) -> float:
    """Return the seconds until the next check, given when the last one began; 0 or less at the deadline."""
    now = monotonic()
    if longest_wait is None:
        return deadline - now
    return min(deadline - now, max(longest_wait, watches.idle_seconds(now - began, IDLE_SHARE)))


async def _watched(
    bell: loops.Bell,
    directories: Sequence[str],
    has_news: Callable[[], bool],
    deadline: float,
    longest_wait: float | None,
) -> bool:
    """Wait as `disk.watches.wait` does."""
    from kstore.base import loops

    pause = FIRST_PAUSE
    with watches.taken(directories) as watch, bell.rung_by(-1 if watch is None else watch.fd) as is_rung:
        if watch is not None and not watch.is_armed and has_news():
            return True
        while True:
            bell.clear()
            is_watched = is_rung and watch is not None and watch.arm()
            began = monotonic()
            if has_news():
                if watch is not None:
                    watch.ended_early()
                return True
            now = monotonic()
            if now >= deadline:
                return False
            if is_watched:
                seconds = watches.until_next_look(began, now, deadline, longest_wait)
            else:
                seconds = min(deadline - now, max(pause, LOOK_SHARE * (now - began)))
                pause = min(pause * GROWTH, max(LONGEST_PAUSE, watches.idle_seconds(now - began, IDLE_SHARE)))
            await bell.wait(seconds)
            woken = monotonic()
            if watch is not None and watch.take():
                if has_news():
                    return True
                # Not a wait for the bell: the loop may have seen the change twice, and rings for it again.
                await loops.pause(watches.until_armed_again(WAKE_SECONDS + now - began, woken, deadline))
