"""`format("kstore")`: Spark's Python Data Source API, with the functions of `ks.scan` and `ks.ingest`.

Spark pickles these objects, so they hold plain values only. The module can be imported without Spark. Invariant: Spark
may call `abort` after a successful commit and while tasks write, so `abort` keeps the files of a job that belong to a
decided load (one with a durable COMMIT record).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from kstore.errors import ConfigError, LogLockedError
from kstore.spark.load_driver import COMMIT_TIMEOUT, commit, discard
from kstore.spark.option_reader import COLUMN_TYPES, plain
from kstore.spark.scanning import Filters, Piece, Scan, ddl, directories, plan
from kstore.spark.spark_options import ReadOptions, WriteOptions
from kstore.spark.staging import stage
from kstore.store.bulk_loads.load_manifest import Staged

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
        WriterCommitMessage,
    )
except ImportError:
    if not TYPE_CHECKING:
        DataSource = DataSourceArrowWriter = DataSourceReader = DataSourceStreamReader = object
        InputPartition = WriterCommitMessage = object

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NO_STREAM = 'kstore reads no streams: use spark.read.format("kstore"), or ks.scan, for what is there now'
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class KStoreSource(DataSource):
    """The format: logs in a directory, with the schema and the options of Spark's Kafka source and sink."""

    @classmethod
    def name(cls) -> str:
        return "kstore"

    def schema(self) -> str:
        """Return the columns of a read whose caller gives no schema."""
        return ddl(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> Reader:
        """Return a reader of the columns of `schema`, which may be a selection by the caller."""
        options = ReadOptions.parse(self.options)
        # Two reader classes: Spark refuses a reader with `pushFilters` if Spark's setting for push-down is off.
        return (PushdownReader if options.pushdown else Reader)(self._root(), options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Return a writer that appends; raise `ConfigError` for `mode("overwrite")`."""
        if overwrite:
            raise ConfigError('mode("overwrite") is not for logs: records are appended; write with mode("append")')
        return Writer(self._root(), WriteOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader that raises `ConfigError`: streams are not supported."""
        return NoStream()  # after an error here, PySpark calls stop() on an unbound variable, which hides the error

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise `ConfigError`: streams are not supported."""
        raise ConfigError('kstore writes no streams: write each batch with foreachBatch and df.write.format("kstore")')

    def _root(self) -> str:
        by_name = {name.lower(): value for name, value in plain(self.options).items()}
        path = by_name.get("path") or by_name.get("location")
        if not path:
            raise ConfigError('the log directory is missing: load("<directory>") or save("<directory>")')
        return directories(path)[0]


class NoStream(DataSourceStreamReader):
    """Raises `ConfigError` at the first call for a stream."""

    def initialOffset(self) -> NoReturn:
        """Raise `ConfigError`."""
        raise ConfigError(_NO_STREAM)

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise `ConfigError`."""
        raise ConfigError(_NO_STREAM)


@dataclass
class Part(InputPartition):
    """The piece of a partition that one task reads."""

    piece: Piece

    def __repr__(self) -> str:
        return f"{self.piece.name} [{self.piece.start}, {self.piece.end})"


class Reader(DataSourceReader):
    """Plans a scan on the driver, and reads pieces in the tasks."""

    def __init__(self, root: str, options: ReadOptions, schema: StructType) -> None:
        for field in schema.fields:
            wanted = COLUMN_TYPES.get(field.name)
            if wanted is None:
                raise ConfigError(f"the schema has a column {field.name!r}; {', '.join(COLUMN_TYPES)} are known")
            if field.dataType.simpleString() != wanted:
                raise ConfigError(f"the schema has {field.name} as {field.dataType.simpleString()}; it is {wanted}")
        if not schema.fields:
            raise ConfigError(f"the schema has no column; {', '.join(COLUMN_TYPES)} are known")
        self._root = root
        self._options = options
        self._filters: Filters | None = None
        names = tuple(field.name for field in schema.fields)
        not_null = frozenset(field.name for field in schema.fields if not field.nullable)
        self._scan = Scan(names, options.isolation, options.fail_on_data_loss, not_null)

    def partitions(self) -> list[InputPartition]:
        """Return the pieces to read; for an empty list Spark makes one partition, None."""
        return [Part(piece) for piece in plan(self._root, self._options, filters=self._filters)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._scan.batches(partition.piece) if isinstance(partition, Part) else iter(())


class PushdownReader(Reader):
    """A reader that uses names and indexes to skip records that a query's conditions exclude."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Note the conditions that narrow the ranges; return all conditions, since Spark must test each row again."""
        self._filters = narrowed(filters)
        return filters


def narrowed(filters: Iterable[Any]) -> Filters:
    """Return what all filters together select. It has no greatest timestamp, as records may be out of time order."""
    narrow = Filters()
    for condition in filters:
        kind = type(condition).__name__
        path: Any = getattr(condition, "attribute", None)
        value: Any = getattr(condition, "value", None)
        values = [item for item in (value or () if kind == "In" else [value]) if item is not None]
        if not path or len(path) != 1 or not values:
            continue
        name = path[0]
        if name == "topic" and kind in ("EqualTo", "In"):
            narrow = narrow._replace(topics=_both(narrow.topics, values))
        elif name == "partition" and kind in ("EqualTo", "In"):
            narrow = narrow._replace(partitions=_both(narrow.partitions, values))
        elif name == "offset":
            narrow = _offsets(narrow, kind, values)
        elif name == "timestamp" and kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
            least = (value - _EPOCH) // datetime.timedelta(milliseconds=1)
            narrow = narrow._replace(least_timestamp=_greater(narrow.least_timestamp, least))
    return narrow


def _offsets(narrow: Filters, kind: str, values: list[int]) -> Filters:
    low, high = min(values), max(values)
    if kind in ("EqualTo", "In", "GreaterThanOrEqual", "GreaterThan"):
        narrow = narrow._replace(least_offset=_greater(narrow.least_offset, low + (kind == "GreaterThan")))
    if kind in ("EqualTo", "In", "LessThanOrEqual", "LessThan"):
        end = high + (kind != "LessThan")
        narrow = narrow._replace(end_offset=end if narrow.end_offset is None else min(end, narrow.end_offset))
    return narrow


def _both(one: frozenset[Any] | None, others: list[Any]) -> frozenset[Any]:
    return frozenset(others) if one is None else one & frozenset(others)


def _greater(one: int | None, other: int) -> int:
    return other if one is None else max(one, other)


@dataclass
class Written(WriterCommitMessage):
    """The manifest rows of the files that one task has staged."""

    staged: tuple[Staged, ...]


class Writer(DataSourceArrowWriter):
    """Stages in the tasks, and commits on the driver's host, in a process that Spark starts."""

    def __init__(self, root: str, options: WriteOptions, schema: StructType) -> None:
        types = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        self._root = root
        self._options = options
        self._stage = stage(
            root,
            topic=options.topic,
            partitions=options.partitions,
            compression=options.compression,
            batch_bytes=options.batch_bytes,
            config=options.config,
            staging_dir=options.staging_dir,
            columns=[name for name, _ in types],
        )
        self._stage.check(types)

    def write(self, iterator: Iterator[Any]) -> Written:
        return Written(tuple(self._stage.write(iterator)))

    def commit(self, messages: list[Any]) -> None:
        """Commit the staged files in the order of the DataFrame's partitions; after an error Spark calls `abort`."""
        manifest = [row for message in messages if message is not None for row in message.staged]
        options = self._options
        timeout = COMMIT_TIMEOUT if options.commit_timeout is None else options.commit_timeout
        try:
            commit(self._root, manifest, txn=options.txn, staging_dir=options.staging_dir, commit_timeout=timeout)
        except LogLockedError as error:
            error.__notes__ = ["the staged files are removed; ks.ingest keeps them, for the process that has the store"]
            raise

    def abort(self, messages: list[Any]) -> None:
        """Delete the job's staged files, except those of a decided load."""
        discard(self._root, job=self._stage.directory)
