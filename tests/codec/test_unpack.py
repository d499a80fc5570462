"""lz4 and zstd by liblz4 and libzstd: what the package cramjam says, or nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from unittest import mock

import lz4.block
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kstore.codec import _compression, compression
from kstore.codec._compression import LZ4_VERSION, ZSTD_VERSION, pack, unpack
from kstore.errors import CorruptRecordError

LIMIT = 8 << 20
VERSIONS = {"lz4": LZ4_VERSION, "zstd": ZSTD_VERSION}
CODECS = {name: compression.type_id(name) for name, version in VERSIONS.items() if version}
needs_lz4 = pytest.mark.skipif(LZ4_VERSION is None, reason="liblz4 is not linked")
needs_zstd = pytest.mark.skipif(ZSTD_VERSION is None, reason="libzstd is not linked")


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


@pytest.mark.parametrize("name", VERSIONS)
def test_a_codec_is_handled_in_c_if_and_only_if_its_library_is_linked(name: str) -> None:
    codec, version = compression.type_id(name), VERSIONS[name]
    frame = compression.compress(codec, b"value")
    assert (unpack(codec, frame, LIMIT) is None) == (pack(codec, 1, b"value") is None) == (version is None)
    assert compression.LIBRARIES[name] == (f"lib{name} {version}" if version else compression.LIBRARIES["snappy"])


@pytest.mark.parametrize("name", CODECS)
def test_what_is_compressed_is_decompressed_up_to_the_limit(name: str) -> None:
    for data in SAMPLES:
        packed = compression.compress(CODECS[name], data)
        assert unpack(CODECS[name], packed, LIMIT) == data
        assert unpack(CODECS[name], packed, len(data)) == data
        assert unpack(CODECS[name], packed, len(data) - 1) is None
        assert unpack(CODECS[name], packed, -1) is None


@needs_lz4
def test_lz4_frames_of_other_writers_are_decompressed() -> None:
    for number, data in enumerate(SAMPLES):
        block = (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB)[number % 2]
        level = (0, 9)[number // 2 % 2]
        size = number // 4 % 2 == 0
        options = {"compression_level": level, "block_size": block, "block_linked": False, "store_size": size}
        assert unpack(compression.LZ4, lz4.frame.compress(data, **options), LIMIT) == data


def test_what_is_decompressed_may_have_any_size() -> None:
    """Sizes around those by which memory is guessed, and around those from which other threads run meanwhile."""
    rng = random.Random(17)
    for name, codec in CODECS.items():
        for size in (0, 1, 4096, 65535, 65536, 65537, 300_000, 1_000_000):
            for data in (bytes(size), rng.randbytes(size)):
                assert unpack(codec, compression.compress(codec, data), max(size, 1)) == data, (name, size)
        grows = rng.randbytes(70_000) + bytes(1_500_000)  # from a payload that is large, to more than was guessed
        assert unpack(codec, compression.compress(codec, grows), LIMIT) == grows
        swells = bytes(1 << 20 | 1)  # a small payload that becomes too much to hold other threads up
        assert unpack(codec, compression.compress(codec, swells), LIMIT) == swells


@needs_zstd
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


@needs_zstd
def test_zstd_that_streams_judge_otherwise_is_left_to_the_package() -> None:
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


@needs_zstd
def test_a_zstd_block_may_have_128_kib_and_not_a_byte_more() -> None:
    for size in ((128 << 10) - 1, 128 << 10):
        frame = b"\x28\xb5\x2f\xfd\x00\x50" + (size << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
        assert unpack(compression.ZSTD, frame, LIMIT) == b"x" * size
        agree(compression.ZSTD, frame)


@needs_lz4
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


def lz4_frame(block: bytes) -> bytes:
    return b"\x04\x22\x4d\x18\x60\x40\x82" + len(block).to_bytes(4, "little") + block + bytes(4)


def test_what_the_libraries_do_not_handle_is_left_to_the_package() -> None:
    data = b"value" * 100
    for frame in (
        lz4.frame.compress(data * 1000, block_linked=True),
        lz4.frame.compress(data, block_linked=False, block_checksum=True),
        b"",
        b"\x04\x22\x4d\x18",
    ):
        assert unpack(compression.LZ4, frame, LIMIT) is None
    for codec in (0, 1, 2, 4, 5, 7):
        assert unpack(codec, b"\0" * 40, LIMIT) is None
        assert unpack(codec, b"", LIMIT) is None
    for codec in (0, 1, 2, 5, 7):
        assert pack(codec, 1, data) is None


def by_the_package(codec: int, data: bytes) -> bytes:
    with mock.patch.object(_compression, "unpack", return_value=None):
        return compression.decompress(codec, data, limit=LIMIT)


def agree(codec: int, data: bytes) -> None:
    ours = unpack(codec, data, LIMIT)
    if ours is None:
        return
    try:
        theirs = by_the_package(codec, data)
    except CorruptRecordError as error:
        raise AssertionError(f"{len(ours)} bytes where the package says: {error}") from error
    assert ours == theirs


@pytest.mark.parametrize("name", CODECS)
def test_a_spoiled_payload_is_what_the_package_says_or_left_to_it(
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
def test_any_bytes_as_a_block_are_what_the_package_says_or_left_to_it(data: bytes) -> None:
    agree(compression.LZ4, lz4_frame(data))
    agree(compression.LZ4, data)
    agree(compression.ZSTD, b"\x28\xb5\x2f\xfd" + data)


@needs_zstd
@pytest.mark.parametrize("most", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("piece", [1, 11, 4096, 1 << 20])
def test_a_zstd_stream_gives_the_same_whatever_the_pieces(piece: int, most: int) -> None:
    packed = b"".join(zstandard.compress(data) for data in (b"a" * 3000, b"", random.Random(1).randbytes(5000)))
    stream, plain, ended = _compression.ZstdStream(), b"", []
    for start in range(0, len(packed), piece):
        data, at = packed[start : start + piece], 0
        while True:
            made, at = stream.read(data, at, most)
            plain += made
            if not made and at == len(data):
                break
        ended.append(not stream.inside)
    assert plain == b"a" * 3000 + random.Random(1).randbytes(5000)
    assert ended[-1]
    assert piece > 1 or sum(ended) == 3, "three frames end"


@needs_zstd
def test_a_zstd_stream_refuses_damage_and_positions_outside_of_the_data() -> None:
    with pytest.raises(ValueError, match="Unknown frame descriptor"):
        _compression.ZstdStream().read(b"junk" * 9, 0, 100)
    for at, most in ((-1, 1), (2, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"from {at} of 1 bytes at most {most}"):
            _compression.ZstdStream().read(b"x", at, most)
