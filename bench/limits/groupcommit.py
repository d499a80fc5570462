"""What durable appends of several threads cannot leave out: one sync for all that wait, in C (`groupcommit.c`).

No batch, no checksum, no index and no GIL; each sync waits until every thread has written. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path


def appends(path: Path, append_bytes: int, threads: int, count: int, made: Path) -> Callable[[], None]:
    """A function that appends `count` times in each of the threads to the file at `path`, each append durable before
    the next; it is compiled in the directory `made`."""
    library = made / "groupcommit.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    commit = ctypes.CDLL(str(library)).appends

    def run() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            failed = commit(
                fd, ctypes.c_long(os.fstat(fd).st_size), ctypes.c_long(append_bytes), threads, ctypes.c_long(count)
            )
        finally:
            os.close(fd)
        assert failed == 0, f"{failed} writes or syncs failed"

    return run
