# cython: language_level=3
"""Rows of several columns, and the functions that pack them, for modules that choose the packer."""

from libc.stdint cimport int64_t, uint8_t

from kstore.columns._arrow cimport Column, ks_bytes
from kstore.codec._pack cimport Packer


cdef extern from "columns/encode.h" nogil:
    ctypedef struct ks_widths:
        pass
    ctypedef struct ks_open_batch:
        uint8_t *p
        uint8_t *full
        uint8_t *room
        uint8_t *enough
        int64_t count
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t earliest
        int64_t latest
        int key_required
        int slack
        ks_widths widths

cdef enum:
    BLOCK = 256                        # rows gathered at a time: their pointers stay in the first-level cache

# Why the packing of rows stopped; the caller acts on it.
cdef enum:
    EXHAUSTED
    ENOUGH
    MORE_ROOM
    ODD_ROW
    FULL_BATCH
    FAULTY
    NO_MEMORY


cdef class Rows:
    cdef Column _values, _keys, _headers, _times
    cdef int64_t _value_at, _key_at, _header_at, _time_at
    cdef readonly int64_t at
    cdef readonly int64_t count
    cdef readonly int64_t first
    cdef int64_t _time

    # The current block: rows [at - _taken, at - _taken + _block), of which the first `_taken` are packed.
    cdef int64_t _block, _taken
    cdef ks_bytes[BLOCK] _value
    cdef ks_bytes[BLOCK] _key
    cdef ks_bytes[BLOCK] _header
    cdef int64_t[BLOCK] _stamp
    cdef int _slack                    # KS_SLACK bytes are readable from the start of each key and each value
    cdef uint8_t *_scratch
    cdef int64_t _scratch_bytes

    cdef int _fault
    cdef int _faulty                   # the number of the faulty column

    cdef void step(self, int64_t count) noexcept nogil
    cdef int gather(self) noexcept nogil
    cdef int fail(self, Packer packer, int code) except -1
    cdef int _failed(self, int fault, int column) noexcept nogil
    cdef int64_t _gather_headers(self, int64_t n, int *fault) noexcept nogil


cdef int put_odd(Packer packer, Rows rows, int64_t i) except -1
cdef int64_t put_rows(Packer packer, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers,
                      const int64_t *times, int slack, int64_t n, Py_ssize_t limit_bytes, int64_t *added,
                      int64_t enough, int *code, int64_t *total) noexcept nogil
