"""What `Store.append_many` over 16 partitions cannot leave out beside one log: its smaller writes, to 16 files.

A topic's 16 partitions fill batches of 512 KiB at once; one log's have 1 MiB. Here the same bytes are written in pieces
of those sizes and smaller ones, a little less, as batches do not end where pages do, and nothing else is done. Also
pieces of 128 KiB that do end with a page: the page cache holds what begins and ends with a page in larger folios.

    python bench/limits/spread.py [DIRECTORY]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

FILES, ROUNDS = 16, 9
TOTAL = 128 << 20
RECORD = 136  # bytes of a record with a key of 16 and a value of 100, and of what the batch adds to it
PIECES = {
    "1 MiB, one file": (1, (1 << 20) - 40),
    "128 KiB, one file": (1, (128 << 10) - 40),
    "512 KiB, 16 files": (FILES, (512 << 10) - 40),
    "256 KiB, 16 files": (FILES, (256 << 10) - 40),
    "128 KiB, 16 files": (FILES, (128 << 10) - 40),
    "128 KiB to the byte, 16 files": (FILES, 128 << 10),
}


def written(directory: Path, files: int, piece: memoryview) -> float:
    """Nanoseconds of a processor for each record, the pieces dealt to the files in turns."""
    fds = [os.open(directory / str(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for number in range(files)]
    count = TOTAL // len(piece)
    began = time.process_time_ns()
    for number in range(count):
        os.pwrite(fds[number % files], piece, number // files * len(piece))
    taken = time.process_time_ns() - began
    for fd in fds:
        os.close(fd)
    return taken / (count * len(piece)) * RECORD


def main(where: str | None) -> None:
    data = memoryview(os.urandom(1 << 20))
    rounds: dict[str, list[float]] = {name: [] for name in PIECES}
    with tempfile.TemporaryDirectory(dir=where) as made:
        for _ in range(ROUNDS):
            for name, (files, size) in PIECES.items():
                rounds[name].append(written(Path(made), files, data[:size]))
    for name, times in rounds.items():
        print(f"{name:32}{sorted(times)[ROUNDS // 2]:6.1f} ns a record, best {min(times):.1f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
