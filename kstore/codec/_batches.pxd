# cython: language_level=3
"""Declares `is_ready`, which checks whether a leader can store a batch unchanged except for its offset and epoch."""

from libc.stdint cimport int64_t, uint8_t


cdef bint is_ready(const uint8_t *p, Py_ssize_t n, int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms,
                   bint require_key) noexcept nogil
