"""Reads logs as DataFrames: the driver plans ranges of offsets, and each task reads its range as Arrow batches.

Directories are only read, so that those of a running broker can be scanned. Invariant: a range that can no longer be
read as planned is an error, never a shorter result, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from kstore.base import arguments, optional
from kstore.disk import fs
from kstore.errors import (
    ConfigError,
    CorruptRecordError,
    InvalidTimestampError,
    KStoreError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from kstore.files import checkpoint
from kstore.log import lateness
from kstore.log.column_reads import read_kept
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.reading.remote_view import RemoteView
from kstore.spark.held_store import PREFIX_SCHEMES, Prefix, Roots, held, prefix_at, url_in
from kstore.spark.option_reader import COLUMN_TYPES, Isolation
from kstore.spark.pushdown import NO_FILTERS, Filters
from kstore.spark.spark_options import ReadOptions
from kstore.spark.storage_options import StorageOptions
from kstore.spark.workers import refuse_lost_path, refuse_other_files, refuse_other_python
from kstore.store.catalog import Entry, look
from kstore.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kstore.columns._columns import Columns

logger = logging.getLogger("kstore")

# Limits of a record batch for the JVM, large enough that the fixed cost of a batch does not matter.
CHUNK_RECORDS, CHUNK_BYTES = 32_768, 4 << 20
MAX_LATENESS = "maxLatenessMs"
MOST_MS = (2**63 - 1) // 1000  # the greatest time that fits Spark's microseconds

# The names of the columns in a log. A log has no columns for topic and partition: they are the same in every row.
_IN_LOG = {"key": "key", "value": "value", "offset": "offset", "timestamp": "timestamp"}
_IN_LOG |= {"timestampType": "timestamp_type", "headers": "headers"}


class Piece(NamedTuple):
    """The offsets `[start, end)` of one partition that one task reads. Plain values; can be pickled."""

    path: str
    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None  # at the time of planning; None if the directory has none
    prefix: Prefix | None = None  # of an object store; `path` is then below its URL

    @property
    def name(self) -> str:
        """Topic and partition, for messages."""
        return f"{self.topic}-{self.partition}"


class LogMarks:
    """The `Marks` of a log that is open for reading. Not thread-safe."""

    def __init__(self, log: Log, isolation: Isolation) -> None:
        self._log = log
        self.start = log.log_start_offset
        self.end = max(log.last_stable_offset if isolation == "read_committed" else log.log_end_offset, self.start)

    def at_time(self, timestamp: int) -> int | None:
        """Return the lowest offset whose timestamp is at or after `timestamp`, from the time index."""
        first = self._log.offset_for_timestamp(timestamp)
        return None if first is None else first.offset

    def end_by(self, timestamp: int, max_lateness_ms: int) -> int | None:
        """Return the offset from which on all records are at or after `timestamp`, if none is later than promised.

        Raises `InvalidTimestampError` if the log's last batch breaks the promise.
        """
        return lateness.end_by(self._log, timestamp, max_lateness_ms, MAX_LATENESS)

    def border(self, offset: int) -> int:
        """Return the base offset of the batch that contains `offset`, from the offset index; `offset` if none does.

        In an object store, return where the segment begins if it is fetched as a whole, without a request.
        """
        if not self.start <= offset < self.end:
            return offset
        view = HostedLog(self._log).view
        if isinstance(view, RemoteView):
            return view.fetched_from(offset)
        table = self._log.batch_table(offset, end_offset=offset + 1)
        base = int(table["base_offset"][0]) if len(table) else -1
        return base if 0 <= base <= offset else offset


def directories(root: Roots) -> tuple[str, ...]:
    """Return the log directories of `root`: a path, a `file:` URI, or several.

    Raises `ConfigError` for others, and for a relative path in a directory that Spark deletes.
    """
    paths = []
    for path_like in [root] if isinstance(root, str | os.PathLike) else list(root):
        path = arguments.path("a log directory's path", path_like)
        if "://" in path or path.startswith("file:"):
            parts = urlsplit(path)
            if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
                raise ConfigError(
                    f"{path} is no path of a file system; logs are written where files are, and read there or in an "
                    f"object store ({', '.join(PREFIX_SCHEMES)})"
                )
            path = unquote(parts.path)
        refuse_lost_path(path)
        paths.append(os.path.abspath(path))
    if not paths:
        raise ConfigError("no log directory is given")
    return tuple(paths)


def roots_of(root: Roots) -> tuple[str, ...]:
    """Return the URL of an object store that `root` is, or its directories; raise `ConfigError` for others."""
    url = url_in(root)
    return directories(root) if url is None else (url,)


def plan(
    root: Roots, options: ReadOptions, *, min_partitions: int | None = None, filters: Filters | None = None
) -> list[Piece]:
    """Return the pieces that tasks read, in the order of topic, partition and offset; see `ReadOptions.plan`.

    Raises the errors of `ReadOptions.plan`, `StorageError` if a directory or prefix does not exist,
    `CorruptRecordError`, and `InvalidTimestampError` if the last batch of a log is later than `filters` promises.
    """
    paths = roots_of(root)
    prefix = prefix_at(paths, options.storage)
    if prefix is None:
        return _pieces(paths, options, min_partitions, filters)
    prefix = prefix.planned()
    with prefix.open() as store:
        return [
            piece._replace(path=f"{prefix.url}/{piece.name}", prefix=prefix)
            for piece in _pieces(store.paths, options, min_partitions, filters)
        ]


def _pieces(
    roots: tuple[str, ...], options: ReadOptions, min_partitions: int | None, filters: Filters | None
) -> list[Piece]:
    entries_of: dict[str, dict[int, Entry]] = {}
    for entry in look(roots).entries:
        entries_of.setdefault(entry.topic, {})[entry.partition] = entry
    chosen = options.choose({topic: sorted(numbers) for topic, numbers in entries_of.items()})
    if filters is not None:
        filters = filters.by_keys({topic: entries_of[topic] for topic, _ in chosen})
    opened: dict[tuple[str, int], LogMarks] = {}
    ids: dict[tuple[str, int], str | None] = {}
    logs: list[Log] = []

    def marks(topic: str, number: int) -> LogMarks:
        if (topic, number) not in opened:
            path = entries_of[topic][number].path
            # The id is read before the log is opened, so that a topic that is created again in between is noticed.
            ids[topic, number] = topic_id_in(path)
            logs.append(Log.open(path, "r"))
            opened[topic, number] = LogMarks(logs[-1], options.isolation)
        return opened[topic, number]

    try:
        ranges = options.plan(chosen, marks, min_partitions=min_partitions, filters=filters)
    finally:
        for log in logs:
            log.close()
    return [Piece(entries_of[r.topic][r.partition].path, *r, ids[r.topic, r.partition]) for r in ranges]


def topic_id_in(path: str) -> str | None:
    """Return the id of the topic whose partition is in a directory; None if it cannot be read."""
    try:
        metadata = checkpoint.read_partition_metadata(path)
    except StorageError:  # opening the log raises it
        return None
    return None if metadata is None else checkpoint.format_topic_id(metadata.topic_id)


@dataclass(frozen=True)
class Scan:
    """How tasks read their pieces. Plain values; can be pickled. Thread-safe."""

    columns: tuple[str, ...]
    isolation: Isolation = "read_uncommitted"
    fail_on_data_loss: bool = True
    not_null: frozenset[str] = frozenset()  # columns that the caller's own schema declares not null
    filters: Filters = NO_FILTERS  # rows that do not match may be left out

    def batches(self, piece: Piece) -> Iterator[Any]:
        """Read a piece as record batches of Spark's types, in offset order; only one batch is in memory at a time.

        Raises `OffsetOutOfRangeError` if records were deleted since the planning, and `UnknownTopicOrPartitionError` if
        the partition was deleted or now belongs to another topic of the same name. Without `fail_on_data_loss` these
        two errors become warnings, and the remaining records are read. Also raises `CorruptRecordError`, and
        `InvalidTimestampError` for a time that Spark's type cannot hold, and for a record that is later than
        `filters` promises.
        """
        if piece.prefix is None:
            yield from self._batches(piece, lambda: Log.open(piece.path, "r"))
            return
        try:
            store = held.store(piece.prefix)
            if piece.partition not in _partitions_of(store, piece.topic):
                self._lost(UnknownTopicOrPartitionError, piece, piece.start, "it is no longer there")
                return
            there = piece._replace(path=f"{store.paths[0]}/{piece.name}")
            yield from self._batches(there, lambda: nullcontext(store.log(piece.topic, piece.partition)))
        except KStoreError:
            held.drop()
            raise

    def _batches(self, piece: Piece, open_log: Callable[[], AbstractContextManager[Log]]) -> Iterator[Any]:
        make = _Maker(optional.pyarrow("a scan", extra="spark"), self.columns, self.not_null, piece)
        offset = piece.start
        try:
            with open_log() as log:
                for chunk in self._planned(log, piece, make.wanted):
                    offset = chunk.next_offset
                    if len(chunk):
                        yield make.batch(chunk)
        except (fs.MissingFileError, CorruptRecordError) as error:
            # A partition that is being deleted may look damaged.
            if fs.exists(piece.path) and not isinstance(error, fs.MissingFileError):
                raise
            self._lost(UnknownTopicOrPartitionError, piece, offset, "its directory has gone")

    def _planned(self, log: Log, piece: Piece, wanted: Sequence[str]) -> Iterator[Columns]:
        """Read the records of a piece that an open log still has, as long as the log belongs to the planned topic."""
        offset = piece.start
        while offset < piece.end:
            if self._is_another(piece, offset):
                return
            start, end = log.log_start_offset, log.log_end_offset
            if offset < start or end < piece.end:
                self._lost(OffsetOutOfRangeError, piece, offset, f"the log has offsets {start} to {end} now")
                offset = max(offset, start)
                if offset >= min(end, piece.end):
                    return
            try:
                chunks = self._selected if self.filters.are_of_rows else self._chunks
                for chunk in chunks(log, piece, offset, wanted):
                    if self._is_another(piece, offset):  # checked after the read, which may have read the new topic
                        return
                    offset = chunk.next_offset
                    yield chunk
            except OffsetOutOfRangeError:
                if self._is_another(piece, offset):
                    return
                if log.log_start_offset <= offset <= log.log_end_offset:
                    raise
                continue
            if self._is_another(piece, offset) or log.log_end_offset >= piece.end or not self.fail_on_data_loss:
                return

    def _is_another(self, piece: Piece, offset: int) -> bool:
        """Return whether the topic was deleted and created again: records of the new topic must not be returned."""
        topic_id = None if piece.topic_id is None else topic_id_in(piece.path)
        is_another = topic_id not in (None, piece.topic_id)
        if is_another:
            what = f"the topic of id {piece.topic_id} has gone, {topic_id} is there"
            self._lost(UnknownTopicOrPartitionError, piece, offset, what)
        return is_another

    def _chunks(
        self, log: Log, piece: Piece, offset: int, wanted: Sequence[str], end: int | None = None
    ) -> Iterator[Columns]:
        return log.iter_columns(
            offset,
            end_offset=piece.end if end is None else end,
            columns=wanted,
            isolation=self.isolation,
            max_records=CHUNK_RECORDS,
            max_bytes=CHUNK_BYTES,
            threads=1,  # other tasks use the machine's other cores
        )

    def _selected(self, log: Log, piece: Piece, offset: int, wanted: Sequence[str]) -> Iterator[Columns]:
        """Read offsets and timestamps first, and then the other columns of the rows that the conditions select."""
        most_ms = self.filters.max_lateness_ms
        check = None if most_ms is None else lateness.LatenessCheck(piece.name, most_ms, MAX_LATENESS)
        for start, end in self.filters.ranges(log, offset, piece.end):
            for chunk in self._chunks(log, piece, start, ("offset", "timestamp"), end):
                if check is not None:
                    check.see(chunk)
                offsets = self.filters.selected(chunk)
                if len(offsets):
                    yield from read_kept(HostedLog(log).view, offsets, chunk.next_offset, tuple(wanted))

    def _lost(self, kind: type[Exception], piece: Piece, offset: int, what: str) -> None:
        where = os.path.dirname(piece.path) if piece.prefix is None else piece.prefix.url
        text = f"{piece.name} in {where} was to be read from {offset} to {piece.end}, but {what}"
        if self.fail_on_data_loss:
            raise kind(f"{text}: records were deleted or cut since the scan was planned (failOnDataLoss is true)")
        logger.warning("%s; what is left is read, since failOnDataLoss is false", text)


def _partitions_of(store: Store, topic: str) -> Sequence[int]:
    return store.partitions(topic) if topic in store.topics else ()


class _Maker:
    """Makes record batches from the columns of one partition. Not thread-safe."""

    def __init__(self, pa: Any, columns: Sequence[str], not_null: frozenset[str], piece: Piece) -> None:
        self._pa = pa
        self._piece = piece
        self._schema = arrow_schema(columns, not_null)
        # The number of rows comes from a column, so at least one is read; the offset is the cheapest.
        self.wanted = tuple(_IN_LOG[name] for name in columns if name in _IN_LOG) or ("offset",)
        self._same = {"topic": pa.array([], pa.string()), "partition": pa.array([], pa.int32())}

    def batch(self, chunk: Columns) -> Any:
        columns = self._pa.record_batch(chunk)
        arrays = [self._column(name, chunk, columns) for name in self._schema.names]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, chunk: Columns, columns: Any) -> Any:
        if name in ("topic", "partition"):
            return self._repeated(name, len(chunk))
        if name == "timestamp":
            return self._timestamps(chunk)
        if name == "timestampType":
            return self._pa.array(chunk["timestamp_type"].astype("int32"))
        if name == "headers":
            return self._headers(chunk, columns.column("headers"))
        return columns.column(name)

    def _repeated(self, name: str, count: int) -> Any:
        """Return a column with one value in all rows, as a slice of the column of the longest batch so far."""
        if len(self._same[name]) < count:
            value = self._piece.topic if name == "topic" else self._piece.partition
            scalar = self._pa.scalar(value, self._same[name].type)
            self._same[name] = self._pa.repeat(scalar, count)
        return self._same[name].slice(0, count)

    def _timestamps(self, chunk: Columns) -> Any:
        """Return the timestamps in microseconds; -1 ms if a record has no timestamp, as in Spark's Kafka source."""
        pa, timestamps = self._pa, chunk.timestamps
        if timestamps.max() > MOST_MS or timestamps.min() < -MOST_MS:
            row = int(np.argmax((timestamps > MOST_MS) | (timestamps < -MOST_MS)))
            at = f"its timestamp {timestamps[row]} ms at row {row} of the {len(chunk)} below offset {chunk.next_offset}"
            raise InvalidTimestampError(
                f"{self._piece.name}: {at} does not fit Spark's microseconds; scan without the column timestamp"
            )
        return pa.array(timestamps * 1000).view(self._schema.field("timestamp").type)

    def _headers(self, chunk: Columns, column: Any) -> Any:
        """Return the lists of headers; null for a record without headers."""
        pa, inner = self._pa, column.values
        kind = self._schema.field("headers").type
        arrays = [inner.field(0).cast(pa.string()), inner.field(1)]
        rows = pa.StructArray.from_arrays(arrays, fields=[kind.value_type.field(0), kind.value_type.field(1)])
        offsets = chunk.headers.offsets
        bare = offsets[1:] == offsets[:-1]
        mask = pa.array(bare) if bare.any() else None
        return pa.ListArray.from_arrays(pa.array(offsets), rows, type=kind, mask=mask)


def arrow_schema(columns: Iterable[str], not_null: Iterable[str] = ()) -> Any:
    """Return the Arrow schema of a scan's record batches, exactly as Spark expects it for these columns."""
    pa = optional.pyarrow("a scan", extra="spark")
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        COLUMN_TYPES["headers"]: pa.list_(pa.field("element", header)),
    }
    bare = frozenset(not_null)
    return pa.schema([pa.field(name, types[COLUMN_TYPES[name]], nullable=name not in bare) for name in columns])


def ddl(columns: Iterable[str]) -> str:
    """Return the columns as a schema that Spark can parse."""
    return ", ".join(f"`{name}` {COLUMN_TYPES[name]}" for name in columns)


def scan(
    spark: SparkSession,
    root: Roots,
    *,
    subscribe: str | Iterable[str] | None = None,
    subscribe_pattern: str | None = None,
    assign: Mapping[str, Iterable[int]] | str | None = None,
    columns: Iterable[str] | str | None = None,
    starting_offsets: str | Mapping[str, Mapping[int, int]] | None = None,
    ending_offsets: str | Mapping[str, Mapping[int, int]] | None = None,
    starting_timestamp: int | None = None,
    ending_timestamp: int | None = None,
    starting_offsets_by_timestamp: str | Mapping[str, Mapping[int, int]] | None = None,
    ending_offsets_by_timestamp: str | Mapping[str, Mapping[int, int]] | None = None,
    starting_offsets_by_timestamp_strategy: str | None = None,
    include_headers: bool = False,
    fail_on_data_loss: bool = True,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    isolation: Isolation = "read_uncommitted",
    storage: Mapping[str, Any] | None = None,
    shared_files: bool = False,
) -> DataFrame:
    """Return a DataFrame with one row for each record, read as Arrow batches.

    The call fixes the offsets to read: later records are not in the DataFrame, even if it is computed again. Rows of a
    partition are in the order of their offsets, within and across tasks, until they are shuffled. The keyword arguments
    are the options of `spark.read.format("kstore")` (docs/spark.md) with underscores, and with mappings instead of
    JSON.

    Args:
        spark: The session.
        root: The log directory, or several: paths, or `file:` URIs. Or the URL of a prefix of an object store, as in
            `Store.open`, or a directory that holds a backup.
        subscribe: Topics, or one string with commas between them. Exactly one of `subscribe`, `subscribe_pattern` and
            `assign` is needed.
        subscribe_pattern: A regular expression that must match a topic's whole name.
        assign: The partitions of each topic.
        columns: The columns to build, in this order; all but the headers if None. Name those that you need: Spark does
            not prune the columns of a Python source.
        starting_offsets: "earliest" (the default), or an offset for every partition that is read, as
            `{topic: {partition: offset}}`; -2 is the earliest.
        ending_offsets: "latest" (the default), or an offset for every partition that is read; -1 is the latest. The
            record at that offset is not read.
        starting_timestamp: Start all partitions at their first record at or after this time in milliseconds; overrides
            `starting_offsets_by_timestamp` and `starting_offsets`.
        ending_timestamp: End all partitions before their first record at or after this time in milliseconds; overrides
            `ending_offsets_by_timestamp` and `ending_offsets`.
        starting_offsets_by_timestamp: Such a time for every partition that is read; overrides `starting_offsets`.
        ending_offsets_by_timestamp: Such a time for every partition that is read; overrides `ending_offsets`.
        starting_offsets_by_timestamp_strategy: What to do if no record is at or after the starting time: "error" (the
            default), or "latest", which starts at the end.
        include_headers: Whether to add the column `headers`.
        fail_on_data_loss: If False, deleted records and missing partitions are skipped, and the logger `kstore` warns.
        min_partitions: The least number of ranges: large partitions are cut into several. If None, the number of cores;
            a session of Spark Connect does not know it.
        max_records_per_partition: The most offsets that one task reads.
        isolation: "read_uncommitted" or "read_committed".
        storage: obstore's settings for a URL, as in `Store.open`. They are handed to the tasks, and are in no plan and
            no message.
        shared_files: Whether a client of Spark Connect and its server have the same files at the same path. A scan is
            planned in the client's process, and is refused otherwise. Other sessions and URLs do not need it.

    Returns:
        The DataFrame.

    Raises:
        ConfigError: If an argument is invalid, Spark's local workers cannot import kstore, or the session is one of
            Spark Connect and `shared_files` is false.
        UnknownTopicOrPartitionError: If a topic or partition does not exist.
        OffsetOutOfRangeError: If an offset is not in the log.
        StorageError: If a directory cannot be read.

    Example:
        >>> report = ks.ingest(frame, "data", topic="orders", partitions=2)
        >>> orders = ks.scan(spark, "data", subscribe="orders", columns=("key", "value"))
        >>> sorted(row["value"] for row in orders.collect())
        [b'1 pear', b'3 apples']
    """
    arguments: dict[str, object] = {
        "subscribe": subscribe if subscribe is None or isinstance(subscribe, str) else ",".join(subscribe),
        "subscribePattern": subscribe_pattern,
        "assign": _as_json(assign, list),
        "columns": columns if columns is None or isinstance(columns, str) else ",".join(columns),
        "startingOffsets": _as_json(starting_offsets, dict),
        "endingOffsets": _as_json(ending_offsets, dict),
        "startingTimestamp": starting_timestamp,
        "endingTimestamp": ending_timestamp,
        "startingOffsetsByTimestamp": _as_json(starting_offsets_by_timestamp, dict),
        "endingOffsetsByTimestamp": _as_json(ending_offsets_by_timestamp, dict),
        "startingOffsetsByTimestampStrategy": starting_offsets_by_timestamp_strategy,
        "includeHeaders": include_headers,
        "failOnDataLoss": fail_on_data_loss,
        "minPartitions": min_partitions,
        "maxRecordsPerPartition": max_records_per_partition,
        "isolation": isolation,
    }
    options = ReadOptions.parse({name: str(value) for name, value in arguments.items() if value is not None})
    optional.pyarrow("a scan", extra="spark")
    options = replace(options, storage=None if storage is None else StorageOptions(storage))
    shared_files = shared_files or url_in(root) is not None
    refuse_other_files(spark, shared_files, what="ks.scan plans", instead='spark.read.format("kstore")')
    pieces = plan(root, options, min_partitions=_cores(spark))
    how = Scan(options.columns, options.isolation, options.fail_on_data_loss)
    schema = ddl(options.columns)
    if not pieces:
        return spark.createDataFrame([], schema)
    refuse_other_python(spark)
    numbers = spark.range(0, len(pieces), 1, len(pieces))
    return numbers.mapInArrow(_Reading(how, tuple(pieces)), schema)


@dataclass(frozen=True)
class _Reading:
    """The function for `mapInArrow`: reads the pieces with the given numbers."""

    how: Scan
    pieces: tuple[Piece, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.how.batches(self.pieces[number])


def _cores(spark: SparkSession) -> int | None:
    """Return how many tasks run at the same time; None if the session does not say."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context, and raises an error of its own
        return None


def _as_json(value: Any, inner: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps({topic: inner(numbers) for topic, numbers in value.items()})
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{value!r} is no mapping of topics to partitions ({error})") from None
