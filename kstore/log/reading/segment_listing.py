"""One look at the names in a partition directory: its segments, with interrupted deletions and swaps applied in memory.

Names change while a log is rolled, cut, cleaned and deleted. Invariant: what is given is the directory as it was at one
moment, so that a swap of cleaned segments is seen not begun or done, at whichever of its renames it stands.
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
    actual: Mapping[str, str]  # final names to those that the files have now
    passed_over: tuple[str, ...]

    def state(self, base: int) -> tuple[int, int]:
        """Size and time of modification of a segment's `.log` file."""
        stat = fs.stat(self.paths[self.bases.index(base)])
        return stat.st_size, stat.st_mtime_ns


def list_segments(directory: str) -> Listing:
    """List the directory. Raises `StorageError` for a segment whose name is not spelt as one."""
    inodes = _names(directory)
    unfinished = swap.find_leftovers(directory, inodes)
    actual = {name: name for name in inodes if name not in set(unfinished.remove)}
    for name, final in unfinished.rename:
        actual.pop(name, None)
        actual[final] = name
    bases = []
    for name in actual:
        parsed = names.parse_file_name(name)
        if parsed is not None and parsed.kind == names.LOG and not parsed.state:
            if str(parsed) != name:
                reason = f"the name has not the 20 digits of {parsed}; kstore repair renames the file"
                raise StorageError(errno.EINVAL, reason, os.path.join(directory, name))
            bases.append(parsed.offset)
    bases.sort()
    now = [actual[names.log_name(base)] for base in bases]
    paths = tuple(os.path.join(directory, name) for name in now)
    return Listing(tuple(bases), tuple(inodes[name] for name in now), paths, actual, unfinished.remove)


def _names(directory: str) -> dict[str, int]:
    """The names and their inode numbers as of one moment: a rename may fall into a listing, and not into two."""
    entries = None
    while True:
        before, entries = entries, {entry.name: entry.inode() for entry in fs.scandir(directory)}
        if entries == before:
            return entries
