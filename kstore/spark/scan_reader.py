"""The reader of `spark.read.format("kstore")`: plans a scan on the driver, and reads pieces in the tasks.

Spark pickles these objects, so they hold plain values only. The module can be imported without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kstore.errors import ConfigError
from kstore.spark.option_reader import COLUMN_TYPES
from kstore.spark.pushdown import narrowed
from kstore.spark.scanning import Piece, Scan, plan
from kstore.spark.spark_options import ReadOptions

try:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
except ImportError:
    if not TYPE_CHECKING:
        DataSourceReader = InputPartition = object

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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
        self._scan = scan_of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return the pieces to read; for an empty list Spark makes one partition, None."""
        return [Part(piece) for piece in plan(self._root, self._options, filters=self._scan.filters)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._scan.batches(partition.piece) if isinstance(partition, Part) else iter(())


class PushdownReader(Reader):
    """A reader that leaves out records that a query's conditions exclude."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Note the conditions that select what is read; return all conditions, since Spark must test each row again."""
        found = narrowed(filters, by_key=self._options.partitioned_by_key)
        self._scan = replace(self._scan, filters=replace(found, max_lateness_ms=self._options.max_lateness_ms))
        return filters
