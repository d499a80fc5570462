"""Lists the segments of a partition directory, with interrupted deletions and swaps applied in memory.

Files are renamed while a log is rolled, truncated, cleaned and deleted. Invariant: a listing shows the directory at one
time. If a swap of cleaned segments is under way, the listing shows the state before or after the whole swap.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import NamedTuple

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import names
from kstore.log.segments import swap


class Listing(NamedTuple):
    """The segments of a directory in order. Immutable."""

    bases: tuple[int, ...]
    files: tuple[int, ...]  # inode numbers of their `.log` files
    paths: tuple[str, ...]
    actual: Mapping[str, str]  # from a file's final name to its present name
    passed_over: tuple[str, ...]

    def state(self, base: int) -> tuple[int, int]:
        """Return the size and time of modification of a segment's `.log` file."""
        stat = fs.stat(self.paths[self.bases.index(base)])
        return stat.st_size, stat.st_mtime_ns


def list_segments(directory: str) -> Listing:
    """List the directory. Raises `StorageError` for a segment whose name does not have 20 digits."""
    inodes = _names(directory)
    unfinished = swap.find_leftovers(directory, inodes)
    actual = {name: name for name in inodes}
    for name in unfinished.remove:
        actual.pop(name, None)
    for name, final in unfinished.rename:
        actual.pop(name, None)
        actual[final] = name
    bases = []
    for name in actual:
        # Of possibly hundreds of thousands of names only those of log files are parsed.
        parsed = names.parse_file_name(name) if name.endswith(names.LOG) else None
        if parsed is not None:
            if str(parsed) != name:
                reason = f"the name has not the 20 digits of {parsed}; kstore repair renames the file"
                raise StorageError(errno.EINVAL, reason, os.path.join(directory, name))
            bases.append(parsed.offset)
    bases.sort()
    now = [actual[names.log_name(base)] for base in bases]
    paths = tuple(os.path.join(directory, name) for name in now)
    return Listing(tuple(bases), tuple(inodes[name] for name in now), paths, actual, unfinished.remove)


def _names(directory: str) -> dict[str, int]:
    """Return the names and inode numbers at one time. Renames may disturb a listing, so list until two agree."""
    entries = None
    while True:
        before, entries = entries, {entry.name: entry.inode() for entry in fs.scandir(directory)}
        if entries == before:
            return entries
