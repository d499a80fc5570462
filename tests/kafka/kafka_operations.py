"""What may happen to a log in a random history: each operation is one small class.

An operation holds plain numbers and texts only, so that a history can be printed, read back and shrunk. Where it needs
an offset it holds a fraction in thousandths (`at`) and a step (`by`), resolved against the marks when it runs: an
operation stays meaningful when those before it are taken out. Small and plain values come first wherever a choice is
drawn, since shrinking goes there.

To add an operation: a frozen dataclass that derives from `Operation`, its fields, `draw` and `run`, listed in
`OPERATIONS` with its weight.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tests.kafka.kafka_jvm import Row

if TYPE_CHECKING:
    from tests.kafka.kafka_history import World
    from tests.kafka.kafka_sides import Appended, Side

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMES = ("now", "rising", "none", "same", "old", "ahead", "mixed", "too late", "too early")
SIZES = (0, 1, 20, 55, 60, 100, 130, 400)


@dataclass(frozen=True)
class Operation:
    """One step of a history."""

    weight: ClassVar[int] = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        """A random one."""
        return cls()

    def run(self, world: World) -> None:
        """Do it on both sides with `world.both`, which compares what they say."""
        raise NotImplementedError

    def simpler(self) -> list[Operation]:
        """Operations like this one with one field made plainer: what shrinking tries."""
        found: list[Operation] = []
        for field in fields(self):
            value = getattr(self, field.name)
            default = field.default
            if value == default:
                continue
            candidates: list[Any] = [default]
            if type(value) is int and type(default) is int:
                candidates += [(value + default) // 2, value - 1 if value > default else value + 1]
            found += [self._with(field.name, c) for c in dict.fromkeys(candidates) if c != value]
        return found

    def _with(self, name: str, value: Any) -> Operation:
        return type(self)(**{**self.values(), name: value})

    def values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        shown = ", ".join(
            f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default
        )
        return f"{type(self).__name__}({shown})"


@dataclass(frozen=True)
class Records(Operation):
    """Records made from a few numbers: how many, how long their values are, and where their timestamps lie."""

    count: int = 1
    size: int = 0
    times: str = "now"
    key: bool = False
    headers: bool = False
    seed: int = 0
    keys: int = 0  # with `key`: so many keys there are
    tombstones: int = 0  # thousandths of the records that have no value

    @classmethod
    def draw_records(cls, rng: random.Random, most: int) -> dict[str, Any]:
        return {
            "count": rng.choice((1, 1, 2, 3, rng.randint(1, most))),
            "size": rng.choice(SIZES),
            "times": rng.choices(TIMES, (8, 8, 2, 2, 2, 2, 3, 0.4, 0.4))[0],
            "key": rng.random() < 0.3,
            "headers": rng.random() < 0.1,
            "seed": rng.randrange(1000),
        }

    def rows(self, world: World) -> list[Row]:
        rng = random.Random(self.seed)
        late = int(world.config.get("message.timestamp.after.max.ms", 3_600_000))
        early = int(world.config.get("message.timestamp.before.max.ms", 2**63 - 1))
        rows: list[Row] = []
        for i in range(self.count):
            timestamp = {
                "now": world.now,
                "rising": world.now + i,
                "none": -1,
                "same": 1_600_000_000_000,
                "old": world.now - 1000 * rng.randint(1, 20),
                "ahead": world.now + min(late, 1000 * rng.randint(1, 20)),
                "mixed": rng.choice(
                    (-1, 0, world.now, world.now - rng.randint(0, 9999), world.now + rng.randint(0, 999))
                ),
                "too late": world.now + late + 1,
                "too early": world.now - early - 1 if early < world.now else world.now,
            }[self.times]
            key = rng.choice((b"", b"a", b"b", b"key")) if self.key else None
            if self.key and self.keys:
                key = b"key %d" % rng.randrange(self.keys)
            value = None if self.seed % 97 == 1 else rng.randbytes(self.size // 2) + b"v" * (self.size - self.size // 2)
            if self.tombstones and rng.randrange(1000) < self.tombstones:
                value = None
            headers = [("h", b"1"), ("", None)] if self.headers else []
            rows.append((timestamp, key, value, headers))
        world.saw_timestamps(row[0] for row in rows)
        return rows


def _append(row: Row, leader_epoch: int, side: Side) -> int:
    return side.append(row, leader_epoch)


def _append_batch(data: bytes, leader_epoch: int, side: Side) -> Appended:
    return side.append_batch(data, "client", leader_epoch)


@dataclass(frozen=True)
class Append(Records):
    """One record with `append`: kstore's own encoder."""

    weight = 10

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(**{**cls.draw_records(rng, 1), "count": 1})

    def run(self, world: World) -> None:
        for row in self.rows(world):
            if row[0] == -1:
                row = (None, *row[1:])  # no timestamp given: both take the clock's
            world.both(self, partial(_append, row, world.leader_epoch))


@dataclass(frozen=True)
class AppendMany(Records):
    """Many records with `append_many`; Kafka is given the batches that kstore made of them, or would have made."""

    weight = 3
    compression: str = "none"
    atomic: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            **cls.draw_records(rng, 30),
            compression=rng.choices(CODECS, (8, 1, 1, 1, 1))[0],
            atomic=rng.random() < 0.2,
        )

    def run(self, world: World) -> None:
        rows = self.rows(world)
        world.append_rows(
            rows,
            self.compression,
            lambda side: side.append_many(rows, self.compression, world.leader_epoch, atomic=self.atomic),
            atomic=self.atomic,
        )


@dataclass(frozen=True)
class AppendColumns(Records):
    """Many records with `append_columns`; Kafka is given the batches that kstore made of them, or would have made."""

    weight = 3
    compression: str = "none"
    form: str = "lists"

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            **cls.draw_records(rng, 30),
            compression=rng.choices(CODECS, (8, 1, 1, 1, 1))[0],
            form=rng.choices(("lists", "arrow", "threads"), (3, 3, 1))[0],
        )

    def run(self, world: World) -> None:
        rows = self.rows(world)
        world.append_rows(
            rows,
            self.compression,
            lambda side: side.append_columns(rows, self.compression, world.leader_epoch, self.form),
        )


@dataclass(frozen=True)
class AppendBatch(Records):
    """A ready batch as a producer sends it, made by Kafka; `fault` damages it on the way."""

    weight = 8
    compression: str = "none"
    coordinator: bool = False
    fault: str = ""

    FAULTS: ClassVar[tuple[str, ...]] = (
        "crc", "length", "short", "tail", "base offset", "magic", "count", "twice", "append time", "control", "empty",
    )  # fmt: skip

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            **cls.draw_records(rng, 10),
            compression=rng.choices(CODECS, (8, 1, 1, 1, 1))[0],
            coordinator=rng.random() < 0.1,
            fault=rng.choice(cls.FAULTS) if rng.random() < 0.15 else "",
        )

    def run(self, world: World) -> None:
        rows = self.rows(world)
        header: dict[str, Any] = {"compression": self.compression}
        if self.fault == "append time":
            header |= {"timestamp_type": "LogAppendTime", "log_append_time": world.now}
        data = damaged(world.kafka.encode(rows, **header), self.fault)
        origin = "coordinator" if self.coordinator else "client"
        world.append_ready(self, data, lambda side: side.append_batch(data, origin, world.leader_epoch))


def damaged(data: bytes, fault: str) -> bytes:
    """A v2 batch with one fault; CRCs are made right again where the fault is not the CRC."""
    bad = bytearray(data)
    match fault:
        case "crc":
            bad[-1] ^= 1
        case "length":
            bad[8:12] = (13).to_bytes(4)
        case "short":
            return data[:-1]
        case "tail":
            return data + data[:20]
        case "base offset":
            bad[7] = 1
        case "magic":
            bad[16] = 3
        case "count":
            bad[57:61] = (int.from_bytes(data[57:61]) + 1).to_bytes(4)
            seal(bad)
        case "twice":
            return data + data
        case "control":
            bad[22] |= 0x20
            seal(bad)
        case "empty":
            return b""
    return bytes(bad)


def seal(batch: bytearray) -> None:
    """Make the CRC of a v2 batch right."""
    import crc32c

    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4)


@dataclass(frozen=True)
class AppendAsFollower(Records):
    """One fetch's worth of batches with their own offsets and epochs: gaps, falling offsets, later leaders' epochs."""

    weight = 6
    batches: int = 1
    gap: int = 0
    start: int = 0
    epochs: int = 0
    compression: str = "none"
    fault: str = ""
    magic: int = 2

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            **cls.draw_records(rng, 4),
            batches=rng.choice((1, 1, 2, 3, 5)),
            gap=rng.choice((0, 0, 0, 1, 10)),
            start=rng.choices((0, 1, 7, 100_000, 2_200_000_000, -1), (20, 2, 2, 1, 0.3, 1))[0],
            epochs=rng.choices((0, 1, 2, 9), (20, 3, 1, 1))[0],
            compression=rng.choices(CODECS, (8, 1, 1, 1, 1))[0],
            fault=rng.choice(("crc", "order", "tail", "short")) if rng.random() < 0.1 else "",
        )

    def run(self, world: World) -> None:
        rows = self.rows(world)
        offset = world.marks.log_end_offset + self.start
        if offset < 0:
            return
        made = []
        for i in range(self.batches):
            epoch = world.leader_epoch + (i if self.epochs in (1, 2) else self.epochs if i else 0)
            shifted = [(row[0] + i if row[0] >= 0 else row[0], *row[1:], None) for row in rows]
            header = {"base_offset": offset, "leader_epoch": epoch, "compression": self.compression}
            if self.magic < 2:  # without headers, and in format 0 without timestamps
                shifted = [(row[0] if self.magic else -1, *row[1:3], None, None) for row in shifted]
                header |= {"magic": self.magic}
            made.append(world.kafka.encode(shifted, **header))
            offset += len(rows) + self.gap
        if self.fault == "order":
            made.reverse()
        elif self.fault:
            made[-1] = damaged(made[-1], self.fault)
        data, highest = b"".join(made), self.highest_epoch(world)
        world.append_ready(self, data, lambda side: side.append_as_follower(data, highest))
        world.raise_epoch()

    def highest_epoch(self, world: World) -> int:
        """The leader epoch that the follower knows of: batches of later ones are left out."""
        return world.leader_epoch + (self.batches if self.epochs == 1 else 1 if self.epochs == 2 else 0)


@dataclass(frozen=True)
class NewLeader(Operation):
    """The leader epoch rises; it is seen at the next append."""

    weight = 1
    by: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(by=rng.choice((1, 1, 5)))

    def run(self, world: World) -> None:
        world.leader_epoch += self.by


@dataclass(frozen=True)
class Tick(Operation):
    """The clock moves, and what is due by it is done."""

    weight = 6
    ms: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(ms=rng.choice((1, 10, 500, 999, 1000, 1001, 5000, 60_000, 700_000_000, -3)))

    def run(self, world: World) -> None:
        world.tick(self.ms)


@dataclass(frozen=True)
class Roll(Operation):
    weight = 2

    def run(self, world: World) -> None:
        world.roll(self)


@dataclass(frozen=True)
class Retain(Operation):
    """One pass of retention by the clock."""

    weight = 4

    def run(self, world: World) -> None:
        world.both(self, lambda side: side.retain())
        world.check_log_start_is_on_disk()


@dataclass(frozen=True)
class AgeFile(Operation):
    """A segment's file is older than it looks: what has no timestamps expires by that."""

    weight = 1
    which: int = 0
    ms: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(which=rng.choice((0, rng.randint(0, 1000))), ms=rng.choice((0, 1000, 1001, 5000, 70_000)))

    def run(self, world: World) -> None:
        world.age_file(self.which, self.ms)


@dataclass(frozen=True)
class Flush(Operation):
    weight = 2

    def run(self, world: World) -> None:
        world.both(self, lambda side: side.flush())


@dataclass(frozen=True)
class _At(Operation):
    """An offset: `at` thousandths of the way from the log start to the end, and `by` offsets more."""

    at: int = 0
    by: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(**cls.draw_at(rng))

    @classmethod
    def draw_at(cls, rng: random.Random) -> dict[str, Any]:
        return {"at": rng.choice((0, 1000, rng.randint(0, 1000))), "by": rng.choice((0, 0, 0, -1, 1))}

    def offset(self, world: World) -> int:
        start, end = world.marks.log_start_offset, world.marks.log_end_offset
        return start + (end - start) * self.at // 1000 + self.by


@dataclass(frozen=True)
class TruncateTo(_At):
    weight = 2

    def run(self, world: World) -> None:
        world.truncate_to(self, self.offset(world))


@dataclass(frozen=True)
class TruncateFully(_At):
    """All records go; the log begins again at an offset, and perhaps a log start above or below it."""

    weight = 1
    start: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(**{**cls.draw_at(rng), "by": rng.choice((0, 1, 50))}, start=rng.choice((0, 0, 0, -3)))

    def run(self, world: World) -> None:
        offset = max(0, self.offset(world))
        log_start = max(0, offset + self.start) if self.start else None
        world.both(self, lambda side: side.truncate_fully(offset, log_start))


@dataclass(frozen=True)
class DeleteRecords(_At):
    weight = 2
    to_end: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(**cls.draw_at(rng), to_end=rng.random() < 0.1)

    def run(self, world: World) -> None:
        offset = -1 if self.to_end else self.offset(world)
        world.delete_records(self, offset)


@dataclass(frozen=True)
class Fetch(_At):
    weight = 6
    max_bytes: int = 2**31 - 1
    min_one_message: bool = True

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            **cls.draw_at(rng),
            max_bytes=rng.choice((0, 1, 68, 300, 5000, 2**31 - 1)),
            min_one_message=rng.random() < 0.7,
        )

    def run(self, world: World) -> None:
        offset = self.offset(world)
        world.both(self, lambda side: side.fetch(offset, self.max_bytes, self.min_one_message))


@dataclass(frozen=True)
class Read(_At):
    """All records from an offset on."""

    weight = 2

    def run(self, world: World) -> None:
        offset = self.offset(world)
        world.both(self, lambda side: side.records(offset))


@dataclass(frozen=True)
class ReadColumns(_At):
    """All records from an offset on, as columns, in chunks of at most so many records."""

    weight = 2
    most: int = 1000

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(**cls.draw_at(rng), most=rng.choice((1000, 1, 3)))

    def run(self, world: World) -> None:
        offset = self.offset(world)
        world.both(self, lambda side: side.columns(offset, self.most))


@dataclass(frozen=True)
class BatchTable(_At):
    """What the header of each batch says, from the one that holds an offset on."""

    weight = 2

    def run(self, world: World) -> None:
        offset = self.offset(world)
        world.both(self, lambda side: side.batch_table(offset))


@dataclass(frozen=True)
class OffsetForTimestamp(Operation):
    """At, just before or just after a timestamp that was appended some time ago."""

    weight = 5
    at: int = 0
    by: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(at=rng.randint(0, 1000), by=rng.choice((0, -1, 1)))

    def timestamp(self, world: World) -> int:
        seen = world.timestamps
        return max(0, seen[(len(seen) - 1) * self.at // 1000] + self.by) if seen else 0

    def run(self, world: World) -> None:
        timestamp = self.timestamp(world)
        world.both(self, lambda side: side.offset_for_timestamp(timestamp))


@dataclass(frozen=True)
class MaxTimestamp(Operation):
    weight = 2

    def run(self, world: World) -> None:
        world.both(self, lambda side: side.max_timestamp())


@dataclass(frozen=True)
class Reopen(Operation):
    """A clean close and a new opening; perhaps an index file of one segment is lost in between."""

    weight = 3
    lose: str = ""
    which: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(lose=rng.choices(("", "index", "timeindex"), (10, 1, 1))[0], which=rng.randint(0, 1000))

    def run(self, world: World) -> None:
        world.close()
        if self.lose:
            world.lose_file(f".{self.lose}", self.which)
            world.leave_marker()
        world.open(clean=True)


@dataclass(frozen=True)
class Crash(Operation):
    """The process dies; what was not flushed of the last segment may be cut (thousandths kept), spoiled or flipped."""

    weight = 3
    tail: str = ""
    kept: int = 1000
    lose: str = ""
    which: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            tail=rng.choice(("", "", "cut", "zeros", "noise", "flip")),
            kept=rng.choice((0, rng.randint(0, 1000), 999, 1000)),
            lose=rng.choices(("", "index", "timeindex"), (10, 1, 1))[0],
            which=rng.randint(0, 1000),
        )

    def run(self, world: World) -> None:
        world.crash()
        if self.tail:
            world.damage_tail(self.tail, self.kept)
        if self.lose:
            world.lose_file(f".{self.lose}", self.which)
        world.open(clean=False)


@dataclass(frozen=True)
class Configure(Operation):
    """A setting changes while the log is open."""

    weight = 1
    name: str = "internal.segment.bytes"
    value: int = 1000

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        name, values = rng.choice(
            (
                ("internal.segment.bytes", (500, 1000, 5000)),
                ("segment.ms", (1000, 5000, 604_800_000)),
                ("index.interval.bytes", (0, 150, 4096)),
                ("segment.index.bytes", (60, 300, 2000)),
                ("max.message.bytes", (300, 1_048_588)),
                ("retention.ms", (-1, 0, 1000, 60_000)),
                ("retention.bytes", (-1, 0, 500, 2000)),
            )
        )
        return cls(name=name, value=rng.choice(values))

    def run(self, world: World) -> None:
        world.config[self.name] = self.value
        world.both(self, lambda side: side.update_config({self.name: self.value}))


OPERATIONS: dict[str, type[Operation]] = {
    operation.__name__: operation
    for operation in (
        Append,
        AppendMany,
        AppendColumns,
        AppendBatch,
        AppendAsFollower,
        NewLeader,
        Tick,
        Roll,
        Retain,
        AgeFile,
        Flush,
        TruncateTo,
        TruncateFully,
        DeleteRecords,
        Fetch,
        Read,
        ReadColumns,
        BatchTable,
        OffsetForTimestamp,
        MaxTimestamp,
        Reopen,
        Crash,
        Configure,
    )
}


@dataclass(frozen=True)
class Produce(Records):
    """A numbered batch, as a leader or a follower: what `sequence` and `epoch` say is seen from what came before."""

    weight = 20
    producer: int = 0
    sequence: str = "next"
    epoch: int = 0
    transactional: bool = False
    follower: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            **cls.draw_records(rng, 4),
            producer=rng.choice((0, 0, 1, 2)),
            sequence=rng.choices(("next", "again", "zero", "gap", "wrap"), (14, 2, 1, 1, 0.5))[0],
            epoch=rng.choices((0, 1, -1), (14, 1, 0.5))[0],
            transactional=rng.random() < 0.6,
            follower=rng.random() < 0.15,
        )

    def run(self, world: World) -> None:
        epoch, following = world.producers.get(self.producer, (0, 0))
        epoch = max(epoch + self.epoch, 0)
        rows = self.rows(world)
        first = {
            "next": following if self.epoch == 0 else 0,
            "again": (following - len(rows)) % 2**31,
            "zero": 0,
            "gap": (following + 3) % 2**31,
            "wrap": 2**31 - 2,
        }[self.sequence]
        numbers = {
            "producer_id": 1000 + self.producer,
            "producer_epoch": epoch,
            "base_sequence": first,
            "transactional": self.transactional,
        }
        if self.follower:
            offset = world.marks.log_end_offset
            data = world.kafka.encode(rows, base_offset=offset, leader_epoch=world.leader_epoch, **numbers)
            said = world.append_ready(self, data, lambda side: side.append_as_follower(data, world.leader_epoch))
            world.raise_epoch()
        else:
            data = world.kafka.encode(rows, **numbers)
            said = world.append_ready(self, data, partial(_append_batch, data, world.leader_epoch))
        if said is not None and said.first_offset >= 0:
            world.producers[self.producer] = (epoch, (first + len(rows)) % 2**31)


@dataclass(frozen=True)
class EndTransaction(Operation):
    """A marker from a coordinator."""

    weight = 12
    producer: int = 0
    commit: bool = True
    version: int = 0
    epoch: int = 0
    coordinator_epoch: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        version = rng.choice((0, 0, 2))
        return cls(
            producer=rng.choice((0, 0, 1, 2)),
            commit=rng.random() < 0.5,
            version=version,
            epoch=rng.choices((1 if version == 2 else 0, 0, 1, -1), (14, 1, 1, 1))[0],
            coordinator_epoch=rng.choices((0, 1), (20, 1))[0],
        )

    def run(self, world: World) -> None:
        epoch, following = world.producers.get(self.producer, (0, 0))
        ended = max(epoch + self.epoch, 0)
        data = world.kafka.marker(
            world.now,
            commit=self.commit,
            producer_id=1000 + self.producer,
            producer_epoch=ended,
            coordinator_epoch=self.coordinator_epoch,
        )
        said = world.append_ready(
            self, data, lambda side: side.append_batch(data, "coordinator", world.leader_epoch, version=self.version)
        )
        if said is not None:
            world.producers[self.producer] = (ended, following if ended == epoch else 0)


@dataclass(frozen=True)
class FetchCommitted(Fetch):
    """What a fetch gives with `read_committed`, its list of aborted transactions included."""

    weight = 10

    def run(self, world: World) -> None:
        offset = self.offset(world)
        world.both(self, lambda side: side.fetch_committed(offset, self.max_bytes, self.min_one_message))


PRODUCING: dict[str, type[Operation]] = {
    operation.__name__: operation for operation in (Produce, EndTransaction, FetchCommitted)
}


@dataclass(frozen=True)
class Compact(Operation):
    """One round of cleaning whatever ratio and lags say; the map takes so many keys, a chunk so many bytes."""

    weight = 12
    map_keys: int = 1000
    buffer_bytes: int = 65536
    roll: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            map_keys=rng.choice((1000, 1000, 1000, 1, 2, 3, 5, rng.randint(1, 20))),
            buffer_bytes=rng.choice((65536, 65536, 1000, 300, 61)),
            roll=rng.random() < 0.5,
        )

    def run(self, world: World) -> None:
        if self.roll:
            world.roll(self)
            world.check()
        world.compact(self, self.map_keys, self.buffer_bytes, forced=True)


@dataclass(frozen=True)
class Clean(Compact):
    """What a cleaner thread does when it wakes: it selects by ratio and lags, and cleans for one round."""

    weight = 5

    def run(self, world: World) -> None:
        world.both(self, lambda side: side.select())
        world.compact(self, self.map_keys, self.buffer_bytes, forced=False)


@dataclass(frozen=True)
class ConfigureCleaner(Configure):
    """A setting of the cleaner changes while the log is open."""

    weight = 2
    name: str = "delete.retention.ms"
    value: int | float | str = 0  # type: ignore[assignment]

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        name = rng.choice(("cleanup.policy", *LAGS))
        return cls(name=name, value=rng.choice(CLEANER_SETTINGS[name]))


COMPACTING: dict[str, type[Operation]] = {
    operation.__name__: operation for operation in (Compact, Clean, ConfigureCleaner)
}

LAGS = ("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms")
CLEANER_SETTINGS: dict[str, tuple[Any, ...]] = {
    "cleanup.policy": ("compact", "compact", "compact", "compact,delete", "delete"),
    "min.cleanable.dirty.ratio": (0.5, 0.1, 0, 0.9, 1),
    "min.compaction.lag.ms": (0, 0, 1, 1000),
    "max.compaction.lag.ms": (2**63 - 1, 2**63 - 1, 1000, 60_000),
    "delete.retention.ms": (86_400_000, 60_000, 1000, 0),
}
SETTINGS: dict[str, tuple[Any, ...]] = {
    "internal.segment.bytes": (100_000, 5000, 2000, 1000, 500),
    "index.interval.bytes": (4096, 400, 150, 50, 0),
    "segment.index.bytes": (2000, 300, 120, 60, 24, 12),
    "segment.ms": (604_800_000, 5000, 1000),
    "max.message.bytes": (1_048_588, 1_048_588, 1_048_588, 300),
    "message.timestamp.type": ("CreateTime", "CreateTime", "CreateTime", "LogAppendTime"),
    "message.timestamp.after.max.ms": (3_600_000, 3_600_000, 5000),
    "message.timestamp.before.max.ms": (2**63 - 1, 2**63 - 1, 2**63 - 1, 5000),
    "compression.type": ("producer", "producer", "producer", "uncompressed", "lz4", "gzip"),
    "file.delete.delay.ms": (60_000, 1000, 0),
    "preallocate": (False, False, False, True),
    "flush.messages": (2**63 - 1, 2**63 - 1, 5, 1),
    "retention.ms": (-1, 60_000, 5000, 1000, 0),
    "retention.bytes": (-1, -1, 2000, 500, 0),
    "cleanup.policy": ("delete", "delete", "delete", "compact", "compact,delete"),
}
