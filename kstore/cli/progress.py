"""A bar on standard error for what takes over a second, where that is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

__all__ = ["Progress"]

_QUIET_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_WIDTH = 30


class Progress:
    """Shows how far something is; silent for the first second, and wherever standard error is no terminal.

    Not thread-safe.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + _QUIET_SECONDS
        self._shown = False
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def reach(self, done: int, total: int) -> None:
        """Note how far it is, of how much."""
        if self._live and (now := time.monotonic()) >= self._next:
            self._next = now + _PAUSE_SECONDS
            self._show(done, total)

    def _show(self, done: int, total: int) -> None:
        filled = _WIDTH * done // max(total, 1)
        bar = "#" * min(filled, _WIDTH)
        print(f"\r[{bar:{_WIDTH}}] {done} of {total} {self._what}", end="", file=sys.stderr, flush=True)
        self._shown = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
