"""The search by time. Compiled, because it reads so little that Python code would take most of the time."""

from datetime import datetime
from typing import Any

from typing_extensions import disjoint_base

from kstore.log.reading.view import View
from kstore.types import TimestampOffset

def offset_for_timestamp(self: Any, timestamp: int | datetime) -> TimestampOffset | None:
    """Find the lowest offset whose timestamp is at or after `timestamp`.

    Args:
        timestamp: Milliseconds since the epoch, or a `datetime` with a time zone, rounded down to the millisecond as
            in an append.

    Returns:
        The record's timestamp and offset; None if there is no such record.

    Raises:
        InvalidTimestampError: If the `datetime` has no time zone.
        CorruptRecordError: If the header of a batch is malformed.

    Example:
        >>> from datetime import UTC, datetime
        >>> with kstore.Log.open("data/degrees-0") as degrees:
        ...     info = degrees.append_columns([b"20", b"21"], timestamps=[1_764_000_000_000, 1_764_000_060_000])
        ...     print(degrees.offset_for_timestamp(datetime(2025, 11, 24, 16, 0, 30, tzinfo=UTC)))
        TimestampOffset(timestamp=1764000060000, offset=1)
    """

@disjoint_base
class ActiveEnd:
    """Base class of the appender: says where the active segment ends."""
    def published_bytes(self, base_offset: int) -> int:
        """Return the size of the segment with this base offset if it is the active one, else -1."""

def first_at(view: View, timestamp: int | datetime, least_offset: int = -1) -> TimestampOffset | None:
    """Find the lowest offset at or above the log start whose timestamp is at or after `timestamp` (SEMANTICS 5.5).

    `timestamp` is as in `times.moment`. Unlike in Kafka, the search continues after the first candidate segment
    (SEMANTICS 5.6). The greatest timestamps of the searched segments are saved for later searches. Records below
    `least_offset` are left out.
    """
