"""The two kinds of filters of a scan: an expression of PyArrow, and a predicate of Polars.

Each filter evaluates itself for the rows of a batch, so that a scan selects the rows that its engine would select.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kstore.base import optional
from kstore.datasets.projection import Projection
from kstore.datasets.pruning import Condition


class RowFilter(Protocol):
    """Selects rows of a table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the filter uses, in the order of the table's."""

    @property
    def condition(self) -> Condition | None:
        """What is known to select no row that the filter does not select; None if nothing is."""

    def mask(self, batch: Any) -> Any:
        """Return which rows are selected, as a boolean array of PyArrow; `batch` has the filter's columns."""


class ExpressionFilter:
    """A filter that is an expression of PyArrow."""

    def __init__(self, schema: Any, expression: Any) -> None:
        self.condition = Condition(schema, expression)
        self._selection = Projection(schema, {"selected": expression})
        self.columns = self._selection.needed

    def mask(self, batch: Any) -> Any:
        return self._selection.of(batch).column(0)


class PredicateFilter:
    """A filter that is a predicate of Polars, with the condition that Polars makes of it for PyArrow."""

    def __init__(self, schema: Any, predicate: Any) -> None:
        pl = self._pl = optional.polars("scan_polars")
        used = set(predicate.meta.root_names())
        self.columns = tuple(name for name in schema.names if name in used)
        self._predicate = predicate
        known = [*_for_arrow(pl, schema, predicate), *_keys(pl, predicate)]
        self.condition = None
        if known:
            expression = known[0]
            for further in known[1:]:
                expression = expression & further
            self.condition = Condition(schema, expression)

    def mask(self, batch: Any) -> Any:
        found = self._pl.from_arrow(batch).select(self._predicate.alias("selected")).to_series()
        if len(found) != batch.num_rows:  # a predicate without a column
            found = self._pl.select(self._pl.repeat(found[0], batch.num_rows)).to_series()
        return found.to_arrow()


def _for_arrow(pl: Any, schema: Any, predicate: Any) -> list[Any]:
    """Return what Polars passes to a dataset for a predicate: at most one expression, and of a part perhaps."""
    probe = _probe(schema)
    pl.scan_pyarrow_dataset(probe).filter(predicate).collect()
    return list(probe.filters)


def _probe(schema: Any) -> Any:
    pa = optional.pyarrow("scan_polars", "dataset")
    filters: list[Any] = []

    class Probe(pa.dataset.Dataset):  # type: ignore[misc, name-defined]
        """An empty dataset that remembers the filters of its scans."""

        def __init__(self) -> None:
            self.filters = filters

        @property
        def schema(self) -> Any:
            return schema

        def to_batches(self, columns: Any = None, filter: Any = None, **how: Any) -> Iterable[Any]:
            if filter is not None:
                filters.append(filter)
            return iter(())

    return Probe()


def _keys(pl: Any, predicate: Any) -> list[Any]:
    """Return PyArrow's expressions for the parts of a conjunction that compare `key`: Polars passes none of bytes."""
    pc = optional.pyarrow("scan_polars", "compute").compute
    parts = predicate.meta.pop()
    if len(parts) != 2:
        return []
    for one, other in (parts, parts[::-1]):
        if (one & other).meta.eq(predicate):
            return [*_keys(pl, one), *_keys(pl, other)]
        if one.meta.eq(pl.col("key")) and other.meta.is_literal():
            if (one == other).meta.eq(predicate) or (other == one).meta.eq(predicate):
                return [pc.field("key") == value for value in _bytes(pl, other)]
            if one.is_in(other).meta.eq(predicate):
                return [pc.field("key").isin(_bytes(pl, other))]
    return []


def _bytes(pl: Any, literal: Any) -> list[bytes]:
    series = pl.select(literal).to_series()
    if series.dtype in (pl.List(pl.Binary), pl.Array):
        series = series.explode()
    return [value for value in series.to_list() if isinstance(value, bytes)]
