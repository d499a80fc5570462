"""`read` and `read_into`: bytes of a file that lie in the page cache, copied while the interpreter is held.

Compiled, since Python's own calls give the interpreter up for each read, and beside a thread that computes get it back
after 5 ms: a thousand times what 16 KiB take. Invariant: nothing here waits for the disk, or holds the interpreter for
long. What is not in the page cache, or on a file system that cannot tell, and what is more than KS_HELD_BYTES, is left
to the caller, who gives the interpreter up meanwhile. Thread-safe.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

cdef extern from "window.h":
    enum:
        KS_HELD_BYTES
    Py_ssize_t ks_read_cached(int fd, uint8_t *p, size_t n, int64_t position)


def read(int fd, Py_ssize_t size, int64_t position) -> bytes | None:
    """Return the `size` bytes at `position`; None unless all are there, in the page cache, and are at most 1 MiB."""
    if not 0 < size <= KS_HELD_BYTES:
        return None
    data = PyBytes_FromStringAndSize(NULL, size)
    return data if ks_read_cached(fd, <uint8_t *>PyBytes_AS_STRING(data), <size_t>size, position) == size else None


def read_into(int fd, buffer: WriteableBuffer, int64_t position) -> int:
    """Fill `buffer` from `position` on; return its size, or 0 where `read` would give None."""
    cdef Py_buffer held
    cdef Py_ssize_t got = 0
    PyObject_GetBuffer(buffer, &held, PyBUF_WRITABLE)
    try:
        if held.len <= KS_HELD_BYTES:
            got = ks_read_cached(fd, <uint8_t *>held.buf, <size_t>held.len, position)
    finally:
        PyBuffer_Release(&held)
    return max(got, 0)
