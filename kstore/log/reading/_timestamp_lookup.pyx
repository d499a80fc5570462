# cython: language_level=3, auto_pickle=False, autotestdict=False, annotation_typing=False, nonecheck=True, embedsignature=False
"""The search by time. Compiled, because it reads so little that Python code would take most of the time.

This module chooses the segments to search. In a segment, `look_behind` finds the record; if it cannot,
`time_search.find_timestamp` does. Takes no lock.
"""

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from kstore._core cimport Guard
from kstore.files._index_search cimport TimeEntries
from kstore.files._log_search cimport Found, look_behind

cdef extern from *:
    """
    #include "tuples.h"
    static PyObject *ks_pair(PyObject *type, int64_t first, int64_t second) {
        PyObject *pair = ks_new_tuple((PyTypeObject *)type, 2);
        if (!pair) return NULL;
        PyTuple_SET_ITEM(pair, 0, PyLong_FromLongLong(first));
        PyTuple_SET_ITEM(pair, 1, PyLong_FromLongLong(second));
        if (PyTuple_GET_ITEM(pair, 0) && PyTuple_GET_ITEM(pair, 1)) return pair;
        Py_DECREF(pair);
        return NULL;
    }
    """
    object pair "ks_pair"(PyObject *type, int64_t first, int64_t second)

from bisect import bisect_left, bisect_right

from kstore.base import times
from kstore.errors import CorruptIndexError, StorageError
from kstore.log.reading.view import steadily
from kstore.log.segments import time_search
from kstore.types import TimestampOffset


@cython.binding(True)                    # a method of a Python class
def offset_for_timestamp(self, timestamp: int | datetime) -> TimestampOffset | None:
    """Find the lowest offset whose timestamp is at or after `timestamp`.

    Args:
        timestamp: Milliseconds since the epoch, or a `datetime` with a time zone, rounded down to the millisecond as
            in an append.

    Returns:
        The record's timestamp and offset; None if there is no such record.

    Raises:
        InvalidTimestampError: If the `datetime` has no time zone.
        CorruptRecordError: If the header of a batch is malformed.

    Example:
        >>> from datetime import UTC, datetime
        >>> with kstore.Log.open("data/degrees-0") as degrees:
        ...     info = degrees.append_columns([b"20", b"21"], timestamps=[1_764_000_000_000, 1_764_000_060_000])
        ...     print(degrees.offset_for_timestamp(datetime(2025, 11, 24, 16, 0, 30, tzinfo=UTC)))
        TimestampOffset(timestamp=1764000060000, offset=1)
    """
    return first_at(self._view, timestamp)


cdef class ActiveEnd:
    """Base class of the appender: says where the active segment ends."""

    cpdef int64_t published_bytes(self, int64_t base_offset):
        """Return the size of the segment with this base offset if it is the active one, else -1."""
        return -1


cpdef object first_at(view: View, timestamp: int | datetime, int64_t least_offset=-1):  # type: TimestampOffset | None
    """Find the lowest offset at or above the log start whose timestamp is at or after `timestamp` (SEMANTICS 5.5).

    `timestamp` is as in `times.moment`. Unlike in Kafka, the search continues after the first candidate segment
    (SEMANTICS 5.6). The greatest timestamps of the searched segments are saved for later searches. Records below
    `least_offset` are left out.
    """
    cdef int64_t wanted
    if type(timestamp) is not int or not -0x8000000000000000 <= timestamp <= 0x7fffffffffffffff:
        timestamp = times.moment("timestamp", timestamp)
    wanted = timestamp
    answer = _near(view, wanted) if view.is_own and least_offset < 0 else None
    return steadily(_look, view, wanted, least_offset, view=view) if answer is None else answer


cdef object _near(view, int64_t timestamp):
    """Return the record if it is in the first candidate segment and the segment's open files lead to it, else None."""
    cdef Guard guard = view.guard
    cdef int64_t seen = guard.version
    cdef int64_t end
    cdef Found found
    cdef tuple items
    if view.closed or timestamp <= 0:
        return None
    segments = view.segments
    items = segments.items
    if not items:
        return None
    start = view.log_start_offset
    segment = items[_first(segments, start, timestamp) if len(items) > 1 else 0]
    file, time_index, offset_index = segment._file, segment._time_index, segment._offset_index
    if file is None or time_index is None or offset_index is None:
        return None
    segment._used = True
    end = (<ActiveEnd?> view.appender).published_bytes((<TimeEntries?> time_index).base_offset)
    try:
        if end < 0:
            end = segment.size_bytes
        if not look_behind(file.fd, end, timestamp, start, time_index, offset_index, view.max_decompressed_bytes, True,
                           &found):
            return None
    except (CorruptIndexError, StorageError):   # `_look` finds out whether the log has changed or is damaged
        return None
    if guard.version != seen:
        return None
    return pair(<PyObject *> TimestampOffset, found.timestamp, found.offset)


cdef Py_ssize_t _first(segments, int64_t start, int64_t timestamp) except -1:
    """Return the number of the first candidate: the segments before it end below `start` or have earlier timestamps."""
    cdef Py_ssize_t first = max(<Py_ssize_t> bisect_right(segments.bases, start) - 1, 0)
    noted = segments.maxima
    return max(first, <Py_ssize_t> bisect_left(noted, timestamp)) if noted else first


cpdef object _look(view, int64_t timestamp, int64_t least_offset):
    cdef Py_ssize_t number, notes
    cdef int64_t largest
    cdef list found = None
    cdef tuple items
    start = max(view.log_start_offset, least_offset)
    segments = view.segments
    items = segments.items
    noted, answer = segments.maxima, None
    notes = len(noted)
    for number in range(_first(segments, start, timestamp), len(items)):
        segment = items[number]
        largest = view.maximum(segment)[0]
        if number == notes < len(items) - 1 and largest >= 0 and not segment.times_doubted:
            if found is None:
                found = []
            found.append(largest)
            notes += 1
        if largest < 0 and view.readable_bytes(segment):
            largest = segment.largest_timestamp()
        if largest >= timestamp or segment.times_doubted:
            record = time_search.find_timestamp(
                segment, timestamp, start, view.readable_bytes(segment), view.max_decompressed_bytes)
            if record is not None:
                answer = TimestampOffset(record[0], record[1])
                break
    if found is not None:
        segments.note_maxima(noted, found)
    if answer is None:
        view.check_end()
    return answer
