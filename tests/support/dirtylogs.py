"""Random batches for a cleaner: keys, tombstones, producers, transactions, horizons, codecs, old formats.

Nothing here asks kstore but for its codec libraries.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from kstore.files.txnindex import AbortedTxn
from tests.support.batches import CODECS, legacy, record, v2, wrapper
from tests.support.reference import APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL, Rec
from tests.support.slowcleaner import odd_record

NOW = 1_700_000_000_000
KEYS = (*(b"k%d" % i for i in range(12)), b"", b"a longer key of thirty-two bytes!")
VALUES = (None, b"", b"v", b"value " * 20)
NAMES = (b"", b"n", "n\u00e4me".encode(), b"\xff\xfe", b"name " * 30)
FAR = (0, -1, -2, (1 << 63) - 1, -(1 << 63), 1 << 40)


class DirtyLog(NamedTuple):
    """Batches in offset order, the entries of their transaction index, and each producer's last data offset."""

    batches: list[bytes]
    aborted: list[AbortedTxn]
    last_data: dict[int, int]


def dirty_log(draw: random.Random, count: int, *, codecs: tuple[str, ...] = CODECS, old: bool = True) -> DirtyLog:
    """Some `count` batches; each log prefers a few of the peculiarities, so that whole live and dead batches occur."""
    maker = _Maker(draw, codecs, old=old)
    for _ in range(count):
        maker.add()
    return DirtyLog(maker.batches, maker.aborted, maker.last_data)


class _Maker:
    def __init__(self, draw: random.Random, codecs: tuple[str, ...], *, old: bool) -> None:
        self.draw = draw
        self.codecs = codecs
        self.old = draw.choice([0, 0.3]) if old else 0
        self.oddly = draw.choice([0, 0, 0.4])
        self.headers = draw.choice([0, 0, 0.3])
        self.tombstones = draw.choice([0, 0.1, 0.6])
        self.keyless = draw.choice([0, 0, 0.2])
        self.far = draw.choice([0, 0, 0.2])
        self.horizons = draw.choice([0, 0.3])
        self.gaps = draw.choice([0, 0.3])
        self.empty = draw.choice([0, 0.1])
        self.keys = draw.sample(KEYS, k=draw.choice([2, 5, len(KEYS)]))
        self.most = draw.choice([3, 10, 150])
        self.offset = draw.choice([0, 5, 1 << 40])
        self.open: dict[int, int] = {}
        self.batches: list[bytes] = []
        self.aborted: list[AbortedTxn] = []
        self.last_data: dict[int, int] = {}

    def happens(self, share: float) -> bool:
        return self.draw.random() < share

    def add(self) -> None:
        if self.happens(self.gaps):
            self.offset += self.draw.choice([1, 7, 300])
        if self.happens(self.old):
            self.add_old()
        elif (self.open and self.happens(0.3)) or self.happens(0.05):
            self.add_marker()
        else:
            self.add_data()

    def put(self, batch: bytes, offsets: int) -> None:
        self.batches.append(batch)
        self.offset += offsets

    def stamp(self) -> int:
        if self.happens(self.far):
            return self.draw.choice(FAR)
        return NOW + self.draw.randrange(-100_000, 100_000)

    def some(self, offset: int) -> Rec:
        draw = self.draw
        key = None if self.happens(self.keyless) else draw.choice(self.keys)
        value = None if self.happens(self.tombstones) else draw.choice(VALUES[1:])
        headers: tuple[tuple[bytes, bytes | None], ...] = ()
        if self.happens(self.headers):
            headers = tuple((draw.choice(NAMES), draw.choice(VALUES)) for _ in range(draw.randrange(1, 4)))
        return Rec(offset, self.stamp(), key, value, headers)

    def add_data(self) -> None:
        draw = self.draw
        records = [self.some(0) for _ in range(0 if self.happens(self.empty) else draw.randrange(1, self.most))]
        deltas = list(range(len(records)))
        if self.happens(self.gaps):
            deltas = sorted(draw.sample(range(3 * len(records) + 1), k=len(records)))
        last_delta = max([*deltas, 0]) + (draw.choice([0, 0, 5]) if self.happens(self.gaps) else 0)
        horizon = self.draw.choice([NOW - 9, NOW, NOW + 9, -5]) if self.happens(self.horizons) else None
        stamps = [r.timestamp for r in records] or [NOW]
        base = stamps[0] if horizon is None else horizon
        attributes = (DELETE_HORIZON if horizon is not None else 0) | (APPEND_TIME if self.happens(0.2) else 0)
        producer: dict[str, int] = {}
        if self.happens(0.5):
            producer_id = draw.randrange(4)
            producer = {
                "producer_id": producer_id,
                "producer_epoch": draw.randrange(3),
                "base_sequence": self.offset % 999,
            }
            self.last_data[producer_id] = self.offset + last_delta
            if producer_id % 2:
                attributes |= TRANSACTIONAL
                self.open.setdefault(producer_id, self.offset)
        more = draw.choice([1, 2, 9]) if self.happens(self.oddly) else 0
        section = [
            odd_record(r.timestamp - base, r, delta, more=more, attributes=draw.randrange(256))
            if more
            else record(delta, r.timestamp - base, r.key, r.value, r.headers)
            for r, delta in zip(records, deltas, strict=True)
        ]
        batch = v2(
            section,
            base_offset=self.offset,
            leader_epoch=draw.randrange(-1, 9),
            codec=draw.choice(self.codecs) if records else "none",
            attributes=attributes,
            last_offset_delta=last_delta,
            base_timestamp=base,
            max_timestamp=max(stamps),
            **producer,
        )
        self.put(batch, last_delta + 1)

    def add_marker(self) -> None:
        draw = self.draw
        producer_id = draw.choice([*self.open, 1, 3])
        kind = draw.choice([0, 0, 1, 1, 2, 5])
        horizon = draw.choice([NOW - 9, NOW, NOW + 9]) if self.happens(self.horizons) else None
        base = NOW if horizon is None else horizon
        batch = v2(
            [record(0, 5, bytes((0, 0, 0, kind)), draw.choice([bytes(6), bytes(6), None]))],
            base_offset=self.offset,
            codec=draw.choice(["none", "none", *self.codecs]),
            attributes=CONTROL | TRANSACTIONAL | (DELETE_HORIZON if horizon is not None else 0),
            base_timestamp=base,
            max_timestamp=NOW,
            producer_id=producer_id,
            producer_epoch=draw.randrange(3),
        )
        if kind < 2 and producer_id in self.open:
            first = self.open.pop(producer_id)
            if kind == 0:
                self.aborted.append(AbortedTxn(0, producer_id, first, self.offset, self.offset + 1))
        self.put(batch, 1)

    def add_old(self) -> None:
        draw = self.draw
        magic = draw.randrange(2)
        attributes = APPEND_TIME if magic and self.happens(0.3) else 0
        records = [self.some(0) for _ in range(draw.randrange(1, 6))]
        if self.happens(0.5):
            r = records[0]
            message = legacy(
                magic, r.value, key=r.key, timestamp=r.timestamp, attributes=attributes, offset=self.offset
            )
            self.put(message, 1)
            return
        last = len(records) - 1
        inner = [
            legacy(magic, r.value, key=r.key, timestamp=r.timestamp, offset=i if magic else self.offset + i)
            for i, r in enumerate(records)
        ]
        message = wrapper(
            magic,
            inner,
            codec=draw.choice(("gzip", "snappy", "lz4")),
            offset=self.offset + last,
            timestamp=max(r.timestamp for r in records),
            attributes=attributes,
        )
        self.put(message, last + 1)
