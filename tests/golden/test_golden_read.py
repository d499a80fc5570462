"""What Kafka's own classes read from directories that real brokers left, kstore reads too: every one of them.

Each test goes through all partition directories of all golden sets, read-only and (on a copy) opened for writing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import pytest

import kstore
from kstore.codec import header
from tests.conftest import ManualClock
from tests.golden import goldenlogs
from tests.golden.goldenlogs import PARTITIONS, Batch, Oracle, Partition, Row

Mode = Literal["r", "a"]
pytestmark = pytest.mark.usefixtures("no_syncs")
every_partition = pytest.mark.parametrize("partition", PARTITIONS, ids=str)

# A fault in the middle, at this offset: kstore gives what is before it, and then an error that says where. Kafka's
# classes go on, since they check no CRC when they read (SEMANTICS 4.13).
FAULTS = {Partition("crash-damaged", "before/damaged-1"): 89}
# An index that was written over: a read-only log may use any part of it.
GARBAGE = {"00000000000000000053.timeindex"}


def open_log(partition: Partition, root: Path, mode: Mode) -> kstore.Log:
    directory = root / partition.directory.rpartition("/")[2]
    if mode == "r":
        return kstore.Log.open(directory, "r")
    return kstore.Log.open(directory, config=goldenlogs.config(partition), clock=ManualClock(2_000_000_000_000))


@every_partition
def test_reading_gives_what_kafka_reads_and_changes_no_byte(
    partition: Partition, tmp_path: Path, rng: random.Random
) -> None:
    root = goldenlogs.copy_root(partition, tmp_path)
    oracle = goldenlogs.oracle(partition, root)
    before = stamps(root)
    with open_log(partition, root, "r") as log:
        if partition in FAULTS:
            check_records_up_to(FAULTS[partition], log, oracle)
        else:
            check_records(log, oracle)
            check_timestamps(log, oracle, rng)
        check_marks(log, oracle)
        check_segments(log, oracle)
        check_fetches(log, oracle, rng)
    assert stamps(root) == before


@every_partition
def test_opened_for_writing_a_copy_gives_the_same(partition: Partition, tmp_path: Path, rng: random.Random) -> None:
    root = goldenlogs.copy_root(partition, tmp_path)
    oracle = goldenlogs.oracle(partition, root)
    if partition in FAULTS:
        oracle = goldenlogs.cut(oracle, FAULTS[partition])
    with open_log(partition, root, "a") as log:
        check_records(log, oracle)
        check_timestamps(log, oracle, rng)
        check_marks(log, oracle)
        check_segments(log, oracle)
        check_fetches(log, oracle, rng)


@pytest.mark.parametrize("partition", [each for each in PARTITIONS if each.set == "legacy"], ids=str)
def test_a_compressed_message_of_an_old_format_is_read_from_each_of_its_offsets(
    partition: Partition, tmp_path: Path
) -> None:
    root = goldenlogs.copy_root(partition, tmp_path)
    rows = plain(goldenlogs.oracle(partition, root))
    with open_log(partition, root, "r") as log:
        for number, row in enumerate(rows):
            assert [record.offset for record in log.read(row.offset)] == [each.offset for each in rows[number:]]


# --- what is checked --------------------------------------------------------------------------------------------------


def check_records(log: kstore.Log, oracle: Oracle) -> None:
    """`read_batches` gives whole batches; `read` the records alone, none below the log start or of a control batch."""
    assert goldenlogs.found_rows(log.read_batches()) == readable(oracle)
    expected = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in plain(oracle)]
    assert [tuple(record) for record in log.read()] == expected
    by_offset = {each[0]: each for each in expected}
    step = -(-(log.log_end_offset - log.log_start_offset) // 300) or 1
    for offset in range(log.log_start_offset, log.log_end_offset, step):
        record = log.get(offset)
        assert (None if record is None else tuple(record)) == by_offset.get(offset)


def check_records_up_to(fault: int, log: kstore.Log, oracle: Oracle) -> None:
    """Both ways of reading give what is before the unsound batch, and then its place."""
    batches: list[kstore.RecordBatch] = []
    with pytest.raises(kstore.CorruptRecordError, match="CRC"):
        batches.extend(log.read_batches())
    expected = [row for row in readable(oracle) if row.batchBaseOffset < fault]
    assert goldenlogs.found_rows(batches) == expected
    records: list[kstore.Record] = []
    with pytest.raises(kstore.CorruptRecordError, match="CRC"):
        records.extend(log.read())
    assert [record.offset for record in records] == [row.offset for row in plain(oracle) if row.offset < fault]


def readable(oracle: Oracle) -> list[Row]:
    """The rows that are not below the log start: batches go whole."""
    first = next((b for b in oracle.batches if b.last_offset >= oracle.log_start), None)
    low = oracle.log_end if first is None else first_offset(first, oracle)
    return [row for row in oracle.rows if row.batchBaseOffset >= low]


def plain(oracle: Oracle) -> list[goldenlogs.RecordRow]:
    return [row for row in oracle.records if row.offset >= oracle.log_start and not row.isControl]


def check_timestamps(log: kstore.Log, oracle: Oracle, rng: random.Random) -> None:
    """SEMANTICS 5.4 and 5.5, against a walk through all records: control records count too."""
    records = [row for row in oracle.records if row.offset >= oracle.log_start]
    stamps = [row.timestamp for row in oracle.records if row.timestamp >= 0]
    asked = {0, 1, 2**62, *stamps}
    asked |= {near + step for near in rng.sample(stamps, min(len(stamps), 25)) for step in (-1, 1)}
    for timestamp in sorted(asked):
        expected = next(((row.timestamp, row.offset) for row in records if row.timestamp >= timestamp), None)
        assert log.offset_for_timestamp(timestamp) == expected, timestamp
    assert log.max_timestamp() == greatest(oracle)
    after = rng.choice(sorted(asked))
    start = next((row.offset for row in records if row.timestamp >= after), oracle.log_end)
    found = [record.offset for record in log.read(start_timestamp=after)]
    assert found == [row.offset for row in plain(oracle) if row.offset >= start], after


def greatest(oracle: Oracle) -> tuple[int, int] | None:
    """SEMANTICS 5.4: of the first batch that claims the greatest timestamp the first record.

    Batches that a cleaner has emptied do not count (`latest-of-an-emptied-batch`).
    """
    filled = (each for each in oracle.batches if each.magic < 2 or len(each.data) > header.HEADER_BYTES)
    batch = max(filled, key=lambda batch: batch.max_timestamp, default=None)
    if batch is None or batch.max_timestamp < 0:
        return None
    base = first_offset(batch, oracle)
    rows = [row for row in oracle.records if row.batchBaseOffset == base and row.timestamp == batch.max_timestamp]
    return (rows[0].timestamp, rows[0].offset) if rows else None


def check_fetches(log: kstore.Log, oracle: Oracle, rng: random.Random) -> None:
    """SEMANTICS 4.1 to 4.9, against a walk through all batches."""
    edges = {edge for b in oracle.batches for edge in (b.base_offset, b.last_offset, b.last_offset + 1)}
    asked = rng.sample(sorted(edges), min(len(edges), 25))
    for offset in [*asked, oracle.log_start, oracle.log_start + 1, oracle.log_end, oracle.log_end + 1]:
        if not oracle.log_start <= offset <= oracle.log_end:
            with pytest.raises(kstore.OffsetOutOfRangeError):
                log.fetch(offset, 1000)
            continue
        for max_bytes in (0, 1, 61, rng.randrange(5000), 1 << 20):
            for min_one_message in (True, False):
                found = log.fetch(offset, max_bytes, min_one_message=min_one_message)
                place, records = fetched(oracle, offset, max_bytes, min_one_message)
                assert (found.offset, found.segment_base_offset, found.position) == place
                assert bytes(found.records) == records


def fetched(oracle: Oracle, offset: int, max_bytes: int, min_one_message: bool) -> tuple[tuple[int, int, int], bytes]:
    floor = max((base for base in oracle.bases if base <= offset), default=-1)
    for number, batch in enumerate(oracle.batches):
        if offset < oracle.log_end and batch.segment >= floor and batch.last_offset >= offset:
            most = max(max_bytes, len(batch.data)) if min_one_message else max_bytes
            rest = b"".join(later.data for later in oracle.batches[number:] if later.segment == batch.segment)
            return (first_offset(batch, oracle), batch.segment, batch.position), rest[:most]
    last = oracle.bases[-1]
    return (oracle.log_end, last, oracle.ends.get(last, 0)), b""


def first_offset(batch: Batch, oracle: Oracle) -> int:
    """The base offset of a batch; that of a wrapper is in the records inside it."""
    if batch.magic >= 2:
        return batch.base_offset
    return next(row.batchBaseOffset for row in oracle.records if row.batchBaseOffset <= batch.last_offset <= row.offset)


def stamps(root: Path) -> dict[str, tuple[bytes, int]]:
    paths = (root, *root.rglob("*"))
    return {str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in paths}


def check_marks(log: kstore.Log, oracle: Oracle) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (oracle.log_start, oracle.log_end)
    assert log.high_watermark == oracle.log_end


def check_segments(log: kstore.Log, oracle: Oracle) -> None:
    segments = log.segments
    assert [segment.base_offset for segment in segments] == oracle.bases
    for number, segment in enumerate(segments):
        batches = oracle.of_segment(segment.base_offset)
        following = oracle.bases[number + 1] if number + 1 < len(segments) else oracle.log_end
        assert segment.next_offset == following
        assert segment.is_active == (number == len(segments) - 1)
        assert segment.roll_reason is None
        assert segment.first_timestamp == (batches[0].max_timestamp if batches else -1)
        assert segment.max_timestamp == max((b.max_timestamp for b in batches), default=-1)
        assert segment.size_bytes == oracle.ends.get(segment.base_offset, 0)
        for suffix, entries, count in (
            (".index", goldenlogs.index_entries, segment.offset_index_entries),
            (".timeindex", goldenlogs.time_entries, segment.time_index_entries),
        ):
            path = Path(segment.path.removesuffix(".swap")).with_suffix(suffix)
            if path.exists() and (log.mode == "a" or path.name not in GARBAGE):
                assert count == len(entries(path.read_bytes(), segment.base_offset)), path
