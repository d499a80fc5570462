"""`store.compact`, and what the statistics of logs and stores, and `kstore describe`, say of compaction."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import BrokerConfig, CompactionStats, LogClosedError, PolicyViolationError, Store
from kstore.cli import main
from kstore.files import checkpoint
from kstore.log.compaction import passes
from kstore.log.hosted_log import HostedLog
from kstore.store.cleaner import limits_of
from tests.conftest import ManualClock


@pytest.fixture
def store(root: Path, clock: ManualClock, no_syncs: None) -> Iterator[Store]:
    """Topic "a" of two partitions and "b" of one are compacted, "d" is not; nothing runs by itself."""
    with Store.open(root, clock=clock, background=False, segment_bytes=1 << 20) as opened:
        for topic, partitions, policy in (("a", 2, "compact"), ("b", 1, "compact,delete"), ("d", 1, "delete")):
            opened.create_topic(topic, partitions, config={"cleanup.policy": policy})
            for number in range(partitions):
                fill(opened, topic, number)
        yield opened


def fill(store: Store, topic: str, partition: int = 0) -> None:
    """Append a closed segment of nine records of three keys, and a record behind it."""
    log = store.log(topic, partition)
    for n in range(9):
        log.append(b"%d" % n, b"k%d" % (n % 3))
    log.roll()
    log.append(b"last", b"k0")


def count(store: Store, topic: str, partition: int = 0) -> int:
    return len(list(store.log(topic, partition).read()))


def test_every_partition_of_every_compacted_topic_is_compacted(store: Store, root: Path) -> None:
    done = store.compact()
    assert sorted(done) == [("a", 0), ("a", 1), ("b", 0)]
    assert {(stats.records_before, stats.records_after, stats.keys) for stats in done.values()} == {(9, 3, 3)}
    assert [count(store, topic) for topic in ("a", "b", "d")] == [4, 4, 10]
    assert checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS) == dict.fromkeys(done, 9)


def test_one_topics_partitions_are_compacted_after_their_active_segment_is_rolled(store: Store) -> None:
    done = store.compact("a", roll=True)
    assert sorted(done) == [("a", 0), ("a", 1)]
    assert [count(store, "a", 0), count(store, "a", 1), count(store, "b")] == [3, 3, 10]


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(store: Store, root: Path, mode: Any) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*.log")}
    asked = store if mode == "a" else Store.open(root, "r")
    done = asked.compact("a", dry_run=True)
    assert [stats.records_after for stats in done.values()] == [3, 3]
    assert all(stats.dry_run for stats in done.values())
    assert {path: path.read_bytes() for path in root.rglob("*.log")} == before


def test_a_topic_without_the_policy_is_refused_and_so_is_one_that_is_not_there(store: Store) -> None:
    with pytest.raises(PolicyViolationError, match=r"cleanup\.policy is delete"):
        store.compact("d")
    with pytest.raises(kstore.UnknownTopicOrPartitionError):
        store.compact("nowhere")
    with pytest.raises(ValueError, match="exclude each other"):
        store.compact("a", roll=True, dry_run=True)


def test_a_store_that_only_reads_compacts_nothing(store: Store, root: Path) -> None:
    with Store.open(root, "r") as reader, pytest.raises(LogClosedError):
        reader.compact()


def test_one_partition_that_fails_keeps_no_other_from_being_compacted(store: Store) -> None:
    path = Path(store.log("a", 0).segments[0].path)
    data = bytearray(path.read_bytes())
    data[61 + 3] ^= 1  # in the first batch's records
    path.write_bytes(data)
    with pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
        store.compact()
    assert [count(store, "a", 1), count(store, "b")] == [4, 4]
    assert "kstore repair" in str(store.stats()["compaction"]["a-0"]["compaction_failure"])


@pytest.mark.parametrize(
    "leave_out",
    [lambda store: store.delete_topic("b"), lambda store: store.update_topic_config("b", {"cleanup.policy": "delete"})],
    ids=["deleted", "delete"],
)
def test_a_topic_that_is_no_longer_compacted_when_its_turn_comes_is_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch, leave_out: Callable[[Store], None]
) -> None:
    real = passes._Round._scan

    def scan(self: Any) -> None:
        if store.topics == ("a", "b", "d") and store.topic_config("b").compacts:
            leave_out(store)
        real(self)

    monkeypatch.setattr(passes._Round, "_scan", scan)
    assert sorted(store.compact()) == [("a", 0), ("a", 1)]


def test_closing_the_store_ends_a_compaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = passes._Round._scan

    def slow(self: Any) -> None:
        entered.set()
        assert go_on.wait(60)
        real(self)

    monkeypatch.setattr(passes._Round, "_scan", slow)
    errors: list[BaseException] = []

    def compact() -> None:
        try:
            store.compact()
        except BaseException as error:
            errors.append(error)

    compacting = threading.Thread(target=compact)
    compacting.start()
    assert entered.wait(60)
    closing = threading.Thread(target=store.close)
    closing.start()
    while not store._metadata.closed:
        pass
    go_on.set()
    for thread in (compacting, closing):
        thread.join(60)
        assert not thread.is_alive()
    assert [type(error) for error in errors] == [LogClosedError]


def test_the_memory_is_that_of_the_stores_settings(
    root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, no_syncs: None
) -> None:
    seen = []
    real = passes._Round.__init__

    def noted(self: Any, view: Any, config: Any, dirtiness: Any, limits: Any, **named: Any) -> None:
        seen.append(limits)
        real(self, view, config, dirtiness, limits, **named)

    monkeypatch.setattr(passes._Round, "__init__", noted)
    size = (1 << 20) + 24
    with Store.open(root, clock=clock, background=False, log_cleaner_dedupe_buffer_size=size) as store:
        store.create_topic("a", config={"cleanup.policy": "compact"})
        fill(store, "a")
        store.compact()
    assert seen == [limits_of(BrokerConfig(log_cleaner_dedupe_buffer_size=size), 1_048_588)]


# Statistics.


def test_statistics_of_a_log_and_its_store_say_how_dirty_it_is_and_what_was_done(
    store: Store, clock: ManualClock
) -> None:
    fresh = {"first_dirty_offset": 0, "dirty_ratio": 1.0, "compacted_ms": -1, "compaction_failure": "",
             "compacted_records_before": 0, "compacted_records_after": 0}  # fmt: skip
    log = store.log("a", 0)
    size = log.stats()["size_bytes"]
    assert fresh.items() <= log.stats().items()
    assert sorted(store.stats()["compaction"]) == ["a-0", "a-1", "b-0"]
    assert store.stats()["compaction"]["a-0"] == fresh | {"size_bytes": size}
    store.compact("a")
    done = {"first_dirty_offset": 9, "dirty_ratio": 0.0, "compacted_ms": clock.now, "compaction_failure": "",
            "compacted_records_before": 9, "compacted_records_after": 3}  # fmt: skip
    assert done.items() <= log.stats().items()
    assert store.stats()["compaction"]["a-0"] == done | {"size_bytes": log.stats()["size_bytes"]}
    json.dumps(store.stats())


def test_a_log_without_the_policy_has_no_first_dirty_offset(store: Store, root: Path) -> None:
    stats = store.log("d", 0).stats()
    assert (stats["first_dirty_offset"], stats["dirty_ratio"]) == (-1, 0.0)
    with Store.open(root, "r") as reader:
        reader.log("a", 0)
        assert reader.stats()["compaction"]["a-0"]["first_dirty_offset"] == 0


# `kstore describe`.


def described(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["describe", *arguments]) == 0
    return capsys.readouterr().out


def test_describe_shows_the_clean_share_of_compacted_partitions(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = described(capsys, str(root)).splitlines()
    assert table[0].split()[-1] == "clean"
    assert {line.split()[0]: line.split()[-1] for line in table[1:] if line[:1] in "abd"} == {
        "a-0": "%", "a-1": "%", "b-0": "%", "d-0": "-",
    }  # fmt: skip
    assert "compacted up to offset 0, 0 % of the bytes" in described(capsys, str(root / "a-0"))
    store.compact("a", roll=True)
    assert "compacted up to offset 10, 100 % of the bytes" in described(capsys, str(root / "a-0"))
    [facts] = json.loads(described(capsys, str(root / "a-0"), "--json"))["partitions"]
    assert facts["first_dirty_offset"] == 10
    assert facts["clean_bytes"] == facts["size_bytes"]
    assert "compacted" not in described(capsys, str(root / "d-0"))


def test_describe_takes_no_offence_at_a_cleaners_checkpoint_that_is_malformed(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / checkpoint.CLEANER_OFFSETS).write_bytes(b"what\n")
    [facts] = json.loads(described(capsys, str(root / "a-0"), "--json"))["partitions"]
    assert facts["first_dirty_offset"] is None
    assert "error" not in facts


# Beside what else changes a log.


def test_a_policy_without_compact_aborts_the_cleaning_until_it_has_it_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 7.8."""
    entered, ended = threading.Event(), threading.Event()
    real: Callable[..., CompactionStats] = passes.compact

    def waiting(writer: Any, *arguments: Any, **named: Any) -> CompactionStats:
        with writer.cleaning.running():
            entered.set()
            while True:
                writer.cleaning.check()

    monkeypatch.setattr(passes, "compact", waiting)
    cleaner = store._logs.cleaner  # type: ignore[union-attr]
    store.update_topic_config("b", {"cleanup.policy": "delete"})

    def run() -> None:
        cleaner.run()
        ended.set()

    monkeypatch.setattr(type(cleaner), "_eligible", _only("a", 0, type(cleaner)._eligible))
    threading.Thread(target=run).start()
    assert entered.wait(60)
    store.update_topic_config("a", {"cleanup.policy": "delete"})
    assert ended.wait(60)
    assert count(store, "a") == 10
    monkeypatch.setattr(passes, "compact", real)
    store.update_topic_config("a", {"cleanup.policy": "compact"})
    cleaner.run()
    assert count(store, "a") == 4


def _only(topic: str, partition: int, real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: (one for one in real(*arguments) if one.entry.key == (topic, partition))


def test_a_truncation_takes_the_first_dirty_line_down_and_the_log_is_cleaned_again(store: Store, root: Path) -> None:
    """LogCleanerManagerTest.testMaybeTruncateCheckpointShouldTruncateData,
    LogCleanerManagerTest.testConcurrentLogCleanupAndLogTruncation."""
    store.compact("a", roll=True)
    log = store.log("a", 0)
    assert not log.truncate_to(10)
    assert checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS)["a", 0] == 10
    log.truncate_to(8)
    assert log.segments[-1].base_offset == 0  # all that is left is in the active segment, of which nothing is clean
    assert checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS)["a", 0] == 0
    assert HostedLog(log).writer.cleaning.state.value == "none"
    log.append(b"new", b"k1")
    assert store.compact("a", roll=True)["a", 0].first_dirty_offset == log.log_end_offset
