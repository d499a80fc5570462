"""Records that follow from their partition and offset, and a writer of them that shrinks, rolls and compacts its logs.

A reader elsewhere needs no word from the writer to know what must be at an offset.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import kstore
from kstore.disk import fs

T = 1_700_000_000_000
PARTITIONS = 2
KEYS = 12
LATENESS = 300  # milliseconds
KEPT, SHRINKING, COMPACTED = "kept", "shrinking", "compacted"
TOPICS: dict[str, dict[str, object]] = {
    KEPT: {},
    SHRINKING: {"retention.bytes": 6000},
    COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 10**12},
}
SETTINGS = {"segment.bytes": 2000, "index.interval.bytes": 300}


class Row(NamedTuple):
    """A record."""

    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes | None


def row(partition: int, offset: int) -> Row:
    """The record that the writer puts there."""
    mixed = (offset * 2_654_435_761 + partition * 40_503) % 2**32
    value = None if mixed % 11 == 0 else b"%d.%d %s" % (partition, offset, b"x" * (mixed % 40))
    return Row(partition, offset, T + 10 * offset - mixed // 64 % LATENESS, b"k%d" % (mixed // 7 % KEYS), value)


class Writer:
    """Changes a store step by step. Nothing waits for the disk."""

    def __init__(self, root: str, seed: str) -> None:
        fs.fsync = fs.fdatasync = lambda fd: None
        fs.sync_directory = lambda path, *, missing_ok=False: None
        self._choose = random.Random(seed)
        self._now = T
        self._store = kstore.Store.open(root, background=False, clock=lambda: self._now)
        for topic, settings in TOPICS.items():
            self._store.create_topic(topic, partitions=PARTITIONS, config={**SETTINGS, **settings})
        self.steps(30)

    def steps(self, count: int) -> None:
        """Append, and now and then delete, roll and compact."""
        choose = self._choose
        for _ in range(count):
            topic, partition = choose.choice(list(TOPICS)), choose.randrange(PARTITIONS)
            log = self._store.log(topic, partition)
            at = log.log_end_offset
            rows = [row(partition, offset) for offset in range(at, at + choose.randint(1, 12))]
            records = [(each.key, each.value, each.timestamp, ()) for each in rows]
            log.append_many(records, compression=choose.choice((None, None, "lz4", "zstd")))
            if choose.random() < 0.05:
                log.roll()
            if topic == SHRINKING and choose.random() < 0.1:
                log.delete_records(choose.randint(log.log_start_offset, log.log_end_offset))
            if topic == COMPACTED and choose.random() < 0.2:
                log.compact(roll=choose.random() < 0.5)
            if choose.random() < 0.05:  # retention, and files whose deletion was delayed
                self._now += 400_000
                self._store.run_housekeeping()
