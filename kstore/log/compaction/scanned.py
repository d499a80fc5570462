"""What the first pass has read of a segment, in pieces of whole batches: so that the second need not read them all."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kstore.log.compaction._keys import NewestRecords


class Piece(NamedTuple):
    """Whole batches, one after the other."""

    size_bytes: int
    records: int
    batches: int
    last_offset: int
    is_plain: bool
    """None of the batches is of a transaction, of control records or of formats 0 and 1."""


_NUMBERS = len(Piece._fields)


class ScannedPart:
    """The part of one segment that the first pass has read. A piece takes 40 bytes. Not thread-safe."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self._numbers = array("q")  # of each piece its fields, with the end in place of the size
        self._before = 0, 0, 0

    def begin(self, newest: NewestRecords) -> None:
        """Note what the first pass has seen before the next piece."""
        self._before = newest.records, newest.batches, newest.special_batches

    def add(self, end: int, newest: NewestRecords) -> None:
        """Note that the first pass has taken the next batches, up to the position `end`."""
        records, batches, special = self._before
        last_offset, is_plain = newest.next_offset - 1, newest.special_batches == special
        self._numbers.extend((end, newest.records - records, newest.batches - batches, last_offset, is_plain))
        self.end = end

    def parts(self, size: int) -> Iterator[tuple[int, int, Piece | None]]:
        """The parts of a segment of `size` bytes, as (position, end, piece): None where the first pass has not read."""
        yield 0, self.start, None
        position = self.start
        for at in range(0, len(self._numbers), _NUMBERS):
            end, records, batches, last_offset, is_plain = self._numbers[at : at + _NUMBERS]
            yield position, end, Piece(end - position, records, batches, last_offset, bool(is_plain))
            position = end
        yield position, size, None
