"""Several `Columns` as one: the rows of each after those of the one before, perhaps with the partition of each."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from kstore.columns._columns import Columns

def joined(parts: Iterable[Columns], names: tuple[str, ...], *, partitions: Iterable[int] | None = None) -> Columns:
    """The rows of several `Columns` that have these columns, one after the other, as one.

    With `partitions`, the number of each part, `names` may have "partition" too. The answer goes on where the last part
    does. `ValueError` for more bytes than one column of the layout "binary" takes.
    """

def selected(columns: Columns, rows: npt.NDArray[np.int64]) -> Columns:
    """The rows of these numbers, in this order, as `Columns` of the same names; of the layout "binary"."""
