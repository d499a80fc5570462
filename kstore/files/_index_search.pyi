"""Searches in index entries as they lie on disk: big-endian, 8 bytes (offset index) or 12 (time index), no header."""

from typing import Any, Final

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

OFFSET_ENTRY_BYTES: Final[int]
TIME_ENTRY_BYTES: Final[int]
OFFSET_ENTRY_FIELDS: Final[list[tuple[str, str]]]
"""The NumPy dtype of an entry of an offset index; the offset is relative to the segment's base offset."""
TIME_ENTRY_FIELDS: Final[list[tuple[str, str]]]
"""The NumPy dtype of an entry of a time index; the offset is relative, too."""

def offset_entry(offset: int, position: int) -> bytes:
    """Return the bytes of an entry of an offset index; `offset` is relative to the segment's base offset."""

def time_entry(timestamp: int, offset: int) -> bytes:
    """Return the bytes of an entry of a time index; `offset` is relative to the segment's base offset."""

@disjoint_base
class Entries:
    """Index entries in a buffer; `_attach` provides the buffer when it is first needed.

    The entries' offsets are relative to `base_offset`. Lookups may run in any thread, also during an append;
    one thread at a time may change `entries` and the buffer.
    """
    @property
    def base_offset(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    has_unsound: bool
    """Whether an invalid entry follows the copied entries of a read-only file."""
    def __init__(self, base_offset: int) -> None: ...
    @property
    def entries(self) -> int:
        """The number of entries in use.

        A writer with its own descriptor may set the number, to at most `max_entries`, after it has written the bytes.
        Bytes after the entries in use are never read.
        """
    @entries.setter
    def entries(self, entries: int) -> None: ...
    @property
    def max_entries(self) -> int:
        """The number of entries that the file or buffer has space for (SEMANTICS 3.2)."""
    @property
    def size_bytes(self) -> int:
        """The bytes of the entries in use: the size of the file once it is trimmed."""
    def _attach(self) -> None:
        """Provide the bytes: call `_set_size`, then `_hold` if there are entries. Classes with a file override this."""
    def _is_ready(self) -> bool:
        """Return whether the counts are known and the buffer has all entries."""
    def _has_size(self) -> bool:
        """Return whether the counts are known."""
    def _set_size(self, entries: int, room: int) -> None:
        """Set how many entries are in use and how many fit; the caller first drops a buffer that lacks some of them."""
    def _hold(self, buffer: ReadableBuffer, filled: int = -1) -> None:
        """Search in `buffer` from now on; it has the first `filled` entries, by default as many as fit (`room`).

        If `buffer` is a `Map`, each search first asks for the size of the file.
        """
    def _filled(self) -> int:
        """Return the number of entries in the held buffer, 0 without a buffer."""
    def _drop(self) -> Any:
        """Release the buffer and return it, None if there was none. The counts are kept."""
    def _proof_bytes(self) -> int:
        """Return the bytes of memory that the proofs of searches by time take."""
    def _held_bytes(self) -> int:
        """Return the size of the held buffer, -1 without a buffer."""
    def _is_mapped(self) -> bool: ...
    def _take_touched(self) -> bool:
        """Return whether the entries were read since the last call."""
    def _forget(self) -> Any:
        """Forget the counts, release the buffer and return it; the next use calls `_attach`."""
    def _take_dirty(self) -> bool:
        """Return whether `entries` was set since the last call."""
    @property
    def is_full(self) -> bool:
        """Whether no entry may be added; a time index reserves the slot of a roll's closing entry (SEMANTICS 3.3)."""
    @property
    def last(self) -> tuple[int, int]:
        """The last entry; if there is none, what `lookup` returns if it finds none."""
    def entry(self, slot: int, /) -> tuple[int, int]:
        """Return the entry in a slot; raise `IndexError` if the slot is not in use."""
    def all_entries(self) -> list[tuple[int, int]]:
        """Return all entries in use, in order."""
    def entries_below(self, offset: int, /) -> int:
        """Count the entries below an offset: a truncation to the offset keeps these (SEMANTICS 3.15)."""
    def lookup(self, target: int, /) -> tuple[int, int]:
        """Find the entry with the greatest key at or below `target`."""
    def sound_entries(self) -> int:
        """Count the entries before the first invalid one."""

class OffsetEntries(Entries):
    """Entries (offset, position): the batch that ends at `offset` starts at `position` in the log file.

    `OffsetEntries(buffer, base_offset, entries=None)`; None means that all of the buffer is entries. Bytes after the
    entries in use may be written. Lookups may run in any thread, also during an append.
    """
    def __init__(self, buffer: ReadableBuffer, base_offset: int, entries: int | None = None) -> None: ...
    def lookup(self, offset: int, /) -> tuple[int, int]:
        """Find the entry with the greatest offset at or below `offset`; (base offset, 0) if none (SEMANTICS 3.13)."""
    def offset_from(self, position: int, /) -> int | None:
        """Return the offset of the first entry at or above a position, None if there is none (SEMANTICS 3.14).

        As in Kafka, entry 0 is skipped if it is exactly at that position.
        """
    def sound_entries(self) -> int:
        """Count the entries before the first invalid one (FORMAT 7.5).

        Offsets and positions rise strictly, no offset is below the base offset, and no position is 0.
        """

class TimeEntries(Entries):
    """Entries (timestamp, offset): every record with a greater timestamp has a greater offset (SEMANTICS 3.10).

    `TimeEntries(buffer, base_offset, entries=None)`; None means that all of the buffer is entries. Bytes after the
    entries in use may be written. Lookups may run in any thread, also during an append.
    """
    def __init__(self, buffer: ReadableBuffer, base_offset: int, entries: int | None = None) -> None: ...
    def lookup(self, timestamp: int, /) -> tuple[int, int]:
        """Find the entry with the greatest timestamp up to this one; (-1, base offset) if none (SEMANTICS 3.13)."""
    def sound_entries(self) -> int:
        """Count the entries before the first invalid one (FORMAT 8.3).

        Timestamps rise strictly from 0 on; offsets never fall and are never below the base offset. An entry of zeros
        is invalid: a file that was created at full size ends in such entries.
        """
