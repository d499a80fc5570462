"""How soon does a follower in another process have a record, and what do it and the writer pay?

The bound is a bare wake-up: a process of Python blocks in the read of a pipe, through which the value comes. LMDB and
SQLite are polled, with pauses from 0.2 to 5 ms. `limits/wakes.py` compares the ways of waking.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
from common import VALUE, Question, report, scaled
from limits import wakes

import kstore

HERE = Path(__file__).parent

BOUND = "bound: a bare wake-up, through a pipe"
RATES = {10: 3.0, 100: 3.0, 1_000: 2.0, 10_000: 2.0}
FOLLOWERS = {"kstore": "kstore", BOUND: "pipe", "SQLite, NORMAL, polled": "sqlite", "LMDB, polled": "lmdb"}
SHARES = {10: 0.003, 1_000: 0.04}  # the most of a processor that a follower may take
POLLED = (("SQLite, NORMAL, polled", 1.0), ("LMDB, polled", 1.0))


def lag(what: str, rate: int) -> Question:
    text = f"{what} of a record's way to a follower in another process, {rate:,} records a second"
    if what == "p99":
        return Question(text, "time", against=((BOUND, 1 / 1.5),))
    return Question(text, "time", 150e-6, against=((BOUND, 1 / 1.5), *POLLED))


def follower_share(rate: int) -> Question:
    return Question(f"a follower's share of a processor, {rate:,} records a second", "share", SHARES.get(rate))


class Pipe:
    """A pipe in place of a store."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path / "pipe")
        self._fd = os.open(path / "pipe", os.O_RDWR)

    def put_one(self, value: bytes) -> None:
        os.write(self._fd, value)

    def close(self) -> None:
        os.close(self._fd)


class Log:
    """A store with one topic."""

    def __init__(self, path: Path) -> None:
        self._store = kstore.Store.open(path)
        self._store.create_topic("events")
        self.put_one: Callable[[bytes], object] = self._store.log("events", 0).append

    def close(self) -> None:
        self._store.close()


def opened(kind: str, path: Path) -> Any:
    if kind == "kstore":
        return Log(path)
    if kind == "sqlite":
        return peers.Sqlite(path, synchronous="normal")
    path.mkdir()
    return Pipe(path) if kind == "pipe" else peers.Lmdb(path)


@contextlib.contextmanager
def following(kind: str, path: Path, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process of follower.py, which is ready."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "follower.py"), kind, str(path), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(Path(kstore.__file__).parent.parent)])},
    ) as follower:
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "ready\n"
            yield follower
        finally:
            follower.kill()


def put_paced(put: Callable[[bytes], object], rate: float, count: int) -> float:
    """Put values with the time in them; return the seconds that the calls took, each."""
    took, begun = 0.0, time.perf_counter()
    for number in range(count):
        wait = begun + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        before = time.perf_counter()
        put(b"%020d" % time.monotonic_ns() + VALUE[:80])
        took += time.perf_counter() - before
    return took / count


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("contestant", FOLLOWERS)
def test_lag_across_processes(tmp_path: Path, contestant: str, rate: int) -> None:
    kind = FOLLOWERS[contestant]
    count = max(scaled(int(rate * RATES[rate])), 10)
    with contextlib.closing(opened(kind, tmp_path / kind)) as store:
        put_paced(store.put_one, rate, 1)  # the first append creates files
        with following(kind, tmp_path / kind, count + 1) as follower:
            put_paced(store.put_one, rate, count)
            found = json.loads(follower.communicate(timeout=60)[0])
    lags = sorted(found["lags"][1:])
    report(lag("p50", rate), contestant, [statistics.median(lags)], operations=1)
    report(lag("p99", rate), contestant, [lags[int(len(lags) * 0.99)]], operations=1)
    report(follower_share(rate), contestant, [found["share"]], operations=1)


# --- what the writer pays ---------------------------------------------------------------------------------------------

ALONE = "nobody follows"
BACK_TO_BACK = Question(
    "appends of 100 bytes back to back, one follower in another process", against=((ALONE, 1 / 1.15),)
)
EIGHT = Question("appends of 100 bytes back to back, eight followers in other processes")
PACED = Question("the writer's time of an append, 1,000 a second, one follower in another process", "time")


@contextlib.contextmanager
def followed(tmp_path: Path, followers: int) -> Iterator[Log]:
    with contextlib.closing(Log(tmp_path / "kstore")) as store, contextlib.ExitStack() as stack:
        for _ in range(followers):
            stack.enter_context(following("kstore", tmp_path / "kstore", 1 << 60))
        yield store


def processor_seconds_of_appends(store: Log, count: int) -> float:
    begun = time.thread_time()
    put = store.put_one
    for _ in range(count):
        put(VALUE)
    return time.thread_time() - begun


@pytest.mark.parametrize(("question", "followers"), [(BACK_TO_BACK, 1), (BACK_TO_BACK, 0), (EIGHT, 8), (EIGHT, 0)])
def test_appends_back_to_back(tmp_path: Path, question: Question, followers: int) -> None:
    """By the processor time of the writer's thread."""
    count = scaled(400_000)
    with followed(tmp_path, followers) as store:
        processor_seconds_of_appends(store, count // 10)
        rounds = [processor_seconds_of_appends(store, count) for _ in range(3)]
    report(question, "kstore" if followers else ALONE, rounds, operations=count)


@pytest.mark.parametrize("followers", [1, 0])
def test_a_paced_append(tmp_path: Path, followers: int) -> None:
    with followed(tmp_path, followers) as store:
        seconds = put_paced(store.put_one, 1_000, scaled(4_000))
    report(PACED, "kstore" if followers else ALONE, [seconds], operations=1)


# --- idle followers ---------------------------------------------------------------------------------------------------

IDLE = {
    1: Question("an idle follower's share of a processor, in a process of its own", "share", 0.0005),
    64: Question("the share of a processor of 64 idle followers of one log", "share", 0.01),
}

IDLERS = """
import sys, threading, kstore
log = kstore.Store.open(sys.argv[1], "r").log("events", 0)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=lambda: next(log.read(follow=True)), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("count", IDLE)
def test_idle_followers(tmp_path: Path, count: int) -> None:
    seconds = max(scaled(10), 2)
    with contextlib.closing(Log(tmp_path / "kstore")):
        command = [sys.executable, "-c", IDLERS, str(tmp_path / "kstore"), str(count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as idlers:
            assert idlers.stdout is not None
            assert idlers.stdout.readline() == "ready\n"
            time.sleep(1)
            used = processor_seconds(idlers.pid)
            time.sleep(seconds)
            used = processor_seconds(idlers.pid) - used
            idlers.kill()
    report(IDLE[count], "kstore", [max(used / seconds, 1e-6)], operations=1)


def processor_seconds(pid: int) -> float:
    """What a process has run, of all its threads, by the scheduler's nanoseconds."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


# --- ways of waking, in C ---------------------------------------------------------------------------------------------

WAKE = Question("a wake-up of another process in C, p50, 1,000 writes a second", "time")
WAKING = Question("a write of 100 bytes and its wake-up in C, 1,000 a second", "time")


@pytest.mark.parametrize("way", wakes.WAYS)
def test_ways_of_waking(tmp_path: Path, way: str) -> None:
    found = wakes.wakes(tmp_path, way, 1_000, scaled(4_000))
    report(WAKING, way, [found.writer], operations=1)
    if found.p50:
        report(WAKE, way, [found.p50], operations=1)
