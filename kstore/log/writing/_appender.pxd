# cython: language_level=3
"""The writable end of a log, for the module that appends with a producer's numbers."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kstore.log.segments._producer_state cimport ProducerTable
from kstore.log.reading._timestamp_lookup cimport ActiveEnd


# Returned by `append` and `commit` instead of an offset. The ROLL codes are in the order of SEMANTICS 2.2.
cpdef enum Code:
    DONE = 0
    BUSY = -1
    ROLL_SIZE = -2
    ROLL_TIME = -3
    ROLL_OFFSET_INDEX_FULL = -4
    ROLL_TIME_INDEX_FULL = -5
    ROLL_OFFSET_RANGE = -6
    DUE = -7
    SLOW = -8
    SPLIT = -9


# Write all bytes at a position. Return 0, or the errno that stopped it. Goes through the hook of `set_pwrite_hook`.
cdef int write_all(int fd, const uint8_t *p, Py_ssize_t n, int64_t position) noexcept nogil


cdef struct Bytes:
    const uint8_t *p
    Py_ssize_t n           # -1: null


cdef struct Stamp:
    # The producer's fields of a batch.
    int64_t producer_id
    int16_t epoch
    int32_t sequence
    bint transactional
    const bint *held       # set while other threads may not append; NULL for the thread that has set it


cdef struct Tail:
    # The values that an append changes, kept separate from the published ones until its bytes are in the file.
    int64_t size
    int64_t next_offset
    int64_t since_index
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t first_timestamp
    int64_t offset_entries
    int64_t time_entries
    int64_t last_time_entry


cdef class Appender(ActiveEnd):
    cdef Tail tail
    cdef int log_fd, offset_fd, time_fd       # -1 if nothing may be written
    cdef object log                           # keeps log_fd open
    cdef bint is_active                       # `tail` is that of the log's active segment, with descriptors or without
    cdef public bint warned                   # of a timestamp that looks like seconds
    cdef readonly bint parked                 # temporarily without descriptors
    cdef readonly int64_t base_offset
    cdef int64_t offset_max, time_max, offset_secured, time_secured
    cdef int64_t segment_bytes, wait_ms, interval
    cdef public int64_t created_ms
    cdef public bint busy, epoch_assigned
    cdef bint plain
    cdef public int32_t leader_epoch
    cdef int64_t max_message_bytes, before_max_ms, after_max_ms
    cdef bint log_append_time, key_required
    cdef object clock, offset_index, time_index
    cdef public int64_t due_ms, flush_at
    cdef public int waiters
    cdef public object on_publish  # type: Callable[[], None]
    cdef public object on_error  # type: Callable[[StorageError], object] | None
    cdef uint8_t *one
    cdef Py_ssize_t one_bytes
    cdef uint8_t *offset_staged
    cdef uint8_t *time_staged
    cdef Py_ssize_t offset_room, time_room

    cdef void _free(self) noexcept
    cdef int64_t _now(self) except? -1
    cdef int _check(self, int64_t stamp, int64_t now, Py_ssize_t key_bytes) except -1
    cdef Py_ssize_t _encode_one(self, Bytes v, Bytes k, bytes headers, int64_t stamp, int64_t now,
                                const Stamp *numbers) except -1
    cdef int _make_room(self, int64_t n) except -1
    cdef int _should_roll(self, const Tail *t, int64_t n, int64_t timestamp, int64_t last_offset,
                          int64_t now) noexcept nogil
    cdef bint _stage_index_entries(self, Tail *t, int64_t last_offset) except -1
    cdef uint8_t *_room(self, uint8_t **buffer, Py_ssize_t *room, Py_ssize_t at, Py_ssize_t n) except NULL
    cdef int _commit(self, uint8_t *p, Py_ssize_t n, bint follower, Py_ssize_t *consumed, int64_t now,
                     bint locked, bint rolled) except? -1
    cdef int _roll_for_all(self, const Tail *t, const uint8_t *p, Py_ssize_t n, int64_t now) noexcept nogil
    cdef int _write(self, const Tail *t, const uint8_t *p, Py_ssize_t n) noexcept nogil
    cdef int _secure(self, int fd, int64_t *secured, int64_t end, int64_t start, int64_t limit) noexcept nogil
    cdef int64_t _append(self, object value, object key, object timestamp, object headers, object expected_offset,
                         int64_t *stamp) except? -99
    cdef int64_t _append_numbered(self, ProducerTable table, object value, object key, object timestamp,
                                  const Stamp *numbers, int64_t *stamp) except? -99
    cdef int64_t _append_commit(self, ProducerTable table, int64_t now, int64_t producer_id, int16_t epoch,
                                int32_t coordinator_epoch, int version) except? -99
    cdef int64_t _given(self, object timestamp) except? -1
    cdef int _tell(self) except -1
