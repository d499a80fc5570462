"""What a staging task holds in memory: one budget over all topics and partitions, whatever comes in, without a JVM.

bench/staging_memory.py measures what a process takes in all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kstore import Store
from kstore import spark as ks
from kstore.spark import task_attempt
from kstore.spark.task_attempt import Attempt

BUDGET = 1 << 20
TOPICS, PARTITIONS = 5, 8


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of an attempt's batches after each call, with a budget that fills soon."""
    found: list[int] = []
    plain = Attempt.append

    def append(self: Attempt, *args: Any) -> None:
        plain(self, *args)
        held = sum(pipeline.memory + pipeline.measure() for pipeline in self._pipelines())
        assert held == self._memory
        found.append(held)

    monkeypatch.setattr(task_attempt, "BATCHES_BYTES", BUDGET)
    monkeypatch.setattr(Attempt, "append", append)
    return found


def row(number: int) -> tuple[str, int, bytes]:
    """Topic, partition and value of a row: neighbours go to different logs."""
    return f"t{number % TOPICS}", number // TOPICS % PARTITIONS, b"%d-" % number + b"x" * (number * 7919 % 2000)


def batches(count: int, size: int = 500, *, explicit: bool) -> Any:
    for first in range(0, count, size):
        rows = [row(number) for number in range(first, first + size)]
        columns = {"value": pa.array([each[2] for each in rows]), "topic": pa.array([each[0] for each in rows])}
        if explicit:
            columns["partition"] = pa.array([each[1] for each in rows], pa.int32())
        else:
            columns["key"] = pa.array([b"%d" % each[1] for each in rows])
        yield pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("explicit", [True, False])
def test_one_budget_holds_over_all_topics_and_partitions_and_no_row_is_lost(
    tmp_path: Path, seen: list[int], codec: str | None, explicit: bool
) -> None:
    count = 6000  # some 6 MB in 40 logs, or fewer
    made = ks.stage(tmp_path / "logs", partitions=PARTITIONS, compression=codec, batch_bytes=256 << 10)
    ks.commit(made.root, made.write(batches(count, explicit=explicit)))
    assert max(seen) <= BUDGET
    by_log: dict[tuple[str, int], list[bytes]] = {}
    for number in range(count):
        topic, partition, value = row(number)
        by_log.setdefault((topic, partition), []).append(value)
    with Store.open(made.root, "r") as store:
        found = [
            [record.value for record in store.log(topic, number).read()]
            for topic in store.topics
            for number in store.partitions(topic)
        ]
        sizes = [
            each.size_bytes
            for topic in store.topics
            for number in store.partitions(topic)
            for each in store.log(topic, number).read_batches()
        ]
    if explicit:
        assert [values for values in found if values] == [by_log[each] for each in sorted(by_log)]
    else:  # a key says what the partition column said: rows of one key keep their order
        assert sorted(value for values in found for value in values) == sorted(
            row(number)[2] for number in range(count)
        )
        for values in found:
            numbers = [int(value.partition(b"-")[0]) for value in values]
            assert numbers == sorted(numbers)
    assert len(sizes) < count / 10  # batches end early, and not with each call


def test_what_a_large_record_took_is_given_back(tmp_path: Path, seen: list[int]) -> None:
    config = {"max.message.bytes": 8 << 20}
    made = ks.stage(tmp_path / "logs", topic="t", partitions=16, config=config)
    wanted = [b"%02d" % number + b"x" * (3 << 20) for number in range(16)]
    staged = made.write(
        pa.RecordBatch.from_pydict(
            {"value": pa.array([value, b"small"]), "partition": pa.array([number, 5], pa.int32())}
        )
        for number, value in enumerate(wanted)
    )
    assert max(seen) <= BUDGET
    ks.commit(made.root, staged)
    with Store.open(made.root, "r") as store:
        found = [record.value for number in range(16) for record in store.log("t", number).read()]
    assert [value for value in found if value != b"small"] == wanted
    assert found.count(b"small") == 16


def test_a_budget_that_is_not_reached_ends_no_batch(tmp_path: Path) -> None:
    made = ks.stage(tmp_path / "logs", partitions=PARTITIONS)
    staged = made.write(batches(1000, explicit=True))
    assert {each.batches for each in staged} == {1}
