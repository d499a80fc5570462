# cython: language_level=3
"""Columns of records in memory, for the encoder."""

from libc.stdint cimport int64_t, uint8_t


cdef extern from "columns/gather.h" nogil:
    ctypedef struct ks_bytes:
        const uint8_t *p
        int64_t n
    ctypedef struct ks_column:
        int layout
        int is_unsigned
        int64_t length
        int64_t offset
        const uint8_t *validity
        const uint8_t *data
        const uint8_t *offsets
        int64_t width
        int64_t stride
        int64_t low
        int64_t high
        const uint8_t *buffers
        const uint8_t *sizes
        int64_t buffers_count
        int64_t multiplier
        int64_t divisor
        int has_nat
        const ks_column *items
        const ks_column *names


cdef class Column:
    cdef ks_column c
    cdef readonly str what             # its name in errors
    cdef object owner                  # keeps the memory alive
    cdef Column items                  # these keep alive what `c` points to
    cdef Column names
