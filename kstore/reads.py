"""The reading half of `Log`: iterators, raw fetches, lookups by time; how a log is read is in reading.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from kstore import _core, arguments, reading
from kstore.reading import FetchResult, View

Isolation = Literal["read_uncommitted", "read_committed"]
OnLag = Literal["raise", "start"]


def check_on_lag(on_lag: OnLag) -> None:
    """Refuse what is no answer to the question what a reader does that falls behind the log start."""
    if on_lag not in ("raise", "start"):
        raise ValueError(f"on_lag is {on_lag!r}; 'raise' and 'start' are allowed")


class TimestampOffset(NamedTuple):
    """A record's timestamp in milliseconds and its offset."""

    timestamp: int
    offset: int


class Reads:
    """What can be read of a `Log`; see there about threads."""

    _view: View

    def read(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | None = None,
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Iterator[_core.Record]:
        """Iterate over the records of `[offset, end_offset)`, over segment borders.

        Starts at `offset`, or at the first record at or after `start_timestamp`, or at the log start; ends where the
        log ends now, unless `follow`, which waits for more and ends after `timeout` seconds without a new record.
        With `durable` it ends, or waits, at the recovery point: what it gives survives the machine. That is what the
        writer has flushed, and in another process what it has written down of that, once a minute or so (12.7).
        With `isolation="read_committed"` it ends, or waits, at the last stable offset, where the earliest open
        transaction begins, and leaves out the records of aborted ones.
        Control records are left out. Raises `OffsetOutOfRangeError` at once for an offset outside the log, and from
        the iterator when retention, `delete_records` or a truncation overtakes it; `CorruptRecordError` for a batch
        whose CRC does not hold; `LogClosedError`. With `on_lag="start"` what has gone below the log start is passed
        over, at once and when retention or `delete_records` overtakes the iterator; `OffsetOutOfRangeError` is then
        for what a truncation took, and for an offset above the log end. One iterator belongs to one thread at a time.
        """
        stretch, start, end = self._stretch(
            offset, end_offset, start_timestamp, isolation, follow, timeout, durable, on_lag
        )
        view = self._view
        return _core.RecordIterator(
            stretch, start, end, guard=view.guard, max_decompressed_bytes=view.max_decompressed_bytes
        )

    def read_batches(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | None = None,
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
        stretch, start, end = self._stretch(
            offset, end_offset, start_timestamp, isolation, follow, timeout, durable, on_lag
        )
        view = self._view
        return _core.BatchIterator(
            stretch, start, end, guard=view.guard, max_decompressed_bytes=view.max_decompressed_bytes
        )

    def _stretch(
        self,
        offset: int | None,
        end_offset: int | None,
        start_timestamp: int | None,
        isolation: Isolation,
        follow: bool,
        timeout: float | None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> tuple[reading.Stretch, int, int]:
        committed = self._check_isolation(isolation)
        check_on_lag(on_lag)
        timeout = arguments.seconds("timeout", timeout)
        if offset is not None:
            offset = arguments.whole("offset", offset)
        if end_offset is not None:
            end_offset = arguments.integer("end_offset", end_offset)
        if start_timestamp is not None:
            if offset is not None:
                raise ValueError("give an offset or a start_timestamp, not both")
            start_timestamp = arguments.integer("start_timestamp", start_timestamp)
            found = reading.offset_for_timestamp(self._view, start_timestamp)
            offset = found[1] if found is not None else self._view.log_end_offset
        stretch, start, end = reading.stretch(
            self._view, offset, end_offset, follow, timeout, durable, on_lag == "start", committed
        )
        stretch.owner = self
        return stretch, start, end

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
        (producer id, first offset) of those whose batches its reader has to leave out, perhaps of more (4.11). Raises
        `OffsetOutOfRangeError`.
        """
        committed = self._check_isolation(isolation)
        offset = arguments.whole("offset", offset)
        max_bytes = arguments.whole("max_bytes", max_bytes)
        return reading.fetch(self._view, offset, max_bytes, min_one_message=min_one_message, committed=committed)

    def _check_isolation(self, isolation: Isolation) -> bool:
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation is {isolation!r}; 'read_uncommitted' and 'read_committed' are allowed")
        return isolation == "read_committed"

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Find the lowest offset whose timestamp is at or after `timestamp`; None when there is none."""
        found = reading.offset_for_timestamp(self._view, arguments.integer("timestamp", timestamp))
        return None if found is None else TimestampOffset(*found)

    def max_timestamp(self) -> TimestampOffset | None:
        """Find the greatest timestamp and the first record that has it; None in a log without timestamps."""
        found = reading.max_timestamp(self._view)
        return None if found is None else TimestampOffset(*found)
