"""Measures the disk space of directories of logs, by kind of file.

Counts blocks, as `du` does, because the index of an active segment is a sparse file; in an object store it counts
bytes. A file with several names is counted once. Files that a writer removes during the measurement are not counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass

from kstore.base.numbers import size
from kstore.disk import fs
from kstore.errors import InvalidTopicError, StorageError
from kstore.files import load_files, names

__all__ = ["Meter", "Usage", "log_bytes"]


def log_bytes(directory: str) -> int:
    """Return the size of the log files in use in a partition's directory; 0 if it was just removed."""
    try:
        files = (entry for entry in fs.scandir(directory) if entry.name.endswith(names.LOG))
        return sum(file.stat(follow_symlinks=False).st_size for file in files)
    except OSError:
        return 0


@dataclass(slots=True)
class Usage:
    """Bytes on the disk. Not thread-safe."""

    log_bytes: int = 0
    """`.log` files of segments in use."""
    other_bytes: int = 0
    """Everything else: indexes, snapshots, checkpoints, directories."""
    deleted_bytes: int = 0
    """Files and partitions that are marked as deleted and not removed yet."""
    staged_bytes: int = 0
    """Bulk loads that tasks have staged next to the directory."""

    @property
    def total_bytes(self) -> int:
        return self.log_bytes + self.other_bytes + self.deleted_bytes + self.staged_bytes

    def add(self, other: Usage) -> None:
        self.log_bytes += other.log_bytes
        self.other_bytes += other.other_bytes
        self.deleted_bytes += other.deleted_bytes
        self.staged_bytes += other.staged_bytes

    def to_json(self) -> dict[str, int]:
        """Return the numbers as a dict with stable keys."""
        return {**asdict(self), "total_bytes": self.total_bytes}

    def __str__(self) -> str:
        """Return the total and all parts above 0."""
        parts = [
            (self.log_bytes, "logs"),
            (self.other_bytes, "indexes and other files"),
            (self.deleted_bytes, "deleted, not yet removed"),
            (self.staged_bytes, "staged loads"),
        ]
        shown = ", ".join(f"{what} {size(count)}" for count, what in parts if count)
        return f"on disk {size(self.total_bytes)}" + (f": {shown}" if shown else "")


class Meter:
    """Measures directories. A file with several names is counted only once. Not thread-safe."""

    def __init__(self) -> None:
        self._linked: set[tuple[int, int]] = set()  # files with several names

    def partition(self, path: str) -> Usage:
        """Measure a partition's directory."""
        usage = Usage(other_bytes=self._one(path))
        for entry in _entries(path):
            count = self._tree(entry.path)
            file = names.parse_file_name(entry.name)
            if entry.name.endswith(names.DELETED):
                usage.deleted_bytes += count
            elif file is not None and file.kind == names.LOG and not file.state:
                usage.log_bytes += count
            else:
                usage.other_bytes += count
        return usage

    def rest(self, root: str, partitions: Iterable[str]) -> Usage:
        """Measure a directory of logs and its staged loads, except `partitions`, which were measured before."""
        measured = set(partitions)
        usage = Usage(other_bytes=self._one(root))
        for entry in _entries(root):
            if entry.path in measured:
                continue
            if _awaits_removal(entry.name):
                usage.deleted_bytes += self._tree(entry.path)
            else:
                usage.other_bytes += self._tree(entry.path)
        usage.staged_bytes = sum(map(self._tree, _staged(root)))
        return usage

    def _tree(self, path: str) -> int:
        total, left = 0, [path]
        while left:
            path = left.pop()
            total += self._one(path)
            if not os.path.islink(path) and fs.is_directory(path):
                left += [entry.path for entry in _entries(path)]
        return total

    def _one(self, path: str) -> int:
        if fs.is_mounted(path):
            return fs.stat(path).st_size
        try:
            found = os.lstat(path)
        except OSError:  # removed by a writer
            return 0
        if found.st_nlink > 1 and not os.path.isdir(path):
            key = found.st_dev, found.st_ino
            if key in self._linked:
                return 0
            self._linked.add(key)
        return on_disk(found)


def on_disk(found: os.stat_result) -> int:
    """Return the bytes of a file's blocks."""
    return found.st_blocks * 512


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        return fs.scandir(path)
    except StorageError:  # removed by a writer, or not readable
        return []


def _awaits_removal(name: str) -> bool:
    try:
        return names.parse_partition_name(name).suffix == names.DELETE_DIRECTORY
    except InvalidTopicError:
        return False


def _staged(root: str) -> list[str]:
    """Return the staging areas of a directory, and any other directories in which the pending load is staged."""
    paths = list(load_files.staging_areas([root]))
    with suppress(StorageError):
        record = load_files.read_commit(root)
        paths += [] if record is None else record.directories
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not kept or not path.startswith(f"{kept[-1]}/"):
            kept.append(path)
    return [path for path in kept if os.path.lexists(path)]
