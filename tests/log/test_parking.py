"""A parked log has no file open, and behaves like any other: the same bytes, rolls, readers and errors."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.disk import fs, openfiles
from kstore.log.writing import _appender
from tests.conftest import SEED, ManualClock
from tests.support.faultfs import LOST, FaultFS
from tests.support.parking import descriptors, park, tree, tree_without_directories, values, writer_of

START_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def budget_of_its_own() -> Iterator[None]:
    yield
    openfiles.set_limit(None)
    _appender.set_pwrite_hook(None)


# The same behaviour.

operation = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 300), st.integers(0, 40)),
    st.tuples(st.just("many"), st.integers(1, 30), st.integers(0, 40)),
    st.tuples(st.just("truncate"), st.integers(0, 60), st.just(0)),
    st.sampled_from([("roll", 0, 0), ("flush", 0, 0), ("read", 0, 0), ("delete", 0, 0), ("limits", 0, 0)]),
)


def perform(log: kstore.Log, clock: ManualClock, kind: str, size: int, wait: int) -> None:
    clock.advance(wait)
    if kind == "append":
        log.append(b"x" * size)
    elif kind == "many":
        log.append_many([b"y" * size] * 3, batch_bytes=200)
    elif kind == "truncate":
        log.truncate_to(max(log.log_end_offset - size, log.log_start_offset))
    elif kind == "roll":
        log.roll()
    elif kind == "flush":
        log.flush()
    elif kind == "read":
        for record in log.read():
            assert log.fetch(record.offset, 1).records
            found = log.offset_for_timestamp(record.timestamp)
            assert found is not None
            assert found.timestamp >= record.timestamp
    elif kind == "delete":
        log.delete_records((log.log_start_offset + log.log_end_offset) // 2)
    elif kind == "limits":
        log.update_config(segment_bytes=1500)


@given(operations=st.lists(st.tuples(operation, st.booleans()), max_size=30))
def test_a_log_that_was_parked_now_and_then_has_the_same_bytes_and_rolls(
    tmp_path_factory: pytest.TempPathFactory, no_syncs: None, operations: list[tuple[tuple[str, int, int], bool]]
) -> None:
    """SEMANTICS 2.2 to 2.6, 3.6: bytes since the last index entry, first timestamp, times and limits outlive the
    descriptors."""
    settings = {"segment_bytes": 2000, "index_interval_bytes": 150, "segment_index_bytes": 96, "segment_ms": 300}
    found = []
    for parking in (False, True):
        root = tmp_path_factory.mktemp("parked" if parking else "open")
        clock = ManualClock()
        states: list[Any] = []
        with kstore.Log.open(root / "events-0", clock=clock, **settings) as log:
            for (kind, size, wait), then_park in operations:
                perform(log, clock, kind, size, wait)
                if parking and then_park:
                    park(log)
                appender = writer_of(log).appender
                states.append((log.stats() | {"path": ""}, appender.since_index, appender.first_timestamp,
                               [segment.roll_reason for segment in log.segments]))  # fmt: skip
                if parking and then_park:
                    park(log)
            before = tree(root / "events-0")
        found.append((states, before, tree(root / "events-0"), tree_without_directories(root)))
    assert found[0] == found[1]


def test_a_roll_by_time_counts_from_the_same_batch_after_parking(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 2.3, 2.5: for records without a timestamp too, where the segment's own age counts."""
    with kstore.Log.open(partition, clock=clock, segment_ms=1000) as log:
        log.append(b"a", timestamp=-1)
        park(log)
        clock.advance(1000)
        log.append(b"b", timestamp=-1)
        park(log)
        assert len(log.segments) == 1
        clock.advance(1)
        log.append(b"c", timestamp=-1)
        assert [segment.roll_reason for segment in log.segments] == [None, "time"]


def test_jitter_drawn_for_a_segment_stays_its_own(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 2.6"""
    with kstore.Log.open(partition, clock=clock, segment_ms=10**6, segment_jitter_ms=10**6) as log:
        jitter = writer_of(log).active.jitter_ms
        first = log.append(b"a")
        park(log)
        clock.advance(10**6 - jitter)
        log.append(b"b")
        park(log)
        assert len(log.segments) == 1
        clock.advance(1)
        log.append(b"c")
        assert len(log.segments) == 2
        assert first == 0


# Readers.


def test_a_parked_log_is_read_and_stays_parked(partition: Path) -> None:
    with kstore.Log.open(partition, index_interval_bytes=0) as log:
        expected = [b"%d" % number for number in range(50)]
        for number, value in enumerate(expected):
            log.append(value, timestamp=START_MS + number)
        park(log)
        assert values(log) == expected
        assert log.offset_for_timestamp(START_MS + 30) == (START_MS + 30, 30)
        assert log.max_timestamp() == (START_MS + 49, 49)
        assert bytes(log.fetch(20, 1).records)[61:] != b""
        assert log.segments[0].size_bytes == (partition / "00000000000000000000.log").stat().st_size
        assert log.segments[0].offset_index_entries == 49
        assert writer_of(log).appender.parked


def test_a_follower_of_a_parked_log_gets_what_is_appended(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"a")
        records = log.read(follow=True, timeout=60)
        assert next(records).value == b"a"
        assert writer_of(log).park()
        thread = threading.Thread(target=lambda: log.append(b"b"))
        thread.start()
        assert next(records).value == b"b"
        thread.join()


def test_a_reader_never_sees_less_than_there_was_when_it_began(partition: Path) -> None:
    """Parking hands what is published from the appender to the segment, and back."""
    stop = threading.Event()
    wrong: list[object] = []
    with kstore.Log.open(partition) as log:
        log.append(b"0")

        def look() -> None:
            try:
                while not stop.is_set():
                    end = log.log_end_offset
                    found = [record.offset for record in log.read(max(end - 20, 0))]
                    if found[-1] < end - 1:
                        wrong.append((found, end))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1, 600):
            log.append(b"%d" % number)
            if number % 3 == 0:
                writer_of(log).park()
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert values(log) == [b"%d" % number for number in range(600)]


# What brings it back.


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.append(b"new"),
        lambda log: log.append(b"new", headers=[("a", b"b")]),
        lambda log: log.append_many([b"new"]),
        lambda log: log.append(b"new", sync=True),
        lambda log: log.append_as_follower(
            kstore.encode_batch([(None, b"new", START_MS, ())], base_offset=3, partition_leader_epoch=0)
        ),
        lambda log: log.roll(),
        lambda log: log.truncate_to(1),
        lambda log: log.truncate_fully_and_start_at(70),
        lambda log: log.delete_records(2),
        lambda log: log.update_config(segment_bytes=5000),
        lambda log: log.flush(),
    ],
)
def test_whatever_changes_a_parked_log_does_what_it_does_otherwise(
    tmp_path: Path, clock: ManualClock, change: Callable[[kstore.Log], object]
) -> None:
    found = []
    for parking in (False, True):
        path = tmp_path / str(parking) / "events-0"
        with kstore.Log.open(path, clock=clock) as log:
            for number in range(3):
                log.append(b"%d" % number)
            if parking:
                park(log)
            change(log)
            during = values(log), log.log_start_offset, tree(path)
        found.append((during, tree(path), tree_without_directories(path.parent)))
    assert found[0] == found[1]


def test_a_parked_log_closes_as_any_other(tmp_path: Path, clock: ManualClock) -> None:
    for parking in (False, True):
        path = tmp_path / str(parking) / "events-0"
        with kstore.Log.open(path, clock=clock) as log:
            log.append(b"a")
            if parking:
                park(log)
    assert tree(tmp_path / "False" / "events-0") == tree(tmp_path / "True" / "events-0")
    with kstore.Log.open(tmp_path / "True" / "events-0") as log:
        assert log.recovery.clean
        assert not writer_of(log).appender.parked


def test_parking_changes_no_byte(partition: Path) -> None:
    with kstore.Log.open(partition, index_interval_bytes=0) as log:
        for number in range(10):
            log.append(b"%d" % number)
        before = tree(partition)
        park(log)
        assert tree(partition) == before


def test_a_log_parks_once_and_a_closed_one_never(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        writer = writer_of(log)
        assert writer.park()
        assert writer.holds() == 0
        assert writer.park()
        log.append(b"x")
        assert writer.holds() == 3
        with writer.mutex:
            assert not writer.park()
    assert writer.park()
    assert writer.holds() == 0
    with pytest.raises(kstore.LogClosedError):
        log.append(b"y")


@pytest.mark.parametrize("failing", range(3))
def test_a_file_that_cannot_be_opened_again_fails_the_append_and_no_more(
    partition: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Too many open files in the process are no failing disk: none is reported, and the log goes on later."""
    heard: list[object] = []
    with kstore.Log.open(partition) as log:
        writer_of(log).on_storage_error = heard.append
        log.append(b"a")
        log.flush()
        park(log)
        calls = itertools.count()
        open_file = fs.open

        def refused(path: str, **how: bool) -> int:
            if next(calls) == failing:
                raise kstore.StorageError(errno.EMFILE, "Too many open files", path)
            return open_file(path, **how)

        monkeypatch.setattr(fs, "open", refused)
        with pytest.raises(kstore.StorageError, match="Too many"):
            log.append(b"b")
        monkeypatch.setattr(fs, "open", open_file)
        assert log.log_end_offset == 1
        park_again = descriptors(log)
        assert not any("index" in name for name in park_again)
        log.append(b"c")
        assert values(log) == [b"a", b"c"]
        assert heard == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_log_that_is_parked_at_a_fork_is_closed_in_the_child(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"a")
        park(log)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                log.append(b"x")
            except kstore.LogClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        log.append(b"b")
        assert values(log) == [b"a", b"b"]


# What is owed to the disk.


def test_what_a_parked_log_owes_is_flushed_later(root: Path, partition: Path, tmp_path: Path) -> None:
    with FaultFS(root) as disk, kstore.Log.open(partition, index_interval_bytes=0) as log:
        for number in range(10):
            log.append(b"%d" % number)
        assert writer_of(log).park()
        log.flush()
        writer_of(log).housekeeping.flush_indexes()
        assert writer_of(log).appender.parked
        image = disk.crash_image(tmp_path / "image", plan=LOST)
    with kstore.Log.open(image / "events-0", mode="r") as log:
        assert values(log) == [b"%d" % number for number in range(10)]
        assert log.segments[0].offset_index_entries == 9


def test_a_log_file_that_was_not_flushed_stays_open_until_it_was_synced(root: Path, partition: Path) -> None:
    """A later failure of a write is reported to each open descriptor; without one the failure may be forgotten."""
    with FaultFS(root) as disk, kstore.Log.open(partition) as log:
        log.append(b"a")
        assert writer_of(log).park()
        assert descriptors(log) == ["00000000000000000000.log"]
        before = disk.calls["fdatasync"]
        writer_of(log).active.let_go()
        assert disk.calls["fdatasync"] == before + 1
        assert descriptors(log) == []
        log.append(b"b")
        log.flush()
        before = disk.calls["fdatasync"]
        park(log)
        assert disk.calls["fdatasync"] == before


def test_a_write_that_failed_while_a_log_was_parked_is_told_by_its_flush(root: Path, partition: Path) -> None:
    heard: list[kstore.StorageError] = []
    with FaultFS(root) as disk:
        log = kstore.Log.open(partition)
        writer_of(log).on_storage_error = heard.append
        log.append(b"a")
        assert writer_of(log).park()
        disk.fail("fdatasync", path="*.log")
        with pytest.raises(kstore.StorageError):
            writer_of(log).active.let_go()
        disk.heal()
        log.append(b"b")
        with pytest.raises(kstore.StorageError):
            log.flush()
        with pytest.raises(kstore.StorageError, match="refuses writes"):
            log.append(b"c")
        assert len(heard) == 1
        log.close()


# The budget.


def open_logs(root: Path, count: int, **settings: Any) -> list[kstore.Log]:
    return [kstore.Log.open(root / f"events-{number}", **settings) for number in range(count)]


def test_more_logs_are_written_than_may_have_files_open(root: Path, no_syncs: None) -> None:
    openfiles.set_limit(40)
    logs = open_logs(root, 60, index_interval_bytes=0)
    choose = random.Random(f"{SEED}:5")
    expected: list[list[bytes]] = [[] for _ in logs]
    for number in range(1000):
        at = choose.randrange(60)
        value = b"%d" % number
        logs[at].append(value)
        expected[at].append(value)
        assert openfiles.held() <= 40
    for log, wanted in zip(logs, expected, strict=True):
        assert values(log) == wanted
    for log in logs:
        log.close()
    for number, wanted in enumerate(expected):
        with kstore.Log.open(root / f"events-{number}") as log:
            assert log.recovery.clean
            assert values(log) == wanted


def test_the_log_that_is_appended_to_keeps_its_files(root: Path, no_syncs: None) -> None:
    openfiles.set_limit(40)
    logs = open_logs(root, 60)
    busy = writer_of(logs[7])
    logs[7].append(b"x")
    busy.was_used()
    times = itertools.count()
    resume = busy._resume
    busy._resume = lambda: (next(times), resume())  # type: ignore[method-assign, assignment, func-returns-value]
    for number in range(300):
        logs[7].append(b"x")
        logs[number % 60].append(b"y")
    assert next(times) == 0
    for log in logs:
        log.close()


def test_a_log_that_is_being_changed_is_not_parked(root: Path, no_syncs: None) -> None:
    openfiles.set_limit(12)
    first, *others = open_logs(root, 3)
    with writer_of(first).gate():
        more = open_logs(root / "more", 10)
        assert writer_of(first).appender.attached
    for log in (first, *others, *more):
        log.append(b"x")
        log.close()


def test_threads_that_write_more_logs_than_may_have_files_open_write_each_its_own(root: Path, no_syncs: None) -> None:
    """A descriptor that was closed under an append would be another log's file by then."""
    openfiles.set_limit(20)
    logs = open_logs(root, 24, index_interval_bytes=100, segment_bytes=3000)
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        choose = random.Random(f"{SEED}:{seed}")
        try:
            for number in range(250):
                at = choose.randrange(len(logs))
                if choose.random() < 0.7:
                    logs[at].append(b"%d %d %d" % (at, seed, number), timestamp=START_MS)
                elif choose.random() < 0.5:
                    logs[at].append_many([b"%d %d %d" % (at, seed, number) * 200] if number % 7 == 0 else [b"%d" % at])
                elif choose.random() < 0.5:
                    logs[at].flush()
                else:
                    for record in logs[at].read():
                        assert record.value is not None
                        assert record.value.split()[0] == b"%d" % at or record.value.startswith(b"%d" % at)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert openfiles.held() <= 20 + 2 * len(threads)  # each may have opened a log's files amid a sweep of another one
    openfiles.set_limit(20)
    assert openfiles.held() <= 20
    for at, log in enumerate(logs):
        assert all(record.value is not None and record.value.startswith(b"%d" % at) for record in log.read())
        log.close()
