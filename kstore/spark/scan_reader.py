"""The reader of `spark.read.format("kstore")`: plans a scan on the driver, and reads pieces in the tasks.

Spark pickles these objects, so they hold plain values only. The module can be imported without Spark.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kstore.errors import ConfigError
from kstore.spark.option_reader import COLUMN_TYPES
from kstore.spark.scanning import Filters, Piece, Scan, plan
from kstore.spark.spark_options import ReadOptions

try:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
except ImportError:
    if not TYPE_CHECKING:
        DataSourceReader = InputPartition = object

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass
class Part(InputPartition):
    """The piece of a partition that one task reads."""

    piece: Piece

    def __repr__(self) -> str:
        return f"{self.piece.name} [{self.piece.start}, {self.piece.end})"


def scan_of(options: ReadOptions, schema: StructType) -> Scan:
    """Return how tasks read the columns of `schema`; raise `ConfigError` for an unknown column or another type."""
    for field in schema.fields:
        wanted = COLUMN_TYPES.get(field.name)
        if wanted is None:
            raise ConfigError(f"the schema has a column {field.name!r}; {', '.join(COLUMN_TYPES)} are known")
        if field.dataType.simpleString() != wanted:
            raise ConfigError(f"the schema has {field.name} as {field.dataType.simpleString()}; it is {wanted}")
    if not schema.fields:
        raise ConfigError(f"the schema has no column; {', '.join(COLUMN_TYPES)} are known")
    names = tuple(field.name for field in schema.fields)
    not_null = frozenset(field.name for field in schema.fields if not field.nullable)
    return Scan(names, options.isolation, options.fail_on_data_loss, not_null)


class Reader(DataSourceReader):
    """Plans a scan on the driver, and reads pieces in the tasks."""

    def __init__(self, root: str, options: ReadOptions, schema: StructType) -> None:
        self._root = root
        self._options = options
        self._filters: Filters | None = None
        self._scan = scan_of(options, schema)

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
