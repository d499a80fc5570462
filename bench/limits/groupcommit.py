"""What durable appends of several threads cannot leave out: one sync for all that wait, in C (`groupcommit.c`).

No batch, no checksum, no index and no GIL; each sync waits until every thread has written. Needs a C compiler.
`appends_in_python` does the same with threads of Python, so that each takes the GIL once behind each sync.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from limits import compiled


def appends(path: Path, append_bytes: int, threads: int, count: int) -> Callable[[], None]:
    """A function that appends `count` times in each of the threads to the file at `path`, each append durable before
    the next."""
    commit = compiled("groupcommit.c").appends

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


def appends_in_python(path: Path, append_bytes: int, threads: int, count: int) -> Callable[[], None]:
    """As `appends`, with threads of Python: a write keeps the GIL, as an append to a log does, and a sync does not."""
    pwrite = ctypes.PyDLL(None).pwrite
    pwrite.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long
    data = bytes(append_bytes)

    def run() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        end = [os.fstat(fd).st_size]
        asleep: list[threading.Lock] = []

        def append_each() -> None:
            own = threading.Lock()
            own.acquire()
            for _ in range(count):
                assert pwrite(fd, data, append_bytes, end[0]) == append_bytes
                end[0] += append_bytes
                if len(asleep) < threads - 1:
                    asleep.append(own)
                    own.acquire()
                    continue
                os.fdatasync(fd)
                woken, asleep[:] = asleep[:], []
                for lock in woken:
                    lock.release()

        interval = sys.getswitchinterval()
        sys.setswitchinterval(3600)  # a thread is only left where it sleeps or syncs
        try:
            workers = [threading.Thread(target=append_each) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            sys.setswitchinterval(interval)
            os.close(fd)

    return run
