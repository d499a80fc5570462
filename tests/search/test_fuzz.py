"""Any bytes whatever into every parser: records or an error of ours, in bounded time and memory, and never a crash.

Three sources of bytes: hypothesis, mutations of what Kafka and we write (from the run's seed), and splices of them.
Where the bytes are a plain batch, the slow oracle must agree. The sanitizer build runs the same file; fuzzing.py has
what a fuzzer that sees which code is reached calls.
"""

from __future__ import annotations

import os
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import crc32c as second_opinion
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kstore._core import BatchIterator, RecordIterator, crc32c, decode_batches
from kstore.codec import compression
from kstore.codec._batches import check_batch, whole_batches
from kstore.codec._pack import encode_batch
from kstore.errors import CorruptRecordError, InvalidRecordError
from kstore.files._log_scan import scan
from kstore.files._log_search import find_batch, find_timestamp, last_offset
from tests.support import reference
from tests.support.reference import Rec

LIMIT = 4 << 20  # of what fuzzed payloads may decompress to
STOPS = {"end", "torn", "size", "magic", "crc", "order", "range"}
T = 1_700_000_000_000


def corpus() -> list[bytes]:
    """Small sound inputs of every kind."""
    items = [Rec(i, T + i, b"k%d" % i, b"v" * i, ((b"h", b"x"), (b"", None))) for i in range(5)]
    out = [reference.encode(items, codec=codec, leader_epoch=2) for codec in range(5)]
    out += [reference.encode(items[:1], attributes=bits, producer_id=9) for bits in (0x08, 0x10, 0x30, 0x40)]
    out += [reference.batch(b"", 0, last_offset_delta=9), reference.encode([Rec(1 << 40, -1, None, None)])]
    out += [reference.message(7, b"k", b"v", magic=magic, timestamp=T) for magic in (0, 1)]
    out += [reference.wrapper(items, codec, magic=magic) for codec in (1, 2, 3) for magic in (0, 1)]
    out.append(reference.wrapper(items, 1, append_time=T + 99))
    return out


CORPUS = corpus()


def with_crc(data: bytes) -> bytes:
    """The same bytes with a checksum that holds, so that what lies behind it is reached."""
    out = bytearray(data)
    if len(out) >= 61 and out[16] == 2:
        struct.pack_into(">I", out, 17, second_opinion.crc32c(out[21:]))
    elif len(out) >= 26 and out[16] < 2:
        struct.pack_into(">I", out, 12, zlib.crc32(out[16:]))
    return bytes(out)


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few of: flips, interesting numbers, cuts, repeats, splices; half the time with a checksum that holds."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2 and at + 4 <= len(out):
            number = rng.choice((0, 1, -1, 13, 14, 61, 0x7FFFFFFF, -0x80000000, rng.randrange(-100, 10_000)))
            struct.pack_into(">i", out, at, number)
        elif kind == 3:
            del out[at : at + rng.randrange(1, 20)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif kind == 5:
            out[at:at] = out[at : at + rng.randrange(1, 40)]
        else:
            other = rng.choice(CORPUS)
            out[at:] = other[rng.randrange(len(other)) :]
    if rng.random() < 0.5 and len(out) >= 17:
        if rng.random() < 0.7:
            struct.pack_into(">i", out, 8, len(out) - 12)
        return with_crc(bytes(out))
    return bytes(out)


def decode_everything(data: bytes) -> list[Rec]:
    """Through every entry point of the decoder; whatever is wrong must be a CorruptRecordError."""
    found: list[Rec] = []
    for check_crc in (True, False):
        try:
            for one in decode_batches(data, check_crc, max_decompressed_bytes=LIMIT):
                for name in ("last_offset", "compression", "timestamp_type", "delete_horizon_ms", "crc", "is_valid"):
                    getattr(one, name)
                repr(one)
                records = list(one)
                assert one.magic == 2 or (one.count, one.base_offset) == (len(records), records[0].offset)
                if check_crc:
                    found += [Rec(r.offset, r.timestamp, r.key, r.value) for r in records]
        except CorruptRecordError:
            found = []
    for kind in (RecordIterator, BatchIterator):
        for bounds in ((0, (1 << 63) - 1), (3, 1 << 41)):
            walk = kind([(data, "fuzz.log", 0)], *bounds, check_crc=False, max_decompressed_bytes=LIMIT)
            try:
                for _ in walk:
                    pass
            except CorruptRecordError:
                assert next(walk, None) is None
    return found


def check_everything(data: bytes) -> None:
    for position in (0, 1, len(data) - 61, len(data)):
        with suppress(InvalidRecordError, CorruptRecordError):
            check_batch(data, position=position, max_decompressed_bytes=LIMIT)
    whole, cut = whole_batches(data)
    assert 0 <= whole <= len(data)
    assert cut >= -1


def walk_everything(fd: int, size: int) -> None:
    for base in (0, 1 << 40):
        found = scan(fd, 0, size, base, index_interval_bytes=10)
        assert found.stop in STOPS
        assert 0 <= found.end_position <= size
        assert (found.reason is None) == (found.stop == "end")
        assert len(found.index_entries) % 8 == len(found.time_entries) % 12 == 0
    for act in (
        lambda: find_batch(fd, 0, size, 3),
        lambda: find_batch(fd, 0, size, (1 << 63) - 1),
        lambda: last_offset(fd, 0, size),
        lambda: find_timestamp(fd, 0, size, T, max_decompressed_bytes=LIMIT),
        lambda: find_timestamp(fd, 0, size, -(1 << 63), 1 << 50, check_crc=False, max_decompressed_bytes=LIMIT),
    ):
        with suppress(CorruptRecordError):
            act()


def as_oracle(data: bytes) -> list[Rec] | None:
    """What the slow codec reads, None where it refuses; it does not decompress."""
    try:
        return [r for _, records in reference.decode(data) for r in records]
    except reference.Torn:
        return None


def as_ours(data: bytes) -> list[Rec] | None:
    try:
        return [
            Rec(*tuple(r)[:4], tuple((name.encode(errors="surrogateescape"), value) for name, value in r.headers))
            for one in decode_batches(data, max_decompressed_bytes=LIMIT)
            for r in one
        ]
    except CorruptRecordError:
        return None


def is_plain(data: bytes) -> bool:
    """No batch in the walk is compressed, so that the oracle can judge."""
    at = 0
    while len(data) - at >= 18:
        size = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if data[at + (22 if data[at + 16] == 2 else 17)] & 7 if len(data) - at > 22 else 0:
            return False
        if size < 14:
            break
        at += 12 + size
    return True


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Callable[[bytes], int]]:
    """A file to fill with one input after another."""
    fd = os.open(tmp_path / "fuzz.log", os.O_RDWR | os.O_CREAT)

    def fill(data: bytes) -> int:
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        return fd

    yield fill
    os.close(fd)


def test_every_input_of_the_corpus_is_sound_before_it_is_damaged(scratch: Callable[[bytes], int]) -> None:
    for data in CORPUS:
        assert as_ours(data) is not None
        walk_everything(scratch(data), len(data))
        check_everything(data)


def test_damaged_batches_give_records_or_errors_of_ours(
    rng: random.Random, budget: Callable[[float], float], scratch: Callable[[bytes], int]
) -> None:
    end = time.monotonic() + budget(20)
    rounds = 0
    while time.monotonic() < end or rounds < 100:
        data = mutate(rng, rng.choice(CORPUS))
        if rng.random() < 0.2:
            data = rng.choice(CORPUS) + data
        try:
            decode_everything(data)
            check_everything(data)
            if rng.random() < 0.3:
                walk_everything(scratch(data), len(data))
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error
        rounds += 1


def test_damaged_plain_batches_read_as_the_oracle_reads_them(
    rng: random.Random, budget: Callable[[float], float]
) -> None:
    end = time.monotonic() + budget(10)
    plain = [data for data in CORPUS if is_plain(data)]
    agreed = [0, 0]
    while time.monotonic() < end or min(agreed) < 10:  # both kinds of answer are met
        data = mutate(rng, rng.choice(plain))
        if is_plain(data):
            ours, oracle = as_ours(data), as_oracle(data)
            assert ours == oracle, f"input {data.hex()}"
            agreed[ours is None] += 1


def test_damaged_payloads_decompress_to_something_bounded_or_are_corrupt(
    rng: random.Random, budget: Callable[[float], float]
) -> None:
    end = time.monotonic() + budget(10)
    sources = [
        (codec, compression.compress(codec, data))
        for codec in (1, 2, 3, 4)
        for data in (b"", b"x" * 300, rng.randbytes(500), bytes(200_000), CORPUS[0] * 5)
    ]
    while time.monotonic() < end:
        codec, packed = rng.choice(sources)
        data = mutate(rng, packed)
        try:
            found = compression.decompress(codec, data, limit=LIMIT, magic=rng.randrange(3))
        except CorruptRecordError:
            continue
        except Exception as error:
            raise AssertionError(f"codec {codec}, input {data.hex()}") from error
        assert len(found) <= LIMIT


@given(st.binary(max_size=400))
@example(b"")
@example(bytes(17))
@example(bytes(61))
@example(b"\xff" * 100)
def test_any_bytes_go_through_every_decoder(data: bytes) -> None:
    decode_everything(data)
    check_everything(data)
    assert as_ours(data) == as_oracle(data) or not is_plain(data)
    assert crc32c(data) == second_opinion.crc32c(data)


@given(st.binary(max_size=300), st.integers(-3, 40), st.integers(0, 255))
def test_any_bytes_are_tried_as_a_record_section_with_a_checksum_that_holds(
    section: bytes, count: int, attributes: int
) -> None:
    data = reference.batch(section, count, attributes=attributes)
    decode_everything(data)
    check_everything(data)
    if not attributes & 7:
        assert as_ours(data) == as_oracle(data)


@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 1))
def test_any_bytes_are_tried_inside_an_old_wrapper(inner: bytes, codec: int, magic: int) -> None:
    payload = reference.compress(codec, inner, magic)
    decode_everything(reference.message(5, None, payload, magic=magic, attributes=codec))
    decode_everything(reference.message(5, None, inner, magic=magic, attributes=codec))


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.tuples(inner, inner, inner, inner),
    max_leaves=8,
)


@given(st.lists(junk, max_size=4))
def test_any_objects_are_packed_or_refused_by_name(items: list[object]) -> None:
    try:
        data = encode_batch(items)  # type: ignore[arg-type]
    except (TypeError, InvalidRecordError):
        return
    assert sum(one.count for one in decode_batches(data)) == len(items)
