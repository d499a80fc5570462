from typing import Any, Final

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

OFFSET_ENTRY_BYTES: Final[int]
TIME_ENTRY_BYTES: Final[int]
OFFSET_ENTRY_FIELDS: Final[list[tuple[str, str]]]
TIME_ENTRY_FIELDS: Final[list[tuple[str, str]]]

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
    @property
    def entries(self) -> int:
        """The number of entries in use.

        A writer with a descriptor of its own may set it: first the bytes, then the number, at most `max_entries`.
        Bytes behind it are never looked at.
        """
    @entries.setter
    def entries(self, value: int) -> None: ...
    @property
    def max_entries(self) -> int:
        """The number of entries that there is room for (SEMANTICS 3.2)."""
    @property
    def size_bytes(self) -> int:
        """Bytes of the entries in use: the size of the file once it is trimmed."""
    @property
    def is_full(self) -> bool:
        """Whether no entry may be added; a time index keeps one slot for the closing entry of a roll
        (SEMANTICS 3.3).
        """
    @property
    def last(self) -> tuple[int, int]:
        """The last entry; that of a lookup which finds none when there is none."""
    has_unsound: bool
    """Of a file that is only read: an entry that cannot be one follows those that were copied."""

    def __init__(self, base_offset: int) -> None: ...
    def entry(self, slot: int, /) -> tuple[int, int]:
        """The entry in a slot; `IndexError` when it is not in use."""
    def lookup(self, target: int, /) -> tuple[int, int]:
        """Find the entry with the greatest key at or below `target`."""
    def all_entries(self) -> list[tuple[int, int]]:
        """All entries in use, in their order."""

    def entries_below(self, offset: int, /) -> int:
        """Count the entries below an offset: those that a truncation to it keeps (SEMANTICS 3.15)."""
    def sound_entries(self) -> int:
        """Count the entries before the first that cannot be one."""

    # For a subclass that brings the bytes itself.
    def _attach(self) -> None: ...
    def _is_ready(self) -> bool: ...
    def _has_size(self) -> bool: ...
    def _set_size(self, entries: int, room: int) -> None: ...
    def _hold(self, buffer: ReadableBuffer, filled: int = -1) -> None: ...
    def _filled(self) -> int: ...
    def _is_mapped(self) -> bool: ...
    def _drop(self) -> Any: ...
    def _forget(self) -> Any: ...
    def _take_dirty(self) -> bool: ...
    def _proof_bytes(self) -> int: ...
    def _held_bytes(self) -> int: ...
    def _take_touched(self) -> bool: ...

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
