"""`TopicStream`: a topic as a stream of Arrow record batches, one partition after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kstore.columns import _arrow_stream, _columns, _joined_columns
from kstore.log.column_reads import SharedEnd, stream_fields
from kstore.store.topics.topic_reader import ColumnOptions, TopicRead, TopicReader

if TYPE_CHECKING:
    from kstore.columns._columns import Columns

DEFAULT_COLUMNS = ("partition", *_columns.DEFAULT_COLUMNS)
COLUMN_NAMES = ("partition", *_columns.COLUMN_NAMES)


class TopicStream:
    """A topic as an Arrow stream of partition, offset, timestamp, key and value, returned by `Store.topic_stream`.

    `duckdb.sql("from stream")`, by the name of the variable, `polars.DataFrame(stream)`, `pyarrow.table(stream)` and
    `pandas.DataFrame.from_arrow(stream)` read all partitions, one after the other, in the order of their numbers. Each
    reads the topic anew, up to its present end, and the whole of it: `kstore.dataset` reads only what a query needs.
    Records of open and aborted transactions are not left out.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders", partitions=2)
        >>> place = store.append("orders", b"3 apples", key=b"alice")
        >>> orders = store.topic_stream("orders")
        >>> import pyarrow
        >>> pyarrow.table(orders).select(["partition", "value"]).to_pylist()
        [{'partition': 1, 'value': b'3 apples'}]
        >>> place = store.append("orders", b"1 pear", key=b"bob")
        >>> pyarrow.table(orders).num_rows
        2

    Thread-safe.
    """

    topic: str
    """The topic."""

    def __init__(self, reader: TopicReader, topic: str, owner: object) -> None:
        self.topic = topic
        self._reader = reader
        self._owner = owner  # a store that nothing else holds stays open
        self._end: SharedEnd[dict[int, int]] = SharedEnd()

    def __arrow_c_schema__(self) -> object:
        """Describe the record batches of `__arrow_c_stream__` to Arrow."""
        return _columns.schema_capsule(_columns.fields_of(DEFAULT_COLUMNS, "binary"))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the whole topic as a new Arrow stream.

        Some libraries call this several times for one query. So while a stream made here is open, every further one
        ends at the same offsets. A stream made when no other is open ends at the ends of the partitions at that time.

        Args:
            requested_schema: The columns to stream: `partition` and any that `Log.read_columns` knows, bytes in any
                layout or as strings.

        Returns:
            A PyCapsule with an ArrowArrayStream.

        Raises:
            UnknownTopicOrPartitionError: If the topic has been deleted.
            ValueError: If the requested schema has a column or type that the topic cannot deliver.
        """
        fields, layout = stream_fields(COLUMN_NAMES, DEFAULT_COLUMNS, requested_schema)
        names = tuple(name for name, _ in fields)
        stored = [name for name in names if name != "partition"] or ["offset"]
        end = self._end.get(lambda: self._reader.end_offsets(self.topic))
        chunks = self._reader.read_columns(
            self.topic,
            TopicRead(partitions=end.value, end_offsets=end.value),
            ColumnOptions(None, None, stored, layout, "read_uncommitted", False, None),
        )
        return _arrow_stream.stream_capsule(self._labelled(chunks, names), fields, end)

    def _labelled(self, chunks: Iterator[tuple[int, Columns]], names: tuple[str, ...]) -> Iterator[Columns]:
        for number, chunk in chunks:
            yield _joined_columns.joined([chunk], names, partitions=[number])

    def __repr__(self) -> str:
        return f"<kstore.TopicStream {self.topic!r}>"
