"""`Numbering`: gives a producer's records their sequence numbers, by which their logs detect duplicates and gaps.

Invariant: each number is used for one record only. If it is unknown whether an appended batch is in the log, the count
of `SequenceNumbers` is doubtful and is read from the log before the next append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from kstore.codec import header
from kstore.codec._pack import Packer
from kstore.log import batch_packer
from kstore.log.appended import Stored
from kstore.log.batch_packer import ProducerFields
from kstore.log.segments.producer_state import ProducerInfo
from kstore.log.writing.writer import Writer
from kstore.store.topics._idempotent import Sequences

Place = tuple[str, int]
Enter = Callable[[list[Place]], None]
_WRAP = 1 << 31  # the sequence number after 2^31 - 1 is 0


class SequenceNumbers(Sequences):
    """The sequence numbers of one producer id and epoch, by partition. Not thread-safe."""

    def take(self, place: Place, writer: Writer) -> int:
        """Return the number of the next record; the count is doubtful until `used` is called."""
        partition = self.partition(place)
        if partition.doubtful:
            partition.sequence = self.known(place, writer)
        partition.doubtful = True
        self.taken = place, partition.sequence
        return partition.sequence

    def used(self, place: Place, sequence: int, count: int) -> None:
        """Note that `count` records from `sequence` on are in the log."""
        partition = self.partition(place)
        partition.sequence = (sequence + count) % _WRAP
        partition.doubtful = False

    def known(self, place: Place, writer: Writer) -> int:
        """Return the number after the producer's last batch in the log; if the log has none, the counted number."""
        info = self.info(writer)
        if info is None or not info.batches:
            return self.partition(place).sequence
        return (info.batches[-1].last_sequence + 1) % _WRAP

    def info(self, writer: Writer) -> ProducerInfo | None:
        """Return the log's state of this producer, or None if the log has no state for this epoch."""
        info = writer.producer_info(self.producer_id)
        return info if info is not None and info.producer_epoch == self.producer_epoch else None

    def fields(self, sequence: int) -> ProducerFields:
        """Return the producer's fields of the next batch, whose first sequence number is `sequence`."""
        return ProducerFields(self.producer_id, self.producer_epoch, sequence, self.transactional)


class Numbered:
    """The numbers of one call's records in one partition: `first`, and `next` for the next record.

    If the call is repeated, `known` is the log's state of the producer: records that the log has are left out.
    """

    __slots__ = ("_known", "first", "next")

    def __init__(self, first: int, known: ProducerInfo | None = None) -> None:
        self.first = self.next = first
        self._known = known if known is not None and known.batches else None

    def write(self, writer: Writer, packer: Packer, stored: Stored) -> None:
        """Append the packer's batches that the log does not have yet; note the offsets of all batches in `stored`."""
        info, at, count = self._known, 0, 0
        before = 0 if info is None else (info.batches[-1].last_sequence + 1 - self.next) % _WRAP
        # A difference of at least half of the range is negative: the last batch is older than this call.
        if info is not None and 0 < before < _WRAP // 2:
            first = info.batches[0].first_offset
            for batch in info.batches:  # the log keeps five batches; if ours is older, report the oldest
                if batch.first_sequence <= self.next <= batch.last_sequence:
                    first = batch.first_offset + self.next - batch.first_sequence
            stored.add(first, info.batches[-1].last_offset, packer.max_timestamp)
            with packer.buffer as encoded:
                while at < len(encoded) and count + header.records_of(encoded, at) <= before:
                    count += header.records_of(encoded, at)
                    at += header.size_of(encoded, at)
        if at < len(packer):
            first, last = batch_packer.store(writer, packer, stored, numbered=True, skip=at)
            count += last - first + 1
        self.next = (self.next + count) % _WRAP


class Numbering:
    """The sequence numbers of the records of one call.

    Before batches are appended, `enter` is called with their partitions and `lock` is taken. `lock` is not held while
    records are taken from the caller.
    """

    def __init__(
        self, numbers: SequenceNumbers, enter: Enter | None, lock: AbstractContextManager[object] | None
    ) -> None:
        self._numbers = numbers
        self._enter = enter
        self.lock = nullcontext() if lock is None else lock
        self.parts: dict[Place, Numbered] = {}

    def resume(self, again: Numbering, writers: Mapping[int, Writer]) -> None:
        """Use the numbers of an earlier attempt at the same call, and leave out the records that the logs have."""
        self.parts = {
            place: Numbered(part.first, self._numbers.info(writers[place[1]])) for place, part in again.parts.items()
        }

    def begin(self, writer: Writer) -> ProducerFields:
        """Choose the numbers of the records of a partition; return the producer's fields of its first batch."""
        place = writer.partition
        part = self.parts.get(place)
        if part is None:
            part = self.parts[place] = Numbered(self._numbers.take(place, writer))
            self._numbers.used(place, part.first, 0)
        return self._numbers.fields(part.first)

    def enter(self, writers: Iterable[Writer]) -> None:
        """Add these partitions to the transaction at the coordinator."""
        if self._enter is not None:
            self._enter([writer.partition for writer in writers])

    def store(self, writer: Writer, packer: Packer, stored: Stored) -> None:
        place = writer.partition
        part = self.parts[place]
        self._numbers.take(place, writer)
        part.write(writer, packer, stored)
        self._numbers.used(place, part.next, 0)
