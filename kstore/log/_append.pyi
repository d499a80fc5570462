"""`Log.append` in C: an append is so short that a Python function, and the defaults of its keywords, which Python looks
up one by one, would take as long as the encoding of the record. The marker of a commit is as short.
"""

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
    """Append one record as a batch of its own and return its offset.

    `timestamp` is in milliseconds (None: now; -1: none), or a `datetime` with a time zone, which counts down to its
    millisecond. With `sync=True` it is on the disk when this returns. With
    an `expected_offset` the record is stored if it gets that offset, else `UnexpectedOffsetError` says which it
    would have got: so an append can depend on what its caller has read.

    Raises `TypeError` for a `str`, `RecordTooLargeError`, `RecordBatchTooLargeError`, `InvalidTimestampError`,
    `InvalidRecordError`, `StorageError`, `LogClosedError`, `NotLeaderError` in a follower; the log is as it was.
    """

def append_commit(
    log: Log, now_ms: int, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int
) -> bool:
    """Append the marker that commits a producer's open transaction, of a time that was read just now.

    False where there is more to do, or something against it: nothing has changed then, and `Log.append_marker` does
    or says it.
    """
