"""The lag of a consumer group: in each partition, the log end offset minus the group's position.

The one definition for `Store.stats`, the exporters, `kstore groups` and `kstore ui`; copies use `offsets_behind`, too.
It is that of `kafka-consumer-groups`: the end is the log end offset (not the last stable offset), and nothing is
clamped. A position below the log start also counts the offsets that were deleted before they were read, and one above
the log end gives a negative lag. Offsets without a record count: gaps of compaction, markers of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from kstore.errors import KStoreError
from kstore.log.log import Log
from kstore.store.coordinator.groups import CommittedOffset, Place


class PartitionLag(NamedTuple):
    """The lag of a group in one partition. Immutable."""

    topic: str
    partition: int
    position: CommittedOffset | None
    """The committed position; None if the group has none in this partition."""
    log_start_offset: int | None
    """None, like the next two, if the partition is not here or cannot be read."""
    log_end_offset: int | None
    lag: int | None
    error: KStoreError | None = None
    """Why the partition cannot be read; None if it can, or if there is no such partition."""


def offsets_behind(end_offset: int, position: int | None, log_start_offset: int) -> int:
    """Return the lag of a position in a log; a reader without a position is at the log start."""
    return end_offset - (log_start_offset if position is None else position)


def group_lag(
    positions: Mapping[Place, CommittedOffset | None],
    partitions: Callable[[str], Iterable[int]],
    find_log: Callable[[str, int], Log],
) -> Iterator[PartitionLag]:
    """Yield a group's lag in every partition of the topics of `positions`, sorted.

    `partitions` returns the numbers of a topic's partitions, none if there is no such topic. `find_log` opens the logs
    that are not open. The positions are those of an earlier moment than the log ends, so a commit in between makes no
    lag negative.
    """
    for topic in sorted({topic for topic, _ in positions}):
        present = set(partitions(topic))
        for number in sorted(present | {number for name, number in positions if name == topic}):
            position = positions.get((topic, number))
            if number not in present:
                yield PartitionLag(topic, number, position, None, None, None)
                continue
            try:
                log = find_log(topic, number)
                start, end = log.log_start_offset, log.log_end_offset
            except KStoreError as error:
                yield PartitionLag(topic, number, position, None, None, None, error)
            else:
                yield PartitionLag(topic, number, position, start, end, offsets_behind(end, position, start))


def total_lag(lags: Iterable[PartitionLag]) -> int:
    """Return the sum of the lags; a negative one counts as 0, so that it hides no other."""
    return sum(max(each.lag or 0, 0) for each in lags)
