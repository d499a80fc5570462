"""A refused append leaves no trace: neither of the leader's nor of a follower's is anything left (unlike
SEMANTICS 1.30)."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.log.writing import _appender
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS
from tests.support.parking import no_hook_stays as no_hook_stays
from tests.support.parking import writer_of

ABOVE = 20
NOW = ManualClock().now


def batch(base_offset: int, *, epoch: int, value: bytes = b"x" * 50, **numbers: Any) -> bytes:
    records = [(None, value, NOW, None)]
    return kstore.encode_batch(records, base_offset=base_offset, partition_leader_epoch=epoch, **numbers)


def refuse_log_bytes(fd: int, data: bytes, position: int) -> int:
    if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return os.pwrite(fd, data, position)


def trace(log: kstore.Log) -> tuple[Any, ...]:
    """All that an append may change."""
    epochs = (Path(log.path) / "leader-epoch-checkpoint").read_text()
    names = sorted(path.name for path in Path(log.path).iterdir())
    bases = [segment.base_offset for segment in log.segments]
    return log.log_end_offset, log.last_stable_offset, epochs, names, bases, log.producer_states()


def goes_on(log: kstore.Log, epoch: int) -> None:
    """Appends go on in the epoch that there was, and a reopened log has them all."""
    end = log.log_end_offset
    assert [log.append(b"y"), log.append_many([b"z"]).first_offset] == [end, end + 1]
    assert [each.partition_leader_epoch for each in log.read_batches(end)] == [epoch, epoch]
    values = [record.value for record in log.read()]
    log.close()
    with kstore.Log.open(log.path) as again:
        assert again.recovery.clean
        assert [record.value for record in again.read()] == values


def open_transaction(log: kstore.Log) -> None:
    log.append_many([b"a"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True, leader_epoch=3)


@pytest.mark.parametrize("settings", [{}, {"segment_bytes": 150}], ids=["fits", "rolls"])
@pytest.mark.parametrize("gap", [0, ABOVE])
def test_a_followers_append_that_its_producer_is_refused_leaves_nothing(
    partition: Path, clock: ManualClock, settings: dict[str, int], gap: int
) -> None:
    """SEMANTICS 1.30: Kafka has entered the epoch and rolled by then."""
    log = kstore.Log.open(partition, clock=clock, **settings)
    open_transaction(log)
    before = trace(log)
    offset = log.log_end_offset + gap
    numbers = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 1}
    with pytest.raises(kstore.InvalidTxnStateError):
        log.append_as_follower(batch(offset, epoch=1000, **numbers))
    assert trace(log) == before
    goes_on(log, 3)


@pytest.mark.parametrize("gap", [0, ABOVE])
def test_a_refused_batch_of_a_followers_append_leaves_nothing_of_those_before(
    partition: Path, clock: ManualClock, gap: int
) -> None:
    """One by one, as where they do not fit into one segment's offsets (SEMANTICS 1.35)."""
    log = kstore.Log.open(partition, clock=clock)
    open_transaction(log)
    before = trace(log)
    first = log.log_end_offset + gap
    numbers = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 1}
    data = batch(first, epoch=4) + batch(first + 2**31, epoch=5, **numbers)
    with pytest.raises(kstore.InvalidTxnStateError):
        log.append_as_follower(data)
    assert trace(log) == before
    goes_on(log, 3)


def test_a_followers_append_larger_than_a_segment_leaves_nothing(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 1.27"""
    log = kstore.Log.open(partition, clock=clock, segment_bytes=200)
    log.append(b"a", leader_epoch=3)
    before = trace(log)
    with pytest.raises(kstore.RecordBatchTooLargeError):
        log.append_as_follower(batch(1, epoch=1000, value=b"x" * 300))
    assert trace(log) == before
    goes_on(log, 3)


@pytest.mark.parametrize("producer_id", [-1, 9])
@pytest.mark.parametrize("settings", [{}, {"segment_bytes": 150}], ids=["fits", "rolls"])
@pytest.mark.parametrize("gap", [0, 1, ABOVE])
def test_a_followers_append_that_the_disk_refuses_leaves_a_log_that_goes_on(
    partition: Path, clock: ManualClock, settings: dict[str, int], gap: int, producer_id: int
) -> None:
    log = kstore.Log.open(partition, clock=clock, **settings)
    log.append(b"a" * 50, leader_epoch=3)
    before = trace(log)
    numbers = {} if producer_id < 0 else {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    _appender.set_pwrite_hook(refuse_log_bytes)
    with pytest.raises(kstore.StorageError):
        log.append_as_follower(batch(1 + gap, epoch=1000, **numbers))
    _appender.set_pwrite_hook(None)
    if gap or not settings:
        assert trace(log) == before
    else:
        # An empty segment at the log end does no harm.
        assert [segment.base_offset for segment in log.segments] == [0, 1]
        assert trace(log)[:3] == before[:3]
    goes_on(log, 3)


def test_the_flushed_roll_of_a_refused_append_lowers_the_recovery_point_again(
    root: Path, partition: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """SEMANTICS 11.4: the segment's name had told the end of a log whose last batch was cut at an offset inside of
    it."""
    log = kstore.Log.open(partition, clock=clock, segment_bytes=200)
    log.append(b"a")
    log.append_many([b"b", b"c", b"d"])
    log.truncate_to(3)

    def flush_first(fd: int, data: bytes, position: int) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
            writer_of(log).housekeeping.flush(indexes=True)
            writer_of(log).housekeeping.write_checkpoints()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, position)

    _appender.set_pwrite_hook(flush_first)
    with pytest.raises(kstore.StorageError):
        log.append_as_follower(batch(10, epoch=0, value=b"x" * 80))
    _appender.set_pwrite_hook(None)
    assert [segment.base_offset for segment in log.segments] == [0]
    image = shutil.copytree(root, tmp_path / "image")
    log.close()
    with kstore.Log.open(image / "events-0") as again:
        assert again.log_end_offset == 1


@pytest.mark.parametrize("many", [False, True])
def test_a_leaders_append_that_the_disk_refuses_takes_its_epoch_back(
    partition: Path, clock: ManualClock, many: bool
) -> None:
    log = kstore.Log.open(partition, clock=clock)
    log.append(b"a", leader_epoch=3)
    before = trace(log)
    _appender.set_pwrite_hook(refuse_log_bytes)
    with pytest.raises(kstore.StorageError):
        log.append_many([b"x"], leader_epoch=9) if many else log.append(b"x", leader_epoch=9)
    _appender.set_pwrite_hook(None)
    assert trace(log) == before
    goes_on(log, 3)


def test_a_leaders_append_that_its_producer_is_refused_takes_its_epoch_back(
    partition: Path, clock: ManualClock
) -> None:
    log = kstore.Log.open(partition, clock=clock)
    log.append_marker(7, 0, commit=True, coordinator_epoch=0, leader_epoch=3)
    open_transaction(log)
    before = trace(log)
    with pytest.raises(kstore.OutOfOrderSequenceError):
        log.append_many([b"b"], producer_id=7, producer_epoch=0, base_sequence=5, transactional=True, leader_epoch=9)
    records = [(None, b"b", clock.now, None)]
    data = kstore.encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=5, transactional=True)
    with pytest.raises(kstore.OutOfOrderSequenceError):
        log.append_batch(data, leader_epoch=9)
    with pytest.raises(kstore.TransactionCoordinatorFencedError):
        log.append_marker(7, 0, commit=True, coordinator_epoch=-1, leader_epoch=9)
    assert trace(log) == before
    goes_on(log, 3)


def test_epochs_that_the_disk_does_not_take_are_not_those_of_the_log(
    root: Path, partition: Path, clock: ManualClock
) -> None:
    """The file of epochs cannot be written: nothing is appended, and the log goes on as before."""
    with FaultFS(root) as disk:
        log = kstore.Log.open(partition, clock=clock)
        log.append(b"a", leader_epoch=3)
        before = trace(log)
        for append in (
            lambda: log.append_as_follower(batch(1, epoch=1000)),
            lambda: log.append(b"x", leader_epoch=1000),
        ):
            disk.fail("rename")
            with pytest.raises(kstore.StorageError):
                append()
            disk.heal()
            assert trace(log) == before
        goes_on(log, 3)
