"""docs/compatibility.md: every row of its tables is cited by a test that shows it; here are those no other test shows.

A test cites a row by its id in backquotes, in its docstring or a comment.
"""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

import kstore
from kstore._core import crc32c
from kstore.codec import header
from kstore.files import checkpoint, names
from kstore.files._producer_snapshot import parse_snapshot
from kstore.log.segments._producer_state import marker_batch
from kstore.store.coordinator import _transaction
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS
from tests.test_docs import REPOSITORY, table_after

PAGE = REPOSITORY / "docs" / "compatibility.md"
TESTS = REPOSITORY / "tests"


@cache
def cited() -> str:
    """The source of every test function, and of the excuses of histories and of golden files."""
    found = [(TESTS / f"kafka/kafka_{name}.py").read_text(encoding="utf-8") for name in ("history", "operations")]
    for path in TESTS.rglob("test_*.py"):
        source = path.read_text(encoding="utf-8")
        if path.name.startswith("test_golden_"):
            found.append(source)
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.append(ast.get_source_segment(source, node) or "")
    return "\n".join(found)


@pytest.mark.parametrize("marker", ["golden files", "histories", "directory of logs", "besides"])
def test_every_difference_is_cited_by_the_test_that_shows_it(marker: str) -> None:
    ids = [row[0].strip("`") for row in table_after(PAGE, marker)]
    assert ids
    assert len(ids) == len(set(ids))
    missing = [each for each in ids if not re.search(rf"[`\"'# ]{re.escape(each)}(?![\w-])", cited())]
    assert missing == []


def test_every_table_is_checked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == len(re.findall("<!-- checked: ", text))


# In what an open log does


def test_a_segment_with_offsets_beyond_its_range_is_not_recovered(tmp_path: Path) -> None:
    """`no-overflow-split`. SEMANTICS 8.21: Kafka splits it."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append(b"v")
        path = Path(log.segments[0].path)
    before = path.read_bytes() + kstore.encode_batch([b"far"], base_offset=2**31)
    path.write_bytes(before)
    checkpoint.update_offsets(tmp_path, checkpoint.RECOVERY_POINTS, {("t", 0): 0})
    with pytest.raises(kstore.CorruptRecordError):
        kstore.Log.open(tmp_path / "t-0")
    assert path.read_bytes() == before


# In a directory of logs


def test_after_a_clean_shutdown_a_log_that_has_lost_flushed_records_is_refused(tmp_path: Path) -> None:
    """`marker-is-not-the-end`. SEMANTICS 8.13: Kafka takes the end of the files for that of the log."""
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t")
        for _ in range(3):
            store.append("t", b"v")
        path = Path(store.log("t", 0).segments[0].path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3 * 2])
    with kstore.Store.open(tmp_path) as store, pytest.raises(kstore.CorruptRecordError, match="recovery point 3"):
        store.log("t", 0)


def test_a_directory_that_failed_is_still_read(tmp_path: Path) -> None:
    """`reads-of-a-failed-directory`. SEMANTICS 13.9: Kafka closes its logs."""
    store = kstore.Store.open(tmp_path, background=False)
    store.create_topic("t")
    store.append("t", b"v", sync=True)
    with FaultFS(tmp_path) as disk:
        disk.fail("fdatasync", path="*.log")
        with pytest.raises(kstore.StorageError):
            store.append("t", b"w", sync=True)
    with pytest.raises(kstore.StorageError, match="offline"):
        store.append("t", b"x")
    assert next(store.log("t", 0).read()).value == b"v"
    with pytest.raises(kstore.StorageError):
        store.close()


def test_the_log_of_a_deleted_topic_takes_nothing_and_is_not_read(tmp_path: Path) -> None:
    """`deleted-log-is-closed`."""
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t")
        store.append("t", b"v")
        log = store.log("t", 0)
        store.delete_topic("t")
        with pytest.raises(kstore.LogClosedError):
            log.append(b"v")
        with pytest.raises(kstore.LogClosedError):
            list(log.read())


def test_a_flush_of_a_log_whose_directory_is_gone_raises(tmp_path: Path) -> None:
    """`flush-of-a-missing-directory`. SEMANTICS 12.2."""
    log = kstore.Log.open(tmp_path / "t-0")
    log.append(b"v")
    shutil.rmtree(log.path)
    with pytest.raises(kstore.StorageError):
        log.flush()
    log.close()


def marker_with_a_short_value(base_offset: int) -> bytes:
    """A whole batch whose checksum holds, and whose marker's value has 5 bytes."""
    found = marker_batch(1, 7, 0, True, 0)
    body = found[62:]
    found[61:] = b"\x1e" + body[:8] + b"\x0a" + body[9:14] + b"\0"
    found[8:12] = (len(found) - 12).to_bytes(4, "big")
    found[17:21] = crc32c(found[21:]).to_bytes(4, "big")
    header.BASE_OFFSET.put(found, base_offset)
    header.LEADER_EPOCH.put(found, 0)
    return bytes(found)


def test_recovery_passes_over_a_marker_that_does_not_parse(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`marker-that-does-not-parse`. SEMANTICS 8.17: Kafka cuts the log there, or does not open it."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append(b"before")
        with pytest.raises(kstore.InvalidRecordError):
            log.append_as_follower(marker_with_a_short_value(1))
        path = Path(log.segments[0].path)
    path.write_bytes(path.read_bytes() + marker_with_a_short_value(1) + kstore.encode_batch([b"behind"], base_offset=2))
    checkpoint.update_offsets(tmp_path, checkpoint.RECOVERY_POINTS, {("t", 0): 0})
    with caplog.at_level("WARNING", "kstore"), kstore.Log.open(tmp_path / "t-0") as log:
        assert [record.value for record in log.read()] == [b"before", b"behind"]
    assert "passed over: producer 7, offsets 1 to 1: a marker's value of 5 bytes" in caplog.text


def test_a_log_opens_whose_producer_wrote_outside_of_its_transaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`batch-outside-its-transaction`. SEMANTICS 9.5: Kafka, which wrote it, does not open it."""
    numbers = {"producer_id": 7, "producer_epoch": 0}
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append_many([b"in it"], base_sequence=0, transactional=True, **numbers)
        with pytest.raises(kstore.InvalidTxnStateError):
            log.append_many([b"outside"], base_sequence=1, **numbers)
        path = Path(log.segments[0].path)
    outside = kstore.encode_batch([b"outside"], base_offset=1, base_sequence=1, **numbers)
    path.write_bytes(path.read_bytes() + outside)
    checkpoint.update_offsets(tmp_path, checkpoint.RECOVERY_POINTS, {("t", 0): 0})
    with caplog.at_level("WARNING", "kstore"), kstore.Log.open(tmp_path / "t-0") as log:
        assert [record.value for record in log.read()] == [b"in it", b"outside"]
        assert log.last_stable_offset == 0
    assert "producer 7: a batch at 1 outside of its transaction, which began at 0" in caplog.text


def test_a_transaction_needs_no_word_from_a_coordinator(tmp_path: Path) -> None:
    """`no-verification`. SEMANTICS 9.12."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append_many([b"v"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        assert log.last_stable_offset == 0


def test_a_position_of_a_transaction_carries_its_topics_id(tmp_path: Path) -> None:
    """`position-of-a-transaction-has-its-topic`: it does not count for a later topic of that name."""
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t")
        with store.producer(transactional_id="id") as producer, producer.transaction() as transaction:
            transaction.commit_offsets("group", {("t", 0): 5})
        assert store.committed_offsets("group") == {("t", 0): 5}
        topic_id = store.topic_id("t")
        logs = [store.log("__consumer_offsets", number) for number in store.partitions("__consumer_offsets")]
        values = [record.value for log in logs for record in log.read() if record.value]
        assert topic_id is not None
        assert any(topic_id.bytes in value for value in values)
        store.delete_topic("t")
        store.create_topic("t")
        assert store.committed_offsets("group") == {}


def test_only_the_markers_that_are_missing_are_written_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`missing-markers-only`: the process dies between the first marker and the second."""
    written: list[str] = []
    plain = _transaction.append_marker

    def dying(log: kstore.Log, *given: object) -> None:
        if written:
            raise SystemExit
        written.append(log.path)
        plain(log, *given)  # type: ignore[arg-type]

    store = kstore.Store.open(tmp_path / "root", background=False)
    store.create_topic("t", 2)
    transaction = store.producer(transactional_id="id").transaction()
    for number in (0, 1):
        transaction.append("t", b"v", partition=number)
    with monkeypatch.context() as patch:
        patch.setattr(_transaction, "append_marker", dying)
        with pytest.raises(SystemExit):
            transaction.commit()
    shutil.copytree(tmp_path / "root", tmp_path / "killed")
    store.close()
    with kstore.Store.open(tmp_path / "killed", background=False) as store:
        for number in (0, 1):
            kinds = [batch.is_control for batch in store.log("t", number).read_batches()]
            assert kinds == [False, True]


def test_with_the_cleaner_off_a_policy_that_has_delete_gets_its_retention(tmp_path: Path, clock: ManualClock) -> None:
    """`retention-without-a-cleaner`. SEMANTICS 6.18."""
    config = {"log.cleaner.enable": "false"}
    with kstore.Store.open(tmp_path, config=config, clock=clock, background=False) as store:
        store.create_topic("both", config={"cleanup.policy": "compact,delete", "retention.ms": "1000"})
        store.create_topic("compact", config={"cleanup.policy": "compact", "retention.ms": "1000"})
        for topic in ("both", "compact"):
            store.append(topic, b"v", b"k", timestamp=clock.now)
        clock.advance(3_600_000)
        store.run_housekeeping()
        assert [len(list(store.read(topic))) for topic in ("both", "compact")] == [0, 1]


# Besides


def test_every_consumer_of_a_group_reads_every_partition(tmp_path: Path) -> None:
    """`no-group-members`."""
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t", 2)
        for number in (0, 1):
            store.append("t", b"v", partition=number)
        for _ in range(2):
            with store.consumer("group", ["t"]) as consumer:
                assert {record.partition for record in consumer} == {0, 1}


def test_the_high_watermark_is_the_log_end(tmp_path: Path) -> None:
    """`no-high-watermark`: whatever `replication-offset-checkpoint` says."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        for number in range(3):
            log.append(b"v")
            assert log.high_watermark == log.log_end_offset == number + 1
    checkpoint.update_offsets(tmp_path, checkpoint.HIGH_WATERMARKS, {("t", 0): 1})
    with kstore.Log.open(tmp_path / "t-0", mode="r") as log:
        assert log.high_watermark == len(list(log.read())) == 3


def test_a_snapshot_has_its_producers_in_the_order_of_their_ids(tmp_path: Path) -> None:
    """`order-of-snapshot-entries`."""
    ids = [7, 2**62 + 1, 3, 1000, 17]
    with kstore.Log.open(tmp_path / "t-0") as log:
        for producer_id in ids:
            log.append_many([b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    data = (tmp_path / "t-0" / names.snapshot_name(len(ids))).read_bytes()
    assert [entry.producer_id for entry in parse_snapshot(data)] == sorted(ids)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_is_compressed_is_read_as_it_was_whatever_the_compressor_made_of_it(codec: str) -> None:
    """`compressed-bytes`: other levels and other libraries make other bytes of the same records."""
    rows = [(b"key %d" % number, b"value" * number, number, ()) for number in range(50)]
    made = {kstore.encode_batch(rows, compression=codec)}
    if codec != "snappy":
        made |= {kstore.encode_batch(rows, compression=codec, level=level) for level in (1, 9)}
        assert len(made) > 1
    assert len({tuple(record for batch in kstore.decode_batches(data) for record in batch) for data in made}) == 1
