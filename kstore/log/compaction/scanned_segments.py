"""The part of a segment that the first pass has read, divided into pieces of whole batches that may be skipped."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kstore.log.compaction._newest_records import NewestRecords


class Piece(NamedTuple):
    """Consecutive whole batches whose records are all superseded; they may be dropped unread.

    No batch of a piece belongs to a transaction, is a control batch, or has format 0 or 1.
    """

    size_bytes: int
    records: int
    batches: int
    last_offset: int


class Part(NamedTuple):
    """A part of a segment, by positions in its file."""

    first: int
    last: int
    is_scanned: bool
    """Whether the first pass has read it."""

    piece: Piece | None
    """The piece if this part is one that may be dropped, else None."""


_NUMBERS = 5  # numbers of a piece: end, records, batches, last offset, and whether it has no special batch


class ScannedPart:
    """The part of one segment that the first pass has read. A piece takes 40 bytes. Not thread-safe."""

    def __init__(self, start: int, first_ordinal: int) -> None:
        self.start = self.end = start
        self._first_ordinal = first_ordinal
        self._numbers = array("q")
        self._before = 0, 0, 0

    def begin(self, newest: NewestRecords) -> None:
        """Note the counts of the first pass before the next piece."""
        self._before = newest.records, newest.batches, newest.special_batches

    def add(self, end: int, newest: NewestRecords) -> None:
        """Note that the first pass has taken the next batches, up to the position `end`."""
        records, batches, special = self._before
        last_offset, is_plain = newest.next_offset - 1, newest.special_batches == special
        self._numbers.extend((end, newest.records - records, newest.batches - batches, last_offset, is_plain))
        self.end = end

    def extend(self, pieces: bytes) -> None:
        """Add the pieces that `NewestRecords.scan` returns."""
        if pieces:
            self._numbers.frombytes(pieces)
            self.end = self._numbers[-_NUMBERS]

    def parts(self, size: int, newest: NewestRecords) -> Iterator[Part]:
        """Yield the parts of a segment of `size` bytes: each piece that may be dropped, and the rest between them."""
        yield Part(0, self.start, False, None)
        first = position = self.start
        ordinal = self._first_ordinal
        for at in range(0, len(self._numbers), _NUMBERS):
            end, records, batches, last_offset, is_plain = self._numbers[at : at + _NUMBERS]
            if is_plain and newest.count_superseded(ordinal, records) == records:
                yield Part(first, position, True, None)
                yield Part(position, end, True, Piece(end - position, records, batches, last_offset))
                first = end
            position = end
            ordinal += records
        yield Part(first, position, True, None)
        yield Part(position, size, False, None)
