"""Reads producer snapshot files: the state of idempotent and transactional producers at an offset (FORMAT 10)."""

from typing import NamedTuple

__all__ = ["ProducerEntry", "SnapshotError", "is_cut_short", "parse_snapshot"]

class SnapshotError(ValueError):
    """The file is no sound snapshot; the text is Kafka's. Every reader of snapshots catches this and continues."""

class ProducerEntry(NamedTuple):
    """The state of one producer; -1 means none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int

def parse_snapshot(data: bytes) -> list[ProducerEntry]:
    """Return the entries of a snapshot, in the order of the file."""

def is_cut_short(data: bytes) -> bool:
    """Return whether the file ends before its last entry does, as after an interrupted write."""
