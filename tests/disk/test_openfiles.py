"""One budget for all that logs keep open: what is closed, what stays open, and that none reads another's file."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kstore
from kstore.disk import openfiles
from kstore.disk.openfiles import LEAST
from kstore.files.index_file import OffsetIndex
from tests.conftest import SEED
from tests.support.faultfs import FaultFS

START_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def budget_of_its_own() -> Iterator[None]:
    gc.collect()  # what other tests' logs have left
    yield
    openfiles.set_limit(None)


class Thing:
    """A holder that only says what it was told."""

    listed = False

    def __init__(self, holds: int = 1) -> None:
        self.open = holds
        self.used = False
        self.busy = False

    def holds(self) -> int:
        return self.open

    def was_used(self) -> bool:
        used, self.used = self.used, False
        return used

    def let_go(self) -> None:
        if not self.busy:
            self.open = 0


def things(count: int, holds: int = 1) -> list[Thing]:
    made = [Thing(holds) for _ in range(count)]
    for thing in made:
        openfiles.opened(thing, holds)
    return made


def open_things(made: list[Thing]) -> list[int]:
    return [number for number, thing in enumerate(made) if thing.open]


def descriptors(of: Path) -> list[str]:
    """The files below a path that this process has open, or mapped."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            path = fd.readlink()
            if path.is_relative_to(of):
                found.append(path.name)
    return sorted(found)


def many_segments(partition: Path, segments: int, records: int = 4) -> None:
    """A closed log of so many segments of so many records, the timestamps a millisecond apart."""
    with kstore.Log.open(partition, index_interval_bytes=0, segment_index_bytes=4096) as log:
        for number in range(segments):
            for offset in range(number * records, (number + 1) * records):
                log.append(b"%d" % offset, timestamp=START_MS + offset)
            if number < segments - 1:
                log.roll()


# The budget.


def test_by_default_half_of_what_the_process_may_open_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openfiles, "_least_limit", None)  # a test before this may have used all descriptors
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
        assert openfiles.limit() == 500
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 20_000), before[1]))
        assert openfiles.limit() == min(before[1] // 2, openfiles.MOST_BY_DEFAULT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_limit_that_is_too_low_for_one_lookup_is_refused() -> None:
    with pytest.raises(ValueError, match=f"the least is {LEAST}"):
        openfiles.set_limit(LEAST - 1)
    openfiles.set_limit(LEAST)
    assert openfiles.limit() == LEAST


def test_what_is_held_never_exceeds_the_limit() -> None:
    openfiles.set_limit(100)
    made = []
    for _ in range(1000):
        made += things(1)
        assert openfiles.held() <= 100
    assert openfiles.held() > 90


def test_the_oldest_go_first() -> None:
    openfiles.set_limit(64)
    made = things(67)
    assert open_things(made) == list(range(3, 67))


def test_what_was_used_has_a_second_chance() -> None:
    openfiles.set_limit(64)
    made = things(64)
    for number in (0, 3):
        made[number].used = True
    made += things(3)
    assert open_things(made) == [0, 3, *range(5, 67)]


def test_where_all_was_used_the_oldest_go() -> None:
    openfiles.set_limit(64)
    made = things(64)
    for thing in made:
        thing.used = True
    made += things(1)
    assert open_things(made) == list(range(1, 65))


def test_the_newcomer_stays_whatever_it_takes() -> None:
    openfiles.set_limit(16)
    made = things(10)
    large = Thing(1000)
    openfiles.opened(large, 1000)
    assert large.open
    assert open_things(made) == []


def test_what_is_in_use_stays_and_the_limit_is_exceeded() -> None:
    openfiles.set_limit(16)
    made = things(16)
    for thing in made:
        thing.busy = True
    made += things(8)
    assert set(range(16)) <= set(open_things(made))


def test_what_has_died_counts_no_more() -> None:
    openfiles.set_limit(64)
    before = openfiles.held()
    made = things(10, holds=3)
    assert openfiles.held() == before + 30
    del made
    assert openfiles.held() == before


def test_what_has_died_is_forgotten_although_nothing_has_to_be_closed(partition: Path) -> None:
    """A process that opened and closed logs for ever kept a reference for each, and counted all of them each time."""
    openfiles.set_limit(None)
    for _ in range(300):
        with kstore.Log.open(partition, segment_index_bytes=1200) as log:
            log.append(b"v")
    gc.collect()
    assert len(openfiles._ring) < 300


class Asked(Thing):
    """One that counts how often it was asked what it holds."""

    asked = 0

    def holds(self) -> int:
        Asked.asked += 1
        return self.open


def test_what_holds_nothing_is_not_asked_again_until_it_opens_something() -> None:
    """However many logs are parked, a file that is opened beside them looks at none of them."""
    openfiles.set_limit(1000)
    parked = [Asked(0) for _ in range(300)]
    for thing in parked:
        openfiles.opened(thing, 0)
    for _ in range(20):
        things(64)
    assert Asked.asked <= 2 * len(parked)
    parked[7].open = 2 * LEAST
    openfiles.opened(parked[7], 2 * LEAST)
    openfiles.set_limit(LEAST)
    assert not parked[7].open


def test_what_was_let_go_and_is_opened_again_counts_again() -> None:
    openfiles.set_limit(64)
    made = things(65)
    assert not made[0].open
    openfiles.set_limit(100)
    before = openfiles.held()
    made[0].open = 1
    openfiles.opened(made[0])
    assert openfiles.held() == before + 1


def test_a_lower_limit_closes_at_once() -> None:
    openfiles.set_limit(1000)
    made = things(500)
    openfiles.set_limit(100)
    assert len(open_things(made)) <= 100


def test_a_limit_of_the_process_that_was_lowered_is_noticed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 4000), before[1]))
        openfiles.set_limit(None)
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
        made = things(350)
        assert len(open_things(made)) <= 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_interrupt_in_the_middle_of_closing_loses_no_holder() -> None:
    openfiles.set_limit(64)
    made = things(64)

    def interrupted() -> None:
        del made[0].let_go  # type: ignore[method-assign]
        raise KeyboardInterrupt

    made[0].let_go = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made += things(1)
    assert openfiles.held() >= 62
    openfiles.set_limit(LEAST)
    assert len(open_things(made)) <= LEAST


def test_a_disk_that_refuses_a_close_stops_no_other_close(caplog: pytest.LogCaptureFixture) -> None:
    openfiles.set_limit(16)
    made = things(16)

    def failing() -> None:
        raise kstore.StorageError(errno.EIO, "Input/output error", "a.log")

    made[0].let_go = failing  # type: ignore[method-assign]
    made += things(1)
    assert len(open_things(made)) <= 16
    assert "a.log" in caplog.text


# What logs hold.


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_log_of_many_segments_is_read_with_few_files_open(partition: Path, mode: str) -> None:
    many_segments(partition, 60)
    openfiles.set_limit(20)
    with kstore.Log.open(partition, mode=mode, segment_index_bytes=4096) as log:  # type: ignore[arg-type]
        order = list(range(240))
        random.Random(3).shuffle(order)
        for offset in order:
            found = log.offset_for_timestamp(START_MS + offset)
            assert found is not None
            assert found.offset == offset
            assert log.fetch(offset, 1).offset == offset
            assert len(descriptors(partition)) <= 21
        assert [record.offset for record in log.read()] == list(range(240))
        assert len(descriptors(partition)) <= 21
        assert openfiles.held() <= 20


def test_a_warm_segment_stays_open_while_others_come_and_go(partition: Path) -> None:
    many_segments(partition, 60)
    openfiles.set_limit(32)
    with kstore.Log.open(partition, mode="r") as log:
        first = log._view.segments.items[0]
        log.fetch(0, 1)
        file = first._file
        assert file is not None
        for offset in range(4, 240):
            log.fetch(offset, 1)
            log.fetch(0, 1)
        assert first._file is file


def test_a_private_copy_of_an_index_counts_by_its_size(partition: Path, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    entries = 640 * 1024 // 8
    offsets = np.arange(1, entries + 1, dtype=">i4")
    path.write_bytes(np.repeat(offsets, 2).tobytes())
    before = openfiles.held()
    index = OffsetIndex(path, 0, 10 << 20, writable=False)
    assert index.lookup(77) == (77, 77)
    assert openfiles.held() == before + 11
    index.let_go()
    assert openfiles.held() == before
    assert index.lookup(78) == (78, 78)
    assert index.entries == entries
    index.close()


def test_an_index_that_was_let_go_knows_what_it_knew(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "00000000000000000000.index", 0, 4096)
    index.grow()
    for number in range(1, 100):
        index.append(number, number)
        index.let_go()
        assert index.lookup(number) == (number, number)
        assert index.entries == number
    index.trim()
    index.let_go()
    assert (index.entries, index.max_entries, index.last) == (99, 99, (99, 99))
    index.close()


def test_an_iterator_in_the_middle_of_a_file_keeps_it(partition: Path) -> None:
    many_segments(partition, 40, records=50)
    openfiles.set_limit(LEAST)
    with kstore.Log.open(partition, mode="r") as log:
        iterators = [log.read(start, end_offset=start + 60) for start in range(0, 1900, 50)]
        for number in range(60):
            for start, iterator in zip(range(0, 1900, 50), iterators, strict=True):
                assert next(iterator).offset == start + number


def test_a_follower_that_waits_keeps_no_file_open(partition: Path) -> None:
    many_segments(partition, 1)
    with kstore.Log.open(partition, mode="r") as log:
        records = log.read(follow=True, timeout=0.01)
        assert len(list(records)) == 4
        log._view.segments.items[0].let_go()
        assert descriptors(partition) == []


def test_lookups_in_many_threads_find_their_own_files(partition: Path) -> None:
    """A number that was closed under a reader would mean another segment's file."""
    many_segments(partition, 40)
    openfiles.set_limit(LEAST)
    wrong: list[object] = []
    with kstore.Log.open(partition, segment_index_bytes=4096) as log:

        def look(seed: int) -> None:
            choose = random.Random(f"{SEED}:{seed}")
            try:
                for _ in range(300):
                    offset = choose.randrange(160)
                    found = log.offset_for_timestamp(START_MS + offset)
                    result = log.fetch(offset, 1)
                    if found is None or found.offset != offset or result.offset != offset:
                        wrong.append((offset, found, result.offset))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# What is owed to the disk.


def test_a_sealed_segment_is_synced_before_it_is_closed(root: Path, partition: Path) -> None:
    with FaultFS(root) as disk, kstore.Log.open(partition, clock=lambda: START_MS) as log:
        log.append(b"a" * 100)
        log.roll()
        sealed = log._view.segments.items[0]
        before = disk.calls["fdatasync"]
        sealed.let_go()
        assert disk.calls["fdatasync"] == before + 1
        assert sealed.holds() == 0
        assert sealed.file is not None
        sealed.let_go()
        assert disk.calls["fdatasync"] == before + 1


def test_a_sync_that_fails_while_a_file_is_closed_is_told_by_the_flush(root: Path, partition: Path) -> None:
    """The system tells of a failed write once: were it not kept, the flush would promise what is not on the disk."""
    heard: list[kstore.StorageError] = []
    with FaultFS(root) as disk:
        log = kstore.Log.open(partition, clock=lambda: START_MS)
        assert log._writer is not None
        log._writer.on_storage_error = heard.append
        log.append(b"a" * 100)
        log.roll()
        sealed = log._view.segments.items[0]
        disk.fail("fdatasync", path="*.log")
        with pytest.raises(kstore.StorageError):
            sealed.let_go()
        assert sealed.holds() == 1
        disk.heal()
        for _ in range(2):
            with pytest.raises(kstore.StorageError, match="Input/output error"):
                log.flush()
        assert len(heard) == 1
        assert log.stats()["recovery_point"] == 0
        log.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_logs_of_its_own(partition: Path) -> None:
    many_segments(partition, 20)
    openfiles.set_limit(16)
    with kstore.Log.open(partition) as log:
        list(log.read())
        index = log._view.segments.items[0].offset_index
        with index._lock:  # a lock that is never given back in the child
            openfiles._sweeping["by"] = object()
            try:
                child = os.fork()
                if child == 0:
                    signal.alarm(30)
                    with kstore.Log.open(partition, mode="r") as other:
                        right = [record.offset for record in other.read()] == list(range(80))
                    os._exit(0 if right and openfiles.held() <= 16 else 1)
            finally:
                del openfiles._sweeping["by"]
            assert os.waitpid(child, 0)[1] == 0


# No descriptor is left.

LOWERED = """
import os, resource, sys
import kstore

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
logs = [kstore.Log.open(f"{sys.argv[1]}/t-{number}") for number in range(int(sys.argv[2]))]
for log in logs:
    log.append(b"0")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
logs += [kstore.Log.open(f"{sys.argv[1]}/t-{number}") for number in range(len(logs), 30)]
for look in range(2):
    for log in logs:
        log.append(b"1")
        log.roll()
        assert [record.value for record in log.read()][-1] == b"1"
for log in logs:
    log.flush()
    log.close()
print("done")
"""

USED_UP = """
import os, resource, sys
import kstore

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
with kstore.Store.open(sys.argv[1], background=False) as store:
    store.create_topic("t", 12)
    for number in range(11):
        store.append("t", b"0", partition=number)
    others = []
    try:
        while True:
            others.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for number in range(12):
        store.append("t", b"1", partition=number)
    try:
        while True:
            others.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        for number in range(12):
            while True:
                store.log("t", number).roll()
                store.append("t", b"2", partition=number)
                others.append(os.open("/dev/null", os.O_RDONLY))
    except kstore.StorageError as error:
        print(error)
    except OSError as error:
        print("others:", error)
    for fd in others:
        os.close(fd)
    for number in range(12):
        store.append("t", b"3", partition=number)
    store.flush()
    assert store.stats()["offline"] == {}
print("done")
"""


def in_process(code: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("opened_before", [1, 29])
def test_a_limit_of_the_process_that_is_lowered_below_what_is_open_stops_no_log(root: Path, opened_before: int) -> None:
    assert in_process(LOWERED, root, opened_before) == "done\n"


def test_descriptors_that_others_use_up_are_made_up_for_or_the_error_counts(root: Path) -> None:
    told, done = in_process(USED_UP, root).splitlines()
    assert done == "done"
    assert re.search(r"Too many open files: kstore holds \d+ for logs and 1 for locks, the process may have 100", told)


def test_less_is_held_for_a_minute_after_no_descriptor_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    openfiles.set_limit(100)
    made = things(80)
    held = openfiles.held()
    assert openfiles.make_room()
    assert openfiles.held() <= held * 3 // 4
    assert openfiles.limit() == held * 3 // 4
    now += openfiles.TIGHT_SECONDS - 0.001
    assert openfiles.limit() == held * 3 // 4
    now += 0.001
    assert openfiles.limit() == 100
    assert len(open_things(made)) <= 60


def test_room_is_waited_for_while_another_thread_syncs_a_file_before_it_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For longer than a tenth of a second, as a busy disk takes: the call would fail for want of a descriptor."""
    openfiles.set_limit(100)
    made = things(80)
    syncing, is_synced = threading.Event(), threading.Event()

    def sync_and_close() -> None:
        syncing.set()
        assert is_synced.wait(60)
        made[0].open = 0

    made[0].let_go = sync_and_close  # type: ignore[method-assign]
    other = threading.Thread(target=openfiles.set_limit, args=(79,))
    other.start()
    assert syncing.wait(60)
    now = time.monotonic()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > begun + 1:
            is_synced.set()
            other.join(60)

    begun = now
    monkeypatch.setattr(openfiles, "time", type("Clock", (), {"sleep": sleep, "monotonic": lambda: now}))
    assert openfiles.make_room()
    assert not other.is_alive()


def test_where_all_that_is_held_is_in_use_there_is_no_room_to_make() -> None:
    gc.collect()
    openfiles.set_limit(100)
    made = things(10)
    for thing in made:
        thing.busy = True
    while openfiles.held() > 10:
        assert openfiles.make_room()
    assert not openfiles.make_room()
    assert len(open_things(made)) == 10
