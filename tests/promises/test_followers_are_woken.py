"""A follower of another process's log is woken by every change, whatever it is doing when the change comes.

The waits look at nothing by themselves here (`LONGEST_WAIT` is infinite): a wake-up that is lost is a wait without end.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import mmap
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.base import loops
from kstore.copies.replication import replicate as replicate_module
from kstore.disk import watches
from kstore.disk._watch import Watch
from kstore.errors import KStoreError, LogClosedError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.store.coordinator import consumer as consumers
from kstore.store.topics import async_topic_source, topic_follow
from tests.support.puppet import Puppet

SECONDS = 20.0
MOST_STEPS = 40

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is a part of Linux")


@pytest.fixture(autouse=True)
def _no_looks_in_between(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        Watch((str(tmp_path),)).close()
    except OSError:
        pytest.skip("the file system of temporary files does not report changes")
    monkeypatch.setattr(watches, "LONGEST_WAIT", math.inf)
    monkeypatch.setattr(topic_follow, "NEWS_SECONDS", math.inf)
    monkeypatch.setattr(async_topic_source, "NEWS_SECONDS", math.inf)
    monkeypatch.setattr(consumers, "_NEWS_SECONDS", math.inf)


@pytest.fixture
def store(root: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(root) as store:
        store.create_topic("events", partitions=2)
        yield store


class Steps:
    """Calls `act` at the n-th step of a follower, or when it would wait without end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.act: Callable[[], object] | None = None
        steps = self

        class Stepped(Watch):
            def arm(self) -> bool:
                steps.take()
                armed = super().arm()
                steps.take()
                return armed

            def wait(self, seconds: float) -> bool:
                steps.before_wait()
                changed = super().wait(min(seconds, SECONDS))
                assert changed, "a wake-up is lost"
                steps.take()
                return changed

            def take(self) -> bool:
                steps.take()
                changed = super().take()
                steps.take()
                return changed

        wait, catch_up = loops.Bell.wait, ReadOnlyView.catch_up

        async def bell_wait(bell: loops.Bell, seconds: float | None) -> None:
            steps.before_wait()
            began = time.monotonic()
            await wait(bell, SECONDS if seconds is None else min(seconds, SECONDS))
            assert time.monotonic() - began < SECONDS / 2, "a wake-up is lost"

        def look(view: ReadOnlyView) -> bool:
            steps.take()
            answer = catch_up(view)
            steps.take()
            return answer

        monkeypatch.setattr(watches, "Watch", Stepped)
        monkeypatch.setattr(loops.Bell, "wait", bell_wait)
        monkeypatch.setattr(ReadOnlyView, "catch_up", look)

    def at(self, number: int, act: Callable[[], object]) -> None:
        self.left, self.act = number, act

    def take(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.before_wait()

    def before_wait(self) -> None:
        if (act := self.act) is not None:
            self.act = None
            act()


def plain(store: kstore.Store) -> Iterator[bytes | None]:
    return (record.value for record in store.log("events", 1).read(follow=True, timeout=SECONDS))


def of_topic(store: kstore.Store) -> Iterator[bytes | None]:
    return (record.value for record in store.read("events", follow=True, timeout=SECONDS))


def of_group(store: kstore.Store) -> Iterator[bytes | None]:
    with kstore.Store.open(Path(store.paths[0]).parent / "groups") as positions:
        records = store.consumer("g", "events", follow=True, timeout=SECONDS, positions=positions)
        yield from (record.value for record in records)


def streamed(stream: Any) -> Iterator[bytes | None]:
    with asyncio.Runner() as runner:

        async def following() -> bytes | None:
            record = await anext(stream, None)
            return None if record is None else bytes(record.value)

        while (value := runner.run(following())) is not None:
            yield value


def plain_stream(store: kstore.Store) -> Iterator[bytes | None]:
    return streamed(store.log("events", 1).aread(follow=True, timeout=SECONDS))


def topic_stream(store: kstore.Store) -> Iterator[bytes | None]:
    return streamed(store.aread("events", follow=True, timeout=SECONDS))


@pytest.mark.parametrize("follow", [plain, of_topic, of_group, plain_stream, topic_stream])
def test_an_append_at_any_step_of_a_follower_wakes_it(
    follow: Callable[[kstore.Store], Iterator[bytes | None]],
    store: kstore.Store,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps(monkeypatch)
    values = map(b"%d".__mod__, itertools.count())

    def append() -> None:
        nonlocal wanted
        wanted = next(values)
        store.append("events", wanted, partition=1)

    wanted = b""
    with kstore.Store.open(root, "r") as reader:
        records = follow(reader)
        for number in range(1, MOST_STEPS):
            steps.at(number, append)
            assert next(records) == wanted, f"at step {number}"
            assert steps.act is None


# --- other changes ----------------------------------------------------------------------------------------------------


class Following:
    """A thread that follows; `outcome` waits for its records, or for the error that ends it."""

    def __init__(self, records: Iterator[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._waits = threading.Event()
        self._found: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(records,), daemon=True)

        def seconds(*_: object) -> float:
            self._waits.set()
            return 10 * SECONDS

        monkeypatch.setattr(watches, "until_next_look", seconds)
        self._thread.start()
        assert self._waits.wait(SECONDS)

    def _run(self, records: Iterator[Any]) -> None:
        try:
            self._found.append(next(records, "the time is over"))
        except KStoreError as error:
            self._found.append(error)

    def outcome(self) -> Any:
        self._thread.join(SECONDS)
        assert self._found, "the follower was not woken"
        [found] = self._found
        return found


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition, cleanup_policy="compact") as log:
        for value in (b"a", b"b", b"c"):
            log.append(value, key=b"k")
        yield log


@pytest.fixture
def following(log: kstore.Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    with kstore.Log.open(log.path, "r") as reader:
        records = reader.read(follow=True, timeout=SECONDS)
        assert [next(records).value for _ in range(3)] == [b"a", b"b", b"c"]
        yield Following(records, monkeypatch)


def test_a_truncation_wakes_a_follower(log: kstore.Log, following: Following) -> None:
    log.truncate_to(1)
    for value in (b"d", b"e", b"f"):
        log.append(value, key=b"k")
    assert isinstance(following.outcome(), OffsetOutOfRangeError)


def test_a_deletion_of_the_directory_wakes_a_follower(log: kstore.Log, following: Following) -> None:
    log.close()
    shutil.rmtree(log.path)
    assert isinstance(following.outcome(), KStoreError)


def test_an_append_after_a_roll_and_a_compaction_wakes_a_follower(log: kstore.Log, following: Following) -> None:
    log.roll()
    log.compact()
    log.append(b"d", key=b"k")
    assert following.outcome().value == b"d"


def test_a_close_by_another_thread_wakes_a_follower(log: kstore.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = kstore.Log.open(log.path, "r")
    following = Following(reader.read(3, follow=True, timeout=SECONDS), monkeypatch)
    reader.close()
    assert isinstance(following.outcome(), LogClosedError)


def test_a_checkpoint_wakes_a_follower_of_durable_records(log: kstore.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with kstore.Log.open(log.path, "r") as reader:
        following = Following(reader.read(follow=True, durable=True, timeout=SECONDS), monkeypatch)
        log.close()
        assert following.outcome().value == b"a"


def test_a_deleted_topic_and_a_new_partition_wake_a_follower(
    store: kstore.Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Store.open(root, "r") as reader:
        records = iter(reader.read("events", follow=True, timeout=SECONDS))
        following = Following(records, monkeypatch)
        store.add_partitions("events", 3)
        store.append("events", b"a", partition=2)
        assert following.outcome().value == b"a"
        following = Following(records, monkeypatch)
        store.delete_topic("events")
        assert isinstance(following.outcome(), UnknownTopicOrPartitionError)


def test_a_follower_outlives_a_writer_that_is_killed(partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Puppet(f"log = kstore.Log.open({str(partition)!r})", "log.append(b'a')") as writer:
        reader = kstore.Log.open(partition, "r")
        records = reader.read(follow=True, timeout=SECONDS)
        assert next(records).value == b"a"
        following = Following(records, monkeypatch)
        writer.kill()
    with kstore.Log.open(partition) as log:
        log.append(b"b")
        assert following.outcome().value == b"b"
    reader.close()


def test_an_append_and_a_new_topic_wake_a_replication(
    store: kstore.Store, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicate_module, "WATCHED_PAUSE", math.inf)
    with kstore.replicate(root, tmp_path / "copy", follow=True) as copy:
        assert copy.wait_caught_up(SECONDS)
        for topic in ("events", "others"):
            if topic == "others":
                store.create_topic(topic)
            store.append(topic, b"a", partition=0)
            deadline = time.monotonic() + SECONDS
            while topic not in copy.store.topics or not copy.store.log(topic, 0).log_end_offset:
                assert time.monotonic() < deadline, "the replication was not woken"
                os.sched_yield()


# --- another process --------------------------------------------------------------------------------------------------

FOLLOWER = """
import math, mmap, sys, kstore
from kstore.copies.replication import replicate as replicate_module
from kstore.disk import watches
path, seen, count, way = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
watches.LONGEST_WAIT = math.inf
if way == "polled":
    watches.Watch = lambda directories: (_ for _ in ()).throw(OSError)
with open(seen, "r+b") as file, mmap.mmap(file.fileno(), 8) as memory, kstore.Log.open(path, "r") as log:
    for number, record in enumerate(log.read(follow=True)):
        assert record.offset == number and record.value == b"%d" % number, record
        memory[:] = (number + 1).to_bytes(8, "little")
        if number + 1 == count:
            break
"""


@pytest.mark.parametrize("way", ["watched", "polled"])
def test_a_follower_elsewhere_sees_each_record_of_random_bursts(
    way: str, partition: Path, tmp_path: Path, rng: random.Random, budget: Callable[[float], float]
) -> None:
    count = int(budget(30_000))
    (tmp_path / "seen").write_bytes(bytes(8))
    (tmp_path / "follower.py").write_text(FOLLOWER)
    arguments = [str(partition), str(tmp_path / "seen"), str(count), way]
    with (
        kstore.Log.open(partition) as log,
        (tmp_path / "seen").open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as seen,
        subprocess.Popen([sys.executable, str(tmp_path / "follower.py"), *arguments]) as follower,
    ):
        written = 0
        while written < count:
            burst = min(rng.choice((1, 1, 1, 2, 10, 500)), count - written)
            for _ in range(burst):
                log.append(b"%d" % written)
                written += 1
            if rng.random() < 0.5:  # nothing else will wake the follower
                deadline = time.monotonic() + SECONDS
                while int.from_bytes(seen[:], "little") < written:
                    assert follower.poll() is None or written == count
                    assert time.monotonic() < deadline, f"the follower waits at {int.from_bytes(seen[:], 'little')}"
                    os.sched_yield()
                for _ in range(rng.randrange(200)):
                    os.sched_yield()
        assert follower.wait(SECONDS) == 0
