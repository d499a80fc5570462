"""Logs and stores for one test: they do not wait for the disk, and are closed and verified at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from kstore.disk import fs
from kstore.errors import LogClosedError
from kstore.log.log import Log
from kstore.store.store import Store
from kstore.testing.clock import ManualClock
from kstore.tools.check.verify import verify

Path: TypeAlias = str | os.PathLike[str]

PARTITION = "test-0"
"""The name of the directory of a test's log."""

# A store checks retention at every move of the clock instead of at Kafka's intervals.
_AT_ONCE = {"log_retention_check_interval_ms": 1, "log_initial_task_delay_ms": 0}


@contextmanager
def checked_log(directory: Path, clock: ManualClock | None = None, **settings: Any) -> Iterator[Log]:
    """Open the log `test-0` for the `with` block; then close it and verify the directory.

    Syncs return without waiting for the disk: a test's data need not survive the machine. The log does its housekeeping
    and retention when the clock is moved.

    Args:
        directory: The directory in which the log's directory is created.
        clock: The clock of the log; a new one if None.
        **settings: Keyword arguments of `Log.open`, such as `config`.

    Yields:
        The log.

    Raises:
        AssertionError: At the end, if `kstore verify` finds an error.

    Example:
        >>> from kstore.testing import checked_log
        >>> with checked_log(".", segment_bytes=1000) as log:
        ...     print(log.append(b"3 apples"))
        0
    """
    __tracebackhide__ = True  # by pytest
    with without_syncs(), opened_log(directory, clock or ManualClock(), **settings) as log:
        yield log
    assert_sound(directory)


@contextmanager
def checked_store(
    directory: Path, clock: ManualClock | None = None, *, topics: Mapping[str, int] | None = None, **settings: Any
) -> Iterator[Store]:
    """Open a store for the `with` block; then close it and verify the directory.

    Syncs return without waiting for the disk. The store has no background threads: it does its housekeeping when the
    clock is moved, and in `run_housekeeping`. It checks retention each time unless `settings` say otherwise.

    Args:
        directory: The directory of the store.
        clock: The clock of the store; a new one if None.
        topics: Topics to create if they do not exist, with their numbers of partitions.
        **settings: Keyword arguments of `Store.open`.

    Yields:
        The store.

    Raises:
        AssertionError: At the end, if `kstore verify` finds an error.

    Example:
        >>> from kstore.testing import checked_store
        >>> with checked_store(".", topics={"orders": 2}) as store:
        ...     print(store.append("orders", b"3 apples").offset)
        0
    """
    __tracebackhide__ = True
    with without_syncs(), opened_store(directory, clock or ManualClock(), topics=topics, **settings) as store:
        yield store
    assert_sound(directory)


@contextmanager
def opened_log(directory: Path, clock: ManualClock, **settings: Any) -> Iterator[Log]:
    """Open the log `test-0` in `directory` as a follower of the clock."""

    def keep_house() -> None:
        with suppress(LogClosedError):  # if the test has closed the log
            log.apply_retention()
            log.run_housekeeping()

    with Log.open(os.path.join(directory, PARTITION), clock=clock, **settings) as log, clock.followed_by(keep_house):
        yield log


@contextmanager
def opened_store(
    directory: Path, clock: ManualClock, *, topics: Mapping[str, int] | None = None, **settings: Any
) -> Iterator[Store]:
    """Open a store in `directory` as a follower of the clock, and create the topics that do not exist."""

    def keep_house() -> None:
        with suppress(LogClosedError):
            store.run_housekeeping()

    chosen = {"background": False, "clock": clock, **_AT_ONCE, **settings}
    with Store.open(directory, **chosen) as store, clock.followed_by(keep_house):
        for topic, partitions in (topics or {}).items():
            if topic not in store.topics:
                store.create_topic(topic, partitions)
        yield store


def assert_sound(directory: Path) -> None:
    """Verify a directory as `kstore verify --records` does.

    Args:
        directory: The directory of a store, or the parent of a partition's directory.

    Raises:
        AssertionError: If an error is found; it lists the findings.

    Example:
        >>> from kstore.testing import assert_sound
        >>> with kstore.Log.open("data/orders-0") as log:
        ...     offset = log.append(b"3 apples")
        >>> assert_sound("data")
    """
    __tracebackhide__ = True
    report = verify([directory], deep=True, threads=1)
    wrong = [finding.in_one_line() for finding in report.findings if finding.severity == "error"]
    if wrong:
        raise AssertionError("\n".join((f"{os.fspath(directory)} is not sound at the end of the test:", *wrong)))


@contextmanager
def without_syncs() -> Iterator[None]:
    """Make all syncs of this process return without waiting for the disk while the block runs."""
    global _users
    if not _users:
        _real.update((name, getattr(fs, name)) for name in ("fsync", "fdatasync", "sync_directory"))
        for name in _real:
            setattr(fs, name, _do_not_wait)
    _users += 1
    try:
        yield
    finally:
        _users -= 1
        if not _users:
            for name, function in _real.items():
                setattr(fs, name, function)


_users = 0
_real: dict[str, Any] = {}


def _do_not_wait(what: int | Path, *, missing_ok: bool = False) -> None:
    """Replace a sync of a file or a directory."""
