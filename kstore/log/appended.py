"""What one call has stored in a log by now, and how an exception that ends the call says it."""

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
    """What one call has stored in one log by now."""

    first = last = max_timestamp = -1

    def __init__(self, caution: TimestampCaution | None = None) -> None:
        """The calls to several logs at once share a `caution`, so that they warn once."""
        self.caution = TimestampCaution() if caution is None else caution

    def add(self, first: int, last: int, max_timestamp: int) -> None:
        """Note that the records from `first` to `last` are in the log; to note them twice is no error."""
        if self.first < 0:
            self.first = first
        self.last = last
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def info(self, config: LogConfig, now_ms: int) -> AppendInfo:
        """All that was stored, in a log with this configuration, by a call that began at `now_ms`."""
        if config.message_timestamp_type == "LogAppendTime" and self.last >= 0:
            return AppendInfo(self.first, self.last, now_ms, now_ms)
        return AppendInfo(self.first, self.last, self.max_timestamp)


def with_appended(error: E, appended: AppendInfo | dict[int, AppendInfo], where: str) -> E:
    """Return the error, and have it say what its call has stored: in `appended`, and in a note if it is not kstore's.

    Every exception gets this: a `TypeError`, one of the caller's iterator, `KeyboardInterrupt`, `GeneratorExit`. One
    that takes no attributes has the note alone. One of a call that has stored nothing stays as it is.
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
