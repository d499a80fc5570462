# cython: language_level=3
"""The function that compiled code calls to read a file of a mount (`kstore.disk.mounts`)."""

from libc.stdint cimport int64_t, uint8_t

cdef extern from "window.h" nogil:
    ctypedef Py_ssize_t (*MountedRead "ks_mounted_read")(int fd, uint8_t *p, size_t n, int64_t position) noexcept nogil
    void set_mounted_read "ks_set_mounted_read"(MountedRead read) noexcept

cdef Py_ssize_t mounted_read(int fd, uint8_t *p, size_t n, int64_t position) noexcept nogil
