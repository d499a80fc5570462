# cython: embedsignature=False, annotation_typing=False
"""`Log.append` in C: an append is so short that a Python function, and the defaults of its keywords, which Python looks
up one by one, would take as long as the encoding of the record. The marker of a commit is as short.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kstore.log.segments._producer_state cimport ProducerTable
from kstore.log.writing._appender cimport Appender

from kstore.log.record_append import append_record


@cython.binding(True)                    # a method of a class of Python
def append(self, value: ReadableBuffer | None, key: ReadableBuffer | None = None, *,
           timestamp: int | datetime | None = None,
           headers: Headers | None = None, sync: bool = False,
           expected_offset: int | None = None, leader_epoch: int | None = None) -> int:
    """Append one record as a batch of its own and return its offset.

    `timestamp` is in milliseconds (None: now; -1: none), or a `datetime` with a time zone, which counts down to its
    millisecond. With `sync=True` it is on the disk when this returns. With
    an `expected_offset` the record is stored if it gets that offset, else `UnexpectedOffsetError` says which it
    would have got: so an append can depend on what its caller has read.

    Raises `TypeError` for a `str`, `RecordTooLargeError`, `RecordBatchTooLargeError`, `InvalidTimestampError`,
    `InvalidRecordError`, `StorageError`, `LogClosedError`, `NotLeaderError` in a follower; the log is as it was.
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
    """Append the marker that commits a producer's open transaction, of a time that was read just now.

    False where there is more to do, or something against it: nothing has changed then, and `Log.append_marker` does
    or says it.
    """
    appender = log._appender
    if appender is None:
        return False
    return (<Appender?> appender)._append_commit(<ProducerTable?> log._writer.producers.table, now_ms, producer_id,
                                                 producer_epoch, coordinator_epoch, transaction_version) >= 0
