"""Shows the progress of a command on standard error, after the first second.

On a terminal rich (the extra `cli`) draws a bar. Without rich, or if the terminal cannot move its cursor, a line is
printed every two seconds. If standard error is not a terminal, nothing is shown. Invariant: a bar that is not shown
costs almost nothing, and rich is imported only after the first second.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Literal, Self

from kstore.cli import output

__all__ = ["Progress"]

_QUIET_SECONDS = 1.0
_BAR_SECONDS = 0.1
_LINE_SECONDS = 2.0


class Progress:
    """Shows how much of `total` is done, in bytes or in `unit`; a `total` of -1 is unknown.

    `aside` is for commands that print results at the same time: nothing is shown if the results go to a terminal. A
    context manager, which clears the bar. Thread-safe.
    """

    def __init__(self, what: str, total: int = -1, unit: str = "bytes", *, aside: bool = False) -> None:
        self._what, self._unit = what, unit
        self._done, self._total = 0, total
        self._started = time.monotonic()
        self._next = self._started + _QUIET_SECONDS
        self._is_shown = sys.stderr.isatty() and not (aside and sys.stdout.isatty())
        self._mutex = threading.Lock()
        self._bar: Any = None
        self._way: Literal["bar", "lines"] | None = None

    def __enter__(self) -> Self:
        return self

    def add(self, count: int) -> None:
        if self._is_shown:
            with self._mutex:
                self._done += count
                self._show()

    def reach(self, done: int, total: int | None = None) -> None:
        """Set how much is done, and optionally a new total."""
        if self._is_shown:
            with self._mutex:
                self._done = done
                self._total = self._total if total is None else total
                self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        if self._way is None:
            self._bar = _bar(self._what, self._unit)
            self._way = "lines" if self._bar is None else "bar"
        if self._way == "bar":
            self._next = now + _BAR_SECONDS
            total = None if self._total < 0 else self._total
            self._bar.update(0, completed=min(self._done, total or self._done), total=total, amount=self._amount())
            self._bar.refresh()
        else:
            self._next = now + _LINE_SECONDS
            print(f"{self._what}: {self._amount()}", file=sys.stderr, flush=True)

    def _amount(self) -> str:
        passed = max(time.monotonic() - self._started, 1e-3)
        if self._unit == "bytes":
            done, total = output.size(self._done), output.size(max(self._total, 0))
            rate = f"{output.size(int(self._done / passed))}/s"
        else:
            done, total = f"{self._done:,}", f"{self._total:,} {self._unit}"
            rate = f"{self._done / passed:,.0f}/s"
        if self._total < 0:
            return f"{done}, {rate}" if self._unit == "bytes" else f"{done} {self._unit}, {rate}"
        share = 100 * self._done // max(self._total, 1)
        return f"{done} of {total}, {min(share, 100)} %, {rate}"

    def __exit__(self, *_: object) -> None:
        self._is_shown = False
        if self._bar is not None:
            self._bar.stop()


def _bar(what: str, unit: str) -> Any:
    """Start a bar of rich; return None if rich is not installed, or cannot draw on the terminal."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    shown = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[amount]}"),
        progress.TimeRemainingColumn(),
        console=Console(file=output.plain(sys.stderr)),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # otherwise rich would print results to standard error
        redirect_stderr=False,
    )
    shown.add_task(what, total=None, amount="")
    shown.start()
    return shown
