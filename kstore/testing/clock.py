"""A clock that only the test moves, and what follows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta


class ManualClock:
    """Milliseconds since the epoch that stand still until they are moved: pass it as `clock=` to what is opened.

    It begins at `now`, or at the system's time. `now` may be set, too; what follows the clock then waits for the next
    `advance`. A clock belongs to one thread; any may read it.
    """

    def __init__(self, now: int | None = None) -> None:
        self.now = time.time_ns() // 1_000_000 if now is None else now
        self._followers: list[Callable[[], object]] = []

    def __call__(self) -> int:
        return self.now

    def __repr__(self) -> str:
        return f"<kstore.testing.ManualClock at {self.now} ms>"

    def advance(self, by: int | timedelta) -> int:
        """Move by milliseconds or a `timedelta`, back if negative, and do what is due then; the new now.

        The logs and stores of the fixtures then do their housekeeping: retention, compaction, flushes, deletions. What
        that raises is raised here.
        """
        self.now += by // timedelta(milliseconds=1) if isinstance(by, timedelta) else by
        for follower in tuple(self._followers):
            follower()
        return self.now

    @contextmanager
    def followed_by(self, action: Callable[[], object]) -> Iterator[None]:
        """Call `action` after each move, while the block runs."""
        self._followers.append(action)
        try:
            yield
        finally:
            self._followers.remove(action)
