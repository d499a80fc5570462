"""What no backup in a thread of the writer's process can leave out: the sync, the reading and the writing of new bytes.

Each second the new bytes of each segment go into a new file, and both are synced: a few calls of the system for each
4 MiB, for which Python hands over the GIL and takes it again. Nothing is checked, no checksum made, no state kept, and
no segment sent as a whole when it is sealed, so that each byte goes once; a backup sends some twice.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART_BYTES = 4 << 20


@contextmanager
def copied_every_second(log: Path, target: Path) -> Iterator[None]:
    """Copy the new bytes of a log's segments to files in `target`, in a thread."""
    stopped, done, numbers = threading.Event(), dict[Path, int](), itertools.count()

    def copy() -> None:
        while not stopped.wait(1.0):
            for path in sorted(log.glob("*.log")):
                done[path] = copy_from(path, done.get(path, 0), target / str(next(numbers)))

    target.mkdir()
    thread = threading.Thread(target=copy)
    thread.start()
    yield
    stopped.set()
    thread.join()


def copy_from(path: Path, position: int, target: Path) -> int:
    """Copy a file from `position` on; where it ended."""
    with path.open("r+b", buffering=0) as source:
        end = os.fstat(source.fileno()).st_size
        if position == end:
            return end
        os.fdatasync(source.fileno())
        with target.open("wb", buffering=0) as out:
            while position < end:
                position += out.write(os.pread(source.fileno(), min(PART_BYTES, end - position), position))
            os.fdatasync(out.fileno())
    return end
