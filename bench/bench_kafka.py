"""Kafka's own log in the JVM, with the workloads of the other files, so that the ratio comes from one run.

Needs `make jvm` (a JDK and Maven), and is skipped without it. Each question runs in a Java process of its own, which
measures itself after its hot loops are compiled (`jvm.py`).
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_index import BY_OFFSET
from bench_log import APPEND, BY_TIME, reading
from bench_recovery import CLEAN, LAST, RECOVERY, UNCLEAN
from common import KIB, MIB, START_MS, VALUE, EmptyFile, Question, report, scaled
from jvm import KAFKA, Turns, ask
from limits import bounds

import kstore
from tests.kafka.kafka_jvm import why_missing

ROUNDS = 5
READY = {
    size: Question(f"a ready batch of {size} appended as a leader", "time", against=((KAFKA, 1.0),))
    for size in ("one record", "16 KiB", "1 MiB")
}


def ready(records: int) -> bytes:
    """A batch of values of 100 bytes a millisecond apart, as Kafka's side makes it."""
    return kstore.encode_batch([(None, VALUE, START_MS + number, None) for number in range(records)])


def records_in(size: int) -> int:
    """How many records fill a batch of that many bytes."""
    count = (size - 61) // 114
    while len(ready(count + 1)) <= size:
        count += 1
    return count


# Records of 100 bytes in a batch of that size, how many batches a round appends, and Kafka's name of the question.
READY_SHAPE = {
    "one record": (1, 300_000, "append-one"),
    "16 KiB": (records_in(16 * KIB), 30_000, "append-16k"),
    "1 MiB": (records_in(MIB), 500, "append-1m"),
}
QUESTIONS: dict[str, Question] = {
    "read-16k": reading("16 KiB"),
    "read-1m": reading("1 MiB"),
    "offset-for-timestamp": BY_TIME,
    "recover": RECOVERY,
    "open-clean": CLEAN,
    "open-last": LAST,
    "open-unclean": UNCLEAN,
    "index-lookup": BY_OFFSET,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_kafka(tmp_path: Path, name: str) -> None:
    ask(name, tmp_path, QUESTIONS[name])


class Appends:
    """A ready batch appended so many times to a new log, which is then closed and deleted, as Kafka's is."""

    def __init__(self, path: Path, data: bytes, count: int) -> None:
        self._path, self._data, self._count = path, data, count

    def __call__(self) -> float:
        with kstore.Log.open(self._path) as log:
            append, data = log.append_batch, self._data
            began = time.perf_counter()
            for _ in range(self._count):
                append(data)
            seconds = time.perf_counter() - began
        shutil.rmtree(self._path)
        return seconds


class BareAppends:
    """The same bytes given their offset, summed up and written to a new file."""

    def __init__(self, path: Path, data: bytes, records: int, count: int) -> None:
        self._file, self._write_each = EmptyFile(path), bounds.ready_batches(data, records, count)

    def __call__(self) -> float:
        (fd,), _ = self._file()
        began = time.perf_counter()
        self._write_each(fd)
        seconds = time.perf_counter() - began
        self._file.close()
        return seconds


@pytest.mark.parametrize("size", READY)
def test_ready_batches_by_turns_beside_their_bound(tmp_path: Path, size: str) -> None:
    """Each round deletes its files, so that the next one, whose ever it is, writes into the same pages."""
    records, whole, name = READY_SHAPE[size]
    data, count = ready(records), scaled(whole)
    with contextlib.ExitStack() as stack:
        turns: dict[str, Callable[[], float]] = {"kstore": Appends(tmp_path / "bench-0", data, count)}
        if why_missing() is None:
            kafka = stack.enter_context(Turns(name, tmp_path))
            assert (kafka.operations, kafka.size_bytes) == (count, count * len(data))
            turns[KAFKA] = kafka
        turns["bound: CRC and pwrite"] = BareAppends(tmp_path / "written", data, records, count)
        rounds: dict[str, list[float]] = {contestant: [] for contestant in turns}
        for _ in range(1 + ROUNDS):
            for contestant, turn in turns.items():
                rounds[contestant].append(turn())
    # An append of Kafka's has one answer to two questions: a value of one's own, and a ready batch.
    for contestant, (_, *measured) in rounds.items():
        questions = [READY[size]] + [APPEND] * (contestant == KAFKA and records == 1)
        for question in questions:
            report(question, contestant, measured, operations=count, size_bytes=count * len(data))
