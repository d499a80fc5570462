"""What the tests of Kafka's own cases share: batches as a leader stored them, and looks at a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.conftest import ManualClock

EMPTY_SNAPSHOT = bytes.fromhex("000148674bc700000000")  # FORMAT 10: version 1, CRC-32C, no entries


def batch(base: int, *values: bytes | None, epoch: int = 0, timestamp: int = -1, **fields: Any) -> bytes:
    """One batch as a leader stored it."""
    records = [(None, value, timestamp, None) for value in values or (b"test",)]
    return kstore.encode_batch(records, base_offset=base, partition_leader_epoch=epoch, **fields)


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def fetched(log: kstore.Log, offset: int, max_bytes: int = 1 << 20, *, min_one_message: bool = True) -> list[int]:
    """The offsets of whole batches that a fetch gives."""
    data = log.fetch(offset, max_bytes, min_one_message=min_one_message).records
    return offsets(record for one in kstore.decode_batches(data) for record in one)


def bases(log: kstore.Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def epochs(partition: Path) -> list[tuple[int, int]]:
    """The entries of the leader-epoch checkpoint."""
    lines = (partition / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    return [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]


def abandon(log: kstore.Log) -> None:
    """Leave the log as the death of its process would."""
    assert log._writer is not None
    log._writer.abandon()
    log._unlock()


@pytest.fixture
def log40(partition: Path, clock: ManualClock) -> kstore.Log:
    """LogSegmentTest's segment: it begins at 40 and is empty."""
    log = kstore.Log.open(partition, clock=clock)
    log.truncate_fully_and_start_at(40)
    return log
