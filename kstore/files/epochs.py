"""Leader epochs: the start offset of each epoch, in memory and in a file (SEMANTICS 10).

Invariant: epochs and start offsets both strictly increase, so a new entry first removes the newest entries that are
not below it in both.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.disk import fs
from kstore.files.checkpoint import format_checkpoint, malformed, parse_integer, read_checkpoint

NO_EPOCH = -1
NO_OFFSET = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it; as a result of `find_end_offset`, an epoch and its end."""

    epoch: int
    offset: int


UNDEFINED = EpochEntry(NO_EPOCH, NO_OFFSET)


class LeaderEpochCache:
    """The leader epochs of one log, in memory and in their file.

    `assign` writes the file before it returns. A truncation changes the memory immediately and leaves the file to
    `flush`, since a stale file only has too many entries, which loading removes (SEMANTICS 8.13). One thread at a time
    may change it. Any number of threads may read it; they see the entries before or after a change.
    """

    def __init__(self, path: str | os.PathLike[str], entries: Iterable[tuple[int, int]] = ()) -> None:
        self.path = os.fspath(path)
        self.dirty = False
        """Whether the file lacks a change that the memory has."""
        self.lacks_entries = False
        """Whether the file lacks entries, for example because the disk was full; otherwise it only has too many."""
        self._entries: tuple[EpochEntry, ...] = _with((), [_checked(*entry) for entry in entries])

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> LeaderEpochCache:
        """Load the file; with `create`, make a missing one, empty. Raises `StorageError` if it is malformed."""
        try:
            lines = read_checkpoint(path, 2)
        except fs.MissingFileError:
            lines = []
            if create:
                with suppress(fs.FullDiskError):  # the file is then made with its first entry
                    fs.close(fs.open(path, create=True))
        entries = []
        for line, fields in enumerate(lines, 3):
            epoch = parse_integer(fields[0], INT_MAX, path, line)
            start = parse_integer(fields[1], LONG_MAX, path, line)
            if epoch < 0 or start < 0:
                raise malformed(path, line, f"epoch {epoch} from offset {start}: neither may be negative")
            entries.append((epoch, start))
        return cls(path, entries)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return self._entries

    @property
    def latest(self) -> EpochEntry | None:
        """The newest entry, None if there is none."""
        return self._entries[-1] if self._entries else None

    @property
    def latest_epoch(self) -> int | None:
        """The newest epoch, None if there is none."""
        return self._entries[-1].epoch if self._entries else None

    # Changes

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Add an entry, in the file too; return False if nothing changed (SEMANTICS 10.3)."""
        latest = self._entries[-1] if self._entries else UNDEFINED
        if latest.epoch == epoch and 0 <= latest.offset <= start_offset:  # true for every batch but an epoch's first
            return False
        return self.assign_all(((epoch, start_offset),))

    def assign_all(self, entries: Iterable[tuple[int, int]]) -> bool:
        """Do several `assign`s, and write the file once; return False if nothing changed.

        Nothing has changed if this raises `FullDiskError`.
        """
        before = self._entries, self.dirty, self.lacks_entries
        if not self.enter(entries):
            return False
        try:
            self.flush()
        except fs.FullDiskError:
            self._entries, self.dirty, self.lacks_entries = before
            raise
        return True

    def enter(self, entries: Iterable[tuple[int, int]]) -> bool:
        """Do several `assign`s in memory, and leave the file to `flush`; return False if nothing changed."""
        after = _with(self._entries, [_checked(*entry) for entry in entries])
        changed = after != self._entries
        self._entries, self.dirty = after, self.dirty or changed
        self.lacks_entries = self.lacks_entries or changed
        return changed

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the entries that start at or after `end_offset`, none if it is negative (SEMANTICS 10.7)."""
        if self._entries and 0 <= end_offset <= self._entries[-1].offset:
            self._entries = self._entries[: bisect_left(self._entries, end_offset, key=_start)]
            self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the entries below `start_offset`, but move the newest of them to `start_offset` (SEMANTICS 10.7)."""
        below = bisect_right(self._entries, start_offset, key=_start)
        if below:
            after = (EpochEntry(self._entries[below - 1].epoch, start_offset), *self._entries[below:])
            self.dirty = self.dirty or after != self._entries
            self._entries = after

    def clear(self) -> None:
        """Drop all entries in memory only; the file stays in a directory that is renamed (SEMANTICS 10.8a)."""
        self._entries = ()
        self.dirty = self.lacks_entries = False

    def clear_and_flush(self) -> None:
        """Drop all entries, in the file too (SEMANTICS 10.8)."""
        self._entries = ()
        self.dirty = True
        self.flush()

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        """Go back to the `entries` before a change, and write the file unless it has them."""
        if self._entries != entries:
            self._entries = entries
            self.dirty = True
        self.flush()

    def flush(self) -> None:
        """Write the file, durably, if `dirty`; `dirty` stays set if that fails."""
        if self.dirty:
            fs.write_atomically(self.path, format_checkpoint(self._entries))
            self.dirty = self.lacks_entries = False

    # Lookups

    def find_end_offset(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """Return the greatest known epoch up to `epoch` with its end offset, or `UNDEFINED` (SEMANTICS 10.5)."""
        entries = self._entries
        if epoch == NO_EPOCH or not entries:
            return UNDEFINED
        if epoch == entries[-1].epoch:
            return EpochEntry(epoch, log_end_offset)
        higher = bisect_right(entries, epoch, key=_epoch_of)
        if higher == len(entries):
            return UNDEFINED
        return EpochEntry(entries[higher - 1].epoch if higher else epoch, entries[higher].offset)

    def find_epoch(self, offset: int) -> int | None:
        """Return the epoch in which `offset` was written, None below the first entry (SEMANTICS 10.6)."""
        entries = self._entries
        after = bisect_right(entries, offset, key=_start)
        return entries[after - 1].epoch if after else None

    def find_previous(self, epoch: int) -> EpochEntry | None:
        """Return the newest entry of an epoch below `epoch`, None if there is none."""
        entries = self._entries
        at = bisect_left(entries, epoch, key=_epoch_of)
        return entries[at - 1] if at else None

    def find_next(self, epoch: int) -> EpochEntry | None:
        """Return the oldest entry of an epoch above `epoch`, None if there is none."""
        entries = self._entries
        at = bisect_right(entries, epoch, key=_epoch_of)
        return entries[at] if at < len(entries) else None

    def __repr__(self) -> str:
        return f"LeaderEpochCache({self.path!r}, {[tuple(entry) for entry in self._entries]})"


def _with(entries: tuple[EpochEntry, ...], new: list[EpochEntry]) -> tuple[EpochEntry, ...]:
    """Add the `new` entries one by one; skip an entry of the newest epoch unless it starts below that epoch's start."""
    kept = list(entries)
    for entry in new:
        if kept and kept[-1].epoch == entry.epoch and kept[-1].offset <= entry.offset:
            continue
        while kept and (kept[-1].epoch >= entry.epoch or kept[-1].offset >= entry.offset):
            kept.pop()
        kept.append(entry)
    return tuple(kept)


_start, _epoch_of = attrgetter("offset"), attrgetter("epoch")


def _checked(epoch: int, start: int) -> EpochEntry:
    if not 0 <= epoch <= INT_MAX:
        raise ValueError(f"leader epoch {epoch} is not in 0..{INT_MAX}")
    if not 0 <= start <= LONG_MAX:
        raise ValueError(f"start offset {start} is not in 0..{LONG_MAX}")
    return EpochEntry(epoch, start)
