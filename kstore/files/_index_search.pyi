"""Searches in index entries as they lie on disk: big-endian, 8 bytes (offset index) or 12 (time index), no header."""

from typing import Any, Final

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

OFFSET_ENTRY_BYTES: Final[int]
TIME_ENTRY_BYTES: Final[int]
OFFSET_ENTRY_FIELDS: Final[list[tuple[str, str]]]
"""An entry of an offset index, as NumPy takes it for a dtype; the offset counts from the segment's base."""
TIME_ENTRY_FIELDS: Final[list[tuple[str, str]]]
"""An entry of a time index, likewise."""

def offset_entry(offset: int, position: int) -> bytes:
    """The bytes of an entry of an offset index; `offset` counts from the segment's base."""

def time_entry(timestamp: int, offset: int) -> bytes:
    """The bytes of an entry of a time index; `offset` counts from the segment's base."""

@disjoint_base
class Entries:
    """Index entries in a buffer, or in one that `_attach` will bring when it is first needed.

    `base_offset` is what the entries' offsets count from. Lookups may run in any thread, also beside an append;
    changes of `entries` and of the buffer are for one thread at a time.
    """
    @property
    def base_offset(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    has_unsound: bool
    """Of a file that is only read: an entry that cannot be one follows those that were copied."""
    def __init__(self, base_offset: int) -> None: ...
    @property
    def entries(self) -> int:
        """The number of entries in use.

        A writer with a descriptor of its own may set it: first the bytes, then the number, at most `max_entries`.
        Bytes behind it are never looked at.
        """
    @entries.setter
    def entries(self, entries: int) -> None: ...
    @property
    def max_entries(self) -> int:
        """The number of entries that there is room for (SEMANTICS 3.2)."""
    @property
    def size_bytes(self) -> int:
        """Bytes of the entries in use: the size of the file once it is trimmed."""
    def _attach(self) -> None:
        """Bring the bytes in: `_set_size`, then `_hold` if there are entries. A class with a file overrides this."""
    def _is_ready(self) -> bool:
        """Whether the numbers are known, and the buffer has the entries if there are any."""
    def _has_size(self) -> bool:
        """Whether the numbers are known."""
    def _set_size(self, entries: int, room: int) -> None:
        """There is room for `room` entries, and `entries` are in use; a buffer that lacks some is let go first."""
    def _hold(self, buffer: ReadableBuffer, filled: int = -1) -> None:
        """Search in `buffer` from now on, of which the first `filled` entries are there, by default as many as have room.

        Of a `Map` each search looks first how many bytes the file has.
        """
    def _filled(self) -> int:
        """How many entries the buffer that is held has, 0 for no buffer."""
    def _drop(self) -> Any:
        """Let go of the buffer and give it back; None when none was held. The numbers stay."""
    def _proof_bytes(self) -> int:
        """What is remembered of searches by time."""
    def _held_bytes(self) -> int:
        """The size of the buffer that is held, -1 for none."""
    def _is_mapped(self) -> bool:
        """Whether a file is mapped."""
    def _take_touched(self) -> bool:
        """Whether the entries were read since the last call."""
    def _forget(self) -> Any:
        """Forget the numbers and let go of the buffer, which is given back: the next use asks `_attach`."""
    def _take_dirty(self) -> bool:
        """Whether `entries` was changed since the last call."""
    @property
    def is_full(self) -> bool:
        """Whether no entry may be added; a time index keeps one slot for the closing entry of a roll
        (SEMANTICS 3.3).
        """
    @property
    def last(self) -> tuple[int, int]:
        """The last entry; that of a lookup which finds none when there is none."""
    def entry(self, slot: int, /) -> tuple[int, int]:
        """The entry in a slot; `IndexError` when it is not in use."""
    def all_entries(self) -> list[tuple[int, int]]:
        """All entries in use, in their order."""
    def entries_below(self, offset: int, /) -> int:
        """Count the entries below an offset: those that a truncation to it keeps (SEMANTICS 3.15)."""
    def lookup(self, target: int, /) -> tuple[int, int]:
        """Find the entry with the greatest key at or below `target`."""
    def sound_entries(self) -> int:
        """Count the entries before the first that cannot be one."""

class OffsetEntries(Entries):
    """Entries (offset, position): the batch that ends at `offset` starts at `position` in the log file.

    `OffsetEntries(buffer, base_offset, entries=None)`, where None takes all there is room for. The buffer may be
    written to behind the entries in use. Lookups may run in any thread, also beside an append.
    """
    def __init__(self, buffer: ReadableBuffer, base_offset: int, entries: int | None = None) -> None: ...
    def lookup(self, offset: int, /) -> tuple[int, int]:
        """Find the entry with the greatest offset at or below `offset`; (base offset, 0) when there is none
        (SEMANTICS 3.13).
        """
    def offset_from(self, position: int, /) -> int | None:
        """The offset of the first entry at or behind a position, None without one (SEMANTICS 3.14).

        As in Kafka, an entry 0 at exactly that position is passed over.
        """
    def sound_entries(self) -> int:
        """Count the entries before the first that cannot be one (FORMAT 7.5).

        Offsets and positions rise strictly, no offset is below the base, and no position is 0.
        """

class TimeEntries(Entries):
    """Entries (timestamp, offset): every record with a greater timestamp has a greater offset (SEMANTICS 3.10).

    `TimeEntries(buffer, base_offset, entries=None)`, where None takes all there is room for. The buffer may be written
    to behind the entries in use. Lookups may run in any thread, also beside an append.
    """
    def __init__(self, buffer: ReadableBuffer, base_offset: int, entries: int | None = None) -> None: ...
    def lookup(self, timestamp: int, /) -> tuple[int, int]:
        """Find the entry with the greatest timestamp at or below it; (-1, base offset) when there is none
        (SEMANTICS 3.13).
        """
    def sound_entries(self) -> int:
        """Count the entries before the first that cannot be one (FORMAT 8.3).

        Timestamps rise strictly from 0 on, offsets never fall nor lie below the base. An entry of zeros counts as none:
        it is what a file that was made at full size ends in.
        """
