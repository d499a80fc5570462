"""The first pass of a cleaning: which records a later one of their key supersedes, and the map that knows it.

Faults that were planted by hand, and the tests here that caught them: a hash of 32 bits (a hook for it is left in, see
`test_a_hash_of_32_bits_loses_records`), a record without a key behind the end of a full map counted as superseded, the
check of the capacity after the put, a control batch put by its key, ordinals that leave out aborted batches, an entry
lost when the map grows, one part of the hash not compared, the group behind a full one not looked at, the last bytes of
keys left out where eight are hashed at once, records below the first dirty offset put, the CRC not looked at, an empty
value taken for none, offsets that do not rise.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import CorruptRecordError, StorageError
from kstore.files.txnindex import AbortedTxn
from kstore.log.compaction import _newest_records
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._newest_records import NewestRecords, OffsetMap
from tests.conftest import examples
from tests.support.batches import CODECS, CONTROL, TRANSACTIONAL, legacy, record, resealed, v2, wrapper

Pair = tuple[bytes | None, bytes | None]

ABORTED, CLEAN = 7, 8  # producer ids: all transactions of the first are aborted
COMMIT = (bytes((0, 0, 0, 1)), bytes(6))


class Batch(NamedTuple):
    """A batch, and what the first pass is to know of it: (offset, key, whether the value is null)."""

    data: bytes
    records: tuple[tuple[int, bytes | None, bool], ...]
    is_looked_at: bool
    last_offset: int


def batch(base_offset: int, *pairs: Pair) -> bytes:
    return v2([record(i, 0, key, value) for i, (key, value) in enumerate(pairs)], base_offset=base_offset)


def scanned(*batches: bytes, capacity: int = 1000, first_dirty_offset: int = 0) -> NewestRecords:
    newest = NewestRecords(capacity, first_dirty_offset)
    newest.add(b"".join(batches), CleanedTransactions(), path="a.log", position=0)
    return newest


def scanned_in_a_file(data: bytes, newest: NewestRecords, transactions: CleanedTransactions, rng: random.Random) -> int:
    """Have the batches read from a file that begins with other bytes; how many bytes were taken."""
    begin, batches, records = 7, newest.batches, newest.records
    position, size, end = begin, rng.choice((100, 300, 5000)), begin + len(data)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(begin) + data)
        file.flush()
        while position < end and not newest.is_full:
            first = position
            stop = min(end, position + rng.choice((size, 4 * size, 1 << 20)))
            position, pieces = newest.scan(file.fileno(), position, stop, bytearray(size), transactions, path="a.log")
            numbers = memoryview(pieces).cast("q").tolist()
            assert numbers[0::5] == sorted(set(numbers[0::5]))
            assert (numbers[-5] if pieces else first) == position
            records, batches = records + sum(numbers[1::5]), batches + sum(numbers[2::5])
            assert (records, batches) == (newest.records, newest.batches)
            assert not pieces or numbers[-2] == newest.next_offset - 1
            if not pieces:
                if size >= end - position:
                    break  # what is left is no whole batch
                size *= 2
    return position - begin


def superseded(newest: NewestRecords) -> list[bool]:
    return [newest.is_superseded(i) for i in range(newest.records)]


# ---- The map


def siphash(data: bytes, secret: bytes, rounds: int, last_rounds: int) -> bytes:
    """SipHash of 128 bits from the paper, in numbers without an end."""
    mask = (1 << 64) - 1
    low, high = (int.from_bytes(secret[at : at + 8], "little") for at in (0, 8))
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D ^ 0xEE,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]

    def turned(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & mask

    def work(times: int) -> None:
        for _ in range(times):
            v[0] = (v[0] + v[1]) & mask
            v[2] = (v[2] + v[3]) & mask
            v[1] = turned(v[1], 13) ^ v[0]
            v[3] = turned(v[3], 16) ^ v[2]
            v[0] = turned(v[0], 32)
            v[2] = (v[2] + v[1]) & mask
            v[0] = (v[0] + v[3]) & mask
            v[1] = turned(v[1], 17) ^ v[2]
            v[3] = turned(v[3], 21) ^ v[0]
            v[2] = turned(v[2], 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        work(rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    out = b""
    for change in (0, 0xDD):
        v[1] ^= change
        work(last_rounds)
        out += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return out


def test_siphash_is_that_of_its_authors() -> None:
    secret = bytes(range(16))
    assert _newest_records._siphash(b"", secret, 2, 4).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert _newest_records._siphash(b"\0", secret, 2, 4).hex() == "da87c1d86b99af44347659119b22fc45"
    for size in range(70):
        data, secret = os.urandom(size), os.urandom(16)
        for rounds, last_rounds in ((2, 4), (1, 3)):
            assert _newest_records._siphash(data, secret, rounds, last_rounds) == siphash(
                data, secret, rounds, last_rounds
            )


# RFC 3566, 4: the key is 000102...0f; of each message the MAC, of which the hash is the first 96 bits.
XCBC_SECRET = bytes(range(16))
XCBC_VECTORS = [
    (b"", "75f0251d528ac01c4573dfd5"),
    (bytes(range(3)), "5b376580ae2f19afe7219cee"),
    (bytes(range(16)), "d2a246fa349b68a79998a439"),
    (bytes(range(20)), "47f51b4564966215b8985c63"),
    (bytes(range(32)), "f54f0ec8d2b9f3d36807734b"),
    (bytes(range(34)), "becbb3bccdb518a30677d548"),
    (bytes(1000), "f0dafee895db30253761103b"),
]


def hashes(keys: list[bytes], secret: bytes, *, by_aes: bool = True) -> list[bytes]:
    found = _newest_records._hash_keys(keys, secret, by_aes=by_aes)
    if found is None:
        pytest.skip("this processor has no AES")
    return found


def xcbc_by_aes(key: bytes, secret: bytes) -> bytes:
    """AES-XCBC-MAC-96, block by block, by the AES of another library."""
    algorithms = pytest.importorskip("cryptography.hazmat.primitives.ciphers")

    def encrypt(by: bytes, block: bytes) -> bytes:
        cipher = algorithms.Cipher(algorithms.algorithms.AES(by), algorithms.modes.ECB())
        return bytes(cipher.encryptor().update(block))

    def joined(a: bytes, b: bytes) -> bytes:
        return bytes(x ^ y for x, y in zip(a, b, strict=True))

    first, whole, padded = (encrypt(secret, bytes([n]) * 16) for n in (1, 2, 3))
    blocks = [key[at : at + 16] for at in range(0, len(key), 16)] or [b""]
    state = bytes(16)
    for block in blocks[:-1]:
        state = encrypt(first, joined(state, block))
    last = blocks[-1]
    mask = whole if len(last) == 16 else padded
    if len(last) < 16:
        last = (last + b"\x80").ljust(16, b"\0")
    return encrypt(first, joined(joined(state, last), mask))[:12]


def test_the_hash_by_aes_is_xcbc_mac_96() -> None:
    for key, mac in XCBC_VECTORS:
        assert hashes([key], XCBC_SECRET)[0].hex() == mac
    secret = os.urandom(16)
    for size in [*range(70), 255, 256, 257]:
        key = os.urandom(size)
        assert hashes([key], secret) == [xcbc_by_aes(key, secret)]


@pytest.mark.parametrize("by_aes", [True, False])
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 5).map(lambda n: bytes(16 * n))), max_size=128),
    st.binary(min_size=16, max_size=16),
)
def test_keys_that_are_hashed_at_once_have_the_hashes_of_one_by_one(
    by_aes: bool, keys: list[bytes], secret: bytes
) -> None:
    assert hashes(keys, secret, by_aes=by_aes) == [hashes([key], secret, by_aes=by_aes)[0] for key in keys]


def test_without_aes_the_hash_is_of_siphash() -> None:
    secret = os.urandom(16)
    keys = [os.urandom(size) for size in range(70)]
    assert hashes(keys, secret, by_aes=False) == [siphash(key, secret, 1, 3)[:12] for key in keys]


KEYS = st.one_of(
    st.binary(max_size=3),
    st.binary(min_size=300, max_size=400),
    st.binary(max_size=9).map(lambda k: b"prefix" * 20 + k),
)


@given(st.lists(KEYS, max_size=400))
def test_the_map_gives_what_a_dictionary_gives(keys: list[bytes]) -> None:
    offsets, model = OffsetMap(1 << 20), dict[bytes, int]()
    for ordinal, key in enumerate(keys):
        assert offsets.put(key, ordinal) == model.get(key)
        model[key] = ordinal
    assert len(offsets) == len(model)
    assert {key: offsets.get(key) for key in keys} == model
    assert offsets.get(b"a key that was not put") is None


def test_nothing_is_lost_when_the_map_grows() -> None:
    keys = [i.to_bytes(8, "big") for i in range(40_000)]
    offsets, sizes = OffsetMap(1 << 20), set[int]()
    for i, key in enumerate(keys):
        before = offsets.memory_bytes
        assert offsets.put(key, i) is None
        if offsets.memory_bytes != before:
            sizes.add(offsets.memory_bytes)
            assert [offsets.get(known) for known in keys[: i + 1]] == list(range(i + 1))
            assert offsets.get(keys[i + 1] if i + 1 < len(keys) else b"none") is None
    assert len(sizes) > 10


def test_entries_of_8_mib_and_more_end_with_a_large_page_and_all_are_found() -> None:
    keys, offsets, sizes = os.urandom(16 * 1_000_000), OffsetMap(1 << 20), set[int]()
    for turn in range(2):
        for first in range(0, len(keys) // 16, 10_000):
            part = keys[16 * first : 16 * (first + 10_000)]
            assert offsets.put_many(part, 16, turn * 1_000_000 + first) == 10_000
            sizes.add(offsets.memory_bytes * 16 // 17)  # of 17 bytes a slot 16 are the entry
        assert len(offsets) == 1_000_000
    found = [offsets.get(keys[16 * i : 16 * i + 16]) for i in range(0, 1_000_000, 1000)]
    assert found == list(range(1_000_000, 2_000_000, 1000))
    large = [size for size in sizes if size >= 8 << 20]
    assert len(large) >= 5
    assert all(size % (2 << 20) == 0 for size in large)


def test_a_key_takes_at_most_24_bytes_at_any_number_of_keys() -> None:
    offsets = OffsetMap(1 << 30)
    for first in range(0, 1_000_000, 500):
        assert offsets.put_many(os.urandom(16 * 500), 16, first) == 500
        if len(offsets) >= 10_000:
            assert 17 <= offsets.memory_bytes / len(offsets) <= 24
    offsets.clear()
    assert (len(offsets), offsets.memory_bytes) == (0, 0)


@pytest.mark.parametrize("size", [1, 5, 8, 16, 31])
def test_many_keys_are_put_as_one_by_one(size: int) -> None:
    rng = random.Random(3)
    keys = [rng.randrange(3000).to_bytes(size + 1, "big")[-size:] for _ in range(10_000)]
    together, each = OffsetMap(2000), OffsetMap(2000)
    count = together.put_many(b"".join(keys), size, 0)
    for ordinal, key in enumerate(keys[:count]):
        each.put(key, ordinal)
    assert len(together) == len(each) == min(2000, 256**size)
    assert [together.get(key) for key in keys] == [each.get(key) for key in keys]
    if len(together) == 2000:
        assert together.put_many(b"".join(keys), size, count) == 0


def test_a_hash_of_32_bits_loses_records() -> None:
    """What a map of weaker hashes would do, so that it is known that the tests here see it."""
    keys = b"".join(i.to_bytes(8, "big") for i in range(400_000))
    weak, ours = OffsetMap(1 << 20, _hash_bits=32), OffsetMap(1 << 20)
    weak.put_many(keys, 8, 0)
    ours.put_many(keys, 8, 0)
    assert len(weak) < len(ours) == 400_000
    with pytest.raises(AssertionError):
        check_history(Kinds(random.Random(1), keys=2000, plain=True).batches(400), hash_bits=12)


@pytest.mark.parametrize("bits", [64, -20])
def test_both_parts_of_a_hash_tell_keys_apart(bits: int) -> None:
    """Without the other part: the first 64 bits alone, and few of the first with the last 32."""
    offsets = OffsetMap(1 << 20, _hash_bits=bits)
    offsets.put_many(b"".join(i.to_bytes(8, "big") for i in range(20_000)), 8, 0)
    assert len(offsets) == 20_000


def test_the_hash_has_a_secret_of_its_own() -> None:
    maps = [OffsetMap(1000, _hash_bits=8) for _ in range(8)]
    for offsets in maps:
        offsets.put_many(bytes(range(40)), 1, 0)
    assert len({tuple(offsets.get(bytes([key])) for key in range(40)) for offsets in maps}) > 1


@pytest.mark.parametrize("count", [10, 100, 1000, 5000])
def test_a_map_of_48_bytes_a_key_gives_back_what_was_put(count: int) -> None:
    """OffsetMapTest.testBasicValidation: a map of 48 bytes a key has twice as many slots as keys."""
    offsets = OffsetMap(48 * count // 24)
    for i in range(count):
        assert offsets.put(str(i).encode(), i) is None
    assert [offsets.get(str(i).encode()) for i in range(count)] == list(range(count))


def test_a_map_is_empty_after_it_was_cleared() -> None:
    """OffsetMapTest.testClear."""
    offsets = OffsetMap(4096 // 24)
    for _ in range(2):
        for i in range(10):
            assert offsets.put(str(i).encode(), i) is None
        assert [offsets.get(str(i).encode()) for i in range(10)] == list(range(10))
        offsets.clear()
        assert [offsets.get(str(i).encode()) for i in range(10)] == [None] * 10


def test_a_full_map_still_answers_and_takes_no_known_key_either() -> None:
    """OffsetMapTest.testGetWhenFull."""
    offsets = OffsetMap(4096 // 24)
    i = 37
    while len(offsets) < offsets.capacity:
        offsets.put(str(i).encode(), i)
        i += 1
    assert offsets.get(str(i).encode()) is None
    assert offsets.get(str(i - 1).encode()) == i - 1
    for key in (str(i).encode(), str(i - 1).encode()):
        with pytest.raises(ValueError, match="full"):
            offsets.put(key, i)


def test_a_map_says_how_full_it_is_after_each_put() -> None:
    """OffsetMapTest.testUtilization."""
    offsets = OffsetMap(4096 // 24)
    assert len(offsets) / offsets.capacity == 0.0
    for i in range(offsets.capacity):
        offsets.put(str(i).encode(), i)
        assert len(offsets) / offsets.capacity == (i + 1) / (4096 // 24)


# ---- The pass, case by case


def test_a_record_is_superseded_by_a_later_one_of_its_key() -> None:
    newest = scanned(
        batch(0, (b"a", b"1"), (b"b", None), (b"a", b"2")), batch(3, (b"b", b"3"), (b"", b"4"), (None, b"5"))
    )
    assert superseded(newest) == [True, True, False, False, False, True]
    assert [newest.is_tombstone(i) for i in range(6)] == [False, True, False, False, False, False]
    assert (newest.keys, newest.records, newest.latest_offset, newest.is_full) == (3, 6, 5, False)
    assert newest.count_superseded(0, 6) == 3
    assert newest.count_tombstones(0, 6) == 0
    assert [newest.has(key) for key in (b"a", b"", b"c")] == [True, True, False]


def test_a_batch_that_is_cut_off_is_left() -> None:
    first, second = batch(0, (b"a", b"1")), batch(1, (b"a", b"2"))
    for end in range(len(first), len(first + second)):
        newest = NewestRecords(10, 0)
        assert newest.add((first + second)[:end], CleanedTransactions(), path="a.log", position=0) == len(first)
        assert newest.latest_offset == 0


def test_a_full_map_ends_the_pass_behind_the_last_record_that_was_put() -> None:
    newest = scanned(
        batch(0, (b"a", b"1"), (b"b", b"2"), (None, b"3"), (b"a", None)), batch(4, (b"a", b"4")), capacity=2
    )
    assert newest.is_full
    assert (newest.latest_offset, newest.records) == (1, 4)
    assert newest.count_superseded(0, 4) == 0
    assert newest.is_tombstone(3)
    newest.end_segment(17)
    assert newest.latest_offset == 1


def test_a_map_that_is_exactly_full_at_the_end_of_the_data_is_not_full_yet() -> None:
    newest = scanned(batch(0, (b"a", b"1"), (b"b", b"2"), (None, b"3")), capacity=2)
    assert (newest.is_full, newest.latest_offset) == (False, 2)
    newest.add(batch(3, (None, b"4"), (b"b", b"5")), CleanedTransactions(), path="a.log", position=0)
    assert (newest.is_full, newest.latest_offset, newest.records) == (True, 2, 5)
    assert superseded(newest) == [False, False, True, False, False]


def test_records_below_the_first_dirty_offset_are_not_put() -> None:
    newest = scanned(
        batch(0, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5")), first_dirty_offset=2
    )
    assert superseded(newest) == [False] * 5
    assert (newest.keys, newest.has(b"a"), newest.has(b"b")) == (3, True, True)
    assert scanned(batch(0, (b"a", b"1")), first_dirty_offset=1).latest_offset == -1


def test_a_scanned_segment_ends_where_the_next_one_begins() -> None:
    newest = scanned(batch(0, (b"a", b"1")))
    newest.end_segment(17)
    assert newest.latest_offset == 16
    with pytest.raises(CorruptRecordError, match="below 17"):
        newest.add(batch(16, (b"a", b"1")), CleanedTransactions(), path="b.log", position=0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_is_read_like_any_other(codec: str) -> None:
    pairs: list[Pair] = [(str(i % 5).encode(), b"value" * 30) for i in range(50)]
    data = v2([record(i, 0, key, value) for i, (key, value) in enumerate(pairs)], codec=codec)
    assert superseded(scanned(data)) == [True] * 45 + [False] * 5
    with pytest.raises(CorruptRecordError):
        NewestRecords(9, 0).add(data, CleanedTransactions(), path="a.log", position=0, max_decompressed_bytes=9) if (
            codec != "none"
        ) else scanned(data[:-1] + b"?")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_read_like_any_other(magic: int, codec: str) -> None:
    keys = [b"a", b"b", None, b"a", b"c"]
    inner = [legacy(magic, None if i == 3 else b"v", key=key, offset=i) for i, key in enumerate(keys)]
    data = b"".join(inner) if codec == "none" else wrapper(magic, inner, codec=codec)
    newest = scanned(data)
    assert superseded(newest) == [True, False, True, False, False]
    assert [newest.is_tombstone(i) for i in range(5)] == [False, False, False, True, False]
    assert (newest.latest_offset, newest.keys) == (4, 3)
    full = scanned(data, capacity=2)
    # Each message is a batch of its own where there is no wrapper.
    assert (full.is_full, full.latest_offset) == (True, 2 if codec == "none" else 1)
    assert superseded(full)[:4] == [False, False, codec == "none", False]


def test_more_records_than_ordinals_end_the_pass_as_a_full_map_does() -> None:
    """`records-of-a-pass`: ordinals have 32 bits; the limit is low here by a hook."""
    first, second = batch(0, (b"a", b"1"), (b"b", b"2")), batch(2, (b"a", b"3"), (b"c", b"4"))
    for most, taken in ((3, first), (4, first + second)):
        newest = NewestRecords(100, 0, _most_records=most)
        assert newest.add(first + second, CleanedTransactions(), path="a.log", position=0) == len(taken)
        assert newest.is_full == (most == 3)
        assert newest.latest_offset == most // 2 * 2 - 1
        assert newest.records == most // 2 * 2
    old = NewestRecords(100, 0, _most_records=1)
    assert old.add(legacy(1, key=b"a") + legacy(1, key=b"b", offset=1), CleanedTransactions(), path="a", position=0) > 0
    assert (old.is_full, old.latest_offset, old.records) == (True, 0, 1)


def test_a_header_that_declares_many_records_takes_no_memory_for_them() -> None:
    most = (1 << 31) - 1
    marker = v2(
        [record(0, 0, *COMMIT)],
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=1,
        count=most,
        last_offset_delta=most - 1,
    )
    newest = scanned(marker, batch(most, (b"a", b"1"), (b"a", b"2")))
    assert (newest.records, newest.latest_offset) == (most + 2, most + 1)
    assert newest.count_superseded(0, newest.records) == 1
    assert newest.memory_bytes < 1 << 20


# ---- The pass beside a model


class Kinds:
    """Random batches of every kind, one after the other."""

    def __init__(self, rng: random.Random, *, keys: int = 12, plain: bool = False) -> None:
        self.rng = rng
        self.next_offset = rng.choice((0, 5, 1 << 33))
        self._keys = keys
        self._plain = plain
        self.aborted: list[AbortedTxn] = []

    def batches(self, count: int) -> list[Batch]:
        return [self._batch() for _ in range(count)]

    def _batch(self) -> Batch:
        rng, base = self.rng, self.next_offset
        kind = "data" if self._plain else rng.choice(("data", "data", "data", "old", "aborted", "marker", "empty"))
        deltas = sorted(rng.sample(range(12), rng.randrange(1, 9))) if kind != "marker" else [0]
        last_delta = deltas[-1] + rng.randrange(3) * (rng.random() < 0.3)
        pairs: list[Pair] = [self._pair() for _ in deltas]
        if kind == "marker":
            pairs, last_delta = [COMMIT], 0
        elif kind == "empty":
            deltas, pairs = [], []
        self.next_offset = base + last_delta + 1 + rng.randrange(4) * (rng.random() < 0.2)
        if kind == "old":
            return self._old(base, pairs)
        fields: dict[str, int] = {"base_offset": base, "last_offset_delta": last_delta}
        if kind in ("aborted", "marker"):
            fields |= {"producer_id": ABORTED if kind == "aborted" else CLEAN, "producer_epoch": 0, "base_sequence": 0}
            fields["attributes"] = TRANSACTIONAL | (CONTROL if kind == "marker" else 0)
        codec = rng.choice(CODECS) if kind == "data" else "none"
        data = v2([record(d, 0, *pair) for d, pair in zip(deltas, pairs, strict=True)], codec=codec, **fields)  # type: ignore[arg-type]
        records = tuple((base + d, key, value is None) for d, (key, value) in zip(deltas, pairs, strict=True))
        return Batch(data, records, kind in ("data", "empty"), base + last_delta)

    def _old(self, base: int, pairs: Sequence[Pair]) -> Batch:
        magic = self.rng.randrange(2)
        inner = [legacy(magic, value, key=key, offset=i if magic else base + i) for i, (key, value) in enumerate(pairs)]
        last = base + len(pairs) - 1
        self.next_offset = last + 1
        records = tuple((base + i, key, value is None) for i, (key, value) in enumerate(pairs))
        if base and self.rng.random() < 0.5:
            return Batch(wrapper(magic, inner, codec=self.rng.choice(CODECS[1:4]), offset=last), records, True, last)
        key, value = pairs[0]
        self.next_offset = base + 1
        return Batch(legacy(magic, value, key=key, offset=base), records[:1], True, base)

    def _pair(self) -> Pair:
        key = None if self.rng.random() < 0.1 else str(self.rng.randrange(self._keys)).encode()
        return key, None if self.rng.random() < 0.2 else os.urandom(self.rng.randrange(9))


class Model:
    """SEMANTICS 7.11 and 7.12 with a dictionary; superseded ones worked out at the end, record by record."""

    def __init__(self, batches: Iterable[Batch], first_dirty: int, capacity: int) -> None:
        self.newest: dict[bytes, int] = {}
        self.latest, self.full, self.taken = -1, False, 0
        self.seen: list[tuple[int, bytes | None, bool, bool]] = []
        for each in batches:
            self.taken += len(each.data)
            self.seen += [(*one, each.is_looked_at) for one in each.records]
            if each.is_looked_at and self._is_full_after(each, first_dirty, capacity):
                self.full = True
                break
            if each.last_offset >= first_dirty:
                self.latest = each.last_offset
        self.superseded = [
            is_looked_at and first_dirty <= offset <= self.latest and (key is None or offset < self.newest[key])
            for offset, key, _, is_looked_at in self.seen
        ]
        self.tombstones = [is_null and is_looked_at for _, _, is_null, is_looked_at in self.seen]

    def _is_full_after(self, each: Batch, first_dirty: int, capacity: int) -> bool:
        for offset, key, _ in each.records:
            if key is not None and offset >= first_dirty:
                if len(self.newest) >= capacity:
                    return True
                self.newest[key] = self.latest = offset
        return False


def check_history(
    batches: Sequence[Batch], first_dirty: int = 0, capacity: int = 1 << 20, rng: random.Random | None = None,
    hash_bits: int = 96,
) -> None:  # fmt: skip
    """The pass over these batches, in pieces of any size, knows what the model knows."""
    model = Model(batches, first_dirty, capacity)
    newest = NewestRecords(capacity, first_dirty, _hash_bits=hash_bits)
    transactions = CleanedTransactions()
    transactions.add_aborted([AbortedTxn(0, ABORTED, 0, 1 << 62, 1 << 62)])
    data, at, size = b"".join(each.data for each in batches), 0, 0
    while at < len(data):
        size = size + 500 if rng is None else rng.choice((size + 50, 200, 3000))
        taken = newest.add(data[at : at + size], transactions, path="a.log", position=at)
        at += taken
        if newest.is_full:
            break
        size = 0 if taken else size
    assert at == model.taken
    assert (newest.is_full, newest.latest_offset, newest.keys) == (model.full, model.latest, len(model.newest))
    assert superseded(newest) == model.superseded
    assert [newest.is_tombstone(i) for i in range(newest.records)] == model.tombstones
    for key in model.newest:
        assert newest.has(key)
    assert not newest.has(b"absent")
    if rng is not None:
        again, transactions = NewestRecords(capacity, first_dirty, _hash_bits=hash_bits), CleanedTransactions()
        transactions.add_aborted([AbortedTxn(0, ABORTED, 0, 1 << 62, 1 << 62)])
        assert scanned_in_a_file(data, again, transactions, rng) == model.taken
        for name in ("is_full", "latest_offset", "keys", "records", "batches", "special_batches", "next_offset"):
            assert getattr(again, name) == getattr(newest, name)
        assert superseded(again) == model.superseded
    first = newest.records // 3
    both = [tombstone and not gone for tombstone, gone in zip(model.tombstones, model.superseded, strict=True)]
    assert newest.count_superseded(first, newest.records - first) == sum(model.superseded[first:])
    assert newest.count_tombstones(first, newest.records - first) == sum(both[first:])


@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_the_pass_knows_what_the_rules_say(seed: int, count: int) -> None:
    rng = random.Random(seed)
    history = Kinds(rng)
    first = history.next_offset
    batches = history.batches(count)
    first_dirty = rng.choice((0, rng.randrange(first, history.next_offset + 1)))
    check_history(batches, first_dirty, rng.choice((1 << 20, rng.randrange(1, 13))), rng)


def test_the_pass_knows_it_of_many_keys_and_batches_of_many_records() -> None:
    rng = random.Random(5)
    keys = [rng.randrange(30_000).to_bytes(4, "big") * 4 for _ in range(60_000)]
    batches = [batch(i, *((key, b"v") for key in keys[i : i + 700])) for i in range(0, len(keys), 700)]
    newest = scanned(*batches, capacity=1 << 20)
    last = {key: i for i, key in enumerate(keys)}
    assert superseded(newest) == [last[key] != i for i, key in enumerate(keys)]


# Batches around the number of keys that are put at once: 128 (KS_AT_ONCE in keymap.h).
SIZES = [
    pytest.param([128], id="a group"),
    pytest.param([127, 1, 3], id="one record less than a group"),
    pytest.param([126, 1, 1, 1], id="two records less than a group"),
    pytest.param([129, 126, 1], id="one record more than a group"),
    pytest.param([255, 256, 257], id="two groups, and one record less and more"),
    pytest.param([140] * 9, id="batches of 16 KiB"),
    pytest.param([1] * 300, id="batches of one record"),
    pytest.param([5, 700, 5], id="a large batch between small ones"),
]


def batches_of(keys: Sequence[bytes | None], sizes: Iterable[int]) -> list[bytes]:
    made, first = [], 0
    for size in sizes:
        made.append(batch(first, *((key, b"v") for key in keys[first : first + size])))
        first += size
    return made


def expected_of(keys: Sequence[bytes | None], sizes: Iterable[int], capacity: int) -> tuple[list[bool], int, int, bool]:
    """What a pass over these keys finds: the superseded, the number of keys, the latest offset, whether it is full."""
    newest: dict[bytes, int] = {}
    latest, end, gone = -1, 0, set()
    for size in sizes:
        first, end = end, end + size
        for offset in range(first, end):
            key = keys[offset]
            if key is None:
                continue
            if len(newest) >= capacity:
                gone |= {i for i in range(latest + 1) if keys[i] is None}
                return [i in gone for i in range(end)], len(newest), latest, True
            if key in newest:
                gone.add(newest[key])
            newest[key] = latest = offset
        latest = end - 1
    gone |= {i for i in range(end) if keys[i] is None}
    return [i in gone for i in range(end)], len(newest), latest, False


def found_of(newest: NewestRecords) -> tuple[list[bool], int, int, bool]:
    return superseded(newest), newest.keys, newest.latest_offset, newest.is_full


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("different", [1 << 30, 150, 3])
def test_groups_of_keys_find_what_one_key_after_the_other_does(sizes: list[int], different: int) -> None:
    rng = random.Random(sum(sizes))
    keys = [None if rng.random() < 0.05 else rng.randrange(different).to_bytes(4, "big") for _ in range(sum(sizes))]
    expected = expected_of(keys, sizes, 1 << 20)
    assert found_of(scanned(*batches_of(keys, sizes), capacity=1 << 20)) == expected
    newest, transactions = NewestRecords(1 << 20, 0), CleanedTransactions()
    for number, each in enumerate(batches_of(keys, sizes)):
        newest.add(each, transactions, path="a.log", position=0)
        assert found_of(newest) == expected_of(keys, sizes[: number + 1], 1 << 20)
    assert found_of(newest) == expected


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("different", [1 << 30, 150])
def test_a_map_that_becomes_full_within_a_group_of_keys_ends_the_pass_at_that_key(
    sizes: list[int], different: int
) -> None:
    rng = random.Random(len(sizes))
    keys = [None if rng.random() < 0.1 else rng.randrange(different).to_bytes(4, "big") for _ in range(sum(sizes))]
    distinct = len(set(keys) - {None})
    borders = {border + near for border in (127, 128, 140, 255, 256, distinct) for near in (-2, -1, 0, 1, 2)}
    for capacity in sorted({1, 2, *borders}):
        expected = expected_of(keys, sizes, capacity)
        assert found_of(scanned(*batches_of(keys, sizes), capacity=capacity)) == expected, capacity


@pytest.mark.parametrize("before", [1, 126, 127, 128, 129])
def test_a_message_of_an_old_format_supersedes_the_keys_of_the_batches_before_it(before: int) -> None:
    keys = [str(i).encode() for i in range(before)]
    messages = [legacy(1, b"later", key=b"0", offset=before), batch(before + 1, (b"0", b"last"))]
    newest = scanned(*batches_of(keys, [before]), *messages)
    assert superseded(newest) == [True, *[False] * (before - 1), True, False]


@pytest.mark.parametrize("before", [1, 127, 128, 129])
def test_damage_behind_groups_of_keys_is_an_error_with_its_place(before: int) -> None:
    keys = [str(i).encode() for i in range(before)]
    sound = b"".join(batches_of(keys, [before]))
    damaged = bytearray(batch(before, (b"a", b"1")))
    damaged[-1] ^= 1
    newest = NewestRecords(1000, 0)
    with pytest.raises(CorruptRecordError) as caught:
        newest.add(sound + damaged, CleanedTransactions(), path="a.log", position=100)
    assert (caught.value.path, caught.value.position) == ("a.log", 100 + len(sound))
    with pytest.raises(ValueError, match="begin another"):
        newest.add(sound, CleanedTransactions(), path="a.log", position=0)


# ---- What is not sound


def test_a_flipped_byte_is_an_error_with_its_place() -> None:
    batches = [batch(10, (b"a", b"1"), (b"b", b"2")), batch(12, (b"a", b"3"))]
    data = b"".join(batches)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x80
        in_second = at >= len(batches[0])
        place = at - len(batches[0]) if in_second else at
        newest = NewestRecords(10, 0)
        if 8 <= place < 16 or (in_second and 1 <= place < 8):
            continue  # cut off by its length; without a checksum: a leader epoch, an offset that still rises
        with pytest.raises(CorruptRecordError) as caught:
            newest.add(damaged, CleanedTransactions(), path="a.log", position=1000)
        assert caught.value.path == "a.log"
        if place >= 21:
            assert caught.value.position == 1000 + in_second * len(batches[0])


def test_a_wrong_checksum_names_the_tool_that_repairs() -> None:
    damaged = bytearray(batch(0, (b"a", b"1")))
    damaged[-1] ^= 1
    newest = NewestRecords(10, 0)
    with pytest.raises(CorruptRecordError, match="kstore repair"):
        newest.add(damaged, CleanedTransactions(), path="a.log", position=0)
    with pytest.raises(ValueError, match="begin another"):
        newest.add(batch(0, (b"a", b"1")), CleanedTransactions(), path="a.log", position=0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (v2([record(0, 0, b"a"), record(0, 0, b"b")]), "not above"),
        (v2([record(1, 0, b"a"), record(0, 0, b"b")]), "not above"),
        (v2([record(2, 0, b"a")]), "outside of its batch"),
        (v2([record(-1, 0, b"a")]), "outside of its batch"),
        (v2([record(0, 0, b"a")], count=2), "declared number"),
        (v2([record(0, 0, b"a"), record(1, 0, b"b")], count=1), "left after"),
        (v2([record(0, 0, b"a")], count=-1, last_offset_delta=0), "-1 records"),
        (v2([record(0, 0, b"a")], count=3, last_offset_delta=1), "3 records"),
        (v2([record(0, 0, b"a")], last_offset_delta=-1), "delta of -1"),
        (v2([record(0, 0, b"a")], base_offset=-1), "from offset -1"),
        (v2([record(0, 0, b"a")], base_offset=(1 << 63) - 1), "from offset"),
        (v2([record(0, 0, b"a", length=90)]), "more bytes"),
        (v2(b"\xff" * 11), "varint"),
        (v2([record(0, 0, b"a")], magic=3), "magic 3"),
        (v2([record(0, 0, b"a")], length=13), "less than"),
        (v2([record(0, 0, b"a")], length=30)[:42], "less than"),
        (v2([record(0, 0, b"a")], attributes=5), "compression type 5"),
        (v2([record(0, 0, b"x", b"y")], attributes=CONTROL, producer_id=1), "marker"),
        (batch(4, (b"a", b"1")) + batch(4, (b"a", b"1")), "below 5"),
        (legacy(1, key=b"a", offset=4) + legacy(1, key=b"a", offset=4), "below 5"),
        (legacy(1, key=b"a", crc=1), "CRC"),
    ],
)  # fmt: skip
def test_what_is_unsound_is_an_error_that_names_the_tool_that_repairs(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        scanned(data)
    assert caught.value.reason.count("kstore repair") == 1


@given(st.integers(0, 1 << 32))
@examples(0.5)
def test_any_bytes_give_an_answer_or_an_error(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(b"".join(each.data for each in Kinds(rng).batches(3)))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    first_size = min(len(data), 12 + int.from_bytes(data[8:12], "big", signed=True))
    if first_size > 61 and data[16] == 2 and rng.random() < 0.8:
        data[:first_size] = resealed(data[:first_size])
    capacity, first_dirty = rng.randrange(1, 20), rng.randrange(20)
    newest, again = NewestRecords(capacity, first_dirty), NewestRecords(capacity, first_dirty)
    errors = []
    for act in (
        lambda: newest.add(data, CleanedTransactions(), path="a.log", position=7),
        lambda: scanned_in_a_file(data, again, CleanedTransactions(), rng),
    ):
        try:
            act()
        except CorruptRecordError as error:
            errors.append((error.reason, error.position))
    assert errors in ([], 2 * errors[:1])
    assert newest.count_superseded(0, newest.records) <= newest.records
    assert again.records == newest.records


def test_a_read_that_fails_is_told_and_ends_the_pass(tmp_path: Path) -> None:
    newest, transactions = NewestRecords(9, 0), CleanedTransactions()
    fd = os.open(tmp_path, os.O_RDONLY)  # a directory
    try:
        with pytest.raises(StorageError, match=r"a\.log") as told:
            newest.scan(fd, 0, 100, bytearray(100), transactions, path="a.log")
    finally:
        os.close(fd)
    assert told.value.errno == errno.EISDIR
    with pytest.raises(ValueError, match="begin another"):
        newest.add(b"", transactions, path="a.log", position=0)


def test_a_file_is_read_into_memory_that_can_be_written_and_no_further_than_asked(tmp_path: Path) -> None:
    data = batch(0, (b"a", b"1")) + batch(1, (b"b", b"2")) + batch(2, (b"c", b"3"))
    path = tmp_path / "a.log"
    path.write_bytes(data)
    size = len(data) // 3
    with path.open("rb") as file:
        for end, taken in ((0, 0), (size - 1, 0), (size, 1), (size + 1, 1), (2 * size, 2), (9 * size, 3)):
            newest = NewestRecords(9, 0)
            position, pieces = newest.scan(file.fileno(), 0, end, bytearray(size), CleanedTransactions(), path="a.log")
            assert (position, newest.records, len(pieces)) == (taken * size, taken, taken * 40)
        with pytest.raises(BufferError):
            NewestRecords(9, 0).scan(file.fileno(), 0, size, bytes(size), CleanedTransactions(), path="a.log")


# ---- Use


def test_what_makes_no_sense_is_refused() -> None:
    for make in (lambda: NewestRecords(0, 0), lambda: NewestRecords(1, -1), lambda: OffsetMap(0)):
        with pytest.raises(ValueError, match=r"least|or more"):
            make()
    newest = scanned(batch(0, (b"a", b"1")))
    for first, count in ((-1, 1), (0, -1), (0, 2), (1, 1), (1 << 62, 1 << 62)):
        with pytest.raises(ValueError, match="there are 1"):
            newest.count_superseded(first, count)
    with pytest.raises(ValueError, match="begins once"):
        newest.__init__(5, 5)  # type: ignore[misc]
    with pytest.raises(ValueError, match="3 bytes each"):
        OffsetMap(5).put_many(b"abcd", 3, 0)
    with pytest.raises(ValueError, match="4294967295"):
        OffsetMap(5).put_many(b"ab", 1, (1 << 32) - 2)


def test_a_second_use_at_the_same_time_is_refused() -> None:
    data = b"".join(batch(i * 500, *((str(j).encode(), b"v" * 100) for j in range(500))) for i in range(400))
    outcomes: list[object] = []
    newest, transactions = NewestRecords(1 << 20, 0), CleanedTransactions()
    lock, at = threading.Lock(), [0]

    def use() -> None:
        for _ in range(50):
            try:
                newest.has(b"1")
                with lock:
                    at[0] += newest.add(data[at[0] : at[0] + 300_000], transactions, path="a.log", position=0)
            except ValueError as error:
                outcomes.append(error)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("already" in str(error) for error in outcomes)
    assert newest.keys == 500
