"""Read-only directory trees that are in no file system: kstore reads them through `fs` as if they were directories.

A mounted tree has a root whose path is a URL, so that no path of a file begins with it. Files of a tree have
descriptors from `FIRST_DESCRIPTOR` on, which the system never gives out; `fs` and the C code (window.h) pass reads of
them to `read_into`. Invariant: nothing here writes, and a tree is found by its root alone.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kstore.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import StrPath

FIRST_DESCRIPTOR = 1 << 30
_DEPTH = 3  # a root, a partition's directory, a file


class MountedFile(Protocol):
    """An open file of a tree. Thread-safe."""

    path: str

    @property
    def status(self) -> os.stat_result:
        """The file's metadata."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from `position` on; return the number of bytes, which is less only at the end."""


class DirectoryEntry(NamedTuple):
    """What a directory has under a name; used like `os.DirEntry`."""

    name: str
    path: str
    number: int
    """The inode number."""
    size: int | None
    """The size of a file; None for a directory."""
    modified_ns: int

    def inode(self) -> int:
        return self.number

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.size is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.size is not None

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return status_of(self.size is None, self.number, self.size or 0, self.modified_ns)


class Tree(Protocol):
    """A directory tree. `path` is relative to the root, "" for the root itself. Thread-safe."""

    def status(self, path: str) -> os.stat_result | None:
        """Return the metadata of a file or directory; None if nothing is there."""

    def entries(self, path: str) -> Iterable[DirectoryEntry] | None:
        """Return what a directory has; None unless a directory is there."""

    def open(self, path: str) -> MountedFile | None:
        """Open a file; None unless a file is there."""

    def omits(self, path: str) -> bool:
        """Return whether a missing file is missing by design: what it would have is in other files."""


_trees: dict[str, Tree] = {}
_files: dict[int, MountedFile] = {}
_numbers = itertools.count(FIRST_DESCRIPTOR)
_failures: dict[str, BaseException] = {}


def mount(url: str, tree: Tree, *, under_url: bool = False) -> str:
    """Mount a tree, and return the path of its root: the URL with a number.

    So the URL itself, which a caller may open again with other options, is not the path of a tree. With `under_url`
    it is, unless it is in use: for a program that opens no URL again, and prints the paths of files.
    """
    for number in itertools.count(0 if under_url else 1):
        root = f"{url}#{number}" if number else url
        if _trees.setdefault(root, tree) is tree:
            return root
    raise AssertionError


def unmount(root: str) -> None:
    """Remove a tree; its open files can still be read."""
    _trees.pop(root, None)


def is_mounted(path: StrPath) -> bool:
    """Return whether a path is one of a mounted tree."""
    return bool(_trees) and find(path) is not None


def find(path: StrPath) -> tuple[Tree, str] | None:
    """Return the tree of a path and the path in the tree; None for a path of a file system."""
    if not _trees or "://" not in (at := os.fspath(path)):
        return None
    whole = at = at.rstrip("/")
    for _ in range(_DEPTH):
        tree = _trees.get(at)
        if tree is not None:
            return tree, whole[len(at) + 1 :]
        at = at.rpartition("/")[0]
    return None


def status_of(is_directory: bool, inode: int, size: int, modified_ns: int) -> os.stat_result:
    """Return the metadata of a file or directory that only the user may read."""
    mode = stat.S_IFDIR | 0o500 if is_directory else stat.S_IFREG | 0o400
    seconds = modified_ns // 1_000_000_000
    times = {"st_mtime_ns": modified_ns, "st_atime_ns": modified_ns, "st_ctime_ns": modified_ns}
    return os.stat_result((mode, inode, FIRST_DESCRIPTOR, 1, 0, 0, size, seconds, seconds, seconds), times)


# Descriptors


def open_file(tree: Tree, inner: str, path: StrPath) -> int:
    file = tree.open(inner)
    if file is None:
        raise StorageError(errno.EISDIR, "a directory is here, and a regular file is needed", path)
    fd = next(_numbers)
    _files[fd] = file
    return fd


def close(fd: int) -> None:
    _files.pop(fd, None)


def file_of(fd: int) -> MountedFile:
    try:
        return _files[fd]
    except KeyError:
        raise StorageError(errno.EBADF, os.strerror(errno.EBADF)) from None


def read_into(fd: int, buffer: memoryview, position: int) -> int:
    """Fill the buffer from `position` of a file on; return the number of bytes, which is less only at the end."""
    return file_of(fd).read_into(buffer, position)


def keep_failure(fd: int, error: BaseException) -> None:
    """Keep the error of a read for `read_error`, as C code can only pass on a number."""
    if (file := _files.get(fd)) is not None:
        _failures[file.path] = error


def read_error(number: int, path: StrPath | None) -> BaseException:
    """Return the error of a failed read: the one that `keep_failure` was given, or one for the error number."""
    shown = None if path is None else os.fspath(path)
    if number == errno.EREMOTEIO and shown is not None and (kept := _failures.pop(shown, None)) is not None:
        return kept
    return StorageError(number, os.strerror(number), shown)
