# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Decompresses and compresses in C without the GIL; finds the functions for zstd and lz4 in shared libraries.

`setup.py` compiles unpack.c and compress.c into this module only. `compression` handles the payloads that these do not
handle, mostly damaged ones. Invariant: this module and `compression` agree on every payload.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.string cimport memcpy
from posix.dlfcn cimport RTLD_LAZY, dlopen, dlsym

import importlib
import os

import zstandard

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *p, Py_ssize_t n)
    int _PyBytes_Resize(PyObject **made, Py_ssize_t n) except -1
    void PyErr_Clear()

cdef extern from "unpack.h" nogil:
    enum:
        KS_WILD
    int ks_zstd_setup(void *new_context, void *free_context, void *decompress, void *is_error) noexcept
    int64_t c_unpack "ks_unpack_natively"(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept

cdef extern from "compress.h" nogil:
    int ks_lz4_compress_setup(void *bound, void *compress, void *is_error) noexcept
    int ks_zstd_compress_setup(void *new_context, void *free_context, void *set, void *bound, void *compress,
                               void *is_error) noexcept
    size_t c_compress_bound "ks_compress_bound"(int codec, size_t n) noexcept
    int64_t c_compress "ks_compress"(int codec, int level, const uint8_t *p, size_t n, uint8_t *to,
                                     size_t room) noexcept

cdef enum:
    HELD_BYTES = 65536             # a smaller payload is first decompressed with the GIL held,
    MOST_HELD_BYTES = 1048576      # and again without the GIL if the result exceeds this size
    LIKELY_RATIO = 4               # a guess of the decompressed size divided by the payload's size


cdef size_t ks_compress_bound(int codec, size_t n) noexcept nogil:
    return c_compress_bound(codec, n)


cdef int64_t ks_compress(int codec, int level, const uint8_t *p, size_t n, uint8_t *to, size_t room) noexcept nogil:
    return c_compress(codec, level, p, n, to, room)


cdef int64_t ks_unpack(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept nogil:
    return c_unpack(codec, p, n, out, limit)


cdef object _find_zstd():
    """Find zstd's functions in a shared library, so that threads need no GIL for them; return its path, or None.

    Different versions of zstd reject different damaged data, and the package zstandard decides about data that the
    library rejects. So the library must have the package's version. The package's `_cffi` module contains the library.
    """
    cdef void *library
    cdef void *version
    cdef unsigned number
    major, minor, patch = zstandard.ZSTD_VERSION
    folder = os.path.dirname(zstandard.__file__)
    shipped = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("_cffi.")]
    for path in [*shipped, "libzstd.so.1"]:
        name = os.fsencode(path)
        library = dlopen(PyBytes_AS_STRING(name), RTLD_LAZY)     # never closed
        version = NULL if library == NULL else dlsym(library, b"ZSTD_versionNumber")
        if version == NULL:
            continue
        number = (<unsigned (*)() noexcept nogil> version)()
        if number == 10000 * major + 100 * minor + patch and ks_zstd_setup(
            dlsym(library, b"ZSTD_createDCtx"), dlsym(library, b"ZSTD_freeDCtx"),
            dlsym(library, b"ZSTD_decompressDCtx"), dlsym(library, b"ZSTD_isError"),
        ):
            global ZSTD_COMPRESSES
            ZSTD_COMPRESSES = bool(ks_zstd_compress_setup(
                dlsym(library, b"ZSTD_createCCtx"), dlsym(library, b"ZSTD_freeCCtx"),
                dlsym(library, b"ZSTD_CCtx_setParameter"), dlsym(library, b"ZSTD_compressBound"),
                dlsym(library, b"ZSTD_compress2"), dlsym(library, b"ZSTD_isError"),
            ))
            return path
    return None


cdef object _find_lz4():
    """Find lz4's compressor in the package lz4's module or a library linked with it; return whether it was found."""
    cdef void *library
    try:
        name = os.fsencode(importlib.import_module("lz4.frame._frame").__file__)
    except ImportError:
        return False
    library = dlopen(PyBytes_AS_STRING(name), RTLD_LAZY)     # never closed
    return library != NULL and bool(ks_lz4_compress_setup(
        dlsym(library, b"LZ4F_compressFrameBound"), dlsym(library, b"LZ4F_compressFrame"),
        dlsym(library, b"LZ4F_isError"),
    ))


ZSTD_COMPRESSES = False
ZSTD_LIBRARY = _find_zstd()  # type: str | None
LZ4_COMPRESSES = _find_lz4()  # type: bool
ZSTD_OF_COLUMNS = ZSTD_LIBRARY or "the package zstandard, with the GIL"  # type: str
"""The decompressor of zstd in words: the path of the library, or the package."""


ctypedef struct Target:
    PyObject *made                 # the bytes object that is written to
    size_t likely                  # a guess of its size: pages that are never written take no memory


cdef int _grow(ks_output *out, size_t used, size_t capacity) noexcept with gil:
    """Enlarge an output whose context is a `Target`; C calls this as the output's function `room`."""
    cdef Target *target = <Target *> out.context
    cdef size_t size = max(target.likely, capacity + (capacity >> 1 if used else 0))
    cdef PyObject *grown = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size + KS_WILD)
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
    cdef ks_output out = ks_output(NULL, 0, _grow, &target)
    cdef int64_t size = -1
    if n < HELD_BYTES:
        size = c_unpack(codec, p, n, &out, min(limit, <int64_t> MOST_HELD_BYTES))
    if n >= HELD_BYTES or (size < 0 and limit > MOST_HELD_BYTES):
        with nogil:
            size = c_unpack(codec, p, n, &out, limit)
    if size <= 0:
        Py_XDECREF(target.made)
        return b"" if size == 0 else None
    _PyBytes_Resize(&target.made, <Py_ssize_t> size)
    section = <object> target.made
    Py_XDECREF(target.made)
    return section


def unpack(int codec, bytes data not None, int64_t limit) -> bytes | None:
    """Decompress a payload in C; return None if `compression` must handle it."""
    return unpacked(codec, <const uint8_t *> PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data), limit)
