# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Decompresses and compresses in C without the GIL, by liblz4 and libzstd where `setup.py` has linked them.

`compression` handles the payloads that these do not handle: those that are damaged, those of rare kinds, and all of a
codec whose library is not linked.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.string cimport memcpy

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *p, Py_ssize_t n)
    int _PyBytes_Resize(PyObject **made, Py_ssize_t n) except -1
    void PyErr_Clear()

cdef extern from "unpack.h" nogil:
    const char *ks_lz4_version() noexcept
    const char *ks_zstd_version() noexcept
    int64_t c_unpack "ks_unpack_natively"(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept
    void *ks_zstd_stream() noexcept
    void ks_zstd_stream_free(void *stream) noexcept
    int64_t ks_zstd_stream_read(void *stream, const uint8_t *p, size_t n, size_t *used, uint8_t *to, size_t room,
                                int *inside, const char **error) noexcept

cdef extern from "compress.h" nogil:
    size_t c_compress_bound "ks_compress_bound"(int codec, size_t n) noexcept
    int64_t c_compress "ks_compress"(int codec, int level, const uint8_t *p, size_t n, uint8_t *to,
                                     size_t room) noexcept

cdef enum:
    HELD_BYTES = 65536             # a smaller payload is first decompressed with the GIL held,
    MOST_HELD_BYTES = 1048576      # and again without the GIL if the result exceeds this size
    LIKELY_RATIO = 4               # a guess of the decompressed size divided by the payload's size
    KEPT_BYTES = 131072            # what one block of zstd may decompress to

cdef uint8_t[KEPT_BYTES] _kept     # the results of small payloads: fresh memory of this size would come from the system


cdef object _version(const char *found):
    return None if found == NULL else found.decode()


LZ4_VERSION = _version(ks_lz4_version())  # type: str | None
"""The version of liblz4; None if it is not linked."""
ZSTD_VERSION = _version(ks_zstd_version())  # type: str | None
"""The version of libzstd; None if it is not linked."""


cdef size_t ks_compress_bound(int codec, size_t n) noexcept nogil:
    return c_compress_bound(codec, n)


cdef int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) noexcept nogil:
    return c_compress(codec, level, p, n, to, room)


cdef int64_t ks_unpack(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept nogil:
    return c_unpack(codec, p, n, out, limit)


ctypedef struct Target:
    PyObject *made                 # the bytes object that is written to
    size_t likely                  # a guess of its size: pages that are never written take no memory


cdef int _grow(ks_output *out, size_t used, size_t capacity) noexcept with gil:
    """Enlarge an output whose context is a `Target`; C calls this as the output's function `room`."""
    cdef Target *target = <Target *> out.context
    cdef size_t size = max(target.likely, capacity + (capacity >> 1 if used else 0))
    cdef PyObject *grown = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size)
    if grown == NULL:
        PyErr_Clear()
        return -1
    if used:
        memcpy(PyBytes_AS_STRING(<object> grown), out.p, used)
    Py_XDECREF(target.made)
    target.made = grown
    out.p = <uint8_t *> PyBytes_AS_STRING(<object> grown)
    out.capacity = size
    return 0


cdef bytes unpacked(int codec, const uint8_t *p, size_t n, int64_t limit):
    """Decompress a payload in C; return None if `compression` must handle it.

    Releases the GIL only for a large payload: decompressing a small one takes less time than getting the GIL back from
    a busy thread.
    """
    cdef Target target = Target(NULL, min(LIKELY_RATIO * n, <size_t> max(limit, 0)))
    cdef ks_output out = ks_output(&_kept[0], KEPT_BYTES, _grow, &target)
    cdef int64_t size = -1
    if n < HELD_BYTES:
        size = c_unpack(codec, p, n, &out, min(limit, <int64_t> MOST_HELD_BYTES))
        if size >= 0 and target.made == NULL:
            return _kept[:size]
    if n >= HELD_BYTES or (size < 0 and limit > MOST_HELD_BYTES):
        if target.made == NULL:
            out.p, out.capacity = NULL, 0
        with nogil:
            size = c_unpack(codec, p, n, &out, limit)
    if size <= 0:
        Py_XDECREF(target.made)
        return b"" if size == 0 else None
    return _cut(target.made, <Py_ssize_t> size)


cdef bytes _cut(PyObject *made, Py_ssize_t size):
    """Return a bytes object without what follows its first `size` bytes; `made` must have no other reference."""
    _PyBytes_Resize(&made, size)
    result = <object> made
    Py_XDECREF(made)
    return result


def unpack(int codec, bytes data not None, int64_t limit) -> bytes | None:
    """Decompress a payload in C; return None if `compression` must handle it."""
    return unpacked(codec, <const uint8_t *> PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data), limit)


def pack(int codec, int level, bytes data not None) -> bytes | None:
    """Compress a payload in C at the library's `level`; return None if `compression` must handle it."""
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef size_t n = <size_t> PyBytes_GET_SIZE(data), room = c_compress_bound(codec, n)
    cdef int64_t size
    cdef PyObject *made
    cdef uint8_t *to
    if room == 0:
        return None
    made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> room)
    if made == NULL:
        raise MemoryError
    to = <uint8_t *> PyBytes_AS_STRING(<object> made)
    with nogil:
        size = c_compress(codec, level, p, n, to, room)
    if size < 0:
        Py_XDECREF(made)
        return None
    return _cut(made, <Py_ssize_t> size)


@cython.final
cdef class ZstdStream:
    """Decompresses consecutive zstd frames piece by piece, by libzstd. Not thread-safe."""

    cdef void *_stream
    cdef int _inside

    def __cinit__(self):
        self._stream = ks_zstd_stream()
        if self._stream == NULL:
            raise MemoryError

    def __dealloc__(self):
        ks_zstd_stream_free(self._stream)

    @property
    def inside(self) -> bool:
        """Whether the bytes so far end within a frame."""
        return self._inside != 0

    def read(self, bytes data not None, Py_ssize_t at, Py_ssize_t most) -> tuple[bytes, int]:
        """Decompress from `data[at:]`; return at most `most` (1 or more) bytes and where the rest of `data` begins.

        The next call returns first what was more. Raises `ValueError` for damaged data.
        """
        cdef PyObject *made
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data) + at
        cdef size_t n, used = 0
        cdef const char *error = NULL
        cdef uint8_t *to
        cdef int64_t size
        if not 0 <= at <= PyBytes_GET_SIZE(data) or most < 1:
            raise ValueError(f"from {at} of {PyBytes_GET_SIZE(data)} bytes at most {most}")
        n = <size_t> (PyBytes_GET_SIZE(data) - at)
        made = PyBytes_FromStringAndSize(NULL, most)
        if made == NULL:
            raise MemoryError
        to = <uint8_t *> PyBytes_AS_STRING(<object> made)
        with nogil:
            size = ks_zstd_stream_read(self._stream, p, n, &used, to, <size_t> most, &self._inside, &error)
        if size <= 0:
            Py_XDECREF(made)
        if size < 0:
            raise ValueError(error.decode())
        return _cut(made, <Py_ssize_t> size) if size else b"", at + <Py_ssize_t> used
