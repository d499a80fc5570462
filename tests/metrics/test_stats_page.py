"""docs/metrics.md has each key that `stats()` answers, in every state, and no other; and so have the types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

import kstore
from tests.conftest import ManualClock
from tests.test_docs import REPOSITORY, text_of

PAGE = REPOSITORY / "docs" / "metrics.md"


def keys_of(section: str, first: str = "key") -> set[str]:
    """The first column of the table with this heading, in a section of the page."""
    text = text_of(PAGE).split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = text.split(f"| {first} |", 1)[1].splitlines()[2:]
    keys = []
    for row in rows:
        if not row.startswith("|"):
            break
        keys.append(row.split("|")[1].strip().strip("`"))
    assert len(keys) == len(set(keys))
    return set(keys)


LOG, STORE, BACKUP = keys_of("`Log.stats()`"), keys_of("`Store.stats()`"), keys_of("`Backup.stats()`")
REPLICATION = keys_of("`Replication.stats()`")
FOLLOWED = keys_of("`Replication.stats()`", "key of a partition")
COMPACTION = set(get_type_hints(kstore.CompactionStateStats)) - {"error"}


def test_the_types_have_the_keys_of_the_page() -> None:
    found = {
        kind: set(get_type_hints(kind))
        for kind in (
            kstore.LogStats,
            kstore.StoreStats,
            kstore.BackupStats,
            kstore.ReplicationStats,
            kstore.FollowerStats,
        )
    }
    assert list(found.values()) == [LOG, STORE, BACKUP, REPLICATION, FOLLOWED]
    text = text_of(PAGE)
    nested = (kstore.CompactionStateStats, kstore.BackupLag, kstore.TruncationStats, kstore.HistogramStats)
    assert [key for kind in nested for key in get_type_hints(kind) if f"`{key}`" not in text] == []


def check_log(stats: Mapping[str, Any]) -> None:
    assert set(stats) == LOG
    assert json.loads(json.dumps(stats)) == stats
    types = get_type_hints(kstore.LogStats)
    assert {key: type(value) for key, value in stats.items()} == {key: get_origin(t) or t for key, t in types.items()}
    assert all(isinstance(library, str) for library in stats["libraries"].values())


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_log_answers_these_keys_with_these_types(tmp_path: Path, clock: ManualClock, policy: str) -> None:
    path = tmp_path / "t-0"
    with kstore.Log.open(path, clock=clock, cleanup_policy=policy, segment_bytes=200) as log:
        check_log(log.stats())
        log.append_many([(b"k", b"v" * 50)] * 20, batch_bytes=100)
        log.flush()
        log.append_many([b"in a transaction"] if policy == "delete" else [(b"k", b"t")], producer_id=7,
                        producer_epoch=0, base_sequence=0, transactional=True)  # fmt: skip
        if policy == "compact":
            log.compact()
        check_log(log.stats())
        with kstore.Log.open(path, "r") as reader:
            check_log(reader.stats())


def check_store(stats: Mapping[str, Any], *, written: bool = True) -> None:
    optional = set(kstore.StoreStats.__optional_keys__)
    assert set(stats) == (STORE if written else STORE - optional)
    assert json.loads(json.dumps(stats)) == stats
    for numbers in stats["compaction"].values():
        assert set(numbers) == COMPACTION
    histograms = [*stats["sync_seconds"].values(), *stats["sync_callers"].values(), *stats["task_seconds"].values(),
                  stats["cleaning_seconds"]] if written else []  # fmt: skip
    for histogram in histograms:
        assert set(histogram) == set(get_type_hints(kstore.HistogramStats))
        counts = [count for _, count in histogram["buckets"]]
        assert sorted(counts) == counts
        assert histogram["count"] >= max(counts, default=0)


def test_a_store_answers_these_keys_in_every_state(tmp_path: Path, clock: ManualClock) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with kstore.Store.open(roots, clock=clock, background=False) as store:
        check_store(store.stats())
        store.create_topic("t", 4, cleanup_policy="compact", segment_bytes=300)
        with store.producer(transactional_id="id") as producer, producer.transaction() as txn:
            txn.append_many("t", [(b"%d" % (n % 5), b"v" * 50) for n in range(50)])
        store.compact()
        store.commit_offsets("g", {("t", 0): 1})
        clock.advance(600_000)
        store.run_housekeeping()
        store.flush()
        check_store(store.stats())
        with kstore.Store.open(roots, "r") as reader:
            check_store(reader.stats(), written=False)
            list(reader.read("t"))
            check_store(reader.stats(), written=False)
    damaged = next(path for root in roots for path in root.glob("t-*/*.log") if path.stat().st_size > 70)
    damaged.write_bytes(damaged.read_bytes()[:-30])
    with kstore.Store.open(roots, clock=clock, background=False) as store:
        assert store.stats()["refused"]
        check_store(store.stats())


def test_a_store_with_a_directory_that_failed_answers_the_same_keys(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "b").write_bytes(b"no directory")
    with kstore.Store.open([tmp_path / "a", tmp_path / "b"], clock=clock, background=False) as store:
        assert list(store.stats()["offline"]) == [str(tmp_path / "b")]
        check_store(store.stats())


def test_a_follower_its_replication_and_a_backup_answer_these_keys(tmp_path: Path, clock: ManualClock) -> None:
    with kstore.Store.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create_topic("t", 2)
        store.append("t", b"v")
        with kstore.replicate(tmp_path / "data", tmp_path / "copy", clock=clock, follow=True) as replication:
            assert replication.wait_caught_up(60)
            stats = replication.stats()
            assert set(stats) == REPLICATION
            assert all(set(lag) == FOLLOWED for lag in stats["partitions"].values())
            assert replication.store.stats()["role"] == "follower"
            check_store(replication.store.stats())
        assert replication.closed
        with kstore.backup(store, str(tmp_path / "backup"), every=1000.0) as backup:
            backup.flush()
            found = backup.stats()
            assert set(found) == BACKUP
            assert all(set(lag) == set(get_type_hints(kstore.BackupLag)) for lag in found["partitions"].values())
        assert backup.closed
