"""`format("kstore")`: Spark's Python Data Source API in front of scanning.py and of staging and commits.

Thin on purpose: options are parsed in options.py, everything else is done by whom `ks.scan` and `ks.ingest` call too.
Spark pickles what is made here and builds it anew in other processes, so it holds plain values alone. Imports without
Spark, so that tools may look at the package; nothing here is of use then. Streams would come as a `streamReader` and a
`streamWriter` beside the two methods that are there. The hardest rule: `abort` may come after a commit that took place,
and while tasks still write, so it cleans up by job and never what has been committed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kstore.adopt import Staged
from kstore.errors import ConfigError, LogLockedError
from kstore.spark.ingesting import COMMIT_TIMEOUT, commit, discard
from kstore.spark.options import COLUMN_TYPES, ReadOptions, WriteOptions, plain
from kstore.spark.scanning import Filters, Piece, Scan, ddl, directories, plan
from kstore.spark.staging import stage

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import (
            DataSource,
            DataSourceArrowWriter,
            DataSourceReader,
            InputPartition,
            WriterCommitMessage,
        )
    except ImportError:
        DataSource = DataSourceArrowWriter = DataSourceReader = InputPartition = WriterCommitMessage = object

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class KStoreSource(DataSource):
    """Logs in a directory as Spark sees them: the schema and the options of its Kafka source and sink."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "kstore"

    def schema(self) -> str:
        """The columns of a read that names none."""
        return ddl(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> Reader:
        """A reader of the columns of `schema`, which may be the caller's own selection of them."""
        options = ReadOptions.parse(self.options)
        # Overriding `pushFilters` is refused by Spark while its setting is off, hence two classes.
        return (PushdownReader if options.pushdown else Reader)(self._root(), options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """A writer that appends; `ConfigError` for `mode("overwrite")`."""
        if overwrite:
            raise ConfigError('mode("overwrite") is not for logs: records are appended; write with mode("append")')
        return Writer(self._root(), WriteOptions.parse(self.options), schema)

    def _root(self) -> str:
        given = {name.lower(): value for name, value in plain(self.options).items()}
        path = given.get("path") or given.get("location")
        if not path:
            raise ConfigError('the log directory is missing: load("<directory>") or save("<directory>")')
        return directories(path)[0]


@dataclass
class Part(InputPartition):
    """What one task reads."""

    piece: Piece

    def __repr__(self) -> str:
        return f"{self.piece.name} [{self.piece.start}, {self.piece.end})"


class Reader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

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
        self._scan = Scan(
            tuple(field.name for field in schema.fields),
            options.isolation,
            options.fail_on_data_loss,
            frozenset(field.name for field in schema.fields if not field.nullable),
        )

    def partitions(self) -> list[InputPartition]:
        """What tasks are to read; Spark makes an empty list one partition that is None."""
        return [Part(piece) for piece in plan(self._root, self._options, filters=self._filters)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of one of them."""
        return self._scan.batches(partition.piece) if isinstance(partition, Part) else iter(())


class PushdownReader(Reader):
    """A reader that leaves out what a query's conditions exclude anyway, as far as names and indexes tell."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Note what narrows the ranges; Spark evaluates every condition all the same."""
        self._filters = narrowed(filters)
        return filters


def narrowed(filters: Iterable[Any]) -> Filters:
    """What Spark's filters, all of which hold, say about topics, partitions, offsets and timestamps.

    Nothing is said about the latest timestamp: records need not be in the order of their times.
    """
    found = Filters()
    for each in filters:
        kind, path, value = type(each).__name__, getattr(each, "attribute", None), getattr(each, "value", None)
        if not path or len(path) != 1 or value is None:
            continue
        name = path[0]
        values = [one for one in value if one is not None] if kind == "In" else [value]
        if not values:
            continue
        if name == "topic" and kind in ("EqualTo", "In"):
            found = found._replace(topics=_both(found.topics, values))
        elif name == "partition" and kind in ("EqualTo", "In"):
            found = found._replace(partitions=_both(found.partitions, values))
        elif name == "offset":
            found = _offsets(found, kind, values)
        elif name == "timestamp" and kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
            least = (value - _EPOCH) // datetime.timedelta(milliseconds=1)
            found = found._replace(least_timestamp=_greater(found.least_timestamp, least))
    return found


def _offsets(found: Filters, kind: str, values: list[int]) -> Filters:
    low, high = min(values), max(values)
    if kind in ("EqualTo", "In", "GreaterThanOrEqual", "GreaterThan"):
        found = found._replace(least_offset=_greater(found.least_offset, low + (kind == "GreaterThan")))
    if kind in ("EqualTo", "In", "LessThanOrEqual", "LessThan"):
        end = high + (kind != "LessThan")
        found = found._replace(end_offset=end if found.end_offset is None else min(end, found.end_offset))
    return found


def _both(one: frozenset[Any] | None, others: list[Any]) -> frozenset[Any]:
    return frozenset(others) if one is None else one & frozenset(others)


def _greater(one: int | None, other: int) -> int:
    return other if one is None else max(one, other)


@dataclass
class Written(WriterCommitMessage):
    """What one task has staged."""

    staged: tuple[Staged, ...]


class Writer(DataSourceArrowWriter):
    """Stages in the tasks, commits on the driver's host, in a process of Spark's own."""

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
        """Stage what one task attempt sees."""
        return Written(tuple(self._stage.write(iterator)))

    def commit(self, messages: list[Any]) -> None:
        """Make it part of the logs, in the order of the DataFrame's partitions. What fails is removed by `abort`."""
        manifest = [row for message in messages if message is not None for row in message.staged]
        try:
            commit(
                self._root,
                manifest,
                txn=self._options.txn,
                commit_timeout=COMMIT_TIMEOUT if self._options.commit_timeout is None else self._options.commit_timeout,
            )
        except LogLockedError as error:
            error.__notes__ = ["what was staged is removed; ks.ingest keeps it, for the process that has the store"]
            raise

    def abort(self, messages: list[Any]) -> None:
        """Remove what the job has staged, announced or not; nothing of what a commit has decided."""
        discard(self._root, job=self._stage.directory)
