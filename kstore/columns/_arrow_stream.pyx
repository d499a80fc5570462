# cython: language_level=3, auto_pickle=False, autotestdict=False
"""An iterator of `Columns` as an Arrow stream, through which `pyarrow`, `polars`, `duckdb` and `pandas` read a log.

An engine calls the stream from any thread, one call at a time, without the GIL. Invariant: an exception of the
iterator becomes an errno and a message, and no Python object is used while the interpreter shuts down.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINVAL, EIO, ENOMEM
from libc.stdlib cimport calloc, free

from kstore.columns._arrowc cimport STREAM_CAPSULE, ArrowArray, ArrowArrayStream, ArrowSchema
from kstore.columns._columns cimport Columns, fill_schema

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030d0000
    #define ks_is_shutting_down() (!Py_IsInitialized() || _Py_IsFinalizing())
    #else
    #define ks_is_shutting_down() (!Py_IsInitialized() || Py_IsFinalizing())
    #endif
    """
    bint ks_is_shutting_down() nogil


cdef class _Stream:
    """The data of a stream: the iterator of its columns, their fields, and its last error."""

    cdef object chunks
    cdef object owner
    cdef tuple fields
    cdef bytes error

    cdef int fail(self, error) noexcept:
        """Store the message of an error and return its errno."""
        self.chunks = iter(())
        try:
            self.error = f"{type(error).__name__}: {error}".encode(errors="replace")
        except Exception:
            self.error = b"an error without a text"
        return ENOMEM if isinstance(error, MemoryError) else EINVAL if isinstance(error, ValueError) else EIO


cdef int _get_schema(ArrowArrayStream *stream, ArrowSchema *out) noexcept nogil:
    return EIO if ks_is_shutting_down() else _fill_schema(stream, out)


cdef int _fill_schema(ArrowArrayStream *stream, ArrowSchema *out) noexcept with gil:
    cdef _Stream self = <_Stream> stream.private_data
    out.release = NULL
    try:
        fill_schema(out, ("", "+s", self.fields), False)
    except BaseException as error:
        if out.release != NULL:
            out.release(out)
        return self.fail(error)
    return 0


cdef int _get_next(ArrowArrayStream *stream, ArrowArray *out) noexcept nogil:
    return EIO if ks_is_shutting_down() else _fill_next(stream, out)


cdef int _fill_next(ArrowArrayStream *stream, ArrowArray *out) noexcept with gil:
    cdef _Stream self = <_Stream> stream.private_data
    out.release = NULL
    try:
        columns = next(self.chunks, None)
        if columns is not None:
            (<Columns?> columns)._export(out, self.fields)
    except BaseException as error:
        if out.release != NULL:
            out.release(out)
        return self.fail(error)
    return 0


cdef const char *_get_last_error(ArrowArrayStream *stream) noexcept nogil:
    if ks_is_shutting_down():
        return NULL
    return _last_error(stream)


cdef const char *_last_error(ArrowArrayStream *stream) noexcept with gil:
    cdef _Stream self = <_Stream> stream.private_data
    if self.error is None:
        return NULL
    return self.error


cdef void _release(ArrowArrayStream *stream) noexcept nogil:
    if not ks_is_shutting_down():
        _drop_data(stream)
    stream.release = NULL


cdef void _drop_data(ArrowArrayStream *stream) noexcept with gil:
    Py_DECREF(<object> stream.private_data)


cdef void _free_capsule(object capsule) noexcept:
    cdef ArrowArrayStream *stream = <ArrowArrayStream *> PyCapsule_GetPointer(capsule, STREAM_CAPSULE)
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


def stream_capsule(chunks: Iterable[Columns], tuple fields: tuple[tuple[str, str], ...],
                   owner: object = None) -> object:
    """Return an `arrow_array_stream` capsule of `Columns`, with the fields that `fields_of` returns.

    `owner` is kept alive until the stream is released.
    """
    cdef _Stream self = _Stream.__new__(_Stream)
    cdef ArrowArrayStream *stream = <ArrowArrayStream *> calloc(1, sizeof(ArrowArrayStream))
    if stream == NULL:
        raise MemoryError("an Arrow stream")
    self.chunks = iter(chunks)
    self.fields = fields
    self.owner = owner
    stream.get_schema = _get_schema
    stream.get_next = _get_next
    stream.get_last_error = _get_last_error
    stream.release = _release
    stream.private_data = <void *> self
    Py_INCREF(self)
    try:
        return PyCapsule_New(stream, STREAM_CAPSULE, _free_capsule)
    except BaseException:
        _release(stream)
        free(stream)
        raise
