"""Appending whole columns to a topic: rows go by their keys over the partitions' logs.

Routing and encoding are _columnroute's, the way of batches into a log columnappends's. The hardest rule: each partition
gets what `Store.append_many` would give it of the same records, with the same seed byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kstore import arguments
from kstore._columnroute import ColumnSplitter
from kstore._pack import Packer
from kstore.appends import NOT_NUMBERED, AppendInfo
from kstore.columnappends import MAX_THREADS, Line, Works, told
from kstore.columnsources import Columns
from kstore.errors import KStoreError, LogClosedError, StorageError
from kstore.topicwrites import OPEN_BYTES, READY_BYTES, TopicWrites

if TYPE_CHECKING:
    from kstore.producerwrites import Enter, Numbers


class TopicColumnWrites(TopicWrites):
    """What can be appended to a `Store`, columns included; see there about threads."""

    def append_columns(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        partition: int | None = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        threads: int = 1,
        seed: int | None = None,
    ) -> dict[int, AppendInfo]:
        """Append a record for each row of `values`; what each partition got.

        Columns are what `Log.append_columns` takes, `threads` what it does with them; rows go where `append_many`
        sends the same records, in the same batches. When a row is refused, the batches finished before it stay, and
        the error's `appended` tells them in the form of the result. Raises what `Log.append_columns` raises, and
        `UnknownTopicOrPartitionError`. Appends of other threads may come between any two batches.
        """
        return self._append_columns(
            topic, values, keys, timestamps, headers, partition, compression, sync, batch_bytes, threads, seed
        )

    def _append_columns(
        self,
        topic: str,
        values: Any,
        keys: Any,
        timestamps: Any,
        headers: Any,
        partition: int | None,
        compression: str | None,
        sync: bool,
        batch_bytes: int | None,
        threads: int,
        seed: int | None,
        numbers: Numbers | None = None,
        enter: Enter | None = None,
    ) -> dict[int, AppendInfo]:
        """Append a record for each row, with `numbers` if there are any; `enter` is asked before a partition's first.

        A call that is broken off leaves the numbers of its partitions in doubt: the logs are asked before the next.
        """
        route = self._find_route(topic)
        if partition is not None:
            partition = self._catalog.find(topic, arguments.whole("partition", partition)).partition
        router = route.router
        if seed is not None:
            router = self._router(topic, route.entries, arguments.whole("seed", seed))
        batch_bytes = self._batch_bytes(topic, batch_bytes, 1 if partition is not None else len(route.entries))
        works = Works(arguments.integer("threads", threads, 1, MAX_THREADS))
        now_ms = route.now()
        columns = Columns(values, keys, timestamps, headers, now_ms)
        lines: dict[int, Line] = {}

        def make(number: int) -> Packer:
            log = self._log_on(route, topic, number)
            known = NOT_NUMBERED
            if numbers is not None:
                if enter is not None:
                    enter([(topic, number)])
                known = numbers.numbering(numbers.take((topic, number), log))
            line = Line(log, log._compression_id(compression), batch_bytes, now_ms, None, works, known)
            lines[number] = line
            return line.packer

        splitter = ColumnSplitter(
            router,
            make,
            limit_bytes=READY_BYTES,
            most_bytes=OPEN_BYTES,
            sticky_bytes=batch_bytes,
            partition=partition,
        )

        def send() -> None:
            for number, _ in splitter.ready:
                lines[number].send()

        works.last = send
        try:
            with works:
                for rows in columns:
                    while splitter.pack(rows):
                        send()
                splitter.close()
        except StorageError:
            self._routes.pop(topic, None)
            raise
        except LogClosedError as error:
            raise self._closed_or_gone(topic, error) from None
        except KStoreError as error:
            log = next(iter(lines.values())).log if lines else None
            raise told(log, error, _appended(lines)) from None
        if numbers is not None:
            for number in lines:
                place = topic, number
                numbers.used(place, numbers.known(place, self._log_on(route, topic, number)), 0)
        if sync:
            for number in _appended(lines):
                lines[number].log.flush()
        return _appended(lines)


def _appended(lines: dict[int, Line]) -> dict[int, AppendInfo]:
    """What each partition has got, in their order."""
    return {number: line.appended for number, line in sorted(lines.items()) if line.appended.last_offset >= 0}
