"""Random histories lived by Kafka's log and by kstore's: every answer, mark, file and byte compared after each step.

    python tests/kafka_history.py --count 2000 --first 1       seeds 1 to 2000; what differs is shrunk and printed
    python tests/kafka_history.py --replay history.json        one history again, step by step

A history is a few settings and a list of operations (`kafka_operations`). What kstore does otherwise on purpose is
listed in `docs/compatibility.md`; only what has a row there is excused here. Differences that were found are kept, as
short as they could be made, in `tests/histories/`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kafka_jvm import START_MS, Kafka
from kafka_operations import OPERATIONS, PRODUCING, SETTINGS, Operation
from kafka_sides import (
    Appended,
    Checkpoints,
    KafkaSide,
    KstoreSide,
    Side,
    contents,
    outcome,
    read_checkpoints,
    split_batches,
)

COMPATIBILITY = Path(__file__).parent.parent / "docs" / "compatibility.md"
KEPT = Path(__file__).parent / "histories"

SubjectMaker = Callable[[Kafka, Path, dict[str, Any], int], Side]
# What one side said: ("answers", value) or ("refuses", name).
Said = tuple[str, Any]


class Difference(Exception):
    """The two sides are not alike; `history` and `step` are filled in by `live`."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.step = -1


@dataclass(frozen=True)
class History:
    """What is replayed: settings by Kafka's names, then operations in order."""

    config: dict[str, Any]
    operations: tuple[Operation, ...]

    @classmethod
    def draw(cls, seed: int, length: int = 30, *, producing: bool = False) -> History:
        """Random settings and operations; `producing` adds producers that number their batches, and transactions."""
        rng = random.Random(seed)
        config = {name: rng.choice(choices) for name, choices in SETTINGS.items() if rng.random() < 0.6}
        kinds = [*OPERATIONS.values(), *(PRODUCING.values() if producing else ())]
        # Some histories favour a few kinds: what needs many appends in a row, or many crashes, is rare otherwise.
        factors = rng.choices((0.2, 1, 1, 4), k=len(kinds)) if rng.random() < 0.5 else [1.0] * len(kinds)
        weights = [kind.weight * factor for kind, factor in zip(kinds, factors, strict=True)]
        chosen = rng.choices(kinds, weights, k=rng.randint(3, length))
        return cls(config, tuple(kind.draw(rng) for kind in chosen))

    def to_json(self) -> str:
        operations = [
            [type(op).__name__, {k: v for k, v in op.values().items() if v != type(op).__dataclass_fields__[k].default}]
            for op in self.operations
        ]
        lines = ",\n  ".join(json.dumps(operation) for operation in operations)
        return f'{{"config": {json.dumps(self.config)},\n "operations": [\n  {lines}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> History:
        data = json.loads(text)
        known = OPERATIONS | PRODUCING
        return cls(data["config"], tuple(known[name](**values) for name, values in data["operations"]))


# --- what is excused --------------------------------------------------------------------------------------------------

Excuse = Callable[["World", Operation, Said, Said], bool]

# Differences that histories meet, by the id of their row in docs/compatibility.md. A predicate answers whether this is
# the difference that the row describes; both logs must still be alike afterwards unless the id is in PARTS_WAYS.
EXCUSES: dict[str, Excuse] = {
    "coordinators-batch-rebuilt": lambda world, operation, kafka, ours: (
        type(operation).__name__ == "AppendBatch"
        and operation.coordinator  # type: ignore[attr-defined]
        and kafka == ("refuses", "UnsupportedOperationError")
        and ours[0] == "answers"
    ),
    "empty-append": lambda world, operation, kafka, ours: (
        kafka == ("answers", Appended(-1, -1, -1, -1)) and ours == ("refuses", "InvalidRecordError")
    ),
    "index-full-inside-an-append": lambda world, operation, kafka, ours: (
        type(operation).__name__ == "AppendAsFollower" and kafka == ("refuses", "ValueError")
    ),
    "timestamp-search-goes-on": lambda world, operation, kafka, ours: (
        type(operation).__name__ == "OffsetForTimestamp"
        and kafka == ("answers", None)
        and ours[0] == "answers"
        and world.at_or_after(operation.timestamp(world)) == ours[1]  # type: ignore[attr-defined]
    ),
}
PARTS_WAYS = {"coordinators-batch-rebuilt", "index-full-inside-an-append"}


@cache
def documented() -> frozenset[str]:
    """The ids in the tables of docs/compatibility.md."""
    rows = (line.split("|") for line in COMPATIBILITY.read_text().splitlines() if line.startswith("| `"))
    return frozenset(row[1].strip().strip("`") for row in rows)


# A step takes milliseconds. What takes so much longer hangs.
SECONDS_AN_ANSWER = 10


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Break off with TimeoutError after so many seconds."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _PartedWays(Exception):
    """An excused difference after which the two logs need not be alike: the history ends."""


# --- the world --------------------------------------------------------------------------------------------------------


class World:
    """Both logs, one clock, and what operations ask for. `oracle` is Kafka, `subject` what is held against it."""

    def __init__(self, kafka: Kafka, base: Path, history: History, make_subject: SubjectMaker) -> None:
        self.kafka = kafka
        self.config = {"retention.ms": -1, **history.config}
        self.now = START_MS
        self.leader_epoch = 0
        self.timestamps: list[int] = []
        self.producers: dict[int, tuple[int, int]] = {}
        self.lost_times: set[int] = set()  # bases of segments that have lost their time index
        (base / "kafka").mkdir()
        self.oracle = KafkaSide(kafka, base / "kafka", self.config, self.now)
        self.subject = make_subject(kafka, base / "ours", dict(self.config), self.now)
        self._promised = 0
        self.open(clean=True)

    def both(self, operation: Operation, act: Callable[[Side], Any]) -> Any:
        """Do it on both sides and compare what they say; Kafka's answer, or None if both refused."""
        return self._compare(operation, outcome(lambda: act(self.oracle)), self._outcome(act))

    def subject_first(self, operation: Operation, act: Callable[[Side], Any]) -> Any:
        """Do it on the subject alone; its answer, or None if it refused. The operation then does its like on Kafka."""
        kind, answer = self._outcome(act)
        return answer if kind == "answers" else None

    def on_kafka(self, act: Callable[[KafkaSide], Any]) -> Any:
        """Do on Kafka what the subject has done its own way; Kafka must accept it."""
        kind, answer = outcome(lambda: act(self.oracle))
        if kind == "refuses":
            raise Difference(f"{self.subject.name} did what Kafka refuses with {answer}")
        return answer

    def excuses(self, id: str) -> bool:
        """Whether docs/compatibility.md has a row for this difference, and the subject is the one it speaks of."""
        return id in documented() and isinstance(self.subject, KstoreSide)

    def at_or_after(self, timestamp: int) -> tuple[int, int] | None:
        """The first record of the log whose timestamp is at or after this, found the slow way; it may be a marker."""
        lines = self.kafka.records(self.oracle.directory)
        told = ((line["timestamp"], line["offset"]) for line in lines if "offset" in line)
        return next((each for each in told if each[0] >= timestamp and each[1] >= self.marks.log_start_offset), None)

    def batch_at(self, offset: int) -> int | None:
        """The base of the first batch that ends at or above an offset."""
        for path in sorted(path for path in self.oracle.directory.iterdir() if path.suffix == ".log"):
            for batch in split_batches(path.read_bytes()):
                if (base := int.from_bytes(batch[:8])) + int.from_bytes(batch[23:27]) >= offset:
                    return base
        return None

    def data_end(self) -> int:
        """One past the last record that is in the last segment, its base for none."""
        last = max(path for path in self.oracle.directory.iterdir() if path.suffix == ".log")
        batches = split_batches(last.read_bytes())
        return int.from_bytes(batches[-1][:8]) + int.from_bytes(batches[-1][23:27]) + 1 if batches else int(last.stem)

    def active_is_empty(self) -> bool:
        name, (_, data) = max(item for item in contents(self.oracle.directory).items() if item[0].endswith(".log"))
        return not data and int(name[:20]) == self.marks.log_end_offset

    def _outcome(self, act: Callable[[Side], Any]) -> Said:
        try:
            with _limited(SECONDS_AN_ANSWER):
                return outcome(lambda: act(self.subject))
        except Exception:
            raise Difference(f"{self.subject.name} broke:\n{traceback.format_exc()}") from None

    def _compare(self, operation: Operation, kafka: Said, ours: Said) -> Any:
        if kafka != ours:
            excuses = [id for id, excused in EXCUSES.items() if excused(self, operation, kafka, ours)]
            allowed = documented().intersection(excuses)
            if not allowed:
                raise Difference(f"Kafka {kafka[0]} {shown(kafka[1])}\n{self.subject.name} {ours[0]} {shown(ours[1])}")
            if allowed & PARTS_WAYS:
                raise _PartedWays
        elif kafka == ("refuses", "RecordBatchTooLargeError") and self.excuses("epochs-of-a-refused-append"):
            raise _PartedWays
        return kafka[1] if kafka[0] == "answers" else None

    def check(self) -> None:
        """Do what is due on both sides; marks and files must be alike."""
        self.oracle.housekeeping()
        self._outcome(lambda side: side.housekeeping())
        self.marks = self.oracle.marks()
        ours = self.subject.marks()
        start, stable = self.marks.log_start_offset, self.marks.last_stable_offset
        if start == ours.last_stable_offset != stable == self.batch_at(start) and self.excuses("stable-below-start"):
            ours = ours._replace(last_stable_offset=stable)
        if ours != self.marks:
            raise Difference(f"marks\nKafka {self.marks}\n{self.subject.name} {ours}")
        self.compare_files()

    def compare_files(self) -> None:
        theirs, ours = contents(self.oracle.directory), contents(self.subject.directory)
        if theirs == ours:
            return
        _sort_snapshots(theirs)
        _sort_snapshots(ours)
        if self.excuses("stale-index-slots"):
            _drop_stale_slots(theirs, ours)
        if self.excuses("indexes-of-an-empty-segment"):
            _drop_empty_indexes(theirs)
            _drop_empty_indexes(ours)
        lines = []
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                lines += [f"{name}", f"  Kafka {_file(name, theirs.get(name))}"]
                lines += [f"  {self.subject.name} {_file(name, ours.get(name))}"]
        if lines:
            raise Difference("files\n" + "\n".join(lines))

    # What operations do to the world.

    def tick(self, ms: int) -> None:
        self.now += ms
        self.oracle.tick(self.now)
        self.subject.tick(self.now)

    def saw_timestamps(self, timestamps: Iterable[int]) -> None:
        self.timestamps += [timestamp for timestamp in timestamps if timestamp >= 0]

    def raise_epoch(self) -> None:
        """A leader's epoch is never below what its log knows."""
        assert self.oracle.log is not None
        self.leader_epoch = max([self.leader_epoch, *(epoch for epoch, _ in self.oracle.log.epochs())])

    def close(self) -> None:
        """Close both; directories and checkpoint files must be alike."""
        self.oracle.close()
        kind, name = self._outcome(lambda side: side.close())
        if kind == "refuses":
            raise Difference(f"{self.subject.name} refuses to close: {name}")
        self.compare_files()
        theirs, ours = read_checkpoints(self.oracle.root), read_checkpoints(self.subject.root)
        first = min(int(name[:20]) for name in contents(self.oracle.directory) if name.endswith(".log"))
        in_a_gap = theirs.recovery_point == self.marks.log_end_offset and ours.recovery_point == self.data_end()
        if in_a_gap and self.excuses("recovery-point-in-a-gap"):
            theirs = theirs._replace(recovery_point=ours.recovery_point)
        if (theirs[0], max(theirs[1] or 0, first)) != (ours[0], max(ours[1] or 0, first)):
            raise Difference(f"checkpoints after a close\nKafka {theirs}\n{self.subject.name} {ours}")

    def crash(self) -> None:
        """Both processes die. What the subject's checkpoint promises must have been flushed by Kafka's count too."""
        # Below its start a log has nothing to flush, whether or not the recovery point has followed.
        flushed = max(self.oracle.recovery_point(), self.marks.log_start_offset)
        self.oracle.crash()
        self.subject.crash()
        promised = read_checkpoints(self.subject.root)
        if (promised.recovery_point or 0) > flushed:
            raise Difference(f"Kafka's recovery point is {flushed}, {self.subject.name}'s checkpoint says {promised}")

    def open(self, *, clean: bool) -> None:
        """Open both: a refusal of both ends the history."""
        checkpoints: Checkpoints | None = None if clean else read_checkpoints(self.subject.root)
        kafka = outcome(lambda: self.oracle.open(clean=clean, checkpoints=checkpoints))
        ours = self._outcome(lambda side: side.open(clean=clean))
        if kafka != ours:
            if kafka == ("refuses", "ValueError") and ours[0] == "answers" and self.excuses("index-full-in-recovery"):
                raise _PartedWays
            raise Difference(f"opening: Kafka {kafka}, {self.subject.name} {ours}")
        if kafka[0] == "refuses":
            raise _PartedWays
        self.marks = self.oracle.marks()

    def lose_file(self, suffix: str, which: int) -> None:
        """Remove one file with this suffix from both directories."""
        names = [name for name in contents(self.oracle.directory) if name.endswith(suffix)]
        if suffix == ".timeindex" and self.excuses("time-index-lost"):
            names = names[:-1]
        if names:
            name = names[(len(names) - 1) * which // 1000]
            for side in (self.oracle, self.subject):
                (side.directory / name).unlink()
            if suffix == ".timeindex":
                self.lost_times.add(int(name[:20]))
        # The empty segment whose indexes Kafka has not made yet is one that has lost them, too.
        if self.excuses("indexes-of-an-empty-segment"):
            mine, theirs = contents(self.subject.directory), contents(self.oracle.directory)
            for name in mine.keys() - theirs.keys():
                if name.endswith((".index", ".timeindex")):
                    (self.subject.directory / name).unlink()

    def age_file(self, which: int, ms: int) -> None:
        """Set back the time at which one `.log` file was last written, in both directories."""
        names = [name for name in contents(self.oracle.directory) if name.endswith(".log")]
        name = names[(len(names) - 1) * which // 1000]
        written = (self.now - ms) * 1_000_000
        for side in (self.oracle, self.subject):
            os.utime(side.directory / name, ns=(written, written))

    def part_where_times_are_lost(self, offset: int) -> None:
        """End the history where a truncation is to end in a segment of which Kafka does not know the timestamps."""
        bases = [int(name[:20]) for name in contents(self.oracle.directory) if name.endswith(".log")]
        last = max((base for base in bases if base <= offset), default=-1)
        if last in self.lost_times and self.excuses("time-index-lost"):
            raise _PartedWays

    def leave_marker(self) -> None:
        """The mark of a clean shutdown beside the subject's partition, so that it takes its files as they are."""
        (self.subject.root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')

    def damage_tail(self, kind: str, kept: int) -> None:
        """Cut or spoil what lies above the recovery point in the last segment of both directories."""
        promised = read_checkpoints(self.subject.root).recovery_point or 0
        name = max(name for name in contents(self.oracle.directory) if name.endswith(".log"))
        whole = (self.oracle.directory / name).read_bytes()
        batches = split_batches(whole)
        end = sum(map(len, batches))
        ends = [int.from_bytes(batch[:8]) + int.from_bytes(batch[23:27]) + 1 for batch in batches]
        if promised > int(name[:20]) and promised not in ends:
            return  # in a gap: a sync of what lies below it has taken what lies above it, too
        flushed = sum(len(batch) for batch in batches if int.from_bytes(batch[:8]) < promised)
        at = flushed + (end - flushed) * kept // 1000
        if kind == "flip":
            starts = [sum(map(len, batches[:i])) for i in range(len(batches))]
            within = at - max((start for start in starts if start <= at), default=0)
            at += 8 if within < 8 else 0  # the base offset is under no checksum: such a log is a different log
            at += 1 if within == 16 and self.excuses("unknown-format") else 0
        for side in (self.oracle, self.subject):
            with (side.directory / name).open("r+b") as file:
                if kind == "flip":
                    if at < end:
                        file.seek(at)
                        file.write(bytes([whole[at] ^ 0x10]))
                    continue
                file.truncate(at)
                file.seek(at)
                file.write({"cut": b"", "zeros": bytes(100), "noise": random.Random(kept).randbytes(100)}[kind])

    def check_log_start_is_on_disk(self) -> None:
        """kstore promises more than Kafka: the log start is in its file when `delete_records` returns."""
        if not isinstance(self.subject, KstoreSide):
            return
        line = read_checkpoints(self.subject.root).log_start or 0
        first = min(int(name[:20]) for name in contents(self.subject.directory) if name.endswith(".log"))
        start = self.subject.marks().log_start_offset
        if max(line, first) < start:
            raise Difference(f"the log start is {start}, but on disk it is {line}")


def _sort_snapshots(files: dict[str, tuple[int, bytes]]) -> None:
    """Put a snapshot's entries in order, which is that of a hash map in Kafka, and take their checksum out."""
    for name, (size, data) in list(files.items()):
        if ".snapshot" in name:
            data = data.ljust(size, b"\0")
            entries = sorted(data[at : at + 46] for at in range(10, size, 46))
            files[name] = (size, data[:2] + data[6:10] + b"".join(entries))


def _drop_stale_slots(theirs: dict[str, tuple[int, bytes]], ours: dict[str, tuple[int, bytes]]) -> None:
    """Where one index holds the other's entries and old ones behind them, leave the old ones out."""
    for name, (size, data) in list(theirs.items()):
        mine = ours.get(name)
        if ".index" in name or ".timeindex" in name:
            width = 12 if ".timeindex" in name else 8
            if mine is not None and mine[0] == size and data != mine[1]:
                used = -(-len(mine[1]) // width) * width
                if data[:used].ljust(used, b"\0") == mine[1].ljust(used, b"\0"):
                    theirs[name] = mine


def _drop_empty_indexes(files: dict[str, tuple[int, bytes]]) -> None:
    """Leave out index files without entries whose .log has no data either; deleted ones, of whichever segment."""
    for name, (_, data) in list(files.items()):
        base, dot, suffix = name.partition(".")
        if suffix.startswith(("index", "timeindex")) and (not data or suffix.endswith(".deleted")):
            log = files.get(f"{base}{dot}log{'.deleted' if suffix.endswith('.deleted') else ''}")
            if log is not None and not log[1]:
                del files[name]


def shown(value: Any, limit: int = 600) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _file(name: str, found: tuple[int, bytes] | None) -> str:
    """A file for a message: indexes as their entries, texts as texts, logs as batches."""
    if found is None:
        return "has no such file"
    size, data = found
    plain = name.removesuffix(".deleted")
    if plain.endswith((".index", ".timeindex")):
        width, key = (8, 4) if plain.endswith(".index") else (12, 8)
        entries = [data[i : i + width].ljust(width, b"\0") for i in range(0, len(data), width)]
        pairs = [(int.from_bytes(e[:key], signed=True), int.from_bytes(e[key:], signed=True)) for e in entries]
        return f"{size} bytes {pairs}"
    if plain.endswith(".log"):
        batches = [(int.from_bytes(b[:8]), len(b)) for b in split_batches(data)]
        return f"{size} bytes, batches {batches}, {len(data) - sum(n for _, n in batches)} more, hash {hash(data):x}"
    return f"{size} bytes {data[:200]!r}"


def live(kafka: Kafka, base: Path, history: History, make_subject: SubjectMaker, trace: bool = False) -> None:
    """Live a history on both sides below the empty directory `base`; raises Difference."""
    world = None
    try:
        for step, operation in enumerate((None, *history.operations), -1):
            try:
                if world is None or operation is None:
                    world = World(kafka, base, history, make_subject)
                else:
                    if trace:
                        print(step, operation, file=sys.stderr)
                    operation.run(world)
                world.check()
            except Difference as difference:
                difference.step = step
                raise
    except _PartedWays:
        pass
    finally:
        if world is not None:
            for side in (world.oracle, world.subject):
                try:
                    side.close()
                except Exception:
                    if isinstance(side, KafkaSide) and side.log is not None:
                        side.crash()


def kstore_subject(kafka: Kafka, root: Path, config: dict[str, Any], now: int) -> Side:
    return KstoreSide(root, config, now)


def kafka_subject(kafka: Kafka, root: Path, config: dict[str, Any], now: int) -> Side:
    """Kafka against itself: what the harness says about two logs that are alike."""
    root.mkdir()
    return KafkaSide(kafka, root, config, now, "Kafka's twin")


# --- looking for differences ------------------------------------------------------------------------------------------


class Lives:
    """Lives histories in directories of their own, on a file system in memory where there is one."""

    def __init__(self, kafka: Kafka, make_subject: SubjectMaker = kstore_subject) -> None:
        self.kafka = kafka
        self.make_subject = make_subject
        self.count = 0

    def difference(self, history: History, trace: bool = False) -> Difference | None:
        """The first difference of a history, or None."""
        self.count += 1
        memory = Path("/dev/shm")
        base = Path(tempfile.mkdtemp(prefix="history-", dir=memory if os.access(memory, os.W_OK) else None))
        try:
            live(self.kafka, base, history, self.make_subject, trace)
        except Difference as difference:
            return difference
        finally:
            shutil.rmtree(base, ignore_errors=True)
        return None

    def shrink(self, history: History, seconds: float = 60) -> History:
        """The shortest and plainest history found within the time that still differs, in whatever way."""
        deadline = time.monotonic() + seconds
        best = history

        def attempt(config: dict[str, Any], operations: Sequence[Operation]) -> bool:
            nonlocal best
            if time.monotonic() > deadline:
                return False
            candidate = History(config, tuple(operations))
            if self.difference(candidate) is None:
                return False
            best = candidate
            return True

        found = self.difference(best)
        if found is not None and found.step >= 0:
            attempt(best.config, best.operations[: found.step + 1])
        changed = True
        while changed and time.monotonic() < deadline:
            changed = False
            size = len(best.operations)
            while size >= 1:
                at = 0
                while at < len(best.operations):
                    if attempt(best.config, best.operations[:at] + best.operations[at + size :]):
                        changed = True
                    else:
                        at += size
                size //= 2
            for name in list(best.config):
                changed |= attempt({k: v for k, v in best.config.items() if k != name}, best.operations)
            for at in range(len(best.operations)):
                for simpler in best.operations[at].simpler():
                    if attempt(best.config, (*best.operations[:at], simpler, *best.operations[at + 1 :])):
                        changed = True
                        break
        return best

    def report(self, history: History, shrink_seconds: float = 60) -> str | None:
        """None if both sides agree; else the difference, and the shortest history that shows one, ready to replay."""
        if self.difference(history) is None:
            return None
        short = self.shrink(history, shrink_seconds)
        difference = self.difference(short) or self.difference(history)
        if difference is None:
            return f"a difference that does not come back every time:\n{history.to_json()}"
        at = short.operations[difference.step] if difference.step >= 0 else "opening"
        return f"step {difference.step}, {at}: {difference.what}\nreplay:\n{short.to_json()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Live random histories beside Kafka's log.")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--length", type=int, default=30, help="most operations of a history")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to spend on shrinking a difference")
    parser.add_argument("--most", type=int, default=1, help="stop after so many differences")
    parser.add_argument("--replay", type=Path, help="a history in JSON instead of seeds")
    parser.add_argument("--keep", type=Path, help="write differences to this directory")
    parser.add_argument("--twin", action="store_true", help="Kafka against itself")
    given = parser.parse_args(arguments)
    found = 0
    with Kafka() as kafka:
        lives = Lives(kafka, kafka_subject if given.twin else kstore_subject)
        if given.replay:
            difference = lives.difference(History.from_json(given.replay.read_text()), trace=True)
            print("no difference" if difference is None else f"step {difference.step}: {difference.what}")
            return 0 if difference is None else 1
        for seed in range(given.first, given.first + given.count):
            report = lives.report(History.draw(seed, given.length), given.shrink)
            if report is None:
                continue
            found += 1
            print(f"seed {seed}: {report}", flush=True)
            if given.keep:
                given.keep.mkdir(exist_ok=True)
                (given.keep / f"seed-{seed}.json").write_text(report.partition("replay:\n")[2])
            if found >= given.most:
                break
    print(f"{lives.count} histories lived, {found} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
