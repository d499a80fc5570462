"""Columns that are expressions of PyArrow over the columns of a table."""

from __future__ import annotations

from typing import Any

from kstore.base import optional


class Projection:
    """Evaluates named expressions over the columns of `schema`. Immutable; thread-safe."""

    def __init__(self, schema: Any, columns: dict[str, Any]) -> None:
        self._pa = pa = optional.pyarrow("a dataset", "acero")
        options = pa.acero.ProjectNodeOptions(list(columns.values()), list(columns))
        self._project = pa.acero.Declaration("project", options)
        empty = schema.empty_table()
        self.schema = self._of_table(empty).schema
        self.needed = tuple(name for name in schema.names if not self._works_on(empty.drop_columns([name])))

    def of(self, batch: Any) -> Any:
        """Return the expressions' values for the rows of a record batch, which has the columns `needed`."""
        return next(iter(self._of_table(self._pa.Table.from_batches([batch])).combine_chunks().to_batches()))

    def _of_table(self, table: Any) -> Any:
        acero = self._pa.acero
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        return acero.Declaration.from_sequence([source, self._project]).to_table(use_threads=False)

    def _works_on(self, table: Any) -> bool:
        """Return whether the expressions can be evaluated with the columns of `table` alone."""
        try:
            self._of_table(table)
        except (self._pa.ArrowInvalid, KeyError):
            return False
        return True
