"""Concatenation of several `Columns`, with an optional column for the partition, and selection of rows."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from kstore.columns._columns import Columns

def joined(parts: Iterable[Columns], names: tuple[str, ...], *, partitions: Iterable[int] | None = None) -> Columns:
    """Concatenate several `Columns`, each of which has the columns `names`.

    `partitions` has each part's partition number; `names` may then include "partition". The result has the
    `next_offset` of the last part. Raises `ValueError` for more bytes than one column of the layout "binary" holds.
    """

def selected(columns: Columns, rows: npt.NDArray[np.int64]) -> Columns:
    """Return the rows with these numbers, in this order; columns of bytes must have the layout "binary"."""
