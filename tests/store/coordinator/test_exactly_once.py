"""The loop of docs/transactions.md, its process killed over and over at random moments: each record counts once."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kstore
from tests.conftest import SEED

PAGE = Path(__file__).parents[3] / "docs" / "transactions.md"
LIVES = 4
RECORDS = 300


def the_loop() -> str:
    (found,) = re.findall(
        r"^```python\n(def run\(store\):\n.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return str(found)


def begin(root: Path) -> subprocess.Popen[str]:
    """A process that runs the loop on what is there, until it is through; it says when it begins."""
    code = f"import itertools, kstore\n{the_loop()}\n" + (
        f"store = kstore.Store.open({str(root)!r})\nprint('begins', flush=True)\nrun(store)\nstore.close()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )


def markers(root: Path) -> int:
    """How many transactions the loop has ended so far, counted once for each partition that they wrote to."""
    with kstore.Store.open(root, "r") as store:
        return sum(batch.is_control for n in (0, 1) for batch in store.log("totals", n).read_batches())


def appended(store: kstore.Store, start: int) -> None:
    """More to read, and something that was aborted."""
    with store.producer(transactional_id="source") as producer:
        for i in range(start, start + RECORDS, 20):
            with producer.transaction() as txn:
                txn.append_many("orders", [(b"%d" % (n % 11), b"%d" % n) for n in range(i, i + 20)])
            if i % 100 == 0:
                lost = producer.transaction()
                lost.append("orders", b"aborted", key=b"5")
                lost.abort()


@pytest.fixture
def killed(root: Path) -> list[float]:
    """Lives of the loop, each ended by SIGKILL a random time after it began; how long they lasted."""
    rng = random.Random(SEED)
    with kstore.Store.open(root) as store:
        store.create_topic("orders", 3)
        store.create_topic("totals", 2)
    lasted = []
    for life in range(LIVES):
        with kstore.Store.open(root) as store:
            appended(store, life * RECORDS)
        process = begin(root)
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        if life == LIVES - 1:  # on a slow machine the others may end before their first transaction
            while not markers(root) and process.poll() is None:
                time.sleep(0.001)
        lasted.append(rng.random() * 0.06)
        time.sleep(lasted[-1])
        process.kill()
        process.wait()
        process.stdout.close()
    return lasted


def test_each_record_counts_once_however_often_the_process_is_killed(root: Path, killed: list[float]) -> None:
    interrupted = markers(root)
    last = begin(root)
    last.communicate(timeout=240)
    assert last.returncode == 0
    assert interrupted > 0  # it came somewhere, and was killed on the way
    with kstore.Store.open(root) as store:
        orders = list(store.read("orders", isolation="read_committed"))
        totals = list(store.read("totals", isolation="read_committed"))
        assert len(orders) == LIVES * RECORDS
        expected = {bytes(b"%d" % key): [r.value for r in orders if r.key == b"%d" % key] for key in range(11)}
        found = {key: [(r.value or b"").removeprefix(b"seen ") for r in totals if r.key == key] for key in expected}
        assert found == expected  # each once, and in their order
        for number in (0, 1):
            log = store.log("totals", number)
            assert log.last_stable_offset == log.log_end_offset
