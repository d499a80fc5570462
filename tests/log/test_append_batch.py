"""`Log.append_batch` and `Log.append_as_follower`: encoded batches in, Kafka's files out (SEMANTICS 1).

What is accepted and how it is changed is held rule by rule in `test_validation.py`; here, that the log obeys.
"""

from __future__ import annotations

import array
import mmap
import struct
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Log
from kstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KStoreError,
    LogClosedError,
    OffsetsOutOfOrderError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
)
from tests.conftest import ManualClock
from tests.support.batches import APPEND_TIME, CODECS, NOW, legacy, messages_of, record, v2, wrapper

Open = Callable[..., Log]
ONE = v2([record(value=b"test")], base_timestamp=-1)


@pytest.fixture
def fresh(partition: Path, clock: ManualClock) -> Iterator[Open]:
    """`fresh(**settings)`: the log `events-0`, closed at the end; a second call closes it and opens it again."""
    logs: list[Log] = []

    def open_log(**settings: Any) -> Log:
        for log in logs:
            log.close()
        logs.append(Log.open(partition, clock=clock, **settings))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


def stored(log: Log) -> bytes:
    """The bytes of all segments."""
    return b"".join(Path(segment.path).read_bytes() for segment in log.segments)


def placed(batch: bytes, base_offset: int, leader_epoch: int = 0) -> bytes:
    """The batch as a leader stores it that has nothing else to change."""
    return struct.pack(">qii", base_offset, len(batch) - 12, leader_epoch) + batch[16:]


def at(base_offset: int, values: int = 1, leader_epoch: int = 0) -> bytes:
    """A follower's batch."""
    return v2(messages_of([b"v"] * values), base_offset=base_offset, leader_epoch=leader_epoch)


# ---- as a leader


def test_batches_are_stored_as_sent_but_for_offset_and_epoch(fresh: Open) -> None:
    """SEMANTICS 1.19; UnifiedLogTest.testAppendInfoFirstOffset, shouldApplyEpochToMessageOnAppendIfLeader"""
    log = fresh()
    three = v2(messages_of([b"a", b"b", b"c"]))
    infos = [log.append_batch(three, leader_epoch=72), log.append_batch(three, leader_epoch=72)]
    log.roll()
    infos.append(log.append_batch(three))
    assert [info.first_offset for info in infos] == [0, 3, 6]
    assert [info.last_offset for info in infos] == [2, 5, 8]
    assert {info.max_timestamp for info in infos} == {NOW}
    assert stored(log) == b"".join(placed(three, n, 72) for n in (0, 3, 6))
    assert (log.log_end_offset, log.high_watermark) == (9, 9)


def test_a_record_without_timestamp_is_taken(fresh: Open) -> None:
    """UnifiedLogTest.testAppendWithNoTimestamp"""
    log = fresh()
    assert log.append_batch(ONE).max_timestamp == -1
    assert [r.timestamp for r in log.read()] == [-1]
    assert log.max_timestamp() is None


@pytest.mark.parametrize(
    "view",
    [bytes, bytearray, memoryview, lambda b: array.array("B", b), lambda b: next(iter(kstore.decode_batches(b)))],
    ids=["bytes", "bytearray", "memoryview", "array", "RecordBatch"],
)
def test_any_buffer_is_taken_as_bytes_and_left_as_it_was(fresh: Open, view: Callable[[bytes], Any]) -> None:
    data = view(v2(messages_of([b"a"]), max_timestamp=5))
    before = bytes(data)
    log = fresh(message_timestamp_type="LogAppendTime")
    log.append_batch(data)
    assert bytes(data) == before
    assert [r.value for r in log.read()] == [b"a"]


def test_a_wider_array_and_a_map_of_a_file_are_buffers_too(fresh: Open, tmp_path: Path) -> None:
    log = fresh()
    log.append_batch(array.array("I", v2([record(value=b"abcd")]).ljust(72, b"\0")))
    path = tmp_path / "sent"
    path.write_bytes(v2([record(value=b"from a file")]))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        log.append_batch(mapped)
    assert [r.value for r in log.read()] == [b"abcd", b"from a file"]


def test_text_is_refused_with_a_hint_and_no_buffer_at_all_too(fresh: Open) -> None:
    log = fresh()
    with pytest.raises(TypeError, match="encode"):
        log.append_batch("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        log.append_batch(17)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="encode"):
        log.append_as_follower("text")  # type: ignore[arg-type]


REFUSED: dict[str, tuple[bytes, type[KStoreError], dict[str, Any]]] = {
    "nothing": (b"", InvalidRecordError, {}),
    "half a batch": (ONE[:-1], InvalidRecordError, {}),
    "a wrong CRC": (ONE[:-1] + b"\x7f", CorruptRecordError, {}),
    "a base offset": (v2(base_offset=1), InvalidRecordError, {}),
    "two batches": (ONE * 2, InvalidRecordError, {}),
    "a wrong count": (v2(count=2), InvalidRecordError, {}),
    "one byte over max.message.bytes": (ONE, RecordTooLargeError, {"max_message_bytes": len(ONE) - 1}),
    "one byte over when rebuilt": (
        v2([record(value=bytes(999))], codec="gzip"),
        RecordTooLargeError,
        {"compression_type": "uncompressed", "max_message_bytes": len(v2([record(value=bytes(999))])) - 1},
    ),
    "no key": (ONE, InvalidRecordError, {"cleanup_policy": "compact"}),
    "the future": (v2(base_timestamp=NOW + 3_600_001), InvalidTimestampError, {}),
    "a control batch": (v2(attributes=0x20), InvalidRecordError, {}),
    "no frame": (v2(b"garbage", attributes=1), CorruptRecordError, {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_batch_leaves_the_log_as_it_was(fresh: Open, case: str) -> None:
    data, error, settings = REFUSED[case]
    fine = v2([record(key=b"k")])[: len(ONE)]
    log = fresh(**settings)
    log.append_batch(fine)
    before = stored(log)
    with pytest.raises(error):
        log.append_batch(data, leader_epoch=7)
    assert stored(log) == before
    assert log.log_end_offset == 1
    assert log.append_batch(fine).first_offset == 1
    assert [batch.partition_leader_epoch for batch in log.read_batches()] == [0, 0]


def test_the_size_of_a_segment_bounds_an_append(fresh: Open, clock: ManualClock) -> None:
    """SEMANTICS 1.27; UnifiedLogTest.testMessageSetSizeCheck, and the same for followers"""
    log = fresh(segment_bytes=len(ONE))
    assert log.append_batch(ONE).first_offset == 0
    log.append_as_follower(placed(ONE, 1))
    larger = v2([record(value=b"test!")], base_timestamp=-1)
    for append in (log.append_batch, lambda data: log.append_as_follower(placed(data, 2))):
        with pytest.raises(RecordBatchTooLargeError):
            append(larger)
    with pytest.raises(RecordBatchTooLargeError):
        log.append_as_follower(placed(ONE, 2) + placed(ONE, 3))
    assert (log.log_end_offset, len(log.segments)) == (2, 2)


def test_limits_are_read_at_every_append(fresh: Open) -> None:
    """SEMANTICS 13.13"""
    log = fresh(max_message_bytes=len(ONE) - 1)
    with pytest.raises(RecordTooLargeError):
        log.append_batch(ONE)
    log.update_config(max_message_bytes=len(ONE), cleanup_policy="compact")
    with pytest.raises(InvalidRecordError, match="key"):
        log.append_batch(ONE)
    log.update_config(cleanup_policy="delete", compression_type="lz4", message_timestamp_type="LogAppendTime")
    log.update_config(max_message_bytes=1000)
    info = log.append_batch(ONE)
    assert (info.log_append_time, info.max_timestamp) == (NOW, NOW)
    (batch,) = log.read_batches()
    assert (batch.compression, batch.timestamp_type) == ("lz4", "LogAppendTime")


def test_a_refused_batch_names_its_records(fresh: Open) -> None:
    """SEMANTICS 1.18; UnifiedLogTest.testCompactedTopicConstraints"""
    log = fresh(cleanup_policy="compact")
    unkeyed, keyed = record(0), record(1, key=b"k")
    for data, index in (
        (v2([unkeyed, keyed]), 0),
        (v2([unkeyed]), 0),
        (v2([record(0, key=b"k"), record(1)], codec="gzip"), 1),
    ):
        with pytest.raises(InvalidRecordError) as caught:
            log.append_batch(data)
        ((found, reason),) = caught.value.record_errors
        assert found == index
        assert "key" in reason
        assert caught.value.appended is None
    assert log.append_batch(v2([record(0, key=b"k"), record(1, key=b"")])).last_offset == 1


@pytest.mark.parametrize(
    ("source", "setting"), list(product(CODECS, ["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]))
)
def test_the_stored_codec_is_the_topics_or_the_producers(fresh: Open, source: str, setting: str) -> None:
    """BrokerCompressionTest.testBrokerSideCompression"""
    log = fresh(compression_type=setting)
    log.append_batch(v2(messages_of([b"hello", b"there"]), codec=source))
    (batch,) = log.read_batches()
    assert batch.compression == {"uncompressed": "none", "producer": source}.get(setting, setting)
    assert [(r.offset, r.value) for r in log.read()] == [(0, b"hello"), (1, b"there")]


def test_a_read_inside_a_compressed_batch_starts_at_the_record(fresh: Open) -> None:
    """UnifiedLogTest.testCompressedMessages, with records where Kafka gives batches"""
    log = fresh(segment_bytes=110)
    for _ in range(2):
        log.append_batch(v2(messages_of([b"hello", b"there"]), codec="gzip"))
    assert [[r.offset for r in log.read(offset)] for offset in range(4)] == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert [next(iter(log.read_batches(offset))).base_offset for offset in range(4)] == [0, 0, 2, 2]


def test_log_append_time_is_the_clocks(fresh: Open, clock: ManualClock) -> None:
    """LogAppendTimeTest.testProduceConsume"""
    log = fresh(message_timestamp_type="LogAppendTime")
    yesterday = NOW - 86_400_000
    for _ in range(3):
        log.append_batch(v2(messages_of([b"a", b"b"], timestamps=[yesterday, yesterday + 1])))
        clock.advance(10)
    assert {batch.timestamp_type for batch in log.read_batches()} == {"LogAppendTime"}
    assert [r.timestamp for r in log.read()] == [NOW, NOW, NOW + 10, NOW + 10, NOW + 20, NOW + 20]
    assert log.offset_for_timestamp(NOW + 5) == (NOW + 10, 2)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_old_formats_become_one_batch_of_the_new(fresh: Open, magic: int, codec: str) -> None:
    """SEMANTICS 1.11, 1.20"""
    inner = [legacy(magic, b"%d" % n, key=b"k", offset=n) for n in range(3)]
    log = fresh()
    log.append(b"first")
    info = log.append_batch(b"".join(inner) if codec == "none" else wrapper(magic, inner, codec=codec))
    assert (info.first_offset, info.last_offset) == (1, 3)
    batch = list(log.read_batches())[-1]
    assert (batch.magic, batch.count, batch.compression) == (2, 3, codec)
    assert [(r.offset, r.key, r.value) for r in log.read(1)] == [(n + 1, b"k", b"%d" % n) for n in range(3)]


def test_a_coordinators_marker_is_stored_as_it_is(fresh: Open) -> None:
    """LogValidatorTest.testControlRecordsNotCompressed"""
    marker = v2([record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0\7")], attributes=0x30, producer_id=7, producer_epoch=0)
    log = fresh(compression_type="zstd", cleanup_policy="compact")
    with pytest.raises(InvalidRecordError):
        log.append_batch(marker)
    log.append_batch(marker, origin="coordinator")
    assert stored(log) == placed(marker, 0)
    assert list(log.read()) == []


def test_a_log_that_is_closed_or_read_only_takes_nothing(fresh: Open, partition: Path) -> None:
    log = fresh()
    log.append_batch(ONE)
    log.close()
    with Log.open(partition, mode="r") as reader:
        for append in (log.append_batch, log.append_as_follower):
            with pytest.raises(LogClosedError):
                append(ONE)
        for append in (reader.append_batch, reader.append_as_follower):
            with pytest.raises((KStoreError, ValueError)):
                append(placed(ONE, 1))
        assert reader.log_end_offset == 1


# ---- as a follower


def test_a_followers_bytes_are_stored_as_they_are(fresh: Open) -> None:
    """SEMANTICS 1.25: epochs, gaps, timestamps and what a compaction left behind"""
    data = (
        at(5, 3, leader_epoch=2)
        + v2([record(4)], base_offset=10, last_offset_delta=9, leader_epoch=2, codec="lz4")
        + v2(b"", count=0, base_offset=20, last_offset_delta=3, leader_epoch=3, base_timestamp=-1, max_timestamp=NOW)
        + v2(base_offset=30, leader_epoch=3, attributes=APPEND_TIME, max_timestamp=NOW + 5)
    )
    log = fresh(message_timestamp_type="LogAppendTime", compression_type="gzip", cleanup_policy="compact")
    info = log.append_as_follower(data)
    assert (info.first_offset, info.last_offset, info.max_timestamp) == (5, 30, NOW + 5)
    assert info.log_append_time == -1
    assert stored(log) == data
    assert [r.offset for r in log.read()] == [5, 6, 7, 14, 30]
    assert (log.log_end_offset, log.high_watermark) == (31, 31)


def test_the_size_limit_of_a_message_is_not_a_followers(fresh: Open) -> None:
    """UnifiedLogTest.testMessageSizeCheckInAppendAsFollower"""
    log = fresh(max_message_bytes=len(at(0)) - 1)
    log.append_as_follower(at(0) + at(1))
    assert log.log_end_offset == 2


def test_offsets_out_of_order_store_nothing(fresh: Open) -> None:
    """UnifiedLogTest.testAppendWithOutOfOrderOffsetsThrowsException"""
    log = fresh()
    with pytest.raises(OffsetsOutOfOrderError):
        log.append_as_follower(b"".join(at(n) for n in (0, 1, 3, 2, 4)))
    assert (log.log_end_offset, stored(log)) == (0, b"")


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_an_append_below_the_log_end_is_unexpected(fresh: Open, magic: int, codec: str) -> None:
    """SEMANTICS 1.23; UnifiedLogTest.testAppendBelowExpectedOffsetThrowsException"""
    log = fresh()
    log.append_as_follower(at(0) + at(1))
    before = stored(log)
    if magic == 2:
        data = v2(codec=codec)
    else:
        data = legacy(magic) if codec == "none" else wrapper(magic, [legacy(magic)], codec=codec)
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        log.append_as_follower(data)
    assert (caught.value.first_offset, caught.value.last_offset) == (0, 0)
    assert stored(log) == before


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_an_append_below_the_start_of_an_empty_log_carries_both_offsets(fresh: Open, codec: str) -> None:
    """SEMANTICS 1.24; UnifiedLogTest.testAppendEmptyLogBelowLogStartOffsetThrowsException.
    The caller may start anew."""
    log = fresh()
    log.truncate_fully_and_start_at(7)
    data = v2(messages_of([b"a", b"b", b"c"]), base_offset=4, codec=codec, leader_epoch=0)
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        log.append_as_follower(data)
    assert (caught.value.first_offset, caught.value.last_offset) == (4, 6)
    log.truncate_fully_and_start_at(4)
    assert log.append_as_follower(data).last_offset == 6
    assert log.log_end_offset == 7


def test_from_a_newer_epoch_on_nothing_is_stored(fresh: Open, partition: Path) -> None:
    """SEMANTICS 1.5(2a), vector V27"""
    log = fresh()
    info = log.append_as_follower(
        at(0, leader_epoch=1) + at(1, leader_epoch=2) + at(2, leader_epoch=5) + at(3, leader_epoch=2), leader_epoch=2
    )
    assert (info.first_offset, info.last_offset, log.log_end_offset) == (0, 1, 2)
    assert (partition / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 1\n"
    info = log.append_as_follower(at(2, leader_epoch=5), leader_epoch=2)
    assert (info.first_offset, info.last_offset, log.log_end_offset) == (-1, -1, 2)


@pytest.mark.parametrize("data", [b"", ONE[:-1], ONE[:11]])
def test_a_follower_takes_nothing_from_less_than_a_batch(fresh: Open, data: bytes) -> None:
    """SEMANTICS 1.7"""
    log = fresh()
    assert (log.append_as_follower(data).last_offset, log.log_end_offset) == (-1, 0)


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch(fresh: Open) -> None:
    """SEMANTICS 1.8"""
    log = fresh()
    log.append_as_follower(at(0) + at(1) + at(2)[:-1])
    assert log.log_end_offset == 2
    assert stored(log) == at(0) + at(1)


def test_a_batch_that_never_had_an_epoch_is_refused(fresh: Open) -> None:
    """SEMANTICS 1.26"""
    log = fresh()
    with pytest.raises(InvalidRecordError, match="leader epoch -1"):
        log.append_as_follower(at(0) + at(1, leader_epoch=-1))
    assert (log.log_end_offset, stored(log)) == (0, b"")


def test_offsets_near_the_largest_are_stored_and_read(fresh: Open) -> None:
    largest = 2**63 - 2
    log = fresh()
    log.truncate_fully_and_start_at(largest - 1)
    log.append_as_follower(at(largest - 1))
    assert log.append_batch(ONE).first_offset == largest
    assert [r.offset for r in log.read()] == [largest - 1, largest]
    with pytest.raises(KStoreError):
        log.append_batch(ONE)
    assert log.log_end_offset == 2**63 - 1


def test_what_a_leader_stored_a_follower_stores_alike(fresh: Open, root: Path, clock: ManualClock) -> None:
    """The same bytes, indexes and epochs, whatever the appends."""
    settings: dict[str, Any] = {"segment_bytes": 400, "index_interval_bytes": 100}
    log = fresh(**settings)
    with Log.open(root / "copy-0", clock=clock, **settings) as copy:
        for n in range(12):
            log.append_batch(v2(messages_of([b"%d" % n] * (n % 3 + 1)), codec=CODECS[n % 5]), leader_epoch=n // 5)
            copy.append_as_follower(bytes(log.fetch(log.log_end_offset - 1, 1).records))
        assert stored(copy) == stored(log)
        assert copy.segments[-1].base_offset > 0
        theirs, ours = Path(copy.path), Path(log.path)
        for name in sorted(p.name for p in ours.iterdir()):
            assert (theirs / name).read_bytes() == (ours / name).read_bytes(), name


@pytest.mark.parametrize("as_follower", [False, True])
def test_a_callers_buffer_is_free_again_whatever_became_of_it(fresh: Open, as_follower: bool) -> None:
    """A bytearray that is still exported cannot be resized; an error's traceback would export it."""
    log = fresh()
    append = log.append_as_follower if as_follower else log.append_batch
    sent = bytearray(placed(v2([record(value=b"before")]), 0))
    append(sent)
    sent.clear()
    sent += v2([record(value=b"refused")])[:-1] + b"\1"
    try:
        append(sent)
    except CorruptRecordError:
        sent.clear()
    sent += placed(v2([record(value=b"after")]), 1 if as_follower else 0)
    append(sent)
    assert [r.value for r in log.read()] == [b"before", b"after"]
