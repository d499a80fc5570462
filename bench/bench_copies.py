"""How fast are copies? A replica, a backup and a restore of a GiB beside cp; a follower's delay; what copies cost.

values-100 in batches-16k, in four partitions with segments of 64 MiB (smaller ones in a quick look). Contestants take
turns, so that a machine that is busy for a while is busy for all. In memory (/dev/shm where there is one) cp is as fast
as it can be; on the disk both end with a sync of everything, which kstore's copies do by themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from common import GIB, KIB, MIB, VALUE, Question, report, scaled, settle, timed_rows
from limits.copies import copied_every_second

import kstore
from kstore.copies.backups.backup import back_up_directory

HERE = Path(__file__).parent
CP = "cp -r"
ROUNDS = 5
PARTITIONS = 4
SEGMENT_BYTES = max(scaled(64 * MIB), MIB)
COPY_SIZE = scaled(GIB)
Act = Callable[[Path], object]


def beside_cp(what: str, place: str, least: float) -> Question:
    return Question(f"{what} of {COPY_SIZE / GIB:.3g} GiB, {place}", "bytes", against=((CP, least),))


@pytest.fixture(params=["in memory", "on the disk, synced"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Where to copy, in words, and an empty directory there."""
    shared = "/dev/shm"
    directory = shared if request.param == "in memory" and os.access(shared, os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(dir=directory) as path:
        yield request.param, Path(path)


def filled(path: Path, size: int, segment_bytes: int = SEGMENT_BYTES) -> Path:
    """A closed store of so many bytes of batches."""
    rows = size // (len(VALUE) + 10) // PARTITIONS
    with kstore.Store.open(path, background=False) as store:
        store.create_topic("events", PARTITIONS, config={"segment.bytes": str(segment_bytes)})
        for number in range(PARTITIONS):
            store.log("events", number).append_many(timed_rows(rows), batch_bytes=16 * KIB)
    settle(path)
    return path


def bytes_below(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def by_turns(question: Question, contestants: dict[str, Act], directory: Path, size: int, *, synced: bool) -> None:
    """Let each make its copy, in turns, each time into a directory that is not there; the first turn does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(ROUNDS + 1):
        for name, act in contestants.items():
            target = directory / f"copy-{turn}"
            begun = time.perf_counter()
            act(target)
            if synced:
                settle(target)
            seconds[name].append(time.perf_counter() - begun)
            assert bytes_below(target) >= size * 0.99
            shutil.rmtree(target)
    for name, rounds in seconds.items():
        report(question, name, rounds[1:], operations=1, size_bytes=size)


def cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)


# --- copies beside cp -------------------------------------------------------------------------------------------------


def test_replicate(place: tuple[str, Path]) -> None:
    where, directory = place
    source = filled(directory / "source", COPY_SIZE)
    contestants: dict[str, Act] = {
        "kstore": lambda target: kstore.replicate(source, target),
        CP: partial(cp, source),
    }
    question = beside_cp("replicate", where, 0.6)
    by_turns(question, contestants, directory, log_bytes(source), synced=where != "in memory")


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.log"))


def test_backup_and_restore(place: tuple[str, Path]) -> None:
    where, directory = place
    source = filled(directory / "source", COPY_SIZE)
    size, synced = log_bytes(source), where != "in memory"
    sends: dict[str, Act] = {
        "kstore": lambda target: back_up_directory([source], str(target)).close(),
        CP: partial(cp, source),
    }
    by_turns(beside_cp("backup to a local directory", where, 0.5), sends, directory, size, synced=synced)
    backup = directory / "backup"
    back_up_directory([source], str(backup)).close()
    shutil.rmtree(source)
    gets: dict[str, Act] = {
        "kstore": lambda target: kstore.restore(str(backup), target),
        CP: partial(cp, backup),
    }
    by_turns(beside_cp("restore from a local directory", where, 0.5), gets, directory, size, synced=synced)


# --- behind a writer --------------------------------------------------------------------------------------------------

RATE = 1_000
DELAYS = {
    share: Question(f"{name} of a record's way into a follower, {RATE:,} records a second", "time", most)
    for share, name, most in ((0.5, "p50", 0.005), (0.99, "p99", 0.025))
}
FOLLOWER_SHARE = Question(f"a follower's share of a processor, {RATE:,} records a second, reading included", "share")
IDLE_SHARES = {
    count: Question(f"a follower's share of a processor behind {count} partitions that stand still", "share", most)
    for count, most in ((10, 0.005), (500, 0.02))
}


@contextmanager
def copying(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`copying.py` with these arguments; killed if it has not ended by itself."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "copying.py"), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(Path(kstore.__file__).parent.parent)])}


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_delay_of_a_follower(tmp_path: Path) -> None:
    count = max(scaled(20 * RATE), RATE)
    with kstore.Store.open(tmp_path / "source") as store:
        store.create_topic("events")
        log = store.log("events", 0)
        with copying("follow", tmp_path / "source", tmp_path / "copy", count) as follower:
            assert first_line(follower) == "ready\n"
            begun = time.perf_counter()
            for number in range(count):
                wait = begun + number / RATE - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                log.append(b"%020d" % time.monotonic_ns() + VALUE[:80])
            found = json.loads(follower.communicate(timeout=60)[0])
    lags = sorted(found["lags"])
    assert len(lags) == count
    for share, question in DELAYS.items():
        report(question, "kstore", [lags[int(len(lags) * share)]], operations=1)
    report(FOLLOWER_SHARE, "kstore", [found["share"]], operations=1)


@pytest.mark.parametrize("count", IDLE_SHARES)
def test_share_of_an_idle_follower(tmp_path: Path, count: int) -> None:
    with kstore.Store.open(tmp_path / "source") as store:
        store.create_topic("events", count)
        for number in range(count):
            store.log("events", number).append(VALUE)
        with copying("keep-up", tmp_path / "source", tmp_path / "copy") as follower:
            assert first_line(follower) == "ready\n"
            time.sleep(4)
            used, begun = processor_seconds(follower.pid), time.perf_counter()
            time.sleep(max(10 * scaled(1000) / 1000, 2))
            share = (processor_seconds(follower.pid) - used) / (time.perf_counter() - begun)
    report(IDLE_SHARES[count], "kstore", [max(share, 1e-6)], operations=1)


def processor_seconds(pid: int) -> float:
    """What a process has used of a processor, user and system, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- appends on the source --------------------------------------------------------------------------------------------

ALONE = "alone"
BOUND = "bound: a thread that syncs and copies"
APPENDS = {
    "followed": Question("appends of 100 bytes on the source, followed by another process", against=((ALONE, 0.95),)),
    "backed up": Question("appends of 100 bytes on the source, backed up every second", against=((ALONE, 0.95),)),
}
APPEND_SECONDS = max(scaled(3000) / 1000, 0.5)


@contextmanager
def followed(store: kstore.Store, directory: Path) -> Iterator[None]:
    with copying("keep-up", store.paths[0], directory) as follower:
        assert first_line(follower) == "ready\n"
        yield


@contextmanager
def copied(store: kstore.Store, directory: Path) -> Iterator[None]:
    with copied_every_second(Path(store.paths[0], "events-0"), directory):
        yield


@contextmanager
def backed_up(store: kstore.Store, directory: Path) -> Iterator[None]:
    with kstore.backup(store, str(directory), every=1.0):
        yield


def seconds_an_append(log: kstore.Log) -> float:
    append, count, begun = log.append, 0, time.perf_counter()
    while (now := time.perf_counter()) - begun < APPEND_SECONDS:
        for _ in range(1000):
            append(VALUE)
        count += 1000
    return (now - begun) / count


@pytest.mark.parametrize("how", APPENDS)
def test_appends_beside_a_copy(tmp_path: Path, how: str) -> None:
    """Each turn has a store of its own; which contestant begins alternates."""
    besides = {"kstore": followed} if how == "followed" else {"kstore": backed_up, BOUND: copied}
    seconds: dict[str, list[float]] = {name: [] for name in (ALONE, *besides)}
    for turn in range(ROUNDS + 1):
        for name in sorted(seconds, reverse=turn % 2 == 1):
            path = tmp_path / f"{turn}-{name}"
            with kstore.Store.open(path / "source") as store:
                store.create_topic("events", config={"segment.bytes": str(SEGMENT_BYTES)})
                log = store.log("events", 0)
                log.append(VALUE)
                if name == ALONE:
                    seconds[name].append(seconds_an_append(log))
                else:
                    with besides[name](store, path / "copy"):
                        seconds[name].append(seconds_an_append(log))
            shutil.rmtree(path)
    for name, rounds in seconds.items():
        report(APPENDS[how], name, rounds[1:], operations=1)


# --- memory -----------------------------------------------------------------------------------------------------------

QUARTER = "of a quarter of it"
MEMORY = {
    kind: Question(f"peak memory of {what} of {COPY_SIZE / GIB:.3g} GiB", "memory", against=((QUARTER, 0.8),))
    for kind, what in (("replicate", "replicate"), ("back-up", "a backup"), ("restore", "a restore"))
}


LEAST_MEMORY = 8 * MIB  # below, how much the last segments happen to hold makes the difference


def test_peak_memory(tmp_path: Path) -> None:
    """Over what the imports take, 8 MiB at least; it must not grow with the size of the copy."""
    for name, size in (("kstore", COPY_SIZE), (QUARTER, COPY_SIZE // 4)):
        path = tmp_path / name.replace(" ", "-")
        filled(path / "source", size, SEGMENT_BYTES // 4)  # so that a quarter of it keeps all threads busy, too
        for kind, source, target in (
            ("replicate", path / "source", path / "replica"),
            ("back-up", path / "source", path / "backup"),
            ("restore", path / "backup", path / "restored"),
        ):
            done = subprocess.run(
                [sys.executable, str(HERE / "copying.py"), kind, source, target],
                env=environment(), capture_output=True, text=True, check=True,
            )  # fmt: skip
            report(MEMORY[kind], name, [max(int(done.stdout), LEAST_MEMORY)], operations=1)
        shutil.rmtree(path)
