"""Kafka's own cases about directories of logs, told again for a `Store`; each test cites those that it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS


def test_a_topic_is_a_directory_that_takes_appends(root: Path) -> None:
    """LogManagerTest.testCreateLog, UnifiedLogTest.testLogFlushesPartitionMetadataOnAppend,
    UnifiedLogTest.testLogFlushesPartitionMetadataOnClose: the id is on the disk before any record."""
    with kstore.Store.open(root) as store:
        topic_id = store.create_topic("kafka")
        assert (root / "kafka-0" / "partition.metadata").exists()
        assert store.log("kafka", 0).append(b"test") == 0
    with kstore.Store.open(root) as store:
        assert store.topic_id("kafka") == topic_id


def test_a_log_that_cannot_be_closed_keeps_the_marker_from_its_directory_alone(tmp_path: Path) -> None:
    """LogManagerTest.testHandlingExceptionsDuringShutdown"""
    paths = [tmp_path / "a", tmp_path / "b"]
    store = kstore.Store.open(paths)
    store.create_topic("events", 2)
    for number in range(2):
        store.log("events", number).append(b"x")
    with FaultFS(tmp_path) as disk:
        disk.fail("fdatasync", path=str(paths[1] / "events-1" / "*"))
        with pytest.raises(kstore.StorageError):
            store.close()
    assert checkpoint.find_clean_marker(paths[0]) == -1
    assert checkpoint.find_clean_marker(paths[1]) is None


def test_a_close_marks_every_directory_as_clean(tmp_path: Path) -> None:
    """LogManagerTest.testCleanShutdownFileWithBrokerEpoch; the epoch is a broker's, and ours is none."""
    paths = [tmp_path / "a", tmp_path / "b"]
    with kstore.Store.open(paths) as store:
        store.create_topic("events", 2)
        for number in range(2):
            store.log("events", number).append(b"x")
        assert sorted(path.parent.name for path in tmp_path.glob("?/events-?")) == ["a", "b"]
    assert [checkpoint.find_clean_marker(path) for path in paths] == [-1, -1]
    checkpoint.write_clean_marker(paths[0], broker_epoch=3)
    assert checkpoint.find_clean_marker(paths[0]) == 3


def test_a_directory_in_which_nothing_can_be_made_is_passed_over_and_offline(tmp_path: Path) -> None:
    """LogManagerTest.testCreateLogWithLogDirFallback (SEMANTICS 13.3): and the partition is in one directory alone."""
    paths = [tmp_path / name for name in "abcde"]
    with kstore.Store.open(paths) as store:
        with FaultFS(tmp_path) as disk:
            for name in "ab":
                disk.fail("make_directory", path=str(tmp_path / name / "events-0"))
            store.create_topic("events")
        assert [path.name for path in paths if (path / "events-0").exists()] == ["c"]
        assert list(store.stats()["offline"]) == [str(path) for path in paths[:2]]
        assert store.log("events", 0).append(b"x") == 0


def test_the_longest_name_can_be_deleted_too(root: Path) -> None:
    """LogManagerTest.testCreateAndDeleteOverlyLongTopic (SEMANTICS 0.7): the name is cut to 255 characters."""
    with kstore.Store.open(root) as store:
        topic = "t" * 249
        store.create_topic(topic)
        store.log(topic, 0).append(b"x")
        store.delete_topic(topic)
        assert store.topics == ()
        assert [len(path.name) for path in root.glob("*-delete")] == [255]


def test_without_a_delay_a_deleted_topic_is_gone_at_the_next_housekeeping(root: Path, clock: ManualClock) -> None:
    """LocalLogTest.testLogDeleteSegmentsSuccess, LocalLogTest.testRemoveAndDeleteSegmentsSync,
    LocalLogTest.testDeleteSegmentFilesSync, UnifiedLogTest.testLogDeletionAfterClose: every file of every segment, of
    a log that is open or closed."""
    with kstore.Store.open(root, clock=clock, background=False, file_delete_delay_ms=0) as store:
        store.create_topic("events", 2)
        for number in range(2):
            log = store.log("events", number)
            for _ in range(9):
                log.append(b"x")
                log.roll()
            assert len(log.segments) == 10
        log.close()
        store.delete_topic("events")
        store.run_housekeeping()
        assert {path.name for path in root.iterdir() if path.is_dir()} == set()


def test_closing_does_not_wait_for_deletions_that_have_no_delay(root: Path) -> None:
    """LogManagerTest.testShutdownWithZeroFileDeleteDelayMs: a thread that looks all the time would never stop."""
    store = kstore.Store.open(root, file_delete_delay_ms=0, log_initial_task_delay_ms=0)
    store.create_topic("events")
    store.delete_topic("events")
    store.close()
    assert checkpoint.find_clean_marker(root) == -1


def test_a_directory_that_cannot_take_the_file_of_topics_is_offline_alone(tmp_path: Path) -> None:
    """SEMANTICS 13.9."""
    paths = [tmp_path / name for name in "ab"]
    with kstore.Store.open(paths) as store:
        with FaultFS(tmp_path) as disk:
            disk.fail(path=str(tmp_path / "a" / "kstore-topics.json*"), times=-1)
            store.create_topic("events", 2, config={"segment.bytes": "5000"})
        assert list(store.stats()["offline"]) == [str(paths[0])]
        assert store.log("events", 1).append(b"x") == 0
    with kstore.Store.open(paths) as store:
        assert store.topic_config("events").segment_bytes == 5000
        assert store.partitions("events") == (0, 1)
