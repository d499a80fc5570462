"""The oracle itself: Kafka's log, driven by our driver, repeats what real brokers left in the golden sets and what the
rules and vectors of docs/rules/semantics.md say. What fails here is no fault of kstore's."""

from __future__ import annotations

import base64
import filecmp
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.golden import goldensets
from tests.kafka.kafka_jvm import START_MS, Kafka, KafkaError, KafkaLog, Row

pytestmark = pytest.mark.kafka


@pytest.fixture
def fresh(kafka: Kafka, partition: Path) -> Any:
    """`fresh(**settings)`: a new log of Kafka's in `partition`, dots in the names as underscores."""

    def create(**settings: Any) -> KafkaLog:
        return kafka.open(partition, config={name.replace("_", "."): value for name, value in settings.items()})

    return create


def value_of(counter: int) -> bytes:
    """A JSON value whose batch takes 148 bytes with one digit, 149 with two, 150 with three (SEMANTICS 3.16)."""
    return b'{"counter":%d,"pad":"%s"}' % (counter, b"x" * 56)


def batch(kafka: Kafka, offset: int, size: int, timestamp: int = START_MS, epoch: int = 0) -> bytes:
    """A follower's batch of one record that takes exactly `size` bytes; from 128 bytes on lengths take two bytes."""
    value = b"x" * (size - 68 if size < 128 else size - 70)
    data = kafka.encode([(timestamp, None, value)], base_offset=offset, leader_epoch=epoch)
    assert len(data) == size
    return data


def offset_entries(path: Path, base: int = 0) -> list[tuple[int, int]]:
    return [(base + relative, position) for relative, position in struct.iter_unpack(">ii", path.read_bytes())]


def time_entries(path: Path, base: int = 0) -> list[tuple[int, int]]:
    return [(timestamp, base + relative) for timestamp, relative in struct.iter_unpack(">qi", path.read_bytes())]


def bases(log: KafkaLog) -> list[int]:
    return [segment["base_offset"] for segment in log.call("segments")]


# --- what brokers wrote -----------------------------------------------------------------------------------------------

REPEATED = [
    ("canary-16k", "dir/canary-0", {"internal.segment.bytes": 16384}),
    ("canary-vectors", "dir/vector-a-0", {"internal.segment.bytes": 16384}),
    ("canary-vectors", "dir/vector-b-0", {"index.interval.bytes": 150, "segment.index.bytes": 300}),
    ("canary-index-full", "dir/indexfull-0", {"index.interval.bytes": 150, "segment.index.bytes": 300}),
    ("canary-index-full", "dir/indexfull-1", {"index.interval.bytes": 150, "segment.index.bytes": 300}),
]


@pytest.mark.parametrize(("name", "directory", "config"), REPEATED, ids=lambda v: Path(v).name if "/" in str(v) else "")
def test_the_driver_repeats_a_brokers_directory_byte_for_byte(
    kafka: Kafka, golden: Any, tmp_path: Path, name: str, directory: str, config: dict[str, Any]
) -> None:
    theirs = golden(name) / directory
    ours = tmp_path / Path(directory).name
    forever = {"segment.ms": 2**63 - 1, "retention.ms": -1}
    log = kafka.open(ours, now=START_MS + 10**6, config={**forever, **config})
    for record in goldensets.expected_records(name, directory):
        log.append((record.timestamp, record.key, record.value))
    log.close()
    names = sorted(path.name for path in theirs.iterdir() if path.name != "partition.metadata")
    assert sorted(path.name for path in ours.iterdir()) == names
    assert filecmp.cmpfiles(theirs, ours, names, shallow=False) == (names, [], [])


@pytest.mark.parametrize("name", ["codecs", "legacy", "transactions", "compaction"])
def test_the_driver_reads_the_records_that_were_listed_with_a_set(kafka: Kafka, golden: Any, name: str) -> None:
    folder = golden(name)
    listed = [line for line in goldensets.read_lines(name) if "error" not in line and "emptyBatch" not in line]
    for directory in sorted({line["dir"] for line in listed}):
        wanted = [
            {field: value for field, value in line.items() if field != "dir"}
            for line in listed
            if line["dir"] == directory
        ]
        found = [line for line in kafka.records(folder / directory) if "offset" in line]
        for line in found:
            del line["valid"], line["batchMaxTimestamp"]
        assert found == wanted


def test_the_dump_tool_runs_and_its_complaints_and_exit_are_caught(kafka: Kafka, golden: Any) -> None:
    directory = golden("canary-vectors") / "dir/vector-a-0"
    index, log = directory / f"{0:020d}.index", directory / f"{0:020d}.log"
    entries = "offset: 28 position: 4169\noffset: 56 position: 8364\noffset: 84 position: 12564\n"
    assert kafka.dump("--files", index) == (0, f"Dumping {index}\n{entries}", "")
    assert kafka.dump("--index-sanity-check", "--files", index).out.endswith("passed sanity check.\n")
    assert kafka.dump("--deep-iteration", "--print-data-log", "--files", log).out.count("payload: ") == 109
    index.write_bytes(struct.pack(">iiii", 28, 4020, 56, 8364))
    assert "Mismatches in" in kafka.dump("--verify-index-only", "--files", index).err
    refused = kafka.dump("--no-such-option")
    assert refused.code == 1
    assert "no-such-option is not a recognized option" in refused.err


# --- the vectors of SEMANTICS 15 -----------------------------------------------------------------------------------


def test_v1_the_first_canary_comes_out_to_the_byte(fresh: Any, partition: Path) -> None:
    log = fresh(**{"internal.segment.bytes": 16384})
    for i in range(110):
        log.append((START_MS + i, None, value_of(3 * i + 1)))
    assert [(s["base_offset"], s["size_bytes"]) for s in log.call("segments")] == [(0, 16314), (109, 150)]
    index, timeindex = (partition / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex"))
    assert offset_entries(index) == [(28, 4169), (56, 8364), (84, 12564)]
    assert time_entries(timeindex) == [(START_MS + i, i) for i in (28, 56, 84, 108)]
    assert (partition / f"{109:020d}.index").stat().st_size == 10485760
    assert (partition / f"{109:020d}.timeindex").stat().st_size == 10485756
    assert (partition / f"{109:020d}.snapshot").stat().st_size == 10


def test_v2_a_full_time_index_rolls_the_second_canary_at_offset_49(fresh: Any, partition: Path) -> None:
    log = fresh(index_interval_bytes=150, segment_index_bytes=300)
    for i in range(50):
        log.append((START_MS + i, None, value_of(3 * i + 1)))
    assert [(s["base_offset"], s["size_bytes"]) for s in log.call("segments")] == [(0, 7314), (49, 150)]
    sizes = {path.name[15:]: path.stat().st_size for path in partition.glob("*index")}
    assert sizes == {"00000.index": 192, "00000.timeindex": 288, "00049.index": 296, "00049.timeindex": 300}


@pytest.mark.parametrize(("segment_bytes", "segments"), [(299, [0, 1]), (300, [0])])
def test_v3_a_segment_rolls_when_the_append_does_not_fit(
    kafka: Kafka, fresh: Any, segment_bytes: int, segments: list[int]
) -> None:
    log = fresh(**{"internal.segment.bytes": segment_bytes})
    log.append_as_follower(batch(kafka, 0, 200))
    log.append_as_follower(batch(kafka, 1, 100))
    assert bases(log) == segments


def test_v3_an_append_over_the_segment_size_is_refused(fresh: Any) -> None:
    log = fresh(**{"internal.segment.bytes": 100})
    log.append((START_MS, None, b"x" * 32))
    with pytest.raises(KafkaError) as refused:
        log.append((START_MS, None, b"x" * 33))
    assert refused.value.name == "RecordBatchTooLargeException"


@pytest.mark.parametrize(("timestamp", "segments"), [(6000, [0]), (6001, [0, 1]), (4000, [0])])
def test_v4_event_time_rolls_after_more_than_segment_ms(fresh: Any, timestamp: int, segments: list[int]) -> None:
    log = fresh(segment_ms=1000)
    log.append((5000, None, b"v"))
    log.append((timestamp, None, b"v"))
    assert bases(log) == segments


def test_v5_without_timestamps_the_wall_clock_rolls(fresh: Any, partition: Path) -> None:
    log = fresh(segment_ms=1000)
    log.append((-1, None, b"v"))
    for waited, segments in ((1000, [0]), (1001, [0, 2])):
        log.call("set_clock", now=START_MS + waited)
        log.append((-1, None, b"v"))
        assert bases(log) == segments
    assert (partition / f"{0:020d}.timeindex").stat().st_size == 0


@pytest.mark.parametrize(("now", "high_watermark", "gone"), [(6000, 2, 0), (6001, 2, 1), (6001, 0, 0)])
def test_v8_v9_retention_takes_what_is_older_and_below_the_high_watermark(
    fresh: Any, now: int, high_watermark: int, gone: int
) -> None:
    log = fresh(retention_ms=1000)
    log.append((5000, None, b"v"))
    log.call("roll")
    log.append((5001, None, b"v"))
    log.call("set_high_watermark", offset=high_watermark)
    assert log.call("retain", now=now) == gone


def test_v10_reading_at_the_end_is_empty_and_beyond_it_an_error(fresh: Any) -> None:
    log = fresh()
    log.append((START_MS, None, b"a"), (START_MS, None, b"b"))
    log.append((START_MS, None, b"c"))
    assert log.read(3)["records"] == b""
    with pytest.raises(KafkaError) as refused:
        log.read(4)
    assert refused.value.name == "OffsetOutOfRangeException"
    log.call("set_high_watermark", offset=2)
    assert log.read(2, isolation="read_uncommitted")["records"] == b""


def test_v11_a_batch_comes_whole_or_in_part(kafka: Kafka, fresh: Any) -> None:
    log = fresh()
    log.append_as_follower(kafka.encode([(START_MS, None, b"v")] * 10, base_offset=10, leader_epoch=0))
    whole = log.read(15, 1)
    assert (whole["offset"], whole["position"], whole["first_entry_incomplete"]) == (10, 0, False)
    assert len(whole["records"]) == log.call("segments")[0]["size_bytes"]
    part = log.read(15, 1, min_one_message=False)
    assert (len(part["records"]), part["first_entry_incomplete"]) == (1, True)


def test_v12_a_time_lookup_gives_the_lowest_offset_at_or_after_it(fresh: Any) -> None:
    log = fresh()
    for timestamp in (10, 30, 20, 40, 40):
        log.append((timestamp, None, b"v"))
    asked = (15, 20, 30, 31, 40, 41, -3)
    expected = [(30, 1), (30, 1), (30, 1), (40, 3), (40, 3), None, (40, 3)]
    assert [log.offset_for_timestamp(timestamp) for timestamp in asked] == expected


def test_v20_truncating_inside_a_batch_takes_the_batch_and_keeps_the_offset(
    kafka: Kafka, fresh: Any, partition: Path
) -> None:
    log = fresh()
    log.append((START_MS, None, b"first"))
    log.append(*[(START_MS, None, b"v")] * 100)
    assert log.call("truncate_to", offset=51) is True
    assert log.marks()["log_end_offset"] == 51
    log.close(marker=True)
    again = kafka.open(partition)
    assert again.marks()["log_end_offset"] == 1
    assert again.append((START_MS, None, b"v"))["first_offset"] == 1


def test_v21_a_torn_tail_is_cut_and_the_indexes_are_rebuilt(kafka: Kafka, fresh: Any, partition: Path) -> None:
    log = fresh(index_interval_bytes=0)
    for i in range(4):
        log.append((START_MS + i, None, b"v" * 32))
    log.crash()
    with (partition / f"{0:020d}.log").open("r+b") as file:
        file.truncate(395)
    again = kafka.open(partition, clean=False, config={"index.interval.bytes": 0})
    assert again.marks()["log_end_offset"] == 3
    again.close()
    assert (partition / f"{0:020d}.log").stat().st_size == 300
    assert offset_entries(partition / f"{0:020d}.index") == [(1, 100), (2, 200)]


@pytest.mark.parametrize(("suffix", "rebuilt"), [("index", True), ("timeindex", False)])
def test_v22_a_missing_offset_index_is_rebuilt_and_a_missing_time_index_is_not(
    kafka: Kafka, fresh: Any, partition: Path, suffix: str, rebuilt: bool
) -> None:
    log = fresh(index_interval_bytes=0)
    for i in range(4):
        log.append((START_MS + i, None, b"v"))
    log.call("roll")
    log.close(marker=True)
    path = partition / f"{0:020d}.{suffix}"
    before = path.read_bytes()
    assert before
    path.unlink()
    kafka.open(partition, config={"index.interval.bytes": 0}).close()
    assert path.read_bytes() == (before if rebuilt else b"")


def test_v23_v24_epochs_answer_and_give_way_as_the_vectors_say(fresh: Any) -> None:
    log = fresh()
    log.append_as_follower(log.kafka.encode([(START_MS, None, b"v")], base_offset=0, leader_epoch=1))
    log.append_as_follower(log.kafka.encode([(START_MS, None, b"v")] * 10, base_offset=10, leader_epoch=3))
    ends = [log.call("end_offset_for", epoch=epoch) for epoch in range(5)]
    assert ends == [[0, 0], [1, 10], [1, 10], [3, 20], [-1, -1]]
    log.call("truncate_fully", offset=0)
    first = (1, 0)
    for epoch, offset, entries in (
        (1, 0, [first]),
        (2, 10, [first, (2, 10)]),
        (2, 8, [first, (2, 8)]),
        (3, 8, [first, (3, 8)]),
    ):
        log.call("assign_epoch", epoch=epoch, offset=offset)
        assert log.epochs() == entries


def test_v25_a_clean_close_leaves_an_empty_snapshot_of_ten_bytes(fresh: Any, partition: Path) -> None:
    log = fresh()
    for _ in range(7):
        log.append((START_MS, None, b"v"))
    log.close()
    assert (partition / f"{7:020d}.snapshot").stat().st_size == 10


def test_v26_each_batch_of_a_followers_append_is_indexed_by_itself(kafka: Kafka, fresh: Any, partition: Path) -> None:
    log = fresh(index_interval_bytes=150)
    log.append_as_follower(b"".join(batch(kafka, i, 100, 1050 if i == 3 else 1000 + i) for i in range(8)))
    log.close()
    assert offset_entries(partition / f"{0:020d}.index") == [(2, 200), (4, 400), (6, 600)]
    assert time_entries(partition / f"{0:020d}.timeindex") == [(1002, 2), (1050, 3)]


def test_v27_batches_of_a_newer_epoch_than_the_callers_are_dropped(kafka: Kafka, fresh: Any) -> None:
    log = fresh()
    log.append_as_follower(
        b"".join(batch(kafka, i, 100, epoch=epoch) for i, epoch in enumerate((1, 2, 5, 2))), leader_epoch=2
    )
    assert (log.marks()["log_end_offset"], log.epochs()) == (2, [(1, 0), (2, 1)])
    nothing = log.append_as_follower(batch(kafka, 2, 100, epoch=5), leader_epoch=2)
    assert (nothing["first_offset"], nothing["last_offset"]) == (-1, -1)


def test_v28_markers_are_held_to_their_producers_epoch(kafka: Kafka, fresh: Any) -> None:
    log = fresh()
    steps = ((1, 0, True), (1, 2, True), (1, 2, True), (2, 2, True), (2, 2, True), (1, 2, False), (2, 0, True))
    for epoch, version, accepted in steps:
        marker = kafka.marker(START_MS, commit=True, producer_id=7, producer_epoch=epoch)
        if accepted:
            log.append_as_leader(marker, origin="coordinator", transaction_version=version)
        else:
            with pytest.raises(KafkaError) as refused:
                log.append_as_leader(marker, origin="coordinator", transaction_version=version)
            assert refused.value.name == "InvalidProducerEpochException"


def test_v29_the_first_batch_of_a_segment_decides_its_first_timestamp(kafka: Kafka, fresh: Any) -> None:
    log = fresh(segment_ms=5000)
    log.append_as_follower(batch(kafka, 0, 100, 1000) + batch(kafka, 1, 100, 9000))
    log.append_as_follower(batch(kafka, 2, 100, 6500))
    assert bases(log) == [0, 2]


def test_v30_a_bare_high_watermark_inside_a_batch_moves_to_the_batch(kafka: Kafka, fresh: Any, partition: Path) -> None:
    log = fresh()
    for base in (0, 10):
        log.append_as_follower(kafka.encode([(START_MS, None, b"v")] * 10, base_offset=base, leader_epoch=0))
    log.call("set_high_watermark", offset=15)
    read = log.read(0, isolation="read_uncommitted")
    assert len(read["records"]) * 2 == log.call("segments")[0]["size_bytes"]
    assert log.marks()["high_watermark"] == 10


def test_v31_reading_in_a_gap_tells_the_base_of_the_batch_behind_it(kafka: Kafka, fresh: Any) -> None:
    log = fresh()
    for base in (0, 10):
        log.append_as_follower(kafka.encode([(START_MS, None, b"v")] * 5, base_offset=base, leader_epoch=0))
    assert log.read(7)["offset"] == 10


# --- the driver -------------------------------------------------------------------------------------------------------


def test_background_tasks_wait_for_the_clock_that_the_test_moves(fresh: Any, partition: Path) -> None:
    log = fresh(file_delete_delay_ms=1000)
    log.append((START_MS, None, b"v"))
    log.call("roll")
    log.append((START_MS, None, b"v"))
    log.call("truncate_to", offset=1)
    log.call("truncate_to", offset=0)
    assert list(partition.glob("*.deleted"))
    log.call("run_tasks", now=START_MS + 999)
    assert list(partition.glob("*.deleted"))
    log.call("run_tasks", now=START_MS + 1000)
    assert not list(partition.glob("*.deleted"))


def test_a_log_opens_where_its_checkpoints_say(kafka: Kafka, fresh: Any, partition: Path) -> None:
    log = fresh()
    for _ in range(5):
        log.append((START_MS, None, b"v"))
    log.call("delete_records", offset=3)
    log.close(marker=True)
    assert (partition.parent / "log-start-offset-checkpoint").read_text() == "0\n1\nevents 0 3\n"
    again = kafka.open(partition)
    assert (again.marks()["log_start_offset"], again.marks()["recovery_point"]) == (3, 5)


def test_an_unknown_operation_or_setting_is_refused_and_the_process_lives_on(kafka: Kafka, fresh: Any) -> None:
    with pytest.raises(KafkaError) as unknown:
        kafka.call("no such thing")
    assert unknown.value.name == "NoSuchElementException"
    with pytest.raises(KafkaError) as setting:
        fresh(segment_bites=1)
    assert setting.value.name == "InvalidConfigurationException"
    assert base64.b64encode(kafka.encode([(START_MS, None, b"v")]))


def test_rows_of_every_shape_reach_kafkas_builder(kafka: Kafka, fresh: Any, partition: Path) -> None:
    rows: list[Row] = [
        (START_MS, b"k", b"v", [("name", b"value"), ("empty", None)]),
        (START_MS + 1, None, None),
        (START_MS + 2, b"", b"", None, 5),
    ]
    log = fresh()
    log.append_as_follower(kafka.encode(rows, base_offset=0, leader_epoch=0, compression="zstd"))
    found = kafka.records(partition)
    assert [line["offset"] for line in found] == [0, 1, 5]
    assert found[0]["headers"] == [["name", "dmFsdWU="], ["empty", None]]
    assert (found[1]["key"], found[1]["value"], found[2]["key"]) == (None, None, "")
