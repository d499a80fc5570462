"""Logs in an object store: how much is asked for, and how fast it comes, from a server of this machine.

The server (tests/support/s3directory.py) sends files of a directory over the S3 protocol, waits 20 ms before each
answer, and keeps all bodies together to 400 MB/s, which is far below what the loopback gives. It remembers each request
and its times; what is asked for is read there.

`a week`: 10,000 segments of 200 KB in one partition (smaller ones in a quick look), a minute each; 16-byte keys of
1,000 users and values of 100 bytes in batches of 16 KiB. An hour has 60 segments, and each is an object: the GETs of
its data are counted apart from what is asked for to find them: manifest, catalog, listings, indexes.
`copy`: the same partition's directory as `aws s3 sync` copies it.
`2 GiB`: values-100 in batches of 64 KiB, in segments of 64 MiB, in a backup.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common import GIB, KIB, MIB, VALUE, Question, report, scaled, settle, timed_rows
from many_segments import write_backup

import kstore

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.objectserver import options
from tests.support.s3directory import S3Directory, Served, serial_depth

duckdb = pytest.importorskip("duckdb")
obstore = pytest.importorskip("obstore")
pa = pytest.importorskip("pyarrow")

LATENCY, BANDWIDTH = 0.02, 400e6
BUCKET = "logs"
SEGMENTS = 10_000
START_MS, WEEK_MS, HOUR_MS = 1_793_577_600_000, 7 * 24 * 3_600_000, 3_600_000
SEGMENT_MS = WEEK_MS // SEGMENTS
ROWS = scaled(1_700)  # of a segment
SIZE = scaled(2 * GIB)
ROUNDS = 3
PARTITIONS = 16
SCANNED = scaled(2_000_000)

PLACES = {"week": "a backup", "copy": "a plain copy"}
OF_HOUR = f"an hour of a week of {SEGMENTS:,} segments out of"


def about(what: str, place: str, unit: str, limit: float | None = None) -> Question:
    return Question(f"{OF_HOUR} {PLACES[place]}, count by key: {what}", unit, limit)


PLANNED = {place: about("time until the first data are asked for", place, "time") for place in PLACES}
PLANNED["week"] = about("time until the first data are asked for", "week", "time", 1.0)
WHOLE = {place: about("time in all", place, "time") for place in PLACES}
ASKED = {place: about("requests beside listings and data", place, "count", 40) for place in PLACES}
LISTED = {place: about("listings", place, "count") for place in PLACES}
DATA = {place: about("requests for data", place, "count") for place in PLACES}
SHARE = {place: about("bytes sent, as a share of the log", place, "share", 0.01) for place in PLACES}
GETS = "parallel ranged GETs, obstore"
COLUMNS = Question(f"a topic of {SIZE / GIB:.3g} GiB to columns", "bytes", against=((GETS, 0.8),))
DEPTH = {
    place: Question(f"requests one after the other until the first record, {PLACES[place]}", "count", limit)
    for place, limit in (("week", 6), ("copy", None))
}
FIRST = {place: Question(f"time until the first record, {PLACES[place]}", "time") for place in PLACES}
LOCAL = "the same from a local disk"
SCAN = Question("ks.scan of 16 partitions in an object store, two executors", "rate", against=((LOCAL, 0.7),))


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """An empty directory, in memory where there is room: to roll 10,000 times on a disk takes minutes."""
    shared = "/dev/shm"
    roomy = os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 4 * SIZE
    with tempfile.TemporaryDirectory(dir=shared if roomy else None) as path:
        (Path(path) / BUCKET).mkdir()
        yield Path(path)


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[S3Directory]:
    with S3Directory(root, latency=LATENCY, bandwidth=BANDWIDTH) as started:
        yield started


@pytest.fixture(scope="module")
def week(root: Path) -> int:
    """Write the week and its backup; the bytes of its log."""
    keys = pa.array([b"user-%011d" % number for number in range(1000)] * (ROWS // 1000 + 1), pa.binary())
    values = pa.array([VALUE] * ROWS, pa.binary())
    with kstore.Store.open(root / BUCKET / "copy", background=False) as store:
        store.create_topic("orders", 1)
        log = store.log("orders", 0)
        for number in range(SEGMENTS):
            first = START_MS + number * SEGMENT_MS
            times = first + np.arange(ROWS) * SEGMENT_MS // ROWS
            log.append_columns(values, keys=keys.slice(0, ROWS), timestamps=times, batch_bytes=16 * KIB)
            log.roll()
    partition = root / BUCKET / "copy" / "orders-0"
    write_backup(partition, root / BUCKET / "week")
    return sum(path.stat().st_size for path in partition.glob("*.log"))


def url(place: str) -> str:
    return f"s3://{BUCKET}/{place}"


def is_data(request: Served) -> bool:
    return request.key.endswith(".log") and request.kind == "get"


# --- an hour of a week ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_an_hour(server: S3Directory, week: int, place: str) -> None:
    first = START_MS + 80 * HOUR_MS
    low, high = (datetime.fromtimestamp(each / 1000, UTC) for each in (first, first + HOUR_MS))
    condition = f"timestamp >= timestamptz '{low}' and timestamp < timestamptz '{high}'"
    planned, whole = [], []
    for _ in range(ROUNDS + 1):
        server.forget()
        begun = time.monotonic()
        given = kstore.dataset(url(place), "orders", storage=options(server.port), max_lateness=0)
        connection = duckdb.connect()
        connection.register("given", given)
        rows = connection.execute(f"select key, count(*) from given where {condition} group by key").fetchall()
        whole.append(time.monotonic() - begun)
        connection.close()
        assert abs(sum(count for _, count in rows) - ROWS * HOUR_MS / SEGMENT_MS) <= ROWS * 0.01 + 2
        requests = server.requests()
        data = [each for each in requests if is_data(each)]
        planned.append(min(each.begun for each in data) - begun)
        del given
    listings = sum(each.kind == "list" for each in requests)
    report(PLANNED[place], "kstore", planned[1:], operations=1)
    report(WHOLE[place], "kstore", whole[1:], operations=1)
    if listings:
        report(LISTED[place], "kstore", [listings], operations=1)
    report(ASKED[place], "kstore", [len(requests) - len(data) - listings], operations=1)
    report(DATA[place], "kstore", [len(data)], operations=1)
    report(SHARE[place], "kstore", [sum(each.sent_bytes for each in requests)], operations=week)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("week")
def test_first_record(server: S3Directory, place: str) -> None:
    seconds = []
    for _ in range(ROUNDS):
        server.forget()
        begun = time.perf_counter()
        with kstore.Store.open(url(place), mode="r", storage=options(server.port)) as store:
            next(iter(store.log("orders", 0).read()))
            seconds.append(time.perf_counter() - begun)
            requests = server.requests()
    report(DEPTH[place], "kstore", [serial_depth(requests)], operations=1)
    report(FIRST[place], "kstore", seconds, operations=1)


# --- a whole topic ----------------------------------------------------------------------------------------------------


def test_columns(server: S3Directory, root: Path) -> None:
    rows = SIZE // (len(VALUE) + 10)
    with kstore.Store.open(root / "large", background=False) as store:
        store.create_topic("orders", 1, config={"segment.bytes": str(max(scaled(64 * MIB), MIB))})
        store.log("orders", 0).append_many(timed_rows(rows), batch_bytes=64 * KIB)
        with kstore.backup(store, str(root / BUCKET / "large"), every=3600) as backup:
            backup.flush()
    shutil.rmtree(root / "large")
    settle(root / BUCKET / "large")
    s3 = obstore.store.S3Store(BUCKET, **options(server.port))
    objects = [(each["path"], each["size"]) for page in obstore.list(s3, "large") for each in page]
    ranges = [
        (path, start, min(start + 8 * MIB, size))
        for path, size in sorted(objects)
        if path.endswith((".log", ".round"))
        for start in range(0, size, 8 * MIB)
    ]
    total = sum(end - start for _, start, end in ranges)

    def gets() -> None:
        with ThreadPoolExecutor(16) as pool:
            got = pool.map(lambda each: len(obstore.get_range(s3, each[0], start=each[1], end=each[2])), ranges)
            assert sum(got) == total

    def columns() -> None:
        with kstore.Store.open(url("large"), mode="r", storage=options(server.port)) as store:
            assert sum(len(chunk) for chunk in store.log("orders", 0).iter_columns()) == rows

    seconds = by_turns({"kstore": columns, GETS: gets})
    for name, rounds in seconds.items():
        report(COLUMNS, name, rounds, operations=1, size_bytes=total)


def by_turns(contestants: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """The seconds of each round of each contestant; a first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS + 1):
        for name, act in contestants.items():
            begun = time.perf_counter()
            act()
            seconds[name].append(time.perf_counter() - begun)
    return {name: rounds[1:] for name, rounds in seconds.items()}


# --- Spark ------------------------------------------------------------------------------------------------------------


def test_scan(server: S3Directory, root: Path) -> None:
    """Latency only: bandwidth is not the bound."""
    pytest.importorskip("pyspark")
    from spark_common import to_nowhere

    from kstore import spark as ks
    from tests.spark.spark_session import start

    with kstore.Store.open(root / "spark", background=False) as store:
        store.create_topic("orders", PARTITIONS)
        for number in range(PARTITIONS):
            store.log("orders", number).append_many(timed_rows(SCANNED // PARTITIONS), batch_bytes=64 * KIB)
        with kstore.backup(store, str(root / BUCKET / "spark"), every=3600) as backup:
            backup.flush()
    server.set(latency=LATENCY, bandwidth=0)
    storage = {name: value for name, value in options(server.port).items() if name != "client_options"}
    storage["allow_http"] = True
    session = start("local-cluster[2,1,1024]")
    try:
        seconds = by_turns({
            "kstore": lambda: to_nowhere(ks.scan(session, url("spark"), subscribe="orders", storage=storage)),
            LOCAL: lambda: to_nowhere(ks.scan(session, str(root / "spark"), subscribe="orders")),
        })  # fmt: skip
    finally:
        session.stop()
        server.set(latency=LATENCY, bandwidth=BANDWIDTH)
    for name, rounds in seconds.items():
        report(SCAN, name, rounds, operations=SCANNED)
