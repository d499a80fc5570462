"""`Log.append` and the append of a commit marker, compiled."""

from datetime import datetime
from typing import Any

from _typeshed import ReadableBuffer

from kstore.log.log import Log
from kstore.types import Headers

def append(
    self: Any,
    value: ReadableBuffer | None,
    key: ReadableBuffer | None = None,
    *,
    timestamp: int | datetime | None = None,
    headers: Headers | None = None,
    sync: bool = False,
    expected_offset: int | None = None,
    leader_epoch: int | None = None,
) -> int:
    """Append one record in its own batch and return its offset.

    If this call raises, the log is unchanged. Exception: if the sync of `sync=True` fails, the record is in the log.

    Args:
        value: The record's value; None is a tombstone.
        key: The record's key, or None.
        timestamp: Milliseconds since the epoch, or a `datetime` with a time zone, rounded down to the millisecond; now
            if omitted. -1 means no timestamp.
        headers: The record's headers: a mapping of names to values, or pairs if a name occurs more than once.
        sync: Return only when the record is on the disk.
        expected_offset: Append the record only if it gets this offset. A caller can thus append only if nothing was
            appended since it read the log.
        leader_epoch: The leader epoch to append in; the latest one of the log if omitted.

    Returns:
        The offset of the record.

    Raises:
        UnexpectedOffsetError: If the record would not get `expected_offset`; the error says which offset it would get.
        RecordTooLargeError: If the batch exceeds `max.message.bytes`.
        RecordBatchTooLargeError: If the batch exceeds `segment.bytes`.
        InvalidTimestampError: If the timestamp is not allowed.
        InvalidRecordError: If the record breaks a rule of the topic, such as a key that compaction requires.
        TypeError: If the key or value is a `str` or has another wrong type.
        StorageError: If the system refuses an operation.
        LogClosedError: If the log is closed or open in mode "r".
        NotLeaderError: If the log is a follower's.

    Example:
        >>> log.append(b"2 plums", key=b"carol", headers={"trace": b"1"}, sync=True)
        3
    """

def append_commit(
    log: Log, now_ms: int, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int
) -> bool:
    """Append the marker that commits a producer's open transaction; `now_ms` is the current time.

    Returns False, with nothing changed, if more work is due or the marker is refused: the caller then calls
    `Log.append_marker`, which does that work or raises.
    """
