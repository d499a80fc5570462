"""What does the codec alone take, without a log around it and (but for the scan) without a file?

Workloads: values-100, keyed-100 and values-1k of `common`, in batches of 16 KiB and 1 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import peers
import pytest
from common import KIB, MIB, START_MS, VALUE, VALUE_1K, Question, keyed, measure, scaled, timed_rows, values
from pytest_benchmark.fixture import BenchmarkFixture

from kstore._core import RecordIterator
from kstore.codec._pack import Packer
from kstore.files._log_scan import scan
from kstore.files._log_search import find_batch, find_timestamp

COUNT = scaled(1_000_000)
BATCHES = {"16 KiB": 16 * KIB, "1 MiB": MIB}
CHUNK = 256 * KIB


def packed(items: Iterable[Any], batch_bytes: int) -> bytes:
    packer = Packer(batch_bytes, MIB, now_ms=START_MS)
    packer.pack(iter(items), 1 << 31)
    return bytes(packer.buffer)


def pack_in_steps(items: Iterable[Any], batch_bytes: int) -> None:
    """As a log does: batches of `batch_bytes`, 256 KiB of them at a time in one reused buffer."""
    packer, source = Packer(batch_bytes, MIB, now_ms=START_MS), iter(items)
    while packer.pack(source, 256 * KIB):
        packer.clear()


# --- encoding ---------------------------------------------------------------------------------------------------------

WORKLOADS: dict[str, tuple[Callable[[int], Iterable[Any]], bytes | None, bytes]] = {
    "100 bytes": (values, None, VALUE),
    "100 bytes, keys of 16": (keyed, bytes(16), VALUE),
    "1 KiB": (lambda count: values(count, VALUE_1K), None, VALUE_1K),
    "100 bytes, own timestamps": (timed_rows, None, VALUE),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_encode(benchmark: BenchmarkFixture, workload: str, batch: str) -> None:
    items, _, value = WORKLOADS[workload]
    question = Question(f"records of {workload} packed into batches of {batch}", against=(("aiokafka builder", 2.0),))
    count = COUNT if len(value) < 1000 else COUNT // 10
    run = lambda: pack_in_steps(items(count), BATCHES[batch])  # noqa: E731
    measure(benchmark, question, "kstore", run, operations=count, size_bytes=count * len(value), rounds=9)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_encode_aiokafka(benchmark: BenchmarkFixture, workload: str, batch: str) -> None:
    _, key, value = WORKLOADS[workload]
    question = Question(f"records of {workload} packed into batches of {batch}", against=(("aiokafka builder", 2.0),))
    count = COUNT // 10
    run = lambda: peers.aiokafka_build(key, value, count, BATCHES[batch])  # noqa: E731
    measure(benchmark, question, "aiokafka builder", run, operations=count, size_bytes=count * len(value))


# --- decoding ---------------------------------------------------------------------------------------------------------


def chunks(data: bytes, batch_bytes: int) -> Callable[[], Iterator[tuple[memoryview, None, int]]]:
    """Whole batches in one reused buffer, as `pread` into a pooled one gives them."""
    step = max(CHUNK // batch_bytes, 1)
    pairs = list(pairwise([*list(starts_of(data))[::step], len(data)]))
    view, source = memoryview(bytearray(max(b - a for a, b in pairs))), memoryview(data)

    def read() -> Iterator[tuple[memoryview, None, int]]:
        for a, b in pairs:
            view[: b - a] = source[a:b]
            yield view[: b - a], None, a

    return read


def starts_of(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        yield at
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")


def pass_over(records: RecordIterator) -> None:
    for _ in records:
        pass


def read_value(records: RecordIterator) -> None:
    for record in records:
        record.value  # noqa: B018


def unpack_five(records: RecordIterator) -> None:
    for _offset, _timestamp, _key, _value, _headers in records:
        pass


def keep_all(records: RecordIterator) -> None:
    list(records)


WAYS = {"read .value": read_value, "pass over": pass_over, "unpack all five": unpack_five, "keep in a list": keep_all}


def decoding(way: str, batch: str) -> Question:
    least = 20e6 if (way, batch) == ("read .value", "16 KiB") else None
    against = (("aiokafka reader", 3.0),) if way == "read .value" else ()
    return Question(f"records of 100 bytes in batches of {batch}, CRC checked: {way}", "rate", least, against)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", BATCHES)
def test_decode(benchmark: BenchmarkFixture, way: str, batch: str) -> None:
    data = packed(values(COUNT), BATCHES[batch])
    read = chunks(data, BATCHES[batch])
    run = lambda: WAYS[way](RecordIterator(read()))  # noqa: E731
    measure(benchmark, decoding(way, batch), "kstore", run, operations=COUNT, size_bytes=len(data), rounds=9)


@pytest.mark.parametrize("batch", BATCHES)
def test_decode_aiokafka(benchmark: BenchmarkFixture, batch: str) -> None:
    data = packed(values(COUNT), BATCHES[batch])
    run = lambda: peers.aiokafka_read(data)  # noqa: E731
    question = decoding("read .value", batch)
    measure(benchmark, question, "aiokafka reader", run, operations=COUNT, size_bytes=len(data), rounds=3)


# --- walking a file ---------------------------------------------------------------------------------------------------

SCAN = Question("a scan of 1 GiB of batches of 16 KiB, warm", "bytes")


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """A descriptor and a size: 1 GiB of batches whose offsets rise, written 1 MiB at a time."""
    path: Path = tmp_path_factory.mktemp("scan") / "segment.log"
    part = bytearray(packed(values(scaled(9_000_000) // 64), 16 * KIB))
    starts = list(starts_of(bytes(part)))
    offset = 0
    with path.open("wb", buffering=MIB) as file:
        for _ in range(64):
            for at in starts:
                part[at : at + 8] = offset.to_bytes(8, "big")
                offset += 1 + int.from_bytes(part[at + 23 : at + 27], "big")
            file.write(part)
        os.fsync(file.fileno())
    fd = os.open(path, os.O_RDONLY)
    yield fd, path.stat().st_size
    os.close(fd)
    path.unlink()


def test_scan(benchmark: BenchmarkFixture, segment: tuple[int, int]) -> None:
    fd, size = segment
    found = measure(benchmark, SCAN, "kstore", lambda: scan(fd, 0, size, 0), operations=1, size_bytes=size)
    assert found.stop == "end"


def test_scan_pread_alone(benchmark: BenchmarkFixture, segment: tuple[int, int]) -> None:
    """Reading from the page cache into one buffer of a scan's size: no scan that reads can be faster."""
    fd, size = segment
    buffer = bytearray(CHUNK)

    def read() -> None:
        for at in range(0, size, CHUNK):
            os.preadv(fd, [buffer], at)

    measure(benchmark, SCAN, "pread and nothing else", read, operations=1, size_bytes=size)


def test_find_batch(benchmark: BenchmarkFixture, segment: tuple[int, int]) -> None:
    fd, size = segment
    question = Question("the batch of an offset from its index entry, batches of 16 KiB", "time")
    middle = size // 2 // (16 * KIB) * (16 * KIB)
    position = next(at for at in range(middle, size) if os.pread(fd, 17, at)[8:17][4:] == b"\xff\xff\xff\xff\x02")
    offset = int.from_bytes(os.pread(fd, 8, position), "big") + 200
    run = lambda: [find_batch(fd, position, size, offset) for _ in range(10_000)]  # noqa: E731
    measure(benchmark, question, "kstore", run, operations=10_000)
    assert find_timestamp(fd, position, size, START_MS) is not None
