"""`Awaits`: the asynchronous calls of a `Log`. asyncio is imported when the first of them is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kstore._core import Record, RecordIterator
from kstore.log.append_columns import ColumnAppends
from kstore.log.log_table import TableReads
from kstore.log.read import Isolation, OnLag, read_options
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.base.loops import Turns
    from kstore.columns._columns import Columns
    from kstore.log.async_flush import Flushers
    from kstore.log.async_stream import Stream
    from kstore.log.read_columns import Layout
    from kstore.types import Headers


class Awaits(ColumnAppends, TableReads):
    """What a `Log` offers to the tasks of event loops. Any loop in any thread may call it, several at once."""

    _turns: Turns | None = None
    _flushers: Flushers | None = None

    async def aappend(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
        leader_epoch: int | None = None,
    ) -> int:
        """Append one record as `append` does, and return its offset.

        The write is made in the loop's thread. With `sync=True` the call then waits until the record is on the disk:
        all tasks that wait for it at the same time share one sync, which a thread of the loop's executor makes. Tasks
        that append again and again give way to the loop's other tasks every half a millisecond.

        Cancelled before the write, the call has appended nothing. With `sync=True` it may be cancelled after the write:
        then the record has been appended, can be read, and is on the disk after the next sync. Raises what `append`
        raises; where the sync fails, or the log is closed meanwhile, the record has been appended and may be lost with
        the machine. `RuntimeError` without an asyncio event loop.
        """
        turns = self._turns or self._begin_awaiting()
        if turns.is_over():
            await turns.give_way()
        offset = -1
        if headers is None and leader_epoch is None and self._appender is not None:
            offset = self._appender.append(value, key, timestamp, expected_offset)
        if offset < 0:
            await self._do_due_work()
            offset = self.append(
                value,
                key,
                timestamp=timestamp,
                headers=headers,
                expected_offset=expected_offset,
                leader_epoch=leader_epoch,
            )
        if sync:
            await self.aflush()
        return offset

    async def aflush(self) -> None:
        """Return once everything appended before the call is on the disk, as `flush` does.

        A thread of the loop's executor makes the sync, one for all tasks that wait at the same time. A cancelled call
        waits no longer, and changes nothing. Raises what `flush` raises; `LogClosedError` if the log is closed
        meanwhile.
        """
        writer = self._writable()
        flushers = self._flushers
        if flushers is None:
            from kstore.log.async_flush import Flushers

            flushers = self._flushers = Flushers(writer.housekeeping.flush)
        await flushers.flushed()

    def aread(
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
    ) -> Stream[Record]:
        """Iterate over the records of `[offset, end_offset)` with `async for`; the arguments are those of `read`.

        Pieces of files, of up to 256 KiB or one larger batch, are read by a thread of the loop's executor, and what was
        appended while the iterator waited, in the loop's thread. After 256 records the loop's other tasks get their
        turn. Nothing is read ahead of the piece, so an iterator that is slow costs no memory, and holds no append back.

        With `follow` the writer wakes the iterator, if it is in this process; a log that another process writes is
        looked at with pauses that grow to a quarter of a second. A cancelled `anext` loses no record: the next one goes
        on. Raises as `read` does, at once for what is wrong with the arguments; `LogClosedError` from the iterator when
        the log is closed. One iterator belongs to one task at a time.
        """
        from kstore.log.async_source import LogSource
        from kstore.log.async_stream import Stream

        options = read_options(end_offset, isolation, durable, follow, timeout, on_lag)
        records = self.read(
            offset,
            end_offset=end_offset,
            start_timestamp=start_timestamp,
            isolation=isolation,
            durable=durable,
            on_lag=on_lag,
        )
        assert isinstance(records, RecordIterator)
        if not follow:
            return Stream([records])
        source = LogSource(self._view, records, options)
        return Stream([], source, options.timeout)

    def aread_columns(
        self,
        offset: int | None = None,
        *,
        end_offset: int | None = None,
        start_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> Stream[Columns]:
        """Iterate over the records of `[offset, end_offset)` as columns with `async for`, chunk by chunk.

        The arguments and the chunks are those of `iter_columns`. Each chunk is made by a thread of the loop's executor,
        when it is asked for and not before, but for those that other `threads` read ahead. A cancelled `anext` loses
        none: the next one gives it. Raises as `iter_columns` does. One iterator belongs to one task at a time.
        """
        from kstore.log.async_stream import InThread, Stream

        chunks = self.iter_columns(
            offset,
            end_offset=end_offset,
            start_timestamp=start_timestamp,
            max_records=max_records,
            max_bytes=max_bytes,
            columns=columns,
            layout=layout,
            isolation=isolation,
            durable=durable,
            threads=threads,
        )
        return Stream([InThread(chunks)])

    def _begin_awaiting(self) -> Turns:
        from kstore.base.loops import Turns

        self._turns = Turns()
        return self._turns

    async def _do_due_work(self) -> None:
        """Have a thread do the work that the next append would do first: syncs, delayed unlinks."""
        writer: Writer = self._leading()
        if writer.appender.now() >= writer.appender.due_ms:
            from kstore.base import loops

            await loops.in_thread(loops.running(), writer.housekeeping.before_append)
