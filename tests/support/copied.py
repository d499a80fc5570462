"""Followers of plain logs, and what is compared between a log and its copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import kstore
from kstore.copies.replication.follower_partition import PartitionFollower
from kstore.copies.replication.leader_directory import LeaderLog
from kstore.files.epochs import LeaderEpochCache
from kstore.log.hosted_log import HostedLog
from kstore.log.writing import retention_run
from kstore.types import AppendInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class PlainTarget:
    """A log without a store as a follower's."""

    def __init__(self, log: kstore.Log) -> None:
        self.log = log
        self.high_watermark = -1

    @property
    def epochs(self) -> LeaderEpochCache:
        return HostedLog(self.log).writer.epochs

    def append(self, batches: ReadableBuffer, *, leader_epoch: int | None = None) -> AppendInfo:
        return self.log.append_as_follower(batches, leader_epoch=leader_epoch)

    def truncate_to(self, offset: int) -> bool:
        return self.log.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None:
        self.log.truncate_fully_and_start_at(offset, log_start_offset=log_start_offset)

    def move_log_start(self, offset: int) -> None:
        retention_run.raise_start(HostedLog(self.log).writer, offset)

    def mark_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset


def follower(
    source: Path, target: kstore.Log, *, leader: LeaderLog | None = None, **options: object
) -> PartitionFollower:
    """A follower that has not looked at its leader yet."""
    leader = leader or LeaderLog(kstore.Log.open(source, "r"))
    return PartitionFollower(leader, PlainTarget(target), now=lambda: 0, **options)  # type: ignore[arg-type]


def catch_up(copy: PartitionFollower) -> int:
    """Follow until all of the leader's log is there; the bytes that were copied."""
    buffer, copied = memoryview(bytearray(1 << 16)), 0
    for _ in range(1000):
        copy.look()
        copied += copy.step(buffer, 1 << 18)
        if copy.is_caught_up:
            return copied
    raise AssertionError(f"the follower does not catch up: {copy.stats()}, {copy.leader.log_start_offset}")


def batches_of(log: kstore.Log) -> list[tuple[int, bytes]]:
    """Each batch of a log, by its base offset."""
    return [(batch.base_offset, bytes(batch)) for batch in log.read_batches()]
