"""Confluent's frame of a value: a byte 0, the id of its schema in four bytes, then the message."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kstore.decoders.binary_arrays import offsets_and_bytes

FRAME = 5  # bytes before the message


class Framed(NamedTuple):
    """The frames of an array of values."""

    ids: NDArray[np.int64]  # of schemas; -1 in rows without a frame
    starts: NDArray[np.int64]  # where each message begins in `data`
    ends: NDArray[np.int64]
    data: memoryview


def framed(values: Any) -> Framed:
    """Return the frames of a binary array of PyArrow."""
    offsets, data = offsets_and_bytes(values)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    ids = np.full(len(values), -1, np.int64)
    rows = np.flatnonzero(ends - starts >= FRAME)
    rows = rows[data[starts[rows]] == 0]
    number = np.zeros(len(rows), np.int64)
    for i in range(1, FRAME):
        number = number << 8 | data[starts[rows] + i]
    ids[rows] = number
    return Framed(ids, starts + FRAME, ends, data.data)


def groups(ids: NDArray[np.int64], rows: NDArray[np.intp]) -> dict[int, NDArray[np.intp]]:
    """Return the rows of each id."""
    order = rows[np.argsort(ids[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(ids[order], prepend=-2))
    return {int(ids[part[0]]): part for part in np.split(order, starts[1:]) if len(part)}
