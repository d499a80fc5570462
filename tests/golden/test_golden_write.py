"""Appended again, what real brokers were sent gives the files that they wrote: the same names, sizes and bytes.

Left out of the comparison: `partition.metadata` (a lone log has no topic id), and what `EXCEPTIONS` names. The entries
of snapshots are compared in one order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import crc32c
import pytest

import kstore
from kstore import LogConfig
from tests.conftest import ManualClock
from tests.golden import goldenlogs
from tests.golden.goldenlogs import PARTITIONS, Batch, Oracle, Partition, RecordRow
from tests.test_docs import REPOSITORY, table_after

pytestmark = pytest.mark.usefixtures("no_syncs")

Append = Callable[[kstore.Log, Batch, Oracle, ManualClock], None]

# Copied while the broker ran, or after it was killed: the files are those of a log that is open.
LIVE = ("crash/before/", "retention/before/", "retention/during/")
DAMAGED = "crash-damaged/before/"
# Files that are not what one broker's appends made: cleaned, recovered or converted ones.
NOT_APPENDED = ("compaction/after", "crash/after", "crash-damaged/", "retention/after-restart/", "legacy/")

# Suffixes of files that differ, under the name that docs/compatibility.md gives the difference.
EXCEPTIONS: dict[str, dict[Partition, tuple[str, ...]]] = {
    "index-before-4.1": {
        Partition("legacy", "dir/compacted-v0-0"): (".index",),
        Partition("legacy", "dir/compacted-v1-0"): (".index", ".timeindex"),
        Partition("legacy", "dir/upconverted-0"): (".index",),
        Partition("legacy", "dir/upconverted-rolled-0"): (".index", ".timeindex"),
        Partition("legacy", "dir/v0-none-0"): (".index",),
        Partition("legacy", "dir/v1-append-time-0"): (".index", ".timeindex"),
        Partition("legacy", "dir/v1-none-0"): (".index", ".timeindex"),
        Partition("transactions-2.8", "dir/__consumer_offsets-0"): (".timeindex",),
    },
    "no-epoch-at-opening": {Partition("delete-records", "dir/gamma_3-1"): ("leader-epoch-checkpoint",)},
}
EXCUSED = {partition: files for row in EXCEPTIONS.values() for partition, files in row.items()}

WHOLE = [partition for partition in PARTITIONS if not str(partition).startswith(NOT_APPENDED)]
INTACT = [partition for partition in PARTITIONS if not str(partition).startswith(DAMAGED)]


def without_producers(partition: Partition) -> bool:
    return all(row.producerId < 0 for row in goldenlogs.expected_rows(partition))


def from_records(partition: Partition) -> bool:
    """Whether `append_many` can make such batches: a coordinator's have a base sequence of 0 and no producer id."""
    rows = goldenlogs.oracle(partition, goldenlogs.unpacked(partition)).records
    return without_producers(partition) and all(row.sequence < 0 for row in rows)


def told_in_full(partition: Partition) -> bool:
    """Whether `records.jsonl` has all that decides the bytes."""
    rows = goldenlogs.oracle(partition, goldenlogs.unpacked(partition)).records
    return all(row.compression == "none" and row.timestampType == "CreateTime" for row in rows)


RECORDS = [partition for partition in WHOLE if from_records(partition)]
PLAIN = [partition for partition in RECORDS if told_in_full(partition)]
SINGLE = [partition for partition in PLAIN if partition.set.startswith("canary")]


# --- as whole logs ----------------------------------------------------------------------------------------------------


def as_follower(log: kstore.Log, batch: Batch, oracle: Oracle, clock: ManualClock) -> None:
    log.append_as_follower(batch.data)


def as_leader(log: kstore.Log, batch: Batch, oracle: Oracle, clock: ManualClock) -> None:
    """The batch as its producer sent it: no offset, no leader epoch, times of its own."""
    data = bytearray(batch.data)
    struct.pack_into(">q", data, 0, 0)
    struct.pack_into(">i", data, 12, -1)
    if batch.attributes & 0x08:  # the broker has put its time over the greatest timestamp, and said so
        data[22] &= ~0x08
        data[35:43] = data[27:35]
        struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    by_coordinator = batch.attributes & 0x20 or log.topic.startswith("__")
    origin: Literal["client", "coordinator"] = "coordinator" if by_coordinator else "client"
    info = log.append_batch(data, origin=origin, leader_epoch=batch.leader_epoch)
    assert (info.first_offset, info.last_offset) == (batch.base_offset, batch.last_offset)
    assert info.log_append_time == (batch.max_timestamp if batch.attributes & 0x08 else -1)


def as_records(log: kstore.Log, batch: Batch, oracle: Oracle, clock: ManualClock) -> None:
    rows = rows_of(batch, oracle)
    records = [(row.key, row.value, row.timestamp, row.headers) for row in rows]
    info = log.append_many(
        records, compression=rows[0].compression, atomic=True, batch_bytes=4_000_000, leader_epoch=batch.leader_epoch
    )
    assert (info.first_offset, info.last_offset) == (batch.base_offset, batch.last_offset)


def as_single_records(log: kstore.Log, batch: Batch, oracle: Oracle, clock: ManualClock) -> None:
    [row] = rows_of(batch, oracle)
    assert log.append(row.value, row.key, timestamp=row.timestamp) == row.offset


def rows_of(batch: Batch, oracle: Oracle) -> list[RecordRow]:
    return [row for row in oracle.records if row.batchBaseOffset == batch.base_offset]


def replay(partition: Partition, root: Path, append: Append) -> tuple[Oracle, dict[str, bytes]]:
    """Append all batches of the partition to a new log; the oracle, and its files as they were copied: open or closed.

    The broker was started anew where the leader epoch of the batches rises: so is the log.
    """
    oracle = goldenlogs.oracle(partition, goldenlogs.unpacked(partition))
    directory = root / partition.directory.rpartition("/")[2]
    clock = ManualClock()
    settings = goldenlogs.config(partition)
    log = kstore.Log.open(directory, config=settings, clock=clock)
    if oracle.bases[0]:
        log.truncate_fully_and_start_at(oracle.bases[0])
    epoch = oracle.batches[0].leader_epoch if oracle.batches else 0
    for batch in oracle.batches:
        if batch.leader_epoch != epoch:
            log.close()
            log = kstore.Log.open(directory, config=settings, clock=clock)
            assert log.recovery.clean
            epoch = batch.leader_epoch
        clock.now = max(batch.max_timestamp, 0)
        append(log, batch, oracle, clock)
    if oracle.log_start > oracle.bases[0]:
        log.delete_records(oracle.log_start)
    live = goldenlogs.files(directory) if str(partition).startswith(LIVE) else None
    log.close()
    return oracle, goldenlogs.files(directory) if live is None else live


def check_whole(partition: Partition, root: Path, append: Append) -> None:
    oracle, files = replay(partition, root, append)
    source = goldenlogs.unpacked(partition)
    expected = comparable(partition, goldenlogs.files(source / partition.directory.rpartition("/")[2]))
    found = comparable(partition, files)
    assert {name: len(data) for name, data in found.items()} == {name: len(data) for name, data in expected.items()}
    assert found == expected
    told = goldenlogs.lines_of(partition, root)
    assert told["recovery-point-offset-checkpoint"] == oracle.log_end
    assert told.get("log-start-offset-checkpoint", 0) == (oracle.log_start if oracle.log_start > oracle.bases[0] else 0)


def comparable(partition: Partition, files: dict[str, bytes]) -> dict[str, bytes]:
    left_out = ("partition.metadata", ".deleted", *EXCUSED.get(partition, ()))
    if not without_producers(partition):
        # What the first one knows is of batches that retention has taken.
        left_out = (*left_out, f"{min(name for name in files if name.endswith('.log'))[:20]}.snapshot")
    return goldenlogs.with_sorted_snapshots({name: data for name, data in files.items() if not name.endswith(left_out)})


@pytest.mark.parametrize("partition", WHOLE, ids=str)
def test_the_batches_taken_as_a_follower_give_the_same_files(partition: Partition, root: Path) -> None:
    check_whole(partition, root, as_follower)


@pytest.mark.parametrize("partition", WHOLE, ids=str)
def test_the_batches_as_producers_sent_them_give_the_same_files(partition: Partition, root: Path) -> None:
    check_whole(partition, root, as_leader)


@pytest.mark.parametrize("partition", PLAIN, ids=str)
def test_the_records_batch_by_batch_give_the_same_files(partition: Partition, root: Path) -> None:
    check_whole(partition, root, as_records)


@pytest.mark.parametrize("partition", SINGLE, ids=str)
def test_the_records_one_by_one_give_the_same_files(partition: Partition, root: Path) -> None:
    check_whole(partition, root, as_single_records)


@pytest.mark.parametrize("partition", [p for p in RECORDS if p not in PLAIN], ids=str)
def test_compressed_records_and_those_with_the_append_time_read_back_the_same(partition: Partition, root: Path) -> None:
    """Their bytes may differ: compressed ones with the library, and the producer's own times are not told."""
    oracle, _ = replay(partition, root, as_records)
    with kstore.Log.open(root / partition.directory.rpartition("/")[2], "r") as log:
        assert goldenlogs.found_rows(log.read_batches()) == oracle.rows


def test_hardly_any_partition_is_left_out() -> None:
    """The lists above are computed: they must not run empty unnoticed."""
    assert (len(WHOLE), len(RECORDS), len(PLAIN), len(SINGLE), len(INTACT)) == (48, 27, 16, 5, 75)


# --- segment by segment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", INTACT, ids=str)
def test_each_segment_alone_gives_the_same_log_and_index_bytes(partition: Partition, root: Path) -> None:
    """Cleaned and recovered segments too: the three builders of an index agree (SEMANTICS 3.12)."""
    settings = goldenlogs.config(partition).replace(
        segment_bytes=1 << 30, internal_segment_bytes=None, preallocate=False
    )
    source = goldenlogs.unpacked(partition) / partition.directory.rpartition("/")[2]
    oracle = goldenlogs.oracle(partition, source.parent)
    excused = EXCUSED.get(partition, ())
    for base in oracle.bases:
        is_live = str(partition).startswith(LIVE) and base == oracle.bases[-1]
        files = append_segment(root / f"segment{base}-0", base, oracle.of_segment(base), settings, close=not is_live)
        for suffix in (".log", ".index", ".timeindex"):
            name = f"{base:020d}{suffix}"
            expected = (source / name).read_bytes()
            if suffix == ".log":  # how much is preallocated is a matter of the whole log
                assert files[name].rstrip(b"\0") == expected.rstrip(b"\0"), base
            elif suffix not in excused:
                assert files[name] == expected, (base, suffix)


def append_segment(
    directory: Path, base: int, batches: list[Batch], settings: LogConfig, *, close: bool
) -> dict[str, bytes]:
    log = kstore.Log.open(directory, config=settings, clock=ManualClock())
    log.truncate_fully_and_start_at(base)
    epoch = batches[0].leader_epoch if batches else 0
    for batch in batches:
        if batch.magic >= 2 and batch.leader_epoch != epoch:
            log.close()
            log = kstore.Log.open(directory, config=settings, clock=ManualClock())
            epoch = batch.leader_epoch
        log.append_as_follower(batch.data)
    if close:
        log.close()
    files = goldenlogs.files(directory)
    log.close()
    return files


def test_each_exception_is_told_in_the_document() -> None:
    told = {row[0].strip("`") for row in table_after(REPOSITORY / "docs" / "compatibility.md", "golden files")}
    assert set(EXCEPTIONS) <= told
