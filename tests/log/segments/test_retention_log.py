"""Retention on real logs: what goes from the directory and when, what readers see of it, and what a failure leaves."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

import kstore
from kstore.log.hosted_log import HostedLog
from kstore.log.reading import log_reader
from tests.conftest import ManualClock
from tests.golden import goldenlogs
from tests.golden.goldenlogs import Partition
from tests.kafka.cases.kafka_cases import bases, batch, epochs, offsets
from tests.support.batches import legacy
from tests.support.faultfs import LOST, Fate, FaultFS, Plan, shuffled

NOW = 1_700_000_000_000
TORN = Plan("TORN", lambda _: Fate.ZEROS, lambda _: False)  # old names, and zeros where bytes had not been synced
RECORD = 100  # the size of every batch that `fill` appends


pytestmark = pytest.mark.usefixtures("no_syncs")  # what is on the disk is the crash images' business


def fill(log: kstore.Log, count: int, timestamp: int | None = None) -> None:
    """Append records whose batches have exactly RECORD bytes."""
    for _ in range(count):
        log.append(bytes(RECORD - 61 - 7), timestamp=timestamp)


def opened(path: Path, clock: ManualClock, **settings: object) -> kstore.Log:
    common = {"segment_bytes": 5 * RECORD, "segment_index_bytes": 240, "file_delete_delay_ms": 60_000}
    return kstore.Log.open(path, clock=clock, **{**common, **settings})


def three(path: Path, clock: ManualClock, **settings: object) -> kstore.Log:
    """A log of segments 0, 5 and 10, each of five records."""
    log = opened(path, clock, **settings)
    fill(log, 15)
    assert bases(log) == [0, 5, 10]
    return log


def names(path: Path, suffix: str = "") -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name.endswith(suffix))


def of(base: int, *kinds: str, deleted: bool = True) -> set[str]:
    return {f"{base:020d}.{kind}{'.deleted' * deleted}" for kind in kinds}


def went(gone: list[kstore.SegmentInfo]) -> list[int]:
    return [segment.base_offset for segment in gone]


# What goes.


def test_old_segments_are_renamed_at_once_and_unlinked_after_the_delay(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.11 to 6.13."""
    with three(partition, clock, retention_bytes=700) as log:
        before = {path: path.read_bytes() for path in partition.iterdir()}
        [gone] = log.apply_retention()
        assert gone == kstore.SegmentInfo(0, 5, 500, 0, 1, clock.now, clock.now, False, gone.path, None)
        assert gone.path == str(partition / "00000000000000000000.log")
        assert (log.log_start_offset, log.log_end_offset, bases(log)) == (5, 15, [5, 10])
        assert set(names(partition, ".deleted")) == of(0, "log", "index", "timeindex")
        for path in partition.glob("*.deleted"):
            assert path.read_bytes() == before[path.with_suffix("")]
        clock.advance(59_999)
        log.run_housekeeping()
        assert len(names(partition, ".deleted")) == 3
        clock.advance(1)
        log.run_housekeeping()
        assert names(partition, ".deleted") == []


def test_the_snapshot_at_a_deleted_base_goes_with_its_segment(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.11."""
    with three(partition, clock, retention_bytes=500) as log:
        assert went(log.apply_retention()) == [0, 5]
        assert of(5, "log", "index", "timeindex", "snapshot") < set(names(partition, ".deleted"))
        assert names(partition, ".snapshot") == ["00000000000000000010.snapshot"]


def test_a_second_pass_finds_nothing(partition: Path, clock: ManualClock) -> None:
    with three(partition, clock, retention_bytes=700) as log:
        assert went(log.apply_retention()) == [0]
        assert log.apply_retention() == []
        assert log.plan_retention() == []


@pytest.mark.parametrize(("age", "left"), [(999, [0, 5, 10]), (1000, [0, 5, 10]), (1001, [15])])
def test_a_log_that_is_wholly_expired_keeps_one_empty_segment_at_its_end(
    partition: Path, clock: ManualClock, age: int, left: list[int]
) -> None:
    """SEMANTICS 6.5, 6.9: an idle active segment goes too, and the next record gets the next offset."""
    with three(partition, clock, retention_ms=1000) as log:
        clock.advance(age)
        log.apply_retention()
        assert bases(log) == left
        assert (log.log_start_offset, log.log_end_offset) == (left[0], 15)
        if left == [15]:
            assert log.segments[0].roll_reason == "retention"
            assert list(log.read()) == []
        assert log.append(b"next") == 15
        assert log.apply_retention() == []
    with opened(partition, clock, retention_ms=1000) as log:
        assert (log.log_start_offset, log.log_end_offset) == (left[0], 16)


def test_an_empty_log_has_nothing_to_lose(partition: Path, clock: ManualClock) -> None:
    with opened(partition, clock, retention_ms=0, retention_bytes=0) as log:
        clock.advance(10**9)
        assert log.apply_retention() == []
        fill(log, 1, clock.now - 1)
        assert went(log.apply_retention()) == [0]
        assert log.apply_retention() == []
        assert bases(log) == [1]


def test_one_late_record_keeps_its_segment_after_a_restart_too(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.6: from memory, or from the last time-index entry."""
    log = opened(partition, clock, retention_ms=1000)
    fill(log, 3, NOW - 5000)
    fill(log, 1, NOW)
    fill(log, 6, NOW - 5000)
    clock.now = NOW + 1000
    assert log.apply_retention() == []
    log.close()
    with opened(partition, clock, retention_ms=1000) as log:
        assert log.apply_retention() == []
        clock.advance(1)
        assert went(log.apply_retention()) == [0, 5]


def test_a_record_from_the_future_pins_the_log_and_a_logger_of_its_own_says_so(
    partition: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SEMANTICS 6.6, 1.17: a leader takes an hour ahead."""
    with opened(partition, clock, retention_ms=1000) as log:
        fill(log, 1, NOW + 3_600_000)
        fill(log, 9)
        clock.advance(3_600_000)
        assert log.apply_retention() == []
        assert caplog.records == []
        clock.advance(-1)
        assert log.apply_retention() == []
        [record] = caplog.records
        assert (record.name, record.levelno) == ("kstore.future", logging.WARNING)
        assert "segment 0 stays" in record.message
        assert "1 ms ahead of the clock" in record.message
        clock.advance(1002)
        assert went(log.apply_retention()) == [0, 5]


def test_segments_without_timestamps_age_by_their_file(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.6: batches of format 0, and batches whose records have none."""
    with opened(partition, clock, retention_ms=1000, segment_bytes=200) as log:
        log.append_as_follower(legacy(0, b"x" * 100, offset=0))
        log.append_as_follower(legacy(0, b"x" * 100, offset=1))
        log.append(bytes(100), timestamp=-1)
        assert bases(log) == [0, 1, 2]
        assert log.max_timestamp() is None
        for base, age in ((0, 1001), (1, 1000), (2, 5000)):
            ns = (NOW - age) * 1_000_000
            os.utime(partition / f"{base:020d}.log", ns=(ns, ns))
        [planned] = log.plan_retention()
        assert (planned.reason, planned.largest_timestamp) == ("time", NOW - 1001)
        assert went(log.apply_retention()) == [0]
        clock.advance(1)
        assert went(log.apply_retention()) == [1, 2]


@pytest.mark.parametrize("policy", ["compact", ""])
def test_a_policy_without_delete_takes_only_what_lies_below_the_log_start(
    partition: Path, clock: ManualClock, policy: str
) -> None:
    """SEMANTICS 6.1, 6.1a, 6.18."""
    with three(partition, clock) as log:
        log.delete_records(7)
        log.update_config(cleanup_policy=policy, retention_ms=0, retention_bytes=0)
        clock.advance(1)
        assert went(log.apply_retention()) == [0]
        assert (log.log_start_offset, bases(log)) == (7, [5, 10])


def test_settings_are_read_at_each_pass(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 13.13."""
    with three(partition, clock) as log:
        assert log.apply_retention() == []
        log.update_config(retention_bytes=1000)
        assert went(log.apply_retention()) == [0]
        log.update_config(retention_bytes=-1, file_delete_delay_ms=0)
        assert log.apply_retention() == []
        log.update_config(retention_bytes=500)
        assert went(log.apply_retention()) == [5]
        log.run_housekeeping()
        assert set(names(partition, ".deleted")) == of(0, "log", "index", "timeindex")  # its delay was longer


def test_leader_epochs_are_trimmed_to_the_log_start(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.10, 10.7."""
    with opened(partition, clock, retention_bytes=500) as log:
        for base in range(15):
            log.append_as_follower(batch(base, bytes(RECORD - 61 - 7), epoch=base // 4, timestamp=NOW))
        assert epochs(partition) == [(0, 0), (1, 4), (2, 8), (3, 12)]
        assert went(log.apply_retention()) == [0, 5]
        assert epochs(partition) == [(2, 10), (3, 12)]


def test_leftovers_of_a_deletion_are_removed_at_the_next_opening(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.15."""
    with three(partition, clock, retention_bytes=500) as log:
        log.apply_retention()
        left = names(partition, ".deleted")
        assert len(left) == 7
    with opened(partition, clock) as log:
        assert log.recovery.leftovers_removed == left
        assert names(partition, ".deleted") == []
        assert (log.log_start_offset, log.log_end_offset) == (10, 15)


def test_a_leftover_of_the_same_name_is_overwritten(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.14."""
    with three(partition, clock, retention_bytes=700) as log:
        (partition / "00000000000000000000.log.deleted").write_bytes(b"old")
        log.apply_retention()
        assert (partition / "00000000000000000000.log.deleted").stat().st_size == 500


# A plan.


def test_a_plan_changes_nothing_and_comes_true(partition: Path, clock: ManualClock) -> None:
    with three(partition, clock, retention_bytes=700) as log:
        before = {path: path.read_bytes() for path in partition.parent.rglob("*") if path.is_file()}
        plan = log.plan_retention()
        assert [(d.base_offset, d.next_offset, d.size_bytes, d.reason) for d in plan] == [(0, 5, 500, "size")]
        assert plan[0].explanation == "the log holds 1500 bytes, 1000 without it, and retention.bytes keeps 700"
        outlook = log.retention_outlook()
        assert outlook is not None
        assert (outlook.base_offset, outlook.bytes_left, outlook.due_ms) == (5, 200, None)
        assert {path: path.read_bytes() for path in partition.parent.rglob("*") if path.is_file()} == before
        assert went(log.apply_retention()) == [d.base_offset for d in plan]
        fill(log, 2)
        assert went(log.apply_retention()) == [5]


@pytest.mark.parametrize("live", [True, False])
def test_a_reader_in_another_process_can_plan(partition: Path, clock: ManualClock, live: bool) -> None:
    log = three(partition, clock)
    log.delete_records(6)
    if not live:
        log.close()
    with kstore.Log.open(partition, mode="r", clock=clock, retention_ms=1000) as reader:
        assert [(d.base_offset, d.reason) for d in reader.plan_retention()] == [(0, "log_start")]
        clock.advance(1001)
        assert [(d.base_offset, d.reason) for d in reader.plan_retention()] == [
            (0, "log_start"), (5, "time"), (10, "time"),
        ]  # fmt: skip
        assert reader.retention_outlook() is None
        with pytest.raises(ValueError, match="mode='r'"):
            reader.apply_retention()
    log.close()


def test_without_settings_nothing_ever_goes(partition: Path, clock: ManualClock) -> None:
    """An embedded log must not empty itself overnight."""
    with three(partition, clock) as log:
        clock.advance(10**12)
        assert log.plan_retention() == []
        assert log.apply_retention() == []
        outlook = log.retention_outlook()
        assert outlook is not None
        assert (outlook.due_ms, outlook.bytes_left) == (None, None)


def test_a_closed_log_says_so(partition: Path, clock: ManualClock) -> None:
    log = three(partition, clock, retention_bytes=0)
    log.close()
    for ask in (log.apply_retention, log.plan_retention, log.retention_outlook):
        with pytest.raises(kstore.LogClosedError):
            ask()


# What readers see.


@pytest.mark.parametrize("take", [1, 4, 5])
def test_an_iterator_that_is_overtaken_says_where_the_log_starts_now(
    partition: Path, clock: ManualClock, take: int
) -> None:
    """With both marks; one at the border goes on."""
    with three(partition, clock, retention_bytes=1000) as log:
        reader = log.read()
        found = [next(reader).offset for _ in range(take)]
        assert went(log.apply_retention()) == [0]
        if take == 5:
            assert [*found, *offsets(reader)] == list(range(15))
            return
        with pytest.raises(kstore.OffsetOutOfRangeError) as caught:
            next(reader)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (5, 15)
        assert offsets(log.read(caught.value.log_start_offset)) == list(range(5, 15))


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_read_that_begins_where_a_segment_just_goes_skips_nothing(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Between the check of the offset and the first look at the guard."""
    with three(partition, clock, retention_bytes=700) as log:
        reader = log if mode == "a" else kstore.Log.open(partition, mode="r")
        open_reader = log_reader.open_reader

        def overtaken(*arguments: object, **named: object) -> object:
            made = open_reader(*arguments, **named)  # type: ignore[arg-type]
            log.apply_retention()
            reader.segments  # noqa: B018 - have a reader of another process look
            return made

        monkeypatch.setattr(log_reader, "open_reader", overtaken)
        found = reader.read(2)
        with pytest.raises(kstore.OffsetOutOfRangeError) as caught:
            next(found)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (5, 15)
        assert offsets(reader.read(7)) == list(range(7, 15))
        reader.close()


def test_a_reader_in_another_process_is_told_too(partition: Path, clock: ManualClock) -> None:
    with three(partition, clock, retention_bytes=700) as log, kstore.Log.open(partition, mode="r") as outside:
        behind, ahead = outside.read(), outside.read(7)
        assert (next(behind).offset, next(ahead).offset) == (0, 7)
        log.apply_retention()
        assert outside.log_start_offset == 5
        assert offsets(ahead) == list(range(8, 15))
        with pytest.raises(kstore.OffsetOutOfRangeError) as caught:
            list(behind)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (5, 15)


def test_what_was_handed_out_stays(partition: Path, clock: ManualClock, tmp_path: Path) -> None:
    with three(partition, clock, retention_bytes=700) as log:
        fetched = log.fetch(1, 1000)
        expected = bytes(fetched.records)
        log.apply_retention()
        clock.advance(60_000)
        log.run_housekeeping()
        assert bytes(fetched.records) == expected
        with open(tmp_path / "out", "wb") as out:
            assert fetched.send_to(out) == len(expected)
        assert (tmp_path / "out").read_bytes() == expected


def test_lookups_by_time_find_what_is_left(partition: Path, clock: ManualClock) -> None:
    with opened(partition, clock, retention_bytes=700) as log:
        for number in range(15):
            fill(log, 1, NOW + 100 - number)
        assert log.max_timestamp() == (NOW + 100, 0)
        log.apply_retention()
        assert log.max_timestamp() == (NOW + 95, 5)
        found = log.offset_for_timestamp(NOW)
        assert found is not None
        assert found.offset == 5
        assert log.offset_for_timestamp(NOW + 96) is None


# The disk.


def lines(root: Path, name: str = "log-start-offset-checkpoint") -> list[str]:
    path = root / name
    return path.read_text().splitlines()[2:] if path.exists() else []


def test_the_log_start_is_on_the_disk_before_the_first_file_is_renamed(root: Path, clock: ManualClock) -> None:
    with FaultFS(root) as disk:
        log = three(root / "events-0", clock, retention_bytes=700)
        disk.fail("rename", path="*.log")
        with pytest.raises(kstore.StorageError):
            log.apply_retention()
        assert lines(root) == ["events 0 5"]
        assert (log.log_start_offset, bases(log)) == (5, [0, 5, 10])
        assert log.append(b"on it goes") == 15
        assert [d.reason for d in log.plan_retention()] == ["log_start"]
        assert went(log.apply_retention()) == [0]
        assert lines(root) == ["events 0 5"]  # until a sync covers the renames
        log.flush()
        clock.advance(60_000)
        log.run_housekeeping()
        assert lines(root) == []
        log.close()


def test_a_start_that_cannot_be_written_keeps_the_segments(root: Path, clock: ManualClock) -> None:
    with FaultFS(root) as disk:
        log = three(root / "events-0", clock, retention_bytes=700)
        disk.fail("pwrite", path="*log-start-offset-checkpoint*", error=errno.EIO)
        with pytest.raises(kstore.StorageError):
            log.apply_retention()
        assert names(root / "events-0", ".deleted") == []
        assert went(log.apply_retention()) == [0]
        log.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_where_retention_is_wanted_most(root: Path, clock: ManualClock, number: int) -> None:
    """What cannot be written is done without: each rename is durable before the next, so that no gap can be."""
    with FaultFS(root) as disk:
        log = three(root / "events-0", clock, retention_bytes=500)
        disk.fail("pwrite", error=number, times=-1)
        disk.fail("open", error=number, times=-1)
        assert went(log.apply_retention()) == [0, 5]
        assert lines(root) == []
        clock.advance(60_000)
        log.run_housekeeping()
        assert names(root / "events-0", ".deleted") == []
        disk.heal()
        fill(log, 1)
        assert offsets(log.read()) == list(range(10, 16))
        log.close()
    with opened(root / "events-0", clock) as log:
        assert (log.log_start_offset, log.log_end_offset) == (10, 16)


def test_without_room_for_a_new_segment_the_active_one_stays(root: Path, clock: ManualClock) -> None:
    with FaultFS(root) as disk:
        log = three(root / "events-0", clock, retention_ms=1000)
        clock.advance(1001)
        disk.fail("open", path="*15.log", error=errno.ENOSPC, times=-1)
        assert went(log.apply_retention()) == [0, 5]
        with pytest.raises(kstore.StorageError):
            log.apply_retention()
        assert offsets(log.read()) == list(range(10, 15))
        disk.heal()
        assert went(log.apply_retention()) == [10]
        log.close()


@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "snapshot"])
@pytest.mark.parametrize("which", [0, 5, 10])
def test_a_rename_that_fails_leaves_a_log_that_goes_on(root: Path, clock: ManualClock, kind: str, which: int) -> None:
    if (kind, which) == ("snapshot", 0):
        return  # there is none
    path = root / "events-0"
    with FaultFS(root) as disk:
        log = opened(path, clock, retention_bytes=500)
        fill(log, 20)
        disk.fail("rename", path=f"*{which:02d}.{kind}")
        with pytest.raises(kstore.StorageError):
            log.apply_retention()
        assert log.log_start_offset == 15
        fill(log, 1)
        assert offsets(log.read()) == list(range(15, 21))
        log.apply_retention()
        assert bases(log) == [15, 20]
        log.close()
    with opened(path, clock) as log:
        assert names(path, ".deleted") == []
        assert (bases(log), log.log_start_offset, log.log_end_offset) == ([15, 20], 15, 21)
        assert set(names(path, ".log")) == of(15, "log", deleted=False) | of(20, "log", deleted=False)


def test_readers_and_appends_go_on_while_segments_go(partition: Path, rng: random.Random) -> None:
    """Threads with the system's clock: a reader gets every record in order, or an error with the log start."""
    begin, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    with kstore.Log.open(partition, segment_bytes=2000, segment_index_bytes=240, retention_bytes=6000,
                         file_delete_delay_ms=0) as log:  # fmt: skip

        def read() -> None:
            try:
                begin.wait()
                offset, told = 0, 0
                while not stop.is_set() or told == 0:
                    try:
                        for record in log.read(offset):
                            assert record.offset == offset
                            assert record.value == b"%d" % offset
                            offset += 1
                            if offset % 97 == 0:
                                time.sleep(0.001)
                    except kstore.OffsetOutOfRangeError as error:
                        before, offset, told = offset, error.log_start_offset, told + 1
                    else:
                        time.sleep(0.001)  # at the end: let the appender have the interpreter
                        continue
                    assert before < offset
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        count = gone = 0
        ends = time.monotonic() + 120
        while (gone < 100 or any(t.is_alive() for t in threads)) and not failures and time.monotonic() < ends:
            for _ in range(rng.randint(1, 100)):
                assert log.append(b"%d" % count) == count
                count += 1
            gone += len(log.apply_retention())
            if gone > 0:
                begin.set()  # so that each reader is told at least once where the log starts
            if gone >= 100:
                stop.set()
        begin.set()
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        log.run_housekeeping()
        assert offsets(log.read()) == list(range(log.log_start_offset, count))
        assert names(partition, ".deleted") == []


@pytest.mark.parametrize(
    "case", ["by size", "all", "all, as after a close", "all, and a checkpoint", "below the start", "full disk"]
)
def test_a_power_cut_at_any_step_leaves_all_that_was_flushed_and_not_deleted(
    root: Path, tmp_path: Path, clock: ManualClock, rng: random.Random, case: str
) -> None:
    path = root / "events-0"
    with FaultFS(root) as disk:
        log = opened(path, clock)
        fill(log, 18)
        log.flush()
        fill(log, 2)  # no roll asks for a flush
        if case == "all, as after a close":
            log.flush()
            HostedLog(log).writer.housekeeping.flush_indexes()
            HostedLog(log).writer.housekeeping.write_checkpoints()
        begun = disk.step
        log.update_config(retention_bytes={"by size": 800, "below the start": -1}.get(case, 0))
        if case == "below the start":
            log.delete_records(16)
        if case == "full disk":
            disk.fail("pwrite", path="*log-start-offset-checkpoint*", error=errno.ENOSPC)
        log.apply_retention()
        start = log.log_start_offset
        assert start == {"by size": 10, "below the start": 16}.get(case, 20)
        done = disk.step
        if case == "all, and a checkpoint":  # as a store's scheduler may write one at any moment
            HostedLog(log).writer.housekeeping.write_checkpoints()
        clock.advance(60_000)
        log.run_housekeeping()  # unlinks, flushes, checkpoints
        fill(log, 1)
        log.flush()
        flushed = ended = disk.step
        log.close()
    into = tmp_path / "images"
    into.mkdir()
    seen = set()
    for step, plan, image in disk.crash_images(into, LOST, TORN, shuffled(rng), since=begun):
        where = (step, plan)
        outside = None
        with kstore.Log.open(image / "events-0", mode="r") as reader, contextlib.suppress(kstore.CorruptRecordError):
            outside = offsets(reader.read())
        with opened(image / "events-0", clock) as found:
            first, end = found.log_start_offset, found.log_end_offset
            seen.add(first)
            there = offsets(found.read())
            assert there == sorted(there), where
            assert there == outside if outside is not None else found.recovery.segments_dropped, where
            # A disk that keeps later writes and loses earlier ones may take what was not flushed out of the middle.
            assert set(range(first, end)) - set(there) <= set(range(18, 20)), where
            assert (start if step >= done else 0) <= first <= start, where
            assert end >= (21 if step >= flushed else max(18, start) if step >= done else 18), where
            found.apply_retention()  # what lies below the start can go
            assert bases(found)[1:2] > [found.log_start_offset] or len(bases(found)) == 1, where
        if step == ended:
            break
    assert {0, start} <= seen


def test_a_recovery_point_does_not_rise_over_what_a_power_cut_may_bring_back(
    root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """The line of the log start is written, the renames are not synced: a torn segment that is back is no damage."""
    with FaultFS(root) as disk:
        log = opened(root / "events-0", clock, retention_bytes=0)
        for offset in range(3):
            log.append_as_follower(legacy(0, b"x" * 50, offset=offset))  # no epochs, whose file would sync the names
        log.flush()
        log.append_as_follower(legacy(0, b"x" * 50, offset=3))
        assert went(log.apply_retention()) == [0]
        HostedLog(log).writer.housekeeping.write_checkpoints()
        step = disk.step
        log.append(b"next", sync=True)
        synced = disk.step
        log.close()
    with opened(disk.crash_image(tmp_path / "torn", step, TORN) / "events-0", clock) as log:
        assert (log.log_start_offset, log.log_end_offset, list(log.read())) == (4, 4, [])
    with opened(disk.crash_image(tmp_path / "synced", synced, TORN) / "events-0", clock) as log:
        assert (log.log_start_offset, offsets(log.read())) == (4, [4])


# Beside what a broker did.


def golden_config(partition: Partition) -> kstore.LogConfig:
    """The topics' settings, with those that decide about deletion (`about.json`)."""
    own = {"by-bytes": {"retention_bytes": 9000}, "by-time": {"retention_ms": 345_600_000}}[partition.topic]
    return goldenlogs.config(partition).replace(file_delete_delay_ms=600_000, **own)


def golden_files(directory: Path) -> dict[str, bytes]:
    """All but the snapshots: these carry the state of producers, which kstore does not keep yet."""
    return {name: data for name, data in goldenlogs.files(directory).items() if ".snapshot" not in name}


@pytest.mark.parametrize("topic", ["by-bytes", "by-time"])
def test_what_a_broker_deleted_goes_and_what_it_left_is_left(topic: str, tmp_path: Path) -> None:
    """The golden set `retention`: `before`, one pass, `during`; closed, `after-shutdown`; opened, `after-restart`."""
    before = Partition("retention", f"before/{topic}-0")
    kafkas = goldenlogs.unpacked(before).parent
    root = goldenlogs.copy_root(before, tmp_path)
    directory = root / f"{topic}-0"
    during = golden_files(kafkas / "during" / f"{topic}-0")
    expected = sorted(int(name[:20]) for name in during if name.endswith(".log.deleted"))
    clock = ManualClock()
    log = kstore.Log.open(directory, config=golden_config(before), clock=clock)
    if topic == "by-time":
        # The set does not tell the broker's clock: it was later than this, and earlier than the next segment's turn.
        newest = {segment.base_offset: segment.max_timestamp for segment in log.segments}
        clock.now = newest.pop(expected[0]) + 345_600_000
        assert log.plan_retention() == []
        clock.now = newest[expected[-1]] + 345_600_001
        assert clock.now <= newest[next(base for base in newest if base > expected[-1])] + 345_600_000
    assert [deletion.base_offset for deletion in log.plan_retention()] == expected
    assert went(log.apply_retention()) == expected
    found = golden_files(directory)
    active = max(name[:20] for name in during if name.endswith(".log"))
    for files in (found, during):  # recovery has made the closing time entry, which a running broker has not
        files[f"{active}.timeindex"] = b""
    assert found == during
    shutil.copytree(root, tmp_path / "killed")
    log.close()
    assert golden_files(directory) == golden_files(kafkas / "after-shutdown" / f"{topic}-0")
    after = golden_files(kafkas / "after-restart" / f"{topic}-0")
    for left in (directory, tmp_path / "killed" / f"{topic}-0"):
        kstore.Log.open(left, config=golden_config(before), clock=clock).close()
        found = golden_files(left)
        for files in (found, after):
            files.pop("leader-epoch-checkpoint")  # each start of a broker adds an epoch
        assert found == after
        after["leader-epoch-checkpoint"] = b""
