"""The source of `spark.readStream.format("kstore")`.

Spark pickles a reader before its first call and sends it to the tasks. It keeps another one for the whole query in one
process, which plans the micro-batches; only that one opens a store. The module can be imported without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from kstore.errors import ConfigError
from kstore.spark.scan_reader import Part, scan_of
from kstore.spark.scanning import Scan
from kstore.spark.stream_offsets import StreamOffsets
from kstore.spark.stream_options import StreamOptions
from kstore.spark.stream_planner import StreamPlanner

try:
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
except ImportError:
    if not TYPE_CHECKING:
        DataSourceStreamReader = InputPartition = object

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # PySpark 4.0 and 4.1
    HAS_LIMITS = False
    if not TYPE_CHECKING:
        SupportsTriggerAvailableNow = object

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def stream_reader(root: str, options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a stream; raise `ConfigError` for a bad option, also for a limit before Spark 4.2."""
    parsed = StreamOptions.parse(options)
    scan = scan_of(parsed.read, schema)
    if HAS_LIMITS:
        return StreamReader(root, parsed, scan)
    if parsed.max_offsets is not None or parsed.min_offsets is not None:
        raise ConfigError(
            "maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2 or newer: before it a Python source cannot "
            "limit a micro-batch"
        )
    return UnlimitedReader(root, parsed, scan)


class _PlannedReader(DataSourceStreamReader):
    """What the readers of all versions of Spark have in common."""

    def __init__(self, root: str, options: StreamOptions, scan: Scan) -> None:
        self._root = root
        self._options = options
        self._scan = scan

    @cached_property
    def planner(self) -> StreamPlanner:
        """The planner, which is opened at the first call of the process that plans."""
        return StreamPlanner(self._root, self._options)

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        return self.planner.initial().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the pieces of a micro-batch."""
        pieces = self.planner.pieces(StreamOffsets.parse(start), StreamOffsets.parse(end))
        return [Part(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a piece as Arrow batches, in a task."""
        return self._scan.batches(partition.piece) if isinstance(partition, Part) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Write the positions of the group, if the stream has one. Spark does not call this for the last batch."""
        self.planner.done(StreamOffsets.parse(end))

    def stop(self) -> None:
        """Close the store."""
        if "planner" in self.__dict__:
            self.planner.close()


class StreamReader(_PlannedReader, SupportsTriggerAvailableNow):
    """A source with limits, for PySpark 4.2 and newer."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options; Spark has no limit of two numbers, so the planner adds the lower one."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends of the logs at which the query ends."""
        self.planner.freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch. Spark has journaled all below `start` as processed."""
        begin = StreamOffsets.parse(start)
        self.planner.done(begin)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        least = None if isinstance(limit, ReadAllAvailable) else self._options.min_offsets
        return self.planner.latest(begin, most, least).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of the logs, for the lag in the query's progress."""
        return self.planner.newest().to_json()


class UnlimitedReader(_PlannedReader):
    """A source without limits, for PySpark 4.0 and 4.1."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the pieces of a micro-batch, after the checks that `latestOffset` cannot make without its start."""
        self.planner.check(StreamOffsets.parse(start))
        return super().partitions(start, end)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the ends of the logs."""
        return self.planner.everything().to_json()


class RefusedReader(DataSourceStreamReader):
    """Raises a `ConfigError` at the first call for a stream, where Spark shows it."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def initialOffset(self) -> NoReturn:
        """Raise the error."""
        raise ConfigError(self._reason)

    def latestOffset(self, *_: object) -> NoReturn:
        """Raise the error."""
        raise ConfigError(self._reason)

    def partitions(self, start: object, end: object) -> NoReturn:
        """Raise the error."""
        raise ConfigError(self._reason)

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise the error."""
        raise ConfigError(self._reason)
