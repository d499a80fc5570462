"""Readers beside a log that is compacted over and over: in other processes, in threads, and after kills of the writer.

What each sees is told by the records: a value carries the number of the append that wrote it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kstore
from tests.conftest import SEED
from tests.support.puppet import Puppet
from tests.support.verifying import errors

COMPACTIONS = 1000
KEYS = 20

SETTINGS: dict[str, Any] = {
    "segment_bytes": 4000,
    "index_interval_bytes": 300,
    "cleanup_policy": "compact",
    "delete_retention_ms": 50,
    "file_delete_delay_ms": 20,
    "min_cleanable_dirty_ratio": 0.0,
}

FOLLOWER = """
import kstore

def follow(path, end_key):
    newest, offsets = {}, 0
    last = -1
    with kstore.Log.open(path, "r") as log:
        for record in log.read(follow=True, timeout=60):
            assert record.offset > last, (record.offset, last)
            last = record.offset
            offsets += 1
            if record.value is None:
                newest.pop(record.key, None)
            else:
                newest[record.key] = (record.offset, record.value)
            if record.key == end_key:
                break
    return {key.decode(): [at, value.decode()] for key, (at, value) in newest.items()}, offsets
"""


def test_a_follower_elsewhere_sees_each_keys_newest_value_through_compactions(partition: Path, no_syncs: None) -> None:
    rng = random.Random(SEED)
    newest: dict[str, list[Any]] = {}
    with Puppet(FOLLOWER) as follower, kstore.Log.open(partition, **SETTINGS) as log:
        log.append(b"0", key=b"first")
        newest["first"] = [0, "0"]
        follower.begin(f"answer = follow({str(partition)!r}, b'end')")
        count = 0
        for number in range(COMPACTIONS):
            for _ in range(rng.randint(1, 6)):
                count += 1
                key, value = f"k{rng.randrange(KEYS)}", f"{count}"
                newest[key] = [log.append(value.encode(), key=key.encode()), value]
            log.compact(roll=number % 3 > 0)
        newest["end"] = [log.append(b"end", key=b"end"), "end"]
        seen, offsets = follower.answer()
        assert seen == newest
        assert offsets >= len(newest)
        assert {r.key.decode(): [r.offset, r.value.decode()] for r in log.read()} == newest


READERS = """
import itertools, threading, time
import kstore
from kstore._core import decode_batches

def by_rows(log, start):
    return [(r.offset, r.key, r.value) for r in log.read(start)]

def by_committed_rows(log, start):
    return [(r.offset, r.key, r.value) for r in log.read(start, isolation="read_committed")]

def by_batches(log, start):
    return [(r.offset, r.key, r.value) for b in log.read_batches(start) if not b.is_control for r in b
            if r.offset >= start]

def by_columns(log, start):
    rows = log.read_columns(start)
    return list(zip(rows.offsets.tolist(), list(rows.keys), list(rows.values)))

def by_chunks(log, start):
    return [row for rows in log.iter_columns(start, max_records=7)
            for row in zip(rows.offsets.tolist(), list(rows.keys), list(rows.values))]

def by_fetches(log, start):
    found, end = [], log.log_end_offset
    while start < end:
        data = bytes(log.fetch(start, 700).records)
        if not data:
            break
        batches = list(decode_batches(data))
        found += [(r.offset, r.key, r.value) for b in batches if not b.is_control for r in b if r.offset >= start]
        start = batches[-1].last_offset + 1
    return found

def by_a_slow_iterator(log, start):
    found = []
    for r in log.read(start):
        found.append((r.offset, r.key, r.value))
        if r.offset % 16 == 0:
            time.sleep(0)
    return found

def by_views(log, start):
    held = [(rows, rows.offsets.tolist(), list(rows.keys), list(rows.values))
            for rows in log.iter_columns(start, max_records=5, layout="view")]
    for rows, offsets, keys, values in held:  # what was handed out stays as it was
        assert rows.offsets.tolist() == offsets and list(rows.keys) == keys and list(rows.values) == values
    return [row for _, *three in held for row in zip(*three)]

KINDS = (by_rows, by_committed_rows, by_batches, by_columns, by_chunks, by_fetches, by_a_slow_iterator, by_views)

def check(found):
    '''The newest record of each key: (offset, whether it is a tombstone).'''
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)), "out of order, or seen twice"
    newest = {}
    for offset, key, value in found:
        assert value is None or value == b"%s %d" % (key, offset) or value.startswith(b"%s %d " % (key, offset)), value
        newest[key] = (offset, value is None)
    return newest

def use(log, stop, seen, number, floor=None):
    '''Read again and again, in each way, until `stop`, and count the passes; a key's newest offset never goes back.'''
    last, passes = {}, 0
    while not stop():
        kind = KINDS[(passes + number) % len(KINDS)]
        before = dict(last if floor is None else floor())
        start, found = 0, []
        for _ in range(100):
            end = log.log_end_offset
            found += kind(log, start)
            newest = check(found)
            # A pass ends where the log ended: what is superseded by a record behind it may be gone.
            start = max(end, found[-1][0] + 1 if found else 0)
            if all(newest.get(key, (-1,))[0] >= known[0] for key, known in before.items()):
                break
        else:
            raise AssertionError(f"{kind.__name__} up to {start} lacks what is in {before}: {newest}")
        last = newest
        for at in log.offset_for_timestamp(0), log.max_timestamp():
            assert at is None or at.offset >= 0
        table = log.batch_table()
        assert list(table["base_offset"]) == sorted(table["base_offset"])
        seen[number] = passes = passes + 1
"""


class Beside:
    """A log that is appended to and compacted by two threads, for so many seconds and until each reader has read it."""

    def __init__(self, log: kstore.Log, rng: random.Random, seconds: float, readers: int) -> None:
        self.log, self.rng = log, rng
        self.floor: dict[bytes, tuple[int, bool]] = {}
        self.deadline = time.monotonic() + seconds
        self.failures: list[BaseException] = []
        self.compactions = 0
        self.readers = readers
        self.passes: dict[int, int] = {}

    def is_over(self) -> bool:
        enough = len(self.passes) == self.readers and self.compactions > 5
        return bool(self.failures) or (enough and time.monotonic() > self.deadline)

    def known(self) -> dict[bytes, tuple[int, bool]]:
        return self.floor

    def guarded(self, work: Callable[..., object], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def append(self) -> None:
        """Append records whose values tell their keys and offsets, by plain appends, in batches and in transactions."""
        while not self.is_over():
            key = b"k%d" % self.rng.randrange(KEYS)
            offset = self.log.log_end_offset
            if self.rng.random() < 0.1:
                assert self.log.append(None, key=key) == offset
                self.floor[key] = offset, True
            elif self.rng.random() < 0.5:
                assert self.log.append(b"%s %d" % (key, offset), key=key) == offset
                self.floor[key] = offset, False
            else:
                keys = [b"k%d" % self.rng.randrange(KEYS) for _ in range(self.rng.randint(2, 12))]
                rows = [(each, b"%s %d %s" % (each, offset + n, b"x" * n)) for n, each in enumerate(keys)]
                self.log.append_many(rows, compression=self.rng.choice(("none", "lz4", "zstd")))
                for number, each in enumerate(keys):
                    self.floor[each] = offset + number, False

    def compact(self) -> None:
        while not self.is_over():
            self.log.compact(roll=self.rng.random() < 0.5)
            self.compactions += 1


def test_every_reader_in_threads_and_processes_sees_each_keys_newest_value(
    partition: Path, no_syncs: None, budget: Callable[[float], float]
) -> None:
    namespace: dict[str, Any] = {}
    exec(READERS, namespace)
    rng = random.Random(SEED)
    settings = {**SETTINGS, "delete_retention_ms": 3_600_000}
    seconds = min(budget(6), 60)
    with (
        Puppet(READERS) as other,
        kstore.Log.open(partition, **settings) as log,
    ):
        log.append(b"k0 0", key=b"k0")
        other.begin(f"""
            seen, deadline = {{}}, time.monotonic() + {seconds}
            with kstore.Log.open({str(partition)!r}, "r") as log:
                use(log, lambda: seen and time.monotonic() > deadline, seen, 0)
        """)
        beside = Beside(log, rng, seconds, readers=3)
        threads = [beside.guarded(beside.append), beside.guarded(beside.compact)]
        for number in range(3):
            floor = lambda: beside.floor  # noqa: E731
            threads.append(beside.guarded(namespace["use"], log, beside.is_over, beside.passes, number * 3, floor))
        for thread in threads:
            thread.join()
        if beside.failures:
            raise beside.failures[0]
        other.answer()
        assert namespace["check"](namespace["by_rows"](log, 0)) == beside.floor


LIVES = """
import os, random, signal, threading, time
import kstore
from kstore.disk import fs

def live(path, journal, seed, settings, syncs, amid):
    '''Append and compact until the end, which is a kill; the journal says what is begun, and what is done.'''
    if amid:  # no later than with the first cleaned segment
        fs.set_modified = lambda path, modified_ns: os.kill(os.getpid(), signal.SIGKILL)
    if not syncs:  # a kill takes nothing from the page cache
        fs.fsync = fs.fdatasync = lambda fd: None
        fs.sync_directory = lambda path, *, missing_ok=False: None
    rng = random.Random(seed)
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    log = kstore.Log.open(path, **settings)

    def compact():
        own = random.Random(seed)
        try:
            while True:
                log.compact(roll=own.random() < 0.7)
        except BaseException as error:
            os.write(out, b"fault %s\\n" % repr(error).encode())
            os._exit(3)

    threading.Thread(target=compact, daemon=True).start()
    number = 0
    while True:
        number += 1
        key, value = b"k%d" % rng.randrange(15), b"%s.%d" % (seed.encode(), number)
        os.write(out, b"begin %s %s\\n" % (key, value))
        if rng.random() < 0.05:
            offset = log.append(value, key=key, sync=True)
        else:
            offset = log.append(value, key=key)
        os.write(out, b"done %d %s %s\\n" % (offset, key, value))

def live_and_die(path, journal, seed, settings, syncs, seconds):
    '''One life of so many seconds; if None, it ends amid a compaction.'''
    child = os.fork()
    if child == 0:
        try:
            live(path, journal, seed, settings, syncs, seconds is None)
        finally:
            os._exit(1)
    if seconds is None:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    deadline = time.monotonic() + 60
    while not os.path.exists(journal) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


class Journal:
    """What the lives of a log have said: what was acknowledged, and the one append that may or may not be there."""

    def __init__(self) -> None:
        self.done: dict[int, tuple[bytes, bytes]] = {}
        self.begun: tuple[bytes, bytes] | None = None

    def read(self, path: Path) -> None:
        self.begun = None
        for line in path.read_bytes().splitlines(keepends=True):
            word, *rest = line.split()
            assert word != b"fault", line
            if not line.endswith(b"\n"):
                break
            if word == b"begin":
                self.begun = rest[0], rest[1]
            else:
                self.begun = None
                self.done[int(rest[0])] = rest[1], rest[2]

    def judge(self, log: kstore.Log) -> None:
        """Hold what is there against what was acknowledged."""
        there = {record.offset: (record.key, record.value) for record in log.read()}
        for offset, pair in there.items():
            if offset not in self.done:
                assert pair == self.begun
                assert offset == max(self.done, default=-1) + 1
                self.done[offset] = pair  # it is there, and stays
        newest = {key: offset for offset, (key, _) in sorted(self.done.items())}
        assert {offset: self.done[offset] for offset in there} == there
        assert set(newest.values()) <= there.keys()
        active = log.segments[-1].base_offset if log.segments else 0  # it may be killed before that is made
        assert {offset for offset in self.done if offset >= active} <= there.keys()
        assert log.log_end_offset == max(self.done, default=-1) + 1
        columns = log.read_columns()
        assert columns.offsets.tolist() == list(there)


def test_a_log_that_is_killed_while_it_is_compacted_keeps_each_keys_newest_value(
    partition: Path, tmp_path: Path, budget: Callable[[float], float]
) -> None:
    rng = random.Random(SEED)
    journal = Journal()
    deadline = time.monotonic() + min(budget(12), 120)
    with Puppet(LIVES) as process:
        number = 0
        while time.monotonic() < deadline and number < 400:
            number += 1
            said = tmp_path / f"journal-{number}"
            settings = {**SETTINGS, "segment_bytes": rng.choice((1500, 4000, 20_000))}
            life = str(partition), str(said), f"{SEED}.{number}", settings, rng.random() < 0.3
            seconds = rng.random() ** 2 * 0.1 if number % 8 else None
            code = process.do(f"answer = live_and_die(*{life!r}, {seconds})")
            journal.read(said)
            assert code == -9
            if not partition.exists():
                continue  # killed before there was a log
            names = {path.suffix for path in partition.iterdir()}
            assert seconds is not None or ".cleaned" in names
            with kstore.Log.open(partition, "r") as log:
                journal.judge(log)
            if number % 5 == 0:
                assert errors(partition) == []
    with kstore.Log.open(partition, **SETTINGS) as log:
        journal.judge(log)
        log.compact(roll=True)
        newest = {key: offset for offset, (key, _) in sorted(journal.done.items())}
        assert [record.offset for record in log.read()] == sorted(newest.values())
    assert errors(partition) == []
