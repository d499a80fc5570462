"""Random histories lived by Kafka's log and by kstore's: every answer, mark, file and byte compared after each step.

    python tests/kafka/kafka_history.py --count 2000 --first 1       seeds 1 to 2000; what differs is shrunk and printed
    python tests/kafka/kafka_history.py --compacting --producing     with the cleaner, with producers and transactions
    python tests/kafka/kafka_history.py --replay history.json        one history again, step by step

A history is a few settings and a list of operations (`kafka_operations`). What kstore does otherwise on purpose is
listed in `docs/compatibility.md`; only what has a row there is excused here. Differences that were found are kept, as
short as they could be made, in `tests/kafka/histories/`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from kstore.files.gap_files import GAPS_FILE, read_gaps
from tests.kafka.kafka_jvm import START_MS, Kafka, Row
from tests.kafka.kafka_operations import (
    CLEANER_SETTINGS,
    COMPACTING,
    OPERATIONS,
    PRODUCING,
    SETTINGS,
    Append,
    AppendAsFollower,
    AppendBatch,
    Clean,
    Compact,
    MaxTimestamp,
    OffsetForTimestamp,
    Operation,
    Records,
    Retain,
    seal,
)
from tests.kafka.kafka_sides import (
    NOTHING,
    Appended,
    Checkpoints,
    KafkaSide,
    KstoreSide,
    Marks,
    Said,
    Side,
    codec_of,
    contents,
    copy_sparse,
    data_of,
    last_offset_of,
    outcome,
    read_checkpoints,
    rows_of_a_batch,
    split_batches,
    together,
)

COMPATIBILITY = Path(__file__).parents[2] / "docs" / "compatibility.md"
EPOCHS = "leader-epoch-checkpoint"
KEPT = Path(__file__).parent / "histories"

SubjectMaker = Callable[[Kafka, Path, dict[str, Any], int], Side]


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
    def draw(cls, seed: int, length: int = 30, *, producing: bool = False, compacting: bool = False) -> History:
        """Random settings and operations; `producing` adds producers that number their batches, and transactions;
        `compacting` adds the cleaner, with more appends and more keys."""
        rng = random.Random(seed)
        if compacting:
            return cls._draw_compacting(rng, 2 * length, producing)
        config = {name: rng.choice(choices) for name, choices in SETTINGS.items() if rng.random() < 0.6}
        kinds = [*OPERATIONS.values(), *(PRODUCING.values() if producing else ())]
        # Some histories favour a few kinds: what needs many appends in a row, or many crashes, is rare otherwise.
        factors = rng.choices((0.2, 1, 1, 4), k=len(kinds)) if rng.random() < 0.5 else [1.0] * len(kinds)
        weights = [kind.weight * factor for kind, factor in zip(kinds, factors, strict=True)]
        chosen = rng.choices(kinds, weights, k=rng.randint(3, length))
        return cls(config, tuple(kind.draw(rng) for kind in chosen))

    @classmethod
    def _draw_compacting(cls, rng: random.Random, length: int, producing: bool) -> History:
        """A log whose segments are many and small, filled in bursts, and cleaned between them."""
        config = {name: rng.choice(choices) for name, choices in SETTINGS.items() if rng.random() < 0.4}
        config["internal.segment.bytes"] = rng.choice((500, 1000, 2000, 5000))
        config["segment.index.bytes"] = rng.choice((10_485_760, 10_485_760, 2000, 300, 60))
        config["cleanup.policy"] = rng.choice(("compact", "compact", "compact", "compact,delete"))
        config |= {name: rng.choice(choices) for name, choices in CLEANER_SETTINGS.items() if name not in config}
        kinds = [*OPERATIONS.values(), *(PRODUCING.values() if producing else ()), *COMPACTING.values()]
        factors = rng.choices((0.2, 1, 1, 4), k=len(kinds))
        factors = [
            factor * 2 if issubclass(kind, Records) else factor for kind, factor in zip(kinds, factors, strict=True)
        ]
        weights = [kind.weight * factor for kind, factor in zip(kinds, factors, strict=True)]
        keys = rng.choice((1, 2, 3, 5, 20))
        keyless = rng.choice((0, 0, 0.1))
        tombstones = rng.choice((0, 100, 500))
        chosen: list[Operation] = []
        for kind in rng.choices(kinds, weights, k=rng.randint(10, length)):
            operation = kind.draw(rng)
            if isinstance(operation, Records):
                has_key = rng.random() >= keyless
                operation = replace(operation, key=has_key, keys=keys, tombstones=tombstones)
                chosen += [replace(operation, seed=rng.randrange(1000)) for _ in range(rng.choice((0, 1, 3, 6)))]
            chosen.append(operation)
        return cls(config, tuple(chosen))

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
        known = OPERATIONS | PRODUCING | COMPACTING
        return cls(data["config"], tuple(known[name](**values) for name, values in data["operations"]))


# --- what is excused --------------------------------------------------------------------------------------------------

Excuse = Callable[["World", Operation, Said, Said], bool]


def _index_was_full(kafka: Said) -> bool:
    return kafka.refuses == "ValueError" and "Attempt to append to a full" in kafka.why


def _all_stored(world: World, operation: Operation, kafka: Said, ours: Said) -> bool:
    """Kafka met a full index half-way; kstore said that it stored the whole append, and has it byte for byte."""
    if not isinstance(operation, AppendAsFollower) or not _index_was_full(kafka) or ours.refuses is not None:
        return False
    batches = split_batches(world.offered)
    # From the first batch on whose leader epoch is above the one given, a follower leaves all out (SEMANTICS 1.5).
    is_old = operation.magic < 2  # no epoch, and no header with the greatest timestamp
    if not is_old:
        batches = list(takewhile(lambda batch: int.from_bytes(batch[12:16]) <= operation.highest_epoch(world), batches))
    maximum = max(ours.answer[2] if is_old else int.from_bytes(batch[35:43], signed=True) for batch in batches)
    first_offset = ours.answer[0] if is_old else int.from_bytes(batches[0][:8])
    stored = Appended(first_offset, last_offset_of(batches[-1]), maximum, -1)
    return bool(ours.answer == stored) and world.subject.batches(stored.first_offset, stored.last_offset) == batches


def _is_latest(world: World, answer: tuple[int, int]) -> bool:
    """Whether this is the greatest timestamp of a record in the files, and the first record that has it."""
    first, later = (world.at_or_after(each, from_offset=0) for each in (answer[0], answer[0] + 1))
    return first == answer and later is None


def _times_are_known(world: World, operation: Operation, kafka: Said, ours: Said) -> bool:
    """A segment has lost its time index: kstore reads its records' times, Kafka goes by the age of its file
    (SEMANTICS 6.6)."""
    if not world.lost_times or kafka.refuses is not None or ours.refuses is not None:
        return False
    if isinstance(operation, Clean):
        return "min.compaction.lag.ms" in world.config
    if isinstance(operation, OffsetForTimestamp):
        return world.at_or_after(operation.timestamp(world)) == ours.answer
    if ours.answer is None:
        return False
    if isinstance(operation, MaxTimestamp):
        return _is_latest(world, ours.answer) and (kafka.answer is None or kafka.answer[0] <= ours.answer[0])
    return isinstance(operation, Retain)


# Differences that histories meet, by the id of their row in docs/compatibility.md. A predicate answers whether this is
# the difference that the row describes; both logs must still be alike afterwards unless the id is in PARTS_WAYS.
EXCUSES: dict[str, Excuse] = {
    "full-cleaned-index": lambda world, operation, kafka, ours: (
        isinstance(operation, Compact) and _index_was_full(kafka) and ours.refuses is None
    ),
    "aborts-below-the-files": lambda world, operation, kafka, ours: (
        isinstance(operation, Compact)
        and world.aborts_unseen
        and None not in (kafka.answer, ours.answer)
        and bool(kafka.answer.first_dirty_offset_before == ours.answer.first_dirty_offset_before)
    ),
    "compressed-batch-rebuilt": lambda world, operation, kafka, ours: (
        isinstance(operation, AppendBatch)
        and operation.coordinator
        and kafka.refuses == "UnsupportedOperationError"
        and ours.refuses in (None, "RecordBatchTooLargeError")  # Kafka measures it behind its fault
    ),
    "error-about-offsets": lambda world, operation, kafka, ours: (
        isinstance(operation, AppendAsFollower)
        and operation.fault != ""
        and ours.refuses in ("OffsetsOutOfOrderError", "UnexpectedAppendOffsetError")
        and kafka.refuses in ("InvalidRecordError", "CorruptRecordError", "StorageError")
    ),
    "empty-append": lambda world, operation, kafka, ours: (
        kafka.answer == NOTHING and ours.refuses == "InvalidRecordError" and not split_batches(world.offered)
    ),
    "index-full-inside-an-append": _all_stored,
    "timestamp-search-goes-on": lambda world, operation, kafka, ours: (
        isinstance(operation, OffsetForTimestamp)
        and kafka == Said(None, None)
        and ours.refuses is None
        and world.at_or_after(operation.timestamp(world)) == ours.answer
    ),
    "latest-of-an-emptied-batch": lambda world, operation, kafka, ours: (
        isinstance(operation, MaxTimestamp)
        and kafka == Said(None, None)
        and ours.answer is not None
        and _is_latest(world, ours.answer)
    ),
    "time-index-lost": _times_are_known,
}
# After these the two logs differ: both go on from kstore's files.
PARTS_WAYS = {
    "aborts-below-the-files",
    "compressed-batch-rebuilt",
    "full-cleaned-index",
    "index-full-inside-an-append",
    "time-index-lost",
}


@cache
def documented() -> frozenset[str]:
    """The ids in the tables of docs/compatibility.md."""
    rows = (line.split("|") for line in COMPATIBILITY.read_text().splitlines() if line.startswith("| `"))
    return frozenset(row[1].strip().strip("`") for row in rows)


FILES_FROM_MS = 2_500_000_000_000  # later than any test runs

# A step takes milliseconds. What takes so much longer hangs.
SECONDS_AN_ANSWER = 60


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


class _Ended(Exception):
    """No log is open any more, on either side: the history ends."""


# --- the world --------------------------------------------------------------------------------------------------------


class World:
    """Both logs, one clock, and what operations ask for. `oracle` is Kafka, `subject` what is held against it."""

    def __init__(
        self,
        kafka: Kafka,
        base: Path,
        history: History,
        make_subject: SubjectMaker,
        prepare: Callable[[Path], None] | None = None,
    ) -> None:
        """`prepare` fills the root of each side before it is opened."""
        self.kafka = kafka
        self.config = {"retention.ms": -1, **history.config}
        self._first_config = dict(self.config)
        self.now = START_MS
        self.leader_epoch = 0
        self.timestamps: list[int] = []
        self.producers: dict[int, tuple[int, int]] = {}
        self.lost_times: set[int] = set()  # bases of segments that have lost their time index
        self.truncated: set[int] = set()  # bases of segments that a truncation has cut
        self.left_alone: set[str] = set()  # names of segments that the subject, and it alone, did not write anew
        self.renamed: dict[str, int] = {}  # when the files of a segment were last renamed to `.deleted` by a cleaning
        self.renamed_again: dict[str, int] = {}  # until when the subject keeps those that took the place of others
        self.aborts_unseen = False  # whether the log starts below its first file, and has transaction indexes
        self.offered = b""  # the bytes of the last append of ready batches
        (base / "kafka").mkdir()
        self.oracle = KafkaSide(kafka, base / "kafka", self.config, self.now)
        self.subject = make_subject(kafka, base / "ours", dict(self.config), self.now)
        for side in (self.oracle, self.subject) if prepare is not None else ():
            side.root.mkdir(exist_ok=True)
            prepare(side.root)
        self._flushed = 0  # where the subject alone has flushed its log to
        self._point = 0  # Kafka's recovery point at the last check
        self._begins_anew = False  # with the next opening, since the log start is above what is left
        self.open(clean=True)

    def both(self, operation: Operation, act: Callable[[Side], Any]) -> Any:
        """Do it on both sides and compare what they say; the answer, or None if both refused."""
        return self._compare(operation, outcome(lambda: act(self.oracle)), self._outcome(act))

    def append_ready(self, operation: Operation, data: bytes, act: Callable[[Side], Appended]) -> Appended | None:
        """Append ready batches on both sides, as `both` does."""
        self.offered = data
        answer: Appended | None = self.both(operation, act)
        if answer not in (None, NOTHING) and self._was_made_data(data, answer):
            self._go_on_alike()
        return answer

    def _was_made_data(self, data: bytes, stored: Appended) -> bool:
        """Whether Kafka has written a compressed control batch anew as one of data, which the subject has kept."""
        if data[16] < 2:
            return False
        is_control, is_compressed = data[22] & 0x20 != 0, data[22] & 7 != 0
        if not is_control or not is_compressed or not self.excuses("compressed-control-batch"):
            return False
        (ours,), (theirs,) = (
            side.batches(stored.first_offset, stored.last_offset) for side in (self.subject, self.oracle)
        )
        return ours[22] & 0x27 == data[22] & 0x27 and ours[61:] == data[61:] and theirs[22] & 0x20 == 0

    def append_rows(
        self, rows: Sequence[Row], compression: str, act: Callable[[Side], Appended], *, atomic: bool = False
    ) -> None:
        """Append rows on the subject, which makes batches of them, and give Kafka the same batches.

        Of what the subject refuses Kafka is given the batch that it would have been, and refuses it by the same name.
        """
        ours = self._outcome(act)
        stored = ours.answer if ours.refuses is None else ours.appended
        batches = [] if stored == NOTHING else self.subject.batches(stored.first_offset, stored.last_offset)
        if stored != NOTHING:
            kafkas = []
            for batch in batches:
                data = bytearray(bytes(8) + batch[8:])
                data[22] &= ~0x08  # a producer does not claim LogAppendTime
                seal(data)
                said = outcome(partial(self.oracle.append_batch, bytes(data), "client", self.leader_epoch))
                if said.refuses is not None:
                    raise Difference(f"{self.subject.name} stored what Kafka {said}")
                kafkas.append(said.answer)
            if together(kafkas) != stored:
                raise Difference(f"Kafka answers {together(kafkas)}\n{self.subject.name} {stored}")
        if ours.refuses is None:
            return
        left = rows[sum(int.from_bytes(batch[57:61]) for batch in batches) :]
        too_large = "TooLarge" in ours.refuses
        # What does not fit with others goes alone.
        size = len(left) if atomic else 1 if too_large else rows_of_a_batch(self.kafka, left, self.config)
        data = self.kafka.encode(left[:size], compression=codec_of(self.config, compression))
        said = outcome(partial(self.oracle.append_batch, data, "client", self.leader_epoch))
        if codec_of(self.config, compression) != "none" and said.refuses is None and self.excuses("compressed-bytes"):
            packed = re.search(r"a batch of (\d+) bytes, where at most (\d+) are allowed", ours.why)
            if packed is not None and len(data) <= int(packed[2]) < int(packed[1]):
                self._go_on_alike()  # Kafka's library has made it small enough
                return
        # Where a batch has two faults, Kafka finds its size first, and who packs it finds the record first.
        two_faults = said.refuses is not None and "TooLarge" in said.refuses and not too_large
        if atomic and too_large and rows_of_a_batch(self.kafka, left, self.config) < len(left):
            two_faults = said.refuses is not None  # all go into one batch, which is packed before it is looked at
        if said != ours and not two_faults:
            raise Difference(f"of {size} rows after {stored}\nKafka {said}\n{self.subject.name} {ours}")
        self._after_a_refusal()

    def excuses(self, id: str) -> bool:
        """Whether docs/compatibility.md has a row for this difference, and the subject is the one it speaks of."""
        return id in documented() and isinstance(self.subject, KstoreSide)

    def at_or_after(self, timestamp: int, from_offset: int | None = None) -> tuple[int, int] | None:
        """The first record whose timestamp is at or after this, found the slow way; it may be a marker.

        Batches that call themselves older are passed over (SEMANTICS 5.5). From the log start on, or from another
        offset: what a file still holds below the log start counts for the greatest timestamp.
        """
        start = self.marks.log_start_offset if from_offset is None else from_offset
        lines = self.kafka.records(self.oracle.directory)
        told = (line for line in lines if "offset" in line and line["batchMaxTimestamp"] >= timestamp)
        times = ((line["timestamp"], line["offset"]) for line in told)
        return next((each for each in times if each[0] >= timestamp and each[1] >= start), None)

    def batch_at(self, offset: int) -> int | None:
        """The base of the first batch that ends at or above an offset."""
        for path in sorted(path for path in self.oracle.directory.iterdir() if path.suffix == ".log"):
            for batch in split_batches(data_of(path)):
                if last_offset_of(batch) >= offset:
                    return int.from_bytes(batch[:8])
        return None

    def next_batch_at(self, offset: int) -> int:
        """The base of the first batch that ends at or above an offset, the log's end where there is none."""
        base = self.batch_at(offset)
        return self.marks.log_end_offset if base is None else base

    def data_end(self) -> int:
        """One past the last record that is in the last segment, its base for none."""
        last = max(path for path in self.oracle.directory.iterdir() if path.suffix == ".log")
        batches = split_batches(data_of(last))
        return last_offset_of(batches[-1]) + 1 if batches else int(last.stem)

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
        if kafka == ours:
            if kafka.refuses is not None:
                self._after_a_refusal()
            return kafka.answer
        if isinstance(operation, Append) and ours.refuses and kafka.refuses and "TooLarge" in kafka.refuses:
            self._after_a_refusal()  # of two faults Kafka finds the batch's first, and who packs it the record's
            return None
        excuses = [id for id, excused in EXCUSES.items() if excused(self, operation, kafka, ours)]
        allowed = documented().intersection(excuses)
        if not allowed:
            raise Difference(f"Kafka {kafka}\n{self.subject.name} {ours}")
        if not allowed & PARTS_WAYS:
            return kafka.answer
        self._go_on_alike()
        return ours.answer

    def _after_a_refusal(self) -> None:
        """Where Kafka, and it alone, has entered leader epochs or begun a segment for what both then refused
        (SEMANTICS 1.30): see that there is nothing else, and go on without them."""
        self._settle()
        theirs, ours = self._contents()
        # A segment that is empty and full of index entries is begun anew, and the old one renamed (SEMANTICS 2.8).
        begun = [name for name in theirs.keys() - ours.keys() if name.endswith((".log", ".log.deleted"))]
        if begun and self.excuses("segment-of-a-refused-append"):
            if len(begun) > 1 or int(begun[0][:20]) < self.marks.log_end_offset or theirs[begun[0]][1]:
                raise Difference(f"Kafka has {begun} after a refused append at {self.marks.log_end_offset}")
            self._go_on_alike()
        elif theirs.get(EPOCHS) != ours.get(EPOCHS) and self.excuses("epochs-of-a-refused-append"):
            self.compare_files(but=[EPOCHS])
            assert self.oracle.log is not None
            before = _epochs(self.subject.directory / EPOCHS)
            entered = [entry for entry in self.oracle.log.epochs() if entry not in before]
            end = self.marks.log_end_offset
            if not entered or any(start < end for _, start in entered):
                raise Difference(f"Kafka has entered the leader epochs {entered}, its end is {end}")
            self.oracle.call("set_epochs", epochs=before)
            # A file of no entries may be empty or not.
            shutil.copy(self.subject.directory / EPOCHS, self.oracle.directory / EPOCHS)

    def _go_on_alike(self) -> None:
        """After an excused difference that leaves the logs different: both begin anew with the subject's files."""
        if self.oracle.log is not None:
            self.oracle.crash()
        said = self._outcome(lambda side: side.close())
        if said.refuses is not None:
            raise Difference(f"{self.subject.name} refuses to close: {said.why}")
        shutil.rmtree(self.oracle.root)
        copy_sparse(self.subject.root, self.oracle.root)
        (self.oracle.directory / GAPS_FILE).unlink(missing_ok=True)
        self.open(clean=True)

    def _settle(self) -> tuple[Marks, Marks]:
        """Do what is due on both sides: Kafka's marks, and the subject's."""
        marks = self.oracle.settle()
        said = self._outcome(lambda side: side.settle())
        if said.refuses is not None:
            raise Difference(f"{self.subject.name} {said} when it does what is due")
        return marks, said.answer

    def check(self) -> None:
        """Do what is due on both sides; marks and files must be alike."""
        self.check_marks()
        self.compare_files()

    def check_marks(self) -> None:
        """Do what is due on both sides; marks and the first-dirty line must be alike."""
        self.marks, ours = self._settle()
        end, due = self.marks.log_end_offset, self.oracle.config.get("flush.messages", 2**63 - 1)
        self._flushed = min(self._flushed, end)
        if end - self._point >= due and self.excuses("flush-after-a-call"):
            self._flushed = end
        self._point = self.oracle.recovery_point()
        mine, stable = ours.last_stable_offset, self.marks.last_stable_offset
        if mine != stable and stable == self.next_batch_at(mine) and self.excuses("stable-below-start"):
            ours = ours._replace(last_stable_offset=stable)
        if ours != self.marks:
            raise Difference(f"marks\nKafka {self.marks}\n{self.subject.name} {ours}")
        theirs, mine = (read_checkpoints(side.root).first_dirty for side in (self.oracle, self.subject))
        if theirs != mine:
            raise Difference(f"cleaner-offset-checkpoint\nKafka {theirs}\n{self.subject.name} {mine}")

    def _contents(self) -> tuple[dict[str, tuple[int, bytes]], dict[str, tuple[int, bytes]]]:
        """The files of both; without what was renamed of segments that the subject, and it alone, left alone last."""
        theirs, ours = contents(self.oracle.directory), contents(self.subject.directory)
        for name, due in self.renamed_again.items():
            if self.now < due and self.excuses("deleted-twice"):
                for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                    if f"{name}{suffix}.deleted" not in theirs:
                        ours.pop(f"{name}{suffix}.deleted", None)
        for name in self.left_alone:
            for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                theirs.pop(f"{name}{suffix}.deleted", None)
                ours.pop(f"{name}{suffix}.deleted", None)
            index = f"{name}.txnindex"  # a recovery has emptied it, and Kafka's roll has made the segment anew
            if index not in theirs and index in ours and not ours[index][1]:
                del ours[index]
        return theirs, ours

    def compare_files(self, but: Iterable[str] = ()) -> None:
        """All files must be alike, but for those that are named."""
        theirs, ours = self._contents()
        for name in but:
            theirs.pop(name, None)
            ours.pop(name, None)
        if theirs == ours:
            return
        _sort_snapshots(theirs)
        _sort_snapshots(ours)
        if self.excuses("stale-index-slots"):
            _drop_stale_slots(theirs, ours, self.truncated)
        if self.excuses("gaps-written-down"):
            _drop_gaps(self.subject.directory, ours)
        if self.excuses("indexes-of-an-empty-segment"):
            _drop_empty_indexes(theirs)
            _drop_empty_indexes(ours)
        if self.excuses("snapshot-of-a-recovery"):
            _drop_waiting_snapshot(theirs, ours, self.subject)
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
        said = self._outcome(lambda side: side.close())
        if said.refuses is not None:
            raise Difference(f"{self.subject.name} refuses to close: {said.why}")
        self.compare_files()
        theirs, ours = read_checkpoints(self.oracle.root), read_checkpoints(self.subject.root)
        first = min(int(name[:20]) for name in contents(self.oracle.directory) if name.endswith(".log"))
        data_end = self.data_end()
        # Of a log whose start is in the gap nothing is owed: it begins anew there.
        self._begins_anew = self.marks.log_start_offset > data_end
        written = 0 if self._begins_anew else data_end
        in_a_gap = theirs.recovery_point == self.marks.log_end_offset and ours.recovery_point == written
        if in_a_gap and self.excuses("recovery-point-in-a-gap"):
            theirs = theirs._replace(recovery_point=ours.recovery_point)
        if (theirs[0], max(theirs[1] or 0, first)) != (ours[0], max(ours[1] or 0, first)):
            raise Difference(f"checkpoints after a close\nKafka {theirs}\n{self.subject.name} {ours}")

    def crash(self) -> None:
        """Both processes die. What the subject's checkpoint promises must have been flushed by Kafka's count too."""
        # Below its start and its first segment a log has nothing to flush, wherever the recovery point is.
        first = min(int(name[:20]) for name in contents(self.oracle.directory) if name.endswith(".log"))
        flushed = max(self.oracle.recovery_point(), self.marks.log_start_offset, first, self._flushed)
        self.oracle.crash()
        self.subject.crash()
        promised = read_checkpoints(self.subject.root)
        if isinstance(self.subject, KafkaSide) and promised == read_checkpoints(self.oracle.root):
            return  # a broker leaves it above the data of its next life, as `recovery-point-in-a-gap` says
        if (promised.recovery_point or 0) > flushed:
            raise Difference(f"Kafka's recovery point is {flushed}, {self.subject.name}'s checkpoint says {promised}")

    def open(self, *, clean: bool) -> None:
        """Open both: a refusal of both ends the history."""
        checkpoints: Checkpoints | None = None if clean else read_checkpoints(self.subject.root)
        unsealed, has_producers = self._look_unsealed() if clean else [], self._has_producers()
        kafka = outcome(lambda: self.oracle.open(clean=clean, checkpoints=checkpoints))
        ours = self._outcome(lambda side: side.open(clean=clean))
        if kafka != ours:
            forgot = kafka.refuses == "InvalidTxnStateError" and ours.refuses is None
            if forgot and self.excuses("batch-outside-its-transaction"):
                raise _Ended  # it would refuse the file again
            # An index file that has more entries than it may have since a change of the setting does not open either.
            too_small = _index_was_full(kafka) or "newPosition > limit" in kafka.why
            excused = too_small and ours.refuses is None
            if not excused or not self.excuses("index-full-in-recovery"):
                raise Difference(f"opening: Kafka {kafka}\n{self.subject.name} {ours}")
            if clean:
                raise _Ended  # the file stays as it is, and Kafka would refuse it again
            return self._go_on_alike()
        if kafka.refuses is not None:
            raise _Ended
        self.marks = self.oracle.marks()
        if unsealed and self.excuses("unsealed-index"):
            self._settle()
            # Both may have other producers now: one from the snapshot at the end, the other from the segment.
            snapshot = f"{self.marks.log_end_offset:020}.snapshot"
            try:
                self.compare_files()
            except Difference:
                self.compare_files(but=[snapshot, *unsealed])
                raise _Ended from None
            if has_producers:
                raise _Ended
        began_anew, self._begins_anew = self._begins_anew and clean, False
        if began_anew and self.excuses("recovery-point-in-a-gap"):
            self._settle()
            # Without the empty snapshot of a clean opening where an index was lost.
            self.compare_files(but=[f"{self.marks.log_start_offset:020}.snapshot"])
            self._go_on_alike()
        return None

    def _look_unsealed(self) -> list[str]:
        """The index files of those of the last two segments whose only time entry, of a record at time 0, looks like
        the zeros that a power cut leaves."""
        indexes = sorted(self.subject.directory.glob("*.timeindex"))[-2:]
        alike = [path for path in indexes if path.read_bytes() == bytes(12)]
        return [name for path in alike for name in (path.name, f"{path.stem}.index")]

    def _has_producers(self) -> bool:
        return max((path.stat().st_size for path in self.subject.directory.glob("*.snapshot")), default=0) > 10

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

    def truncate_to(self, operation: Operation, offset: int) -> None:
        """Truncate both, but not into a segment of which Kafka does not know the timestamps."""
        bases = [int(name[:20]) for name in contents(self.oracle.directory) if name.endswith(".log")]
        last = max((base for base in bases if base <= offset), default=-1)
        if last in self.lost_times and self.excuses("time-index-lost"):
            return
        if self.both(operation, lambda side: side.truncate_to(offset)):
            self.truncated.add(last)

    def roll(self, operation: Operation) -> None:
        """Roll both. The files of an empty segment are made again by Kafka alone, by the settings of now."""
        if self.excuses("roll-of-an-empty-segment") and self.active_is_empty():
            if self.config != self._first_config or self.config.get("preallocate"):
                return
            self.left_alone.add(f"{self.marks.log_end_offset:020}")
        self.both(operation, lambda side: side.roll())

    def compact(self, operation: Operation, map_keys: int, buffer_bytes: int, *, forced: bool) -> None:
        """One round on both sides. Before it each segment's file gets an age of its own, which a rewritten segment
        takes from the last one that went into it, to the millisecond (SEMANTICS 7.24). All lie in the future, so that
        no segment without timestamps is old by its file."""
        names = sorted(name for name in contents(self.oracle.directory) if name.endswith(".log"))
        written = {name: 1_000_000 * (FILES_FROM_MS + 1000 * i) for i, name in enumerate(names)}
        for side in (self.oracle, self.subject):
            for name, ns in written.items():
                os.utime(side.directory / name, ns=(ns, ns))
        before = [self._inodes(side) for side in (self.oracle, self.subject)]
        self.aborts_unseen = self.marks.log_start_offset < int(names[0][:20]) and any(
            path.stat().st_size > 0 for path in self.oracle.directory.glob("*.txnindex")
        )
        log = self.oracle.log
        self.both(operation, lambda side: side.compact(map_keys, buffer_bytes, forced=forced))
        if self.oracle.log is not log:
            return  # both have begun anew with the subject's files
        if self.aborts_unseen and self.excuses("aborts-below-the-files"):
            self.check_marks()
            self._go_on_alike()
            return
        after = [self._inodes(side) for side in (self.oracle, self.subject)]
        rewritten, ours = (
            {name for name in new if new[name] != old.get(name)} for old, new in zip(before, after, strict=True)
        )
        delay = self.oracle.config.get("file.delete.delay.ms", 60_000)
        for name in (each.removesuffix(".log") for each in rewritten & ours):
            if self.now < self.renamed.get(name, self.now - delay) + delay:
                self.renamed_again[name] = self.now + delay
            self.renamed[name] = self.now
        if self.excuses("unchanged-segment-is-left"):
            self.left_alone = {name for name in self.left_alone if f"{name}.log" not in ours}
            self.left_alone |= {name.removesuffix(".log") for name in rewritten - ours}
        for name in sorted(set(names) & after[0].keys() & after[1].keys()):
            for suffix in (".log", ".index", ".timeindex") if name in rewritten & ours else (".log",):
                paths = [(side.directory / name).with_suffix(suffix) for side in (self.oracle, self.subject)]
                ages = [path.stat().st_mtime_ns // 1_000_000 if path.exists() else None for path in paths]
                if ages[0] != ages[1]:
                    raise Difference(
                        f"modification time of {paths[0].name}\nKafka {ages[0]}\n{self.subject.name} {ages[1]}"
                    )
        if self.excuses("compressed-bytes") and self._differ_by_codec():
            self.check_marks()
            self._go_on_alike()

    def _inodes(self, side: Side) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in side.directory.iterdir() if path.suffix == ".log"}

    def _differ_by_codec(self) -> bool:
        """Whether all that differs in the logs is how batches with a codec are compressed; their records, as Kafka
        reads them, are the same."""
        logs = [
            {path.name: split_batches(data_of(path)) for path in side.directory.iterdir() if path.suffix == ".log"}
            for side in (self.oracle, self.subject)
        ]
        if logs[0] == logs[1] or logs[0].keys() != logs[1].keys():
            return False
        for name, theirs in logs[0].items():
            ours = logs[1][name]
            if len(theirs) != len(ours):
                return False
            for batches in zip(theirs, ours, strict=True):
                headers = [batch[:8] + batch[12:17] + batch[21:61] for batch in batches]
                if batches[0] != batches[1] and (headers[0] != headers[1] or not batches[0][22] & 7):
                    return False
        records = [self.kafka.records(side.directory) for side in (self.oracle, self.subject)]
        return records[0] == records[1]

    def leave_marker(self) -> None:
        """The mark of a clean shutdown beside the subject's partition, so that it takes its files as they are."""
        (self.subject.root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')

    def damage_tail(self, kind: str, kept: int) -> None:
        """Cut or spoil what lies above the recovery point in the last segment of both directories."""
        promised = read_checkpoints(self.subject.root).recovery_point or 0
        name = max(name for name in contents(self.oracle.directory) if name.endswith(".log"))
        whole = data_of(self.oracle.directory / name)
        batches = split_batches(whole)
        end = sum(map(len, batches))
        ends = [last_offset_of(batch) + 1 for batch in batches]
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

    def delete_records(self, operation: Operation, offset: int) -> None:
        """Raise the log start of both, for which kstore flushes the log: no recovery point may be inside of a batch."""
        self.both(operation, lambda side: side.delete_records(offset))
        if -1 <= offset <= self.marks.high_watermark and self.excuses("log-start-at-once"):
            self._flushed = self.marks.log_end_offset
        self.check_log_start_is_on_disk()

    def check_log_start_is_on_disk(self) -> None:
        """kstore promises more than Kafka: the log start is in its file when `delete_records` returns."""
        if not isinstance(self.subject, KstoreSide):
            return
        line = read_checkpoints(self.subject.root).log_start or 0
        first = min(int(name[:20]) for name in contents(self.subject.directory) if name.endswith(".log"))
        start = self.subject.marks().log_start_offset
        if max(line, first) < start:
            raise Difference(f"the log start is {start}, but on disk it is {line}")


def _drop_waiting_snapshot(
    theirs: dict[str, tuple[int, bytes]], ours: dict[str, tuple[int, bytes]], subject: Side
) -> None:
    """Leave out the empty snapshot that kstore's log, open and unchanged since a recovery, has not written yet."""
    log = getattr(subject, "log", None)
    if log is not None and not log.closed and log._writer.producers.waits:
        name = f"{log._writer.producers.end_offset:020}.snapshot"
        if name not in ours and theirs.get(name, (0, b""))[0] == 10:  # without entries
            theirs.pop(name)


def _sort_snapshots(files: dict[str, tuple[int, bytes]]) -> None:
    """Put a snapshot's entries in order, which is that of a hash map in Kafka, and take their checksum out."""
    for name, (size, data) in list(files.items()):
        if ".snapshot" in name:
            data = data.ljust(size, b"\0")
            entries = sorted(data[at : at + 46] for at in range(10, size, 46))
            files[name] = (size, data[:2] + data[6:10] + b"".join(entries))


def _drop_gaps(directory: Path, ours: dict[str, tuple[int, bytes]]) -> None:
    """Leave kstore's file of gaps out, unless it speaks of an offset that a batch holds."""
    stretches = read_gaps(directory)
    for name in [name for name in ours if name.endswith(".log")]:
        for batch in split_batches(data_of(directory / name)):
            first = int.from_bytes(batch[:8])
            last = last_offset_of(batch)
            if any(first < end and start <= last for start, end in stretches):
                return
    ours.pop(GAPS_FILE, None)


def _drop_stale_slots(
    theirs: dict[str, tuple[int, bytes]], ours: dict[str, tuple[int, bytes]], truncated: Container[int]
) -> None:
    """Where Kafka's index of a truncated segment holds kstore's entries and old ones behind them, leave these out."""
    for name, (size, data) in list(theirs.items()):
        mine = ours.get(name)
        if (".index" in name or ".timeindex" in name) and int(name[:20]) in truncated:
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


def _epochs(path: Path) -> list[tuple[int, int]]:
    """The entries of a leader-epoch checkpoint."""
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]


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


def live(
    kafka: Kafka,
    base: Path,
    history: History,
    make_subject: SubjectMaker,
    trace: bool = False,
    prepare: Callable[[Path], None] | None = None,
) -> int:
    """Live a history on both sides below the empty directory `base`; how many of its operations. Raises Difference."""
    world = None
    step = -1
    try:
        for step, operation in enumerate((None, *history.operations), -1):
            try:
                if world is None or operation is None:
                    world = World(kafka, base, history, make_subject, prepare)
                else:
                    if trace:
                        print(step, operation, file=sys.stderr)
                    operation.run(world)
                world.check()
            except Difference as difference:
                difference.step = step
                raise
    except _Ended:
        pass
    finally:
        if world is not None:
            for side in (world.oracle, world.subject):
                try:
                    side.close()
                except Exception:
                    if isinstance(side, KafkaSide) and side.log is not None:
                        side.crash()
    return step + 1


def kstore_subject(kafka: Kafka, root: Path, config: dict[str, Any], now: int) -> Side:
    return KstoreSide(root, config, now)


def kafka_subject(kafka: Kafka, root: Path, config: dict[str, Any], now: int) -> Side:
    """Kafka against itself: what the harness says about two logs that are alike."""
    root.mkdir()
    return KafkaSide(kafka, root, config, now, "Kafka's twin")


# --- looking for differences ------------------------------------------------------------------------------------------


class Lives:
    """Lives histories in directories of their own, on a file system in memory where there is one."""

    def __init__(
        self,
        kafka: Kafka,
        make_subject: SubjectMaker = kstore_subject,
        prepare: Callable[[Path], None] | None = None,
    ) -> None:
        self.kafka = kafka
        self.prepare = prepare
        self.make_subject = make_subject
        self.count = 0
        self.operations = 0  # that were lived in histories without a difference
        self.cut_short = 0  # histories that came to an end before their last operation

    def difference(self, history: History, trace: bool = False) -> Difference | None:
        """The first difference of a history, or None."""
        self.count += 1
        memory = Path("/dev/shm")
        base = Path(tempfile.mkdtemp(prefix="history-", dir=memory if os.access(memory, os.W_OK) else None))
        try:
            lived = live(self.kafka, base, history, self.make_subject, trace, self.prepare)
            self.operations += lived
            self.cut_short += lived < len(history.operations)
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
    parser.add_argument("--producing", action="store_true", help="with producers and transactions")
    parser.add_argument("--compacting", action="store_true", help="with the cleaner")
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
            history = History.draw(seed, given.length, producing=given.producing, compacting=given.compacting)
            report = lives.report(history, given.shrink)
            if report is None:
                continue
            found += 1
            print(f"seed {seed}: {report}", flush=True)
            if given.keep:
                given.keep.mkdir(exist_ok=True)
                (given.keep / f"seed-{seed}.json").write_text(report.partition("replay:\n")[2])
            if found >= given.most:
                break
    print(f"{lives.count} histories of {lives.operations:,} operations lived, {found} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
