"""The search by time, compiled: most of its time would else be Python's, as it reads little."""

from datetime import datetime

from kstore.log.viewing.view import View
from kstore.types import TimestampOffset

def offset_for_timestamp(view: View, timestamp: int | datetime) -> TimestampOffset | None:
    """Find the lowest offset at or above the log start whose timestamp is at or after `timestamp` (SEMANTICS 5.5).

    `timestamp` is as `times.moment` takes it. Unlike Kafka's, the search goes on behind the first candidate segment
    (SEMANTICS 5.6). The segments that a search has passed are noted, so that a later one need not ask each of them
    again.
    """
