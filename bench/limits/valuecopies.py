"""What columns of a log cannot leave out: the copy out of the page cache, and one of each value (`valuecopies.c`).

Records are as long as they are on average, so none is parsed. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path


def copies(files: list[int], stride: int, value: int, threads: int, made: Path) -> Callable[[], int]:
    """A function that copies a value of so many bytes out of each `stride` bytes; compiled in the directory `made`."""
    library = made / "valuecopies.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    values = ctypes.CDLL(str(library)).values
    values.restype = ctypes.c_long
    return lambda: sum(values(fd, ctypes.c_long(stride), ctypes.c_long(value), threads) for fd in files)
