"""A clock that only the test moves, and that calls its followers when it moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta


class ManualClock:
    """A clock that stands still until a test moves it: pass it as `clock=` to `Log.open` or `Store.open`.

    Calling it returns milliseconds since the epoch. It starts at `now`, or at the system's time. The attribute `now`
    may be set, too; followers of the clock then run at the next `advance`. Only one thread may move a clock; any thread
    may read it.

    Example:
        >>> from kstore.testing import ManualClock
        >>> clock = ManualClock(1_764_000_000_000)
        >>> log = kstore.Log.open("data/orders-0", clock=clock)
        >>> offset = log.append(b"3 apples")
        >>> next(log.read()).timestamp
        1764000000000
    """

    def __init__(self, now: int | None = None) -> None:
        self.now = time.time_ns() // 1_000_000 if now is None else now
        self._followers: list[Callable[[], object]] = []

    def __call__(self) -> int:
        return self.now

    def __repr__(self) -> str:
        return f"<kstore.testing.ManualClock at {self.now} ms>"

    def advance(self, by: int | timedelta) -> int:
        """Move the clock and call its followers.

        The followers of the fixtures do the housekeeping of their logs and stores: retention, compaction, flushes,
        deletions. Their errors are raised here.

        Args:
            by: Milliseconds or a `timedelta`; a negative value moves the clock back.

        Returns:
            The new time in milliseconds since the epoch.

        Example:
            >>> from datetime import timedelta
            >>> clock.advance(timedelta(seconds=1))
            1764000001000
            >>> clock()
            1764000001000
        """
        self.now += by // timedelta(milliseconds=1) if isinstance(by, timedelta) else by
        for follower in tuple(self._followers):
            follower()
        return self.now

    @contextmanager
    def followed_by(self, action: Callable[[], object]) -> Iterator[None]:
        """Call a function after each `advance` while the block runs.

        Args:
            action: The function, which is called without arguments.

        Yields:
            None.

        Example:
            >>> times = []
            >>> with clock.followed_by(lambda: times.append(clock())):
            ...     now = clock.advance(1000)
            >>> times
            [1764000001000]
        """
        self._followers.append(action)
        try:
            yield
        finally:
            self._followers.remove(action)
