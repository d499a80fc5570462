# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The search by time, compiled: most of its time would else be Python's, as it reads little.

Which segments a search looks at is decided here, where in a segment by `Segment.find_timestamp`. Takes no lock.
"""

from libc.stdint cimport int64_t

from kstore._core cimport Guard

from bisect import bisect_left, bisect_right

from kstore.base import times
from kstore.errors import CorruptRecordError, StorageError
from kstore.log.viewing.view import steadily
from kstore.types import TimestampOffset

cdef object NEW_TUPLE = tuple.__new__


def offset_for_timestamp(view, timestamp):
    """Find the lowest offset at or above the log start whose timestamp is at or after `timestamp` (SEMANTICS 5.5).

    `timestamp` is as `times.moment` takes it. Unlike Kafka's, the search goes on behind the first candidate segment
    (SEMANTICS 5.6). The segments that a search has passed are noted, so that a later one need not ask each of them
    again.
    """
    cdef Guard guard = view.guard
    cdef int64_t seen, wanted
    if type(timestamp) is not int or not -0x8000000000000000 <= timestamp <= 0x7fffffffffffffff:
        timestamp = times.moment("timestamp", timestamp)
    wanted = timestamp
    view.refresh()
    seen = guard.version
    try:
        answer = _look(view, wanted)
        view.refresh()
        if guard.version == seen:
            return answer
    except (CorruptRecordError, StorageError):
        pass                               # looked at once more, it shows whether the log has only changed meanwhile
    return steadily(_look, view, wanted, view=view)


cpdef object _look(view, int64_t timestamp):
    cdef Py_ssize_t number, first, notes
    cdef int64_t largest
    cdef list found = None
    cdef tuple items
    start = view.log_start_offset
    segments = view.segments
    items = segments.items
    noted, answer = segments.maxima, None
    notes = len(noted)
    first = max(<Py_ssize_t> bisect_right(segments.bases, start) - 1, 0)
    if notes:
        first = max(first, <Py_ssize_t> bisect_left(noted, timestamp))   # the segments before it have earlier times only
    for number in range(first, len(items)):
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
            record = segment.find_timestamp(timestamp, start, view.readable_bytes(segment), view.max_decompressed_bytes)
            if record is not None:
                answer = NEW_TUPLE(TimestampOffset, (record[0], record[1]))
                break
    if found is not None:
        segments.note_maxima(noted, found)
    if answer is None:
        view.check_end()
    return answer
