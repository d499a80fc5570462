"""The search by time, compiled: most of its time would else be Python's, as it reads little."""

from datetime import datetime
from typing import Any

from typing_extensions import disjoint_base

from kstore.log.reading.view import View
from kstore.types import TimestampOffset

def offset_for_timestamp(log: Any, timestamp: int | datetime) -> TimestampOffset | None:
    """Find the lowest offset whose timestamp is at or after `timestamp`; None when there is none.

    `timestamp` is in milliseconds, or a `datetime` with a time zone, which counts down to its millisecond, as when
    it is appended. Raises `InvalidTimestampError` for one without a time zone.
    """

@disjoint_base
class ActiveEnd:
    """Where the active segment ends."""
    def published_bytes(self, base_offset: int) -> int:
        """The size of the segment with this base if it is the active one, else -1."""

def first_at(view: View, timestamp: int | datetime) -> TimestampOffset | None:
    """Find the lowest offset at or above the log start whose timestamp is at or after `timestamp` (SEMANTICS 5.5).

    `timestamp` is as `times.moment` takes it. Unlike Kafka's, the search goes on behind the first candidate segment
    (SEMANTICS 5.6). The segments that a search has passed are noted, so that a later one need not ask each of them
    again.
    """
