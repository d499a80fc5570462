# cython: language_level=3, auto_pickle=False, autotestdict=False
"""`anext` of a stream in C: a record that is in memory is returned without a coroutine.

Invariant: a record is taken from the iterator when the call is awaited, not before, so a call that is cancelled before
it starts takes none.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *item) noexcept
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PySendResult (*sendfunc)(PyObject *awaited, PyObject *sent, PyObject **result) except PYGEN_ERROR
    PySendResult PyIter_Send(object awaited, object sent, PyObject **result) except PYGEN_ERROR
    PyObject *PyIter_Next(object iterator) except? NULL

cdef extern from *:
    """
    /* Cython has no name for the slot that Python 3.11 and the tasks of asyncio call. Later Pythons call tp_iternext. */
    static void ks_set_slots(PyTypeObject *type, sendfunc send, iternextfunc next) {
        type->tp_as_async->am_send = send;
        type->tp_iternext = next;
        PyType_Modified(type);
    }

    /* Steals the reference to the value. */
    static inline void ks_set_value(PyObject *end, PyObject *value) {
        Py_XSETREF(((PyStopIterationObject *) end)->value, value);
    }

    /* The exception gets no context: it is raised again. */
    static inline void ks_raise(PyObject *end) {
        PyErr_Restore(Py_NewRef(PyExc_StopIteration), Py_NewRef(end), NULL);
    }
    """
    ctypedef PyObject *(*iternextfunc)(PyObject *iterator) except? NULL
    void ks_set_slots(type awaited, sendfunc send, iternextfunc next) noexcept
    void ks_set_value(object end, PyObject *value) noexcept
    void ks_raise(object end) noexcept


cdef class BaseStream:
    """Base of `Stream`, which defines `_next`, a coroutine that reads or waits for the next record, and `_end`."""

    cdef public object _records        # type: Any
    """The iterator whose records are returned now; None if there is none."""
    cdef public object _pending        # type: Any
    """The record that a thread is reading; None if no thread is reading."""
    cdef public Py_ssize_t _left
    """How many more records may be returned before the loop's other tasks run."""
    cdef public Py_ssize_t _ready
    """How many of the iterator's records are in memory and belong to this turn."""
    cdef NextRecord _call              # used again if nothing else refers to it: a loop drops it before the next one

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Any:
        cdef NextRecord call = self._call
        if call is None or Py_REFCNT(<PyObject *> call) > 2 or call._stream is not None or call._coroutine is not None:
            call = self._call = NextRecord.__new__(NextRecord)
        call._stream = self
        return call

    cdef PyObject *_take(self) except? NULL:
        """Return a new reference to the next record; NULL if the stream must read or wait first."""
        cdef PyObject *record
        if self._ready == 0:
            self._find_ready()
            if self._ready == 0:
                return NULL
        self._ready -= 1
        record = PyIter_Next(self._records)
        if record == NULL:
            self._ready = 0
        return record

    cdef int _find_ready(self) except -1:
        if self._records is not None and self._pending is None and self._left > 0:
            count = getattr(self._records, "in_memory", None)
            if count is None:
                count = not self._records.needs_bytes
            self._ready = min(self._left, <Py_ssize_t> count)
            self._left -= self._ready
        return 0


@cython.final
cdef class NextRecord:
    """A call of `anext`, to be awaited once; it has the methods of a coroutine."""

    cdef BaseStream _stream            # None when the call has begun
    cdef object _coroutine             # of the stream's `_next`; None if it is not needed, and at the end
    cdef object _end                   # raised with each record; making another would take longer than all else

    def __await__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: object, /) -> Any:
        """Continue until the stream waits for something, which is returned; `StopIteration` has the record."""
        cdef PyObject *result = NULL
        cdef PySendResult kind = _send(self, value, &result)
        found = <object> result
        Py_XDECREF(result)
        if kind == PYGEN_RETURN:
            raise StopIteration(found)
        return found

    def throw(self, *error: Any) -> Any:
        """Raise an error where the stream waits."""
        if self._coroutine is None:
            self._begin()
        coroutine = self._coroutine
        try:
            return coroutine.throw(*error)
        except BaseException:
            self._coroutine = None
            raise

    def close(self) -> None:
        """End the call."""
        coroutine, self._coroutine, self._stream = self._coroutine, None, None
        if coroutine is not None:
            coroutine.close()

    cdef int _begin(self) except -1:
        stream, self._stream = self._stream, None
        if stream is None:
            raise RuntimeError("this call of anext has been awaited before")
        self._coroutine = stream._next()
        return 0


cdef PySendResult _send(NextRecord self, object sent, PyObject **result) except PYGEN_ERROR:
    cdef PySendResult kind
    cdef BaseStream stream = self._stream
    if stream is not None and sent is None:
        try:
            result[0] = stream._take()
        except Exception:
            self._stream = None
            stream._end()
            raise
        if result[0] != NULL:
            self._stream = None
            return PYGEN_RETURN
    if self._coroutine is None:
        self._begin()
    coroutine = self._coroutine
    try:
        kind = PyIter_Send(coroutine, sent, result)
    except BaseException:
        self._coroutine = None
        raise
    if kind == PYGEN_RETURN:
        self._coroutine = None
    return kind


cdef PySendResult _send_slot(PyObject *awaited, PyObject *sent, PyObject **result) except PYGEN_ERROR:
    return _send(<NextRecord> awaited, <object> sent, result)


cdef PyObject *_next_slot(PyObject *awaited) except? NULL:
    cdef NextRecord call = <NextRecord> awaited
    cdef PyObject *result = NULL
    end = call._end
    if end is None or Py_REFCNT(<PyObject *> end) > 2:
        end = call._end = StopIteration()
    else:
        ks_set_value(end, NULL)
    if _send(call, None, &result) != PYGEN_RETURN:
        return result
    ks_set_value(end, result)
    ks_raise(end)
    return NULL


ks_set_slots(NextRecord, _send_slot, _next_slot)
