"""`LogDataset`: a `pyarrow.dataset.Dataset` over logs, into which engines push columns and filters.

The object has no dataset of Arrow's C++ library behind it, so it defines every method of the class. The module can be
imported without PyArrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kstore.datasets.projection import Projection
from kstore.datasets.row_filters import ExpressionFilter
from kstore.datasets.table_scan import Table, TableScan
from kstore.errors import ConfigError
from kstore.objects.object_reader import Cost

try:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute  # type: ignore[import-untyped]
    from pyarrow.dataset import Dataset  # type: ignore[import-untyped]
except ImportError:
    if not TYPE_CHECKING:
        Dataset = object

Chosen = Sequence[str] | dict[str, Any] | None


class LogDataset(Dataset):  # type: ignore[misc]
    """The records of logs as a table, as `kstore.dataset` returns it."""

    def __init__(self, table: Table, expression: Any = None, only: tuple[str, int] | None = None) -> None:
        self._table = table
        self._expression = expression
        self._only = only

    def __repr__(self) -> str:
        return f"<kstore dataset of {', '.join(self.schema.names)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a dataset of logs cannot be pickled: open it in the other process")

    @property
    def schema(self) -> Any:
        """The columns and their types."""
        return self._table.schema

    @property
    def partition_expression(self) -> Any:
        """What is known of all rows: nothing."""
        return pa.compute.scalar(True)

    def scanner(self, columns: Chosen = None, filter: Any = None, **how: Any) -> LogScanner:
        """Return a scan of these columns, or of named expressions, and of the rows that `filter` selects.

        Of the other arguments of PyArrow, `batch_size` is obeyed; what concerns files and threads is ignored.
        """
        return LogScanner(self._table, columns, self._both(filter), self._only, how.get("batch_size"))

    def to_batches(self, columns: Chosen = None, filter: Any = None, **how: Any) -> Iterator[Any]:
        return self.scanner(columns, filter, **how).to_batches()

    def to_table(self, columns: Chosen = None, filter: Any = None, **how: Any) -> Any:
        return self.scanner(columns, filter, **how).to_table()

    def head(self, num_rows: int, columns: Chosen = None, filter: Any = None, **how: Any) -> Any:
        return self.scanner(columns, filter, **how).head(num_rows)

    def take(self, indices: Any, columns: Chosen = None, filter: Any = None, **how: Any) -> Any:
        return self.scanner(columns, filter, **how).take(indices)

    def count_rows(self, filter: Any = None, **how: Any) -> int:
        return self.scanner(None, filter, **how).count_rows()

    def cost(self, filter: Any = None) -> Cost:
        """Return the requests and bytes that a scan of the rows that `filter` selects takes of an object store.

        No record is read for it, but indexes may be. Which columns are read makes no difference, as records are stored
        whole. Bytes that are already in memory or in the cache on disk are counted; what lies in a directory is not. A
        scan with a condition on other columns than `partition`, `topic`, `offset` and `timestamp` may fetch the
        selected records once more if they are no longer in memory, and so may one of the newest records.
        """
        expression = None if self._table.options.latest else self._both(filter)
        return TableScan(self._table, [], _row_filter(self._table, expression), self._only).cost()

    def filter(self, expression: Any) -> LogDataset:
        """Return the dataset of the rows that `expression` selects, too."""
        return LogDataset(self._table, self._both(expression), self._only)

    def get_fragments(self, filter: Any = None) -> Iterator[LogFragment]:
        """Return each partition that may have rows that `filter` selects."""
        scan = TableScan(self._table, [], _row_filter(self._table, self._both(filter)), self._only)
        for place in scan.places():
            yield LogFragment(LogDataset(self._table, self._expression, place))

    def _both(self, filter: Any) -> Any:
        if filter is None or self._expression is None:
            return self._expression if filter is None else filter
        return self._expression & filter

    def replace_schema(self, schema: Any) -> NoReturn:
        raise ConfigError("the schema of a dataset of logs is fixed; cast the columns of a scan")

    def sort_by(self, sorting: Any, **how: Any) -> Any:
        return pa.dataset.InMemoryDataset(self.to_table().sort_by(sorting, **how))

    def join(self, right_dataset: Any, keys: Any, right_keys: Any = None, **how: Any) -> Any:
        right = right_dataset.to_table() if isinstance(right_dataset, Dataset) else right_dataset
        return pa.dataset.InMemoryDataset(self.to_table().join(right, keys, right_keys, **how))

    def join_asof(self, right_dataset: Any, on: str, by: Any, tolerance: Any, **how: Any) -> Any:
        right = right_dataset.to_table() if isinstance(right_dataset, Dataset) else right_dataset
        return pa.dataset.InMemoryDataset(self.to_table().join_asof(right, on, by, tolerance, **how))

    def _get_fragments(self, filter: Any) -> Iterator[LogFragment]:
        return self.get_fragments(filter)

    def _scanner_options(self, options: Any) -> NoReturn:
        raise TypeError("a dataset of logs has no options of Arrow's scanner; call scanner()")

    _scan_options = _scanner_options


class LogFragment:
    """One partition of a `LogDataset`, with the methods of `pyarrow.dataset.Fragment` that read."""

    def __init__(self, dataset: LogDataset) -> None:
        self._dataset = dataset
        self.physical_schema = dataset.schema
        self.partition_expression = dataset.partition_expression

    def scanner(self, schema: Any = None, **how: Any) -> LogScanner:
        """Return a scan; the schema is always that of the dataset."""
        return self._dataset.scanner(**how)

    def to_batches(self, schema: Any = None, **how: Any) -> Iterator[Any]:
        return self.scanner(**how).to_batches()

    def to_table(self, schema: Any = None, **how: Any) -> Any:
        return self.scanner(**how).to_table()

    def head(self, num_rows: int, **how: Any) -> Any:
        return self.scanner(**how).head(num_rows)

    def take(self, indices: Any, **how: Any) -> Any:
        return self.scanner(**how).take(indices)

    def count_rows(self, **how: Any) -> int:
        return self.scanner(**how).count_rows()


class LogScanner:
    """A scan of a `LogDataset`, with the methods of `pyarrow.dataset.Scanner`; each call reads anew."""

    def __init__(
        self, table: Table, columns: Chosen, expression: Any, only: tuple[str, int] | None, batch_size: int | None
    ) -> None:
        self.dataset_schema = table.schema
        self._batch_size = batch_size
        self._projection = None
        names = table.schema.names if columns is None else list(columns)
        if isinstance(columns, dict):
            self._projection = Projection(table.schema, columns)
            names = self._projection.needed or table.schema.names[:1]
        for name in names:
            if name not in table.schema.names:
                raise ConfigError(f"the dataset has no column {name!r}; it has {', '.join(table.schema.names)}")
        self._scan = TableScan(table, names, _row_filter(table, expression), only)
        self.projected_schema = self._scan.schema if self._projection is None else self._projection.schema

    def to_batches(self) -> Iterator[Any]:
        """Read the rows as record batches."""
        for batch in self._scan.batches():
            whole = batch if self._projection is None else self._projection.of(batch)
            if self._batch_size is None or whole.num_rows <= self._batch_size:
                yield whole
                continue
            for first in range(0, whole.num_rows, self._batch_size):
                yield whole.slice(first, self._batch_size)

    def to_reader(self) -> Any:
        """Return a reader of the rows; closing it stops the scan."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def scan_batches(self) -> Iterator[Any]:
        """Read the rows as record batches, each with the fragment that it comes from."""
        raise TypeError("a scan of logs does not say which fragment a batch comes from; call to_batches()")

    def to_table(self) -> Any:
        """Read all rows into memory."""
        return pa.Table.from_batches(self.to_batches(), schema=self.projected_schema)

    def head(self, num_rows: int) -> Any:
        """Read the first rows."""
        found, left = [], num_rows
        batches = self.to_batches()
        while left > 0 and (batch := next(batches, None)) is not None:
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
        return pa.Table.from_batches(found, schema=self.projected_schema)

    def take(self, indices: Any) -> Any:
        """Read the rows with these numbers."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Count the rows."""
        return self._scan.count()


def _row_filter(table: Table, expression: Any) -> ExpressionFilter | None:
    return None if expression is None else ExpressionFilter(table.schema, expression)
