"""Checks files that a writer may be changing, and repeats the check before a fault is reported.

If no process uses the directory and nothing changed during a check, one check is enough. Otherwise only a fault that
several checks in a row find is reported: a writer may have been between two steps, or a check may have read one file
before a step and another after it. Invariant: a real fault is always reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import checkpoint

__all__ = ["look", "sight"]

T = TypeVar("T")

AGREE = 4
"""While a process writes, a fault is reported after this many checks in a row have found it."""

LOOKS = 16
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.08  # seconds that a writer on a busy machine may wait between two steps


def look(
    once: Callable[[], T],
    faults: Callable[[T], Collection[Hashable]],
    directory: str,
    root: str,
) -> tuple[T, set[Hashable]]:
    """Call `once`, which checks `directory`, until faults are certain; return its last result and the doubtful faults.

    `faults` returns the faults in a result of `once`. `root` is the log directory, whose lock a writer holds.
    """
    seen: dict[Hashable, int] = {}
    pause = _FIRST_PAUSE
    for left in range(LOOKS - 1, -1, -1):
        written, before = fs.is_locked(root), sight(directory, root)
        result = once()
        seen = {fault: seen.get(fault, 0) + 1 for fault in faults(result)}
        if not seen or all(count >= AGREE for count in seen.values()):
            return result, set()
        if not written and not fs.is_locked(root) and sight(directory, root) == before:
            return result, set()
        if left:
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
    return result, {fault for fault, count in seen.items() if count < AGREE}


def sight(directory: str, root: str) -> object:
    """Return a value that differs after each change of `directory` or of the checkpoint files in its root.

    The value has the names, sizes and times of files. Other entries of the root are ignored, since this is called for
    each partition.
    """
    state: list[object] = []
    try:
        for entry in fs.scandir(directory):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # the entry was removed since the listing
            is_file = not entry.is_dir(follow_symlinks=False)
            state.append((entry.name, status.st_ino, _times(status) if is_file else ()))
        state.append(fs.stat(directory).st_ino)
    except StorageError:
        state.append("gone")
    for name in (fs.LOCK_FILE, checkpoint.CLEAN_MARKER, *checkpoint.ROOT_CHECKPOINTS) if root != directory else ():
        try:
            status = fs.stat(os.path.join(root, name))
            state.append((name, status.st_ino, _times(status)))
        except StorageError:
            state.append((name, "gone"))
    return state


def _times(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
