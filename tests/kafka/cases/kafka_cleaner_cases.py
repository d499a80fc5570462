"""What the tests of Kafka's own cases about cleaning share: producers that count, rounds, and looks at what stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kstore
from kstore.log.compaction.dirtiness import survey
from kstore.log.compaction.passes import CleanerLimits, compact
from kstore.log.hosted_log import HostedLog
from kstore.types import CompactionStats
from tests.conftest import ManualClock
from tests.support.cleaning import LIMITS

RETENTION_MS = 1000


class Producer:
    """Counts its records up; each is its own key and value."""

    def __init__(self, log: kstore.Log, producer_id: int, *, transactional: bool = True) -> None:
        self._log, self._id, self._transactional, self._sequence = log, producer_id, transactional, 0

    def send(self, *keys: int) -> None:
        self._log.append_many(
            [(b"%d" % key, b"%d" % key) for key in keys],
            producer_id=self._id,
            producer_epoch=0,
            base_sequence=self._sequence,
            transactional=self._transactional,
        )
        self._sequence += len(keys)

    def commit(self) -> None:
        self._log.append_marker(self._id, 0, commit=True)

    def abort(self) -> None:
        self._log.append_marker(self._id, 0, commit=False)


def put(log: kstore.Log, key: int, value: bytes | None = b"value") -> None:
    log.append(value, key=b"%d" % key)


def clean_from(log: kstore.Log, first_dirty: int, limits: CleanerLimits = LIMITS) -> CompactionStats:
    """One round from an offset to the active segment. A round without dirty records does nothing, so the cases that
    clean a clean log begin at 0 here."""
    writer = HostedLog(log).writer
    return compact(writer, survey(writer, log.config, writer.now(), first_dirty, lag=False), limits)


def clean_twice(log: kstore.Log, clock: ManualClock, first_dirty: int = 0, limits: CleanerLimits = LIMITS) -> None:
    """A round that sets horizons, and one when they are due."""
    clean_from(log, first_dirty, limits)
    clock.advance(RETENTION_MS + 1)
    clean_from(log, first_dirty, limits)


def batches(log: kstore.Log) -> Iterator[kstore.RecordBatch]:
    """All batches of the segments' files, the empty ones and the markers too."""
    for segment in log.segments:
        yield from kstore.decode_batches(Path(segment.path).read_bytes())


def kept(log: kstore.Log) -> list[int]:
    """The offsets of all records, the markers too."""
    return [record.offset for batch in batches(log) for record in batch]


def last_offsets(log: kstore.Log) -> list[int]:
    return [batch.last_offset for batch in batches(log)]


def keys(log: kstore.Log) -> list[int]:
    """The keys of the data records."""
    return [int(bytes(record.key or b"")) for batch in batches(log) if not batch.is_control for record in batch]
