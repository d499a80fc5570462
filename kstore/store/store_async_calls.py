"""`StoreAwaits`: the asynchronous calls of a `Store`. asyncio is imported when the first of them is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from kstore.base import arguments
from kstore.log.reading.read_options import Isolation, OnLag
from kstore.store.manager import LogManager
from kstore.store.read_only_logs import LogReaders, Logs
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics.topic_append import TopicAppender
from kstore.store.topics.topic_reader import ReadRange, TopicReader
from kstore.types import RecordMetadata

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from kstore.base.loops import Turns
    from kstore.columns._columns import Columns
    from kstore.log.async_flush import Flushers
    from kstore.log.async_stream import Stream
    from kstore.log.column_reads import Layout
    from kstore.types import Headers


class StoreAwaits:
    """What a `Store` offers to the tasks of event loops. Any loop in any thread may call it, several at once."""

    _appender: TopicAppender
    _reader: TopicReader
    _logs: LogManager | LogReaders
    _turns: Turns | None = None
    _flushers: Flushers | None = None

    async def aappend(
        self,
        topic: str,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """Append one record as `append` does; where it went, and its timestamp there.

        Where it is written, what `sync=True` waits for, and what a cancelled call has appended is as in
        `Log.aappend`. Raises what `append` raises, and `RuntimeError` without an asyncio event loop.
        """
        turns = self._turns or self._begin_awaiting()
        if turns.is_over():
            await turns.give_way()
        appended = self._appender.append(topic, value, key, partition, timestamp, headers, False, expected_offset)
        if sync:
            await self._reader.log(topic, appended.partition).aflush()
        return appended

    async def aflush(self) -> None:
        """Return once everything appended before the call, in every topic, is on the disk, as `flush` does.

        A thread of the loop's executor does it, once for all tasks that wait at the same time. A cancelled call waits
        no longer, and changes nothing. Raises what `flush` raises.
        """
        flushers = self._flushers
        if flushers is None:
            from kstore.log.async_flush import Flushers

            flushers = self._flushers = Flushers(partial(_flush, self._logs))
        await flushers.flushed()

    def aread(
        self,
        topics: str | Iterable[str],
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        merge: Literal["partition", "timestamp"] = "partition",
        isolation: Isolation = "read_uncommitted",
        follow: bool = False,
        timeout: float | None = None,
        durable: bool = False,
        on_lag: OnLag = "raise",
    ) -> Stream[ConsumerRecord]:
        """Iterate over the records of a topic, or of several, with `async for`; the arguments are those of `read`.

        Several topics are read one after the other; with `follow` what comes to any of them is given as it comes.
        `partitions` and `offsets` are for a single topic. How files are read, how a follower is woken, and what a
        cancelled `anext` means is as in `Log.aread`; new partitions are noticed within a quarter of a second. Raises as
        `read` does. One iterator belongs to one task at a time.
        """
        from kstore.log.async_stream import Stream
        from kstore.store.topics.async_topic_source import TopicSource

        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise ValueError("topics is empty; one topic at least is needed")
        if len(names) > 1 and (partitions is not None or offsets is not None):
            raise ValueError(f"partitions and offsets are for a single topic, not for {len(names)}")
        timeout = arguments.seconds("timeout", timeout)
        wanted = ReadRange(partitions, offsets, start_timestamp)
        passes = [
            self._reader.begin(topic, wanted, merge=merge, durable=durable, on_lag=on_lag, isolation=isolation)
            for topic in names
        ]
        if follow:
            return Stream([], TopicSource(passes), timeout)
        return Stream([each.records(each.rounds()) for each in passes])

    def aread_columns(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        start_timestamp: int | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        layout: Layout = "binary",
        isolation: Isolation = "read_uncommitted",
        durable: bool = False,
        threads: int | None = None,
    ) -> AsyncIterator[tuple[int, Columns]]:
        """Iterate over the records of a topic as columns with `async for`: `(partition, chunk)`.

        The arguments and the chunks are those of `read_columns`. Each chunk is made by a thread of the loop's executor,
        when it is asked for and not before, but for those that other `threads` read ahead. A cancelled `anext` loses
        none: the next one gives it. Raises as `read_columns` does. One iterator belongs to one task at a time.
        """
        from kstore.log.async_stream import InThread, Stream

        chunks = self._reader.read_columns(
            topic,
            ReadRange(partitions, offsets, start_timestamp),
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


def _flush(logs: Logs) -> None:
    manager = logs.writing()
    manager.flush()
    manager.stand_in()
