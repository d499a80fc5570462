"""Which library compresses and decompresses best behind `kstore.compression`, in frames that Kafka reads?

Workload: lines of JSON with a few repeating words and random numbers, in record sections of 16 KiB and 1 MiB. The
choice in `compression.py` follows from these tables: liblz4 and libzstd, linked, with contexts that are kept; cramjam
for snappy, and where they are not linked; zlib from the standard library. "The library" is the one that kstore is
linked with, called by ctypes with a context and memory that are kept.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from common import KIB, MIB, Question, measure
from limits import codecs
from pytest_benchmark.fixture import BenchmarkFixture

from kstore.codec import compression

SIZES = {"16 KiB": 16 * KIB, "1 MiB": MIB}
ZSTD_OUT = zstandard.ZstdCompressor(level=3, write_content_size=False)
ZSTD_IN = zstandard.ZstdDecompressor()


@cache
def rows(size: int) -> bytes:
    """`size` bytes of JSON lines, the same in every run."""
    made = random.Random(11)
    lines = (
        {
            "id": made.randrange(10**9),
            "name": made.choice(("alpha", "beta", "gamma")),
            "at": 1_700_000_000_000 + n * 37,
            "value": made.random(),
        }
        for n in range(size // 60)
    )
    return b"\n".join(json.dumps(line).encode() for line in lines)[:size]


LIBRARY = "the library, context kept"
LIBRARIES = [codec for codec in ("lz4", "zstd") if codecs.library(codec)]
LEAST = ((LIBRARY, 0.95),)  # of the library's speed, that kstore is to reach


def cramjam_lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(0, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def python_lz4(data: bytes, level: int = 0) -> bytes:
    frame: bytes = lz4.frame.compress(
        data, compression_level=level, block_linked=False, store_size=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB
    )
    return frame


def zlib_gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(-1, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


PACKERS: dict[str, dict[str, Callable[[bytes], Any]]] = {
    "gzip": {"zlib": zlib_gzip, "cramjam": lambda data: cramjam.gzip.compress(data, 6)},
    "snappy": {"cramjam, one raw block": cramjam.snappy.compress_raw},
    "lz4": {"python-lz4": python_lz4, "python-lz4, level 9": lambda data: python_lz4(data, 9), "cramjam": cramjam_lz4},
    "zstd": {"zstandard, context kept": ZSTD_OUT.compress, "cramjam": lambda data: cramjam.zstd.compress(data, 3)},
}
UNPACKERS: dict[str, dict[str, Callable[[bytes], Any]]] = {
    "gzip": {"zlib": lambda data: zlib.decompress(data, 31), "cramjam": cramjam.gzip.decompress},
    "snappy": {"cramjam, one raw block": cramjam.snappy.decompress_raw},
    "lz4": {"python-lz4, whole frame": lz4.frame.decompress, "cramjam": cramjam.lz4.decompress},
    "zstd": {
        "zstandard, context kept": lambda data: ZSTD_IN.decompressobj().decompress(data),
        "cramjam": cramjam.zstd.decompress,
    },
}
for codec in LIBRARIES:
    PACKERS[codec][LIBRARY] = codecs.packer(codec, MIB)
    UNPACKERS[codec][LIBRARY] = codecs.unpacker(codec, MIB)


def measured(
    benchmark: BenchmarkFixture,
    text: str,
    contestant: str,
    run: Callable[[], Any],
    size: int,
    *,
    least: tuple[tuple[str, float], ...] = (),
) -> None:
    repeats = max(1, MIB // size)

    def several() -> None:
        for _ in range(repeats):
            run()

    measure(
        benchmark,
        Question(text, "bytes", against=least),
        contestant,
        several,
        operations=repeats,
        size_bytes=size * repeats,
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("codec", "name"), [(c, n) for c, found in PACKERS.items() for n in ("kstore", *found)])
def test_compress(benchmark: BenchmarkFixture, codec: str, name: str, size: str) -> None:
    data = rows(SIZES[size])
    number = compression.type_id(codec)
    pack = PACKERS[codec].get(name, lambda data: compression.compress(number, data))
    measured(benchmark, f"compressing {size} of JSON lines with {codec}", name, lambda: pack(data), len(data))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("codec", "name"), [(c, n) for c, found in UNPACKERS.items() for n in ("kstore", *found)])
def test_decompress(benchmark: BenchmarkFixture, codec: str, name: str, size: str) -> None:
    data = rows(SIZES[size])
    number = compression.type_id(codec)
    packed = bytes(cramjam.snappy.compress_raw(data)) if "raw block" in name else compression.compress(number, data)
    unpack = UNPACKERS[codec].get(name, lambda packed: compression.decompress(number, packed))
    assert bytes(unpack(packed)) == data
    text, least = f"decompressing {size} of JSON lines with {codec}", LEAST if codec in LIBRARIES else ()
    measured(benchmark, text, name, lambda: unpack(packed), len(data), least=least)
