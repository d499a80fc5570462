"""The questions of scale.py, and how a process measures one phase of one size of them."""

from __future__ import annotations

import gc
import json
import os
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from many_segments import write_segments

import kstore
from kstore._core import crc32c
from kstore.disk import fs

VALUE = random.Random(20_261_123).randbytes(100)
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Cell:
    """One measured thing: `amount` each of seconds of a processor, bytes or a number, by `unit` "s", "B" or ""."""

    amount: float
    unit: str = ""
    wall: float = 0.0
    total: float = 0.0

    def __str__(self) -> str:
        if self.unit == "s":
            return f"{_seconds(self.amount)} ({_seconds(self.wall)})"
        if self.unit == "B":
            return _bytes(self.amount)
        return f"{self.amount:,.0f}" if self.amount >= 10 or self.amount == int(self.amount) else f"{self.amount:.1f}"


def _seconds(amount: float) -> str:
    for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if amount >= size:
            return f"{amount / size:,.3g} {name}" if amount < 1000 * size else f"{amount / size:,.0f} {name}"
    return f"{amount * 1e9:.0f} ns"


def _bytes(amount: float) -> str:
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(amount) >= size:
            return f"{amount / size:,.3g} {name}" if amount < 1000 * size else f"{amount / size:,.0f} {name}"
    return f"{amount:.0f} B"


class Meter:
    """What one process notes of its phase."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.cells: dict[str, Cell] = {}
        self.now_ms = START_MS
        self.syncs = 0
        fs.fsync = fs.fdatasync = self._sync
        fs.sync_directory = lambda path, *, missing_ok=False: self._sync(0)
        self._warm()
        self.before_bytes = resident_bytes()
        self.before_files = open_files()

    def _sync(self, fd: int) -> None:
        self.syncs += 1

    def _warm(self) -> None:
        """Do all once, so that what is loaded when it is first needed counts for no step."""
        with tempfile.TemporaryDirectory() as base:
            root = f"{base}/store"
            with kstore.Store.open(root, clock=self.clock, background=False) as store:
                store.create_topic("t", 2)
                for log in all_logs(store):
                    log.append(VALUE)
                    log.append_columns([VALUE], compression="zstd")
                    read_last(log)
                    log.offset_for_timestamp(START_MS)
                    assert sum(map(len, log.iter_columns()))
                store.run_housekeeping()
            kstore.replicate(root, f"{base}/copy")

    def clock(self) -> int:
        """The store's clock, which moves only when a phase says so."""
        return self.now_ms

    @contextmanager
    def step(self, name: str, each: int = 1, *, syncs: bool = False) -> Iterator[None]:
        """Measure what is done inside, as seconds of one of `each`; with `syncs` note how many it would have made."""
        gc.collect()
        before = self.syncs
        wall, used = time.perf_counter(), time.process_time()
        yield
        used, wall = time.process_time() - used, time.perf_counter() - wall
        self.cells[name] = Cell(used / each, "s", wall / each, used)
        if syncs:
            self.cells[f"{name}: syncs"] = Cell((self.syncs - before) / each)

    def memory(self, name: str = "memory") -> None:
        """Note how the resident memory has grown since the phase began."""
        self.cells[name] = Cell(max(resident_bytes() - self.before_bytes, 0), "B")

    def files(self, name: str = "open files") -> None:
        """Note how many more descriptors are open than when the phase began."""
        self.cells[name] = Cell(open_files() - self.before_files)

    def disk(self) -> None:
        """Note what the files take of the disk."""
        used = sum(each.lstat().st_blocks * 512 for each in Path(self.directory).rglob("*"))
        self.cells["disk"] = Cell(used, "B")


Phase = Callable[[int, Meter], None]


@dataclass(frozen=True)
class Question:
    """A question: its phases run one after the other on one directory, each in a process of its own."""

    name: str
    text: str
    counted: str
    sizes: tuple[int, ...]
    phases: tuple[Phase, ...]


def resident_bytes() -> int:
    """The process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    """How many descriptors the process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def run_phase(question: str, phase: str, size: str, directory: str) -> None:
    """Run one phase in this process, print its cells as a line of JSON, and end as in a crash."""
    (act,) = [each for each in QUESTIONS[question].phases if each.__name__ == phase]
    meter = Meter(directory)
    act(int(size), meter)
    print(json.dumps({name: asdict(cell) for name, cell in meter.cells.items()}), flush=True)
    sys.stderr.flush()
    os._exit(0)


def open_store(meter: Meter) -> kstore.Store:
    """The store of a question, without threads of its own."""
    return kstore.Store.open(meter.directory, clock=meter.clock, background=False)


def all_logs(store: kstore.Store) -> list[kstore.Log]:
    """The logs of all partitions, opened."""
    return [store.log(topic, number) for topic in store.topics for number in store.partitions(topic)]


def read_last(log: kstore.Log) -> None:
    """Read the newest record of a log."""
    (record,) = log.read(log.log_end_offset - 1)
    assert record.value is not None


# --- partitions, topics -----------------------------------------------------------------------------------------------


def make_partitions(size: int, meter: Meter) -> None:
    """One topic with so many partitions."""
    with_topics(meter, lambda store: store.create_topic("t", size), size)


def make_topics(size: int, meter: Meter) -> None:
    """So many topics of one partition."""
    with_topics(meter, lambda store: [store.create_topic(f"topic-{number}", 1) for number in range(size)], size)


def make_configured(size: int, meter: Meter) -> None:
    """So many topics of one partition, each with a setting of its own."""
    config = {"compression.type": "lz4"}
    with_topics(meter, lambda store: [store.create_topic(f"topic-{n}", 1, config=config) for n in range(size)], size)


def with_topics(meter: Meter, create: Callable[[kstore.Store], object], size: int) -> None:
    """Create, append to each partition, keep house, and leave all as after a crash."""
    store = open_store(meter)
    with meter.step("create, each", size, syncs=True):
        create(store)
    with meter.step("first append, each", size):
        for log in all_logs(store):
            log.append(VALUE)
    meter.memory()
    meter.files()
    names = random.Random(1).sample([(t, n) for t in store.topics for n in store.partitions(t)], size)
    with meter.step("append to any", size):
        for topic, number in names:
            store.log(topic, number).append(VALUE)
    meter.now_ms += HOUR_MS
    with meter.step("housekeeping, all written"):
        store.run_housekeeping()
    meter.now_ms += HOUR_MS
    with meter.step("housekeeping, idle"):
        store.run_housekeeping()
    for log in all_logs(store):
        log.append(VALUE)


def open_crashed_store(size: int, meter: Meter) -> None:
    """Recover every log, and close the store cleanly."""
    with meter.step("open after a crash"):
        store = open_store(meter)
    with meter.step("close", syncs=True):
        store.close()


def open_clean_store(size: int, meter: Meter) -> None:
    """Open what was closed, and use each log."""
    with meter.step("open, clean"):
        store = open_store(meter)
    meter.memory("memory, none open")
    with meter.step("open a log, each", size):
        logs = all_logs(store)
    with meter.step("read, each", size):
        for log in logs:
            read_last(log)
    store.close()


def delete_topics(size: int, meter: Meter) -> None:
    """Delete topics, at most 1,000, and remove their files when that is due."""
    store = open_store(meter)
    topics = store.topics[:1000]
    with meter.step("delete, each", len(topics)):
        for topic in topics:
            store.delete_topic(topic)
        meter.now_ms += HOUR_MS
        store.run_housekeeping()
    store.close()


OPENINGS = (open_crashed_store, open_clean_store)


# --- a follower -------------------------------------------------------------------------------------------------------


def fill_leader(size: int, meter: Meter) -> None:
    """A store to copy: a record in each partition."""
    with open_store(meter) as store:
        store.create_topic("t", size)
        for log in all_logs(store):
            log.append(VALUE)


def copy_leader(size: int, meter: Meter) -> None:
    """The first copy, and one that finds nothing new; the leader is not open."""
    source, target = meter.directory, f"{meter.directory}.copy"
    with meter.step("first copy", syncs=True):
        replication = kstore.replicate(source, target)
    meter.memory()
    meter.files()
    with meter.step("close"):
        replication.close()
    with meter.step("copy again, nothing new"):
        kstore.replicate(source, target)
    fs.remove_tree(target)


# --- segments ---------------------------------------------------------------------------------------------------------


def open_log(meter: Meter, **settings: int) -> kstore.Log:
    """The log of a question."""
    return kstore.Log.open(f"{meter.directory}/t-0", clock=meter.clock, **settings)  # type: ignore[arg-type]


def make_segments(size: int, meter: Meter) -> None:
    """A log of so many segments, a record in each."""
    with kstore.Log.open(f"{meter.directory}/t-0", clock=meter.clock) as log:
        path = Path(log.path)
    write_segments(path, size, VALUE, START_MS)


def use_segments(size: int, meter: Meter) -> None:
    """What is done to a log of so many segments."""
    with meter.step("open, clean"):
        log = open_log(meter)
    meter.memory("memory, opened")
    assert len(log.segments) == size
    look_at_random(log, size, meter)
    meter.memory("memory, all looked at")
    meter.files()
    meter.now_ms = START_MS + size
    rolls = 100
    with meter.step("append and roll, each", rolls, syncs=True):
        for _ in range(rolls):
            log.append(VALUE)
            log.roll()
    log.append(VALUE)
    log.update_config(retention_ms=10**12)
    with meter.step("retention, nothing due"):
        assert log.apply_retention() == []
    with meter.step("housekeeping"):
        log.run_housekeeping()


def look_at_random(log: kstore.Log, size: int, meter: Meter) -> None:
    """Find random offsets and times."""
    chance, looks = random.Random(2), 1000
    with meter.step("read at any offset", looks):
        for _ in range(looks):
            next(log.read(chance.randrange(size)))
    with meter.step("find a time, the first"):
        assert log.offset_for_timestamp(START_MS + size - 1) is not None
    with meter.step("find a time", looks):
        for _ in range(looks):
            assert log.offset_for_timestamp(START_MS + chance.randrange(size)) is not None


def open_crashed_log(size: int, meter: Meter) -> None:
    """As the crash has left it."""
    with meter.step("open after a crash"):
        open_log(meter).close()


def open_distrusted_log(size: int, meter: Meter) -> None:
    """With the marker and the checkpoints lost: everything is recovered."""
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        Path(meter.directory, name).unlink(missing_ok=True)
    with meter.step("recover all"):
        log = open_log(meter)
    assert log.recovery is not None
    log.close()


def open_clean_log(size: int, meter: Meter) -> None:
    """What was closed."""
    with meter.step("open, clean"):
        log = open_log(meter)
    meter.memory("memory, opened")
    log.close()


def delete_half(size: int, meter: Meter) -> None:
    """Read all, and delete the older half."""
    log = open_log(meter)
    with meter.step("read all"):
        assert sum(1 for _ in log.read()) == size + 101
    with meter.step("delete the older half"):
        log.delete_records(size // 2)
        meter.now_ms += HOUR_MS
        log.run_housekeeping()
    log.close()


# --- records ----------------------------------------------------------------------------------------------------------

BATCH = 100_000


def make_records(size: int, meter: Meter) -> None:
    """Records of one byte, in compressed batches of 100,000: encoded once, and copied with other offsets and times."""
    log = open_log(meter, segment_bytes=64 << 20)
    batch = bytearray(kstore.encode_batch([(None, b"x", 0, None)] * BATCH, compression="zstd"))
    with meter.step("copy in a batch", size // BATCH):
        for number in range(size // BATCH):
            struct.pack_into(">q", batch, 0, number * BATCH)
            struct.pack_into(">i", batch, 12, 0)  # the leader's epoch
            struct.pack_into(">qq", batch, 27, START_MS + number, START_MS + number)
            struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
            log.append_as_follower(batch)
    assert log.log_end_offset == size
    meter.cells["segments"] = Cell(len(log.segments))
    meter.memory()
    meter.files()
    chance, looks = random.Random(2), 200
    with meter.step("read at any offset", looks):
        for _ in range(looks):
            next(log.read(chance.randrange(size)))
    with meter.step("find a time", looks):
        for _ in range(looks):
            assert log.offset_for_timestamp(START_MS + chance.randrange(size // BATCH)) is not None
    with meter.step("housekeeping"):
        log.run_housekeeping()
    meter.disk()


# --- readers ----------------------------------------------------------------------------------------------------------

RECORDS, CHUNK = 200_000, 1000


def make_read(size: int, meter: Meter) -> None:
    """A log to read."""
    with open_log(meter) as log:
        log.append_many((None, VALUE) for _ in range(RECORDS))


def in_threads(count: int, act: Callable[[], object]) -> None:
    """Do the same in so many threads at once."""
    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_side_by_side(size: int, meter: Meter) -> None:
    """So many threads, each of which reads the whole log; then so many readers that wait for what is appended."""
    with open_log(meter) as log:
        with meter.step("a record by rows, each reader", size * RECORDS):
            in_threads(size, lambda: [None for _ in log.read()].clear())
        with meter.step("by columns", size * RECORDS):
            in_threads(size, lambda: [None for _ in log.iter_columns(threads=1)].clear())
        ready = threading.Semaphore(0)

        def follow() -> None:
            end = log.log_end_offset
            records = log.read(end, follow=True)
            ready.release()
            for _ in range(CHUNK):
                next(records)

        def append() -> None:
            for _ in range(size):
                ready.acquire()
            for _ in range(CHUNK):
                log.append(VALUE)

        with meter.step("a followed record, each reader", size * CHUNK):
            appending = threading.Thread(target=append)
            appending.start()
            in_threads(size, follow)
            appending.join()
        meter.memory("memory of the threads")
    readers = []
    meter.before_bytes = resident_bytes()
    with meter.step("open for reading, each", size):
        readers += [kstore.Log.open(f"{meter.directory}/t-0", "r") for _ in range(size)]
    for reader in readers:
        read_last(reader)
    meter.memory("memory of the open logs")
    meter.files()


# --- producers --------------------------------------------------------------------------------------------------------


def make_producers(size: int, meter: Meter) -> None:
    """A batch of each producer, another of each, a snapshot of all, and a look for expired ones."""
    log = open_log(meter)
    record = (None, VALUE, START_MS, None)
    for sequence in range(2):
        batches = [
            kstore.encode_batch([record], producer_id=n, producer_epoch=0, base_sequence=sequence) for n in range(size)
        ]
        with meter.step(("first batch, each", "next batch, each")[sequence], size):
            for batch in batches:
                log.append_batch(batch)
        if sequence == 0:
            del batches, batch
            meter.memory()
    with meter.step("snapshot at a roll"):
        log.roll()
    with meter.step("housekeeping"):
        log.run_housekeeping()
    with meter.step("producer_states()"):
        assert len(log.producer_states()) == size


# --- all of them ------------------------------------------------------------------------------------------------------

_ALL = (
    Question(
        "partitions",
        "One topic of so many partitions",
        "partitions",
        (10, 100, 1_000, 10_000, 20_000),
        (make_partitions, *OPENINGS),
    ),
    Question(
        "topics",
        "So many topics of one partition",
        "topics",
        (10, 100, 1_000, 5_000),
        (make_topics, *OPENINGS, delete_topics),
    ),
    Question(
        "configured-topics",
        "So many topics of one partition, each with a setting of its own",
        "topics",
        (10, 100, 1_000),
        (make_configured, *OPENINGS, delete_topics),
    ),
    Question(
        "follower",
        "A follower of so many partitions",
        "partitions",
        (10, 100, 1_000, 5_000),
        (fill_leader, copy_leader),
    ),
    Question(
        "segments",
        "One log of so many segments",
        "segments",
        (1, 10, 100, 1_000, 10_000, 100_000),
        (make_segments, open_distrusted_log, use_segments, open_crashed_log, delete_half),
    ),
    Question(
        "records",
        "One log of so many records, in batches of 100,000",
        "records",
        (1_000_000, 10_000_000, 100_000_000, 2_000_000_000),
        (make_records, open_crashed_log, open_distrusted_log, open_clean_log),
    ),
    Question("readers", "So many readers of one log", "readers", (1, 4, 16, 64), (make_read, read_side_by_side)),
    Question(
        "producers",
        "One log with so many producers",
        "producers",
        (10, 100, 1_000, 10_000, 100_000),
        (make_producers, open_crashed_log, open_distrusted_log, open_clean_log),
    ),
)

QUESTIONS = {question.name: question for question in _ALL}
