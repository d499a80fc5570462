"""The index of a segment's aborted transactions (FORMAT 9): entries without a header; the first entry creates the file.

Invariant: an entry is added before its marker is in the log, so that a reader that sees the marker finds the entry. If
the marker cannot be written, the entry is removed.
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
    """Parse the file's bytes; a partial entry at the end is ignored.

    As in Kafka, the version is only the entry's first byte. Raises `CorruptIndexError` if it is above the known one.
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
    """Return the file's bytes."""
    return b"".join(_ENTRY.pack(entry.version << 8, *entry[1:]) for entry in entries)


class TxnIndex:
    """The entries of one segment, read from their file at the first use.

    The log's mutex guards changes. Any thread may read `entries`: an append extends the list, a removal replaces it.
    """

    __slots__ = ("_entries", "_refreshed", "_unsynced", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._entries: list[AbortedTxn] | None = None
        self._refreshed = 0
        self._unsynced = False

    @property
    def entries(self) -> Sequence[AbortedTxn]:
        """The entries; none if there is no file. Raises `CorruptIndexError`."""
        return self._known()

    def _known(self) -> list[AbortedTxn]:
        kept = self._entries
        if kept is not None:
            return kept
        refreshed = self._refreshed
        entries = parse_txn_index(self._read(), path=self.path)
        if refreshed != self._refreshed:
            return entries  # not cached, since the file may have more entries by now
        kept = self._entries
        if kept is None:  # otherwise another thread has cached them, and may have added to them
            kept = self._entries = entries
        return kept

    def _read(self) -> bytes:
        try:
            return moving.at_its_path(fs.read_file, lambda: self.path)
        except fs.MissingFileError:
            return b""

    def refresh(self) -> None:
        """Read the file again at the next use, since another process may have written to it."""
        self._refreshed += 1
        self._entries = None

    def looks_sound(self, base_offset: int, end_offset: int | None = None) -> bool:
        """Return whether the file is readable and all entries end in `[base_offset, end_offset)` (SEMANTICS 8.8)."""
        try:
            ends = [entry.last_offset for entry in self.entries]
        except CorruptIndexError:
            return False
        return all(base_offset <= end and (end_offset is None or end < end_offset) for end in ends)

    def append(self, entry: AbortedTxn) -> bool:
        """Add an entry (SEMANTICS 9.14); return whether the file was created."""
        entries = self._known()
        size = len(entries) * _ENTRY.size
        made = not fs.exists(self.path)
        with fs.closing(fs.open(self.path, write=True, create=made)) as fd:
            fs.pwrite(fd, format_txn_index([entry]), size)
        entries.append(entry)
        self._unsynced = True
        return made

    def truncate_to(self, offset: int) -> None:
        """Drop the first entry that ends at or above `offset`, and all later ones (SEMANTICS 9.18)."""
        entries = self.entries
        kept = next((slot for slot, entry in enumerate(entries) if entry.last_offset >= offset), len(entries))
        if kept < len(entries):
            self.cut(kept)

    def cut(self, kept: int) -> None:
        """Keep the first `kept` entries; if `kept` is 0, the file need not exist."""
        if kept or fs.exists(self.path):
            with fs.closing(fs.open(self.path, write=True)) as fd:
                fs.truncate(fd, kept * _ENTRY.size)
                fs.fdatasync(fd)
        self._entries = self._known()[:kept]

    def replace(self, entries: Iterable[AbortedTxn]) -> None:
        """Replace the entries with those that recovery found; an empty index has no file unless it had one.

        A file with the same bytes is not written. Otherwise it is replaced as a whole, since an interrupted recovery
        must not leave an index that lacks entries but looks clean.
        """
        entries = list(entries)
        data = format_txn_index(entries)
        if data == self._read():
            self._unsynced = bool(entries)  # the process that wrote the file may have died before its sync
        else:
            fs.write_atomically(self.path, data)
        self._entries = entries

    def flush(self) -> None:
        """Sync the entries written since the last flush; entries may be added during the sync."""
        if self._unsynced:
            self._unsynced = False  # before the sync: entries added from now on need the next flush
            try:
                with fs.closing(fs.open(self.path)) as fd:
                    fs.fsync(fd)
            except BaseException:
                self._unsynced = True
                raise
