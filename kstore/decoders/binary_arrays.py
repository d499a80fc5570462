"""What lies in a binary array of PyArrow, and where decoded values go in its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def offsets_and_bytes(values: Any) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return where each value begins, the end of the last one, and the bytes of all, without a copy."""
    _, offsets, data = values.buffers()
    borders = np.zeros(1, np.int32)
    if len(values):
        borders = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return borders, np.frombuffer(data, np.uint8) if data and data.size else np.zeros(0, np.uint8)


def indices(pa: Any, count: int, rows: Any) -> Any:
    """Return the indices with which `take` puts the values of `rows`, in this order, into `count` rows of nulls."""
    found = np.full(count, -1, np.int64)
    found[rows] = np.arange(len(rows))
    return pa.array(found, mask=found < 0)
