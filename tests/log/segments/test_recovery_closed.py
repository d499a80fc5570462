"""What looks as a close left it, and is not: a power cut took the syncs, but not what was done before them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint, names
from kstore.files.txnindex import AbortedTxn, TxnIndex
from kstore.log.segments.producer_state import EXPIRATION_MS
from tests.conftest import ManualClock
from tests.kafka.cases.kafka_cases import abandon

pytestmark = pytest.mark.usefixtures("no_syncs")


def recover_from(partition: Path, offset: int) -> None:
    checkpoint.update_offsets(str(partition.parent), checkpoint.RECOVERY_POINTS, {("events", 0): offset})


def test_the_entry_of_an_abort_that_was_lost_does_not_abort_what_is_committed(partition: Path) -> None:
    """The entry is written before its marker, and its file may reach the disk first."""
    numbers = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    with kstore.Log.open(partition) as log:
        log.append_many([b"a", b"b"], **numbers)
    TxnIndex(str(partition / names.txn_index_name(0))).append(AbortedTxn(0, 1, 0, 2, 3))
    with kstore.Log.open(partition) as log:
        assert not log.recovery.clean
        log.append_marker(1, 0, commit=True)
        assert [record.value for record in log.read(isolation="read_committed")] == [b"a", b"b"]


@pytest.mark.parametrize("trimmed", [True, False])
def test_an_empty_segment_behind_one_with_uncut_indexes_does_not_count_as_closed(
    partition: Path, trimmed: bool
) -> None:
    # docs/compatibility.md: `unsealed-index`
    index = partition / names.index_name(0)
    with kstore.Log.open(partition, index_interval_bytes=1) as log:
        for n in range(5):
            log.append(b"%d" % n)
        log.flush()
        whole = {path: path.read_bytes() for path in (index, partition / names.time_index_name(0))}
        log.roll()
        abandon(log)
    for kind in (names.index_name, names.time_index_name):
        (partition / kind(5)).write_bytes(b"")
    for path, data in whole.items() if not trimmed else ():
        path.write_bytes(data)
    recover_from(partition, 5)
    with kstore.Log.open(partition, index_interval_bytes=1) as log:
        assert log.recovery.clean is trimmed
        assert index.stat().st_size == 8 * 4


@pytest.mark.parametrize("preallocated", [False, True])
def test_a_flushed_segment_with_uncut_files_takes_nothing_from_what_is_behind_it(
    partition: Path, clock: ManualClock, preallocated: bool
) -> None:
    # docs/compatibility.md: `unsealed-index`; the snapshot names a producer of an older segment that has expired since
    log_file, index = partition / names.log_name(1), partition / names.index_name(1)
    snapshot = partition / names.snapshot_name(2)
    with kstore.Log.open(partition, clock=clock) as log:
        log.append_many([b"a"], producer_id=1, producer_epoch=0, base_sequence=0)
        log.roll()
        log.append(b"b")
        log.flush()
        unsealed, data = index.read_bytes(), log_file.read_bytes()
        log.roll()
        log.append(b"c")
        taken = snapshot.read_bytes()
        abandon(log)
    index.write_bytes(unsealed)
    log_file.write_bytes(data + bytes(500) * preallocated)
    recover_from(partition, 2)
    clock.now += 2 * EXPIRATION_MS
    with kstore.Log.open(partition, clock=clock) as log:
        assert [record.value for record in log.read()] == [b"a", b"b", b"c"]
        assert log.recovery.indexes_rebuilt == [1, 2]
        assert log.recovery.cut_bytes == 500 * preallocated
        assert log.recovery.segments_dropped == []
        assert log_file.read_bytes() == data
        assert index.read_bytes() == b""
        assert snapshot.read_bytes() == taken
