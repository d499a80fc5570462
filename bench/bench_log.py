"""How fast is a log? Appends one by one and many at once, reads, and lookups by time.

Workloads: values-100, keyed-100 and values-1k of `common`, in batches of 16 KiB, 64 KiB and 1 MiB.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
from common import (
    GIB,
    KIB,
    MIB,
    START_MS,
    VALUE,
    VALUE_1K,
    EmptyFile,
    Question,
    a_busy_thread,
    keyed,
    measure,
    scaled,
    timed_rows,
    values,
)
from jvm import KAFKA
from limits import bounds, by_time
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

BATCHES = {"16 KiB": 16 * KIB, "64 KiB": 64 * KIB, "1 MiB": MIB}
SEGMENT_BYTES = 1 * GIB


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[..., tuple[tuple[Any], dict[str, Any]]]]:
    """A `setup` for `measure`: an empty log in a new directory, the one before closed and removed."""
    opened: list[kstore.Log] = []
    path = tmp_path / "bench-0"

    def open_log() -> tuple[tuple[Any], dict[str, Any]]:
        close()
        opened.append(kstore.Log.open(path, segment_bytes=SEGMENT_BYTES))
        return (opened[0],), {}

    def close() -> None:
        if opened:
            opened.pop().close()
            shutil.rmtree(tmp_path)
            tmp_path.mkdir()

    yield open_log
    close()


# --- one at a time ----------------------------------------------------------------------------------------------------

APPEND = Question("one append(value) of 100 bytes, to the page cache", "time", 1.3e-6, (("LMDB put", 2.0),))
APPEND_BESIDE = Question("appends beside a thread that keeps a processor busy", "rate", 200_000)
SINGLE = scaled(200_000)


def append_each(log: kstore.Log, count: int = SINGLE) -> None:
    append = log.append
    for _ in range(count):
        append(VALUE)


def test_append_kstore(benchmark: BenchmarkFixture, fresh: Callable[[], Any]) -> None:
    measure(benchmark, APPEND, "kstore", append_each, operations=SINGLE, setup=fresh)


@pytest.mark.parametrize("language", ["C", "Python"])
def test_bound_of_append(benchmark: BenchmarkFixture, tmp_path: Path, language: str) -> None:
    data = kstore.encode_batch([VALUE])
    empty, write_each = EmptyFile(tmp_path / "written"), bounds.writes([(0, len(data))], SINGLE)

    def from_python(fd: int) -> None:
        pwrite, position = os.pwrite, 0
        for _ in range(SINGLE):
            position += pwrite(fd, data, position)

    run = from_python if language == "Python" else lambda fd: write_each([fd])
    name = f"bound: pwrite alone, from {language}"
    measure(benchmark, APPEND, name, run, operations=SINGLE, setup=empty)
    empty.close()


def test_append_with_headers(benchmark: BenchmarkFixture, fresh: Callable[[], Any]) -> None:
    def run(log: kstore.Log) -> None:
        append = log.append
        for _ in range(SINGLE):
            append(VALUE, headers=[("traceparent", VALUE[:55]), ("content-type", b"application/json")])

    measure(benchmark, APPEND, "kstore, with two headers", run, operations=SINGLE, setup=fresh)


@pytest.mark.parametrize("writemap", [False, True])
def test_append_lmdb(benchmark: BenchmarkFixture, tmp_path: Path, writemap: bool) -> None:
    store = peers.Lmdb(tmp_path / "lmdb", writemap=writemap)
    name = "LMDB put, writing into its map" if writemap else "LMDB put"
    measure(benchmark, APPEND, name, lambda: store.put_each(VALUE, SINGLE), operations=SINGLE)
    store.close()


def test_append_sqlite(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    store = peers.Sqlite(tmp_path / "sqlite")
    measure(benchmark, APPEND, "SQLite insert", lambda: store.insert_each(VALUE, SINGLE), operations=SINGLE)
    store.close()


def test_append_beside_a_busy_thread(benchmark: BenchmarkFixture, fresh: Callable[[], Any]) -> None:
    with a_busy_thread():
        measure(benchmark, APPEND_BESIDE, "kstore", append_each, operations=SINGLE, setup=fresh, rounds=3)


# --- many at once -----------------------------------------------------------------------------------------------------

MANY = scaled(2_000_000)


def many(batches: str, what: str = "(key, value) pairs, keys of 16 bytes") -> Question:
    limit = 15e6 if batches == "16 KiB" else 18e6
    limited = "pairs" in what
    text = f"append_many of {what}, batches of {batches}, file included"
    return Question(
        text, "rate", limit if limited else None, (("aiokafka's builder, no file", 2.0),) if limited else ()
    )


@pytest.mark.parametrize("batches", BATCHES)
def test_append_many_kstore(benchmark: BenchmarkFixture, fresh: Callable[[], Any], batches: str) -> None:
    def run(log: kstore.Log) -> None:
        log.append_many(keyed(MANY), batch_bytes=BATCHES[batches])

    measure(benchmark, many(batches), "kstore", run, operations=MANY, size_bytes=MANY * 116, setup=fresh)


@pytest.mark.parametrize("batches", BATCHES)
def test_append_many_aiokafka(benchmark: BenchmarkFixture, batches: str) -> None:
    count = MANY // 4
    measure(
        benchmark,
        many(batches),
        "aiokafka's builder, no file",
        lambda: peers.aiokafka_build(b"k" * 16, VALUE, count, BATCHES[batches]),
        operations=count,
        size_bytes=count * 116,
        rounds=3,
    )


@pytest.mark.parametrize("batches", BATCHES)
def test_append_many_values_kstore(benchmark: BenchmarkFixture, fresh: Callable[[], Any], batches: str) -> None:
    question = many(batches, "(None, value)")

    def run(log: kstore.Log) -> None:
        log.append_many(values(MANY), batch_bytes=BATCHES[batches])

    measure(benchmark, question, "kstore", run, operations=MANY, size_bytes=MANY * 100, setup=fresh)


@pytest.mark.parametrize("writemap", [False, True])
def test_append_many_values_lmdb(benchmark: BenchmarkFixture, tmp_path: Path, writemap: bool) -> None:
    store = peers.Lmdb(tmp_path / "lmdb", writemap=writemap)
    name = "LMDB putmulti, writing into its map" if writemap else "LMDB putmulti"
    question = many("1 MiB", "(None, value)")
    count = MANY // 2
    measure(benchmark, question, name, lambda: store.put_many(VALUE, count), operations=count, size_bytes=count * 100)
    store.close()


def test_append_many_values_sqlite(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    store = peers.Sqlite(tmp_path / "sqlite")
    question = many("1 MiB", "(None, value)")
    count = MANY // 8
    run = lambda: store.insert_many(VALUE, count)  # noqa: E731
    measure(benchmark, question, "SQLite executemany", run, operations=count, size_bytes=count * 100, rounds=3)
    store.close()


@pytest.mark.parametrize("batches", ["16 KiB", "1 MiB"])
def test_append_many_kilobytes_kstore(benchmark: BenchmarkFixture, fresh: Callable[[], Any], batches: str) -> None:
    count = MANY // 8

    def run(log: kstore.Log) -> None:
        log.append_many(values(count, VALUE_1K), batch_bytes=BATCHES[batches])

    question = many(batches, "(None, value), values of 1 KiB")
    measure(benchmark, question, "kstore", run, operations=count, size_bytes=count * 1024, setup=fresh)


# --- reading ----------------------------------------------------------------------------------------------------------

READ = scaled(2_000_000)
AIOKAFKA = "aiokafka's reader, file included"


@pytest.fixture(params=["16 KiB", "1 MiB"])
def filled(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, Path]:
    path = tmp_path / "bench-0"
    with kstore.Log.open(path, segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(values(READ), batch_bytes=BATCHES[request.param])
        log.flush()
    return request.param, path


def reading(batches: str) -> Question:
    limits = (20e6, ((AIOKAFKA, 4.0), (KAFKA, 1.5))) if batches == "16 KiB" else (None, ())
    return Question(f"records of a segment, .value read, CRC checked, batches of {batches}", "rate", *limits)


def read_each(log: kstore.Log) -> None:
    for record in log.read():
        record.value  # noqa: B018


def test_read_beside_a_busy_thread(benchmark: BenchmarkFixture, filled: tuple[str, Path]) -> None:
    batches, path = filled
    question = Question(
        f"records of a segment beside a thread that keeps a processor busy, batches of {batches}", "rate", None
    )
    with kstore.Log.open(path, mode="r") as log, a_busy_thread():
        run = functools.partial(read_each, log)
        measure(benchmark, question, "kstore", run, operations=READ, size_bytes=READ * 100, rounds=3)


def test_read_kstore(benchmark: BenchmarkFixture, filled: tuple[str, Path]) -> None:
    batches, path = filled
    with kstore.Log.open(path, mode="r") as log:
        measure(
            benchmark,
            reading(batches),
            "kstore",
            read_each,
            operations=READ,
            size_bytes=READ * 100,
            setup=lambda: ((log,), {}),
        )


def test_bound_of_reading(benchmark: BenchmarkFixture, filled: tuple[str, Path]) -> None:
    batches, path = filled
    (segment,) = path.glob("*.log")
    with segment.open("rb") as file:
        run = bounds.rows(file.fileno(), segment.stat().st_size // READ, len(VALUE))
        name = "bound: reading, CRC, copies, bare loop"
        read = measure(benchmark, reading(batches), name, run, operations=READ, size_bytes=READ * 100)
        assert abs(read / READ - 1) < 0.02


def test_unpack_kstore(benchmark: BenchmarkFixture, filled: tuple[str, Path]) -> None:
    batches, path = filled

    def run(log: kstore.Log) -> None:
        for _offset, _timestamp, _key, _value, _headers in log.read():
            pass

    with kstore.Log.open(path, mode="r") as log:
        measure(
            benchmark,
            reading(batches),
            "kstore, all five fields unpacked",
            run,
            operations=READ,
            size_bytes=READ * 100,
            setup=lambda: ((log,), {}),
        )


def test_read_aiokafka(benchmark: BenchmarkFixture, filled: tuple[str, Path]) -> None:
    batches, path = filled
    (segment,) = path.glob("*.log")

    def run() -> None:
        assert sum(map(peers.aiokafka_read, peers.aiokafka_chunks(segment))) == READ

    name = AIOKAFKA
    measure(benchmark, reading(batches), name, run, operations=READ, size_bytes=READ * 100, rounds=3)


# --- by time ----------------------------------------------------------------------------------------------------------

BY_TIME = Question("offset_for_timestamp in a segment of 1 GiB", "time", 4e-6, ((KAFKA, 2.5),))


def test_offset_for_timestamp(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    count = scaled(9_500_000)
    with kstore.Log.open(tmp_path / "bench-0", segment_bytes=2 * GIB - 1) as log:
        log.append_many(timed_rows(count), batch_bytes=16 * KIB)
        wanted = [START_MS + number * 7_919 % count for number in range(20_000)]
        assert log.offset_for_timestamp(wanted[5]).offset == wanted[5] - START_MS  # type: ignore[union-attr]

        def run() -> None:
            lookup = log.offset_for_timestamp
            for timestamp in wanted:
                lookup(timestamp)

        measure(benchmark, BY_TIME, "kstore", run, operations=len(wanted))


@pytest.mark.parametrize("contestant", ["bound: its two reads", "bound: its one read, of entries proved before"])
def test_the_reads_of_a_search_by_time(benchmark: BenchmarkFixture, tmp_path: Path, contestant: str) -> None:
    count = scaled(9_500_000)
    with kstore.Log.open(tmp_path / "bench-0", segment_bytes=2 * GIB - 1) as log:
        log.append_many(timed_rows(count), batch_bytes=16 * KIB)
        table = log.batch_table()
    (segment,) = (tmp_path / "bench-0").glob("*.log")
    starts = table["position"].tolist()
    batch_bytes = int(table["size_bytes"].max())
    places = [starts[number : number + 2] for number in (i * 55 % (len(starts) - 2) for i in range(20_000))]
    with segment.open("rb") as file:
        read = by_time.reads if contestant == "bound: its two reads" else by_time.batches
        run = functools.partial(read, file.fileno(), places, batch_bytes)
        measure(benchmark, BY_TIME, contestant, run, operations=len(places))


# --- to a socket ------------------------------------------------------------------------------------------------------

TO_SOCKET = Question("a fetch of 1 MiB handed to a local socket", "time")


@pytest.mark.parametrize("way", ["send_to: sendfile", "records: read and sendall"])
def test_fetch_to_socket(benchmark: BenchmarkFixture, tmp_path: Path, way: str) -> None:
    """The cost of `FetchResult.send_to`, beside sending the bytes that the fetch has read anyway."""
    here, there = socket.socketpair()
    drain = threading.Thread(target=lambda: all(iter(lambda: there.recv_into(bytearray(1 << 20)), 0)))
    with here, there, kstore.Log.open(tmp_path / "bench-0") as log:
        log.append_many([b"v" * 100] * scaled(100_000), batch_bytes=16 * KIB)
        drain.start()
        result = log.fetch(0, 1 << 20)

        def run() -> None:
            for _ in range(100):
                if way.startswith("send_to"):
                    result.send_to(here)
                else:
                    here.sendall(log.fetch(0, 1 << 20).records)

        measure(benchmark, TO_SOCKET, way, run, operations=100, size_bytes=100 * len(result.records))
        here.shutdown(socket.SHUT_WR)
        drain.join()
