"""Who hears of a failing disk: the log's owner, once for each error that a change of the log met."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.log.writing import _appender
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS
from tests.support.parking import no_hook_stays as no_hook_stays
from tests.support.parking import park, values, writer_of


def hearing(log: kstore.Log) -> list[kstore.StorageError]:
    heard: list[kstore.StorageError] = []
    writer_of(log).on_storage_error = heard.append
    return heard


def refuse(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    "append",
    [
        lambda log: log.append(b"x"),
        lambda log: log.append(b"x" * 20_000),
        lambda log: log.append_many([b"x"] * 10),
        lambda log: log.append(b"x", headers=[("a", b"b")]),
    ],
)
def test_a_write_that_fails_is_heard_once(partition: Path, append: Callable[[kstore.Log], object]) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"a")
        heard = hearing(log)
        _appender.set_pwrite_hook(refuse)
        with pytest.raises(kstore.StorageError) as caught:
            append(log)
        _appender.set_pwrite_hook(None)
        assert heard == [caught.value]
        assert heard[0].errno == errno.EIO
        assert str(heard[0].filename).endswith(".log")
        append(log)
        assert len(heard) == 1


def test_a_log_that_refuses_writes_after_an_error_says_so_to_its_callers_alone(root: Path, partition: Path) -> None:
    with FaultFS(root) as disk:
        log = kstore.Log.open(partition)
        heard = hearing(log)
        log.append(b"a")
        disk.fail("fdatasync")
        with pytest.raises(kstore.StorageError):
            log.flush()
        disk.heal()
        for change in (lambda: log.append(b"x"), log.flush, log.roll, lambda: log.append_many([b"x"])):
            with pytest.raises(kstore.StorageError, match="refuses writes"):
                change()
        assert len(heard) == 1
        log.close()
        assert len(heard) == 1


@pytest.mark.parametrize(
    ("call", "change"),
    [
        ("open", lambda log: log.roll()),
        ("truncate", lambda log: log.roll()),
        ("truncate", lambda log: log.truncate_to(1)),
        ("rename", lambda log: log.truncate_fully_and_start_at(9)),
        ("rename", lambda log: log.delete_records(1)),
        ("fsync", lambda log: log.delete_records(1)),
        ("fdatasync", lambda log: log.append(b"x", sync=True)),
        ("sync_directory", lambda log: log.flush()),
        ("rename", lambda log: log.append(b"x", leader_epoch=5)),
        ("rename", lambda log: writer_of(log).housekeeping.write_checkpoints()),
        ("fdatasync", lambda log: log.close()),
        ("rename", lambda log: log.close()),
    ],
)
@pytest.mark.parametrize("parked", [False, True])
def test_whatever_the_disk_refuses_a_change_is_heard_once(
    root: Path, partition: Path, clock: ManualClock, call: str, change: Callable[[kstore.Log], object], parked: bool
) -> None:
    with FaultFS(root) as disk:
        log = kstore.Log.open(partition, clock=clock)
        for number in range(3):
            log.append(b"%d" % number)
        heard = hearing(log)
        if parked:
            park(log)
        disk.fail(call, error=errno.EROFS, times=-1)
        with pytest.raises(kstore.StorageError):
            change(log)
        assert [error.errno for error in heard] == [errno.EROFS]
        disk.heal()
        log.close()
        assert len(heard) == 1


def test_a_deletion_that_is_due_and_refused_is_heard(root: Path, partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.13"""
    with FaultFS(root) as disk, kstore.Log.open(partition, clock=clock) as log:
        log.append(b"a")
        log.truncate_fully_and_start_at(5)
        heard = hearing(log)
        clock.advance(60_000)
        disk.fail("unlink")
        with pytest.raises(kstore.StorageError):
            log.run_housekeeping()
        assert len(heard) == 1
        log.run_housekeeping()
        assert not any(path.name.endswith(".deleted") for path in partition.iterdir())


def test_a_log_that_is_told_to_fail_reports_nothing(partition: Path) -> None:
    """The caller knows the error already: another log in its directory has met it."""
    log = kstore.Log.open(partition)
    heard = hearing(log)
    writer_of(log).fail(kstore.StorageError(errno.EIO, "Input/output error", str(partition.parent)))
    with pytest.raises(kstore.StorageError, match="refuses writes"):
        log.append(b"x")
    log.close()
    assert heard == []


def test_readers_errors_are_their_own(root: Path, partition: Path) -> None:
    with FaultFS(root) as disk, kstore.Log.open(partition, index_interval_bytes=0) as log:
        for number in range(3):
            log.append(b"%d" % number)
        heard = hearing(log)
        park(log)
        disk.fail("pread", "pread_into", "open", times=-1)
        with pytest.raises(kstore.StorageError):
            list(log.read())
        with pytest.raises(kstore.StorageError):
            log.fetch(1, 100)
        disk.heal()
        assert heard == []
        assert len(values(log)) == 3


def test_a_caller_s_mistake_is_no_failing_disk(partition: Path) -> None:
    with kstore.Log.open(partition, max_message_bytes=200) as log:
        heard = hearing(log)
        with pytest.raises(kstore.RecordTooLargeError):
            log.append(b"x" * 300)
        with pytest.raises(kstore.RecordTooLargeError):
            log.append_many([b"x" * 300])
        with pytest.raises(ValueError, match="gate"), writer_of(log).gate():
            raise ValueError("gate")
        assert heard == []
