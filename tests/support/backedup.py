"""A store whose every kind of change a backup must follow, and pictures of it to hold a restored store against.

`World` changes a small store step by step: appends, numbered and transactional producers, groups, compaction,
truncation, retention, topics that are deleted and made again. `picture` says all that a restored store must have.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import kstore
from kstore.files import checkpoint
from tests.conftest import ManualClock

Place = tuple[str, int]

SETTINGS: dict[str, Any] = {
    "segment_bytes": 1500,
    "index_interval_bytes": 100,
    "segment_index_bytes": 1200,
    "file_delete_delay_ms": 0,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_max_timeout_ms": 2**31 - 1,
}
PLAIN, TABLE, SHORT, PASSING = "plain", "table", "short", "passing"
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    PLAIN: (2, {}),
    TABLE: (1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
    SHORT: (1, {"retention.ms": "60000"}),
    PASSING: (1, {}),
}
CODECS = ("none", "none", "lz4", "zstd")
GROUP = "readers"
IDS = ("loader", "mover")
TIMEOUT_MS = 2**31 - 1  # longer than any run of the clock, so that only a test ends a transaction


class Partition(NamedTuple):
    """What a partition has: its borders, and its batches from the log start on, as bytes."""

    start: int
    end: int
    batches: tuple[bytes, ...]
    epochs: tuple[tuple[int, int], ...]


class Picture(NamedTuple):
    """All that a restored store must have: topics with ids and settings, partitions, and where groups go on."""

    topics: Mapping[str, tuple[str, int]]  # by name: the id and the number of partitions
    settings: Mapping[str, Mapping[str, object]]
    partitions: Mapping[Place, Partition]
    positions: Mapping[str, Mapping[Place, int]]

    def unlike(self, other: Picture) -> list[str]:
        """What differs between two pictures, in few words; empty where they are equal."""
        differences = [
            f"{name}: {a} and {b}" for name, a, b in zip(self._fields[:2], self, other, strict=False) if a != b
        ]
        for place in sorted({*self.partitions, *other.partitions}):
            mine, others = self.partitions.get(place), other.partitions.get(place)
            if mine != others:
                differences.append(f"{place}: {_short(mine)} and {_short(others)}")
        if self.positions != other.positions:
            differences.append(f"positions: {self.positions} and {other.positions}")
        return differences


def _short(partition: Partition | None) -> str:
    if partition is None:
        return "none"
    offsets = [int.from_bytes(data[:8], "big") for data in partition.batches]
    return f"[{partition.start}, {partition.end}) batches at {offsets}, epochs {partition.epochs}"


def picture(store: kstore.Store) -> Picture:
    """What a store has now."""
    topics = {name: (str(store.topic_id(name)), len(store.partitions(name))) for name in store.topics}
    settings = {name: store.topic_config(name).to_kafka() for name in store.topics}
    partitions = {}
    for name in store.topics:
        for number in store.partitions(name):
            log = store.log(name, number)
            batches = tuple(bytes(batch) for batch in log.read_batches())
            start, end = log.log_start_offset, log.log_end_offset
            partitions[name, number] = Partition(start, end, batches, epochs_between(Path(log.path), start, end))
    positions = {group: dict(store.committed_offsets(group)) for group in store.groups}
    return Picture(topics, settings, partitions, positions)


def epochs_between(partition: Path, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The leader epochs of the offsets from `start` to `end`: a live log's file may have more, on either side."""
    path = partition / "leader-epoch-checkpoint"
    entries = checkpoint.read_checkpoint(path, 2) if path.exists() else []  # a log that was never opened has none
    pairs = [(int(epoch), int(offset)) for epoch, offset in entries if int(offset) < end]
    before = [pair for pair in pairs if pair[1] <= start]
    return tuple([(epoch, start) for epoch, _ in before[-1:]] + pairs[len(before) :])


def picture_of(root: Path) -> Picture:
    """What a directory has, read without changing a byte."""
    with kstore.Store.open(root, "r", **SETTINGS) as store:
        return picture(store)


def no_sync(directory: str, base_offset: int) -> None:
    """In place of `sending.segments.sync`: a file system whose files cannot be synced."""
    raise kstore.StorageError(errno.EROFS, "read-only file system", directory)


class World:
    """A small store, changed at random. Every change is done when its method returns."""

    def __init__(self, root: Path, rng: random.Random, clock: ManualClock) -> None:
        self.root, self.rng, self.clock = root, rng, clock
        self.counts: dict[str, int] = {}
        self.count = 0
        self.open()

    def open(self) -> None:
        """Open the store, and make the topics that are missing."""
        self.store = kstore.Store.open(self.root, clock=self.clock, background=False, seed=1, **SETTINGS)
        self.numbered = self.store.producer()
        self.producers: dict[str, kstore.TransactionalProducer] = {}
        self.transactions: dict[str, kstore.Transaction] = {}
        for name, (partitions, config) in TOPICS.items():
            if name not in self.store.topics:
                self.store.create_topic(name, partitions, config=config)

    def close(self) -> None:
        """Close the store; transactions stay open."""
        self.store.close()

    def step(self) -> str:
        """Change something; which kind of change it was."""
        kinds: dict[Callable[[], None], int] = {
            self.append: 8,
            self.number: 3,
            self.begin: 5,
            self.end: 4,
            self.commit_positions: 3,
            self.update_table: 4,
            self.compact: 2,
            self.delete_records: 2,
            self.truncate: 2,
            self.remake: 2,
            self.grow: 1,
            self.configure: 1,
            self.retain: 2,
            self.raise_epoch: 1,
        }
        [change] = self.rng.choices(list(kinds), list(kinds.values()))
        self.clock.advance(self.rng.randrange(1, 2000))
        change()
        name = change.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return name

    def value(self) -> bytes:
        """A value that no other record has."""
        self.count += 1
        return b"%d/%s" % (self.count, b"v" * self.rng.choice((0, 10, 50, 300)))

    def place(self) -> Place:
        """A partition that any record may go to."""
        topic = self.rng.choice((PLAIN, PLAIN, SHORT, PASSING))
        return topic, self.rng.choice(self.store.partitions(topic))

    # Changes.

    def append(self) -> None:
        topic, number = self.place()
        values = [self.value() for _ in range(self.rng.choice((1, 1, 2, 8)))]
        log = self.store.log(topic, number)
        log.append_many(values, compression=self.rng.choice(CODECS), batch_bytes=self.rng.choice((100, 500, 1000)))

    def number(self) -> None:
        """A producer that numbers its batches, where no truncation takes them away again."""
        self.numbered.append(SHORT, self.value(), partition=0)

    def begin(self) -> None:
        """Go on with a transaction, or begin one, perhaps as a new producer of the id."""
        name = self.rng.choice(IDS)
        if name not in self.producers or self.rng.random() < 0.1:
            self.transactions.pop(name, None)
            self.producers[name] = self.store.producer(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
        if name not in self.transactions:
            self.transactions[name] = self.producers[name].transaction()
        transaction = self.transactions[name]
        for _ in range(self.rng.choice((1, 2))):
            transaction.append(PLAIN, self.value(), partition=self.rng.choice(self.store.partitions(PLAIN)))
        if self.rng.random() < 0.4:
            transaction.commit_offsets(GROUP, {(PLAIN, 0): self.rng.randrange(1000)})

    def end(self) -> None:
        if self.transactions:
            transaction = self.transactions.pop(self.rng.choice(sorted(self.transactions)))
            transaction.commit() if self.rng.random() < 0.7 else transaction.abort()

    def commit_positions(self) -> None:
        self.store.commit_offsets(self.rng.choice((GROUP, "others")), {(SHORT, 0): self.rng.randrange(1000)})

    def update_table(self) -> None:
        for _ in range(self.rng.choice((1, 6))):
            self.store.append(TABLE, self.rng.choice((self.value(), None)), b"%d" % self.rng.randrange(6))

    def compact(self) -> None:
        self.store.compact(TABLE, roll=self.rng.random() < 0.7)

    def delete_records(self) -> None:
        log = self.store.log(SHORT, 0)
        log.delete_records(self.rng.randint(log.log_start_offset, log.log_end_offset))

    def truncate(self) -> None:
        log = self.store.log(PASSING, 0)
        log.truncate_to(self.rng.randint(log.log_start_offset, log.log_end_offset))
        last = [log.log_start_offset, *(batch.next_offset for batch in log.read_batches())][-1]
        if last < log.log_end_offset:  # a cut inside of a batch: as in Kafka the end is in a gap until the next record
            log.append(self.value())
        if self.rng.random() < 0.2:
            log.truncate_fully_and_start_at(log.log_end_offset + self.rng.choice((0, 5)))

    def remake(self) -> None:
        """Delete a topic and make another one of its name, perhaps after a while."""
        if PASSING in self.store.topics:
            self.store.delete_topic(PASSING)
            if self.rng.random() < 0.5:
                self.clock.advance(1)
                self.store.run_housekeeping()
        self.store.create_topic(PASSING, self.rng.choice((1, 2)))
        for _ in range(self.rng.choice((0, 3))):
            self.store.append(PASSING, self.value(), partition=0)

    def grow(self) -> None:
        if len(self.store.partitions(PLAIN)) < 4:
            self.store.add_partitions(PLAIN, len(self.store.partitions(PLAIN)) + 1)

    def configure(self) -> None:
        self.store.update_topic_config(PASSING, {"max.message.bytes": self.rng.choice((None, "1000000", "900000"))})

    def retain(self) -> None:
        self.clock.advance(self.rng.choice((1000, 40_000)))
        self.store.run_housekeeping()

    def raise_epoch(self) -> None:
        log = self.store.log(PASSING, 0)
        newest = max((batch.partition_leader_epoch for batch in log.read_batches()), default=0)
        log.append_many([self.value()], leader_epoch=newest + 1)
