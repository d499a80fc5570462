# cython: language_level=3
"""Columns as results: the memory they share, what they are made of, how Arrow is handed them."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kstore._arrowc cimport ArrowArray, ArrowSchema


cdef extern from "blocks.h" nogil:
    ctypedef struct ks_block:
        uint8_t *data
        size_t capacity
    enum:
        KS_SLACK
    void ks_pool_setup() noexcept
    void ks_pool_shrink(size_t limit) noexcept
    ctypedef struct ks_pool_state:
        size_t bytes
        int64_t live
    ks_pool_state *ks_pool
    void ks_pool_adopt(ks_pool_state *pool) noexcept
    ks_block *ks_block_new(size_t size) noexcept
    ks_block *ks_block_hold(ks_block *block) noexcept
    void ks_block_drop(ks_block *block) noexcept

cdef extern from "columns.h" nogil:
    enum:
        KS_ABSENT
        KS_BINARY
        KS_LARGE
        KS_VIEW
    ctypedef struct ks_view:
        int32_t size
        uint8_t prefix[4]
        int32_t buffer
        int32_t offset

cdef extern from "arrow_export.h" nogil:
    int ks_make_array(ArrowArray *out, int64_t length, int64_t nulls, int64_t buffers, int64_t children) noexcept
    void ks_set_buffer(ArrowArray *array, int64_t i, const void *p, ks_block *block) noexcept
    int ks_make_schema(ArrowSchema *out, const char *format, const char *name, int64_t flags, int64_t children) noexcept


cdef ks_pool_state *pool() noexcept


cdef class Memory:
    cdef ks_block *block
    cdef const uint8_t *p
    cdef Py_ssize_t size


cdef Memory share(ks_block *block, const void *p, Py_ssize_t size)
cdef Memory new_memory(Py_ssize_t size)
cdef int fill_schema(ArrowSchema *out, tuple field, bint nullable) except -1


cdef class BinaryColumn:
    cdef readonly Py_ssize_t null_count
    cdef int layout_number
    cdef Py_ssize_t n
    cdef Memory places                 # offsets, one more than values; or views
    cdef Memory bytes_                 # not of views
    cdef Memory valid                  # None without nulls
    cdef list buffers                  # of Memory: what views point into

    cdef bint _is_null(self, Py_ssize_t i) noexcept
    cdef const uint8_t *_find(self, Py_ssize_t i, Py_ssize_t *size) noexcept
    cdef object _item(self, Py_ssize_t i)
    cdef BinaryColumn _as(self, int layout)
    cdef BinaryColumn _gathered(self, int layout)
    cdef BinaryColumn _as_views(self)
    cdef int _check_text(self) except -1
    cdef int _export(self, ArrowArray *out, str format) except -1


cdef class HeadersColumn:
    cdef Py_ssize_t n
    cdef Memory places
    cdef readonly BinaryColumn keys
    cdef readonly BinaryColumn values

    cdef tuple _item(self, Py_ssize_t i)
    cdef int _export(self, ArrowArray *out) except -1


cdef class Columns:
    cdef readonly tuple names
    """The columns' names."""
    cdef readonly int64_t next_offset
    """The offset to go on from."""
    cdef Py_ssize_t n
    cdef tuple fields                  # (name, Arrow format) of each
    cdef dict columns
    cdef dict memories                 # of the NumPy arrays

    cdef int _export(self, ArrowArray *out, tuple fields) except -1
