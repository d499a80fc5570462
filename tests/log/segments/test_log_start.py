"""A log never starts above its end, neither by a deletion beside a truncation nor after a power cut
(SEMANTICS 11.9 to 11.12)."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import kstore
from kstore.files import checkpoint
from kstore.log.writing._sync_turn import Turn
from kstore.tools.check.verify import verify
from tests.conftest import ManualClock
from tests.support.faultfs import KEPT, LOST, PLANS, FaultFS
from tests.support.parking import writer_of


@pytest.fixture(autouse=True)
def without_syncs(no_syncs: None) -> None:
    """What is on the disk is the images' business."""


@pytest.fixture
def log(partition: Path, clock: ManualClock) -> kstore.Log:
    log = kstore.Log.open(partition, clock=clock, segment_bytes=1000)
    for number in range(100):
        log.append(b"%d" % number)
    return log


def after_the_flush(log: kstore.Log, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have another thread's doing come between the flush of a deletion and its decision."""
    housekeeping = writer_of(log).housekeeping
    flush = housekeeping.flush
    acts = [act]

    def flush_then_act(*arguments: int, **named: bool) -> None:
        flush(*arguments, **named)
        if acts:
            acts.pop()()

    monkeypatch.setattr(housekeeping, "flush", flush_then_act)


def before_the_turn(log: kstore.Log, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have another thread's sync come before a cut, which waits for its turn."""
    housekeeping = writer_of(log).housekeeping
    acts = [act]

    class Taken:
        def __init__(self, turn: Turn) -> None:
            self.turn = turn

        def __getattr__(self, name: str) -> Any:
            return getattr(self.turn, name)

        def take(self) -> None:
            if acts:
                acts.pop()()
            self.turn.take()

    monkeypatch.setattr(housekeeping, "_turn", Taken(housekeeping._turn))


def goes_on(log: kstore.Log, end: int) -> None:
    """What is appended is read, and survives a close."""
    assert log.append(b"after") == end
    assert [record.value for record in log.read(end)] == [b"after"]
    start, records = log.log_start_offset, list(log.read())
    log.close()
    with kstore.Log.open(log.path) as again:
        assert (again.recovery.clean, again.recovery.segments_dropped) == (True, [])
        assert (again.log_start_offset, list(again.read())) == (start, records)


def test_a_deletion_whose_offset_a_truncation_has_taken_is_refused(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 11.9"""
    after_the_flush(log, monkeypatch, lambda: log.truncate_to(50))
    with pytest.raises(kstore.OffsetOutOfRangeError) as caught:
        log.delete_records(90)
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 50)
    assert (log.log_start_offset, log.log_end_offset) == (0, 50)
    goes_on(log, 50)


def test_a_deletion_of_all_ends_where_a_truncation_has_ended_the_log(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_the_flush(log, monkeypatch, lambda: log.truncate_to(50))
    assert log.delete_records(-1) == 50
    goes_on(log, 50)


def test_a_deletion_of_all_does_not_wait_for_what_is_appended_meanwhile(
    log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_the_flush(log, monkeypatch, lambda: log.append(b"more"))
    assert log.delete_records(-1) == 100
    goes_on(log, 101)


def test_records_appended_behind_a_truncation_are_flushed_before_their_deletion(
    log: kstore.Log, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> None:
        log.truncate_to(50)
        for number in range(50):
            log.append(b"again %d" % number)

    after_the_flush(log, monkeypatch, again)
    assert log.delete_records(90) == 90
    assert writer_of(log).housekeeping.recovery_point >= 90
    assert checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS)["events", 0] >= 90
    goes_on(log, 100)


def test_a_deletion_and_a_truncation_at_once_leave_a_log_that_can_be_read(partition: Path, no_syncs: None) -> None:
    rng = random.Random(5)
    refused = 0
    with kstore.Log.open(partition, segment_bytes=1000) as log:
        for number in range(60):
            while log.log_end_offset < 100:
                log.append(b"x" * 20)
            at = rng.randrange(log.log_start_offset, 100)
            other = threading.Thread(target=log.truncate_to, args=(at,))
            other.start()
            if number % 10 == 0:  # now and then the truncation has come first, whatever the machine does
                other.join()
            try:
                log.delete_records(min(at + 10, 100))
            except kstore.OffsetOutOfRangeError:
                refused += 1
            other.join()
            assert log.log_start_offset <= log.log_end_offset, number
            offset = log.append(b"y")
            assert [record.offset for record in log.read(offset)] == [offset], number
            if number % 10 == 9:
                log.truncate_fully_and_start_at(0)
        records = list(log.read())
    assert refused > 0
    with kstore.Log.open(partition) as log:
        assert log.recovery.segments_dropped == []
        assert list(log.read()) == records


@pytest.mark.parametrize("to", [2, 3, -1])
def test_a_log_start_in_the_gap_of_a_truncation_is_where_the_log_goes_on(
    root: Path, clock: ManualClock, to: int
) -> None:
    """SEMANTICS 11.4: no record is there; the log ends above its data, and starts there from then on
    (SEMANTICS 8.11)."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        log.append(b"a")
        log.append_many([b"b", b"c", b"d"], atomic=True)
        log.truncate_to(3)
        start = log.delete_records(to)
        assert start == (3 if to == -1 else to)
    assert not [found for found in verify([root]).findings if found.severity == "error"]
    with kstore.Log.open(root / "events-0", "r") as reader:
        assert (reader.log_start_offset, reader.log_end_offset) == (start, start)
    with kstore.Store.open(root, clock=clock, background=False) as store:
        log = store.log("events", 0)
        assert (log.log_start_offset, log.log_end_offset) == (start, start)
    goes_on(kstore.Log.open(root / "events-0", clock=clock), start)
    assert not [found for found in verify([root]).findings if found.severity == "error"]


@pytest.mark.parametrize(
    ("offset", "start", "deleted"),
    [(100, 100, 0), (100, 4, 6), (5, 5, 0), (5, 0, 0), (5, 5, 6), (0, 0, 0)],
)
def test_a_power_cut_while_a_log_begins_anew_leaves_a_first_part_of_what_was_there(
    root: Path, tmp_path: Path, clock: ManualClock, offset: int, start: int, deleted: int
) -> None:
    """SEMANTICS 11.7: whatever is there opens, and no record that had been deleted is back."""
    with FaultFS(root) as disk:
        log = kstore.Log.open(root / "events-0", clock=clock, segment_bytes=300)
        for number in range(12):
            log.append(b"%d" % number)
        log.flush()
        log.run_housekeeping()
        log.delete_records(deleted)
        begun = disk.step
        log.truncate_fully_and_start_at(offset, log_start_offset=start)
        done = disk.step
        log.close()
    into = tmp_path / "images"
    into.mkdir()
    for step, plan, image in disk.crash_images(into, PLANS[0], PLANS[-1], since=begun):
        with kstore.Log.open(image / "events-0", "r", clock=clock) as reader:
            seen = (reader.log_start_offset, [record.offset for record in reader.read()])
        with kstore.Log.open(image / "events-0", clock=clock) as log:
            found = [record.offset for record in log.read()]
            assert (log.log_start_offset, found) == seen, (step, plan)
            whole = list(range(max(log.log_start_offset, deleted), log.log_end_offset))
            assert found in (whole, []), (step, plan)
            if step >= done:
                assert (log.log_end_offset, found) == (offset, []), (step, plan)
        if step > done + 3:
            break


def test_a_kill_while_a_log_begins_anew_at_0_leaves_nothing_that_verify_calls_wrong(
    root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """SEMANTICS 11.8: an empty segment at 0 looks like a log that was closed, which has no leader epoch above its
    end."""
    with FaultFS(root) as disk, kstore.Log.open(root / "events-0", clock=clock) as log:
        log.append(b"0", leader_epoch=1)
        log.append(b"1", leader_epoch=2)
        begun = disk.step
        log.truncate_fully_and_start_at(0)
    into = tmp_path / "images"
    into.mkdir()
    for step, _, image in disk.crash_images(into, KEPT, since=begun):
        assert [each for each in verify([image]).findings if each.severity == "error"] == [], step


def test_a_sync_just_before_a_log_begins_anew_promises_nothing_of_the_new_end(
    partition: Path, tmp_path: Path, log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log end is where the log will begin by the time that its records are cut, and not before (SEMANTICS 12.2)."""
    found: list[int] = []
    killed = tmp_path / "killed" / partition.name

    def sync() -> None:
        log.flush()
        writer_of(log).housekeeping.write_checkpoints()
        with kstore.Log.open(partition, mode="r") as reader:
            found.extend(record.offset for record in reader.read())
        shutil.copytree(partition.parent, killed.parent)

    before_the_turn(log, monkeypatch, sync)
    log.truncate_fully_and_start_at(1000)
    assert found == list(range(100))
    with kstore.Log.open(killed) as again:
        assert [record.offset for record in again.read()] == found
    goes_on(log, 1000)


def test_a_power_cut_in_retention_finds_a_log_that_opens(root: Path, tmp_path: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.10: what retention deletes need not have been flushed, and so may be shorter than the log start
    says."""
    with FaultFS(root) as disk:
        log = kstore.Log.open(root / "events-0", clock=clock, segment_bytes=500, retention_bytes=600)
        log.append(b"first", sync=True)
        writer_of(log).housekeeping.write_checkpoints()
        for number in range(16):
            log.append(b"%d" % number)
        begun = disk.step
        assert log.apply_retention()
        log.close()
    into = tmp_path / "images"
    into.mkdir()
    for step, plan, image in disk.crash_images(into, PLANS[0], PLANS[-1], since=begun):
        with kstore.Log.open(image / "events-0", clock=clock) as log:
            found = [record.offset for record in log.read()]
            assert found == list(range(log.log_start_offset, log.log_end_offset)), (step, plan)
            assert log.append(b"after") == log.log_end_offset - 1


@pytest.mark.parametrize(("deleted", "cut", "in_store"), [(6, 3, False), (6, 5, False), (6, 0, False), (6, 3, True)])
def test_a_power_cut_while_a_truncation_lowers_the_log_start_leaves_a_sound_log(
    root: Path, tmp_path: Path, clock: ManualClock, deleted: int, cut: int, in_store: bool
) -> None:
    """SEMANTICS 11.2: the lower log start is in its file before a recovery point that is below the higher one."""
    small: dict[str, Any] = {"segment_bytes": 150, "segment_index_bytes": 120}

    def opened(at: Path, mode: Literal["r", "a"] = "a") -> contextlib.AbstractContextManager[kstore.Log]:
        return kstore.Log.open(at / "events-0", mode, clock=clock, **small)

    @contextlib.contextmanager
    def of_store(at: Path) -> Iterator[kstore.Log]:
        with kstore.Store.open(at, clock=clock, background=False, **small) as store:
            if "events" not in store.topics:
                store.create_topic("events", 1)
            yield store.log("events", 0)

    with FaultFS(root) as disk, (of_store if in_store else opened)(root) as log:
        for number in range(12):
            log.append(b"%d" % number, sync=number == 11)
        log.run_housekeeping()
        log.delete_records(deleted)
        begun = disk.step
        log.truncate_to(cut)
        done = disk.step
        assert (log.log_start_offset, log.log_end_offset) == (cut, cut)
    into = tmp_path / "images"
    into.mkdir()
    for step, plan, image in disk.crash_images(into, LOST, KEPT, PLANS[-1], since=begun):
        if plan is KEPT:
            assert [each for each in verify([image]).findings if each.severity == "error"] == [], step
        with opened(image, "r") as reader:
            seen = (reader.log_start_offset, [record.offset for record in reader.read()])
        with (of_store if in_store else opened)(image) as log:
            found = [record.offset for record in log.read()]
            assert (log.log_start_offset, found) == seen, (step, plan)
            assert found == list(range(log.log_start_offset, log.log_end_offset)), (step, plan)
            assert log.log_start_offset in (cut, deleted), (step, plan)
            if step >= done:
                assert (log.log_start_offset, log.log_end_offset) == (cut, cut), (step, plan)
                break


@pytest.mark.parametrize("before", [2, 4, 5])
def test_a_power_cut_while_records_are_deleted_into_a_gap_leaves_a_log_that_opens(
    root: Path, tmp_path: Path, clock: ManualClock, before: int
) -> None:
    """SEMANTICS 11.11: no recovery point lies in a gap or in the batch behind it, where an opening would take it for
    damage."""
    with FaultFS(root) as disk, kstore.Log.open(root / "events-0", clock=clock) as log:
        log.append(b"0", sync=True)
        rows: list[Any] = [(None, b"%d" % number, clock(), ()) for number in (4, 5, 6)]
        log.append_as_follower(kstore.encode_batch(rows, base_offset=4, partition_leader_epoch=1))
        log.append(b"7")
        begun = disk.step
        log.delete_records(before)
        done = disk.step
    into = tmp_path / "images"
    into.mkdir()
    for step, plan, image in disk.crash_images(into, LOST, KEPT, PLANS[-1], since=begun):
        if plan is KEPT:
            assert [each for each in verify([image]).findings if each.severity == "error"] == [], step
        with kstore.Log.open(image / "events-0", clock=clock) as log:
            found = [record.offset for record in log.read()]
            whole = [offset for offset in (0, 4, 5, 6, 7) if offset >= log.log_start_offset]
            assert found == whole[: len(found)], (step, plan)
            if step >= done:
                assert (log.log_start_offset, found) == (before, whole), (step, plan)
                break


def opens_with(partition: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of an opening that follow the partition's path."""
    caplog.clear()
    kstore.Log.open(partition).close()
    return [message.removeprefix(f"{partition}: ") for message in caplog.messages]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_first_segment_that_is_missing_is_told(
    log: kstore.Log, partition: Path, is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (segment.base_offset for segment in log.segments[:2])
    log.close()
    if not is_closed:
        (partition.parent / checkpoint.CLEAN_MARKER).unlink(missing_ok=True)
        (partition.parent / checkpoint.RECOVERY_POINTS).unlink()
    assert opens_with(partition, caplog) == []
    for path in partition.glob(f"{first:020}.*"):
        path.unlink()
    told = [
        f"begins at offset {second}, and its leader epochs at {first}: a first segment is missing, or a crash came at "
        "its deletion"
    ]
    assert opens_with(partition, caplog) == told
    assert opens_with(partition, caplog) == told  # until it is mended
    with kstore.Log.open(partition) as log:
        log.delete_records(second + 1)
    assert opens_with(partition, caplog) == []


@pytest.mark.parametrize("way", ["retention", "delete_records", "truncate_fully_and_start_at"])
def test_what_was_deleted_is_not_told_as_missing_after_a_kill_at_any_moment(
    way: str, root: Path, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultFS(root) as disk:
        log = kstore.Log.open(root / "events-0", clock=clock, segment_bytes=500, retention_bytes=300)
        for number in range(12):
            log.append(b"%d" % number)
        log.flush()
        begun = disk.step
        if way == "truncate_fully_and_start_at":
            log.truncate_fully_and_start_at(90, log_start_offset=80)
            log.append(b"after")
        else:
            if way == "delete_records":
                log.delete_records(11)
            assert log.apply_retention()
        log.close()
    into = tmp_path / "images"
    into.mkdir()
    for step, plan, image in disk.crash_images(into, KEPT, since=begun):
        kstore.Log.open(image / "events-0", clock=clock).close()
        assert "segment is missing" not in caplog.text, (step, plan)


def test_a_closed_log_that_begins_anew_at_its_start_has_a_snapshot_there(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 8.11, 9.26: as in Kafka after a shutdown in order."""
    log = kstore.Log.open(partition, clock=clock)
    for _ in range(2):
        log.append_many([b"value"] * 10, atomic=True)
    log.delete_records(15)
    log.truncate_to(17)  # cuts the whole batch: the data ends at 10
    log.close()
    with kstore.Log.open(partition, clock=clock) as again:
        assert (again.log_start_offset, again.log_end_offset) == (15, 15)
        assert [path.name for path in partition.glob("*.snapshot")] == [f"{15:020}.snapshot"]
        again.append(b"value")
    with kstore.Log.open(partition, clock=clock, mode="r") as reader:
        assert [record.offset for record in reader.read()] == [15]
    assert [each for each in verify([partition.parent]).findings if each.severity == "error"] == []
