"""No call leaves memory behind, whether it succeeds or raises: Python's objects and our blocks are counted.

`make leaks` runs this under LeakSanitizer, too, which sees what neither count does.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kstore
from kstore.columns._columns import COLUMN_NAMES, LAYOUTS, memory_in_use
from tests.conftest import sanitized
from tests.search import fuzzing, leaks, test_fuzz
from tests.support import arrowstructs as arrow

# LeakSanitizer looks when the process ends, and takes its time: there each call is made a few times, and not counted.
COUNTED = not sanitized()
ROUNDS, WARM = (5, 3) if COUNTED else (1, 0)  # rounds that are warm have filled caches
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ROWS = [(b"k%d" % i, b"value %d" % i, None, [("h", b"x")]) for i in range(40)]


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition, segment_bytes=20_000, segment_index_bytes=1200, index_interval_bytes=500) as log:
        for codec in CODECS:
            log.append_many(ROWS, compression=codec)
        yield log


@pytest.fixture
def store(root: Path) -> Iterator[kstore.Store]:
    settings: dict[str, Any] = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    with kstore.Store.open(root, background=False, segment_index_bytes=1200, **settings) as store:
        store.create_topic("t", 2)
        store.append_many("t", ROWS)
        yield store


def blocks() -> tuple[int, int]:
    """Python's objects that are alive, and our blocks that have a holder."""
    gc.collect()
    return sys.getallocatedblocks(), memory_in_use()[0]


@pytest.fixture(autouse=True)
def nothing_else_is_collected() -> Iterator[None]:
    """What there was before stays: a collection looks at what a test makes alone, and takes no time.

    Nothing is logged, as pytest keeps each message.
    """
    logging.disable()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)


def keeps_nothing(act: Callable[[], object], *, times: int = 20) -> None:
    """See that repeating a call makes nothing grow: twenty calls that each leave one object would show.

    Caches of Python and of other libraries may grow in some rounds; what a call leaves behind grows in each.
    """
    growth: list[tuple[int, int]] = []
    for number in range(WARM + (4 * ROUNDS if COUNTED else ROUNDS)):
        before = blocks()
        for _ in range(times if COUNTED else 2):
            act()
        after = blocks()
        if number >= WARM:
            growth.append((after[0] - before[0], after[1] - before[1]))
        if len(growth) >= ROUNDS and min(growth)[0] < times and min(held for _, held in growth) <= 0:
            break
    assert not COUNTED or min(objects for objects, _ in growth) < times, growth
    assert not COUNTED or min(held for _, held in growth) <= 0, growth


def refused(act: Callable[[], object], *errors: type[BaseException]) -> Callable[[], None]:
    def call() -> None:
        with pytest.raises(errors or kstore.KStoreError):
            act()

    return call


REPORT = """
Direct leak of 24 byte(s) in 1 object(s) allocated from:
    #0 0x7f0 in __interceptor_malloc asan_malloc_linux.cpp:69
    #1 0x7f1 in ks_block_new kstore/c/columns/blocks.c:120
    #2 0x7f2 in __pyx_pw_6kstore_11_columnread (/build/sanitize/lib/kstore/_columnread.so+0x1)
    #3 0x7f3 in _PyEval_EvalFrameDefault Python/ceval.c:5376

Indirect leak of 56 byte(s) in 1 object(s) allocated from:
    #0 0x7f0 in __interceptor_malloc asan_malloc_linux.cpp:69
    #1 0x7f1 in PyType_GenericAlloc Objects/typeobject.c:1
    #2 0x7f3 in _PyEval_EvalFrameDefault Python/ceval.c:5376
    #3 0x7f4 in __pyx_pymod_exec__columns build/sanitize/c/kstore/_columns.c:1

SUMMARY: AddressSanitizer: 80 byte(s) leaked in 2 allocation(s).
"""


def test_a_leak_is_ours_where_our_module_allocates_without_python_in_between() -> None:
    found = leaks.leaks(REPORT)
    assert [what.split(" byte")[0] for what, _ in found] == ["Direct leak of 24", "Indirect leak of 56"]
    assert [leaks.is_ours(stack) for _, stack in found] == [True, False]


# ---- reading


READS: dict[str, Callable[[kstore.Log], object]] = {
    "records": lambda log: list(log.read()),
    "records, given up": lambda log: next(log.read()),
    "batches": lambda log: [(repr(batch), list(batch)) for batch in log.read_batches()],
    "fetch": lambda log: log.fetch(0, 10_000),
    "times": lambda log: (log.offset_for_timestamp(0), log.max_timestamp()),
    "table of batches": lambda log: log.batch_table(),
    "stats": lambda log: (log.stats(), log.segments, log.producer_states()),
}


@pytest.mark.parametrize("name", READS)
def test_reading_keeps_nothing(log: kstore.Log, name: str) -> None:
    keeps_nothing(lambda: READS[name](log))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_keep_nothing(log: kstore.Log, layout: Any) -> None:
    def read() -> None:
        found = log.read_columns(layout=layout, columns=COLUMN_NAMES)
        assert list(found.keys)
        assert found.headers[3]
        found.__arrow_c_array__()  # whose capsules are dropped
        chunks = log.iter_columns(layout=layout, max_records=30)
        next(chunks)  # and is given up
        log.__arrow_c_stream__()

    keeps_nothing(read)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_columns_that_threads_read_together_keep_nothing(partition: Path, layout: Any, codec: str) -> None:
    """Long enough for cells and chunks, some given up half-way; and a few rows in room that was made for many."""
    with kstore.Log.open(partition) as log:
        values = [b"value %d" % (i % 1000) * 8 for i in range(60_000)]
        log.append_columns(values, compression=codec, batch_bytes=100_000)

        def read() -> None:
            whole = log.read_columns(layout=layout)
            assert len(whole) == 60_000
            chunks = log.iter_columns(layout=layout, max_bytes=1 << 20)
            kept = [next(chunks) for _ in range(2)]
            del whole, chunks
            assert kept[1].values[0] is not None
            assert len(log.read_columns(59_000, layout=layout, max_records=900)) == 900

        keeps_nothing(read, times=3)


@pytest.mark.parametrize("target", ["batches", "records", "files", "codecs", "indexes", "snapshots", "columns_in"])
def test_what_parsers_refuse_keeps_nothing(target: str) -> None:
    inputs = fuzzing.corpus(target)[: 40 if COUNTED else 8] + test_fuzz.CORPUS[:1]

    def parse() -> None:
        for data in inputs:
            fuzzing.TARGETS[target](data)

    keeps_nothing(parse, times=2)


# ---- writing


WRITES: dict[str, Callable[[kstore.Log], object]] = {
    "a record": lambda log: log.append(b"v", b"k", headers=[("h", b"x"), ("i", None)]),
    "many, in each codec": lambda log: [log.append_many(ROWS, compression=codec) for codec in CODECS],
    "columns": lambda log: log.append_columns([b"a", None, b"c"], keys=np.array([b"x", b"y", b"z"])),
    "Arrow columns": lambda log: log.append_columns(arrow.views([b"a", None, b"c" * 20])),
    "a batch": lambda log: log.append_batch(kstore.encode_batch([b"v"] * 3, compression="lz4")),
    "a roll": lambda log: log.roll(),
}
REFUSED: dict[str, Callable[[kstore.Log], object]] = {
    "text": lambda log: log.append("text"),  # type: ignore[arg-type]
    "text among many": lambda log: log.append_many([b"v", "text"]),
    "a record too large": lambda log: log.append(b"x" * 30_000),
    "many too large": lambda log: log.append_many([b"x" * 30_000, b"y"]),
    "a damaged batch": lambda log: log.append_batch(test_fuzz.with_crc(kstore.encode_batch([b"v"])[:-1])),
    "columns of two lengths": lambda log: log.append_columns([b"a"], keys=[b"k", b"l"]),
    "an unsound array": lambda log: log.append_columns(arrow.Array("z", 5, [None, b"\xff" * 24, b""])),
    "an unknown type": lambda log: log.append_columns(arrow.Array("+s", 1, [None])),
    "an offset out of range": lambda log: log.read(10**9),
}


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize("name", WRITES)
def test_writing_keeps_nothing(log: kstore.Log, name: str) -> None:
    """Segments are objects, and are cut away again."""
    end = log.log_end_offset

    def write() -> None:
        WRITES[name](log)
        log.truncate_to(end)

    keeps_nothing(write)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_keeps_nothing(log: kstore.Log, name: str) -> None:
    keeps_nothing(refused(lambda: REFUSED[name](log), kstore.KStoreError, TypeError, ValueError))


@pytest.mark.usefixtures("no_syncs")
def test_opening_and_closing_keep_nothing(partition: Path) -> None:
    def open_it() -> None:
        with kstore.Log.open(partition, segment_index_bytes=1200) as log:
            log.append(b"v")
            log.truncate_to(0)
        with kstore.Log.open(partition, "r") as log:
            list(log.read())

    keeps_nothing(open_it)


# ---- a store


@pytest.mark.usefixtures("no_syncs")
def test_producers_transactions_and_consumers_keep_nothing(store: kstore.Store) -> None:
    def work() -> None:
        with store.producer(transactional_id="x") as producer:
            with producer.transaction() as txn:
                txn.append("t", b"v", partition=0)
                txn.commit_offsets("g", {("t", 0): 1})
            with suppress(KeyError), producer.transaction() as txn:
                txn.append_many("t", [b"v"] * 3, partition=0)
                raise KeyError
        with store.consumer("g", ["t"]) as consumer:
            for _, _record in zip(range(5), consumer, strict=False):
                pass
            consumer.commit()
        list(store.read("t", isolation="read_committed"))
        for number, columns in store.read_columns("t"):
            assert number >= 0
            assert len(columns) >= 0
        store.log("t", 0).truncate_to(5)

    keeps_nothing(work, times=10)
