"""`read` and `read_into` copy bytes of a file from the page cache while they hold the GIL.

Compiled, since Python's own calls release the GIL for each read. If another thread computes, they get it back only
after 5 ms, a thousand times the time of reading 16 KiB. Invariant: nothing here waits for the disk or holds the GIL for
long. The caller must read without the GIL if the bytes are not in the page cache, if the file system does not say
whether they are, or if they are more than KS_HELD_BYTES. Thread-safe.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

cdef extern from "window.h":
    enum:
        KS_HELD_BYTES
    Py_ssize_t ks_read_cached(int fd, uint8_t *p, size_t n, int64_t position)


def read(int fd, Py_ssize_t size, int64_t position) -> bytes | None:
    """Return the `size` bytes at `position`; None unless all exist, are in the page cache and are at most 1 MiB."""
    if not 0 < size <= KS_HELD_BYTES:
        return None
    data = PyBytes_FromStringAndSize(NULL, size)
    return data if ks_read_cached(fd, <uint8_t *>PyBytes_AS_STRING(data), <size_t>size, position) == size else None


def read_into(int fd, buffer: WriteableBuffer, int64_t position) -> int:
    """Fill `buffer` from `position` on; return its size, or 0 if `read` would return None."""
    cdef Py_buffer held
    cdef Py_ssize_t got = 0
    PyObject_GetBuffer(buffer, &held, PyBUF_WRITABLE)
    try:
        if held.len <= KS_HELD_BYTES:
            got = ks_read_cached(fd, <uint8_t *>held.buf, <size_t>held.len, position)
    finally:
        PyBuffer_Release(&held)
    return max(got, 0)
