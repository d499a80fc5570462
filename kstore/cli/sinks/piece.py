"""A piece of the records of a partition, as the sinks take it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kstore.columns._columns import Columns

__all__ = ["CONSTANT", "Piece"]

CONSTANT = ("topic", "partition")
"""The columns that a piece has beside those of its rows."""


class Piece(NamedTuple):
    """Some records of a partition. `rows` is a `Columns` or a record batch; `kept` says which rows count, None: all."""

    topic: str
    partition: int
    rows: Any
    kept: NDArray[np.bool_] | None = None

    @property
    def size(self) -> int:
        """The number of rows that count."""
        return self._rows_in_memory if self.kept is None else int(np.count_nonzero(self.kept))

    @property
    def _rows_in_memory(self) -> int:
        return len(self.rows) if isinstance(self.rows, Columns) else int(self.rows.num_rows)

    def column(self, name: str) -> Any:
        """Return a column of all rows: of `Columns`, or an array of Arrow."""
        if isinstance(self.rows, Columns):
            return self.rows[name]
        return self.rows.column(self.rows.schema.get_field_index(name))
