"""A reader's promise about the order of times: no record is older than one before it by more than some milliseconds.

The promise lets an upper bound of time end a read. Where a record that is read anyway breaks it, that is an error.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from kstore.base import times
from kstore.base.numbers import LONG_MAX, LONG_MIN
from kstore.errors import InvalidTimestampError
from kstore.log.hosted_log import HostedLog
from kstore.log.reading._timestamp_lookup import first_at
from kstore.log.reading.remote_view import RemoteView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kstore.columns._columns import Columns
    from kstore.log.log import Log
    from kstore.log.reading.view import View


FEW_SEGMENTS = 16  # of which each tells its greatest time as fast


def start_by(log: Log, timestamp: int, most_ms: int) -> int:
    """Return an offset below which all records are before `timestamp`.

    The promise tells it of the records before a segment from the segment's first batch, or from its greatest timestamp
    if that takes fewer requests. So few of many segments are looked at. Without the promise each earlier segment has to
    tell its greatest timestamp.
    """
    view = HostedLog(log).view
    view.refresh()
    start = view.log_start_offset
    bases = view.segments.bases
    least = max(bisect_right(bases, start) - 1, 0)
    if len(bases) - least <= FEW_SEGMENTS or (isinstance(view, RemoteView) and view.few_unknown(FEW_SEGMENTS)):
        return start
    sought = timestamp - most_ms

    def is_before(number: int) -> bool:
        if isinstance(view, RemoteView):  # one small file
            return 0 <= view.maximum(view.segments.items[number])[0] < sought
        first = _first_batch(log, bases[number])
        # The time of a transaction's end is a clock's; an old format has no first timestamp in a header.
        is_known = len(first) and first["magic"][0] == 2 and not first["is_control"][0]
        return bool(is_known) and 0 <= int(first["max_timestamp"][0]) < sought

    low, high = least, len(bases) - 1
    if isinstance(view, RemoteView):
        high -= 1  # the last segment's files may be as large as those that are written
    while low < high:
        middle = (low + high + 1) // 2
        if is_before(middle):
            low = middle
        else:
            high = middle - 1
    if isinstance(view, RemoteView):
        # A segment that has no records tells nothing of those before it: its time is that of transactions' ends.
        while low > least and not (is_before(low) and not _first_batch(log, bases[low])["is_control"].any()):
            low -= 1
    return max(bases[low], start)


def _first_batch(log: Log, base_offset: int) -> Columns:
    """Return the header of a segment's first batch, as `Log.batch_table` does."""
    return log.batch_table(base_offset, end_offset=base_offset + 1)


def end_by(log: Log, timestamp: int, most_ms: int, option: str, start: int = -1) -> int | None:
    """Return an offset from which on all records are at or after `timestamp`; None if none is known.

    All records below `start` are before `timestamp`. `option` is the name of the promise in errors. Raises
    `InvalidTimestampError` if the log's last batch breaks it.
    """
    view, after = HostedLog(log).view, min(timestamp + most_ms, LONG_MAX)
    if isinstance(view, RemoteView):
        start = max(start, start_by(log, after, most_ms))
    first = first_at(view, after, start)
    if first is None or log.batch_table(first.offset, end_offset=first.offset + 1)["is_control"].any():
        return None  # the end of a transaction: its time is a clock's, and says nothing of records
    # A record with a time in the future would end each scan, and nothing after it would be read and checked.
    where, greatest = _time_at_end(log, view, first.offset)
    if greatest is not None and greatest < first.timestamp - most_ms:
        raise _too_late(f"{log.topic}-{log.partition}", where, greatest, first.timestamp, most_ms, option)
    return first.offset


def _time_at_end(log: Log, view: View, offset: int) -> tuple[str, int | None]:
    """Return the greatest timestamp of what lies at the end of the log, behind `offset`; None if it is not known.

    That is the last batch. In an object store it is the last sealed segment, if one begins behind `offset`: its time is
    known, or takes a request for a small file.
    """
    sealed = view.segments.items[-2:-1]
    if isinstance(view, RemoteView) and sealed and sealed[0].base_offset > offset:
        greatest = view.maximum(sealed[0])[0]
        where = f"the last sealed segment, from offset {sealed[0].base_offset} on,"
        return where, greatest if greatest >= 0 else None
    last = log.batch_table(log.log_end_offset - 1)
    if not len(last) or last["is_control"][0] or last["magic"][0] != 2:
        return "", None
    return f"the last record, at offset {last['last_offset'][0]},", int(last["max_timestamp"][0])


class LatenessCheck:
    """Checks the promise while chunks of one partition are read in order. Not thread-safe."""

    def __init__(self, name: str, most_ms: int, option: str) -> None:
        self._name = name
        self._most_ms = most_ms
        self._option = option
        self._greatest = LONG_MIN + most_ms  # so that no difference is below the least integer

    def see(self, chunk: Columns) -> None:
        """Raise `InvalidTimestampError` if a record is older than one before it by more than was promised."""
        timestamps = chunk["timestamp"]
        greatest = np.maximum(np.maximum.accumulate(timestamps), self._greatest)
        late: NDArray[np.bool_] = timestamps < greatest - self._most_ms
        if late.any():
            row = int(np.argmax(late))
            where = f"the record at offset {chunk['offset'][row]}"
            raise _too_late(self._name, where, int(timestamps[row]), int(greatest[row]), self._most_ms, self._option)
        if len(greatest):
            self._greatest = int(greatest[-1])


def _too_late(name: str, where: str, timestamp: int, greatest: int, most_ms: int, option: str) -> InvalidTimestampError:
    """Return the error for a record that breaks the promise of a partition."""
    said = f"the timestamp {times.show(timestamp)}, and one before it has {times.show(greatest)}"
    return InvalidTimestampError(f"{name}: {where} has {said}: that is later by more than {option}, {most_ms} ms")
