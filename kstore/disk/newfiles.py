"""Writes new files, locked as long as their process works on them, and removes the leftovers of killed processes.

Invariant: a file that a running process is writing is locked, so that no other process treats it as a leftover.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from kstore.disk import fs

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class FilePart(Protocol):
    """A part of a new file that is copied from another file."""

    def __len__(self) -> int: ...

    def copy_to(self, fd: int, at: int) -> int:
        """Write the part to a position in a file; return its size in bytes."""


@contextlib.contextmanager
def written(path: str, parts: Iterable[ReadableBuffer | FilePart]) -> Iterator[None]:
    """Write a new file part by part, and sync its data but not its name; the file is locked until the block ends.

    The block may rename the file. If writing or the block fails, the file is deleted.
    """
    fd = new_locked(path)
    try:
        position = 0
        for part in parts:
            if hasattr(part, "copy_to"):
                position += part.copy_to(fd, position)
            else:
                fs.pwrite(fd, part, position)
                position += len(memoryview(part))
        fs.fdatasync(fd)
        yield
    except BaseException:
        fs.unlink(path)
        raise
    finally:
        fs.close(fd)


def new_locked(path: str) -> int:
    """Create and lock a file; repeat if another process removed the file as a leftover before it was locked."""
    while True:
        fd = fs.open(path, new=True)
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        if fs.is_at(fd, path):
            return fd
        fs.close(fd)


def try_lock(fd: int) -> bool:
    """Lock the file of a process that is gone; return False if the process still exists, or if that is not known."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(fd: int) -> None:
    """Unlock a file before its descriptor is closed: a child that was forked meanwhile has the descriptor, too."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def remove_leftover(path: str) -> bool:
    """Delete a file made by `written` unless a running process is writing it; return whether it was deleted.

    If the file system has no locks, the file is kept.
    """
    try:
        fd = fs.open(path)
    except fs.MissingFileError:
        return False
    try:
        return try_lock(fd) and fs.is_at(fd, path) and fs.unlink(os.fspath(path))
    finally:
        fs.close(fd)
