"""What a table of batches cannot leave out: a look at the header of each batch, by one pread in C (`headers.c`).

The positions are known before, the file is in the page cache, and nothing is taken out of what was read. Needs a C
compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from limits import compiled


def reads(fd: int, positions: NDArray[np.int64], threads: int) -> Callable[[], None]:
    """A function that reads the headers at these positions of a file."""
    headers = compiled("headers.c").headers
    positions = np.ascontiguousarray(positions, np.int64)
    pointer = positions.ctypes.data_as(ctypes.c_void_p)

    def run() -> None:
        failed = headers(fd, pointer, ctypes.c_long(len(positions)), threads)
        assert failed == 0, f"{failed} headers cannot be read"

    return run
