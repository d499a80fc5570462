"""checkpoint.py: offset checkpoints, the mark of a clean shutdown, partition.metadata (FORMAT 1, 11)."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.disk import fs
from kstore.errors import InconsistentTopicIdError, StorageError
from kstore.files import checkpoint
from kstore.files.checkpoint import CLEAN_MARKER, LOG_STARTS, OFFSET_CHECKPOINTS, RECOVERY_POINTS

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
OFFSETS = st.dictionaries(st.tuples(TOPICS, st.integers(0, 2**31 - 1)), st.integers(-(2**63), 2**63 - 1), max_size=8)


@given(OFFSETS)
def test_offsets_that_were_written_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, offsets: checkpoint.Offsets
) -> None:
    """OffsetCheckpointFileWithFailureHandlerTest.shouldPersistAndOverwriteAndReloadFile."""
    root = tmp_path_factory.mktemp("root")
    checkpoint.write_offsets(root, RECOVERY_POINTS, offsets)
    assert checkpoint.read_offsets(root, RECOVERY_POINTS) == offsets
    checkpoint.write_offsets(root, RECOVERY_POINTS, {})
    assert checkpoint.read_offsets(root, RECOVERY_POINTS) == {}


def test_one_line_is_read_from_a_file_that_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = checkpoint.read_offsets
    monkeypatch.setattr(checkpoint, "read_offsets", lambda root, name: reads.append(name) or real(root, name))
    assert checkpoint.read_offset(tmp_path, RECOVERY_POINTS, ("t", 0)) is None
    checkpoint.write_offsets(tmp_path, RECOVERY_POINTS, {("t", 0): 5, ("t", 1): 6})
    path = tmp_path / RECOVERY_POINTS
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert [checkpoint.read_offset(tmp_path, RECOVERY_POINTS, ("t", number)) for number in range(3)] == [5, 6, None]
    assert len(reads) == 1
    checkpoint.write_offsets(tmp_path, RECOVERY_POINTS, {("t", 0): 7, ("t", 1): 8})  # as long, and another file
    os.utime(path, (1_700_000_001, 1_700_000_001))
    assert checkpoint.read_offset(tmp_path, RECOVERY_POINTS, ("t", 0)) == 7
    path.write_bytes(b"0\n2\nt 0\nt 1\n")
    os.utime(path, (1_700_000_002, 1_700_000_002))
    with pytest.raises(StorageError, match="malformed in line 3"):
        checkpoint.read_offset(tmp_path, RECOVERY_POINTS, ("t", 0))
    path.unlink()
    assert checkpoint.read_offset(tmp_path, RECOVERY_POINTS, ("t", 0)) is None


def test_a_file_that_may_change_again_with_the_same_time_is_read_each_time(tmp_path: Path) -> None:
    checkpoint.write_offsets(tmp_path, RECOVERY_POINTS, {("t", 0): 5})
    path = tmp_path / RECOVERY_POINTS
    later = time.time() + 3600  # a clock that was put back since, or the same instant
    os.utime(path, (later, later))
    assert checkpoint.read_offset(tmp_path, RECOVERY_POINTS, ("t", 0)) == 5
    path.write_bytes(b"0\n1\nt 0 6\n")
    os.utime(path, (later, later))
    assert checkpoint.read_offset(tmp_path, RECOVERY_POINTS, ("t", 0)) == 6


def test_the_files_that_are_kept_do_not_grow_in_number(tmp_path: Path) -> None:
    for number in range(3 * checkpoint._MOST_KEPT):
        root = tmp_path / str(number)
        root.mkdir()
        checkpoint.write_offsets(root, RECOVERY_POINTS, {("t", 0): number})
        os.utime(root / RECOVERY_POINTS, (1_700_000_000, 1_700_000_000))
        assert checkpoint.read_offset(root, RECOVERY_POINTS, ("t", 0)) == number
        assert len(checkpoint._kept) <= checkpoint._MOST_KEPT


def test_the_text_is_kafkas(tmp_path: Path) -> None:
    checkpoint.write_offsets(tmp_path, RECOVERY_POINTS, {("foo", 1): 5, ("bar.x", 2): 10})
    assert (tmp_path / RECOVERY_POINTS).read_bytes() == b"0\n2\nbar.x 2 10\nfoo 1 5\n"
    checkpoint.write_offsets(tmp_path, RECOVERY_POINTS, {})
    assert (tmp_path / RECOVERY_POINTS).read_bytes() == b"0\n0\n"
    assert checkpoint.read_offsets(tmp_path, RECOVERY_POINTS) == {}


def test_the_files_of_a_broker_are_read_and_written_the_same(golden: Callable[[str], Path]) -> None:
    root = golden("delete-records") / "dir"
    assert checkpoint.read_offsets(root, LOG_STARTS) == {("alpha", 0): 5, ("beta.two", 1): 43, ("alpha", 1): 40}
    assert checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS) == {}
    points = checkpoint.read_offsets(root, RECOVERY_POINTS)
    assert points["gamma_3", 0] == 37
    before = (root / RECOVERY_POINTS).read_bytes()
    checkpoint.write_offsets(root, RECOVERY_POINTS, points)
    assert sorted((root / RECOVERY_POINTS).read_bytes().splitlines()) == sorted(before.splitlines())
    assert checkpoint.find_clean_marker(root) == 11
    assert checkpoint.read_partition_metadata(root / "alpha-0") == (
        0,
        checkpoint.parse_topic_id("Y6UkSSjkSzqxA4PvZfFDfw"),
    )


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        (b"", {}),
        (b"0\n", {}),
        (b"0", {}),
        (b"0\n0", {}),
        (b"0\r\n1\r\na 0 5\r\n", {("a", 0): 5}),
        (b"0\r1\ra 0 5", {("a", 0): 5}),
        (b"0\n1\na\t 0  5 \n", {("a", 0): 5}),
        (b"+0\n01\na +0 -5\n", {("a", 0): -5}),
        (b"0\n2\na 0 5\na 0 6\n", {("a", 0): 6}),
    ],
)
def test_what_kafka_reads_is_read(tmp_path: Path, text: bytes, offsets: checkpoint.Offsets) -> None:
    """OffsetCheckpointFileWithFailureHandlerTest.shouldReturnEmptyMapForEmptyFile."""
    (tmp_path / LOG_STARTS).write_bytes(text)
    assert checkpoint.read_offsets(tmp_path, LOG_STARTS) == offsets


@pytest.mark.parametrize(
    "text",
    [
        b"\n",
        b" 0\n0\n",
        b"0 \n0\n",
        b"1\n0\n",
        b"-1\n0\n",
        b"x\n0\n",
        b"0\nx\n",
        b"0\n\n",
        b"0\n0\na 0 5\n",
        b"0\n2\na 0 5\n",
        b"0\n1\n a 0 5\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 5 6\n",
        b"0\n1\na 0 5\n\n",
        b"0\n2\na 0 5\n\n",
        b"0\n1\na x 5\n",
        b"0\n1\na 0 x\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"0\n1\na 2147483648 0\n",
        b"0\n1\na 0 " + b"9" * 5000 + b"\n",
        b"0\n1\n\xff 0 5\n",
        b"\0" * 100,
        "\u0660\n0\n".encode(),
    ],
)
def test_a_malformed_file_is_an_error_that_names_it_and_no_update_overwrites_it(tmp_path: Path, text: bytes) -> None:
    """SEMANTICS 13.6, 8.1. OffsetCheckpointFileWithFailureHandlerTest.shouldThrowIfVersionIsNotRecognised."""
    (tmp_path / LOG_STARTS).write_bytes(text)
    with pytest.raises(StorageError, match="malformed in line") as caught:
        checkpoint.read_offsets(tmp_path, LOG_STARTS)
    assert caught.value.filename == str(tmp_path / LOG_STARTS)
    with pytest.raises(StorageError):
        checkpoint.update_offsets(tmp_path, LOG_STARTS, {("a", 0): 1})
    assert (tmp_path / LOG_STARTS).read_bytes() == text


@given(st.binary(max_size=60))
def test_any_bytes_are_entries_or_a_storage_error(data: bytes) -> None:
    for text in (data, b"0\n1\n" + data):
        try:
            entries = checkpoint.parse_checkpoint(text, "x", 3)
        except StorageError:
            continue
        assert all(len(entry) == 3 for entry in entries)


def test_a_missing_file_has_no_offsets_and_is_not_made_by_reading(tmp_path: Path) -> None:
    assert checkpoint.read_offsets(tmp_path, LOG_STARTS) == {}
    assert fs.listdir(tmp_path) == []


def test_an_update_keeps_the_lines_of_others(tmp_path: Path) -> None:
    checkpoint.write_offsets(tmp_path, RECOVERY_POINTS, {("a", 0): 1, ("b", 0): 2, ("c", 0): 3})
    checkpoint.update_offsets(tmp_path, RECOVERY_POINTS, {("b", 0): 20, ("c", 0): None, ("d", 0): 4, ("e", 0): None})
    assert checkpoint.read_offsets(tmp_path, RECOVERY_POINTS) == {("a", 0): 1, ("b", 0): 20, ("d", 0): 4}
    assert fs.listdir(tmp_path) == [".lock", RECOVERY_POINTS]


def test_an_update_that_changes_nothing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write_offsets(tmp_path, RECOVERY_POINTS, {("a", 0): 1})
    monkeypatch.setattr(fs, "write_atomically", None)
    checkpoint.update_offsets(tmp_path, RECOVERY_POINTS, {("a", 0): 1, ("b", 0): None})
    checkpoint.update_offsets(tmp_path, RECOVERY_POINTS, {})
    checkpoint.forget_partitions(tmp_path, [("b", 0)])


def test_a_forgotten_partition_is_in_none_of_the_four_files(tmp_path: Path) -> None:
    for name in OFFSET_CHECKPOINTS:
        checkpoint.write_offsets(tmp_path, name, {("a", 0): 1, ("a", 1): 2, ("b", 0): 3})
    checkpoint.forget_partitions(tmp_path, [("a", 0), ("b", 0)])
    assert [checkpoint.read_offsets(tmp_path, name) for name in OFFSET_CHECKPOINTS] == [{("a", 1): 2}] * 4


def test_updates_at_the_same_time_lose_no_line(tmp_path: Path) -> None:
    def update(partition: int) -> None:
        for offset in range(5):
            checkpoint.update_offsets(tmp_path, RECOVERY_POINTS, {("a", partition): offset})

    threads = [threading.Thread(target=update, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checkpoint.read_offsets(tmp_path, RECOVERY_POINTS) == {("a", partition): 4 for partition in range(4)}


def test_a_root_that_is_gone_is_an_error_of_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.update_offsets(tmp_path / "gone", RECOVERY_POINTS, {("a", 0): 1})


# The mark of a clean shutdown


def test_the_mark_has_kafkas_text_and_goes_once(tmp_path: Path) -> None:
    """SEMANTICS 13.5; CleanShutdownFileHandlerTest. CleanShutdownFileHandlerTest.testCleanShutdownFileBasic,
    CleanShutdownFileHandlerTest.testCleanShutdownFileNonExist."""
    assert checkpoint.find_clean_marker(tmp_path) is None
    checkpoint.write_clean_marker(tmp_path)
    assert (tmp_path / CLEAN_MARKER).read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    checkpoint.write_clean_marker(tmp_path, broker_epoch=10)
    assert checkpoint.find_clean_marker(tmp_path) == 10
    assert checkpoint.remove_clean_marker(tmp_path)
    assert not checkpoint.remove_clean_marker(tmp_path)
    assert checkpoint.find_clean_marker(tmp_path) is None


def test_the_removal_of_the_mark_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write_clean_marker(tmp_path)
    synced: list[object] = []
    monkeypatch.setattr(fs, "sync_directory", synced.append)
    checkpoint.remove_clean_marker(tmp_path)
    assert synced == [tmp_path]


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        (b'{"version":0,"brokerEpoch":10,"unknown":123}', 10),
        (b"", -1),
        (b"{", -1),
        (b"[1]", -1),
        (b'{"brokerEpoch":"7"}', -1),
        (b'{"brokerEpoch":true}', -1),
        (b'{"brokerEpoch":1e3}', -1),
        (b'{"brokerEpoch":' + b"9" * 5000 + b"}", -1),
        (b"\xff\xfe", -1),
        (b"[" * 100_000, -1),
    ],
)
def test_a_mark_counts_whatever_it_says(tmp_path: Path, text: bytes, epoch: int) -> None:
    """FORMAT 1.7: existence alone means clean.
    CleanShutdownFileHandlerTest.testCleanShutdownFileCanParseWithUnknownFields."""
    (tmp_path / CLEAN_MARKER).write_bytes(text)
    assert checkpoint.find_clean_marker(tmp_path) == epoch


# partition.metadata


def test_partition_metadata_is_43_bytes_and_reads_back(tmp_path: Path) -> None:
    """FORMAT 1.10; PartitionMetadataFileTest. PartitionMetadataFileTest.testMaybeFlushWithTopicIdPresent,
    PartitionMetadataFileTest.testRead."""
    topic_id = checkpoint.parse_topic_id("ABEiM0RVZneImaq7zN3u_w")
    assert topic_id == uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert checkpoint.read_partition_metadata(tmp_path) is None
    checkpoint.ensure_partition_metadata(tmp_path, topic_id)
    text = (tmp_path / "partition.metadata").read_bytes()
    assert text == b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w"
    assert len(text) == 43
    assert checkpoint.read_partition_metadata(tmp_path) == (0, topic_id)


def test_another_topic_id_is_refused_and_the_same_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 13.7. UnifiedLogTest.testLogFailsWhenInconsistentTopicIdSet,
    PartitionMetadataFileTest.testSetRecordWithDifferentTopicId."""
    one, other = checkpoint.new_topic_id(), checkpoint.new_topic_id()
    checkpoint.ensure_partition_metadata(tmp_path, one)
    monkeypatch.setattr(fs, "write_atomically", None)
    checkpoint.ensure_partition_metadata(tmp_path, one)
    with pytest.raises(InconsistentTopicIdError, match=checkpoint.format_topic_id(other)):
        checkpoint.ensure_partition_metadata(tmp_path, other)
    with pytest.raises(ValueError, match="zeros"):
        checkpoint.ensure_partition_metadata(tmp_path, uuid.UUID(int=0))


@pytest.mark.parametrize(
    "text",
    [
        b"version: 0",
        b"version: 0\n",
        b"version:0\ntopic_id: ABEiM0RVZneImaq7zN3u_w",
        b"version: -1\ntopic_id: ABEiM0RVZneImaq7zN3u_w",
        b"version: x\ntopic_id: ABEiM0RVZneImaq7zN3u_w",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u",
        b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u+w",
        b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w: x",
        b"version: 0\ntopic_id: \xff\xff",
    ],
)
def test_malformed_partition_metadata_is_a_storage_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "partition.metadata").write_bytes(text)
    with pytest.raises(StorageError, match="malformed"):
        checkpoint.read_partition_metadata(tmp_path)


def test_newer_partition_metadata_with_other_keys_is_read(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_bytes(b"v: 1\r\nid:  ABEiM0RVZneImaq7zN3u_w\r\nmore: x\r\n")
    assert checkpoint.read_partition_metadata(tmp_path) == (1, checkpoint.parse_topic_id("ABEiM0RVZneImaq7zN3u_w"))


@given(st.uuids())
def test_a_topic_ids_text_reads_back(topic_id: uuid.UUID) -> None:
    text = checkpoint.format_topic_id(topic_id)
    assert len(text) == 22
    assert checkpoint.parse_topic_id(text) == checkpoint.parse_topic_id(text + "==") == topic_id
