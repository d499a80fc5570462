"""Compare-and-append on a counter, by threads and by processes in turns: no update is lost, and no writer starves.

Each round of a writer looks at the newest value, then appends that value plus one with `expected_offset`. A bound shows
without luck that no writer starves: an append is refused only if another one was stored after the look, so a writer is
refused at most as often as the others store something. They store a fixed number of records, so each writer ends,
whatever the scheduler does. The first looks of all are taken before any append: then exactly one is stored.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.conftest import BUDGET
from tests.support import counting
from tests.support.counting import Append, Counter, look

THREADS, PROCESSES = 8, 4
ROUNDS = max(int(100 * BUDGET), 5)  # of each thread
TURNS = max(int(6 * BUDGET), 2)  # of each process: each opens the log, waits for the lock, syncs and closes

pytestmark = pytest.mark.timeout(300 * max(BUDGET, 1))


def check(log: kstore.Log, reports: list[dict[str, Any]], rounds: int) -> None:
    """Every update is there once, each writer made all of its own, and was refused no more often than by the bound."""
    records = list(log.read())
    assert [int(record.value or b"") for record in records] == list(range(len(reports) * rounds + 1))
    got = sorted(offset for report in reports for offset in report["offsets"])
    assert got == [record.offset for record in records[1:]]
    assert sum(not report["first_was_refused"] for report in reports) == 1
    for report in reports:
        assert len(report["offsets"]) == rounds
        assert report["refused"] <= log.log_end_offset - 1 - rounds  # what the others stored, markers included


def ways(store: kstore.Store) -> Iterator[Append]:
    """For each thread its own: every call that takes an `expected_offset`."""
    log = store.log("counter", 0)
    yield lambda value, end: log.append(value, expected_offset=end)
    yield lambda value, end: log.append(value, headers=[("h", b"")], expected_offset=end)
    yield lambda value, end: log.append_many([value], atomic=True, expected_offset=end).first_offset
    yield lambda value, end: log.append_columns([value], expected_offset=end).first_offset
    yield lambda value, end: log.append_columns([value], compression="lz4", expected_offset=end).first_offset
    yield lambda value, end: store.append("counter", value, partition=0, expected_offset=end).offset
    for number in range(2):
        producer = store.producer(transactional_id=f"counter-{number}")

        def in_a_transaction(value: bytes, end: int, producer: kstore.TransactionalProducer = producer) -> int:
            with producer.transaction() as txn:
                return txn.append("counter", value, partition=0, expected_offset=end).offset

        yield in_a_transaction


@pytest.mark.usefixtures("no_syncs")
def test_threads_lose_no_update_and_none_of_them_starves(root: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("counter")
        store.append("counter", b"0", partition=0)
        log = store.log("counter", 0)
        counters = [Counter(lambda: look(log), way) for way in ways(store)]
        all_have_looked = threading.Barrier(THREADS)
        threads = [threading.Thread(target=each.count, args=(ROUNDS, all_have_looked.wait)) for each in counters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(log, [each.report() for each in counters], ROUNDS)


@pytest.mark.parametrize("kind", ["log", "store"])
def test_processes_that_take_turns_by_the_lock_lose_no_update_and_none_starves(root: Path, kind: str) -> None:
    path = root / "counter-0"
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("counter")
        store.append("counter", b"0")
    program = [sys.executable, counting.__file__, str(path), kind, str(TURNS)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) for _ in range(PROCESSES)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "looked\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        reports = [json.loads(process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    with kstore.Log.open(path, "r") as log:
        check(log, reports, TURNS)
