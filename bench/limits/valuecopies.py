"""What columns of a log cannot leave out: the copy out of the page cache, and one of each value (`valuecopies.c`).

Records are as long as they are on average, so none is parsed. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

from limits import compiled


def copies(files: list[int], stride: int, value: int, threads: int, keep: bool = False) -> Callable[[], int]:
    """A function that copies a value of so many bytes out of each `stride` bytes, and says how many it copied.

    `keep` has the values of all files in memory at once, which is taken from the system as huge pages and given back.
    """
    values = compiled("valuecopies.c").values
    values.argtypes = ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_void_p
    values.restype = ctypes.c_long
    sizes = [os.fstat(fd).st_size // stride * value for fd in files]

    def run() -> int:
        if not keep:
            return sum(values(fd, stride, value, threads, None) for fd in files)
        # Shared memory, which Python maps by default, is not given in huge pages.
        with mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            start = ctypes.c_char.from_buffer(memory)
            at, count = ctypes.addressof(start), 0
            for fd, size in zip(files, sizes, strict=True):
                count += values(fd, stride, value, threads, at)
                at += size
            del start
        return count

    return run
