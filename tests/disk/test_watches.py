"""watches.py and _watch.pyx: waits for changes of directories, in the kernel and by polling."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

import kstore
from kstore.disk import watches
from kstore.disk._watch import Watch
from kstore.log import log_watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is a part of Linux")

SECONDS = 20.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "d"
    path.mkdir()
    (path / "file").write_bytes(b"x")
    try:
        Watch((str(path),)).close()
    except OSError:
        pytest.skip("the file system of temporary files does not report changes")
    yield str(path)
    watches.wake(str(path))


def append(directory: str) -> None:
    with (Path(directory) / "file").open("ab") as file:
        file.write(b"x")


def grow(directory: str) -> None:
    os.truncate(Path(directory) / "file", 100)


def make(directory: str) -> None:
    (Path(directory) / "new").touch()


def rename(directory: str) -> None:
    (Path(directory) / "file").rename(Path(directory) / "renamed")


def remove(directory: str) -> None:
    (Path(directory) / "file").unlink()


def move_away(directory: str) -> None:
    Path(directory).rename(directory + "-delete")


def remove_all(directory: str) -> None:
    remove(directory)
    Path(directory).rmdir()


@pytest.mark.parametrize("change", [append, grow, make, rename, remove, move_away, remove_all])
def test_every_change_of_a_directory_ends_a_wait_that_began_before_it(
    change: Callable[[str], None], directory: str
) -> None:
    watch = Watch((directory,))
    assert watch.arm()
    assert not watch.wait(0)
    change(directory)
    assert watch.wait(SECONDS)


def test_a_watch_stays_armed_and_takes_a_burst_at_once(directory: str, tmp_path: Path) -> None:
    watch = Watch((directory, str(tmp_path)))
    assert not watch.is_armed
    for change in (append, make, rename):
        assert watch.arm()
        assert not watch.wait(0)
        for _ in range(100):
            append(directory)
        change(directory)
        assert watch.wait(SECONDS)
        assert not watch.wait(0)
        assert watch.is_armed
    append(directory)
    make(str(tmp_path))
    assert watch.take()
    assert not watch.take()


def test_what_happened_before_a_watch_is_armed_ends_no_wait(directory: str) -> None:
    watch = Watch((directory,))
    assert watch.arm()
    append(directory)
    assert watch.arm()
    assert not watch.wait(0)


@pytest.mark.parametrize("change", [move_away, remove_all])
def test_a_directory_that_was_replaced_is_watched_at_its_path(change: Callable[[str], None], directory: str) -> None:
    watch = Watch((directory,))
    assert watch.arm()
    change(directory)
    assert watch.take()
    assert not watch.is_armed
    Path(directory).mkdir()
    assert watch.arm()
    make(directory)
    assert watch.wait(SECONDS)


def test_a_directory_whose_events_were_lost_counts_as_changed_and_is_armed_again(
    directory: str, tmp_path: Path
) -> None:
    watch = Watch((directory, str(tmp_path)))
    assert watch.arm()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    file = Path(directory) / "file"
    for number in range(limit // 2 + 1):  # a rename makes two events
        file = file.rename(file.with_name(str(number)))
    assert watch.take()
    assert not watch.is_armed
    assert watch.arm()
    assert not watch.wait(0)
    append(directory)
    assert watch.wait(SECONDS)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_reader_that_is_behind_its_writer_stops_watching(
    directory: str, monkeypatch: pytest.MonkeyPatch, awaited: bool
) -> None:
    monkeypatch.setattr(log_watch, "_directories", lambda views: [directory])
    looks = 0

    def wait(has_news: Callable[[], bool], timeout: float = SECONDS) -> bool:
        if awaited:
            return asyncio.run(log_watch.await_news([], has_news, timeout))
        return watches.wait([directory], has_news, timeout)

    def at_once() -> bool:
        nonlocal looks
        looks += 1
        return True

    def after_a_wait() -> bool:
        nonlocal looks
        looks += 1
        append(directory)
        return looks % 2 == 0

    with watches.taken([directory]) as watch:
        assert watch is not None
        assert watch.arm()
    for _ in range(3):
        for has_news in (at_once, at_once, after_a_wait):
            assert wait(has_news)
            assert watch.is_armed
    assert looks == 12
    for _ in range(3):
        assert wait(at_once)
    assert not watch.is_armed
    assert wait(at_once)
    assert not watch.is_armed
    assert looks == 16
    assert not wait(lambda: False, 0)
    assert watch.is_armed


@pytest.mark.parametrize("way", ["a log", "a topic", "a consumer", "a stream"])
def test_the_end_of_a_follower_closes_its_descriptor(way: str, root: Path) -> None:
    with kstore.Store.open(root) as writer:
        writer.create_topic("events")
        writer.append("events", b"a")
        with kstore.Store.open(root, "r") as store, kstore.Store.open(root / "groups") as positions:
            next(store.log("events", 0).read())  # opens the segment's file
            before = descriptors()
            if way == "a log":
                records = store.log("events", 0).read(follow=True, timeout=0.01)
                assert len(list(records)) == 1
            elif way == "a topic":
                assert len(list(store.read("events", follow=True, timeout=0.01))) == 1
            elif way == "a consumer":
                with store.consumer("g", "events", follow=True, timeout=0.01, positions=positions) as consumer:
                    assert len(list(consumer)) == 1
                del consumer
            else:

                async def read() -> int:
                    return len([record async for record in store.aread("events", follow=True, timeout=0.01)])

                assert asyncio.run(read()) == 1
            assert descriptors() <= before


def test_a_missing_directory_and_a_file_cannot_be_armed(directory: str) -> None:
    file = Watch((str(Path(directory) / "file"),))
    assert not file.arm()
    watch = Watch((directory,))
    remove_all(directory)
    assert not watch.arm()
    with pytest.raises(OSError, match="not supported"):
        Watch((directory,))


@pytest.mark.parametrize("path", ["/proc/self", "s3://bucket/prefix"])
def test_a_file_system_that_does_not_report_changes_is_not_watched(path: str) -> None:
    with pytest.raises(OSError, match="not supported"):
        Watch((path,))
    with watches.taken([path]) as watch:
        assert watch is None


def test_cancel_ends_the_wait_of_another_thread(directory: str) -> None:
    watch = Watch((directory,))
    assert watch.arm()
    threading.Timer(0.01, watch.cancel).start()
    assert watch.wait(SECONDS)


def test_wake_makes_a_wait_look(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "LONGEST_WAIT", math.inf)
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        if len(looks) == 1:
            watches.wake(directory)
        return len(looks) == 2

    assert watches.wait([directory], look, SECONDS)


def test_a_signal_interrupts_a_wait(directory: str) -> None:
    def interrupted(*_: object) -> None:
        raise InterruptedError

    watch = Watch((directory,))
    assert watch.arm()
    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(InterruptedError):
            watch.wait(SECONDS)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert not watch.wait(0.03)  # a handler that returns does not end the wait
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_a_watch_that_the_system_refuses_is_replaced_by_polling(
    directory: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(Watch):
        def __new__(cls, directories: tuple[str, ...]) -> Refused:
            if number == errno.EMFILE:
                raise OSError(number, "no instance is left")
            return super().__new__(cls, directories)

        def arm(self) -> bool:
            return False

    monkeypatch.setattr(watches, "Watch", Refused)
    looks = iter([False] * 5 + [True])
    assert watches.wait([directory], lambda: next(looks), SECONDS)
    assert not watches.wait([directory], lambda: False, 0.001)


def test_a_wait_looks_from_time_to_time_and_less_often_if_a_look_takes_long() -> None:
    until = watches.until_next_look
    assert until(10.0, 10.0, math.inf, None) == watches.LONGEST_WAIT
    assert until(10.0, 10.0, math.inf, 0.1) == 0.1
    assert until(10.0, 10.5, 12.0, 0.1) == 1.5
    assert until(10.0, 10.0001, math.inf, 0.1) == pytest.approx(0.0001 * watches.IDLE_SHARE)
    assert until(10.0, 10.05, math.inf, 0.1) == watches.LONGEST_WAIT  # one look took long: the next one is soon
    assert until(10.0, 11.0, math.inf, 0.1) == pytest.approx(watches.LOOK_SHARE)


@pytest.mark.parametrize("awaited", [False, True])
def test_changes_that_are_no_news_cost_a_part_of_the_time(
    directory: str, monkeypatch: pytest.MonkeyPatch, awaited: bool
) -> None:
    log_file = os.open(Path(directory) / "file", os.O_WRONLY)
    pauses: list[float] = []
    armed_again = watches.until_armed_again

    def until_armed_again(looked: float, woken: float, deadline: float) -> float:
        pauses.append(armed_again(looked, woken, deadline))
        return 0.0

    def look() -> bool:
        os.write(log_file, b"x")  # as a writer whose records are not durable
        return len(pauses) == 5

    monkeypatch.setattr(watches, "until_armed_again", until_armed_again)
    monkeypatch.setattr(log_watch, "_directories", lambda views: [directory])
    try:
        if awaited:
            assert asyncio.run(log_watch.await_news([], look, SECONDS))
        else:
            assert watches.wait([directory], look, SECONDS)
    finally:
        os.close(log_file)
    assert min(pauses) > 0
    assert armed_again(0.25, monotonic() - 0.25, math.inf) == pytest.approx(0.5 * watches.LOOK_SHARE, rel=0.1)
    assert armed_again(0.25, 0.0, monotonic()) <= 0  # never beyond the deadline


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_waits_of_one_directory_share_a_descriptor_and_wake_closes_it(directory: str) -> None:
    before = descriptors()
    for _ in range(10):
        assert not watches.wait([directory], lambda: False, 0)
    assert descriptors() == before + 1
    watches.wake(directory)
    assert descriptors() == before


def test_wake_gives_no_watch_to_two_waits(directory: str) -> None:
    class Taking(str):
        __hash__ = str.__hash__

        def __eq__(self, of_watch: object) -> bool:  # during `wake` another thread takes the watch
            if not taken:
                taken.append(watches._take([directory]))
            return False

    taken: list[Watch | None] = []
    with watches.taken([directory]) as watch:
        pass
    watches.wake(Taking("elsewhere"))
    assert taken == [watch]
    assert watch not in [kept for _, kept in watches._kept]


def test_few_descriptors_are_kept_and_none_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MOST_KEPT", 3)
    before = descriptors()
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        watches.wait([str(tmp_path / str(number))], lambda: False, 0)
    assert descriptors() <= before + 3
    monkeypatch.setattr(watches, "KEPT_SECONDS", -1.0)
    watches.wait([str(tmp_path)], lambda: False, 0)
    assert descriptors() <= before


def test_a_forked_child_closes_the_descriptors(directory: str) -> None:
    watches.wait([directory], lambda: False, 0)
    with watches.taken([directory]) as watch:
        assert watch is not None
        assert watch.arm()
        if not (child := os.fork()):
            os._exit(watch.fd != -1 or watch.take())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        append(directory)
        assert watch.wait(SECONDS)
