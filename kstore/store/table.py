"""`Store.table`: the newest record of each key of a topic, from the tables of its partitions (`log.log_table`).

Invariant: every partition is a separate table, so that the result does not change when a tombstone is cleaned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING

from kstore.base import arguments
from kstore.base.optional import Late
from kstore.base.threads import Workers
from kstore.base.times import refuse_naive
from kstore.columns import _joined_columns
from kstore.columns._columns import Columns
from kstore.columns._latest_offsets import new_secret, share_keys
from kstore.columns.keyed_rows import ROW_COLUMNS, KeyedRows
from kstore.errors import KStoreError
from kstore.log.hosted_log import HostedLog
from kstore.log.log_table import Newest, collect, row_parts
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs
from kstore.store.topics._consume import ConsumerRecord
from kstore.store.topics.topic_follow import TopicView

if TYPE_CHECKING:
    import numpy as np
else:
    np = Late("numpy")

MOST_THREADS = min(4, os.cpu_count() or 1)


class Table(KeyedRows[ConsumerRecord]):
    """The newest record of each key of a topic, as `Store.table` read them: a snapshot.

    Iterating yields the records partition by partition in the order of their offsets. `table[key]` is the
    `ConsumerRecord` of a key (bytes) and `len` the number of keys; `key in table`, `get`, `keys` and `items` work as
    with a dict. `columns()` returns the table as columns, including a column `partition`, and Arrow libraries accept
    the table itself: `polars.DataFrame(table)`, `pyarrow.table(table)`. In names of headers, bytes that are not UTF-8
    are replaced by U+FFFD, as in columns.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders", partitions=2)
        >>> records = [(b"alice", b"3 apples"), (b"bob", b"1 pear"), (b"alice", b"4 apples")]
        >>> appended = store.append_many("orders", records)
        >>> table = store.table("orders")
        >>> len(table), table[b"alice"].value, b"carol" in table
        (2, b'4 apples', False)

    Immutable and thread-safe.
    """

    topic: str
    """The topic."""

    end_offsets: dict[int, int]
    """For each partition the offset below which its records are in the table."""

    _names = ("partition", *ROW_COLUMNS)

    def __init__(self, topic: str, newest: Mapping[int, Newest]) -> None:
        parts = [(number, chunk) for number, of_one in newest.items() for chunk in of_one.part.chunks]
        super().__init__([of_one.part for of_one in newest.values()])
        self.topic = topic
        self.end_offsets = {number: of_one.end_offset for number, of_one in newest.items()}
        self._partitions = {id(chunk): number for number, chunk in parts}  # the chunks live as long as the table

    def _rows(self, chunk: Columns, first: int, stop: int) -> Iterator[ConsumerRecord]:
        where = repeat(self.topic), repeat(self._partitions[id(chunk)])
        return map(ConsumerRecord, *where, *row_parts(chunk, first, stop))

    def _labelled(self, numbers: Sequence[int], names: tuple[str, ...]) -> Columns:
        chunks = [self._chunks[number] for number in numbers]
        return _joined_columns.joined(chunks, names, partitions=[self._partitions[id(chunk)] for chunk in chunks])

    def __repr__(self) -> str:
        return f"<kstore.Table {self.topic!r} of {len(self)} keys in {len(self.end_offsets)} partitions>"


class TopicTables:
    """Reads the topics of a store as tables. Thread-safe."""

    def __init__(self, metadata: Metadata, logs: Logs) -> None:
        self._metadata = metadata
        self._logs = logs

    def read(self, topic: str, as_of: datetime | Mapping[int, int] | None) -> Table:
        """Read the table of a topic; see `Store.table`."""
        entries = self._metadata.current().partitions(topic)
        ends: Mapping[int, int] = {}
        if isinstance(as_of, datetime):
            refuse_naive("as_of", as_of)
        elif isinstance(as_of, Mapping):
            ends = {
                arguments.whole("a partition of as_of", number): arguments.whole("an offset of as_of", offset)
                for number, offset in as_of.items()
            }
            for number in ends:
                self._metadata.current().find(topic, number)
        elif as_of is not None:
            raise TypeError(
                f"as_of must be a datetime, a mapping of partitions to offsets or None, not {type(as_of).__name__}"
            )
        numbers = sorted(entries)
        secret = new_secret()

        def read_one(number: int) -> Newest:
            moment = as_of if isinstance(as_of, datetime) else ends.get(number)
            log = self._logs.log(entries[number])
            return collect(HostedLog(log).view, moment, secret, threads=1 if len(numbers) > 1 else None)

        try:
            with Workers(min(MOST_THREADS, len(numbers)), "kstore-table") as pool:
                newest = dict(zip(numbers, pool.map(read_one, numbers), strict=True))
        except KStoreError as error:
            raise TopicView(self._metadata, self._logs, topic).explained(entries, error) from None
        return Table(topic, _each_key_once(newest))


def _each_key_once(newest: dict[int, Newest]) -> dict[int, Newest]:
    """Leave out the older records of keys that are in more than one partition."""
    if not share_keys(of_one.part.newest for of_one in newest.values()):
        return newest
    best: dict[bytes | None, tuple[int, int]] = {}
    for number, of_one in newest.items():
        for chunk in of_one.part.chunks:
            for key, timestamp in zip(chunk.keys, chunk.timestamps.tolist(), strict=True):
                best[key] = max(best.get(key, (timestamp, number)), (timestamp, number))
    once = {}
    for number, of_one in newest.items():
        chunks = []
        for chunk in of_one.part.chunks:
            kept = [row for row, key in enumerate(chunk.keys) if best[key][1] == number]
            chunks.append(
                chunk if len(kept) == len(chunk) else _joined_columns.selected(chunk, np.array(kept, np.int64))
            )
        once[number] = of_one._replace(part=of_one.part._replace(chunks=chunks))
    return once
