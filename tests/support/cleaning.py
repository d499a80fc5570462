"""Logs to be cleaned: opened small, filled with few keys, cleaned for one round, and read as a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kstore
from kstore.log.compaction.dirtiness import survey
from kstore.log.compaction.passes import CleanerLimits, compact
from kstore.log.hosted_log import HostedLog
from kstore.log.writing.cleaning_guard import State
from kstore.types import CompactionStats
from tests.conftest import ManualClock

SECONDS = 60  # a wait that lasts as long has failed

LIMITS = CleanerLimits(1 << 20, 4096, 8192)


def open_log(root: Path, clock: ManualClock, **settings: Any) -> kstore.Log:
    settings = {"cleanup_policy": "compact", "internal_segment_bytes": 2000, "index_interval_bytes": 100, **settings}
    return kstore.Log.open(root / "events-0", clock=clock, **settings)


def fill(log: kstore.Log, clock: ManualClock, count: int, keys: int) -> None:
    for number in range(count):
        clock.advance(1)
        log.append(None if number % 17 == 0 else b"value %d" % number, key=b"key %d" % (number % keys))


def clean(log: kstore.Log, limits: CleanerLimits = LIMITS) -> CompactionStats:
    """One round over all that is cleanable."""
    writer = HostedLog(log).writer
    line = writer.housekeeping.housekeeper.first_dirty(writer.partition)
    return compact(writer, survey(writer, log.config, writer.now(), line, lag=False), limits)


def newest(log: kstore.Log) -> dict[bytes, bytes | None]:
    """The value of the newest record of each key."""
    return {bytes(record.key or b""): record.value and bytes(record.value) for record in log.read(log.log_start_offset)}


def unfinished(directory: Path) -> list[str]:
    """Names of files that a cleaning has left."""
    return sorted(path.name for path in directory.iterdir() if path.name.endswith((".cleaned", ".swap")))


class Once:
    """Does a work at one of the calls of `progress`."""

    def __init__(self, work: Callable[[], object], call: int = 5) -> None:
        self._work, self._left = work, call

    def __call__(self, done: int, total: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._work()


class Aborting:
    """Begins a work in another thread, and lets the pass go on when it is to be aborted for that."""

    def __init__(self, log: kstore.Log, work: Callable[[], object]) -> None:
        self.future: Future[object] | None = None
        self._log, self._work = log, work
        self._pool = ThreadPoolExecutor(1)

    def __call__(self) -> None:
        self.future = self._pool.submit(self._work)
        while HostedLog(self._log).writer.cleaning.state is not State.ABORTED:
            assert not self.future.done(), "it has not waited for the pass to end"

    def finish(self) -> object:
        assert self.future is not None
        try:
            return self.future.result(SECONDS)
        finally:
            self._pool.shutdown()
