# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Reads files of mounts for compiled code, which reads files by their descriptors and without the GIL.

A module that is linked with window.c calls `set_mounted_read(mounted_read)` when it is imported. Thread-safe.
"""

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t

from kstore.disk import mounts

cdef extern from "window.h" nogil:
    Py_ssize_t remote_failure "ks_remote_failure"() noexcept


cdef Py_ssize_t mounted_read(int fd, uint8_t *p, size_t n, int64_t position) noexcept nogil:
    cdef Py_ssize_t got = _read(fd, p, n, position)
    return got if got >= 0 else remote_failure()     # the number is set here, since releasing the GIL may change it


cdef Py_ssize_t _read(int fd, uint8_t *p, size_t n, int64_t position) noexcept with gil:
    try:
        return mounts.read_into(fd, PyMemoryView_FromMemory(<char *>p, <Py_ssize_t>n, PyBUF_WRITE), position)
    except BaseException as error:
        mounts.keep_failure(fd, error)
        return -1
