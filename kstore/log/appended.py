"""Tracks which records a call has stored in a log, and adds their offsets to the exception that ends the call."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from kstore.config.cautions import TimestampCaution
from kstore.config.log_config import LogConfig
from kstore.errors import KStoreError
from kstore.types import AppendInfo

E = TypeVar("E", bound=BaseException)
_MOST_IN_NOTE = 8  # partitions


class Stored:
    """The offsets and the greatest timestamp that one call has stored in one log so far."""

    first = last = max_timestamp = -1

    def __init__(self, caution: TimestampCaution | None = None) -> None:
        """If a call appends to several logs, its `Stored` objects share a `caution`, so that the call warns once."""
        self.caution = TimestampCaution() if caution is None else caution

    def add(self, first: int, last: int, max_timestamp: int) -> None:
        """Note that the records from `first` to `last` are in the log; a record may be noted twice."""
        if self.first < 0:
            self.first = first
        self.last = last
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def info(self, config: LogConfig, now_ms: int) -> AppendInfo:
        """Return the stored offsets and timestamps of a call that started at `now_ms`."""
        if config.message_timestamp_type == "LogAppendTime" and self.last >= 0:
            return AppendInfo(self.first, self.last, now_ms, now_ms)
        return AppendInfo(self.first, self.last, self.max_timestamp)


def with_appended(error: E, appended: AppendInfo | dict[int, AppendInfo], where: str) -> E:
    """Set the attribute `appended` of `error`, add a note if it is not a kstore exception, and return it.

    `error` may be any exception: `TypeError`, exceptions of the caller's iterator, `KeyboardInterrupt`,
    `GeneratorExit`. An exception that accepts no attributes gets only the note. If nothing was stored, only kstore
    exceptions are changed.
    """
    by_partition = appended if isinstance(appended, dict) else {-1: appended}
    stored = {partition: info for partition, info in by_partition.items() if info.last_offset >= 0}
    if not stored and not isinstance(error, KStoreError):
        return error
    with suppress(Exception):
        error.appended = appended  # type: ignore[attr-defined]
    if isinstance(error, KStoreError):
        return error
    parts = [
        ("" if partition < 0 else f"partition {partition}: ") + f"offsets {info.first_offset} to {info.last_offset}"
        for partition, info in list(stored.items())[:_MOST_IN_NOTE]
    ]
    if len(stored) > _MOST_IN_NOTE:
        parts.append(f"and {len(stored) - _MOST_IN_NOTE} more partitions")
    with suppress(Exception):
        error.add_note(f"kstore has stored before, in {where}: {', '.join(parts)}")
    return error
