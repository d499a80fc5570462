"""Would a round of cleaning be faster if the system copied the batches that stay, with `copy_file_range`?

Half of a file is copied in pieces of 256 KiB and of 8 MiB: read into memory and written, as the cleaner does, and
within the system. By turns, in processor time, in /dev/shm where there is one:
`python bench/limits/copies_by_the_system.py`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE, PIECES, TURNS = 256 << 20, (256 << 10, 8 << 20), 9


def by_memory(source: int, to: int, piece: int) -> None:
    """Read each piece, and write it."""
    buffer, at = memoryview(bytearray(piece)), 0
    while at < SIZE // 2:
        at += os.pwrite(to, buffer[: os.preadv(source, [buffer], at)], at)


def by_system(source: int, to: int, piece: int) -> None:
    """Have the system copy each piece."""
    at = 0
    while at < SIZE // 2:
        at += os.copy_file_range(source, to, piece, at, at)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A new file, for a block."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        yield fd
    finally:
        os.close(fd)
        path.unlink()


def seconds(copy: Callable[[int, int, int], None], source: int, path: Path, piece: int) -> float:
    """Processor time of one copy into a new file."""
    with opened(path) as to:
        began = time.process_time()
        copy(source, to, piece)
        return time.process_time() - began


def main() -> None:
    """Print the best of each."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shm) as directory, opened(Path(directory, "from")) as source:
        for at in range(0, SIZE, 1 << 20):
            os.pwrite(source, os.urandom(1 << 20), at)
        turns = [
            [seconds(copy, source, Path(directory, "to"), piece) for copy in (by_memory, by_system) for piece in PIECES]
            for _ in range(TURNS)
        ]
        best = [min(times) * 1e3 for times in zip(*turns, strict=True)]
        print(f"{SIZE >> 21} MiB by memory, pieces of 256 KiB; 8 MiB: {best[0]:.1f}; {best[1]:.1f} ms")
        print(f"{SIZE >> 21} MiB by the system, pieces of 256 KiB; 8 MiB: {best[2]:.1f}; {best[3]:.1f} ms")


if __name__ == "__main__":
    main()
