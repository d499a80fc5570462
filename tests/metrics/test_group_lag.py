"""`kstore_group_lag`: the log end minus the position, in all partitions of the topics that a group reads."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import kstore
from kstore.metrics import metric_families as f
from kstore.metrics.metric_samples import samples_of
from kstore.store.coordinator.group_lag import total_lag
from kstore.store.store import group_lags_of
from tests.conftest import ManualClock

Place = tuple[str, int]
Lags = dict[tuple[str, str, int], object]
PARTITIONS = {"t": 3, "u": 2, "v": 1}
PLACES = [(topic, number) for topic, count in PARTITIONS.items() for number in range(count)]


def lags(store: kstore.Store) -> Lags:
    """The lags of the exporters, which are those of `stats`."""
    found: Lags = {}
    for sample in samples_of(store):
        if sample.family is f.GROUP_LAG:
            group, topic, number = sample.labels
            found[group, topic, int(number)] = sample.value
    told = store.stats()["group_lag"]
    assert {(group, place): lag for group, places in told.items() for place, lag in places.items()} == {
        (group, f"{topic}-{number}"): lag for (group, topic, number), lag in found.items()
    }
    return found


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_partition_without_a_commit_and_one_nobody_used_count(tmp_path: Path, mode: Literal["a", "r"]) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", 3)
        store.create_topic("unread", 1)
        for number in range(3):
            store.append_many("t", [b"v"] * 10, partition=number)
        store.log("t", 2).delete_records(4)
        store.commit_offsets("g", {("t", 0): 3})
        store.commit_offsets("h", {("t", 2): 1, ("gone", 0): 5})
        expected = {("g", "t", 0): 7, ("g", "t", 1): 10, ("g", "t", 2): 6}
        expected |= {("h", "t", 0): 10, ("h", "t", 1): 10, ("h", "t", 2): 9}
        assert lags(store) == expected
    with kstore.Store.open(tmp_path / "data", mode, background=False) as store:
        assert lags(store) == expected


def test_a_position_above_the_log_end_has_a_negative_lag_as_in_kafkas_tool(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", 2)
        for number in range(2):
            store.append_many("t", [b"v"] * 5, partition=number)
        store.commit_offsets("g", {("t", 0): 5, ("t", 1): 3})
        store.log("t", 0).truncate_to(1)
        assert lags(store) == {("g", "t", 0): -4, ("g", "t", 1): 2}
        [(_, found)] = group_lags_of(store)
        assert total_lag(found) == 2


def test_positions_that_cannot_be_read_leave_the_other_statistics(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.commit_offsets("g", {("t", 0): 5})
        [log] = [store.log(topic, number) for topic in store.topics for number in store.partitions(topic)]
        log.append(b"a value", key=b"\x00\x01")  # the begin of the key of a position
        with pytest.raises(kstore.CorruptRecordError):
            store.committed_offsets("g")
        stats = store.stats()
        assert (stats["group_lag"], stats["role"]) == ({}, "leader")


def test_a_reader_counts_what_another_store_appends(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", 1)
        store.append("t", b"v")
        store.commit_offsets("g", {("t", 0): 1})
        with kstore.Store.open(tmp_path / "data", "r") as reader:
            assert lags(reader) == {("g", "t", 0): 0}
            store.append_many("t", [b"v"] * 4)
            assert lags(reader) == {("g", "t", 0): 4}


def test_a_partition_that_is_missing_hides_no_other_lag(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", 2)
        for number in range(2):
            store.append("t", b"v", partition=number)
        store.commit_offsets("g", {("t", 0): 0, ("t", 1): 0})
        store.flush()
    shutil.rmtree(tmp_path / "data" / "t-0")
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        assert lags(store) == {("g", "t", 1): 1}


def test_lags_are_those_of_a_model(
    tmp_path: Path, clock: ManualClock, rng: random.Random, budget: Callable[[float], float]
) -> None:
    root = tmp_path / "data"
    start, end = dict.fromkeys(PLACES, 0), dict.fromkeys(PLACES, 0)
    positions: dict[str, dict[Place, int]] = {}

    def expected() -> Lags:
        return {
            (group, *place): end[place] - read.get(place, start[place])
            for group, read in positions.items()
            for place in PLACES
            if any(place[0] == topic for topic, _ in read)
        }

    store = kstore.Store.open(root, clock=clock, background=False)
    try:
        for topic, count in PARTITIONS.items():
            store.create_topic(topic, count)
        deadline = time.monotonic() + budget(3)
        while time.monotonic() < deadline:
            place = topic, number = rng.choice(PLACES)
            action = rng.choice(["append", "append", "commit", "commit", "delete", "restart"])
            if action == "append":
                count = rng.randrange(1, 5)
                store.append_many(topic, [b"v"] * count, partition=number)
                end[place] += count
            elif action == "commit":
                group = rng.choice("gh")
                offset = rng.randrange(end[place] + 2)
                store.commit_offsets(group, {place: offset})
                positions.setdefault(group, {})[place] = offset
            elif action == "delete":
                start[place] = rng.randrange(start[place], end[place] + 1)
                store.log(topic, number).delete_records(start[place])
            else:
                store.close()
                store = kstore.Store.open(root, clock=clock, background=False)
            with kstore.Store.open(root, "r", clock=clock) as reader:
                assert lags(reader) == expected()
            if rng.random() < 0.5:
                assert lags(store) == expected()
    finally:
        store.close()
