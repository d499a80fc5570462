"""Waits until directories have changed: in the kernel if it can watch them all, else by polling.

A look at the directories that finds nothing is followed by a wait. Invariant: the directories are watched before the
look, so that no change is missed between the two.

A `Watch` is kept after its wait, because closing one takes long, and most followers soon wait again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from kstore.disk._watch import Watch

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.0002, 0.005, 1.5
LOOK_SHARE = 9  # a pause is at least this many times as long as the look before it: at most a tenth of a core
IDLE_SHARE = 1999  # the same factor for a wait in the kernel, which changes end

LONGEST_WAIT = 2.0
"""The most seconds between two looks while the kernel watches; no change is known that it does not report."""

MOST_KEPT, KEPT_SECONDS = 64, 10.0

_kept: list[tuple[float, Watch]] = []  # oldest first, with the times at which their waits ended
_waiting: list[Watch] = []


def wait(
    directories: Sequence[str],
    has_news: Callable[[], bool],
    timeout: float | None,
    *,
    longest_wait: float | None = None,
) -> bool:
    """Wait until `has_news()` returns true; return False after `timeout` seconds.

    `has_news` is called when a directory may have changed, and about every `longest_wait` seconds (less often if the
    call takes long).
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pause = FIRST_PAUSE
    with taken(directories) as watch:
        if watch is not None and not watch.is_armed and has_news():
            return True  # a reader that is behind its writer need not arm
        while True:
            is_watched = watch is not None and watch.arm()
            began = time.monotonic()
            if has_news():
                if watch is not None:
                    watch.ended_early()
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            if watch is not None and is_watched:
                if watch.wait(until_next_look(began, now, deadline, longest_wait)):
                    woken = time.monotonic()
                    if has_news():
                        return True
                    time.sleep(max(until_armed_again(now - began, woken, deadline), 0))
            else:
                time.sleep(min(max(pause, LOOK_SHARE * (now - began)), deadline - now))
                pause = min(pause * GROWTH, LONGEST_PAUSE)


def until_next_look(began: float, now: float, deadline: float, longest_wait: float | None) -> float:
    """Return the seconds until the next look at watched directories, given when the last look began and ended."""
    most = LONGEST_WAIT if longest_wait is None else min(longest_wait, LONGEST_WAIT)
    return min(deadline - now, max(most, idle_seconds(now - began, IDLE_SHARE)))


def idle_seconds(look: float, share: float) -> float:
    """Return `share` times the seconds of a look, but at most `LONGEST_WAIT` or, if that is more, nine looks.

    On a busy machine any look may take long, and no later one would correct a wait of minutes.
    """
    return min(share * look, max(LONGEST_WAIT, LOOK_SHARE * look))


def until_armed_again(looked: float, woken: float, deadline: float) -> float:
    """Return the seconds to pause after a change at `woken` that was no news, when the look before took `looked`.

    A file may change often without news, as for a reader of durable records that the writer does not flush.
    """
    now = time.monotonic()
    return min(deadline - now, LOOK_SHARE * (looked + now - woken))


class taken:  # lower case, like `fs.closing`
    """A watch of these directories for a `with` block; None if there are none, or if the system refuses the watch."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories
        self._watch: Watch | None = None

    def __enter__(self) -> Watch | None:
        self._watch = _take(self._directories)
        return self._watch

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            _keep(self._watch)


def _take(directories: Sequence[str]) -> Watch | None:
    wanted = tuple(directories)
    if not wanted:
        return None
    watch = _take_kept(wanted)
    if watch is None:
        try:
            watch = Watch(wanted)
        except OSError:
            return None
    _waiting.append(watch)
    return watch


def _take_kept(wanted: tuple[str, ...]) -> Watch | None:
    for entry in reversed(_kept):
        if entry[1].directories == wanted:
            try:
                _kept.remove(entry)
            except ValueError:  # another thread has taken it
                continue
            return entry[1]
    return None


def _keep(watch: Watch) -> None:
    """Keep a watch for a later wait, and close those that nobody has taken for some time."""
    with suppress(ValueError):  # an interrupt came before it was appended
        _waiting.remove(watch)
    now = time.monotonic()
    _kept.append((now, watch))
    while _kept and (len(_kept) > MOST_KEPT or _kept[0][0] < now - KEPT_SECONDS):
        with suppress(IndexError):
            _kept.pop(0)


def wake(directory: str) -> None:
    """Make the waits for a directory look at once, and close the watches that are kept for it."""
    for watch in list(_waiting):
        if directory in watch.directories:
            watch.cancel()
    forget(directory)


def forget(directory: str) -> None:
    """Close the watches that are kept for a directory: while one is open, each write there takes a microsecond more."""
    for entry in list(_kept):
        if directory in entry[1].directories:
            with suppress(ValueError):  # another thread has taken it
                _kept.remove(entry)


def _close_in_child() -> None:
    for watch in (*_waiting, *(watch for _, watch in _kept)):
        watch.close()
    _waiting.clear()
    _kept.clear()


os.register_at_fork(after_in_child=_close_in_child)
