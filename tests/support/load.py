"""A writer under full load and readers that judge what they see: run in processes and threads by test_processes.py.

Every value says its own offset and the generation in which it was written; a truncation or a new start begins the
next generation. The writer notes each such change in a journal before it makes it. From a record and the one before it
a reader so tells bytes that are torn (a value does not fit itself), stale (a record that had been cut stands before one
that was written after the cut) and missing (a gap that no noted change explains).

    python load.py write PARTITION SECONDS SEED THREADS      python load.py KIND PARTITION SEED
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kstore

T0 = 1_700_000_000_000
HEAD = struct.Struct(">QI")  # offset, generation
FILLER = bytes(range(256)) * 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = {
    "segment_bytes": 256 << 10,
    "index_interval_bytes": 1024,
    "segment_index_bytes": 2400,
    "file_delete_delay_ms": 100,
}
LARGEST = 48 << 20  # bytes of log at which the writer cuts deep, so that a long run does not fill a disk


def value_of(offset: int, generation: int) -> bytes:
    return HEAD.pack(offset, generation) + FILLER[: (offset * 7 + generation * 13) % 251]


def timestamp_of(offset: int) -> int:
    return T0 + offset // 3


class Misread(AssertionError):
    """A reader saw what no history of the log explains."""


class Journal:
    """Changes that take records away: lines of (generation, first offset cut, first missing, next offset)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changes: list[tuple[int, int, int, int]] = []
        self._starts: list[int] = []
        self._read = 0
        self._lock = threading.Lock()

    def note(self, **change: int) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(change) + "\n")

    def refresh(self) -> None:
        with self._lock, open(self.path, "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                change = json.loads(line)
                if "start" in change:
                    self._starts.append(change["start"])
                else:
                    self._changes.append((change["generation"], change["cut"], change["end"], change["next"]))

    def explains(self, generation: int, then: int, generation_then: int, missing: range) -> str | None:
        """Why a record of `generation_then` at `then` cannot follow one of `generation` before `missing`; else None."""
        self.refresh()
        before = missing.start - 1
        for number, cut, _, _ in self._changes:
            if generation < number <= generation_then and cut <= before:
                return f"generation {number} had cut {before} when {then} was written"
        left = set(missing)
        for number, _, end, upto in self._changes:
            if number <= generation_then:
                left.difference_update(range(max(end, missing.start), min(upto, missing.stop)))
        return f"{min(left)} to {max(left)} are missing" if left else None

    @property
    def highest_start(self) -> int:
        self.refresh()
        return max(self._starts, default=0)


class Judge:
    """Looks at records one after the other, as one iterator gives them."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.last: tuple[int, int] | None = None
        self.seen = 0

    def see(self, record: kstore.Record) -> None:
        value = record.value
        if value is None or len(value) < HEAD.size:
            raise Misread(f"torn: {record!r}")
        offset, generation = HEAD.unpack_from(value)
        if offset != record.offset or value != value_of(offset, generation):
            raise Misread(f"torn: offset {record.offset}, value of {offset} in generation {generation}: {value!r}")
        if record.timestamp != timestamp_of(offset):
            raise Misread(f"torn: timestamp {record.timestamp} at {offset}")
        if self.last is not None:
            before, generation_before = self.last
            if offset <= before:
                raise Misread(f"{offset} after {before}")
            if offset != before + 1 or generation != generation_before:
                if generation < generation_before:
                    raise Misread(f"generation {generation} at {offset} after {generation_before} at {before}")
                wrong = self.journal.explains(generation_before, offset, generation, range(before + 1, offset))
                if wrong:
                    raise Misread(f"{before} (generation {generation_before}), {offset} ({generation}): {wrong}")
        self.last = (offset, generation)
        self.seen += 1


# What readers do, each a round of it.


def read_by_offset(log: kstore.Log, journal: Journal, rng: random.Random) -> int:
    judge = Judge(journal)
    start, end = sorted((log.log_start_offset, log.log_end_offset))
    offset = rng.randint(start, end)
    try:
        records = log.read(offset)
    except kstore.OffsetOutOfRangeError as error:
        check_marks(error, offset)
        return 0
    return drain(records, judge, rng.choice((10, 3_000, 100_000)))


def read_batches(log: kstore.Log, journal: Journal, rng: random.Random) -> int:
    judge = Judge(journal)
    start, end = sorted((log.log_start_offset, log.log_end_offset))
    try:
        batches = log.read_batches(rng.randint(start, end))
        for _, batch in zip(range(rng.choice((2, 300))), batches, strict=False):
            for record in batch:
                judge.see(record)
    except kstore.OffsetOutOfRangeError as error:
        check_marks(error, None)
    return judge.seen


def read_by_time(log: kstore.Log, journal: Journal, rng: random.Random) -> int:
    start, end = sorted((log.log_start_offset, log.log_end_offset))
    wanted = timestamp_of(rng.randint(start, end + 3))
    found = log.offset_for_timestamp(wanted)
    if found is not None and (found.timestamp < wanted or found.timestamp != timestamp_of(found.offset)):
        raise Misread(f"asked for {wanted}, got {found}")
    judge = Judge(journal)
    try:
        records = log.read(start_timestamp=wanted)
    except kstore.OffsetOutOfRangeError as error:
        check_marks(error, None)
        return 0
    seen = drain(records, judge, 2_000)
    if rng.random() < 0.2:
        log.max_timestamp()
    return seen


def fetch(log: kstore.Log, journal: Journal, rng: random.Random) -> int:
    judge = Judge(journal)
    start, end = sorted((log.log_start_offset, log.log_end_offset))
    try:
        result = log.fetch(rng.randint(start, end), rng.choice((1, 5_000, 300_000)))
    except kstore.OffsetOutOfRangeError as error:
        check_marks(error, None)
        return 0
    first = None
    for batch in kstore.decode_batches(result.records):
        first = batch.base_offset if first is None else first
        for record in batch:
            judge.see(record)
    if first is not None and first != result.offset:
        raise Misread(f"a fetch says {result.offset} and begins with {first}")
    return judge.seen


def follow(log: kstore.Log, journal: Journal, rng: random.Random) -> int:
    judge = Judge(journal)
    start, end = sorted((log.log_start_offset, log.log_end_offset))
    try:
        records = log.read(rng.choice((end, rng.randint(start, end))), follow=True, timeout=0.2)
    except kstore.OffsetOutOfRangeError as error:
        check_marks(error, None)
        return 0
    return drain(records, judge, 50_000)


def drain(records: Iterator[kstore.Record], judge: Judge, most: int) -> int:
    try:
        for _, record in zip(range(most), records, strict=False):
            judge.see(record)
    except kstore.OffsetOutOfRangeError as error:
        check_marks(error, None if judge.last is None else judge.last[0] + 1)
    return judge.seen


def check_marks(error: kstore.OffsetOutOfRangeError, offset: int | None) -> None:
    if not 0 <= error.log_start_offset <= error.log_end_offset:
        raise Misread(f"marks of {error}: {error.log_start_offset}, {error.log_end_offset}") from error


KINDS: dict[str, Callable[[kstore.Log, Journal, random.Random], int]] = {
    "offset": read_by_offset,
    "batches": read_batches,
    "time": read_by_time,
    "fetch": fetch,
    "follow": follow,
}


def read_while(log: kstore.Log, kind: str, journal: Journal, rng: random.Random, going: Callable[[], bool]) -> Any:
    rounds = records = 0
    while going():
        records += KINDS[kind](log, journal, rng)
        rounds += 1
    return {"kind": kind, "rounds": rounds, "records": records}


def digest(log: kstore.Log) -> str:
    found = hashlib.sha256()
    for record in log.read():
        found.update(repr(tuple(record)).encode())
    return found.hexdigest()


# The writer.


class Load:
    def __init__(self, log: kstore.Log, journal: Journal, rng: random.Random) -> None:
        self.log, self.journal, self.rng = log, journal, rng
        self.generation = 0
        self.counts: dict[str, int] = {}

    def step(self) -> None:
        size = sum(segment.size_bytes for segment in self.log.segments) if self.rng.random() < 0.05 else 0
        if size > LARGEST:
            self.rng.choice((self.cut_deep, self.start_anew))()
            return
        [work] = self.rng.choices(
            (self.append, self.append_many, self.truncate, self.delete, self.flush, self.roll, self.start_anew),
            (300, 400, 30, 20, 2, 5, 1),
        )
        work()
        self.counts[work.__name__] = self.counts.get(work.__name__, 0) + 1

    def append(self) -> None:
        for offset in range(self.log.log_end_offset, self.log.log_end_offset + self.rng.randint(1, 100)):
            found = self.log.append(value_of(offset, self.generation), timestamp=timestamp_of(offset))
            if found != offset:
                raise Misread(f"appended at {found}, not at {offset}")

    def append_many(self) -> None:
        begin = self.log.log_end_offset
        offsets = range(begin, begin + self.rng.choice((10, 300, 3_000)))
        info = self.log.append_many(
            ((None, value_of(offset, self.generation), timestamp_of(offset), None) for offset in offsets),
            compression=self.rng.choice(CODECS),
            batch_bytes=self.rng.choice((500, 8_000, 64_000, 250_000)),
        )
        if (info.first_offset, info.last_offset) != (begin, offsets[-1]):
            raise Misread(f"appended at {info}, not at {offsets}")

    def truncate(self) -> None:
        end = self.log.log_end_offset
        self.truncate_to(self.rng.randint(max(self.log.log_start_offset, end - self.rng.choice((5, 500, 5_000))), end))

    def cut_deep(self) -> None:
        self.truncate_to(self.rng.randint(self.log.log_start_offset, self.log.log_end_offset))

    def truncate_to(self, offset: int) -> None:
        batch = next(self.log.read_batches(offset), None) if offset < self.log.log_end_offset else None
        end = offset if batch is None else min(batch.base_offset, offset)
        self.generation += 1
        self.journal.note(generation=self.generation, cut=offset, end=end, next=offset)
        self.log.truncate_to(offset)

    def delete(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        before = self.rng.randint(start, start + (end - start) // 2)
        self.journal.note(start=before)
        self.log.delete_records(before)

    def flush(self) -> None:
        self.log.flush()

    def roll(self) -> None:
        self.log.roll()

    def start_anew(self) -> None:
        self.generation += 1
        offset = self.log.log_end_offset + self.rng.randint(0, 1000)
        self.journal.note(generation=self.generation, cut=0, end=0, next=offset)
        self.log.truncate_fully_and_start_at(offset)


def write(partition: Path, seconds: float, seed: str, threads: bool) -> Any:
    journal = Journal(partition.with_suffix(".journal"))
    failures: list[BaseException] = []
    reports: list[Any] = []
    deadline = time.monotonic() + seconds
    done = threading.Event()
    with kstore.Log.open(partition, **SETTINGS) as log:

        def read(kind: str, number: int) -> None:
            try:
                rng = random.Random(f"{seed}:{kind}:{number}")
                reports.append(read_while(log, kind, Journal(journal.path), rng, lambda: not done.is_set()))
            except BaseException as error:
                failures.append(error)
                raise

        load = Load(log, journal, random.Random(seed))
        load.append_many()
        partition.with_suffix(".ready").touch()
        readers = [threading.Thread(target=read, args=(kind, n)) for n in range(1 if threads else 0) for kind in KINDS]
        for reader in readers:
            reader.start()
        try:
            while not failures and (time.monotonic() < deadline or "append_many" not in load.counts):
                load.step()
        finally:
            done.set()
            for reader in readers:
                reader.join()
        if failures:
            raise failures[0]
        load.append()  # a cut inside a batch leaves an end that only the writer knows
        final = {"start": log.log_start_offset, "end": log.log_end_offset, "digest": digest(log)}
        partition.with_suffix(".done.tmp").write_text(json.dumps(final))
        partition.with_suffix(".done.tmp").rename(partition.with_suffix(".done"))
        return {"kind": "write", **load.counts, "end": final["end"], "threads": reports}


def read(kind: str, partition: Path, seed: str) -> Any:
    done = partition.with_suffix(".done")
    journal = Journal(partition.with_suffix(".journal"))
    rng = random.Random(f"{seed}:{kind}")
    with kstore.Log.open(partition, mode="r") as log:
        report = read_while(log, kind, journal, rng, lambda: not done.exists())
        while not report["records"]:  # it came late, and reads what is left
            report["records"] += KINDS[kind](log, journal, rng)
        final = json.loads(done.read_text())
        found = {"start": log.log_start_offset, "end": log.log_end_offset, "digest": digest(log)}
        if found != final:
            raise Misread(f"at the end {found}, the writer has {final}")
    return report


def main(kind: str, partition: str, *more: str) -> None:
    if kind == "write":
        seconds, seed, threads = more
        print(json.dumps(write(Path(partition), float(seconds), seed, threads == "1")))
    else:
        print(json.dumps(read(kind, Path(partition), *more)))


if __name__ == "__main__":
    main(*sys.argv[1:])
