"""What a store does by itself, and when: Kafka's periods (SEMANTICS 13.4), stepped with a passed-in clock."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.disk import fs
from kstore.files import checkpoint
from kstore.log.hosted_log import HostedLog
from kstore.store.coordinator.groups import GroupCoordinator
from kstore.store.coordinator.transactions import TransactionCoordinator
from kstore.store.manager import LogManager
from kstore.store.scheduler import Scheduler
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


@pytest.fixture
def opened(root: Path, clock: ManualClock) -> Callable[..., kstore.Store]:
    """`opened(**settings)`: a store that does nothing by itself."""
    return lambda **settings: kstore.Store.open(root, clock=clock, background=False, **settings)


def steps(store: kstore.Store, clock: ManualClock, milliseconds: int, step: int = SECOND) -> None:
    """Live through so many milliseconds, with housekeeping at every step."""
    for _ in range(milliseconds // step):
        clock.advance(step)
        store.run_housekeeping()


def marks(root: Path, name: str) -> dict[tuple[str, int], int]:
    return checkpoint.read_offsets(root, name)


# Checkpoints


def test_recovery_points_are_written_once_a_minute_after_the_initial_delay(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store]
) -> None:
    """SEMANTICS 12.7, 13.4: first after log.initial.task.delay.ms; a flush alone does not write them.
    LogManagerTest.testCheckpointRecoveryPoints."""
    with opened() as store:
        store.create_topic("events")
        log = store.log("events", 0)
        log.append(b"x", sync=True)
        steps(store, clock, 29 * SECOND)
        assert marks(root, checkpoint.RECOVERY_POINTS) == {}
        steps(store, clock, SECOND)
        assert marks(root, checkpoint.RECOVERY_POINTS) == {("events", 0): 1}
        log.append(b"y", sync=True)
        log.append(b"not flushed")
        steps(store, clock, 59 * SECOND)
        assert marks(root, checkpoint.RECOVERY_POINTS) == {("events", 0): 1}
        steps(store, clock, SECOND)
        assert marks(root, checkpoint.RECOVERY_POINTS) == {("events", 0): 2}


def test_high_watermarks_are_written_every_five_seconds(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store]
) -> None:
    """SEMANTICS 13.15: replica.high.watermark.checkpoint.interval.ms; the high watermark is the end (SEMANTICS 0.4)."""
    with opened() as store:
        store.create_topic("events", 2)
        store.log("events", 1).append(b"x")
        steps(store, clock, 4 * SECOND)
        assert marks(root, checkpoint.HIGH_WATERMARKS) == {}
        steps(store, clock, SECOND)
        assert marks(root, checkpoint.HIGH_WATERMARKS) == {("events", 1): 1}


def test_a_log_start_is_on_the_disk_before_delete_records_returns(
    root: Path, opened: Callable[..., kstore.Store]
) -> None:
    """`log-start-at-once`, unlike SEMANTICS 11.12; and no other line is touched."""
    (root / checkpoint.LOG_STARTS).write_text("0\n1\nother 3 9\n")
    with opened() as store:
        store.create_topic("events")
        store.log("events", 0).append_many([b"a", b"b"])
        store.log("events", 0).delete_records(1)
        assert marks(root, checkpoint.LOG_STARTS) == {("events", 0): 1, ("other", 3): 9}


def test_many_logs_take_one_write_of_each_checkpoint(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LogManagerTest.testCheckpointForOnlyAffectedLogs."""
    with opened() as store:
        store.create_topic("events", 20)
        for number in range(20):
            store.log("events", number).append(b"x", sync=True)
            store.log("events", number).roll()
        written: list[str] = []
        write = fs.write_atomically
        monkeypatch.setattr(
            fs, "write_atomically", lambda path, data: (written.append(Path(path).name), write(path, data))
        )
        store.run_housekeeping()
        assert written == [checkpoint.RECOVERY_POINTS]
        assert marks(root, checkpoint.RECOVERY_POINTS) == {("events", number): 1 for number in range(20)}
        monkeypatch.undo()
        for number in range(20):
            store.log("events", number).append(b"y")
        monkeypatch.setattr(
            fs, "write_atomically", lambda path, data: (written.append(Path(path).name), write(path, data))
        )
        store.close()
        assert written[1:] == [checkpoint.HIGH_WATERMARKS, checkpoint.RECOVERY_POINTS]
    assert marks(root, checkpoint.RECOVERY_POINTS) == {("events", number): 2 for number in range(20)}


# Flushes


def test_flush_ms_is_looked_at_as_often_as_it_asks_for(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store]
) -> None:
    # docs/compatibility.md: `flush-ms-is-heard`
    """SEMANTICS 12.5: Kafka looks every log.flush.scheduler.interval.ms, so that flush.ms alone has no lasting effect
    there."""
    with opened() as store:
        store.create_topic("fast", config={"flush.ms": "500"})
        store.create_topic("slow", config={"flush.ms": "60000"})
        store.create_topic("never")
        logs = [store.log(name, 0) for name in ("fast", "slow", "never")]
        for log in logs:
            log.append(b"x")
        points = lambda: [log.stats()["recovery_point"] for log in logs]  # noqa: E731
        steps(store, clock, 499, 499)
        assert points() == [0, 0, 0]
        steps(store, clock, 1, 1)
        assert points() == [1, 0, 0]
        logs[0].append(b"y")
        steps(store, clock, 500, 500)
        assert points() == [2, 0, 0]
        steps(store, clock, 59 * SECOND, 500)
        assert points() == [2, 1, 0]


def test_what_a_roll_left_is_flushed_by_the_next_housekeeping(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store]
) -> None:
    """SEMANTICS 2.12: scheduled at once, and not done by the append."""
    with opened(segment_bytes=200) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        for _ in range(3):
            log.append(bytes(100))
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
        assert log.stats()["recovery_point"] == 0
        store.run_housekeeping()
        assert log.stats()["recovery_point"] == 2
        assert marks(root, checkpoint.RECOVERY_POINTS) == {("events", 0): 2}


def test_flushing_a_store_flushes_every_log_that_owes(opened: Callable[..., kstore.Store]) -> None:
    with opened() as store:
        store.create_topic("events", 3)
        for number in (0, 2):
            store.log("events", number).append(b"x")
        store.flush()
        assert [store.log("events", number).stats()["recovery_point"] for number in range(3)] == [1, 0, 1]


# Retention and deletion


def test_retention_looks_at_every_log_every_five_minutes(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store]
) -> None:
    """SEMANTICS 6.17: at a fixed rate, first after the initial delay; the files go a minute after their names
    (SEMANTICS 6.13)."""
    with opened(config={"log.retention.ms": str(10 * MINUTE)}) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        log.append(b"old")
        log.roll()
        log.append(b"young", timestamp=clock.now + 9 * MINUTE)
        steps(store, clock, 10 * MINUTE + 29 * SECOND)
        assert log.log_start_offset == 0
        steps(store, clock, SECOND)
        assert log.log_start_offset == 1
        deleted = root / "events-0" / "00000000000000000000.log.deleted"
        steps(store, clock, 59 * SECOND)
        assert deleted.exists()
        steps(store, clock, SECOND)
        assert not deleted.exists()


@pytest.mark.parametrize(
    ("policy", "goes"), [("delete", True), ("compact,delete", True), ("compact", False), ("", False)]
)
def test_retention_goes_by_the_policy(
    clock: ManualClock, opened: Callable[..., kstore.Store], policy: str, goes: bool
) -> None:
    """SEMANTICS 6.1, 6.1a, 6.18: without a cleaner compact,delete topics get their retention all the same."""
    with opened() as store:
        store.create_topic("events", config={"cleanup.policy": policy, "retention.ms": "1000"})
        log = store.log("events", 0)
        log.append(b"x", b"key")
        steps(store, clock, 31 * SECOND)
        assert (log.log_start_offset == 1) is goes


def test_logs_that_nobody_opened_are_opened_only_if_something_goes(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store]
) -> None:
    with opened() as store:
        store.create_topic("old", config={"retention.ms": "1000"})
        store.create_topic("new", config={"retention.ms": str(HOUR)})
        store.create_topic("kept")
        for name in store.topics:
            store.log(name, 0).append(b"x")
    with opened() as store:
        clock.advance(30 * SECOND)
        store.run_housekeeping()
        assert store.stats()["open_logs"] == 1
        assert store.log("old", 0).log_start_offset == 1
        assert store.log("new", 0).log_start_offset == 0


def test_leftovers_of_logs_that_nobody_opened_are_removed(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store]
) -> None:
    """SEMANTICS 6.15: pending unlinks are not written down; what they left goes when the log is loaded."""
    with opened() as store:
        store.create_topic("events", 2)
        for number in range(2):
            store.log("events", number).append(b"x")
        store.log("events", 1).truncate_fully_and_start_at(5)
    assert list((root / "events-1").glob("*.deleted"))
    with opened() as store:
        clock.advance(30 * SECOND)
        store.run_housekeeping()
        assert not list((root / "events-1").glob("*.deleted"))
        assert store.stats()["open_logs"] == 1


# Troubles


def test_a_log_that_fails_is_reported_and_stops_no_other(
    root: Path, clock: ManualClock, opened: Callable[..., kstore.Store], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with opened(config={"log.retention.ms": "1000"}) as store:
        store.create_topic("events", 3)
        logs = [store.log("events", number) for number in range(3)]
        for log in logs:
            log.append(b"x")

        def broken() -> None:
            raise RuntimeError("out of order")

        monkeypatch.setattr(logs[1], "apply_retention", broken)
        with caplog.at_level(logging.ERROR, "kstore"):
            steps(store, clock, 31 * SECOND)
        assert [log.log_start_offset for log in logs] == [1, 0, 1]
        assert store.stats()["failures"] == {"retention events-1": "RuntimeError: out of order"}
        assert "events-1: retention failed" in caplog.text
        monkeypatch.undo()
        steps(store, clock, 5 * MINUTE)
        assert store.stats()["failures"] == {}
        assert logs[1].log_start_offset == 1
        logs[1].append(b"x")
        monkeypatch.setattr(logs[1], "apply_retention", broken)
        steps(store, clock, 5 * MINUTE)
        assert list(store.stats()["failures"]) == ["retention events-1"]
        store.delete_topic("events")
        assert store.stats()["failures"] == {}


# In the background


def until(met: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Look until it is so."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_a_thread_does_it_unless_it_is_told_not_to(root: Path) -> None:
    """A roll's flush, a timed flush and an unlink, by the system's clock."""
    settings = {"flush.ms": "20", "file.delete.delay.ms": "20"}
    with kstore.Store.open(root) as store:
        store.create_topic("events", config=settings)
        log = store.log("events", 0)
        log.append(b"x")
        assert until(lambda: log.stats()["recovery_point"] == 1)
        log.truncate_fully_and_start_at(7)
        assert until(lambda: not list((root / "events-0").glob("*.deleted")))
        log.append(b"y")
        log.roll()
        assert until(lambda: marks(root, checkpoint.RECOVERY_POINTS) == {("events", 0): 8})
    threads = set(threading.enumerate())
    with kstore.Store.open(root, background=False):
        assert set(threading.enumerate()) <= threads


def test_a_store_that_nobody_holds_is_collected_with_its_thread(root: Path) -> None:
    before = set(threading.enumerate())
    store = kstore.Store.open(root)
    assert not set(threading.enumerate()) <= before
    store.create_topic("events")
    log = store.log("events", 0)
    log.append(b"x")
    gone = weakref.ref(store)
    del store, log
    # A task that its thread just runs holds it a little longer.
    assert until(lambda: gc.collect() >= 0 and gone() is None)
    assert until(lambda: set(threading.enumerate()) <= before)
    gc.collect()  # the thread may have been the last to hold a part of it
    with kstore.Store.open(root) as store:
        assert store.log("events", 0).log_end_offset == 1


def test_closing_waits_for_a_flush_that_is_under_way(root: Path) -> None:
    with FaultFS(root), kstore.Store.open(root) as store:
        store.create_topic("events", 8, config={"flush.ms": "1"})
        for _ in range(50):
            for number in range(8):
                store.log("events", number).append(bytes(100))
    with kstore.Store.open(root) as store:
        assert [store.log("events", number).log_end_offset for number in range(8)] == [50] * 8


@pytest.mark.parametrize(
    ("part", "task"),
    [
        (GroupCoordinator, "expire_offsets"),
        (TransactionCoordinator, "abort_timed_out"),
        (TransactionCoordinator, "expire_ids"),
    ],
)
def test_closing_waits_for_a_task_that_runs_and_nothing_is_logged(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: Any, task: str
) -> None:
    """The task wants the store open, and the lock of its administration, after the close has begun."""
    begun, closing = threading.Event(), threading.Event()
    plain, stop = getattr(part, task), Scheduler.stop

    def act(coordinator: Any) -> None:
        begun.set()
        assert closing.wait(60)
        with coordinator._metadata.changing:
            plain(coordinator)

    def stopping(self: Scheduler, timeout: float | None = None) -> bool:
        closing.set()
        return stop(self, timeout)

    monkeypatch.setattr(part, task, act)
    monkeypatch.setattr(Scheduler, "stop", stopping)
    clock = ManualClock()
    with kstore.Store.open(root, clock=clock) as store:
        store.create_topic("events")
        clock.advance(24 * HOUR)
        assert begun.wait(60)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert (root / ".kafka_cleanshutdown").exists()


def test_housekeeping_of_another_thread_ends_in_silence_when_the_store_is_closed(
    root: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = kstore.Store.open(root, clock=clock, background=False)
    store.create_topic("events")
    store.append("events", b"x")
    manager = store._logs
    assert isinstance(manager, LogManager)
    store.close()
    clock.advance(24 * HOUR)
    manager.scheduler.run_due()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert manager.scheduler.failures == {}


def test_a_flush_that_outlives_its_topic_leaves_no_line_for_the_next_of_the_name(
    root: Path, clock: ManualClock
) -> None:
    """SEMANTICS 13.8. The next log would be measured by the flushed end of the one that was deleted."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("t", partitions=1)
        log = store.log("t", 0)
        log.append_many([b"v"] * 50)
        log.flush()
        housekeeping = HostedLog(log).writer.housekeeping
        directory = housekeeping.housekeeper
        store.delete_topic("t")
        store.create_topic("t", partitions=1)
        housekeeping.write_checkpoints()
        directory.write_all_marks([housekeeping])
        directory.write_high_watermarks([housekeeping])
        for name in checkpoint.OFFSET_CHECKPOINTS:
            assert ("t", 0) not in checkpoint.read_offsets(str(root), name), name
        with kstore.Store.open(root, "r") as reader:
            assert list(reader.read("t")) == []
