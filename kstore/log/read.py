"""The reading half of `Log`: iterators, raw fetches, lookups by time, producers. The work is in `log.viewing`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from kstore import _core
from kstore.base import arguments, times
from kstore.log.reading import _timestamp_lookup, fetch
from kstore.log.reading.fetch import FetchResult
from kstore.log.reading.log_reader import LogReader, ReadOptions, open_reader
from kstore.log.reading.view import View
from kstore.log.segments.producer_state import ProducerInfo
from kstore.types import TimestampOffset

Isolation = Literal["read_uncommitted", "read_committed"]
OnLag = Literal["raise", "start"]


def wants_committed(isolation: Isolation) -> bool:
    """Whether `isolation` leaves out what is undecided or aborted; `ValueError` for an unknown one."""
    if isolation not in ("read_uncommitted", "read_committed"):
        raise ValueError(f"isolation is {isolation!r}; 'read_uncommitted' and 'read_committed' are allowed")
    return isolation == "read_committed"


def check_on_lag(on_lag: OnLag) -> None:
    """Refuse a value of `on_lag` that does not exist."""
    if on_lag not in ("raise", "start"):
        raise ValueError(f"on_lag is {on_lag!r}; 'raise' and 'start' are allowed")


def read_options(
    end_offset: int | None,
    isolation: Isolation,
    durable: bool,
    follow: bool = False,
    timeout: float | None = None,
    on_lag: OnLag = "raise",
) -> ReadOptions:
    """Check what a caller says of a pass over a log."""
    committed = isolation != "read_uncommitted" and wants_committed(isolation)
    if on_lag != "raise":
        check_on_lag(on_lag)
    if timeout is not None:
        timeout = arguments.seconds("timeout", timeout)
    if end_offset is not None:
        end_offset = arguments.integer("end_offset", end_offset)
    return ReadOptions(end_offset, committed, durable, follow, timeout, on_lag == "start")


class Reads:
    """What can be read of a `Log`; see there about threads."""

    _view: View

    offset_for_timestamp = _timestamp_lookup.offset_for_timestamp

    def read(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[_core.Record]:
        """Iterate over the records of `[offset, end_offset)`, over segment borders.

        Starts at `offset`, or at the first record at or after `start_timestamp` (milliseconds, or a `datetime` with a
        time zone), or at the log start; ends where the
        log ends now, unless `follow`, which waits for more and ends after `timeout` seconds without a new record.
        With `durable` it ends, or waits, at the recovery point: what it gives survives the machine. That is what the
        writer has flushed, and in another process what it has written down of that, once a minute or so
        (SEMANTICS 12.7). With `isolation="read_committed"` it ends, or waits, at the last stable offset, where the
        earliest open transaction begins, and leaves out the records of aborted ones.
        Control records are left out. Raises `OffsetOutOfRangeError` at once for an offset outside the log, and from
        the iterator when retention, `delete_records` or a truncation overtakes it; `CorruptRecordError` for a batch
        whose CRC does not hold; `LogClosedError`. With `on_lag="start"` what was deleted below the log start is passed
        over, at once and when retention or `delete_records` overtakes the iterator; `OffsetOutOfRangeError` is then
        for what a truncation took, and for an offset above the log end. One iterator belongs to one thread at a time.
        """
        options = read_options(end_offset, isolation, durable, follow, timeout, on_lag)
        reader = self._open_reader(offset, start_timestamp, options)
        view = self._view
        return _core.RecordIterator(
            reader,
            reader.offset,
            reader.end_offset,
            guard=view.guard,
            max_decompressed_bytes=view.max_decompressed_bytes,
        )

    def read_batches(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[_core.RecordBatch]:
        """Iterate over the batches that hold records of `[offset, end_offset)`, control batches included.

        The first may begin below `offset` and the last reach past `end_offset`. Each batch owns its bytes. Otherwise
        as `read`.
        """
        options = read_options(end_offset, isolation, durable, follow, timeout, on_lag)
        reader = self._open_reader(offset, start_timestamp, options)
        view = self._view
        return _core.BatchIterator(
            reader,
            reader.offset,
            # Without a record in between no batch is given, though one batch may hold both offsets.
            reader.end_offset if reader.end_offset > reader.offset else 0,
            guard=view.guard,
            max_decompressed_bytes=view.max_decompressed_bytes,
        )

    def _open_reader(
        self, offset: int | None, start_timestamp: int | datetime | None, options: ReadOptions
    ) -> LogReader:
        """Begin to read at an offset, or at the first record at or after a timestamp."""
        if offset is not None:
            offset = arguments.whole("offset", offset)
        if start_timestamp is not None:
            if offset is not None:
                raise ValueError("give an offset or a start_timestamp, not both")
            first = self.offset_for_timestamp(times.moment("start_timestamp", start_timestamp))
            offset = self._view.log_end_offset if first is None else first.offset
        reader = open_reader(self._view, offset, options)
        reader.owner = self
        return reader

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: Isolation = "read_uncommitted",
        min_one_message: bool = True,
    ) -> FetchResult:
        """Read raw batches from the one that holds `offset` on, `max_bytes` of one segment at the most.

        With `min_one_message` the first batch comes whole even if it is larger; the last may be cut off. With
        `isolation="read_committed"` they end at the last stable offset, and the answer's `aborted_transactions` are
        (producer id, first offset) of those whose batches its reader has to leave out, perhaps of more
        (SEMANTICS 4.11). Raises `OffsetOutOfRangeError`.
        """
        committed = wants_committed(isolation)
        offset = arguments.whole("offset", offset)
        max_bytes = arguments.whole("max_bytes", max_bytes)
        return fetch.fetch(self._view, offset, max_bytes, min_one_message=min_one_message, committed=committed)

    def max_timestamp(self) -> TimestampOffset | None:
        """Find the greatest timestamp of a record and the first record that has it; None in a log without timestamps.

        As in Kafka, what the log's files hold counts: after `delete_records` the record may lie below
        `log_start_offset`, where it cannot be read, until its segment is deleted.
        """
        return fetch.max_timestamp(self._view)

    def producer_states(self) -> list[ProducerInfo]:
        """What the log knows of each producer id, in order: epochs, last batches, open transaction.

        In mode "r" it is found from the newest snapshot and the batches after it, and has producers, too, that the
        writer has forgotten since they expired (SEMANTICS 9.21). Raises `LogClosedError`, and in mode "r" also
        `CorruptRecordError` and `StorageError`.
        """
        view = self._view
        view.refresh()
        return view.producer_states()
