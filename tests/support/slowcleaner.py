"""A slow cleaner in plain Python, written from SEMANTICS 7.11 to 7.21a: what the compiled filter is judged by.

It works on decoded batches, one after the other, with a dictionary as the offset map. Nothing here asks kstore but for
its codec libraries. Compressed batches are compared by what is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import crc32c as second_opinion

from kstore.codec import compression
from kstore.files.txnindex import AbortedTxn
from tests.support.reference import (
    APPEND_TIME,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL,
    Rec,
    batch,
    decode,
    decode_records,
    record,
    wrap,
)

ABORT, COMMIT = 0, 1
LEADER_EPOCH_AT, MAGIC_AT, CRC_AT, COVERED_FROM = 12, 16, 17, 21


class Transactions:
    """SEMANTICS 7.15 and 7.16 with a list and two dictionaries."""

    def __init__(self, aborted: Iterable[AbortedTxn] = ()) -> None:
        self.waiting = list(aborted)
        self.active: dict[int, tuple[AbortedTxn, bool]] = {}
        self.committed: set[int] = set()
        self.retained: list[AbortedTxn] = []

    def activate(self, offset: int) -> None:
        for txn in sorted(self.waiting, key=lambda txn: txn.first_offset):
            if txn.first_offset <= offset:
                self.waiting.remove(txn)
                self.active.setdefault(txn.producer_id, (txn, False))

    def data(self, offset: int, producer_id: int, *, transactional: bool = True) -> bool:
        """Visit a data batch that ends at `offset`; whether it is aborted."""
        self.activate(offset)
        if not transactional:
            return False
        if producer_id in self.active:
            self.active[producer_id] = (self.active[producer_id][0], True)
            return True
        self.committed.add(producer_id)
        return False

    def marker(self, offset: int, kind: int | None, producer_id: int) -> bool:
        """Visit a control batch of this type, None without a record; whether nothing needs it any more."""
        self.activate(offset)
        if kind is None:
            return True
        if kind == COMMIT:
            was_noted = producer_id in self.committed
            self.committed.discard(producer_id)
            return not was_noted
        if kind != ABORT:
            return False
        txn, has_data = self.active.pop(producer_id, (None, False))
        if txn is not None and has_data:
            self.retained.append(txn)
        return not has_data


class Decoded(NamedTuple):
    """A batch or message of any format, its records with absolute offsets and timestamps."""

    data: bytes
    magic: int
    base: int
    last: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[Rec, ...]

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & CONTROL)

    @property
    def horizon(self) -> int | None:
        return self.base_timestamp if self.magic == 2 and self.attributes & DELETE_HORIZON else None

    @property
    def contents(self) -> tuple[object, ...]:
        """All but what a codec decides: sizes and the CRC."""
        return self[1:]


def split(data: bytes) -> list[bytes]:
    """The entries of a file."""
    entries = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        entries.append(data[:size])
        data = data[size:]
    return entries


def decoded(data: bytes) -> Decoded:
    """Take a batch apart; its CRC must hold."""
    if data[MAGIC_AT] < 2:
        return _decoded_old(data)
    base, _, epoch, magic, crc, attributes, delta, stamp, greatest, *producer, count = HEADER.unpack_from(data)
    assert crc == second_opinion.crc32c(data[COVERED_FROM:])
    section = data[HEADER_BYTES:]
    if attributes & 7 and count:
        section = compression.decompress(attributes & 7, section)
    records = tuple(
        r._replace(offset=base + o, timestamp=greatest if attributes & APPEND_TIME else wrap(stamp + t))
        for t, o, r in decode_records(section, count)
    )
    return Decoded(data, magic, base, base + delta, epoch, attributes, stamp, greatest, *producer, records)


def _decoded_old(data: bytes) -> Decoded:
    magic, attributes = data[MAGIC_AT], data[17]
    last, plain = int.from_bytes(data[:8], "big"), bytearray(data)
    records = []
    plain[17] &= ~7  # decode() takes the wrapper for a message with a large value
    (outer,) = decode(bytes(plain), check_crc=False)[0][1]
    if attributes & 7:
        inner = compression.decompress(attributes & 7, outer.value or b"", magic=magic)
        records = [r for _, group in decode(inner) for r in group]
        shift = last - records[-1].offset if magic else 0
        records = [r._replace(offset=r.offset + shift) for r in records]
        if attributes & APPEND_TIME and magic:
            records = [r._replace(timestamp=outer.timestamp) for r in records]
    else:
        records = [outer]
    first = records[0].offset
    return Decoded(
        data, magic, first, last, -1, attributes, outer.timestamp, outer.timestamp, -1, -1, -1, tuple(records)
    )


class OffsetMap(NamedTuple):
    """What the first pass learns: the newest offset of each key, and the last offset that it covers."""

    newest: dict[bytes, int]
    latest: int


def first_pass(
    batches: Sequence[bytes], first_dirty: int, aborted: Iterable[AbortedTxn], *, capacity: int | None = None
) -> OffsetMap:
    """SEMANTICS 7.11 and 7.12 over the batches of the dirty part."""
    newest: dict[bytes, int] = {}
    latest = -1
    transactions = Transactions(aborted)
    for data in batches:
        b = decoded(data)
        discards = _visit(transactions, b)
        for r in () if b.is_control or discards else b.records:
            if r.key is None or r.offset < first_dirty:
                continue
            if capacity is not None and len(newest) >= capacity:
                return OffsetMap(newest, latest)
            newest[r.key] = latest = r.offset
        if b.last >= first_dirty:
            latest = b.last
    return OffsetMap(newest, latest)


def _visit(transactions: Transactions, b: Decoded) -> bool:
    if not b.is_control:
        return transactions.data(b.last, b.producer_id, transactional=bool(b.attributes & TRANSACTIONAL))
    kind = int.from_bytes((b.records[0].key or b"")[2:4], "big") if b.records else None
    return transactions.marker(b.last, kind, b.producer_id)


@dataclass
class Cleaner:
    """The second pass: SEMANTICS 7.16 to 7.21a, record by record."""

    map: OffsetMap
    transactions: Transactions
    now: int
    retention: int
    first_uncleanable: int
    last_records: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    keeps_old_tombstones: bool = True
    max_offset: int = -1
    removed: int = 0
    keyless: int = 0

    def clean(self, data: bytes) -> bytes:
        """What becomes of one batch."""
        b = decoded(data)
        can_discard = _visit(self.transactions, b)
        is_due = b.horizon is not None and b.horizon <= self.now
        discards = can_discard and (is_due or not b.is_control)
        kept = [] if discards else [r for r in b.records if self.keeps(b, r, is_due=is_due)]
        if not kept:
            return self.emptied(b) if self.keeps_empty(b) else b""
        needs_horizon = b.horizon is None and (any(r.value is None for r in kept) or (b.is_control and can_discard))
        horizon = self.now + self.retention if needs_horizon else b.horizon
        if b.magic == 2 and len(kept) == len(b.records) and not needs_horizon:
            self.max_offset = max(self.max_offset, b.last)
            return data
        self.max_offset = max(self.max_offset, kept[-1].offset)
        return self.rebuilt(b, kept, horizon)

    def keeps_empty(self, b: Decoded) -> bool:
        if b.last + 1 == self.first_uncleanable:
            return True
        if b.producer_id < 0 or b.producer_id not in self.last_records:
            return False
        offset, epoch = self.last_records[b.producer_id]
        return offset == b.last if offset >= 0 else b.is_control and epoch == b.producer_epoch

    def keeps(self, b: Decoded, r: Rec, *, is_due: bool) -> bool:
        if b.is_control or r.offset > self.map.latest:
            return True
        if r.key is None:
            self.keyless += 1
            return False
        if r.offset < self.map.newest.get(r.key, -1):
            return False
        if r.value is not None:
            return True
        is_protected = not is_due if b.magic == 2 else self.keeps_old_tombstones
        self.removed += not is_protected
        return is_protected

    def emptied(self, b: Decoded) -> bytes:
        self.max_offset = max(self.max_offset, b.last)
        return batch(
            b"",
            0,
            base_offset=b.base,
            leader_epoch=b.leader_epoch,
            attributes=b.attributes & (APPEND_TIME | TRANSACTIONAL | CONTROL if b.magic else 0),
            last_offset_delta=b.last - b.base,
            base_timestamp=-1,
            max_timestamp=b.max_timestamp,
            producer_id=b.producer_id,
            producer_epoch=b.producer_epoch,
            base_sequence=b.base_sequence,
        )

    def rebuilt(self, b: Decoded, kept: list[Rec], horizon: int | None) -> bytes:
        base = b.base if b.magic == 2 else kept[0].offset
        last = b.last if b.magic == 2 else kept[-1].offset
        by_append_time = bool(b.magic and b.attributes & APPEND_TIME)
        if horizon is not None and horizon < 0:
            horizon = None
        base_timestamp = kept[0].timestamp if horizon is None else horizon
        section = b"".join(
            record(
                wrap(r.timestamp - base_timestamp),
                r.offset - base,
                r.key,
                r.value,
                [(name.decode(errors="replace").encode(), value) for name, value in r.headers],
            )
            for r in kept
        )
        flags = TRANSACTIONAL | CONTROL if b.magic == 2 else 0
        codec = b.attributes & 7
        return batch(
            compression.compress(codec, section),
            len(kept),
            base_offset=base,
            leader_epoch=b.leader_epoch,
            attributes=codec
            | (APPEND_TIME if by_append_time else 0)
            | (b.attributes & flags)
            | (DELETE_HORIZON if horizon is not None else 0),
            last_offset_delta=last - base,
            base_timestamp=base_timestamp,
            max_timestamp=b.max_timestamp if by_append_time else max(-1, *(r.timestamp for r in kept)),
            producer_id=b.producer_id,
            producer_epoch=b.producer_epoch,
            base_sequence=b.base_sequence,
        )


def padded(n: int, more: int, limit: int = 5) -> bytes:
    """A varint of more bytes than it needs."""
    z = (n << 1 ^ n >> 63) & (1 << 64) - 1
    out = bytearray()
    while z >= 0x80:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    out.append(z)
    for _ in range(min(more, limit - len(out))):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def odd_record(timestamp_delta: int, r: Rec, offset_delta: int, *, more: int, attributes: int = 0) -> bytes:
    """A record whose varints have `more` bytes than they need, and lengths of null that are not -1."""

    def part(data: bytes | None) -> bytes:
        return padded(-1 - more, more) if data is None else padded(len(data), more) + data

    body = bytes((attributes,)) + padded(timestamp_delta, more, 10) + padded(offset_delta, more)
    body += part(r.key) + part(r.value) + padded(len(r.headers), more)
    body += b"".join(padded(len(name), more) + name + part(value) for name, value in r.headers)
    return padded(len(body), more) + body
