"""The index of aborted transactions of one segment (FORMAT 9): entries without a head, in a file made with the first.

Invariant: an entry is added before its marker is in the log, so that a reader that sees the marker finds the entry; an
entry whose marker could not be written is taken back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kstore.disk import fs, moving
from kstore.errors import CorruptIndexError

__all__ = ["TXN_ENTRY_BYTES", "AbortedTxn", "TxnIndex", "format_txn_index", "parse_txn_index"]

_ENTRY = struct.Struct(">hqqqq")
TXN_ENTRY_BYTES = _ENTRY.size
_VERSION = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction: the offsets of its first record and its marker, and the last stable offset at its end."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_txn_index(data: bytes, *, path: str | None = None) -> list[AbortedTxn]:
    """Take the file apart; a fragment at its end is ignored.

    As in Kafka the version is the entry's first byte alone; `CorruptIndexError` if it is above the one that is known.
    """
    whole = len(data) - len(data) % _ENTRY.size
    entries = [AbortedTxn(fields[0] >> 8, *fields[1:]) for fields in _ENTRY.iter_unpack(data[:whole])]
    for entry in entries:
        if entry.version > _VERSION:
            raise CorruptIndexError(
                f"aborted transaction of version {entry.version}: {_VERSION} is the highest known", path=path
            )
    return entries


def format_txn_index(entries: Iterable[AbortedTxn]) -> bytes:
    """Write the file's bytes."""
    return b"".join(_ENTRY.pack(entry.version << 8, *entry[1:]) for entry in entries)


class TxnIndex:
    """The entries of one segment, read from their file at the first use.

    The log's mutex guards what changes it, for readers of any thread: `entries` grows, and is another where some go.
    """

    __slots__ = ("_entries", "_refreshed", "_unsynced", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._entries: list[AbortedTxn] | None = None
        self._refreshed = 0
        self._unsynced = False

    @property
    def entries(self) -> Sequence[AbortedTxn]:
        """The entries, none where there is no file. Raises `CorruptIndexError`."""
        return self._known()

    def _known(self) -> list[AbortedTxn]:
        kept = self._entries
        if kept is not None:
            return kept
        refreshed = self._refreshed
        entries = parse_txn_index(self._read(), path=self.path)
        if refreshed != self._refreshed:
            return entries  # the file may have more by now: do not keep them
        kept = self._entries
        if kept is None:  # else another thread was faster, and may have added to it
            kept = self._entries = entries
        return kept

    def _read(self) -> bytes:
        try:
            return moving.at_its_path(fs.read_file, lambda: self.path)
        except fs.MissingFileError:
            return b""

    def refresh(self) -> None:
        """Read the file anew at the next use: another process may have written to it."""
        self._refreshed += 1
        self._entries = None

    def looks_sound(self, base_offset: int, end_offset: int | None = None) -> bool:
        """Whether it can be read and no entry ends below the segment (SEMANTICS 8.8), or at or above `end_offset`."""
        try:
            ends = [entry.last_offset for entry in self.entries]
        except CorruptIndexError:
            return False
        return all(base_offset <= end and (end_offset is None or end < end_offset) for end in ends)

    def append(self, entry: AbortedTxn) -> bool:
        """Add an entry (SEMANTICS 9.14); whether the file had to be made."""
        entries = self._known()
        size = len(entries) * _ENTRY.size
        made = not fs.exists(self.path)
        with fs.closing(fs.open(self.path, write=True, create=made)) as fd:
            fs.pwrite(fd, format_txn_index([entry]), size)
        entries.append(entry)
        self._unsynced = True
        return made

    def truncate_to(self, offset: int) -> None:
        """Drop the entries from the first on that ends at or above `offset` (SEMANTICS 9.18)."""
        entries = self.entries
        kept = next((slot for slot, entry in enumerate(entries) if entry.last_offset >= offset), len(entries))
        if kept < len(entries):
            self.cut(kept)

    def cut(self, kept: int) -> None:
        """Keep so many entries, which the file may not have been made for."""
        if kept or fs.exists(self.path):
            with fs.closing(fs.open(self.path, write=True)) as fd:
                fs.truncate(fd, kept * _ENTRY.size)
                fs.fdatasync(fd)
        self._entries = self._known()[:kept]

    def replace(self, entries: Iterable[AbortedTxn]) -> None:
        """Hold these entries instead, as recovery found them; an empty index has no file unless it had one.

        A file that is as it should be is left alone. Any other is replaced as a whole: a recovery that is interrupted
        must not leave an index that lacks entries and looks as a close leaves it.
        """
        entries = list(entries)
        data = format_txn_index(entries)
        if data == self._read():
            self._unsynced = bool(entries)  # the process that wrote it may have died before its sync
        else:
            fs.write_atomically(self.path, data)
        self._entries = entries

    def flush(self) -> None:
        """Sync the entries that were written since the last flush; entries may be added meanwhile."""
        if self._unsynced:
            self._unsynced = False  # before the sync: entries that are added from here on are for the next flush
            try:
                with fs.closing(fs.open(self.path)) as fd:
                    fs.fsync(fd)
            except BaseException:
                self._unsynced = True
                raise
