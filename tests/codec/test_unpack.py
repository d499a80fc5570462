"""Our own decompressors: what the libraries say, or nothing."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kstore.codec import compression
from kstore.codec._compression import ZSTD_LIBRARY, unpack
from kstore.errors import CorruptRecordError
from tests.support import reference

LIMIT = 8 << 20
CODECS = {"snappy": compression.SNAPPY, "lz4": compression.LZ4}
if ZSTD_LIBRARY:
    CODECS["zstd"] = compression.ZSTD


def samples(rng: random.Random) -> list[bytes]:
    """Data of every texture: none, repeats with short and long periods, text, noise, and mixtures."""
    out = [b"a", b"ab" * 3, bytes(1000), rng.randbytes(5000), b"abc" * 30_000, rng.randbytes(70_000)]
    out += [rng.randbytes(period) * (3000 // period) for period in range(1, 40)]
    for lines in (20, 2000):  # of which most matches are long
        words = [b'{"user": %d, "page": "/item/%d", "ok": true}' % (rng.randrange(1 << 20), at) for at in range(lines)]
        out.append(b"\n".join(words))
    for _ in range(12):
        parts = [rng.choice((rng.randbytes(rng.randrange(60)), b"word " * rng.randrange(20))) for _ in range(300)]
        out.append(b"".join(rng.choice(parts) for _ in range(rng.randrange(900))))
    return out


SAMPLES = samples(random.Random(7))


@pytest.mark.parametrize("name", CODECS)
def test_what_we_compress_we_decompress_ourselves(name: str) -> None:
    for data in SAMPLES:
        packed = compression.compress(CODECS[name], data)
        assert unpack(CODECS[name], packed, LIMIT) == data
        assert unpack(CODECS[name], packed, len(data)) == data
        assert unpack(CODECS[name], packed, len(data) - 1) is None
        assert unpack(CODECS[name], packed, -1) is None


def test_frames_of_other_writers_are_decompressed() -> None:
    for number, data in enumerate(SAMPLES):
        block = (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB)[number % 2]
        level = (0, 9)[number // 2 % 2]
        size = number // 4 % 2 == 0
        options = {"compression_level": level, "block_size": block, "block_linked": False, "store_size": size}
        assert unpack(compression.LZ4, lz4.frame.compress(data, **options), LIMIT) == data
        assert unpack(compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), LIMIT) == data
        assert unpack(compression.SNAPPY, reference.compress(reference.SNAPPY, data), LIMIT) == data


def test_what_is_decompressed_may_have_any_size() -> None:
    """Sizes around those by which memory is guessed, and around those from which other threads run meanwhile."""
    rng = random.Random(17)
    for name, codec in CODECS.items():
        for size in (0, 1, 4096, 65535, 65536, 65537, 300_000, 1_000_000):
            for data in (bytes(size), rng.randbytes(size)):
                assert unpack(codec, compression.compress(codec, data), max(size, 1)) == data, (name, size)
        grows = rng.randbytes(70_000) + bytes(1_500_000)  # from a payload that is large, to more than was guessed
        assert unpack(codec, compression.compress(codec, grows), LIMIT) == grows
        if (
            name != "snappy"
        ):  # a payload of 3 MB of zeros is small with the others, and becomes too much to hold others up
            swells = bytes(1 << 20 | 1)
            assert unpack(codec, compression.compress(codec, swells), LIMIT) == swells


@pytest.mark.skipif(ZSTD_LIBRARY is None, reason="no library of the version of the package zstandard")
def test_zstd_is_taken_from_a_library_of_the_version_that_judges_records() -> None:
    major, minor, patch = zstandard.ZSTD_VERSION
    assert ctypes.CDLL(ZSTD_LIBRARY).ZSTD_versionNumber() == 10000 * major + 100 * minor + patch


@pytest.mark.skipif(ZSTD_LIBRARY is None, reason="no library of the version of the package zstandard")
def test_zstd_frames_of_other_writers_are_decompressed() -> None:
    for number, data in enumerate(SAMPLES):
        options = {
            "level": (-5, 1, 3, 19)[number % 4],
            "write_content_size": number // 4 % 2 == 0,
            "write_checksum": number // 8 % 2 == 0,
        }
        assert unpack(compression.ZSTD, zstandard.ZstdCompressor(**options).compress(data), LIMIT) == data
        stream = zstandard.ZstdCompressor().compressobj()  # as a writer that does not know what is to come
        assert unpack(compression.ZSTD, stream.compress(data) + stream.flush(), LIMIT) == data


def test_zstd_that_streams_judge_otherwise_is_left_to_the_library() -> None:
    data = random.Random(3).randbytes(700) * 3000
    small = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=12, write_content_size=False)
    ).compress(data)
    frame = zstandard.ZstdCompressor().compress(data)
    skipped = b"\x50\x2a\x4d\x18\x01\0\0\0x"
    wide = bytearray(zstandard.ZstdCompressor(write_content_size=False).compress(data))
    wide[5] = 16 << 3
    long_block = b"\x28\xb5\x2f\xfd\x00\x50" + ((128 << 10) + 1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    several = (frame + frame, skipped + frame, frame + skipped)
    for payload in (small, *several, frame + b"\0", frame[:-1], bytes(wide), long_block):
        assert unpack(compression.ZSTD, payload, LIMIT) is None
        agree(compression.ZSTD, payload)


def test_a_zstd_block_may_have_128_kib_and_not_a_byte_more() -> None:
    for size in ((128 << 10) - 1, 128 << 10):
        frame = b"\x28\xb5\x2f\xfd\x00\x50" + (size << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
        assert unpack(compression.ZSTD, frame, LIMIT) == b"x" * size
        agree(compression.ZSTD, frame)


def test_stored_lz4_blocks_of_no_bytes_before_between_and_after_others_add_nothing() -> None:
    empty, stored = (1 << 31).to_bytes(4, "little"), (1 << 31 | 3).to_bytes(4, "little") + b"abc"
    for blocks, data in (
        ((empty,), b""),
        ((empty, stored), b"abc"),
        ((stored, empty, stored), b"abcabc"),
        ((stored, empty), b"abc"),
    ):
        frame = b"\x04\x22\x4d\x18\x60\x40\x82" + b"".join(blocks) + bytes(4)
        assert unpack(compression.LZ4, frame, LIMIT) == data
        agree(compression.LZ4, frame)


def lz4_block(*sequences: tuple[bytes, int, int], last: bytes) -> bytes:
    """Literals, the size of a match and its distance, one after the other, and the last literals."""
    block = b""
    for literals, match, distance in (*sequences, (last, 4, 0)):
        lengths = len(literals), match - 4
        block += bytes([min(lengths[0], 15) << 4 | min(lengths[1], 15)])
        block += bytes([lengths[0] - 15]) if lengths[0] >= 15 else b""
        block += literals + distance.to_bytes(2, "little")
        block += bytes([lengths[1] - 15]) if lengths[1] >= 15 else b""
    return block[:-2]


def lz4_frame(block: bytes) -> bytes:
    return b"\x04\x22\x4d\x18\x60\x40\x82" + len(block).to_bytes(4, "little") + block + bytes(4)


LONGER = [(bytes(range(40)), 25, 17)] + [(b"", 25, 17)] * 12  # sequences before those that are looked at
BEFORE = pytest.mark.parametrize("before", [[], LONGER], ids=["short matches", "longer ones before"])


@BEFORE
@pytest.mark.parametrize("last", [5, 12, 40, 58, 59, 60, 61, 62, 63, 64, 65, 66, 100])
def test_short_sequences_near_the_end_and_far_are_what_the_library_says(
    last: int, before: list[tuple[bytes, int, int]]
) -> None:
    text = bytes(range(100, 140))
    for distance in range(1, 41):
        for match in range(4, 36):
            literals = text[: (distance + match) % 17]
            sequences = *before, (text, match, distance), (literals, match, distance + 3)
            block = lz4_block(*sequences, last=bytes(last))
            ours = unpack(compression.LZ4, lz4_frame(block), LIMIT)
            assert ours == lz4.block.decompress(block, uncompressed_size=64 << 10)


@BEFORE
@pytest.mark.parametrize("distance", [0, 41, 0xFFFF])
def test_a_distance_of_0_or_to_before_the_block_is_left_to_the_library(
    distance: int, before: list[tuple[bytes, int, int]]
) -> None:
    for last in (12, 100):
        made = sum(len(literals) + match for literals, match, _ in before)
        good, bad = ((bytes(14), 20, at) for at in (made + 14, distance and min(made + distance - 26, 0xFFFF)))
        block = lz4_block(*before, good, last=bytes(last))
        ours = unpack(compression.LZ4, lz4_frame(block), LIMIT)
        assert ours == lz4.block.decompress(block, uncompressed_size=64 << 10)
        assert unpack(compression.LZ4, lz4_frame(lz4_block(*before, bad, last=bytes(last))), LIMIT) is None


def test_what_is_not_ours_is_left_to_the_libraries() -> None:
    data = b"value" * 100
    for frame in (
        lz4.frame.compress(data * 1000, block_linked=True),
        lz4.frame.compress(data, block_linked=False, block_checksum=True),
        b"",
        b"\x04\x22\x4d\x18",
    ):
        assert unpack(compression.LZ4, frame, LIMIT) is None
    for codec in (0, 1, 4, 5, 7):
        assert unpack(codec, b"\0" * 40, LIMIT) is None
    assert unpack(compression.SNAPPY, b"", LIMIT) is None


def agree(codec: int, data: bytes) -> None:
    ours = unpack(codec, data, LIMIT)
    if ours is None:
        return
    try:
        theirs = compression.decompress(codec, data, limit=LIMIT)
    except CorruptRecordError as error:
        raise AssertionError(f"we gave {len(ours)} bytes where the library says: {error}") from error
    assert ours == theirs


@pytest.mark.parametrize("name", CODECS)
def test_a_spoiled_payload_is_what_the_library_says_or_left_to_it(
    name: str, rng: random.Random, budget: Callable[[float], float]
) -> None:
    codec = CODECS[name]
    small = [data for data in SAMPLES if 0 < len(data) < 4000]
    end = time.monotonic() + budget(0.7)
    while time.monotonic() < end:
        packed = bytearray(compression.compress(codec, rng.choice(small)))
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(packed))
            kind = rng.randrange(3)
            if kind == 0:
                packed[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                packed[at] = rng.choice((0, 1, 15, 16, 0xF0, 0xFF))
            else:
                del packed[at : at + rng.randrange(1, 4)]
            if not packed:
                break
        agree(codec, bytes(packed))


@given(st.binary(max_size=200))
def test_any_bytes_as_a_block_are_what_the_library_says_or_left_to_it(data: bytes) -> None:
    agree(compression.LZ4, lz4_frame(data))
    agree(compression.LZ4, data)
    agree(compression.SNAPPY, data)
    agree(compression.ZSTD, b"\x28\xb5\x2f\xfd" + data)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 30)), max_size=8), st.integers(0, 20))
def test_blocks_put_together_by_hand_are_what_the_library_says(parts: list[tuple[int, int, int]], last: int) -> None:
    block = b""
    for literals, match, distance in parts:
        block += bytes([min(literals, 15) << 4 | min(match, 15)])
        block += (bytes([literals - 15]) if literals >= 15 else b"") + b"x" * literals + distance.to_bytes(2, "little")
        block += bytes([match - 15]) if match >= 15 else b""
    block += bytes([min(last, 15) << 4]) + (bytes([last - 15]) if last >= 15 else b"") + b"y" * last
    agree(compression.LZ4, lz4_frame(block))
