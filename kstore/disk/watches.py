"""Waits until directories have changed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.0002, 0.005, 1.5
LOOK_SHARE = 9  # a pause is at least this many times as long as the look before it: at most a tenth of a core


def wait(
    directories: Sequence[str],
    has_news: Callable[[], bool],
    timeout: float | None,
    *,
    longest_wait: float | None = None,
) -> bool:
    """Wait until `has_news()` returns true; return False after `timeout` seconds.

    `has_news` is called when a directory may have changed, and at least every `longest_wait` seconds.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    return _poll(has_news, deadline)


def _poll(has_news: Callable[[], bool], deadline: float) -> bool:
    pause = FIRST_PAUSE
    while True:
        began = time.monotonic()
        if has_news():
            return True
        now = time.monotonic()
        if now >= deadline:
            return False
        time.sleep(min(max(pause, LOOK_SHARE * (now - began)), deadline - now))
        pause = min(pause * GROWTH, LONGEST_PAUSE)
