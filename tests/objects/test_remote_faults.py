"""A prefix whose object store fails or lies at each request of a reading session: the right records or an error."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import KStoreError
from tests.support.objectserver import Fault, Proxy, options
from tests.support.s3directory import S3Directory

BUCKET, PREFIX = "logs", "archive"
URL = f"s3://{BUCKET}/{PREFIX}"
TOPIC = "orders"
START_MS = 1_700_000_000_000
SETTINGS: dict[str, Any] = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
CONFIG = {"segment.bytes": "4000", "index.interval.bytes": "200"}
FAILURES = [Fault(kind) for kind in ("refused", "cut", "short")] + [Fault("status", n) for n in (403, 404, 412, 500)]
LIES = [Fault(kind) for kind in ("altered", "whole", "moved", "shifted", "stale")]


def fill(store: kstore.Store, rng: random.Random, count: int) -> None:
    """Append compressed batches with headers, committed and aborted transactions; commit a group's position."""
    producer = store.producer(transactional_id="loader")
    for number in range(count):
        log = store.log(TOPIC, number % 2)
        rows = [
            (b"key-%d" % rng.randrange(9), rng.randbytes(30) * 4, START_MS + number * 1000 + at, [("h", b"%d" % at)])
            for at in range(5)
        ]
        log.append_many(rows, compression=("none", "lz4", "zstd", "gzip")[number % 4])
        with contextlib.suppress(LookupError), producer.transaction() as transaction:
            transaction.append(TOPIC, b"in a transaction %d" % number, key=b"t", partition=number % 2)
            if number % 3 == 0:
                raise LookupError  # which aborts it
    producer.close()
    store.commit_offsets("readers", {(TOPIC, 0): count, (TOPIC, 1): 1})


def open_store(path: Path) -> kstore.Store:
    store = kstore.Store.open(path, background=False, seed=1, **SETTINGS)
    if TOPIC not in store.topics:
        store.create_topic(TOPIC, 2, config=CONFIG)
    return store


def seen(store: kstore.Store) -> dict[str, Any]:
    """All that a fixed reading session finds in a store."""
    found: dict[str, Any] = {"positions": dict(store.committed_offsets("readers")), "topics": sorted(store.topics)}
    for number in store.partitions(TOPIC):
        log = store.log(TOPIC, number)
        found[f"by time {number}"] = tuple(log.offset_for_timestamp(START_MS + 7_003) or ())
        found[f"committed {number}"] = [tuple(each) for each in log.read(isolation="read_committed")]
        found[f"all {number}"] = [tuple(each) for each in log.read()]
        chunks = list(log.iter_columns())
        found[f"columns {number}"] = [
            (int(offset), int(time), value)
            for chunk in chunks
            for offset, time, value in zip(chunk.offsets, chunk.timestamps, chunk.values, strict=True)
        ]
        found[f"marks {number}"] = (log.log_start_offset, log.log_end_offset, log.last_stable_offset)
    return found


def storage(port: int, **client: Any) -> dict[str, Any]:
    """Options for a server or a proxy on this port; only kstore tries again."""
    given = options(port)
    more = {"client_options": {**given["client_options"], **client}}  # type: ignore[dict-item]
    return {**given, **more, "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=5)}}


def session(port: int, **client: Any) -> dict[str, Any]:
    with kstore.Store.open(URL, mode="r", storage=storage(port, **client)) as store:
        return seen(store)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a small store `data` and its backup in the bucket."""
    place = tmp_path_factory.mktemp("remote")
    (place / BUCKET).mkdir()
    with open_store(place / "data") as store:
        fill(store, random.Random(1), 12)
        with kstore.backup(store, str(place / BUCKET / PREFIX), every=3600) as backup:
            backup.flush()
            fill(store, random.Random(2), 3)
            backup.flush()
    return place


@pytest.fixture(scope="module")
def truth(place: Path) -> dict[str, Any]:
    """What a session finds in the directory itself."""
    with kstore.Store.open(place / "data", mode="r") as store:
        return seen(store)


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[S3Directory]:
    with S3Directory(place) as started:
        yield started


@pytest.fixture
def proxy(server: S3Directory) -> Iterator[Proxy]:
    with Proxy(server.port) as started:
        yield started


def outcome(port: int, truth: dict[str, Any], **client: Any) -> str:
    """Read by a session: "right" or the name of a kstore error. Fails for a wrong row and any other error."""
    try:
        found = session(port, **client)
    except KStoreError as error:
        return type(error).__name__
    assert {name for name in truth if found[name] != truth[name]} == set()
    return "right"


def test_a_prefix_reads_like_its_directory(server: S3Directory, truth: dict[str, Any]) -> None:
    assert session(server.port) == truth


@pytest.mark.parametrize("fault", [*FAILURES, *LIES, Fault("swapped")], ids=lambda f: f"{f.kind}-{f.status}")
def test_a_fault_at_each_request_gives_right_records_or_an_error(
    proxy: Proxy, place: Path, truth: dict[str, Any], fault: Fault
) -> None:
    if fault.kind == "swapped":
        fault = fault._replace(key=f"{PREFIX}/{TOPIC}-0/00000000000000000000.log")
    proxy.remembering = True
    assert session(proxy.port) == truth
    proxy.remembering = False
    count = len(proxy.seen)
    assert count > 10
    outcomes = []
    for number in range(count):
        proxy.seen.clear()
        proxy.plan = lambda request, number=number: fault if request.number == number else None
        outcomes.append(outcome(proxy.port, truth))
    proxy.plan = None
    assert session(proxy.port) == truth
    if fault.kind in ("refused", "cut") or fault == Fault("status", 500):
        assert outcomes[count // 2 :].count("right") > 0  # these are tried again


@pytest.mark.parametrize("fault", [Fault("status", 404), *LIES], ids=lambda f: f.kind)
def test_an_object_that_is_always_wrong_is_an_error_or_read_right(
    proxy: Proxy, truth: dict[str, Any], fault: Fault
) -> None:
    session(proxy.port)
    by_kind = {Path(request.key).suffix: request.key for request in proxy.seen}
    for key in by_kind.values():
        proxy.plan = lambda request, key=key: fault if request.key == key else None
        found = outcome(proxy.port, truth)
        if fault.kind == "status" and key.endswith((".log", ".json")):
            assert found != "right", key


def test_late_answers_are_right(proxy: Proxy, truth: dict[str, Any], rng: random.Random) -> None:
    proxy.plan = lambda request: Fault(delay=rng.random() / 20)
    assert session(proxy.port) == truth


def test_answers_later_than_the_timeout_are_an_error(proxy: Proxy, truth: dict[str, Any]) -> None:
    proxy.plan = lambda request: Fault(delay=0.5) if request.number >= 3 else None
    assert outcome(proxy.port, truth, timeout="100ms") != "right"


@pytest.mark.parametrize("change", ["missing", "altered", "cut", "swapped"])
def test_objects_that_are_damaged_in_the_bucket_are_an_error_or_read_right(
    server: S3Directory, place: Path, truth: dict[str, Any], change: str
) -> None:
    prefix = place / BUCKET / PREFIX
    files = sorted(
        path for path in prefix.rglob("*") if path.is_file() and path.name != ".lock" and path.stat().st_size
    )
    contents = {path: path.read_bytes() for path in files}
    for at, path in enumerate(files):
        data = contents[path]
        if change == "missing":
            path.unlink()
        elif change == "altered":
            path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0x80]) + data[len(data) // 2 + 1 :])
        elif change == "cut":
            path.write_bytes(data[: len(data) // 2])
        else:
            path.write_bytes(contents[files[at - 1]])
        try:
            found = outcome(server.port, truth)
        finally:
            path.write_bytes(data)
        assert found != "right" or path.suffix != ".log", path
    assert session(server.port) == truth


# --- a prefix that changes --------------------------------------------------------------------------------------------


def test_a_look_is_frozen_while_the_prefix_is_written_and_refresh_sees_more(server: S3Directory, place: Path) -> None:
    url = f"s3://{BUCKET}/growing"
    with (
        open_store(place / "growing-data") as store,
        kstore.backup(store, str(place / BUCKET / "growing"), every=0.01) as backup,
    ):
        fill(store, random.Random(3), 3)
        backup.flush()
        over = threading.Event()

        def write() -> None:
            rounds = 0
            while not over.is_set() or rounds < 3:
                fill(store, random.Random(rounds), 2)
                rounds += 1

        with ThreadPoolExecutor(1) as pool, kstore.Store.open(url, mode="r", storage=storage(server.port)) as frozen:
            writing = pool.submit(write)
            try:
                first = seen(frozen)
                looks = [seen(frozen) for _ in range(3)]
            finally:
                over.set()
            writing.result()
            backup.flush()
            assert looks == [first] * 3
            assert seen(frozen) == first
            frozen.refresh()
            now = seen(frozen)
            assert now == seen(store)
            for number in (0, 1):
                before, after = first[f"all {number}"], now[f"all {number}"]
                assert after[: len(before)] == before
                assert len(after) > len(before)


def test_100_readers_of_one_prefix_find_the_same(server: S3Directory, truth: dict[str, Any]) -> None:
    stores = [kstore.Store.open(URL, mode="r", storage=storage(server.port)) for _ in range(100)]
    with ThreadPoolExecutor(16) as pool:
        for found in pool.map(seen, stores):
            assert found == truth
    for store in stores:
        store.close()


# --- memory -----------------------------------------------------------------------------------------------------------

READ_ALL = """
import gc, json, sys
from pathlib import Path
import kstore

def peak():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024

with kstore.Store.open(sys.argv[1], mode="r", storage=json.loads(sys.argv[2])) as store:
    gc.collect()
    before = peak()
    log = store.log("orders", 0)
    found = sum(len(chunk) for chunk in log.iter_columns()), sum(1 for _ in log.read())
print(json.dumps([*found, peak() - before]))
"""


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_bounded_whatever_the_size_of_the_topic(server: S3Directory, place: Path) -> None:
    """400 MB; the reader keeps 48 MiB of what it has fetched, requests as much ahead, and the client has buffers."""
    count, value = 400_000, random.Random(5).randbytes(1000)
    with kstore.Store.open(place / "large-data", background=False) as store:
        store.create_topic(TOPIC, 1, config={"segment.bytes": str(16 << 20)})
        store.log(TOPIC, 0).append_many(((None, value) for _ in range(count)), batch_bytes=64 << 10)
        with kstore.backup(store, str(place / BUCKET / "large"), every=3600) as backup:
            backup.flush()
    reached = {"endpoint": f"http://127.0.0.1:{server.port}", "access_key_id": "a", "secret_access_key": "b"}
    given = json.dumps({**reached, "region": "us-east-1", "allow_http": "true"})
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, f"s3://{BUCKET}/large", given], capture_output=True, text=True, check=True
    )
    *counts, growth = json.loads(done.stdout)
    assert counts == [count, count]
    assert growth < 340 << 20
