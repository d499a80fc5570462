# cython: embedsignature=False, annotation_typing=False
"""`Log.append` and the append of a commit marker, compiled.

Calling a Python function with keyword defaults takes as long as encoding a record, so the functions are compiled.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kstore.log.segments._producer_state cimport ProducerTable
from kstore.log.writing._appender cimport Appender

from kstore.log.record_append import append_record


@cython.binding(True)                    # a method of a Python class
def append(self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *,
           timestamp: int | datetime | None = None,
           headers: Headers | None = None, sync: bool = False,
           expected_offset: int | None = None, leader_epoch: int | None = None) -> int:
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
    cdef int64_t offset, stamp = 0
    if leader_epoch is None:
        appender = self._appender
        if appender is not None:
            offset = (<Appender?> appender)._append(value, key, timestamp, headers, expected_offset, &stamp)
            if offset >= 0:
                if sync:
                    self._flush()
                return offset
    offset = append_record(self._leading(), value, key, timestamp, headers, leader_epoch, expected_offset)
    if sync:
        self.flush()
    return offset


def append_commit(log: Log, int64_t now_ms, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
                  int transaction_version) -> bool:
    """Append the marker that commits a producer's open transaction; `now_ms` is the current time.

    Returns False, with nothing changed, if more work is due or the marker is refused: the caller then calls
    `Log.append_marker`, which does that work or raises.
    """
    appender = log._appender
    if appender is None:
        return False
    return (<Appender?> appender)._append_commit(<ProducerTable?> log._writer.producers.table, now_ms, producer_id,
                                                 producer_epoch, coordinator_epoch, transaction_version) >= 0
