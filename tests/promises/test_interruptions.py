"""A log whose threads and interruptions meet at bad moments."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

import kstore
from kstore.base import threads
from kstore.disk import fs, locks
from kstore.errors import StorageError
from kstore.log.reading.view import SegmentList
from kstore.log.segments.segment import Segment
from kstore.log.writing.housekeepers import ThreadHousekeeper
from kstore.log.writing.writer import Writer
from kstore.store.log_directory import LogDirectory
from kstore.store.manager import LogManager
from tests.conftest import ManualClock


def test_a_follower_misses_nothing_when_an_append_and_a_roll_come_between_its_polls(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw the old end of a segment, then the segment after it."""
    with kstore.Log.open(partition) as log:
        log.append(b"0")
        records = log.read(follow=True, timeout=0.01, end_offset=3)
        assert next(records).offset == 0
        after = SegmentList.after

        def between(self: SegmentList, base_offset: int) -> Segment | None:
            if log.log_end_offset == 1:
                log.append(b"1")
                log.roll()
                log.append(b"2")
                self = log._view.segments
            return after(self, base_offset)

        monkeypatch.setattr(SegmentList, "after", between)
        assert [r.offset for r in records] == [1, 2]


def test_a_reader_amid_a_truncation_to_the_log_start_sees_an_empty_log(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 11.4: the batch that holds the log start goes as a whole, and the data end below it."""
    with kstore.Log.open(partition) as log:
        log.append_many([b"x"] * 300)
        log.delete_records(75)
        truncate_to, seen = Segment.truncate_to, []

        def beside(self: Segment, offset: int, position: int, now_ms: int) -> None:
            for _ in range(2):
                seen.append([len(list(log.read())), len(list(log.read_batches())), len(log.read_columns())])
                truncate_to(self, offset, position, now_ms)

        monkeypatch.setattr(Segment, "truncate_to", beside)
        assert log.truncate_to(224)
        assert seen == [[0, 0, 0]] * 2
        assert (log.log_start_offset, log.log_end_offset, len(list(log.read()))) == (75, 224, 0)


def test_a_reader_that_begins_at_the_log_end_amid_appends_reads_on_from_there(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"0")
        log.roll()
        log_end, left = Writer.log_end_offset.fget, [1] * 20
        assert log_end is not None

        def between(self: Writer) -> int:
            found = log_end(self)
            if left and left.pop():
                with monkeypatch.context() as plain:
                    plain.setattr(Writer, "log_end_offset", property(log_end))
                    log.append(b"between two looks")
            return int(found)

        for looks in range(20):
            left[:] = [1] + [0] * looks
            with monkeypatch.context() as busy:
                busy.setattr(Writer, "log_end_offset", property(between))
                records = log.read(log._view.appender.next_offset, follow=True, timeout=0, end_offset=1000)
                found = [record.offset for record in records]
            assert found == list(range(log.log_end_offset - len(found), log.log_end_offset))
            log.roll()


def test_a_roll_that_breaks_off_for_good_writes_to_no_descriptor_that_it_closed(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 2.9: sealing closes the index files, and their numbers may be given to others."""
    log = kstore.Log.open(partition, clock=clock, index_interval_bytes=0)
    for _ in range(3):
        log.append(b"x")

    def full(*_: object, **__: object) -> bool:
        raise StorageError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Segment, "create", full)
    monkeypatch.setattr(Segment, "activate", full)
    with pytest.raises(StorageError):
        log.roll()
    with pytest.raises(StorageError):
        log.append(b"y")
    monkeypatch.undo()
    with pytest.raises(StorageError):
        log.append(b"z")
    log.close()
    with kstore.Log.open(partition, clock=clock) as log:
        assert [r.value for r in log.read()] == [b"x"] * 3


def test_a_closing_log_does_not_wait_for_an_append_that_waits_for_it(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 12.4: an append that is to flush waits for the turn, which a close has taken."""
    log = kstore.Log.open(partition, flush_messages=1)
    writer = log._writer
    assert writer is not None
    stop, append_locked = writer.housekeeping.stop, writer.append_locked
    appending, closing = threading.Event(), threading.Event()

    def slowly(batches: bytearray | memoryview) -> None:
        appending.set()
        closing.wait(0.2)
        append_locked(batches)

    def stopping() -> None:
        stop()
        closing.set()

    monkeypatch.setattr(writer, "append_locked", slowly)
    monkeypatch.setattr(writer.housekeeping, "stop", stopping)
    appender = threading.Thread(target=log.append_many, args=([b"x"],), daemon=True)
    appender.start()
    assert appending.wait(60)
    closer = threading.Thread(target=log.close, daemon=True)
    closer.start()
    closer.join(60)
    appender.join(60)
    assert not closer.is_alive()
    assert not appender.is_alive()


def test_an_index_sealed_after_a_flush_is_synced_before_the_recovery_point(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery point is written only after the indexes below it are synced."""
    with kstore.Log.open(partition, clock=clock) as log:
        log.append(b"x")
        log.flush()
        log.roll()
        sealed = log._view.segments.items[0]
        synced: list[str | None] = []
        fdatasync = fs.fdatasync

        def sync(fd: int) -> None:
            synced.append(fs.path_of(fd) if hasattr(fs, "path_of") else None)
            fdatasync(fd)

        monkeypatch.setattr(fs, "fdatasync", sync)
        log.flush()
        assert not sealed.time_index._unsynced
        assert len(synced) >= 3


def test_a_roll_whose_snapshot_fails_still_owes_the_names_of_its_files(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 12.8: the next flush syncs the directory."""
    with kstore.Log.open(partition, clock=clock) as log:
        log.append(b"x")
        log.flush()

        def full(*_: object, **__: object) -> None:
            raise StorageError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(fs, "write_file", full)
            with pytest.raises(StorageError):
                log.roll()
        synced: list[str] = []
        sync_directory = fs.sync_directory
        monkeypatch.setattr(fs, "sync_directory", lambda path: (synced.append(str(path)), sync_directory(path)))
        log.append(b"y")
        log.flush()
        assert str(partition) in synced


@pytest.mark.parametrize("step", ["has_flushed", "sync"])
def test_a_flush_that_is_interrupted_leaves_the_turn_to_others(
    partition: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"x")
        assert log._writer is not None
        housekeeping = log._writer.housekeeping
        do = getattr(housekeeping, step)

        def interrupted(*target: int, **options: bool) -> bool:
            do(*target, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(housekeeping, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.flush()
        log.flush()
        assert log.stats()["recovery_point"] == 1


def test_a_thread_whose_start_is_interrupted_is_started_by_the_next_roll(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And until then, and without one, the log closes."""

    def interrupted(thread: threading.Thread) -> bool:
        raise KeyboardInterrupt

    for rolls in (0, 1):
        log = kstore.Log.open(partition)
        log.append(b"x")
        with monkeypatch.context() as busy:
            busy.setattr(threads, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.roll()
        if rolls:
            log.append(b"y")
            log.roll()
            housekeeper = log._writer.housekeeping.housekeeper  # type: ignore[union-attr]
            assert isinstance(housekeeper, ThreadHousekeeper)
            assert housekeeper._thread is not None
            assert housekeeper._thread.is_alive()
        log.close()


def test_two_threads_that_open_a_segment_at_once_use_one_file(partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loser's descriptor is closed, and its number may be given to another file."""
    with kstore.Log.open(partition) as log:
        log.append(b"x")
    with kstore.Log.open(partition, mode="r") as log:
        segment = log._view.segments.items[0].anew()
        both = threading.Barrier(2, timeout=60)
        open_file = fs.open

        def together(path: str, **arguments: bool) -> int:
            both.wait()
            return open_file(path, **arguments)

        monkeypatch.setattr(fs, "open", together)
        found: list[object] = []
        threads = [threading.Thread(target=lambda: found.append(segment.file)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] is found[1]


def test_a_full_disk_that_the_background_meets_once_does_not_end_the_background(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 2.12: the recovery point is written when there is room again."""
    written = threading.Event()
    with kstore.Log.open(partition) as log:
        assert log._writer is not None
        housekeeping = log._writer.housekeeping
        write_checkpoints = housekeeping.write_checkpoints
        failures = [StorageError(errno.ENOSPC, "No space left on device")]

        def once_full() -> None:
            if failures:
                raise failures.pop()
            write_checkpoints()
            written.set()

        monkeypatch.setattr(housekeeping, "write_checkpoints", once_full)
        log.append(b"x")
        log.roll()
        assert written.wait(60)
        assert (partition.parent / "recovery-point-offset-checkpoint").read_text() == "0\n1\nevents 0 1\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_log_whose_lock_another_thread_held_at_a_fork_is_closed_in_the_child(partition: Path) -> None:
    """In a forked child a log is closed, and says so instead of waiting for a thread that is not there."""
    with kstore.Log.open(partition) as log:
        assert log._writer is not None
        with log._writer.mutex:
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    log.append(b"x")
                except kstore.LogClosedError:
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0


def test_a_close_interrupted_before_it_gives_its_locks_back_does_so_when_repeated(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = kstore.Log.open(partition)
    log.append(b"x")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(log, "_unlock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.close()
    assert log.closed
    log.close()
    with kstore.Log.open(partition) as again:
        assert again.log_end_offset == 1


@pytest.mark.parametrize(
    ("where", "name", "marked"),
    [
        (LogManager, "_checkpoint_high_watermarks", True),
        (Writer, "_close_cleanly", False),  # the log that was being closed is looked at by the next opening
        (LogDirectory, "close", True),
    ],
)
@pytest.mark.parametrize("partitions", [1, 3])  # one log is closed by the thread that calls, several by others
def test_an_interrupted_close_of_a_store_closes_what_is_left_when_repeated(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: type, name: str, marked: bool, partitions: int
) -> None:
    store = kstore.Store.open(root, background=False)
    store.create_topic("events", partitions)
    for number in range(partitions):
        store.append("events", b"x", partition=number)

    def interrupted(*_args: object, **_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    assert store.closed
    store.close()
    assert (root / ".kafka_cleanshutdown").exists() == marked
    store.close()
    with kstore.Store.open(root, background=False) as again:
        assert sorted(record.value for record in again.read("events")) == [b"x"] * partitions


def test_a_closed_store_that_is_closed_again_writes_nothing_beside_the_next_one(root: Path) -> None:
    store = kstore.Store.open(root, background=False)
    store.create_topic("events")
    store.close()
    with kstore.Store.open(root, background=False) as again:
        again.append("events", b"x")
        files = {path: path.read_bytes() for path in root.iterdir() if path.is_file()}
        store.close()
        assert {path: path.read_bytes() for path in root.iterdir() if path.is_file()} == files


def test_a_checkpoint_lock_that_is_not_given_back_is_no_error_of_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.01)
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        log.append_many([b"x"] * 5)
        with fs.checkpoint_lock(root), pytest.raises(kstore.LogLockedError, match="after a wait of"):
            log.delete_records(2)
        with fs.checkpoint_lock(root):
            store.run_housekeeping()
        assert store.stats()["offline"] == {}
        assert log.append(b"y") == 5
        log.delete_records(3)
        assert log.log_start_offset == 3
