"""Says when a segment that may be deleted is deleted: who checks, and when (SEMANTICS 6.17, 6.18)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from kstore.base import times
from kstore.disk import fs
from kstore.explained.explanation import CheckTimes
from kstore.files import names, topic_files
from kstore.files.broker_directory import BROKER_FILE
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from kstore.config.broker_config import BrokerConfig
    from kstore.config.log_config import LogConfig
    from kstore.log.reading.read_only_view import ReadOnlyView


def checks_of(view: Writer | ReadOnlyView, config: LogConfig, broker: BrokerConfig) -> CheckTimes:
    """Return who checks a log, and when. `broker` has the periods that were given for a reading log, or the defaults.

    A log that is open for writing knows it. Of a directory that is read, a file of a broker or of a store says that one
    of them checks it: a log that is opened alone makes neither (`partition.metadata` in the directory; in the parent
    `meta.properties` or `kstore-topics.json`).
    """
    if isinstance(view, Writer):
        return view.housekeeping.housekeeper.checks(view.partition, compacts=config.compacts)
    if not _is_hosted(view):
        return CheckTimes("caller", None, None)
    if config.compacts and broker.log_cleaner_enable and broker.log_cleaner_threads > 0:
        return CheckTimes("cleaner", None, max(broker.log_cleaner_backoff_ms, 1))
    return CheckTimes("broker", None, broker.log_retention_check_interval_ms)


def _is_hosted(view: ReadOnlyView) -> bool:
    marks = (
        os.path.join(view.directory, names.PARTITION_METADATA),
        os.path.join(view.root, BROKER_FILE),
        os.path.join(view.root, topic_files.TOPICS_FILE),
    )
    return any(fs.exists(mark) for mark in marks)


class Deadline(NamedTuple):
    """The earliest and the latest check that deletes a segment, and when its bytes have left the disk at the latest."""

    earliest_ms: int | None
    latest_ms: int | None
    freed_ms: int | None


NEVER = Deadline(None, None, None)


def deadline(checks: CheckTimes, due_ms: int, now_ms: int, delay_ms: int) -> Deadline:
    """Return when a segment goes that may be deleted from `due_ms` on.

    The files stay `delay_ms` longer (`file.delete.delay.ms`).
    """
    interval_ms, next_ms = checks.interval_ms, checks.next_ms
    if interval_ms is None:
        return Deadline(due_ms, None, None)
    if next_ms is not None and due_ms <= max(next_ms, now_ms):
        earliest_ms = latest_ms = max(next_ms, now_ms)  # an overdue check is made as soon as housekeeping runs
    elif next_ms is not None and checks.by != "cleaner":
        skipped = -((next_ms - due_ms) // interval_ms)  # at a fixed rate
        earliest_ms = latest_ms = next_ms + skipped * interval_ms
    else:  # a pass of the cleaner begins so long after the end of the one before
        earliest_ms, latest_ms = due_ms, due_ms + interval_ms
    return Deadline(earliest_ms, latest_ms, latest_ms + delay_ms)


def told(checks: CheckTimes, when: Deadline) -> str:
    """Return who deletes a segment and when, as the beginning of a sentence that goes on with "deletes it"."""
    if checks.by == "caller":
        return "a call of apply_retention"
    what = "pass of the cleaner" if checks.by == "cleaner" else "check"
    if when.earliest_ms == when.latest_ms:
        return f"the {what} at {times.show(when.earliest_ms)}"
    return f"a {what} between {times.show(when.earliest_ms)} and {times.show(when.latest_ms)}"
