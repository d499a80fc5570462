# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Reads producer snapshot files: the state of idempotent and transactional producers at an offset (FORMAT 10).

`log.segments.producer_state` decides which snapshot counts. Invariant: for any bytes the result is a list of entries
or a `SnapshotError` that names one of the three faults, which Kafka distinguishes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from kstore.codec._wire cimport load16, load32

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


def parse_snapshot(bytes data not None) -> list[ProducerEntry]:
    """Return the entries of a snapshot, in the order of the file."""
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef int fault = snapshot_check(p, size)
    cdef Producer e
    cdef int64_t slot
    if fault == SNAPSHOT_OTHER_VERSION:
        raise SnapshotError("Snapshot failed schema validation: Snapshot contained an unknown file version "
                            f"{load16(p + SNAPSHOT_VERSION_AT)}")
    if fault == SNAPSHOT_CUT:
        raise SnapshotError("Snapshot failed schema validation: null")
    if fault == SNAPSHOT_BAD_CRC:
        raise SnapshotError(f"Snapshot is corrupt (CRC is no longer valid). Stored crc: "
                            f"{<uint32_t> load32(p + SNAPSHOT_CRC_AT)}. Computed crc: {snapshot_crc(p, size)}")
    entries = []
    for slot in range(load32(p + SNAPSHOT_COUNT_AT)):
        snapshot_get(p, slot, &e)
        entries.append(ProducerEntry(e.producer_id, e.producer_epoch, e.last_sequence, e.last_offset, e.offset_delta,
                                     e.timestamp, e.coordinator_epoch, e.txn_first))
    return entries


def is_cut_short(bytes data not None) -> bool:
    """Return whether the file ends before its last entry does, as after an interrupted write."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if size < SNAPSHOT_HEAD:
        return True
    return (size - SNAPSHOT_HEAD) // SNAPSHOT_ENTRY < load32(<const uint8_t *> PyBytes_AS_STRING(data) + SNAPSHOT_COUNT_AT)
