"""New files that are written part by part, and what is left of them when a process is killed meanwhile.

Invariant: a file that a living process is writing is locked, so that no other process takes it for left over.
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
    """A part of a new file that lies in another one."""

    def __len__(self) -> int: ...

    def copy_to(self, fd: int, at: int) -> int:
        """Write it to a place in a file; how many bytes it has."""


@contextlib.contextmanager
def written(path: str, parts: Iterable[ReadableBuffer | FilePart]) -> Iterator[None]:
    """Write a file that was not there, part by part, durably but for its name; it is locked until the block ends.

    Within the block it may be renamed. When writing fails no file is left.
    """
    fd = _new_locked(path)
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


def _new_locked(path: str) -> int:
    """Make a file and lock it, again if it was taken for left over in between."""
    while True:
        fd = fs.open(path, new=True)
        with contextlib.suppress(OSError):  # a file system that has no locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        if fs.is_at(fd, path):
            return fd
        fs.close(fd)


def remove_leftover(path: str) -> bool:
    """Delete a file that `written` has made, unless a living process is writing it; whether it was deleted.

    Where the file system has no locks it stays.
    """
    try:
        fd = fs.open(path)
    except fs.MissingFileError:
        return False
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return fs.is_at(fd, path) and fs.unlink(os.fspath(path))
    finally:
        fs.close(fd)
