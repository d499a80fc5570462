# cython: language_level=3
"""The state of a log's producers, for the appender."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kstore.log.segments._last_stable_offset cimport OpenTransactions

cdef enum:
    MOST_KEPT = 5                  # batches kept of a producer, to recognize a repeated one (SEMANTICS 9.1)
    MARKER_BYTES = 78              # size of a batch that ends a transaction


cdef struct Kept:
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta


cdef struct Entry:
    int64_t producer_id
    int64_t timestamp
    int64_t txn_first              # -1: no open transaction
    int32_t coordinator_epoch
    int16_t epoch
    int16_t count                  # of `kept`, oldest first
    Kept kept[MOST_KEPT]


cdef struct Head:
    # The fields of a batch's header that concern producers.
    int64_t base_offset, last_offset, max_timestamp, producer_id
    int32_t first_sequence, last_sequence, delta, count
    int16_t epoch, attributes


cdef class ProducerTable:
    cdef Entry *_entries
    cdef Py_ssize_t _count, _room
    cdef int32_t *_slots           # number of an entry plus 1; 0: free
    cdef Py_ssize_t _slots_count   # a power of two
    cdef Entry *_staged
    cdef Py_ssize_t _staged_count, _staged_room
    cdef dict _staged_at           # producer id -> index in `_staged`
    cdef readonly OpenTransactions open
    cdef list _begun, _completed

    cdef Entry *_find(self, int64_t producer_id) noexcept
    cdef void _enter(self, Py_ssize_t number) noexcept
    cdef int _hash(self, Py_ssize_t slots) except -1
    cdef int _reserve(self, Py_ssize_t more) except -1
    cdef Entry *_add(self, int64_t producer_id) except NULL
    cdef void _begin(self, Entry *e, int64_t producer_id) noexcept
    cdef Entry *_stage_of(self, int64_t producer_id) except NULL
    cdef int _apply(self, Entry *e, const Head *h, const uint8_t *p, Py_ssize_t n, int origin, object version,
                    bint staging) except -1
    cdef int _check_sequence(self, const Entry *e, const Head *h) except -1
    cdef int _check_marker(self, const Entry *e, const Head *h, int32_t coordinator_epoch, int origin,
                           object version) except -1
    cdef int _refuse_epoch(self, const Head *h, int16_t known, bint only_say) except -1
    cdef int _complete(self, int64_t producer_id, int64_t first, int64_t last, bint aborted, bint staging) except -1
    cdef Py_ssize_t _stage_all(self, object view, Py_ssize_t end, int64_t offset, int origin) except -1
    cpdef publish(self)
    cpdef drop(self)
    cdef int _replay_one(self, Entry *e, const Head *h, const uint8_t *p, Py_ssize_t n) except -1
    cdef tuple _state_of(self, const Entry *e)

    cdef Entry *_ready(self, int64_t producer_id, int16_t epoch, int32_t sequence, bint transactional) noexcept
    cdef void _take(self, Entry *e, int64_t offset, int64_t timestamp, int32_t sequence, bint transactional) noexcept
    cdef Entry *_committable(self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, int version) noexcept
    cdef void _commit(self, Entry *e, int64_t timestamp, int16_t epoch, int32_t coordinator_epoch) noexcept


cdef void encode_marker(uint8_t *p, int64_t timestamp, int64_t producer_id, int16_t producer_epoch, bint commit,
                        int32_t coordinator_epoch, bint log_append_time) noexcept
