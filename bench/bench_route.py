"""How much slower is a topic of 16 partitions than a single log: routing, splitting, reading as one?

Workloads: keyed-100 and values-100 of `common`. `kstore` is the topic; `one log` is the same through `Log`, the
baseline of the same run. The splitting questions are about append_many's own default batch sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from common import START_MS, VALUE, EmptyFile, Question, begin, keyed, measure, scaled, timed_rows, values
from limits import bounds
from pytest_benchmark.fixture import BenchmarkFixture

from kstore import Store, encode_batch
from kstore._core import RecordIterator
from kstore.codec._pack import Packer
from kstore.config.log_config import LogConfig
from kstore.log.batch_packer import batch_bytes_of
from kstore.store.topics._consume import ConsumerIterator
from kstore.store.topics._partitioner import Router, Splitter, partition_of
from kstore.store.topics.topic_append import OPEN_BYTES, READY_BYTES

COUNT = scaled(1_000_000)
ONE_BY_ONE = scaled(100_000)
PARTITIONS = 16


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path, background=False, file_delete_delay_ms=0) as store:
        store.create_topic("topic", PARTITIONS)
        store.create_topic("one", 1)
        yield store


# --- hashing ----------------------------------------------------------------------------------------------------------

HASH = Question("murmur2 and modulo of 16-byte keys, called one by one", "rate")


def test_hash(benchmark: BenchmarkFixture) -> None:
    keys = [key for key, _ in keyed(COUNT)]

    def run() -> None:
        for key in keys:
            partition_of(key, PARTITIONS)

    measure(benchmark, HASH, "kstore", run, operations=COUNT)


# --- splitting alone --------------------------------------------------------------------------------------------------

ENCODE = Question(
    "keyed-100 split over 16 packers and encoded, nothing written", "rate", against=(("one packer", 0.5),)
)


BATCH_BYTES = batch_bytes_of(LogConfig(), None, PARTITIONS)


def packer(_: int = 0) -> Packer:
    return Packer(BATCH_BYTES, 1 << 20, now_ms=START_MS)


@pytest.mark.parametrize("contestant", ["one packer", "kstore"])
def test_split(benchmark: BenchmarkFixture, contestant: str) -> None:
    def one() -> None:
        packs, source = packer(), keyed(COUNT)
        while packs.pack(source, READY_BYTES):
            packs.clear()

    def split() -> None:
        router = Router(PARTITIONS, sticky_bytes=BATCH_BYTES)
        splitter = Splitter(
            router, packer, limit_bytes=READY_BYTES, max_bytes=OPEN_BYTES, sticky_bytes=router.sticky_bytes
        )
        source = keyed(COUNT)
        while splitter.pack(source):
            for _, packs in splitter.ready:
                packs.clear()

    measure(benchmark, ENCODE, contestant, split if contestant == "kstore" else one, operations=COUNT)


# --- many records -----------------------------------------------------------------------------------------------------

SPLIT = Question("append_many of keyed-100 over 16 partitions", "rate", against=(("one log", 0.85),))
STICK = Question("append_many of values-100 over 16 partitions", "rate", against=(("one log", 0.85),))


@pytest.mark.parametrize("contestant", ["one log", "kstore"])
@pytest.mark.parametrize(("question", "source"), [(SPLIT, keyed), (STICK, values)], ids=["keyed", "values"])
def test_append_many(
    benchmark: BenchmarkFixture, store: Store, question: Question, source: Callable[[int], Any], contestant: str
) -> None:
    size = sum(len(key or b"") + len(value) for key, value in source(COUNT))

    def run() -> None:
        if contestant == "kstore":
            store.append_many("topic", source(COUNT))
        else:
            store.log("one", 0).append_many(source(COUNT))

    def clear() -> None:
        for name in store.topics:
            for partition in store.partitions(name):
                store.log(name, partition).truncate_fully_and_start_at(0)
        store.run_housekeeping()
        for name in store.topics:
            for partition in store.partitions(name):
                begin(store.log(name, partition))

    measure(benchmark, question, contestant, run, operations=COUNT, size_bytes=size, setup=clear)


@pytest.mark.parametrize(("question", "source"), [(SPLIT, keyed), (STICK, values)], ids=["keyed", "values"])
def test_bound_of_append_many(
    benchmark: BenchmarkFixture, tmp_path: Path, question: Question, source: Callable[[int], Any]
) -> None:
    keys = b"".join(key or b"" for key, _ in source(COUNT))
    size = len(keys) + COUNT * len(VALUE)
    encoded = [(key, value, START_MS, None) for key, value in source(1024)]
    stride = len(encode_batch(encoded)) // len(encoded)
    files = [EmptyFile(tmp_path / str(number)) for number in range(PARTITIONS)]
    setup = lambda: (([file()[0][0] for file in files],), {})  # noqa: E731
    run = bounds.spread_in(VALUE, keys, COUNT, stride, PARTITIONS, BATCH_BYTES)
    name = "bound: hashes, copies, CRC, write(2)"
    measure(benchmark, question, name, run, operations=COUNT, size_bytes=size, setup=setup)
    for file in files:
        file.close()


# --- one by one -------------------------------------------------------------------------------------------------------

APPEND = Question("append, one record a call, 16 partitions by key", "time", limit=2e-6)


@pytest.mark.parametrize("contestant", ["one log", "kstore"])
def test_append(benchmark: BenchmarkFixture, store: Store, contestant: str) -> None:
    pairs = list(keyed(ONE_BY_ONE))
    log = store.log("one", 0)

    def run() -> None:
        if contestant == "kstore":
            append = store.append
            for key, value in pairs:
                append("topic", value, key)
        else:
            for key, value in pairs:
                log.append(value, key)

    measure(benchmark, APPEND, contestant, run, operations=ONE_BY_ONE)


# --- reading ----------------------------------------------------------------------------------------------------------

CONSUME = Question("records of 16 partitions from memory as ConsumerRecords", "rate", limit=10e6)
MERGE = Question("the same, merged by timestamp", "rate")


def sources() -> list[tuple[int, RecordIterator]]:
    return [(partition, RecordIterator([(CHUNK, None, 0)])) for partition in range(PARTITIONS)]


def _chunk() -> bytes:
    packer = Packer(1 << 16, 1 << 20, now_ms=START_MS)
    packer.pack(iter(timed_rows(COUNT // PARTITIONS)), 1 << 31)
    return bytes(packer.buffer)


CHUNK = _chunk()


@pytest.mark.parametrize("contestant", ["records alone", "kstore"])
def test_consume(benchmark: BenchmarkFixture, contestant: str) -> None:
    def run() -> None:
        if contestant == "kstore":
            deque(ConsumerIterator("topic", [sources()], by_timestamp=False), maxlen=0)
        else:
            for _, records in sources():
                deque(records, maxlen=0)

    measure(benchmark, CONSUME, contestant, run, operations=COUNT, size_bytes=COUNT * len(VALUE))


def test_merge(benchmark: BenchmarkFixture) -> None:
    def run() -> None:
        deque(ConsumerIterator("topic", [sources()], by_timestamp=True), maxlen=0)

    measure(benchmark, MERGE, "kstore", run, operations=COUNT, size_bytes=COUNT * len(VALUE))
