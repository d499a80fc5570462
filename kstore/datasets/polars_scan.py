"""A table of logs as a `LazyFrame`: Polars passes columns, predicates and limits to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kstore.base import optional
from kstore.datasets.row_filters import PredicateFilter
from kstore.datasets.table_scan import Table, TableScan

if TYPE_CHECKING:
    import polars as pl


def scan(table: Table) -> pl.LazyFrame:
    """Return a frame that scans the table whenever it is collected."""
    polars = optional.polars("scan_polars")
    schema = polars.from_arrow(table.schema.empty_table()).schema

    def batches(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        names = list(schema) if columns is None else columns
        if predicate is None:
            yield from head(TableScan(table, names), rows)
        elif rows is None:
            yield from head(TableScan(table, names, PredicateFilter(table.schema, predicate)), None)
        else:  # Polars limits the rows before it selects them
            needed = [name for name in schema if name in {*names, *predicate.meta.root_names()}]
            for frame in head(TableScan(table, needed), rows):
                yield frame.filter(predicate).select(names)

    def head(scan: TableScan, rows: int | None) -> Iterator[Any]:
        """Yield the first rows of a scan, all if `rows` is None; later ones are not read."""
        left = rows
        if left == 0:
            return
        for batch in scan.batches():
            frame = polars.from_arrow(batch if left is None else batch.slice(0, left))
            yield frame
            if left is not None:
                left -= len(frame)
                if left == 0:
                    return

    frame: pl.LazyFrame = polars.io.plugins.register_io_source(batches, schema=schema, is_pure=True)
    return frame
