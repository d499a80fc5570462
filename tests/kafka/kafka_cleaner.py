"""The rules of one round of cleaning in plain Python: what SEMANTICS 7.11 to 7.22 say that Kafka's cleaner leaves.

Works on batches as Kafka's own classes read them, before and after a round, and knows nothing of kstore. `expected`
says for each new segment which batches it holds; `seen` reads a directory in the same shape.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.kafka.kafka_jvm import KafkaLog

INT_MAX = 2**31 - 1


class Rec(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | None], ...]


class Batch(NamedTuple):
    """What a batch's header says, and its records. `crc` is None where a batch is made anew."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    magic: int
    compression: int
    timestamp_type: int
    is_transactional: bool
    is_control: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    horizon: int
    records: tuple[Rec, ...]
    crc: int | None = None


class Aborted(NamedTuple):
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass
class Segment:
    base: int
    size: int
    index_bytes: int
    time_index_bytes: int
    next_offset: int
    aborted: list[Aborted]
    batches: list[Batch]
    positions: list[int]
    entries: list[tuple[int, int]]  # (offset, position) of the offset index


@dataclass
class Round:
    """What a round is told."""

    first_dirty: int
    first_uncleanable: int
    map_keys: int
    now: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    log_start: int
    last_records: Mapping[int, tuple[int, int]]  # producer id -> (last data offset or -1, epoch)
    mtimes: Mapping[int, int] = field(default_factory=dict)  # of segments, by base


def seen(log: KafkaLog, now: int) -> list[Segment]:
    """The segments of an open log, read with Kafka's own classes."""
    records: dict[tuple[str, int], list[Rec]] = {}
    for line in log.kafka.records(log.directory):
        if "offset" in line:
            headers = tuple((name, value) for name, value in line["headers"])
            rec = Rec(line["offset"], line["timestamp"], _decoded(line["key"]), _decoded(line["value"]), headers)
            records.setdefault((line["segment"], line["batchBaseOffset"]), []).append(rec)
    batches: dict[int, list[tuple[int, Batch]]] = {}
    for line in log.call("batches", offset=-1, now=now):
        base = line["segment_base_offset"]
        batch = Batch(
            line["base_offset"],
            line["last_offset"],
            line["max_timestamp"],
            line["partition_leader_epoch"],
            line["magic"],
            line["compression"],
            line["timestamp_type"],
            line["is_transactional"],
            line["is_control"],
            line["producer_id"],
            line["producer_epoch"],
            line["base_sequence"],
            line["delete_horizon_ms"],
            tuple(records.get((f"{base:020d}.log", line["base_offset"]), ())),
            line["crc"],
        )
        batches.setdefault(base, []).append((line["position"], batch))
    segments = []
    for line in log.call("segments", detail=True, now=now):
        base = line["base_offset"]
        path = log.directory / f"{base:020d}.log"
        own = batches.get(base, [])
        index = _read(path.with_suffix(".index"))[: 8 * line["offset_index_entries"]]
        segments.append(
            Segment(
                base,
                line["size_bytes"],
                8 * line["offset_index_entries"],
                12 * line["time_index_entries"],
                line["next_offset"],
                [Aborted(*entry) for entry in struct.iter_unpack(">xxqqqq", _read(path.with_suffix(".txnindex")))],
                [batch for _, batch in own],
                [position for position, _ in own],
                [(base + offset, position) for offset, position in struct.iter_unpack(">ii", index)],
            )
        )
    return segments


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Transactions:
    """Which batches are aborted data, and which markers nothing needs (SEMANTICS 7.16)."""

    def __init__(self) -> None:
        self.waiting: list[Aborted] = []
        self.aborting: dict[int, tuple[Aborted, bool]] = {}
        self.committed: set[int] = set()
        self.kept: list[Aborted] = []

    def add(self, aborted: Iterable[Aborted]) -> None:
        self.waiting = sorted([*self.waiting, *aborted], key=lambda entry: entry.first_offset)

    def can_discard(self, batch: Batch) -> bool:
        if batch.is_control:
            return self._on_control(batch)
        self._activate(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self.aborting:
            self.aborting[batch.producer_id] = (self.aborting[batch.producer_id][0], True)
            return True
        self.committed.add(batch.producer_id)
        return False

    def _activate(self, last_offset: int) -> None:
        while self.waiting and self.waiting[0].first_offset <= last_offset:
            entry = self.waiting.pop(0)
            self.aborting.setdefault(entry.producer_id, (entry, False))

    def _on_control(self, batch: Batch) -> bool:
        self._activate(batch.last_offset)
        if not batch.records:
            return True
        key = batch.records[0].key
        assert key is not None
        kind = struct.unpack_from(">hh", key)[1]
        if kind == 0:
            entry, had_data = self.aborting.pop(batch.producer_id, (None, False))
            if entry is not None and had_data:
                self.kept.append(entry)
                return False
            return True
        if kind == 1:
            had_committed = batch.producer_id in self.committed
            self.committed.discard(batch.producer_id)
            return not had_committed
        return False


def gathered(segments: Sequence[Segment], told: Round, start: int, end: int) -> list[Aborted]:
    """The aborted transactions of the segments from that of `start` on with data below `end`, but for those that end
    below the log start (SEMANTICS 7.15).

    None where the log starts below its first segment: `aborts-below-the-files`.
    """
    found: list[Aborted] = []
    floor = max((segment.base for segment in segments if segment.base <= start), default=2**63)
    for segment in segments:
        if segment.base < floor:
            continue
        for entry in segment.aborted:
            if entry.last_offset >= told.log_start and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found


def offset_map(segments: Sequence[Segment], told: Round) -> tuple[dict[bytes, int], int]:
    """The newest dirty offset of each key, and the last offset that the map knows of (SEMANTICS 7.11)."""
    newest: dict[bytes, int] = {}
    latest = -1
    floor = max((segment.base for segment in segments if segment.base <= told.first_dirty), default=told.first_dirty)
    dirty = [segment for segment in segments if floor <= segment.base < told.first_uncleanable]
    transactions = Transactions()
    transactions.add(gathered(segments, told, told.first_dirty, told.first_uncleanable))
    for i, segment in enumerate(dirty):
        at = max((position for offset, position in segment.entries if offset <= told.first_dirty), default=0)
        for position, batch in zip(segment.positions, segment.batches, strict=True):
            if position < at:
                continue
            if not transactions.can_discard(batch) and not batch.is_control:
                for record in batch.records:
                    if record.key is None or record.offset < told.first_dirty:
                        continue
                    if len(newest) >= told.map_keys:
                        return newest, latest
                    newest[record.key] = latest = record.offset
            if batch.last_offset >= told.first_dirty:
                latest = batch.last_offset
        latest = (dirty[i + 1].base if i + 1 < len(dirty) else told.first_uncleanable) - 1
    return newest, latest


def groups(segments: Sequence[Segment], told: Round, end: int) -> list[list[Segment]]:
    """Which segments become one (SEMANTICS 7.13)."""
    todo = [segment for segment in segments if segment.base < end]
    found: list[list[Segment]] = []
    for i, segment in enumerate(todo):
        last = (todo[i + 1].base if i + 1 < len(todo) else told.first_uncleanable) - 1
        if found:
            group = [*found[-1], segment]
            if (
                sum(each.size for each in group) <= told.segment_bytes
                and sum(each.index_bytes for each in group) <= told.index_bytes
                and sum(each.time_index_bytes for each in group) <= told.index_bytes
                and (segment.size == 0 or last - group[0].base <= INT_MAX)
            ):
                found[-1].append(segment)
                continue
        found.append([segment])
    return found


def expected(segments: Sequence[Segment], told: Round) -> tuple[int, dict[int, tuple[list[Batch], list[Aborted]]]]:
    """The next first dirty offset, and by base what each new segment holds: batches, and entries of its `.txnindex`."""
    newest, latest = offset_map(segments, told)
    end = latest + 1
    transactions = Transactions()
    below = [segment for segment in segments if segment.base < told.first_dirty]
    legacy_horizon = told.mtimes.get(below[-1].base, 0) - told.delete_retention_ms if below else 0
    new: dict[int, tuple[list[Batch], list[Aborted]]] = {}
    for group in groups(segments, told, end):
        kept: list[Batch] = []
        transactions.kept = []
        for i, segment in enumerate(group):
            bound = group[i + 1].base if i + 1 < len(group) else segment.next_offset
            transactions.add(gathered(segments, told, segment.base, bound))
            keeps_old = told.mtimes.get(segment.base, 0) > legacy_horizon
            for batch in segment.batches:
                kept += cleaned(batch, told, newest, latest, transactions, keeps_old)
        new[group[0].base] = (kept, transactions.kept)
    return end, new


def cleaned(
    batch: Batch, told: Round, newest: Mapping[bytes, int], latest: int, transactions: Transactions, keeps_old: bool
) -> list[Batch]:
    """What is left of a batch (SEMANTICS 7.17 to 7.21a)."""
    can_discard = transactions.can_discard(batch)
    is_due = batch.horizon >= 0 and batch.horizon <= told.now
    discard = can_discard and (not batch.is_control or is_due)
    data_offset, epoch = told.last_records.get(batch.producer_id, (-2, -2))
    is_last = (data_offset == batch.last_offset) or (
        data_offset == -1 and batch.is_control and epoch == batch.producer_epoch
    )
    retain_empty = (batch.producer_id >= 0 and is_last) or batch.last_offset + 1 == told.first_uncleanable

    def keeps(record: Rec) -> bool:
        if discard:
            return False
        if batch.is_control or record.offset > latest:
            return True
        if record.key is None:
            return False
        protected = keeps_old if batch.magic < 2 else batch.horizon < 0 or told.now < batch.horizon
        return record.offset >= newest.get(record.key, -1) and (record.value is not None or protected)

    records = tuple(record for record in batch.records if keeps(record))
    if not records:
        if retain_empty:
            return [batch._replace(records=(), compression=0, horizon=-1, crc=None)]
        return []
    has_tombstone = any(record.value is None for record in records)
    stamps = batch.horizon < 0 and (has_tombstone or (batch.is_control and can_discard))
    if batch.magic == 2 and not stamps and len(records) == len(batch.records):
        return [batch]
    rebuilt = batch._replace(records=records, crc=None)
    if stamps:
        rebuilt = rebuilt._replace(horizon=told.now + told.delete_retention_ms)
    if batch.timestamp_type != 1:
        rebuilt = rebuilt._replace(max_timestamp=max(record.timestamp for record in records))
    if batch.magic < 2:
        rebuilt = rebuilt._replace(
            magic=2, base_offset=records[0].offset, last_offset=records[-1].offset, timestamp_type=batch.timestamp_type
        )
    return [rebuilt]


def contradiction(before: Sequence[Segment], after: Sequence[Segment], told: Round, end: int) -> str | None:
    """Where a round of Kafka's is not what the rules say; None where it is."""
    expected_end, new = expected(before, told)
    if end != expected_end:
        return f"next first dirty offset {end}, by the rules {expected_end}"
    bases = [*new, *(segment.base for segment in before if segment.base >= expected_end)]
    if (actual := [segment.base for segment in after]) != bases:
        return f"segments {actual}, by the rules {bases}"
    for segment in after:
        batches, aborted = new.get(segment.base, (None, []))
        if batches is None:
            continue
        if segment.aborted != aborted:
            return f"transaction index of {segment.base}: {segment.aborted}, by the rules {aborted}"
        found = [
            batch._replace(crc=None if like.crc is None else batch.crc)
            for batch, like in zip(segment.batches, batches, strict=False)
        ]
        if found != batches or len(segment.batches) != len(batches):
            return f"segment {segment.base}:\n" + "\n".join(_unlike(segment.batches, batches))
    return None


def _unlike(found: Sequence[Batch], expected: Sequence[Batch]) -> Iterable[str]:
    for i in range(max(len(found), len(expected))):
        pair: list[Any] = [batches[i] if i < len(batches) else None for batches in (found, expected)]
        if pair[0] is None or pair[1] is None or pair[0]._replace(crc=None) != pair[1]._replace(crc=None):
            yield f"  is  {pair[0]}\n  not {pair[1]}"
