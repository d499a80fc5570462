# cython: language_level=3
"""Declares `Packer`, for modules that write records into it."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "record.h" nogil:
    int64_t ks_short_size(uint64_t z) noexcept
    uint64_t ks_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size,
                          int64_t headers_size) noexcept
    uint8_t *ks_put_record(uint8_t *p, uint64_t body, int64_t timestamp_delta, int64_t offset_delta, const void *key,
                           int64_t key_size, const void *value, int64_t value_size, const void *headers,
                           int64_t headers_size) noexcept


cdef bytes common_headers(object headers)


cdef class Packer:
    cdef uint8_t *data                 # finished batches, then the open one
    cdef Py_ssize_t finished           # bytes of finished batches
    cdef readonly int batches
    """The number of finished batches in `buffer`."""
    cdef readonly int64_t records
    """The number of records packed over the packer's life."""
    cdef readonly int64_t max_timestamp
    """The greatest timestamp of the finished batches in `buffer`, -1 if none."""
    cdef public int64_t now_ms
    """The timestamp of records that have none; timestamp limits are relative to it."""

    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _least             # the least capacity that is not 0
    cdef Py_ssize_t _used              # bytes of the finished batches and the open one
    cdef Py_ssize_t _exports
    cdef bint _busy
    cdef int64_t _batch_bytes
    cdef int64_t _max_batch_bytes
    cdef int _codec
    cdef object _level
    cdef int16_t _attributes
    cdef int64_t _producer_id
    cdef int16_t _producer_epoch
    cdef int32_t _base_sequence
    cdef int64_t _before_max_ms
    cdef int64_t _after_max_ms
    cdef bint _require_key
    cdef bint _single
    cdef bint _draft                   # its batches are compressed into another packer, and need no checksum

    cdef int32_t _count                # records in the open batch
    cdef int64_t _base_timestamp
    cdef int64_t _open_max
    cdef uint32_t _crc                 # of the first `_summed` bytes of the open batch's records
    cdef Py_ssize_t _summed
    cdef int64_t _closing              # index of the first record of the section being compressed

    # For a caller in C: enter(); add(...) and close_batch(); leave(). After an error: drop_open(), then leave().
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int add(self, object value, object key, object timestamp, object headers) except -1
    cdef int close_batch(self) except -1
    cdef void drop_open(self) noexcept

    # Releases unused memory. No view of the buffer may exist.
    cdef int shrink(self) except -1

    # For a caller in C that writes records into `data`: adds them to the checksum while the CPU's cache holds them.
    cdef void sum_up(self) noexcept nogil

    cdef int _take(self, object item) except -1
    cdef int _put(self, const char *key, Py_ssize_t key_size, const char *value, Py_ssize_t value_size) except -1
    cdef int _open(self, int64_t timestamp) except -1
    cdef int _clear(self) except -1
    cdef int _append(self, const void *key, Py_ssize_t key_size, const void *value, Py_ssize_t value_size,
                     int64_t timestamp, const void *headers, Py_ssize_t headers_size) except -1
    cdef int _reserve(self, Py_ssize_t extra) except -1
    cdef void _write_header(self, Py_ssize_t start, Py_ssize_t size, int32_t count, int64_t base_timestamp,
                            int64_t max_timestamp) noexcept nogil
    cdef int _close_compressed(self) except -1
    cdef int _pack_section(self, bytes section, int32_t count, int64_t base_timestamp, int64_t max_timestamp) except -1
    cdef int _put_section(self, const uint8_t *section, Py_ssize_t size, const uint8_t *packed, Py_ssize_t packed_size,
                          int32_t count, int64_t base_timestamp, int64_t max_timestamp) except -1
    cdef int64_t _check_timestamp(self, object timestamp) except? -2
    cdef int _check(self, Py_ssize_t key_size, int64_t stamp) except -1
    cdef int _split_section(self, const uint8_t *p, Py_ssize_t size, int32_t count, int64_t base_timestamp) except -1
    cdef bytes _encode_headers(self, object headers)
    cdef int _refuse(self, object kind, object reason) except -1
    cdef int _refuse_at(self, int64_t index, object kind, object reason) except -1


cdef inline Py_ssize_t put_plain(Packer packer, const char *key, Py_ssize_t key_size, const char *value,
                                 Py_ssize_t value_size) noexcept:
    """Append a record with timestamp now and no headers to the open batch; return its size in the batch.

    Returns 0 and does nothing if there is no open batch, if the record does not fit into the batch or the buffer, or
    if a required key is missing; call `_append` then. A negative size means null.
    """
    cdef int64_t delta = packer.now_ms - packer._base_timestamp
    cdef uint64_t body = ks_body_size(delta, packer._count, key_size, value_size, 1)
    cdef Py_ssize_t size = <Py_ssize_t> body + ks_short_size(body << 1)
    if packer._count == 0 or (key_size < 0 and packer._require_key):
        return 0
    if size > packer._batch_bytes - (packer._used - packer.finished) or size > packer._capacity - packer._used:
        return 0
    ks_put_record(packer.data + packer._used, body, delta, packer._count, key, key_size, value, value_size, b"", 1)
    packer._used += size
    packer._count += 1
    packer.records += 1
    if packer.now_ms > packer._open_max:
        packer._open_max = packer.now_ms
    return size
