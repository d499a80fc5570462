"""Logs as a cleaner leaves them, built by hand: random batches, a slow cleaner, and the plain list of what is left.

Nothing here asks kstore. The cleaner drops what it likes within the rules for batches, and not only what is
superseded: readers must not care why a record is gone. `write` makes the files of a partition, with indexes as Kafka
writes them.
"""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from tests.support.reference import (
    APPEND_TIME,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL,
    Rec,
    batch,
    compress,
    decode_records,
    record,
)

NOW = 1_700_000_000_000
KEYS = [b"k%d" % number for number in range(7)]


@dataclass(frozen=True)
class Stored:
    """One batch of format 2 as fields; `marker` is None for data, else whether the marker commits."""

    base: int
    last: int
    records: tuple[Rec, ...]
    max_timestamp: int
    codec: int = 0
    leader_epoch: int = 0
    producer: tuple[int, int, int] = (-1, -1, -1)  # id, epoch, base sequence
    transactional: bool = False
    marker: bool | None = None
    append_time: bool = False
    horizon: int | None = None

    @property
    def attributes(self) -> int:
        bits = APPEND_TIME * self.append_time | TRANSACTIONAL * self.transactional
        return bits | CONTROL * (self.marker is not None) | DELETE_HORIZON * (self.horizon is not None)

    def encode(self) -> bytes:
        """The bytes of the batch."""
        first = self.max_timestamp if self.append_time else self.records[0].timestamp if self.records else -1
        base_timestamp = first if self.horizon is None else self.horizon
        section = b"".join(
            record(
                (self.max_timestamp if self.append_time else r.timestamp) - base_timestamp,
                r.offset - self.base,
                r.key,
                r.value,
                r.headers,
            )
            for r in self.records
        )
        codec = self.codec if self.records else 0
        producer_id, epoch, sequence = self.producer
        return batch(
            compress(codec, section) if codec else section,
            len(self.records),
            base_offset=self.base,
            leader_epoch=self.leader_epoch,
            attributes=self.attributes | codec,
            last_offset_delta=self.last - self.base,
            base_timestamp=base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    def emptied(self) -> Stored:
        """What is left of a batch that keeps no record and must stay."""
        return replace(self, records=(), codec=0, horizon=None)

    def with_only(self, kept: Sequence[Rec], horizon: int | None) -> Stored:
        """The batch rebuilt around some of its records."""
        greatest = self.max_timestamp if self.append_time else max(r.timestamp for r in kept)
        return replace(
            self,
            records=tuple(kept),
            max_timestamp=greatest,
            horizon=self.horizon if self.horizon is not None else horizon,
        )


class Aborted(NamedTuple):
    """An entry of a transaction index."""

    producer_id: int
    first: int
    last: int
    stable: int


@dataclass
class SegmentFiles:
    """One segment: its base offset, its batches, its transaction index."""

    base: int
    batches: list[Stored] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)


@dataclass
class HandMade:
    """A log: segments in order, the last one active; `end` is its log end offset."""

    segments: list[SegmentFiles]
    end: int
    start: int = 0

    @property
    def batches(self) -> list[Stored]:
        return [each for segment in self.segments for each in segment.batches]

    @property
    def data_end(self) -> int:
        """Where the next opening finds the log ending."""
        return max([self.segments[-1].base, *(each.last + 1 for each in self.segments[-1].batches)])

    def truncated(self, offset: int) -> HandMade:
        """What `truncate_to` leaves: whole batches, and yet the end is the offset (SEMANTICS 11.2, 11.4)."""
        if offset < self.segments[0].base:
            return HandMade([SegmentFiles(offset)], offset, offset)
        segments = [
            SegmentFiles(
                segment.base,
                [each for each in segment.batches if each.last < offset],
                [entry for entry in segment.aborted if entry.last < offset],
            )
            for segment in self.segments
            if segment.base <= offset
        ]
        return HandMade(segments, min(offset, self.end), min(offset, self.start))

    def records(self, offset: int = 0, *, committed: bool = False) -> list[Rec]:
        """What a reader of records gets from `offset` on."""
        hidden = self.hidden() if committed else set()
        limit = self.stable_end() if committed else self.end
        offset = max(offset, self.start)
        return [
            r._replace(timestamp=each.max_timestamp) if each.append_time else r
            for each in self.batches
            if each.marker is None and each.base not in hidden
            for r in each.records
            if offset <= r.offset < limit
        ]

    def hidden(self) -> set[int]:
        """The bases of batches of aborted transactions."""
        aborted = [entry for segment in self.segments for entry in segment.aborted]
        return {
            each.base
            for each in self.batches
            if each.transactional and each.marker is None
            if any(a.producer_id == each.producer[0] and a.first <= each.base <= a.last for a in aborted)
        }

    def stable_end(self) -> int:
        """The last stable offset."""
        open_since: dict[int, int] = {}
        for each in self.batches:
            if each.transactional and each.marker is None:
                open_since.setdefault(each.producer[0], each.base)
            elif each.marker is not None:
                open_since.pop(each.producer[0], None)
        return min(open_since.values(), default=self.end)

    def times(self) -> Iterable[tuple[int, int]]:
        """(timestamp, offset) of every record in the files, markers too."""
        for each in self.batches:
            for r in each.records:
                yield each.max_timestamp if each.append_time else r.timestamp, r.offset

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """SEMANTICS 5.5, over all segments."""
        return next((each for each in self.times() if each[0] >= timestamp and each[1] >= self.start), None)

    def max_timestamp(self) -> tuple[int, int] | None:
        """SEMANTICS 5.4, of the batches that have records."""
        filled = (each for each in self.batches if each.records)
        best = max(filled, key=lambda each: each.max_timestamp, default=None)
        if best is None or best.max_timestamp < 0:
            return None
        greatest = best.max_timestamp
        offsets = (r.offset for r in best.records if best.append_time or r.timestamp == greatest)
        offset = next(offsets, None)
        return None if offset is None else (greatest, offset)


# --- a log before it is cleaned ---------------------------------------------------------------------------------------


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = NOW
        self.end = 0
        self.segments = [SegmentFiles(0)]
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.epoch = 0

    def records(self, count: int) -> tuple[Rec, ...]:
        made = []
        for number in range(count):
            self.now += self.rng.choice((0, 1, 5, -3))
            value = None if self.rng.random() < 0.2 else b"v%d" % (self.end + number) * self.rng.choice((1, 1, 20))
            headers = ((b"h", self.rng.choice((None, b"x"))),) if self.rng.random() < 0.1 else ()
            made.append(Rec(self.end + number, self.now, self.rng.choice(KEYS), value, headers))
        return tuple(made)

    def put(self, stored: Stored) -> None:
        self.segments[-1].batches.append(stored)
        self.end = stored.last + 1

    def data(self) -> None:
        rng = self.rng
        records = self.records(rng.choice((1, 1, 2, 3, 6)))
        producer, transactional = (-1, -1, -1), False
        if rng.random() < 0.6:
            number = rng.randrange(4)
            transactional = number < 2
            if transactional:
                self.open.setdefault(number, self.end)
            producer = (number, 0, self.sequences.get(number, 0))
            self.sequences[number] = producer[2] + len(records)
        self.put(
            Stored(
                records[0].offset,
                records[-1].offset,
                records,
                max(r.timestamp for r in records),
                codec=rng.choice((0, 0, 0, 1, 2, 3, 4)),
                leader_epoch=self.epoch,
                producer=producer,
                transactional=transactional,
                append_time=rng.random() < 0.15,
            )
        )

    def marker(self) -> None:
        producer_id = self.rng.choice(sorted(self.open))
        first = self.open.pop(producer_id)
        commits = self.rng.random() < 0.5
        if not commits:
            stable = min(self.open.values(), default=self.end + 1)
            self.segments[-1].aborted.append(Aborted(producer_id, first, self.end, stable))
        told = Rec(self.end, self.now, struct.pack(">hh", 0, commits), struct.pack(">hi", 0, 0))
        self.put(
            Stored(
                self.end,
                self.end,
                (told,),
                self.now,
                leader_epoch=self.epoch,
                producer=(producer_id, 0, -1),
                transactional=True,
                marker=commits,
            )
        )

    def step(self, most: int) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            self.epoch += 1
        if self.open and rng.random() < 0.3:
            self.marker()
        else:
            self.data()
        if len(self.segments[-1].batches) >= most:
            self.segments.append(SegmentFiles(self.end))


def fresh(rng: random.Random, batches: int) -> HandMade:
    """A log that no cleaner has seen: offsets are dense."""
    maker = _Maker(rng)
    for _ in range(batches):
        maker.step(rng.choice((2, 3, 5, 8)))
    while maker.open and rng.random() < 0.8:
        maker.marker()
    if rng.random() < 0.5 and maker.segments[-1].batches:
        maker.segments.append(SegmentFiles(maker.end))
    return HandMade(maker.segments, maker.end)


# --- the slow cleaner -------------------------------------------------------------------------------------------------


def cleaned(log: HandMade, rng: random.Random, *, hard: float | None = None) -> HandMade:
    """The log after a pass that dropped what it liked of the segments below the active one.

    `hard`: how much goes. Data of an aborted transaction goes as a whole, and its marker not before it. Nothing at or
    above the last stable offset is touched. The last offset below the bound stays derivable from the files, or not, as
    after a pass with another bound.
    """
    hard = rng.choice((0.2, 0.5, 0.8, 0.95, 1.0)) if hard is None else hard
    stable = log.stable_end()
    bound = next((s.base for s in log.segments if any(each.last >= stable for each in s.batches)), log.end)
    bound = min(bound, log.segments[-1].base)
    hidden = log.hidden()
    keeps_end = rng.random() < 0.7
    left: dict[int, Stored] = {}  # by base offset; of a transaction its data, which its marker must outlive
    transactions: dict[int, list[int]] = {}
    for each in (each for segment in log.segments if segment.base < bound for each in segment.batches):
        data = transactions.setdefault(each.producer[0], [])
        is_last = keeps_end and each.last + 1 == bound
        if each.marker is not None:
            found = _clean_marker(each, rng, hard, any(base in left for base in data))
            data.clear()
        else:
            found = _clean(each, rng, hard, in_aborted=each.base in hidden)
            if each.transactional:
                data.append(each.base)
        found = each.emptied() if found is None and is_last else found
        if found is not None:
            left[each.base] = found
    groups: list[SegmentFiles] = []
    for segment in log.segments:
        if segment.base >= bound:
            groups.append(SegmentFiles(segment.base, list(segment.batches), list(segment.aborted)))
            continue
        if not groups or rng.random() < 0.5:
            groups.append(SegmentFiles(segment.base))
        groups[-1].batches += [left[each.base] for each in segment.batches if each.base in left]
        groups[-1].aborted += [
            entry
            for entry in segment.aborted
            if rng.random() < 0.5
            or any(
                each.transactional and each.producer[0] == entry.producer_id and entry.first <= each.base <= entry.last
                for each in left.values()
            )
        ]
    return HandMade(groups, log.end, log.start)


def _clean_marker(each: Stored, rng: random.Random, hard: float, has_data: bool) -> Stored | None:
    if has_data:
        return each
    if rng.random() < hard / 2:
        return each.emptied() if rng.random() < 0.3 else None
    return each.with_only(each.records, NOW + rng.randrange(10_000)) if each.records else each


def _clean(each: Stored, rng: random.Random, hard: float, *, in_aborted: bool) -> Stored | None:
    if in_aborted:
        return each if rng.random() > hard else each.emptied() if rng.random() < 0.2 else None
    horizon = NOW + rng.randrange(10_000) if rng.random() < 0.4 else None
    kept = [r for r in each.records if rng.random() > hard]
    if not kept:
        return each.emptied() if rng.random() < 0.25 else None
    if len(kept) == len(each.records) and horizon is None:
        return each
    return each.with_only(kept, horizon)


# --- files ------------------------------------------------------------------------------------------------------------


def write(
    log: HandMade,
    directory: Path,
    *,
    index_interval: int = 200,
    indexes: bool = True,
    recovery_point: int | None = None,
    clean: bool = False,
) -> None:
    """Make the partition's files and its lines in the checkpoint files of the root, which has this partition alone."""
    directory.mkdir()
    for segment in log.segments:
        name = f"{segment.base:020d}"
        data, offsets, times = _index(segment, index_interval)
        (directory / f"{name}.log").write_bytes(data)
        if indexes:
            (directory / f"{name}.index").write_bytes(offsets)
            (directory / f"{name}.timeindex").write_bytes(times)
            if segment.aborted:
                packed = b"".join(struct.pack(">hqqqq", 0, *entry) for entry in segment.aborted)
                (directory / f"{name}.txnindex").write_bytes(packed)
    epochs: dict[int, int] = {}
    for each in log.batches:
        epochs.setdefault(each.leader_epoch, each.base)
    lines = "".join(f"{epoch} {offset}\n" for epoch, offset in epochs.items())
    (directory / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs)}\n{lines}")
    topic, _, number = directory.name.rpartition("-")
    marks = {"recovery-point-offset-checkpoint": log.data_end if recovery_point is None else recovery_point}
    if len(log.segments) > 1:
        marks["cleaner-offset-checkpoint"] = log.segments[-1].base
    if log.start > log.segments[0].base:
        marks["log-start-offset-checkpoint"] = log.start
    for name, offset in marks.items():
        (directory.parent / name).write_text(f"0\n1\n{topic} {number} {offset}\n")
    if clean:
        (directory.parent / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')


def _index(segment: SegmentFiles, interval: int) -> tuple[bytes, bytes, bytes]:
    data, offsets, times = bytearray(), bytearray(), bytearray()
    since, greatest, at, told = 0, -1, segment.base, -1
    for each in segment.batches:
        encoded = each.encode()
        if each.max_timestamp > greatest:
            greatest, at = each.max_timestamp, each.last
        if since > interval:
            offsets += struct.pack(">ii", each.last - segment.base, len(data))
            if greatest > told:
                times += struct.pack(">qi", greatest, at - segment.base)
                told = greatest
            since = 0
        since += len(encoded)
        data += encoded
    if greatest > told:
        times += struct.pack(">qi", greatest, at - segment.base)
    return bytes(data), bytes(offsets), bytes(times)


# --- a swap, rename by rename -----------------------------------------------------------------------------------------


def read_back(directory: Path) -> HandMade:
    """The log in a directory that only uncompressed batches of format 2 were appended to."""
    segments = []
    for path in sorted(directory.glob("*.log")):
        data, batches, at = path.read_bytes(), [], 0
        while at + HEADER_BYTES <= len(data):
            base, size, epoch, _, _, attributes, delta, first, greatest, *rest = HEADER.unpack_from(data, at)
            producer_id, producer_epoch, sequence, count = rest
            assert not attributes & 7
            told = decode_records(data[at + HEADER_BYTES : at + 12 + size], count)
            records = tuple(r._replace(offset=base + d, timestamp=first + t) for t, d, r in told)
            producer = (producer_id, producer_epoch, sequence)
            horizon = first if attributes & DELETE_HORIZON else None
            batches.append(Stored(base, base + delta, records, greatest, 0, epoch, producer, horizon=horizon))
            at += 12 + size
        segments.append(SegmentFiles(int(path.name[:20]), batches))
    end = max([segments[-1].base, *(each.last + 1 for each in segments[-1].batches)])
    return HandMade(segments, end)


def swap(old: HandMade, new: HandMade, directory: Path, *, index_interval: int = 200) -> Iterator[str]:
    """Put the segments of `new` in the place of those of `old`, as a broker's cleaner does.

    Gives what was done after each step; between two steps another process may look.
    """
    active = old.segments[-1].base
    old_bytes = {s.base: b"".join(each.encode() for each in s.batches) for s in old.segments}
    bases = [s.base for s in new.segments]
    for number, segment in enumerate(new.segments):
        limit = [*bases, 1 << 62][number + 1]
        sources = [s.base for s in old.segments if segment.base <= s.base < limit]
        data, offsets, times = _index(segment, index_interval)
        if segment.base == active or (sources == [segment.base] and old_bytes[segment.base] == data):
            continue
        packed = b"".join(struct.pack(">hqqqq", 0, *entry) for entry in segment.aborted)
        files = {"log": data, "index": offsets, "timeindex": times, **({"txnindex": packed} if packed else {})}
        name = f"{segment.base:020d}"
        modified = (directory / f"{sources[-1]:020d}.log").stat().st_mtime_ns
        for suffix, content in files.items():
            path = directory / f"{name}.{suffix}.cleaned"
            path.write_bytes(content)
            os.utime(path, ns=(modified, modified))
            yield f"{path.name} is written"
        for suffix in files:
            (directory / f"{name}.{suffix}.cleaned").rename(directory / f"{name}.{suffix}.swap")
            yield f"{name}.{suffix} is .swap"
        for base in sources:
            for suffix in ("log", "index", "timeindex", "txnindex"):
                path = directory / f"{base:020d}.{suffix}"
                if path.exists():
                    path.rename(f"{path}.deleted")
                    yield f"{path.name} is .deleted"
        for suffix in files:
            (directory / f"{name}.{suffix}.swap").rename(directory / f"{name}.{suffix}")
            yield f"{name}.{suffix} is final"
        for path in sorted(directory.glob("*.deleted")):
            path.unlink()
            yield f"{path.name} is unlinked"


def drawn(seed: int, batches: int, passes: int) -> tuple[random.Random, HandMade]:
    rng = random.Random(seed)
    made = fresh(rng, batches)
    for _ in range(passes):
        made = cleaned(made, rng)
    return rng, made


@contextmanager
def a_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
