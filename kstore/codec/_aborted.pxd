# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

cdef extern from "aborted.h" nogil:
    ctypedef struct ks_span:
        int64_t producer_id
        int64_t first
        int64_t last
    int ks_is_aborted(const ks_span *spans, int64_t n, const uint8_t *p) noexcept


cdef class AbortedFilter:
    cdef ks_span *_spans
    cdef Py_ssize_t _count
