"""One budget for all that logs keep open: who lets go, who keeps what, and that nobody reads another's file."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from faultfs import FaultFS

import kstore
from kstore import openfiles
from kstore.indexfile import OffsetIndex
from kstore.openfiles import LEAST

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


def test_by_default_half_of_what_the_process_may_open_is_held() -> None:
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


def test_an_interrupt_in_the_middle_of_closing_loses_nobody() -> None:
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


def test_a_disk_that_refuses_a_close_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
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
            choose = random.Random(seed)
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


def test_a_bulk_search_keeps_its_map_until_it_is_over(tmp_path: Path) -> None:
    """Else the file could be cut under a search that runs without the GIL, and the process would die."""
    path = tmp_path / "00000000000000000000.index"
    entries = 2 << 20 >> 3
    offsets = np.arange(1, entries + 1, dtype=">i4")
    path.write_bytes(np.repeat(offsets, 2).tobytes())
    index = OffsetIndex(path, 0, 10 << 20)
    targets = np.random.default_rng(1).integers(1, entries + 1, 400_000)
    done = threading.Event()

    def drop() -> None:
        while not done.is_set():
            index.let_go()

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        found, positions = index.lookup_many(targets)
    finally:
        done.set()
        thread.join()
    assert (found == targets).all()
    assert (positions == targets).all()
    index.close()


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
        with index._lock:  # a lock that nobody gives back in the child
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
