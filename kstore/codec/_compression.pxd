# cython: language_level=3
"""Codec functions that need no GIL, for modules that read or write compressed batches."""

from libc.stdint cimport int64_t, uint8_t

cdef extern from "unpack.h" nogil:
    ctypedef struct ks_output:
        uint8_t *p
        size_t capacity
        int (*room)(ks_output *out, size_t used, size_t capacity) noexcept nogil
        void *context


cdef size_t ks_compress_bound(int codec, size_t n) noexcept nogil
cdef int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) noexcept nogil
cdef int64_t ks_unpack(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept nogil

cdef bytes unpacked(int codec, const uint8_t *p, size_t n, int64_t limit)
