"""`Map`: a read-only map of a file that finds the file's current length with one short system call.

Compiled, since each search in a mapped index asks for the length before it reads the bytes, and Python's `mmap.size`
takes longer than the search. Invariant: a map that is exported as a buffer is never unmapped.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <unistd.h>

    static void *ks_map(int fd, size_t size) {
        void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        return data == MAP_FAILED ? NULL : data;
    }

    /* Moves the file offset, so all reads must name a position. It takes half the time of fstat. */
    static int64_t ks_length(int fd) { return (int64_t)lseek(fd, 0, SEEK_END); }

    static int ks_own(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }
    """
    void *ks_map(int fd, size_t size) nogil
    int64_t ks_length(int fd) nogil
    int ks_own(int fd) nogil
    int munmap(void *data, size_t size) nogil
    int close(int fd) nogil


cdef class Map:
    """A map of the first `size` bytes of a file, at least 1, for reading.

    The map holds a duplicate of `fd`, which shares the file offset, so reads of `fd` must name the position (`pread`).
    Raises `OSError`, and `ValueError` if the file is shorter. Thread-safe except for `close`.
    """

    def __cinit__(self, *_, **__):
        self._fd = -1                     # set before anything can fail, so that only our own descriptor is closed

    def __init__(self, int fd, Py_ssize_t size):
        if self._fd >= 0:
            raise TypeError("the map is made already")
        if size <= 0:
            raise ValueError(f"a map of {size} bytes; 1 is the least")
        self._fd = ks_own(fd)
        if self._fd < 0:
            PyErr_SetFromErrno(OSError)
        length = self.length()
        if length < size:
            raise ValueError(f"a map of {size} bytes of a file that has {length}")
        self._data = ks_map(self._fd, size)
        if self._data == NULL:
            PyErr_SetFromErrno(OSError)
        self._size = size

    cdef int64_t length(self) except -1:
        """Return the present length of the file."""
        cdef int64_t length
        if self._fd < 0:
            raise ValueError("the map is closed")
        length = ks_length(self._fd)
        if length < 0:
            PyErr_SetFromErrno(OSError)
        return length

    def size(self) -> int:
        """Return the present length of the file; reading mapped bytes beyond it raises SIGBUS."""
        return self.length()

    def __len__(self):
        return self._size

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._data == NULL:
            raise ValueError("the map is closed")
        PyBuffer_FillInfo(view, self, self._data, self._size, 1, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    def close(self) -> None:
        """Unmap the file and close the descriptor; raise `BufferError` while a buffer is exported. Idempotent."""
        if self._exports:
            raise BufferError("the map is exported")
        self._give_back()

    def __enter__(self) -> Map:
        return self

    def __exit__(self, *_):
        self.close()

    def __dealloc__(self):
        self._give_back()

    cdef void _give_back(self) noexcept:
        if self._data != NULL:
            munmap(self._data, self._size)
            self._data = NULL
        if self._fd >= 0:
            close(self._fd)
            self._fd = -1
