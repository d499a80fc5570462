"""A reader's promise about the order of times: no record is older than one before it by more than some milliseconds.

The promise lets an upper bound of time end a read. Where a record that is read anyway breaks it, that is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kstore.base import times
from kstore.base.numbers import LONG_MAX, LONG_MIN
from kstore.errors import InvalidTimestampError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kstore.columns._columns import Columns
    from kstore.log.log import Log


def end_by(log: Log, timestamp: int, most_ms: int, option: str) -> int | None:
    """Return an offset from which on all records are at or after `timestamp`; None if none is known.

    `option` is the name of the promise in errors. Raises `InvalidTimestampError` if the log's last batch breaks it.
    """
    first = log.offset_for_timestamp(min(timestamp + most_ms, LONG_MAX))
    if first is None or log.batch_table(first.offset, end_offset=first.offset + 1)["is_control"].any():
        return None  # the end of a transaction: its time is a clock's, and says nothing of records
    # A record with a time in the future would end each scan, and nothing after it would be read and checked.
    last = log.batch_table(log.log_end_offset - 1)
    if len(last) and not last["is_control"][0] and last["magic"][0] == 2:
        greatest = int(last["max_timestamp"][0])
        if greatest < first.timestamp - most_ms:
            where = f"the last record, at offset {last['last_offset'][0]},"
            raise _too_late(f"{log.topic}-{log.partition}", where, greatest, first.timestamp, most_ms, option)
    return first.offset


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
