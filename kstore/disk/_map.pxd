from libc.stdint cimport int64_t


cdef class Map:
    cdef void *_data
    cdef Py_ssize_t _size, _exports
    cdef int _fd

    cdef int64_t length(self) except -1
    cdef void _give_back(self) noexcept
