# cython: language_level=3
"""Columns as results: their shared memory, their parts, and their export to Arrow."""

from libc.stdint cimport int64_t, uint8_t

from kstore.columns._arrowc cimport ArrowArray, ArrowSchema
from kstore.columns._native cimport ks_block


cdef class Memory:
    cdef ks_block *block
    cdef const uint8_t *p
    cdef Py_ssize_t size


cdef Memory share(ks_block *block, const void *p, Py_ssize_t size)
cdef Memory new_memory(Py_ssize_t size)
cdef int fill_schema(ArrowSchema *out, tuple field, bint nullable) except -1


cdef class BinaryColumn:
    cdef readonly Py_ssize_t null_count
    """The number of null rows."""
    cdef int layout_number
    cdef Py_ssize_t n
    cdef Memory places                 # offsets, one more than values; or views
    cdef Memory bytes_                 # the values' bytes; None for views
    cdef Memory valid                  # None if no row is null
    cdef list buffers                  # of Memory: the buffers that views point into

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
    """The names of all rows' headers, concatenated."""
    cdef readonly BinaryColumn values
    """The values of all rows' headers, concatenated."""

    cdef tuple _item(self, Py_ssize_t i)
    cdef int _export(self, ArrowArray *out) except -1


cdef class Columns:
    cdef readonly tuple names  # type: tuple[str, ...]
    """The columns' names."""
    cdef readonly int64_t next_offset
    """The offset at which the next read continues."""
    cdef Py_ssize_t n
    cdef tuple fields                  # (name, Arrow format) of each column
    cdef dict columns
    cdef dict memories                 # the memory of the NumPy arrays

    cdef int _export(self, ArrowArray *out, tuple fields) except -1
