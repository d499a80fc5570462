"""Stops a command at SIGINT or SIGTERM, after it has finished its current work.

A second signal ends the process immediately.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

from kstore.base.threads import Bell

__all__ = ["Stopping"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


class Stopping:
    """A context manager that notes SIGINT and SIGTERM. Does nothing in a thread other than the main one."""

    def __init__(self) -> None:
        self._heard = Bell()
        self._signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, at most `seconds`; return whether there was one."""
        return self._heard.wait(lambda: self._signal != 0, seconds)

    @property
    def exit_code(self) -> int:
        """130 after SIGINT. 0 after SIGTERM, because service managers use it to stop a healthy process."""
        return INTERRUPTED if self._signal == signal.SIGINT else 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number
        self._heard.ring()
        self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        self._restore()
