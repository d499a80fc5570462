"""One writing process and many reading ones on the directories of a live store; killed, forked and pickled.

Readers take no lock, need no daemon and change no byte. Each story has real processes: puppet.py.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.conftest import ManualClock
from tests.support.puppet import Puppet, PuppetError

MINUTE = 60_000
SMALL = "segment_bytes=1000, index_interval_bytes=100"


@pytest.fixture
def puppet(root: Path) -> Iterator[Callable[..., Puppet]]:
    """`puppet("r")`: a process that has the store open in that mode as `store`; killed in the end."""
    there: list[Puppet] = []

    def start(mode: str | None = "r", settings: str = "") -> Puppet:
        prelude = [f"root = {str(root)!r}"]
        if mode is not None:
            prelude.append(f"store = kstore.Store.open(root, {mode!r}, {settings})")
        there.append(Puppet(*prelude))
        return there[-1]

    yield start
    for each in there:
        each.__exit__()


def fill(log: kstore.Log, count: int, value: bytes = b"x" * 100) -> None:
    for _ in range(count):
        log.append(value)


def offsets(log: kstore.Log, *args: Any, **how: Any) -> list[int]:
    return [record.offset for record in log.read(*args, **how)]


# What readers see


def test_a_reader_sees_new_records_segments_topics_partitions_and_deletions(
    root: Path, puppet: Callable[..., Puppet]
) -> None:
    with kstore.Store.open(root, segment_bytes=1000, file_delete_delay_ms=0) as store:
        reader = puppet()
        assert reader.do("answer = store.topics") == []
        store.create_topic("events", 2)
        assert reader.do("answer = store.topics, store.partitions('events')") == [["events"], [0, 1]]
        log = store.log("events", 0)
        assert reader.do("log = store.log('events', 0); answer = [r.offset for r in log.read()]") == []
        fill(log, 25)
        seen = reader.do("answer = [r.offset for r in log.read()], len(log.segments), log.log_end_offset")
        assert seen == [list(range(25)), len(log.segments), 25]
        assert len(log.segments) > 1
        store.add_partitions("events", 4)
        store.create_topic("others")
        store.log("others", 0).append(b"here")
        assert reader.do("answer = store.topics, store.partitions('events')") == [["events", "others"], [0, 1, 2, 3]]
        assert reader.do("answer = [bytes(r.value).decode() for r in store.log('others', 0).read()]") == ["here"]
        log.delete_records(20)
        assert reader.do("answer = log.log_start_offset, [r.offset for r in log.read()]") == [20, list(range(20, 25))]
        store.delete_topic("events")
        assert reader.do("answer = store.topics") == ["others"]
        with pytest.raises(PuppetError, match="UnknownTopicOrPartitionError"):
            reader.do("store.log('events', 0)")
        with pytest.raises(PuppetError, match="No such file"):
            reader.do("list(log.read())")


def test_a_topic_that_was_deleted_and_made_again_is_read_as_it_is_now(
    root: Path, puppet: Callable[..., Puppet]
) -> None:
    """The reader has its files open, and sees nothing in between."""
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        fill(store.log("events", 0), 5, b"old")
        reader = puppet()
        assert reader.do("log = store.log('events', 0); answer = len(list(log.read()))") == 5
        reader.do("ahead = log.read(); next(ahead)")
        store.delete_topic("events")
        store.create_topic("events")
        fill(store.log("events", 0), 3, b"new")
        seen = "answer = [bytes(r.value).decode() for r in store.log('events', 0).read()]"
        assert reader.do(seen) == ["new"] * 3
        assert reader.do(seen.replace("store.log('events', 0)", "log")) == ["new"] * 3
        # What it had read ahead of the old file may still be given; then it is told.
        with pytest.raises(PuppetError, match="OffsetOutOfRangeError"):
            reader.do("log.log_end_offset; answer = [bytes(r.value).decode() for r in ahead]")


def test_a_follower_goes_on_over_rolls_and_a_new_writer(root: Path, puppet: Callable[..., Puppet]) -> None:
    with kstore.Store.open(root, segment_bytes=500) as store:
        store.create_topic("events")
    reader = puppet()
    reader.begin(
        """
        answer = []
        for record in store.log("events", 0).read(follow=True, timeout=60):
            answer.append(record.offset)
            if record.offset == 29:
                break
        """
    )
    for _ in range(3):
        with kstore.Store.open(root, segment_bytes=500) as store:
            fill(store.log("events", 0), 10)
    assert reader.answer() == list(range(30))


def test_a_topic_is_followed_elsewhere_with_all_its_partitions_and_those_to_come(
    root: Path, puppet: Callable[..., Puppet]
) -> None:
    with kstore.Store.open(root, segment_bytes=1000) as store:
        store.create_topic("events", 2)
        reader = puppet()
        reader.begin(
            """
            answer = []
            for record in store.read("events", follow=True, timeout=60):
                answer.append((record.partition, record.offset, int(record.value)))
                if len(answer) == 60:
                    break
            """
        )
        given = []
        for number in range(60):
            if number == 30:
                store.add_partitions("events", 4)
            where = store.append("events", b"%d" % number, key=b"key %d" % number)
            given.append([where.partition, where.offset, number])
            if number % 20 == 10:
                time.sleep(0.01)  # let it run dry
        assert sorted(reader.answer()) == sorted(given)
        assert {partition for partition, _, _ in given} == {0, 1, 2, 3}


def test_a_durable_reader_in_another_process_sees_what_the_checkpoint_says(
    root: Path, clock: ManualClock, puppet: Callable[..., Puppet]
) -> None:
    """SEMANTICS 12.7."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        fill(log, 3)
        reader = puppet()
        look = "log = store.log('events', 0); answer = [len(list(log.read(durable=d))) for d in (False, True)]"
        assert reader.do(look) == [3, 0]
        store.flush()
        assert reader.do(look) == [3, 0]
        assert offsets(log, durable=True) == [0, 1, 2]
        clock.advance(5 * MINUTE)
        store.run_housekeeping()
        log.append(b"x")
        assert reader.do(look) == [4, 3]
    assert reader.do(look) == [4, 4]


# Nothing is changed, nothing is locked


def picture(root: Path) -> dict[str, tuple[Any, ...]]:
    """Every file and directory: kind, inode, size, times of change, and what it holds."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (
            status.st_mode,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            content,
        )
    return found


EVERYTHING = """
answer = {}
for topic in store.topics:
    for number in store.partitions(topic):
        log = store.log(topic, number)
        records = list(log.read())
        answer[f"{topic}-{number}"] = len(records)
        list(log.read_batches()), list(log.read(durable=True)), list(log.read(follow=True, timeout=0.01))
        log.segments, log.stats(), log.max_timestamp(), log.offset_for_timestamp(0), log.plan_retention()
        log.fetch(log.log_start_offset, 10**6), repr(log)
        store.topic_config(topic), store.topic_id(topic)
store.stats()
again = kstore.Store.open(root, "r")
for topic in again.topics:
    again.log(topic, 0).read()
again.close()
"""


@pytest.mark.parametrize("left", ["closed", "killed", "torn"])
def test_readers_change_nothing_on_the_disk(root: Path, puppet: Callable[..., Puppet], left: str) -> None:
    """Not one byte; nor a name, a time or a lock file. What a crash left is applied in memory."""
    writer = puppet("a", SMALL + ", retention_bytes=2000")
    writer.do(
        """
        for topic in ("events", "others"):
            store.create_topic(topic, 2)
            for number in range(2):
                for n in range(40):
                    store.log(topic, number).append(b"x" * 100)
        store.log("events", 1).apply_retention()
        store.flush()
        """
    )
    if left == "closed":
        writer.do("store.close()")
    writer.kill()
    if left == "torn":
        last = max((root / "events-0").glob("*.log"))
        with last.open("ab") as file:
            file.write(b"\0" * 7)
        (root / "events-0" / f"{7:020}.log.deleted").write_bytes(b"leftover")
    if left == "closed":
        (root / ".lock").unlink()  # as a broker's shutdown does: a reader makes none
    before = picture(root)
    readers = [puppet()]
    for reader in readers:
        reader.begin(EVERYTHING)
    for reader in readers:
        seen = reader.answer()
        assert seen["events-0"] == seen["others-0"] == 40
        assert 0 < seen["events-1"] < 40
    assert picture(root) == before


def test_readers_hold_no_lock(root: Path, puppet: Callable[..., Puppet]) -> None:
    """A writer opens, closes and deletes beside them."""
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        fill(store.log("events", 0), 3)
    readers = [puppet() for _ in range(2)]
    for reader in readers:
        reader.do("log = store.log('events', 0); records = log.read(follow=True); next(records)")
    held = Path("/proc/locks").read_text() if Path("/proc/locks").exists() else ""
    inodes = {path.stat().st_ino for path in [root, *root.rglob("*")]}
    pids = {reader.process.pid for reader in readers}
    for line in held.splitlines():
        fields = line.replace("->", "").split()
        assert int(fields[5].split(":")[2]) not in inodes or int(fields[4]) not in pids
    with kstore.Store.open(root) as store:
        fill(store.log("events", 0), 1)
        store.log("events", 0).delete_records(4)
        store.delete_topic("events")


# Retention under readers


@pytest.mark.parametrize("where", ["the same process", "another process"])
def test_a_reader_that_falls_behind_retention_is_told_where_the_log_starts_now(
    root: Path, clock: ManualClock, puppet: Callable[..., Puppet], where: str
) -> None:
    """And it may go on from there."""
    with kstore.Store.open(root, clock=clock, background=False, segment_bytes=1000, retention_ms=MINUTE) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        for number in range(60):
            log.append(b"x" * 100, timestamp=clock() + number)
        bases = [segment.base_offset for segment in log.segments]
        assert len(bases) > 5
        here = where == "the same process"
        reader = puppet()
        reader.do("log = store.log('events', 0); slow, ahead = log.read(), log.read(log.log_end_offset - 2)")
        reader.do("answer = [next(slow).offset, next(ahead).offset]")
        slow, ahead = log.read(), log.read(58)
        assert [next(slow).offset, next(ahead).offset] == [0, 58]
        clock.advance(MINUTE + bases[3])
        gone = log.apply_retention()
        start = log.log_start_offset
        assert start == bases[len(gone)] > 0
        if here:
            with pytest.raises(kstore.OffsetOutOfRangeError) as told:
                list(slow)
            marks = (told.value.log_start_offset, told.value.log_end_offset)
            assert offsets(log, marks[0]) == list(range(start, 60))
            assert [record.offset for record in ahead] == [59]
        else:
            # It may give what it has read ahead until it looks at the directory again; a read call does.
            reader.do("log.log_start_offset")
            with pytest.raises(PuppetError, match="OffsetOutOfRangeError") as elsewhere:
                reader.do("list(slow)")
            marks = (elsewhere.value.marks["log_start_offset"], elsewhere.value.marks["log_end_offset"])
            assert reader.do(f"answer = [r.offset for r in log.read({marks[0]})]") == list(range(start, 60))
            assert reader.do("answer = [r.offset for r in ahead]") == [59]
            with pytest.raises(PuppetError, match="OffsetOutOfRangeError"):
                reader.do(f"log.read({start - 1})")
        assert marks == (start, 60)


@pytest.mark.parametrize("delay_ms", [0, MINUTE])
def test_iterators_over_marked_or_deleted_segments_give_what_stands_or_are_told(
    root: Path, clock: ManualClock, puppet: Callable[..., Puppet], delay_ms: int
) -> None:
    """With the files still there as `.deleted` and with them unlinked it is the same."""
    settings = {"segment_bytes": 1000, "file_delete_delay_ms": delay_ms}
    with kstore.Store.open(root, clock=clock, background=False, **settings) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        fill(log, 40)
        bases = [segment.base_offset for segment in log.segments]
        reader = puppet()
        reader.do(f"log = store.log('events', 0); slow, kept = log.read({bases[1]}), log.read({bases[-1]})")
        given = reader.do("first = next(slow); answer = first.offset, len(first.value)")
        here, here_kept, batches = log.read(bases[1]), log.read(bases[-1]), log.read_batches(bases[1])
        record, batch = next(here), next(batches)
        view = log.fetch(bases[1], 500)
        as_given = bytes(view.records), bytes(memoryview(batch)), record.value
        log.delete_records(bases[3])
        log.apply_retention()
        assert log.segments[0].base_offset == bases[3]
        marked = len(list((root / "events-0").glob("*.log.deleted")))
        store.run_housekeeping()
        if delay_ms == 0:
            assert list((root / "events-0").glob("*.deleted")) == []
        else:
            assert marked == 3
        for iterator in (here, batches):
            with pytest.raises(kstore.OffsetOutOfRangeError) as told:
                next(iterator)
            assert told.value.log_start_offset == bases[3]
        assert (bytes(view.records), bytes(memoryview(batch)), record.value) == as_given
        assert [each.offset for each in here_kept] == list(range(bases[-1], 40))
        assert given == [bases[1], 100]
        reader.do("log.log_start_offset")
        with pytest.raises(PuppetError, match="OffsetOutOfRangeError"):
            reader.do("list(slow)")
        assert reader.do("answer = [r.offset for r in kept]") == list(range(bases[-1], 40))
        assert reader.do("answer = len(first.value)") == 100


def test_a_reader_whose_next_record_is_the_first_that_retention_left_misses_nothing(
    root: Path, puppet: Callable[..., Puppet]
) -> None:
    with kstore.Store.open(root, background=False, segment_bytes=1000) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        fill(log, 30)
        base = log.segments[2].base_offset
        reader = puppet()
        reader.do(f"log = store.log('events', 0); records = log.read(); [next(records) for _ in range({base})]")
        here = log.read()
        for _ in range(base):
            next(here)
        log.delete_records(base)
        log.apply_retention()
        assert [record.offset for record in here] == list(range(base, 30))
        assert reader.do("log.log_start_offset; answer = [r.offset for r in records]") == list(range(base, 30))


def test_a_slow_reader_beside_constant_retention_gives_records_once_or_is_told(
    root: Path, puppet: Callable[..., Puppet], no_syncs: None
) -> None:
    """Real time, no clock: what it gives is in order, whole, and goes on where the error says."""
    reader = puppet(None)
    with kstore.Store.open(root, background=False, segment_bytes=4000, retention_bytes=8000) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        log.append(b"%09d" % 0 * 10)
        reader.begin(
            """
            log = kstore.Store.open(root, "r").log("events", 0)
            at, told, given, wrong, last = log.log_start_offset, 0, 0, [], False
            while not last:
                try:
                    for record in log.read(at, follow=True, timeout=60):
                        if record.offset != at or record.value[:9] * 10 != record.value:
                            wrong.append((record.offset, at))
                        at, given = record.offset + 1, given + 1
                        if given == 1:
                            print("begun", flush=True)
                        while given == 1 and log.log_start_offset <= at:
                            time.sleep(0.001)  # until it is overtaken
                        if given % 50 == 0:
                            time.sleep(0.001)
                        if record.value[:9] == b"END......":
                            last = True
                            break
                except kstore.OffsetOutOfRangeError as error:
                    told += 1
                    if not at < error.log_start_offset:
                        wrong.append((at, error.log_start_offset))
                    at = error.log_start_offset
            answer = told, given, wrong
            """
        )
        assert reader.say() == "begun\n"
        for number in range(10_000):
            log.append(b"%09d" % number * 10)
            if number % 100 == 0:
                log.apply_retention()
                store.run_housekeeping()
        for _ in range(40):  # what comes last stays
            log.append(b"END......" * 10)
        told, given, wrong = reader.answer()
    assert wrong == []
    assert told > 0
    assert given > 0


# The death of the writer


WRITER = """
import random, zlib
rng = random.Random({seed})
store = kstore.Store.open(root, segment_bytes=20_000, index_interval_bytes=500, log_initial_task_delay_ms=10,
                          log_flush_offset_checkpoint_interval_ms=50)
if "events" not in store.topics:
    store.create_topic("events", 2)
logs = [store.log("events", n) for n in range(2)]
def value(n, count):
    body = b"%d:{life}:%d:" % (n, count) + rng.randbytes(rng.choice([10, 100, 3000]))
    return body + b"%08x" % zlib.crc32(body)
count = 0
while True:
    n = rng.randrange(2)
    kind = rng.random()
    if kind < 0.6:
        last = logs[n].append(value(n, count))
        count += 1
    else:
        many = [value(n, count + i) for i in range(rng.choice([2, 20]))]
        last = logs[n].append_many(many, batch_bytes=4000).last_offset
        count += len(many)
    if rng.random() < 0.2:
        logs[n].flush()
        print("flushed", n, last, flush=True)
    else:
        print("appended", n, last, flush=True)
    if rng.random() < 0.02:
        logs[n].roll()
"""

FOLLOWER = """
import threading, zlib
store = kstore.Store.open(root, "r")
seen = [[], []]
troubles = []
def sound(value):
    return value[-8:] == b"%08x" % zlib.crc32(value[:-8])
def follow(n):
    try:
        for record in store.log("events", n).read(follow=True, durable={durable}, timeout=60):
            if record.value == b"end":
                return
            if record.offset != len(seen[n]) or not sound(record.value):
                troubles.append((n, record.offset, len(seen[n])))
            seen[n].append(zlib.crc32(record.value))
    except Exception as error:
        troubles.append(repr(error))
threads = [threading.Thread(target=follow, args=(n,)) for n in range(2)]
for thread in threads:
    thread.start()
answer = None
"""


def test_a_writer_that_is_killed_at_any_moment_takes_nothing_back_from_its_readers(
    root: Path, puppet: Callable[..., Puppet], rng: random.Random, budget: Callable[[float], float]
) -> None:
    """Readers live through all of its lives: what they were given stays, whole, and what was flushed is there."""
    with kstore.Store.open(root) as store:
        store.create_topic("events", 2)
    followers = [puppet(None), puppet(None)]
    for follower, durable in zip(followers, (False, True), strict=True):
        follower.do(FOLLOWER.replace("{durable}", str(durable)))
    told = {"appended": [-1, -1], "flushed": [-1, -1]}
    lives = 0
    until = time.monotonic() + budget(4)
    while lives < 3 or time.monotonic() < until:
        with Puppet(f"root = {str(root)!r}") as writer:
            writer.begin(WRITER.format(seed=rng.getrandbits(32), life=lives))
            end = time.monotonic() + rng.choice([0.0, 0.05, 0.3]) * rng.random()
            said = [writer.say()]  # it has begun
            while time.monotonic() < end:
                said.append(writer.say())
            writer.process.kill()
            said += iter(writer.say, "")
            for line in said:
                fields = line.split()
                if line.endswith("\n") and len(fields) == 3:
                    told[fields[0]][int(fields[1])] = int(fields[2])
        lives += 1
        # A reader that comes between two lives sees all of it, too.
        with kstore.Store.open(root, "r") as reader:
            for n in range(2):
                log = reader.log("events", n)
                assert [record.offset for record in log.read()] == list(range(log.log_end_offset))
                assert log.log_end_offset > max(told["appended"][n], told["flushed"][n])
    with kstore.Store.open(root) as store:
        held = [[record.value for record in store.log("events", n).read()] for n in range(2)]
        for n in range(2):
            assert len(held[n]) > max(told["appended"][n], told["flushed"][n])
            store.log("events", n).append(b"end")
    for follower in followers:
        seen, troubles = follower.do(
            "[thread.join(60) for thread in threads]; answer = [seen, troubles + [t.is_alive() for t in threads]]"
        )
        assert troubles == [False, False]
        assert [len(each) for each in seen] == [len(each) for each in held]
        assert seen == [[zlib.crc32(value) for value in each] for each in held]
    print(f"{lives} lives, {sum(map(len, held))} records")


# Forks


def in_child(act: Callable[[], None]) -> None:
    """Run in a forked child and see that it raises nothing."""
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        signal.alarm(60)
        try:
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("background", [False, True])
def test_a_forked_child_neither_writes_nor_keeps_locks_nor_lets_them_go(
    root: Path, puppet: Callable[..., Puppet], background: bool
) -> None:
    """The store, its logs and their readers are closed there, and the parent does not notice."""
    with kstore.Store.open(root, background=background, flush_ms=1) as store:
        store.create_topic("events", 2)
        log = store.log("events", 0)
        fill(log, 5)
        records = log.read()
        next(records)
        reader = kstore.Store.open(root, "r")
        outside = reader.log("events", 0).read()
        next(outside)

        def child() -> None:
            uses: list[Callable[[], object]] = [
                lambda: store.topics,
                lambda: store.log("events", 1),
                lambda: store.flush(),
                lambda: log.append(b"x"),
                lambda: log.append_many([b"x"]),
                lambda: log.flush(),
                lambda: log.read(),
                lambda: next(records),
                lambda: next(outside),
                lambda: reader.topics,
            ]
            for use in uses:
                with pytest.raises(kstore.LogClosedError):
                    use()
            store.close()
            log.close()
            with kstore.Store.open(root, "r") as fresh:
                assert offsets(fresh.log("events", 0)) == list(range(5))
            with pytest.raises(kstore.LogLockedError):
                kstore.Store.open(root)

        in_child(child)
        other = puppet(None)
        with pytest.raises(PuppetError, match="LogLockedError"):
            other.do("kstore.Store.open(root)")
        assert log.append(b"y") == 5
        assert [record.offset for record in records] == [1, 2, 3, 4]
        log.flush()
        assert not (root / ".kafka_cleanshutdown").exists()
        reader.close()
    with kstore.Store.open(root) as store:
        assert store.log("events", 0).recovery.clean
        assert store.log("events", 0).log_end_offset == 6


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_outlives_its_parents_store_keeps_nobody_out(root: Path) -> None:
    store = kstore.Store.open(root)
    store.create_topic("events")
    store.log("events", 0).append(b"x")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        signal.alarm(60)
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        store.close()
        with kstore.Store.open(root) as again:
            assert again.log("events", 0).append(b"y") == 1
    finally:
        os.write(go[1], b".")
        assert os.waitpid(child, 0)[1] == 0
        for fd in (*ready, *go):
            os.close(fd)


# Pickles


def test_what_writes_is_not_pickled(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        for what in (store, store.log("events", 0)):
            with pytest.raises(TypeError, match="pickled"):
                pickle.dumps(what)


@pytest.mark.parametrize("config", ["settings", "mapping", "LogConfig", "path"])
def test_what_reads_is_pickled_with_its_settings_and_opens_again(root: Path, tmp_path: Path, config: str) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        fill(store.log("events", 0), 3)
    path = tmp_path / "server.properties"
    path.write_text("log.retention.bytes=4711\nlog.dirs=/elsewhere\n")
    given: dict[str, Any] = {
        "settings": {"retention_bytes": 4711},
        "mapping": {"config": {"retention.bytes": "4711"}},
        "LogConfig": {"config": kstore.LogConfig.from_kafka({"retention.bytes": "4711"})},
        "path": {"config": path},
    }[config]
    with kstore.Store.open(root, "r", **given) as reader:
        with pickle.loads(pickle.dumps(reader)) as copy:
            assert copy.topic_config("events").retention_bytes == 4711
            assert offsets(copy.log("events", 0)) == [0, 1, 2]
            assert copy.mode == "r"
        with pickle.loads(pickle.dumps(reader.log("events", 0))) as log:
            assert log.config.retention_bytes == 4711
            assert offsets(log) == [0, 1, 2]
        assert offsets(reader.log("events", 0)) == [0, 1, 2]


def count_records(what: kstore.Store | kstore.Log) -> int:
    """In a process of a pool: what came by pickle reads there."""
    if isinstance(what, kstore.Store):
        return sum(count_records(what.log(t, n)) for t in what.topics for n in what.partitions(t))
    return sum(1 for _ in what.read())


def append_inherited(what: kstore.Log, answers: Any) -> None:
    try:
        what.append(b"from a child")
    except kstore.LogClosedError:
        answers.put("closed")
    else:
        answers.put("appended")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_processes_of_a_pool_read_what_they_are_given(root: Path, method: str) -> None:
    """As multiprocessing does it, and as Spark does: functions and what they need go there as pickles."""
    context = multiprocessing.get_context(method)
    with kstore.Store.open(root) as store:
        store.create_topic("events", 2)
        fill(store.log("events", 0), 3)
        fill(store.log("events", 1), 4)
        with kstore.Store.open(root, "r") as reader, context.Pool(2) as pool:
            given = [reader, reader.log("events", 0), reader.log("events", 1)]
            assert pool.map(count_records, given) == [7, 3, 4]
            with pytest.raises(TypeError, match="pickled"):
                pool.map(count_records, [store])
        answers = context.SimpleQueue()
        child = context.Process(target=append_inherited, args=(store.log("events", 0), answers))
        if method == "fork":  # there the child has it without a pickle
            child.start()
            child.join(60)
            assert answers.get() == "closed"
        else:
            with pytest.raises(TypeError, match="pickled"):
                child.start()
        assert store.log("events", 0).append(b"x") == 3


@pytest.mark.parametrize("when", ["before the import", "before a log is open", "at the end"])
def test_a_programs_exit_function_closes_a_store_in_order(root: Path, when: str) -> None:
    """Exit functions run in reverse order: none of kstore's own may take the store's files away before."""
    script = f"""
import atexit, sys
when = {when!r}
atexit.register(lambda: store.close()) if when == "before the import" else None
import kstore
store = kstore.Store.open(sys.argv[1])
store.create_topic("t", 2)
atexit.register(store.close) if when == "before a log is open" else None
for number in range(20):
    store.append("t", b"%d" % number, key=b"%d" % number)
store.append("t", b"last", partition=1, sync=True)
atexit.register(store.close) if when == "at the end" else None
"""
    done = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with kstore.Store.open(root) as store:
        assert all(store.log("t", number).recovery.clean for number in (0, 1))
        assert sum(1 for _ in store.read("t")) == 21
