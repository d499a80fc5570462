"""Odd appends beside Kafka: the same bytes to both logs, as leader and as follower; the same verdict, offsets, bytes.

Batches are drawn from the run's seed, most of them with something wrong. Where a batch is refused the class of the
error is compared, where it is taken what comes back and what is in the file; a payload that was compressed anew is
compared as it was before, since the two sides do not share codec libraries (`compressed-bytes`). Each other difference
is the one that a row of docs/compatibility.md describes, and the case that excuses it names the row.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.codec import compression
from kstore.errors import InvalidRecordError, KStoreError
from tests.conftest import ManualClock
from tests.kafka.kafka_jvm import Kafka, KafkaError, KafkaLog
from tests.support import reference
from tests.support.batches import (
    APPEND_TIME,
    CODECS,
    DELETE_HORIZON,
    HEADER_BYTES,
    NOW,
    TRANSACTIONAL,
    legacy,
    record,
    resealed,
    v2,
    wrapper,
)

pytestmark = pytest.mark.kafka

HOUR = 3_600_000

# To tell where a follower's offsets are wrong Kafka reads the records, and may fail at that (`error-about-offsets`).
UNREADABLE = {"InvalidRecordException", "KafkaException", "IllegalArgumentException"}

# What Kafka raises where kstore raises. Its leader lets some builder and buffer errors of Java through, which a
# producer sees as an unknown server error.
SAME: dict[str, set[str]] = {
    "InvalidRecordError": {
        "InvalidRecordException",
        "IllegalArgumentException",
        "IndexOutOfBoundsException",
        "BufferUnderflowException",
    },
    "InvalidTimestampError": {"InvalidTimestampException", "IllegalArgumentException"},
    "CorruptRecordError": {"CorruptRecordException", "KafkaException", "IndexOutOfBoundsException"},
    "RecordTooLargeError": {"RecordTooLargeException"},
    "UnsupportedCompressionError": {"IllegalArgumentException"},
    "OffsetsOutOfOrderError": {"OffsetsOutOfOrderException", *UNREADABLE},
    "UnexpectedAppendOffsetError": {"UnexpectedAppendOffsetException", *UNREADABLE},
}
# Kafka decompresses while it checks, kstore before: of two faults behind a codec either may be named, and a codec
# library of Java's in whatever way it likes. Of messages of the old formats Kafka reads all fields first.
TWO_FAULTS = {"InvalidRecordError", "InvalidTimestampError", "CorruptRecordError"}

SETTINGS: dict[str, dict[str, Any]] = {
    "as they come": {},
    "compacted": {"cleanup.policy": "compact"},
    "append time": {"message.timestamp.type": "LogAppendTime"},
    "near the clock": {"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 500},
    "small": {"max.message.bytes": 120},
    "uncompressed": {"compression.type": "uncompressed"},
    "lz4, compacted, append time": {
        "compression.type": "lz4",
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
    },
    "zstd": {"compression.type": "zstd"},
}


class Odd:
    """Draws appends of which about half are sound."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.producers = 0

    def sometimes(self, chance: float) -> bool:
        return self.rng.random() < chance

    def record(self, index: int) -> bytes:
        rng = self.rng
        if self.sometimes(0.02):
            return rng.randbytes(rng.randint(0, 9))
        return record(
            index if self.sometimes(0.97) else rng.randint(-1, 5),
            rng.choice([0, 0, 0, 0, rng.randint(-5, 5), rng.randint(-5, 5), 500, 501, -1000, -1001, HOUR, HOUR + 1]),
            rng.choice([b"k", b"k", b"k", b"", None]),
            rng.choice([b"v", None, b"x" * 50]),
            rng.choice([(), (), (), [(b"h", b"1")], [(b"", None), ("ü".encode(), b"")]]),
            tail=b"z" if self.sometimes(0.01) else b"",
        )

    def batch(self, base_offset: int = 0, *, leader_epoch: int = -1, honest_header: bool = False) -> bytes:
        rng = self.rng
        count = rng.choice([1, 1, 2, 3])
        fields: dict[str, Any] = {}
        if not honest_header and self.sometimes(0.1):
            fields[rng.choice(["last_offset_delta", "count"])] = rng.choice([-1, 0, 1, 2, 5])
        if self.sometimes(0.3):
            fields["max_timestamp"] = rng.choice([-1, 0, -5, NOW + 5, NOW + HOUR, NOW + HOUR + 1])
        if self.sometimes(0.2):
            fields["base_timestamp"] = rng.choice([-1, 0, NOW + 5, -5])
        attributes = 0
        for bit in (APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON, 0x80, -0x8000):
            if self.sometimes(0.05):
                attributes |= bit
        if attributes & TRANSACTIONAL or self.sometimes(0.2):
            self.producers += 1  # a producer of its own: its state is another file's matter
            fields.update(producer_id=self.producers, producer_epoch=0)
            fields["base_sequence"] = -1 if self.sometimes(0.1) and not honest_header else 0
        if self.sometimes(0.02):
            attributes |= rng.choice([5, 6, 7])
        codec = rng.choice(CODECS) if self.sometimes(0.6) else "none"
        records = [self.record(i) for i in range(count)]
        return v2(
            records, codec=codec, attributes=attributes, base_offset=base_offset, leader_epoch=leader_epoch, **fields
        )

    def message(self, magic: int, offset: int) -> bytes:
        rng = self.rng
        return legacy(
            magic if self.sometimes(0.97) else 1 - magic,
            rng.choice([b"v", None, b"x" * 18]),
            key=rng.choice([b"k", b"k", None, b""]),
            timestamp=rng.choice([NOW, NOW, NOW + offset, -1, NOW + HOUR + 1, 0, -5]),
            offset=offset if self.sometimes(0.9) else rng.randint(-1, 9),
            attributes=rng.choice([8, 16, 1]) if self.sometimes(0.05) else 0,
            crc=5 if self.sometimes(0.02) else None,
        )

    def messages(self) -> bytes:
        rng = self.rng
        magic = rng.choice([0, 1])
        inner = [self.message(magic, i) for i in range(rng.randint(1, 3))]
        if self.sometimes(0.4):
            return b"".join(inner)
        return wrapper(
            magic,
            inner if self.sometimes(0.95) else b"".join(inner)[:-1],
            codec=rng.choice(CODECS[1:4]),
            offset=len(inner) - 1 if self.sometimes(0.8) else rng.randint(-1, 9),
            timestamp=rng.choice([NOW, NOW, -1, NOW + HOUR + 1]),
            attributes=rng.choice([0, 0, 0, APPEND_TIME]),
        )

    def damaged(self, data: bytes) -> bytes:
        """One or two bytes changed, framing and producer spared; mostly with a CRC that holds again."""
        rng = self.rng
        out = bytearray(data)
        for _ in range(rng.randint(1, 2)):
            out[rng.choice([n for n in range(17, len(out)) if out[16] < 2 or not 43 <= n < 57])] = rng.choice(
                [0, 1, 2, 255, rng.randrange(256)]
            )
        if self.sometimes(0.2):
            return bytes(out)
        if out[16] == 2:
            return resealed(out)
        size = 12 + struct.unpack_from(">i", out, 8)[0]
        struct.pack_into(">I", out, 12, zlib.crc32(bytes(out[16:size])))
        return bytes(out)

    def leader_append(self) -> tuple[bytes, str]:
        if self.sometimes(0.1):
            return self.batch(self.rng.randint(0, 9), honest_header=True), "coordinator"
        data = self.batch(1 if self.sometimes(0.03) else 0) if self.sometimes(0.7) else self.messages()
        if self.sometimes(0.15):
            data = self.damaged(data)
        if self.sometimes(0.05):
            data += self.batch() if data[16] == 2 else self.messages()
        if self.sometimes(0.1):
            data += self.batch()[: self.rng.randint(1, 11)]
        return data, "client"

    def follower_append(self, next_offset: int) -> tuple[bytes, int]:
        """Whole headers that hold together, in an order that may not."""
        rng = self.rng
        offset = max(0, next_offset + rng.choice([0, 0, 0, 1, 5, -1]))
        parts = []
        for _ in range(rng.randint(1, 4)):
            epoch = rng.choice([3, 3, 3, 4, 5])
            if self.sometimes(0.8):
                data = self.batch(offset, leader_epoch=epoch, honest_header=True)
                last = offset + struct.unpack_from(">i", data, 23)[0]
            else:
                data = legacy(rng.choice([0, 1]), offset=offset)
                last = offset
            if self.sometimes(0.05):
                data = data[:-1] + bytes([data[-1] ^ 1])
            parts.append(data)
            offset = last + rng.choice([1, 1, 1, 1, 3])
        if self.sometimes(0.1):
            rng.shuffle(parts)
        return b"".join(parts) + (b"\0" * 11 if self.sometimes(0.1) else b""), rng.choice([2, 4, 5, 5])


class Pair:
    """kstore's log and Kafka's, given the same appends."""

    def __init__(self, ours: kstore.Log, theirs: KafkaLog) -> None:
        self.ours = ours
        self.theirs = theirs
        self.taken = 0
        self.refused: dict[str, int] = {}
        self.given: dict[int, bytes] = {}  # what was taken, by the offset that it has begun at

    def append(
        self,
        data: bytes,
        ours: Callable[[], kstore.AppendInfo],
        theirs: Callable[[], dict[str, Any]],
        *,
        coordinators: bool = False,
    ) -> None:
        end = self.ours.log_end_offset
        info, refusal = _attempt(ours, KStoreError)
        answer, error = _attempt(theirs, KafkaError)
        case = f"{data.hex()} at {end}: {refusal!r}, while Kafka: {error or answer}"
        if error is not None and "PartialDefaultRecord" in str(error.message):
            # `compressed-batch-rebuilt`: Kafka means to put offsets other than 0, 1, 2, … right (SEMANTICS 1.13), and
            # trips.
            self._take_back(end)
        elif error is not None and error.name == "OutOfMemoryError":
            # `memory-for-a-length`: a message in a wrapper, or a record, claims to be larger than Kafka's memory.
            assert refusal is not None or (data[16] < 2 and _is_compressed(data)), case
            self._take_back(end)
        elif error is not None:
            assert refusal is not None, case
            self._compare_refusals(data, refusal, error, case)
        else:
            assert answer is not None
            if answer["valid_bytes"] == 0:  # `empty-append`
                assert refusal is None or "no whole record batch" in str(refusal), case
            elif isinstance(refusal, InvalidRecordError) and "in a batch whose last offset delta is" in str(refusal):
                # `record-outside-its-batch`: Kafka stores what no reader may trust.
                self._take_back(end)
            elif isinstance(refusal, InvalidRecordError) and not refusal.record_errors and _is_compressed(data):
                # `skipped-behind-a-codec`: Kafka stores records that no consumer can read.
                assert _skipped_through(data), case
                self._take_back(end)
            elif coordinators and self._kept_records_outside(data, end):
                # `record-outside-its-batch`, behind a codec: Kafka keeps it, and kstore puts the offsets right.
                self._compare_put_right(data, end, refusal, case)
            else:
                assert refusal is None, case
                self.taken += 1
                self.given[end] = data
                for name in ("first_offset", "last_offset", "max_timestamp", "log_append_time"):
                    assert getattr(info, name) == answer[name], f"{name} of {case}"
        assert self.ours.log_end_offset == self.theirs.marks()["log_end_offset"], case

    def _take_back(self, end: int) -> None:
        """Drop what one side alone has stored from `end` on; where it has begun a segment there, so does the other."""
        if self.ours.log_end_offset > end:
            self.ours.truncate_to(end)
        if self.theirs.marks()["log_end_offset"] > end:
            self.theirs.call("truncate_to", offset=end)
        ours = {segment.base_offset for segment in self.ours.segments}
        theirs = {int(path.stem) for path in self.theirs.directory.glob("*.log")}
        if end in ours - theirs:
            self.theirs.call("roll")
        elif end in theirs - ours:
            self.ours.roll()

    def _kept_records_outside(self, data: bytes, end: int) -> bool:
        """Whether Kafka has kept a compressed batch whose offsets are 0, 1, 2, … although its base offset is not 0."""
        base = int.from_bytes(data[:8])
        return (
            base != 0
            and _is_compressed(data)
            and [base + delta for delta, _ in _records_of(data)] == list(range(int.from_bytes(data[57:61])))
            and bool(self.theirs.read(end)["records"][HEADER_BYTES:] == data[HEADER_BYTES:])
        )

    def _compare_put_right(self, data: bytes, end: int, refusal: KStoreError | None, case: str) -> None:
        """See that kstore has written the records anew; or could not, for a timestamp that it then looks at
        (SEMANTICS 1.20)."""
        if refusal is not None:
            assert "0 or more, or -1 for none" in str(refusal), case
        else:
            found = [(each.offset, each.key, each.value) for each in self.ours.read(end)]
            sent = [(end + i, each.key, each.value) for i, (_, each) in enumerate(_records_of(data))]
            assert found == sent, case
        self._take_back(end)

    def _compare_refusals(self, data: bytes, refusal: KStoreError, error: KafkaError, case: str) -> None:
        name, kafkas = type(refusal).__name__, error.invalid or error.name
        self.refused[name] = self.refused.get(name, 0) + 1
        if name in TWO_FAULTS and (_is_compressed(data) or _has_a_broken_field(data)):
            return
        assert kafkas in SAME[name], case
        if error.records:
            assert isinstance(refusal, InvalidRecordError)
            assert [index for index, _ in refusal.record_errors] == [index for index, _ in error.records], case

    def compare_files(self) -> None:
        names = sorted(Path(segment.path).name for segment in self.ours.segments)
        assert names == sorted(path.name for path in self.theirs.directory.glob("*.log"))
        mine, kafkas = (
            [batch for name in names for batch in kstore.decode_batches((directory / name).read_bytes())]
            for directory in (Path(self.ours.path), self.theirs.directory)
        )
        assert len(mine) == len(kafkas)
        for one, other in zip(mine, kafkas, strict=True):
            if bytes(one) != bytes(other):
                case = f"{self.given[one.base_offset].hex()}: {bytes(one).hex()}, while Kafka: {bytes(other).hex()}"
                assert one.compression != "none", case
                assert [getattr(one, name) for name in HEADER] == [getattr(other, name) for name in HEADER], case
                assert list(one) == list(other), case


HEADER = (
    "magic", "attributes", "base_offset", "last_offset", "base_timestamp", "max_timestamp", "producer_id",
    "producer_epoch", "base_sequence", "count", "partition_leader_epoch",
)  # fmt: skip


def _attempt(call: Callable[[], Any], refusals: type[Exception]) -> tuple[Any, Any]:
    """What the call answered, and how it refused; one of them is None."""
    try:
        return call(), None
    except refusals as error:
        return None, error


def _is_compressed(data: bytes) -> bool:
    return data[22 if data[16] == 2 else 17] & 7 != 0


def _has_a_broken_field(data: bytes) -> bool:
    """Whether a message of the old formats, not compressed, has a field that its bytes do not hold."""
    try:
        return data[16] < 2 and not reference.decode(data, check_crc=False)
    except reference.Torn:
        return True


def _section(data: bytes) -> bytes:
    """The records of the v2 batch that the data begins with, decompressed."""
    end = 12 + int.from_bytes(data[8:12])
    return compression.decompress(data[22] & 7, data[HEADER_BYTES:end])


def _records_of(data: bytes) -> list[tuple[int, reference.Rec]]:
    """Offset delta and record of each in a v2 batch, whatever it is compressed with."""
    section = _section(data)
    return [(delta, found) for _, delta, found in reference.decode_records(section, int.from_bytes(data[57:61]))]


def _skipped_through(data: bytes) -> bool:
    """Whether the fields of a compressed batch's records follow one another, whatever length a record declares.

    That is all that Kafka looks at where it keeps such a batch as it is.
    """
    section = _section(data)

    def skip(at: int) -> int:
        size, at = reference.read_varint(section, at)
        return at + max(size, 0)

    at = 0
    try:
        for _ in range(int.from_bytes(data[57:61])):
            _, at = reference.read_varint(section, at)
            _, at = reference.read_varint(section, at + 1, 64)
            _, at = reference.read_varint(section, at)
            headers, at = reference.read_varint(section, skip(skip(at)))
            if headers < 0:
                return False
            for _ in range(headers):
                if reference.read_varint(section, at)[0] < 0:
                    return False
                at = skip(skip(at))
    except reference.Torn:
        return False
    return at == len(section)


def pair(kafka: Kafka, root: Path, clock: ManualClock, settings: dict[str, Any]) -> Pair:
    ours = kstore.Log.open(root / "ours-0", clock=clock, config=kstore.LogConfig.from_kafka(settings))
    return Pair(ours, kafka.open(root / "theirs-0", now=clock.now, config=settings))


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_leader_decides_as_kafka_does(
    kafka: Kafka,
    root: Path,
    clock: ManualClock,
    rng: random.Random,
    budget: Callable[[float], float],
    settings: str,
) -> None:
    odd = Odd(rng)
    both = pair(kafka, root, clock, SETTINGS[settings])
    for n in range(int(budget(300))):
        data, origin = odd.leader_append()
        epoch = n // 50
        both.append(
            data,
            lambda: both.ours.append_batch(data, origin=origin, leader_epoch=epoch),  # type: ignore[arg-type]  # noqa: B023
            lambda: both.theirs.append_as_leader(data, leader_epoch=epoch, origin=origin),  # noqa: B023
            coordinators=origin == "coordinator",
        )
    both.compare_files()
    assert both.taken > 20
    assert len(both.refused) > 2, both.refused
    both.ours.close()
    both.theirs.crash()


def test_a_follower_decides_as_kafka_does(
    kafka: Kafka, root: Path, clock: ManualClock, rng: random.Random, budget: Callable[[float], float]
) -> None:
    odd = Odd(rng)
    both = pair(kafka, root, clock, {"max.message.bytes": 60})
    for _ in range(int(budget(400))):
        data, epoch = odd.follower_append(both.ours.log_end_offset)
        both.append(
            data,
            lambda: both.ours.append_as_follower(data, leader_epoch=epoch),  # noqa: B023
            lambda: both.theirs.append_as_follower(data, leader_epoch=epoch),  # noqa: B023
        )
    both.compare_files()
    assert both.taken > 60
    assert len(both.refused) > 2, both.refused
    both.ours.close()
    both.theirs.crash()


def test_names_of_headers_are_written_anew_byte_for_byte(
    kafka: Kafka, root: Path, clock: ManualClock, rng: random.Random
) -> None:
    """SEMANTICS 1.20: a name is text to Kafka (FORMAT 3.2); what is no UTF-8 comes out as U+FFFD, as its decoder
    says."""
    both = pair(kafka, root, clock, {"compression.type": "uncompressed"})
    sound = [b"a", *(letter.encode() for letter in "ü€😀")]
    pieces = [*sound, b"\xed\xa0\x80", b"\xc3", b"\xe0\x80", b"\xf4\x90", b"\xff"]
    for _ in range(100):
        names = [b"".join(rng.choices(pieces, k=rng.choice([1, 3, 60]))) for _ in range(3)]
        names.append(rng.randbytes(rng.randint(0, 80)))
        data = v2([record(0, 0, b"\xff", b"\xff", [(name, b"\xff") for name in names])], codec="lz4")
        both.append(data, lambda: both.ours.append_batch(data), lambda: both.theirs.append_as_leader(data))  # noqa: B023
    assert both.taken == 100
    both.compare_files()
    both.ours.close()
    both.theirs.crash()


def test_behind_a_codec_kafka_stores_records_that_no_consumer_can_read(
    kafka: Kafka, root: Path, clock: ManualClock
) -> None:
    """`skipped-behind-a-codec`. SEMANTICS 1.15: what is not compressed is refused by both."""
    both = pair(kafka, root, clock, {})
    for faulty in (record(length=8), record(length=6)):
        for codec in CODECS:
            data = v2([faulty], codec=codec)
            both.append(data, lambda: both.ours.append_batch(data), lambda: both.theirs.append_as_leader(data))  # noqa: B023
            with pytest.raises(InvalidRecordError, match="record 0 of 1"):
                both.ours.append_batch(data)
    assert both.refused == {"InvalidRecordError": 2}
    both.theirs.append_as_leader(v2([record(length=8)], codec="lz4"))
    with pytest.raises(kstore.CorruptRecordError):
        list(next(kstore.decode_batches(both.theirs.read(0)["records"])))
    both.ours.close()
    both.theirs.crash()


def test_a_coordinators_records_outside_of_their_batch_are_put_right(
    kafka: Kafka, root: Path, clock: ManualClock
) -> None:
    """`record-outside-its-batch`. SEMANTICS 1.13: Kafka counts from the base offset that was sent, and then replaces
    it."""
    both = pair(kafka, root, clock, {})
    both.ours.append(b"before")
    both.theirs.append_as_leader(v2([record(value=b"before")]))
    data = v2([record(-1, 0, None, b"a"), record(0, 0, None, b"b")], codec="lz4", base_offset=1)
    both.theirs.append_as_leader(data, origin="coordinator")
    (kept,) = kstore.decode_batches(both.theirs.read(1)["records"])
    assert (kept.base_offset, kept.last_offset) == (1, 2)
    with pytest.raises(kstore.CorruptRecordError, match="offset 0, outside of its batch"):
        list(kept)
    both.ours.append_batch(data, origin="coordinator")
    assert [(each.offset, each.value) for each in both.ours.read(1)] == [(1, b"a"), (2, b"b")]
    both.ours.close()
    both.theirs.crash()


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_that_claims_to_be_large_takes_kafkas_memory(
    kafka: Kafka, root: Path, clock: ManualClock, magic: int
) -> None:
    """`memory-for-a-length`: where there is enough, both leave out what the data ends inside of."""
    both = pair(kafka, root, clock, {})

    def claiming(size: int) -> bytes:
        cut = bytearray(legacy(magic, offset=1))
        struct.pack_into(">i", cut, 8, size)
        return wrapper(magic, legacy(magic, offset=0) + bytes(cut))

    large = claiming(0x7FFFFF00)
    with pytest.raises(KafkaError, match="OutOfMemoryError"):
        both.theirs.append_as_leader(large)
    for data in (claiming(1000), claiming(1_000_000)):
        both.append(data, lambda: both.ours.append_batch(data), lambda: both.theirs.append_as_leader(data))  # noqa: B023
    assert both.taken == 2
    both.compare_files()
    assert both.ours.append_batch(large).last_offset == 2
    both.ours.close()
    both.theirs.crash()


def test_a_segment_that_one_side_begins_for_a_refused_append_is_begun_on_the_other(
    kafka: Kafka, root: Path, clock: ManualClock
) -> None:
    """`compressed-batch-rebuilt`: of such a batch kstore begins a segment where Kafka fails."""
    both = pair(kafka, root, clock, {"segment.ms": 1000})
    first = v2([record()])
    both.append(first, lambda: both.ours.append_batch(first), lambda: both.theirs.append_as_leader(first))
    odd = v2([record(1)], codec="lz4", base_timestamp=NOW + 2000)
    both.append(odd, lambda: both.ours.append_batch(odd), lambda: both.theirs.append_as_leader(odd))
    assert len(both.ours.segments) == 2
    both.compare_files()
    assert both.taken == 1
    both.ours.close()
    both.theirs.crash()
