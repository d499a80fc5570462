"""`Numbering`: a producer's records get the sequence numbers that their logs compare with what they know.

`SequenceNumbers` counts each partition's records for one producer id and epoch. Invariant: a number is used for one
record alone. An append that ended so that its batch may or may not be in the log makes the count doubtful, and the
log is asked before the next append.
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
_WRAP = 1 << 31  # sequence numbers go on at 0 behind 2^31 - 1


class SequenceNumbers(Sequences):
    """The sequence numbers of one producer id and epoch, by partition. One thread at a time uses it."""

    def take(self, place: Place, writer: Writer) -> int:
        """The number of the next record; in doubt from here until `used`."""
        partition = self.partition(place)
        if partition.doubtful:
            partition.sequence = self.known(place, writer)
        partition.doubtful = True
        self.taken = place, partition.sequence
        return partition.sequence

    def used(self, place: Place, sequence: int, count: int) -> None:
        """So many records are in the log from this number on."""
        partition = self.partition(place)
        partition.sequence = (sequence + count) % _WRAP
        partition.doubtful = False

    def known(self, place: Place, writer: Writer) -> int:
        """The number after the log's last batch of the producer; the counted one, where the log has no batch."""
        info = self.info(writer)
        if info is None or not info.batches:
            return self.partition(place).sequence
        return (info.batches[-1].last_sequence + 1) % _WRAP

    def info(self, writer: Writer) -> ProducerInfo | None:
        """What the log knows of this producer in this epoch."""
        info = writer.producer_info(self.producer_id)
        return info if info is not None and info.producer_epoch == self.producer_epoch else None

    def fields(self, sequence: int) -> ProducerFields:
        """What the first of the next batches says of its producer."""
        return ProducerFields(self.producer_id, self.producer_epoch, sequence, self.transactional)


class Numbered:
    """The records of one call in one partition: numbers from `first` on, `next` is that of the record to come.

    `known` is what the log knew of the producer when a call is repeated: the records that it has are left out.
    """

    __slots__ = ("_known", "first", "next")

    def __init__(self, first: int, known: ProducerInfo | None = None) -> None:
        self.first = self.next = first
        self._known = known if known is not None and known.batches else None

    def write(self, writer: Writer, packer: Packer, stored: Stored) -> None:
        """Append the packer's batches, but those that the log has; `stored` has where all of them are."""
        info, at, count = self._known, 0, 0
        before = 0 if info is None else (info.batches[-1].last_sequence + 1 - self.next) % _WRAP
        # A difference of half the circle and more is a negative one: the last batch is from before this call.
        if info is not None and 0 < before < _WRAP // 2:
            first = info.batches[0].first_offset
            for batch in info.batches:  # the log keeps five batches; if ours is older, report the oldest that it has
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

    While something is appended `lock` is held, and `enter` has been called with the partitions; neither while records
    are taken from the caller.
    """

    def __init__(
        self, numbers: SequenceNumbers, enter: Enter | None, lock: AbstractContextManager[object] | None
    ) -> None:
        self._numbers = numbers
        self._enter = enter
        self.lock = nullcontext() if lock is None else lock
        self.parts: dict[Place, Numbered] = {}

    def resume(self, again: Numbering, writers: Mapping[int, Writer]) -> None:
        """Number the records as an earlier attempt at the same call; what the logs have of it is left out."""
        self.parts = {
            place: Numbered(part.first, self._numbers.info(writers[place[1]])) for place, part in again.parts.items()
        }

    def begin(self, writer: Writer) -> ProducerFields:
        """Give the records of a partition their numbers; what its first batch says of its producer."""
        place = writer.partition
        part = self.parts.get(place)
        if part is None:
            part = self.parts[place] = Numbered(self._numbers.take(place, writer))
            self._numbers.used(place, part.first, 0)
        return self._numbers.fields(part.first)

    def enter(self, writers: Iterable[Writer]) -> None:
        """Have the coordinator know these partitions."""
        if self._enter is not None:
            self._enter([writer.partition for writer in writers])

    def store(self, writer: Writer, packer: Packer, stored: Stored) -> None:
        """Append a packer's batches to a partition."""
        place = writer.partition
        part = self.parts[place]
        self._numbers.take(place, writer)
        part.write(writer, packer, stored)
        self._numbers.used(place, part.next, 0)
