# cython: language_level=3
"""Declarations of the decoder for other compiled modules."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "record.h" nogil:
    ctypedef struct ks_record:
        int64_t timestamp_delta
        int32_t offset_delta
        int32_t key_size
        int32_t value_size
        int32_t headers_count
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        const uint8_t *end
        int fault
    ctypedef struct ks_stamped:
        int64_t timestamp
        int64_t offset_delta
        int fault
    enum:
        KS_FINE
        KS_TRAILING_BYTES
    bint ks_too_far(int64_t stamp, int64_t now, int64_t before_max, int64_t after_max) noexcept
    const uint8_t *ks_parse_record(const uint8_t *p, const uint8_t *end, ks_record *r) noexcept
    const uint8_t *ks_find_timestamp(const uint8_t *p, const uint8_t *end, int32_t *left, int64_t base, uint64_t mask,
                                     int64_t least, int64_t most, ks_stamped *found) noexcept
    const uint8_t *ks_parse_header(const uint8_t *p, const uint8_t *end, const uint8_t **key, int32_t *key_size,
                                   const uint8_t **value, int32_t *value_size, int *fault) noexcept


cdef class Record:
    cdef readonly int64_t offset
    """The record's offset in its partition."""
    cdef readonly int64_t timestamp
    """Milliseconds since the epoch; -1 if the record has no timestamp."""
    cdef bytes key  # type: bytes | None  # these three are readable from Python, too: see _add_members
    """The key; None if the record has none."""
    cdef bytes value  # type: bytes | None
    """The value; None for a tombstone."""
    cdef tuple headers  # type: tuple[tuple[str, bytes | None], ...]
    """(name, value) pairs; a value is `bytes` or None."""


cdef enum:
    MAX_HEADERS = 1 << 20          # of a record as objects: two bytes in a batch become at least 64 in memory

cpdef int check_headers(int64_t count, str what, int64_t number) except -1


cdef class Buffer:
    """A held export of any contiguous buffer; released with the last reference to this object."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef Py_ssize_t size


cdef class RecordBatch:
    cdef bytes _owner
    cdef const uint8_t *_p
    cdef Py_ssize_t _size
    cdef int _max_decompressed
    cdef object _first_and_count
    cdef readonly object path  # type: Any
    """The file that contains the batch; None for bytes in memory."""
    cdef readonly int64_t position
    """The position in bytes of the batch in the file or buffer."""

    cdef int _scan_legacy(self) except -1


cdef class Guard:
    cdef public int64_t version


cdef object fault_text(int fault)
cdef Record made_record(int64_t offset, int64_t timestamp, const ks_record *r)
cdef object outside(int64_t offset, int64_t base_offset, int64_t last_offset)
cdef object as_bytes(object data, str what)
cdef str shown(object data)
cdef str shown_headers(tuple headers)
cdef object not_bytes(object data, object what)
cdef bytes record_section(const uint8_t *p, Py_ssize_t size, int64_t limit, object path, int64_t position)
cdef bytes record_section_slowly(const uint8_t *p, Py_ssize_t size, int64_t limit, object path, int64_t position)
