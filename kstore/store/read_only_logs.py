"""`LogReaders`: the logs of a store that only reads, each opened when it is first needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import NoReturn, Protocol

from kstore.base import times
from kstore.errors import ReadOnlyError
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.catalog import Entry
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata


class Logs(Protocol):
    """The logs of a store: a `LogManager`, or the `LogReaders` of a store that only reads."""

    def log(self, entry: Entry) -> Log:
        """Return the open log of a partition, opened if necessary."""

    def writing(self) -> LogManager:
        """Return the manager, for a change; raise `LogClosedError` when closed, `ReadOnlyError` if mode is "r"."""

    def now(self) -> int:
        """Return milliseconds since the epoch, by the store's clock."""

    def leading(self) -> LogManager:
        """Return the manager, for a client's change; raise as `writing` does, and `NotLeaderError` in a follower."""


class LogReaders:
    """The logs of a store that only reads. Thread-safe."""

    def __init__(self, metadata: Metadata, clock: Callable[[], int] | None = None) -> None:
        self._metadata = metadata
        self._clock = times.checked_clock(clock)

    def now(self) -> int:
        """Return milliseconds since the epoch, by the store's clock."""
        return time.time_ns() // 1_000_000 if self._clock is None else self._clock()

    def log(self, entry: Entry) -> Log:
        log = entry.log
        if log is None or log.closed:
            with entry.opening:
                log = entry.log
                if log is None or log.closed:
                    self._metadata.refuse_if_closed()
                    if entry.failure is not None:
                        raise copy(entry.failure)
                    hosted = HostedLog.open_to_read(
                        entry.path, self._metadata.config_of(entry.topic), self._metadata.broker, self._clock
                    )
                    log = entry.log = hosted.log
        return log

    def writing(self) -> NoReturn:
        """Raise `ReadOnlyError`: this store changes nothing."""
        self._metadata.refuse_if_closed()
        paths = ", ".join(self._metadata.paths)
        raise ReadOnlyError(f"the store at {paths} is open with mode='r' and changes nothing; open it with mode='a'")

    def leading(self) -> NoReturn:
        """Raise `ReadOnlyError`: this store changes nothing."""
        self.writing()

    def close(self) -> None:
        for entry in self._metadata.catalog.entries():
            if entry.log is not None:
                entry.log.close()
