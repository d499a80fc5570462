"""Frames that Kafka's Java code reads, every frame that it writes, and an end to whatever else comes in."""

from __future__ import annotations

import gzip
import random
import struct
import threading
import tracemalloc
import zlib

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kstore.codec import compression
from kstore.codec._compression import ZSTD_VERSION
from kstore.codec.compression import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    check_level,
    compress,
    decompress,
    type_id,
    type_name,
)
from kstore.errors import ConfigError, CorruptRecordError, UnsupportedCompressionError
from tests.support import reference

CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
SECTION = bytes.fromhex("24000000046b310a68656c6c6f020468310278 18000a02046b32010204683201")
TEXT = b"".join(b'{"id": %d, "name": "order-%d"}\n' % (i, i * 7919 % 1000) for i in range(4000))
NOISE = random.Random(3).randbytes(200_000)

# ---- both ways


@given(st.binary(max_size=3000) | st.binary(max_size=50).map(lambda b: b * 3000), st.sampled_from([NONE, *CODECS]))
def test_whatever_goes_in_comes_out(data: bytes, codec: int) -> None:
    """GzipCompressionTest.testCompressionDecompression, Lz4CompressionTest.testCompressionDecompression,
    SnappyCompressionTest.testCompressionDecompression."""
    packed = compress(codec, data)
    assert decompress(codec, packed) == data
    assert decompress(codec, packed, limit=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"x", TEXT, NOISE, bytes(1 << 20)], ids=["one", "text", "noise", "zeros"])
def test_the_plain_libraries_read_ours_and_we_read_theirs(codec: int, data: bytes) -> None:
    ours = compress(codec, data)
    assert decompress(codec, reference.compress(codec, data)) == data
    if codec == GZIP:
        assert gzip.decompress(ours) == data
    elif codec == LZ4:
        assert lz4.frame.decompress(ours) == data
    elif codec == ZSTD:
        assert zstandard.ZstdDecompressor().decompressobj().decompress(ours) == data


@pytest.mark.parametrize("codec", CODECS)
def test_no_bytes_make_a_frame_of_no_bytes(codec: int) -> None:
    assert decompress(codec, compress(codec, b"")) == b""


@pytest.mark.parametrize(("codec", "least", "most"), [(GZIP, 1, 9), (LZ4, 1, 17), (ZSTD, -131072, 22)])
def test_levels_are_kafkas_and_both_neighbours_are_refused(codec: int, least: int, most: int) -> None:
    """FORMAT 6.2. GzipCompressionTest.testLevelValidator, Lz4CompressionTest.testCompressionLevels,
    ZstdCompressionTest.testCompressionLevels."""
    for level in (least, least + 1, most - 1, most, None):
        check_level(codec, level)
        assert decompress(codec, compress(codec, TEXT[:5000], level)) == TEXT[:5000]
    for level in (least - 1, most + 1):
        if (codec, level) == (GZIP, -1):
            continue
        with pytest.raises(ConfigError, match=str(level)):
            check_level(codec, level)
    check_level(GZIP, -1)
    with pytest.raises(ConfigError):
        check_level(GZIP, 0)


def test_a_default_level_is_kafkas() -> None:
    """FORMAT 6.2: zlib's 6, lz4's 9 which is the fast compressor, zstd's 3."""
    assert compress(GZIP, TEXT) == compress(GZIP, TEXT, 6) == compress(GZIP, TEXT, -1)
    assert compress(LZ4, TEXT) == compress(LZ4, TEXT, 9)
    assert compress(ZSTD, TEXT) == compress(ZSTD, TEXT, 3)
    assert len(compress(LZ4, TEXT, 9)) > len(compress(LZ4, TEXT, 8)), "8 is the thorough compressor, 9 the fast one"


def test_types_go_by_number_and_name() -> None:
    assert [type_name(i) for i in range(5)] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [type_id(name) for name in compression.NAMES] == list(range(5))
    assert type_id("uncompressed") == NONE
    for number in (5, 7, -1):
        with pytest.raises(UnsupportedCompressionError, match=str(number)):
            type_name(number)
        with pytest.raises(UnsupportedCompressionError):
            compress(number, b"")
        with pytest.raises(CorruptRecordError):
            decompress(number, b"")
    for name in ("", "GZIP", "brotli", "producer"):
        with pytest.raises(UnsupportedCompressionError):
            type_id(name)


# ---- frames, byte by byte


def test_the_examples_of_the_format_document_decompress() -> None:
    """FORMAT 14.1."""
    packed = bytes.fromhex(
        "1f 8b 08 00 00 00 00 00 02 03 53 61 60 60 60 c9 36 e4 ca 48 cd c9 c9 67 62 c9 30 64 aa 90"
        "60 e0 62 62 c9 36 62 04 f2 8c 18 01 af 53 68 b2 20 00 00 00"
    )
    assert decompress(GZIP, packed) == SECTION
    snappy = bytes.fromhex("82534e41505059 00 00000001 00000001 00000022 20 7c") + SECTION
    assert decompress(SNAPPY, snappy) == SECTION
    lz4_frame = bytes.fromhex("04224d18604082 20000080") + SECTION + bytes(4)
    assert decompress(LZ4, lz4_frame) == SECTION
    hundred = bytes.fromhex("04224d18604082 0b000000 1f4101004b504141414141 00000000")
    assert decompress(LZ4, hundred) == b"A" * 100


def test_lz4_frames_have_independent_blocks_of_64_kib_and_nothing_else() -> None:
    """FORMAT 6.5; a linked block is refused by Kafka's reader. Lz4CompressionTest.testCompression."""
    for level in (None, 1, 5, 17):
        frame = compress(LZ4, TEXT * 3, level)
        assert frame[:7].hex() == "04224d18604082"
        assert frame[-4:] == bytes(4)
    assert compress(LZ4, TEXT, magic=0)[:7].hex() == "04224d1860401a"


def test_snappy_streams_have_blocks_of_32_kib_of_input() -> None:
    """FORMAT 6.4."""
    data = bytes(32768) + bytes(32768) + b"x"
    packed = compress(SNAPPY, data)
    assert packed[:16] == reference.XERIAL
    at, sizes = 16, []
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        sizes.append(len(cramjam.snappy.decompress_raw(packed[at + 4 : at + 4 + size])))
        at += 4 + size
    assert sizes == [32768, 32768, 1]


def test_zstd_frames_have_no_content_size_and_no_checksum() -> None:
    """FORMAT 6.6. Without libzstd they have the size: the package sizes its tables by it."""
    frame = compress(ZSTD, TEXT)
    found = zstandard.get_frame_parameters(frame)
    assert not found.has_checksum
    if ZSTD_VERSION:
        assert frame[:5].hex() == "28b52ffd00"
        assert found.content_size == zstandard.CONTENTSIZE_UNKNOWN
    else:
        assert found.content_size == len(TEXT)
        assert found.window_size <= 1 << 20


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_bytes_take_no_more_memory_than_a_piece(codec: int) -> None:
    """Where the limit is 256 MiB: no memory is taken in the hope that it will be filled."""
    packed = compress(codec, TEXT)
    for data in (b"junk" * 9, packed[:-1], packed[:9] + b"junk" * 9):
        tracemalloc.start()
        try:
            with pytest.raises(CorruptRecordError):
                decompress(codec, data)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_gzip_has_one_member_without_time_or_name() -> None:
    """FORMAT 6.3: the header of a JDK since 16, at every level."""
    for level in (None, -1, 1, 6, 9):
        packed = compress(GZIP, TEXT, level)
        assert packed[:10].hex() == "1f8b08000000000000ff"
        assert packed[-8:] == struct.pack("<II", zlib.crc32(TEXT), len(TEXT))


# ---- what readers accept


def test_gzip_flags_without_a_meaning_are_passed_over_as_the_jdk_does() -> None:
    packed = compress(GZIP, b"first")
    for flags in (0x01, 0x20, 0x80, 0xE0, 0xE1):
        odd = packed[:3] + bytes([flags]) + packed[4:]
        assert decompress(GZIP, odd + compress(GZIP, b"|") + odd) == b"first|first"
    named = packed[:3] + b"\xe8" + packed[4:10] + b"name\0" + packed[10:]
    assert decompress(GZIP, named) == b"first"
    for flags in (0x02, 0x04, 0xE2):  # a checksum of the header, or an extra field, that is not there
        with pytest.raises(CorruptRecordError):
            decompress(GZIP, packed[:3] + bytes([flags]) + packed[4:])
    for size in range(11):
        with pytest.raises(CorruptRecordError):
            decompress(GZIP, (packed[:3] + b"\xe0" + packed[4:])[:size])


def test_gzip_members_are_read_one_after_another_and_padding_is_not_read() -> None:
    """FORMAT 6.3."""
    one, two = compress(GZIP, b"one"), compress(GZIP, b"two")
    assert decompress(GZIP, one + two) == b"onetwo"
    assert decompress(GZIP, one + bytes(10)) == b"one"
    assert decompress(GZIP, one + b"\x1f") == b"one"


def test_zstd_frames_are_read_one_after_another() -> None:
    """FORMAT 6.6."""
    one, two = compress(ZSTD, TEXT), compress(ZSTD, b"two")
    assert decompress(ZSTD, one + two + one) == TEXT + b"two" + TEXT
    with pytest.raises(CorruptRecordError):
        decompress(ZSTD, one + b"junk")
    sized = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    assert decompress(ZSTD, sized) == TEXT


def test_a_snappy_payload_without_the_stream_header_is_one_raw_block() -> None:
    """FORMAT 6.4: some clients send it so."""
    for data in (b"x", TEXT, b"\x82SNAPPY"):
        assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_snappy_streams_are_read_one_after_another() -> None:
    """FORMAT 6.4."""
    one, two = compress(SNAPPY, TEXT), compress(SNAPPY, b"two")
    assert decompress(SNAPPY, one + two) == TEXT + b"two"
    assert decompress(SNAPPY, two + b"\0\0\0") == b"two", "a trailing fragment below 4 bytes ends the stream"
    newer = two[:8] + struct.pack(">ii", 9, 9) + two[16:]
    assert decompress(SNAPPY, newer) == b"two", "version words at the start are not checked"
    for bad in (
        one + two[:8] + struct.pack(">ii", 0, 1) + two[16:],
        one + two[:15],
        one + b"\xff\xff\xff\xff" + bytes(20),
        one + b"\x82SNAPPZ\0" + bytes(8),
    ):
        with pytest.raises(CorruptRecordError):
            decompress(SNAPPY, bad)
    with pytest.raises(CorruptRecordError, match="0 bytes"):
        decompress(SNAPPY, b"")


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("checks", [{}, {"block_checksum": True}, {"content_checksum": True}, {"store_size": True}])
def test_lz4_frames_of_every_kind_that_kafka_reads_are_read(block_size: int, checks: dict[str, bool]) -> None:
    """FORMAT 6.5."""
    for data in (TEXT * 40, NOISE, b"x", b""):
        options = {"store_size": False, **checks}
        frame = lz4.frame.compress(data, block_size=block_size, block_linked=False, **options)
        assert decompress(LZ4, frame) == data
        assert decompress(LZ4, frame + b"after the end mark") == data


def test_lz4_content_checksum_and_size_are_skipped_unread() -> None:
    """FORMAT 6.5: Kafka's reader does not verify them."""
    frame = bytearray(lz4.frame.compress(TEXT, block_linked=False, content_checksum=True, store_size=False))
    frame[-1] ^= 1
    assert decompress(LZ4, bytes(frame)) == TEXT


def test_lz4_block_checksums_are_verified() -> None:
    frame = bytearray(lz4.frame.compress(TEXT, block_linked=False, block_checksum=True, store_size=False))
    frame[-5] ^= 1
    with pytest.raises(CorruptRecordError):
        decompress(LZ4, bytes(frame))


def test_the_lz4_header_checksum_is_verified_except_in_format_0() -> None:
    """FORMAT 6.5: format v0's is wrong on purpose, and ignored. Lz4CompressionTest.testLz4FramingMagicV1,
    Lz4CompressionTest.testBadFrameChecksum, Lz4CompressionTest.testLz4FramingMagicV0."""
    good = compress(LZ4, TEXT)
    for value in range(256):
        frame = good[:6] + bytes((value,)) + good[7:]
        assert decompress(LZ4, frame, magic=0) == TEXT
        if value == good[6]:
            assert decompress(LZ4, frame, magic=1) == TEXT
        else:
            with pytest.raises(CorruptRecordError, match="checksum"):
                decompress(LZ4, frame, magic=1)
    with pytest.raises(CorruptRecordError):
        decompress(LZ4, compress(LZ4, TEXT, magic=0))


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0x05), (4, 0x40), (4, 0x61), (4, 0x62), (4, 0xA0), (4, 0x20), (5, 0x30), (5, 0x80), (5, 0xC0), (5, 0x41)],
)
def test_lz4_headers_that_kafka_refuses_are_refused(at: int, value: int) -> None:
    """Lz4CompressionTest.testNotSupported."""
    frame = bytearray(compress(LZ4, TEXT))
    frame[at] = value
    with pytest.raises(CorruptRecordError):
        decompress(LZ4, bytes(frame), magic=0)


def test_lz4_frames_with_linked_blocks_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="independent"):
        decompress(LZ4, lz4.frame.compress(TEXT * 3, block_linked=True))


# ---- what is refused


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_cut_at_any_byte_is_corruption_or_what_stood_before_the_cut(codec: int) -> None:
    """Lz4CompressionTest.testArrayBackedBuffer."""
    packed = compress(codec, TEXT[:300] * 2)
    for cut in range(len(packed)):
        try:
            found = decompress(codec, packed[:cut])
        except CorruptRecordError:
            continue
        assert codec == SNAPPY, f"{cut} of {len(packed)} bytes gave {len(found)}"
        assert found == b"", "a stream without an end mark may end at a block"


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_ends_at_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(3 << 20))
    for limit in (0, 1, 65_536, (3 << 20) - 1):
        with pytest.raises(CorruptRecordError, match=f"{limit} bytes allowed"):
            decompress(codec, bomb, limit=limit)
    assert decompress(codec, bomb, limit=3 << 20) == bytes(3 << 20)


@pytest.mark.parametrize("codec", [GZIP, ZSTD, SNAPPY])
def test_many_small_bombs_count_together(codec: int) -> None:
    one = compress(codec, bytes(100_000))
    assert len(decompress(codec, one * 10, limit=1_000_000)) == 1_000_000
    with pytest.raises(CorruptRecordError, match="999999 bytes allowed"):
        decompress(codec, one * 10, limit=999_999)


def test_a_snappy_block_that_declares_more_than_it_can_hold_allocates_nothing() -> None:
    for declared in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x40"):
        with pytest.raises(CorruptRecordError):
            decompress(SNAPPY, declared + b"\x00", limit=1 << 40)
    with pytest.raises(CorruptRecordError, match="no end"):
        decompress(SNAPPY, b"\x80" * 20)


def test_an_lz4_block_larger_than_the_frame_allows_is_refused() -> None:
    """Lz4CompressionTest.testBadBlockSize."""
    frame = compress(LZ4, NOISE[:65_536])
    stored = bytearray(frame)
    struct.pack_into("<I", stored, 7, 65_537 | 1 << 31)
    with pytest.raises(CorruptRecordError, match="65536 are allowed"):
        decompress(LZ4, bytes(stored) + bytes(10))
    packed = lz4.block.compress(bytes(65_537), store_size=False)
    with pytest.raises(CorruptRecordError):
        decompress(LZ4, frame[:7] + struct.pack("<I", len(packed)) + packed + bytes(4))


def test_a_zstd_window_of_gigabytes_is_refused() -> None:
    with pytest.raises(CorruptRecordError):
        decompress(ZSTD, b"\x28\xb5\x2f\xfd\x00\xff" + bytes(100))


@pytest.mark.parametrize("codec", CODECS)
def test_errors_of_the_libraries_are_ours_and_keep_their_cause(codec: int) -> None:
    packed = bytearray(compress(codec, TEXT))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(CorruptRecordError):
        decompress(codec, bytes(packed) if codec == GZIP else b"\x00junk" * 9)
    with pytest.raises(CorruptRecordError) as caught:
        decompress(GZIP, b"junk")
    assert isinstance(caught.value.__cause__, zlib.error)


@given(st.binary(max_size=200), st.sampled_from(CODECS), st.integers(0, 2))
def test_any_bytes_decompress_or_are_corrupt(data: bytes, codec: int, magic: int) -> None:
    heads = {GZIP: b"\x1f\x8b\x08\0\0\0\0\0\0\3", SNAPPY: reference.XERIAL, ZSTD: b"\x28\xb5\x2f\xfd\x00\x58"}
    for head in (b"", heads.get(codec, b"\x04\x22\x4d\x18\x60\x40\x82")):
        try:
            found = decompress(codec, head + data, limit=1 << 20, magic=magic)
        except CorruptRecordError:
            continue
        assert len(found) <= 1 << 20


def test_threads_do_not_share_contexts() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        data = random.Random(seed).randbytes(500) * 50
        for _ in range(60):
            for codec in CODECS:
                if decompress(codec, compress(codec, data)) != data:
                    wrong.append(codec)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
