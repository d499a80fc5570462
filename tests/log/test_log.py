"""`Log` as its users know it: what goes in comes out, rolls where Kafka rolls, and says no clearly."""

from __future__ import annotations

import json
import os
import pickle
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import kstore
from kstore import LogConfig
from kstore.codec import header
from kstore.disk import fs
from tests.conftest import ManualClock

NOW = 1_700_000_000_000


def canary_value(offset: int) -> bytes:
    """A value of the length that the published experiment had at this offset (SEMANTICS 3.16)."""
    size = 148 if offset <= 2 else 149 if offset <= 32 else 150
    return b"v" * (size - 61 - 9)


def sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir())}


def test_canary_a_comes_out_to_the_byte(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 3.16, V1."""
    with kstore.Log.open(partition, segment_bytes=16384, clock=clock) as log:
        for offset in range(110):
            assert log.append(canary_value(offset), timestamp=NOW + offset) == offset
        found = sizes(partition)
        assert [s.base_offset for s in log.segments] == [0, 109]
        assert log.segments[1].roll_reason == "size"
        assert log.segments[0].roll_reason is None
    assert found["00000000000000000000.log"] == 16314
    assert found["00000000000000000000.index"] == 24
    assert found["00000000000000000000.timeindex"] == 48
    assert found["00000000000000000109.index"] == 10485760
    assert found["00000000000000000109.timeindex"] == 10485756
    assert found["00000000000000000109.snapshot"] == 10
    entries = (partition / "00000000000000000000.index").read_bytes()
    assert entries == b"".join(
        o.to_bytes(4, "big") + p.to_bytes(4, "big") for o, p in ((28, 4169), (56, 8364), (84, 12564))
    )
    times = (partition / "00000000000000000000.timeindex").read_bytes()
    assert times == b"".join((NOW + o).to_bytes(8, "big") + o.to_bytes(4, "big") for o in (28, 56, 84, 108))


def test_canary_b_rolls_when_the_time_index_is_full(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 3.17, V2."""
    with kstore.Log.open(partition, index_interval_bytes=150, segment_index_bytes=300, clock=clock) as log:
        for offset in range(50):
            log.append(canary_value(offset), timestamp=NOW + offset)
        found = sizes(partition)
        assert log.segments[-1].roll_reason == "time_index_full"
    assert found["00000000000000000000.log"] == 7314
    assert found["00000000000000000000.index"] == 192
    assert found["00000000000000000000.timeindex"] == 288
    assert found["00000000000000000049.index"] == 296
    assert found["00000000000000000049.timeindex"] == 300


def contents(root: Path) -> dict[Path, tuple[bytes, int]]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(("second", "rolls"), [(6000, False), (6001, True), (4000, False)])
def test_a_segment_rolls_by_the_time_of_its_first_batch(
    partition: Path, clock: ManualClock, second: int, rolls: bool
) -> None:
    """SEMANTICS V4, 2.2(b), 2.4."""
    clock.now = 7000
    with kstore.Log.open(partition, segment_ms=1000, clock=clock) as log:
        log.append(b"a", timestamp=5000)
        log.append(b"b", timestamp=second)
        assert len(log.segments) == (2 if rolls else 1)
        assert log.segments[-1].roll_reason == ("time" if rolls else None)


@pytest.mark.parametrize(("waited", "rolls"), [(999, False), (1000, False), (1001, True)])
def test_without_timestamps_the_wall_clock_rolls(partition: Path, clock: ManualClock, waited: int, rolls: bool) -> None:
    """SEMANTICS V5: roll iff size > 0 and now - created > 1000; the time index is empty after it."""
    with kstore.Log.open(partition, segment_ms=1000, clock=clock) as log:
        clock.advance(5000)
        log.append(b"a", timestamp=-1)
        assert len(log.segments) == 1  # the segment was empty
        clock.advance(waited - 5000)
        log.append(b"b", timestamp=-1)
        assert len(log.segments) == (2 if rolls else 1)
        if rolls:
            assert sizes(partition)["00000000000000000000.timeindex"] == 0


def test_an_append_that_fills_the_segment_exactly_does_not_roll(partition: Path) -> None:
    """SEMANTICS V3, 2.2(a)."""
    size = 61 + 7 + 20
    with kstore.Log.open(partition, segment_bytes=2 * size) as log:
        for expected in (1, 1, 2):
            log.append(b"x" * 20)
            assert len(log.segments) == expected


def test_a_record_of_exactly_the_segment_size_is_taken_and_one_byte_more_refused(partition: Path) -> None:
    """SEMANTICS 1.27 and its neighbours."""
    with kstore.Log.open(partition, segment_bytes=200) as log:
        fits = b"x" * (200 - 61 - 10 + 1)
        assert log.append(fits) == 0
        with pytest.raises(kstore.RecordBatchTooLargeError, match=r"201 bytes.*200"):
            log.append(fits + b"x")
        assert (log.log_end_offset, len(log.segments)) == (1, 1)


def test_records_come_back_with_all_they_had(partition: Path) -> None:
    """UnifiedLogTest.testAppendMessageWithNullPayload."""
    with kstore.Log.open(partition) as log:
        log.append(b"v", b"k", timestamp=5, headers=[("h", b"x"), ("n", None)])
        log.append(None, b"k", timestamp=NOW)
        log.append(b"", b"")
        log.append_many([b"a", (b"k", b"b"), (None, None, 7, [("h", b"")])])
        found = list(log.read())
    assert [(r.offset, r.key, r.value) for r in found] == [
        (0, b"k", b"v"), (1, b"k", None), (2, b"", b""), (3, None, b"a"), (4, b"k", b"b"), (5, None, None),
    ]  # fmt: skip
    assert found[0].timestamp == 5
    assert found[0].headers == (("h", b"x"), ("n", None))
    assert found[5].timestamp == 7
    assert found[5].headers == (("h", b""),)


def test_a_log_goes_on_where_it_was_closed(partition: Path) -> None:
    with kstore.Log.open(partition, segment_bytes=1000) as log:
        log.append_many(b"%d" % i for i in range(100))
    with kstore.Log.open(partition, segment_bytes=1000) as log:
        assert log.recovery.clean
        assert log.append(b"next") == 100
        assert [r.value for r in log.read(98)] == [b"98", b"99", b"next"]


def test_reading_starts_in_the_middle_of_a_batch_and_crosses_segments(partition: Path) -> None:
    with kstore.Log.open(partition, segment_bytes=2000) as log:
        log.append_many((b"%d" % i for i in range(500)), batch_bytes=300)
        assert len(log.segments) > 3
        for start in (0, 1, 17, 250, 499, 500):
            assert [r.offset for r in log.read(start)] == list(range(start, 500))
        assert [r.offset for r in log.read(100, end_offset=103)] == [100, 101, 102]


def test_an_offset_outside_the_log_is_refused_with_both_marks(partition: Path) -> None:
    """SEMANTICS 4.3, V10."""
    with kstore.Log.open(partition) as log:
        log.append_many([b"a", b"b"])
        assert list(log.read(2)) == []
        with pytest.raises(kstore.OffsetOutOfRangeError, match="starts at 0 and ends at 2") as caught:
            log.read(3)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 2)
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.read(-1)
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.fetch(3, 100)


def test_timestamps_find_the_lowest_offset_at_or_after_them(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS V12."""
    with kstore.Log.open(partition, clock=clock) as log:
        for timestamp in (10, 30, 20, 40, 40):
            log.append(b"v", timestamp=timestamp)
        expected = {15: (30, 1), 20: (30, 1), 30: (30, 1), 31: (40, 3), 40: (40, 3), 41: None}
        for timestamp, answer in expected.items():
            assert log.offset_for_timestamp(timestamp) == answer
        assert log.max_timestamp() == (40, 3)
        assert [r.offset for r in log.read(start_timestamp=31)] == [3, 4]


def test_fetch_gives_whole_batches_as_a_broker_would(partition: Path) -> None:
    """SEMANTICS V11, 4.8: the batch that holds the offset, whole with min_one_message."""
    with kstore.Log.open(partition) as log:
        log.append_many(b"%d" % i for i in range(10))
        log.append_many(b"%d" % i for i in range(10))
        whole = log.fetch(15, 1)
        assert whole.offset == 10
        assert [r.offset for b in kstore.decode_batches(whole.records) for r in b] == list(range(10, 20))
        assert len(log.fetch(15, 1, min_one_message=False).records) == 1
        assert len(log.fetch(20, 100).records) == 0
        assert log.fetch(0, 1 << 20).aborted_transactions is None
        with pytest.raises(ValueError, match="negative"):
            log.fetch(0, -1)


def test_a_fetch_goes_to_a_descriptor_as_it_is(partition: Path, tmp_path: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many(b"%d" % i for i in range(1000))
        result = log.fetch(0, 1 << 20)
        with open(tmp_path / "out", "wb") as out:
            assert result.send_to(out.fileno()) == len(result.records)
        assert (tmp_path / "out").read_bytes() == bytes(result.records)


def test_truncation_inside_a_batch_takes_the_whole_batch(partition: Path) -> None:
    """SEMANTICS V20, 11.4."""
    with kstore.Log.open(partition) as log:
        log.append_many(b"%d" % i for i in range(100))
        assert log.truncate_to(50)
        assert log.log_end_offset == 50
        assert list(log.read()) == []
    with kstore.Log.open(partition) as log:
        assert log.log_end_offset == 0


def test_after_a_truncation_inside_a_batch_appends_go_on_at_the_offset(partition: Path) -> None:
    """SEMANTICS V20: the next append gets 50."""
    with kstore.Log.open(partition) as log:
        log.append_many(b"%d" % i for i in range(100))
        log.truncate_to(50)
        assert log.append(b"x") == 50
    with kstore.Log.open(partition) as log:
        assert log.log_end_offset == 51
        assert [r.offset for r in log.read()] == [50]


def test_a_truncation_waits_for_the_sync_beside_it(
    partition: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEMANTICS 12.2 beside SEMANTICS 11.2: a sync never raises the recovery point above the cut."""
    log = kstore.Log.open(partition, clock=clock)
    for _ in range(12):
        log.append(b"x")
    in_sync, may_end, cut = threading.Event(), threading.Event(), threading.Event()

    def sync(fd: int) -> None:
        assert not cut.is_set()
        in_sync.set()
        may_end.wait(60)

    def truncate() -> None:
        log.truncate_to(7)
        cut.set()

    monkeypatch.setattr(fs, "fdatasync", sync)
    flusher, truncator = threading.Thread(target=log.flush), threading.Thread(target=truncate)
    flusher.start()
    assert in_sync.wait(60)
    truncator.start()
    assert not cut.wait(0.05)
    assert log.log_end_offset == 12
    may_end.set()
    truncator.join()
    flusher.join()
    assert log.stats()["recovery_point"] == 7
    monkeypatch.undo()
    log.close()
    assert (partition.parent / "recovery-point-offset-checkpoint").read_text() == "0\n1\nevents 0 7\n"


def test_truncation_drops_later_segments(partition: Path) -> None:
    """SEMANTICS 11.2, 11.5."""
    with kstore.Log.open(partition, segment_bytes=200) as log:
        for i in range(10):
            log.append(b"%d" % i * 50)
        bases = [s.base_offset for s in log.segments]
        assert log.truncate_to(bases[2])
        assert [s.base_offset for s in log.segments] == bases[:3]
        assert log.segments[-1].size_bytes == 0
        assert not log.truncate_to(bases[2])
        assert log.append(b"again") == bases[2]


def test_delete_records_moves_the_start_and_outlives_a_reopening(partition: Path) -> None:
    """SEMANTICS 11.9 to 11.12; unlike Kafka's, on the disk before it returns."""
    with kstore.Log.open(partition) as log:
        log.append_many(b"%d" % i for i in range(10))
        assert log.delete_records(4) == 4
        assert (partition.parent / "log-start-offset-checkpoint").read_text() == "0\n1\nevents 0 4\n"
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.read(3)
        assert [r.offset for r in log.read()] == list(range(4, 10))
        assert log.delete_records(2) == 4
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.delete_records(11)
    with kstore.Log.open(partition) as log:
        assert log.log_start_offset == 4
        assert log.delete_records(-1) == 10


def test_starting_anew_at_an_unrelated_offset(partition: Path) -> None:
    """SEMANTICS 11.8."""
    with kstore.Log.open(partition) as log:
        log.append(b"x")
        log.truncate_fully_and_start_at(1000)
        assert (log.log_start_offset, log.log_end_offset) == (1000, 1000)
        assert log.append(b"y") == 1000
    with kstore.Log.open(partition) as log:
        assert [r.offset for r in log.read()] == [1000]


def test_an_iterator_that_a_truncation_overtakes_says_so(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        for i in range(10):
            log.append(b"%d" % i)
        records = log.read()
        ahead = log.read()
        for _ in range(3):
            next(records)
        for _ in range(6):
            next(ahead)
        log.truncate_to(5)
        log.append(b"new")
        assert [r.value for r in records] == [b"3", b"4", b"new"]
        with pytest.raises(kstore.OffsetOutOfRangeError, match="starts at 0 and ends at 6"):
            next(ahead)


def test_an_iterator_whose_records_are_deleted_says_so(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many(b"%d" % i for i in range(10))
        records = log.read()
        assert next(records).offset == 0
        log.delete_records(1)
        assert next(records).offset == 1
        log.delete_records(5)
        with pytest.raises(kstore.OffsetOutOfRangeError):
            next(records)


def test_an_iterator_of_a_closed_log_says_so(partition: Path) -> None:
    log = kstore.Log.open(partition)
    log.append_many([b"a", b"b"])
    records = log.read()
    next(records)
    log.close()
    log.close()
    with pytest.raises(kstore.LogClosedError):
        next(records)
    with pytest.raises(kstore.LogClosedError):
        log.append(b"x")
    with pytest.raises(kstore.LogClosedError):
        log.read()


def test_buffers_handed_out_stay_as_they_are(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many(b"%d" % i for i in range(100))
        result = log.fetch(0, 1 << 20)
        before = bytes(result.records)
        batch = next(iter(log.read_batches()))
        log.truncate_to(0)
        log.append_many(b"other" for _ in range(100))
    assert bytes(result.records) == before
    assert [r.value for r in batch] == [b"%d" % i for i in range(100)]


def test_a_reader_sees_what_a_writer_appends(partition: Path) -> None:
    with kstore.Log.open(partition, segment_bytes=1000) as log:
        log.append(b"a")
        with kstore.Log.open(partition, mode="r") as reader:
            assert [r.value for r in reader.read()] == [b"a"]
            log.append(b"b")
            assert reader.log_end_offset == 2
            log.append_many((b"%d" % i for i in range(100)), batch_bytes=1)
            assert [r.offset for r in reader.read()] == list(range(102))
            log.truncate_to(50)
            assert reader.log_end_offset == log.log_end_offset == 50
            log.delete_records(10)
            assert reader.log_start_offset == 10
            with pytest.raises(kstore.LogClosedError, match="mode='r'"):
                reader.append(b"x")


def test_a_reader_notices_that_a_log_was_begun_anew_under_old_names(partition: Path) -> None:
    with kstore.Log.open(partition) as log, kstore.Log.open(partition, mode="r") as reader:
        for i in range(3):
            log.append_many([b"%d" % i] * 3)
            assert len(list(reader.read())) == 3 * i + 3
            log.roll()
        log.truncate_fully_and_start_at(0)
        log.append(b"new")
        assert [r.value for r in reader.read()] == [b"new"]
        log.truncate_fully_and_start_at(0)
        for value in (b"a", b"b"):
            log.append(value)
            log.roll()
        assert [r.value for r in reader.read()] == [b"a", b"b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.append(b"x"),
        lambda log: log.append_columns([b"x"]),
        lambda log: log.flush(),
        lambda log: log.roll(),
        lambda log: log.truncate_to(0),
        lambda log: log.delete_records(0),
        lambda log: log.compact(),
        lambda log: log.run_housekeeping(),
    ],
)
def test_a_change_of_a_log_for_reading_says_how_to_open_it(
    partition: Path, change: Callable[[kstore.Log], object]
) -> None:
    kstore.Log.open(partition).close()
    with kstore.Log.open(partition, mode="r") as reader, pytest.raises(kstore.ReadOnlyError) as caught:
        change(reader)
    assert str(caught.value) == f"{partition} is open with mode='r' and changes nothing; open it with mode='a'"


def test_reading_changes_no_byte_of_the_directory(partition: Path) -> None:
    with kstore.Log.open(partition, segment_bytes=1000) as log:
        log.append_many(b"%d" % i for i in range(100))
    before = contents(partition.parent)
    with kstore.Log.open(partition, mode="r") as reader:
        list(reader.read())
        reader.offset_for_timestamp(0)
        reader.fetch(0, 100)
    assert contents(partition.parent) == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("text",), TypeError),
        ((5,), TypeError),
        ((b"v", "key"), TypeError),
        ((b"x" * (1 << 21),), kstore.RecordTooLargeError),
    ],
)
def test_a_bad_record_is_refused_and_changes_nothing(
    partition: Path, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"first")
        before = sizes(partition)
        with pytest.raises(error):
            log.append(*arguments)  # type: ignore[arg-type]
        assert sizes(partition) == before
        assert log.append(b"second") == 1


@pytest.mark.parametrize(("delta", "fine"), [(3_600_000, True), (3_600_001, False)])
def test_timestamps_far_ahead_are_refused(partition: Path, clock: ManualClock, delta: int, fine: bool) -> None:
    """SEMANTICS 1.17: equality is accepted."""
    with kstore.Log.open(partition, clock=clock) as log:
        if fine:
            assert log.append(b"x", timestamp=clock.now + delta) == 0
            log.append_many([(None, b"x", clock.now + delta, None)])
        else:
            with pytest.raises(kstore.InvalidTimestampError, match="3600000"):
                log.append(b"x", timestamp=clock.now + delta)
            with pytest.raises(kstore.InvalidTimestampError):
                log.append_many([(None, b"x", clock.now + delta, None)])
        with pytest.raises(kstore.InvalidTimestampError):
            log.append(b"x", timestamp=-2)


def test_a_refused_record_keeps_the_batches_before_it(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        with pytest.raises(kstore.InvalidTimestampError) as caught:
            log.append_many([(None, b"x" * 100, i if i != 30 else -5, None) for i in range(40)], batch_bytes=1000)
        appended = caught.value.appended
        assert appended is not None
        assert appended.first_offset == 0
        assert log.log_end_offset == appended.last_offset + 1
        assert 0 < log.log_end_offset <= 30
        with pytest.raises(kstore.InvalidTimestampError):
            log.append_many([b"a", (None, b"x", -5, None)], atomic=True)
        assert log.log_end_offset == appended.last_offset + 1


def test_atomic_is_one_batch_or_nothing(partition: Path) -> None:
    with kstore.Log.open(partition, max_message_bytes=1000) as log:
        log.append_many([b"x" * 100] * 8, atomic=True)
        with pytest.raises(kstore.RecordTooLargeError):
            log.append_many([b"x" * 100] * 10, atomic=True)
        assert log.log_end_offset == 8
        assert len(list(log.read_batches())) == 1


def test_log_append_time_stamps_every_record_with_the_clock(partition: Path, clock: ManualClock) -> None:
    with kstore.Log.open(partition, message_timestamp_type="LogAppendTime", clock=clock) as log:
        log.append(b"a", timestamp=5)
        log.append_many([(None, b"b", 7, None)])
        assert [r.timestamp for r in log.read()] == [clock.now, clock.now]
        assert log.offset_for_timestamp(clock.now) == (clock.now, 0)


def test_a_topics_codec_is_used_by_every_append(partition: Path) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        with kstore.Log.open(partition.with_name(f"{codec}-0"), compression_type=codec) as log:
            log.append(b"x" * 1000)
            log.append_many([b"y" * 1000] * 10)
            assert {batch.compression for batch in log.read_batches()} == {codec}
            assert len(list(log.read())) == 11


def test_leader_epochs_are_recorded_where_they_begin(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"a")
        assert (partition / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
        log.append(b"b", leader_epoch=4)
        log.append(b"c")
        assert (partition / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n4 1\n"
        assert [b.partition_leader_epoch for b in log.read_batches()] == [0, 4, 4]


def test_follower_appends_keep_offsets_and_gaps(partition: Path) -> None:
    def batch(base: int, epoch: int = 3) -> bytes:
        return kstore.encode_batch([b"x"], base_offset=base, partition_leader_epoch=epoch)

    with kstore.Log.open(partition) as log:
        log.append_as_follower(batch(5) + batch(9))
        assert log.log_end_offset == 10
        assert [r.offset for r in log.read()] == [5, 9]
        with pytest.raises(kstore.UnexpectedAppendOffsetError):
            log.append_as_follower(batch(9))
        info = log.append_as_follower(batch(10, 3) + batch(11, 8), leader_epoch=5)
        assert (info.first_offset, info.last_offset) == (10, 10)


def test_follower_index_entries_are_one_per_batch(partition: Path) -> None:
    """SEMANTICS V26."""
    batches = []
    for i in range(8):
        value = b"v" * (100 - 61 - 7)
        timestamp = 1050 if i == 3 else 1000 + i
        data = kstore.encode_batch([(None, value, timestamp, None)], base_offset=i, partition_leader_epoch=0)
        assert len(data) == 100
        batches.append(data)
    with kstore.Log.open(partition, index_interval_bytes=150) as log:
        log.append_as_follower(b"".join(batches))
        log.roll()
    entries = (partition / "00000000000000000000.index").read_bytes()
    assert entries == b"".join(o.to_bytes(4, "big") + p.to_bytes(4, "big") for o, p in ((2, 200), (4, 400), (6, 600)))
    times = (partition / "00000000000000000000.timeindex").read_bytes()
    assert times == b"".join(t.to_bytes(8, "big") + o.to_bytes(4, "big") for t, o in ((1002, 2), (1050, 3)))


def test_an_append_of_many_batches_never_fills_an_index_half_way(partition: Path) -> None:
    """SEMANTICS 3.7a, its advice: split what would not fit."""
    data = b"".join(kstore.encode_batch([b"x"], base_offset=i, partition_leader_epoch=0) for i in range(40))
    with kstore.Log.open(partition, index_interval_bytes=0, segment_index_bytes=100) as log:
        log.append_as_follower(data)
        assert [r.offset for r in log.read()] == list(range(40))
        assert len(log.segments) > 1


def test_an_append_that_spans_more_offsets_than_a_segment_holds_is_split(partition: Path) -> None:
    """SEMANTICS 1.35: Kafka fails here with an internal error; LogSegmentTest.testAppendFromFile, which stops in
    time."""
    with kstore.Log.open(partition) as log:
        bases = (0, 500, 2**31 - 1, 2**31, 2**31 + 4)
        log.append_as_follower(
            b"".join(kstore.encode_batch([b"x"], base_offset=b, partition_leader_epoch=0) for b in bases)
        )
        assert [r.offset for r in log.read()] == list(bases)
        assert [s.base_offset for s in log.segments] == [0, 2**31]
        assert log.segments[-1].roll_reason == "offset_range"


@pytest.mark.parametrize("index_bytes", [12, 23])
def test_index_files_without_a_usable_slot_give_each_append_a_segment(partition: Path, index_bytes: int) -> None:
    """SEMANTICS 2.8: the first append replaces the empty segment, since its time index is full from the start."""
    with kstore.Log.open(partition, segment_index_bytes=index_bytes, index_interval_bytes=0) as log:
        log.append(b"a")
        log.append_many([b"b"] * 2, batch_bytes=1)
        log.append_as_follower(
            b"".join(kstore.encode_batch([b"x"], base_offset=b, partition_leader_epoch=0) for b in (3, 4))
        )
        assert [s.base_offset for s in log.segments] == [0, 1, 2, 3, 4]
        assert {s.roll_reason for s in log.segments} == {"time_index_full"}
        assert len(list(log.read())) == 5


def test_two_writers_of_a_partition_exclude_each_other(partition: Path) -> None:
    with kstore.Log.open(partition), pytest.raises(kstore.LogLockedError, match="events-0"):
        kstore.Log.open(partition)
    with kstore.Log.open(partition), kstore.Log.open(partition.with_name("events-1")):
        pass


def test_a_log_for_writing_is_not_pickled_and_one_for_reading_opens_again(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"x")
        with pytest.raises(TypeError, match="locks"):
            pickle.dumps(log)
        with kstore.Log.open(partition, mode="r") as reader:
            copy = pickle.loads(pickle.dumps(reader))
            assert [r.value for r in copy.read()] == [b"x"]


def test_names_that_kafka_forbids_are_refused(root: Path) -> None:
    for name in ("noPartition", "bad topic-0", "..-0", "x-"):
        with pytest.raises(kstore.InvalidTopicError):
            kstore.Log.open(root / name)
    assert list(root.iterdir()) == []


def test_a_name_that_is_another_partitions_in_disguise_is_refused(root: Path) -> None:
    """FORMAT 1.2: no zero padding; a partition on its way out is not written to."""
    for name in ("x-00", "x-+1", f"x-0.{'0' * 32}-delete"):
        with pytest.raises(kstore.InvalidTopicError, match="x-"):
            kstore.Log.open(root / name)
    assert list(root.iterdir()) == []


def test_a_missing_directory_is_not_made_for_a_reader(partition: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kstore.Log.open(partition, mode="r")
    assert not partition.exists()


def test_the_config_says_which_settings_are_wrong(partition: Path) -> None:
    with pytest.raises(kstore.ConfigError, match="segment_bytes"):
        kstore.Log.open(partition, segment_byte=5)
    assert not partition.exists()
    with kstore.Log.open(partition, config=LogConfig.from_kafka({"segment.bytes": "1048576"})) as log:
        assert log.config.segment_bytes == 1 << 20
        assert log.config.retention_ms == 604800000
        log.update_config(segment_bytes=2 << 20)
        assert log.config.segment_bytes == 2 << 20


def test_follow_ends_after_its_timeout(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"x")
        assert [r.value for r in log.read(follow=True, timeout=0)] == [b"x"]
        with kstore.Log.open(partition, mode="r") as reader:
            assert [r.value for r in reader.read(follow=True, timeout=0)] == [b"x"]


def test_segments_say_what_is_in_them(partition: Path) -> None:
    with kstore.Log.open(partition, segment_bytes=1000, index_interval_bytes=100) as log:
        for i in range(20):
            log.append(b"x" * 50, timestamp=1000 + i)
        infos = log.segments
        assert sum(info.size_bytes for info in infos) == sum(Path(info.path).stat().st_size for info in infos)
        assert [info.is_active for info in infos] == [False] * (len(infos) - 1) + [True]
        assert infos[0].first_timestamp == 1000
        assert infos[0].max_timestamp == 1000 + infos[0].next_offset - 1
        assert infos[0].offset_index_entries == Path(infos[0].path).with_suffix(".index").stat().st_size // 8
        stats = log.stats()
        assert json.loads(json.dumps(stats))["segments"] == len(infos)


def test_an_unwritable_directory_is_a_storage_error_with_its_path(root: Path) -> None:
    if os.geteuid() == 0:
        (root / "file").write_bytes(b"")
        with pytest.raises(kstore.StorageError) as caught:
            kstore.Log.open(root / "file" / "events-0")
    else:
        root.chmod(stat.S_IREAD | stat.S_IEXEC)
        with pytest.raises(kstore.StorageError) as caught:
            kstore.Log.open(root / "events-0")
    assert caught.value.errno
    assert str(root) in str(caught.value.filename)


def test_a_batch_that_decompresses_beyond_the_limit_is_an_error(partition: Path) -> None:
    with kstore.Log.open(partition, max_decompressed_bytes=100_000) as log:
        log.append_many([b"x" * 90_000], compression="zstd")
        assert len(next(log.read()).value or b"") == 90_000
        log.append_many([b"x" * 110_000], compression="zstd")
        with pytest.raises(kstore.CorruptRecordError, match="100000"):
            list(log.read(1))
    with kstore.Log.open(partition, mode="r") as reader:
        assert len(list(reader.read())) == 2
        assert len(list(pickle.loads(pickle.dumps(reader)).read())) == 2


def damaged(partition: Path, codec: str, count: int | None = None) -> Path:
    """The first of two segments: a bit is wrong; or its one batch declares another number of records, with its CRC."""
    with kstore.Log.open(partition) as log:
        log.append_many([b"first", b"second"], compression=codec)
        log.roll()
        log.append(b"third")
        path = Path(log.segments[0].path)
    data = bytearray(path.read_bytes())
    if count is None:
        data[-1] ^= 1
    else:
        header.RECORDS_COUNT.put(data, count)
        header.CRC.put(data, header.computed_crc(data))
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_error_inside_of_a_batch_says_what_to_do(
    partition: Path, mode: Literal["a", "r"], codec: str, count: int
) -> None:
    path = damaged(partition, codec, count)
    with kstore.Log.open(partition, mode) as log:
        for read in (lambda: list(log.read()), lambda: log.read_columns(), lambda: log.latest()):
            with pytest.raises(kstore.CorruptRecordError) as info:
                read()
            assert str(info.value) == f"{path} at position 0: {info.value.reason}; see `kstore repair`"


@pytest.mark.parametrize("mode", ["a", "r"])
def test_an_error_of_a_read_says_once_what_to_do_and_its_reason_only_what_was_found(
    partition: Path, mode: Literal["a", "r"]
) -> None:
    path = damaged(partition, "none")
    with kstore.Log.open(partition, mode) as log:
        reads: list[Callable[[], object]] = [
            lambda: list(log.read()),
            lambda: list(log.read_batches()),
            lambda: log.read_columns(),
            lambda: log.latest(),
        ]
        for read in reads:
            with pytest.raises(kstore.CorruptRecordError) as info:
                read()
            error = info.value
            assert str(error) == f"{path} at position 0: {error.reason}; see `kstore repair`"
            assert "repair" not in error.reason
            assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_buffer_with_gaps_between_its_bytes_is_taken_as_by_append_many(tmp_path: Path) -> None:
    gaps, grid = memoryview(b"a.b.c.")[::2], np.arange(12, dtype=np.uint8).reshape(3, 4)[:, 1]
    with kstore.Store.open(tmp_path / "data") as store:
        store.create_topic("events", 1)
        log = store.log("events", 0)
        log.append(gaps, key=grid, headers=[("h", gaps)])
        log.append(grid, expected_offset=1)
        store.append("events", gaps, key=grid)
        store.append("events", grid)
        log.append_many([(grid, gaps)])
        with store.producer() as producer:
            producer.append("events", gaps, grid)
        found = [(record.key, record.value) for record in log.read()]
    both, alone = (b"\x01\x05\x09", b"abc"), (None, b"\x01\x05\x09")
    assert found == [both, alone, both, alone, both, both]


def test_the_roll_of_an_empty_segment_renews_its_age(partition: Path, clock: ManualClock) -> None:
    """SEMANTICS 2.8, 2.3: records without a timestamp are held against the segment's age."""
    with kstore.Log.open(partition, segment_ms=1000, clock=clock) as log:
        clock.advance(900)
        assert log.roll() == 0
        log.append(b"v", timestamp=-1)
        clock.advance(1000)
        log.append(b"v", timestamp=-1)
        assert len(log.segments) == 1
        clock.advance(1)
        log.append(b"v", timestamp=-1)
        assert [segment.base_offset for segment in log.segments] == [0, 2]
