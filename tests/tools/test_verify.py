"""`verify` finds whatever is wrong with a log, and nothing in what was left in good order."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore import cli
from kstore._core import crc32c
from kstore.files import checkpoint, gap_files, names
from kstore.log.segments.producer_state import EXPIRATION_CHECK_MS, EXPIRATION_MS
from kstore.tools.check.repair import plan_repair, repair
from kstore.tools.check.verify import verify
from tests.conftest import ManualClock
from tests.golden import goldensets
from tests.support.faultfs import FaultFS
from tests.support.verifying import (
    batch_positions,
    client_batch,
    errors,
    flip,
    logs,
    unsound,
    write,
)
from tests.support.verifying import log_path as log_path
from tests.support.verifying import pristine as pristine

# Sets, or directories of sets, that hold damage on purpose.
DAMAGED = {"crash-damaged/before", "damaged-files"}
HEADER_BYTES = 61
CRC_COVERS_FROM = 21


# What is in order


@pytest.mark.parametrize("name", goldensets.SETS)
def test_nothing_is_wrong_with_what_kafka_left_in_good_order(name: str, tmp_path: Path) -> None:
    root = goldensets.copy_set(name, tmp_path)
    for directory in goldensets.log_directories(name):
        if not any(f"{name}/{directory}".startswith(damaged) for damaged in DAMAGED):
            assert errors(root / directory, deep=True) == []


@pytest.mark.parametrize("name", goldensets.SETS)
def test_nothing_is_wrong_with_whole_directories_of_kafka(name: str, tmp_path: Path) -> None:
    root = goldensets.copy_set(name, tmp_path)
    for directory in sorted({str(Path(directory).parent) for directory in goldensets.log_directories(name)}):
        if not any(f"{name}/{directory}".startswith(damaged) for damaged in DAMAGED):
            assert errors(root / directory) == []


def test_nothing_is_wrong_with_a_closed_log(log_path: Path) -> None:
    report = verify([log_path], deep=True)
    assert report.findings == []
    assert (report.partitions, report.segments, report.batches, report.records) == (1, len(logs(log_path)), 24, 48)
    assert report.size_bytes == sum(path.stat().st_size for path in logs(log_path))


def test_nothing_is_wrong_with_a_log_that_is_open(log_path: Path) -> None:
    with kstore.Log.open(log_path, segment_bytes=2000, index_interval_bytes=300) as log:
        log.append_many([b"v" * 100] * 9)
        assert errors(log_path) == []


def test_nothing_is_wrong_with_a_log_that_a_crash_left(log_path: Path) -> None:
    copy = log_path.parent.parent / "copy"
    with kstore.Log.open(log_path, segment_bytes=2000, index_interval_bytes=300) as log:
        log.append_many([b"v" * 100] * 9)
        shutil.copytree(log_path.parent, copy)
    last = logs(copy / "t-0")[-1]
    last.write_bytes(last.read_bytes()[:-5])
    assert errors(copy) == []


# What is wrong


def test_every_bit_flipped_in_a_batchs_header_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    write(path, batches=12)
    assert len(logs(path)) == 2
    # Of the last batch, whose offset no later one confirms, what its CRC does not cover.
    for log, batch, size in ((logs(path)[0], 1, HEADER_BYTES), (logs(path)[-1], -1, CRC_COVERS_FROM)):
        data = log.read_bytes()
        start = batch_positions(data)[batch]
        for position in range(start, start + size):
            for bit in range(8):
                flip(log, position, bit)
                checked = path if position - start < CRC_COVERS_FROM else log
                assert errors(checked), (log.name, start, position - start, bit)
                log.write_bytes(data)


@pytest.mark.parametrize(("kind", "size"), [(names.OFFSET_INDEX, 8), (names.TIME_INDEX, 12)])
def test_every_index_entry_that_was_moved_is_found(pristine: Callable[[], Path], kind: str, size: int) -> None:
    path = pristine()
    moved = 0
    for index in sorted(path.glob(f"*{kind}"))[:3]:
        data = index.read_bytes()
        for slot in range(len(data) // size):
            fields = [(0, 4), (4, 4)] if size == 8 else [(0, 8), (8, 4)]
            for at, width in fields:
                for by in (-1, 1, 1 << 20):
                    changed = bytearray(data)
                    place = slice(slot * size + at, slot * size + at + width)
                    value = int.from_bytes(data[place], "big") + by
                    changed[place] = (value % (1 << 8 * width)).to_bytes(width, "big")
                    index.write_bytes(changed)
                    found = errors(path)
                    assert any(each.path == str(index) for each in found), (index.name, slot, at, by)
                    moved += 1
        index.write_bytes(data)
    assert moved > 50


def test_an_entry_of_the_offset_index_at_another_batch_is_found(pristine: Callable[[], Path]) -> None:
    path = pristine()
    log, index = logs(path)[0], sorted(path.glob("*.index"))[0]
    data = index.read_bytes()
    for slot in range(len(data) // 8):
        for start in batch_positions(log.read_bytes()):
            if start != int.from_bytes(data[slot * 8 + 4 : slot * 8 + 8], "big"):
                changed = bytearray(data)
                changed[slot * 8 + 4 : slot * 8 + 8] = start.to_bytes(4, "big")
                index.write_bytes(changed)
                assert errors(path), (slot, start)


def test_a_missing_segment_is_found_whichever_it_is(pristine: Callable[[], Path]) -> None:
    count = len(logs(pristine()))
    for number in range(count):
        path = pristine()
        for file in path.glob(f"{logs(path)[number].stem}.*"):
            file.unlink()
        assert errors(path), number


def test_a_missing_log_file_is_found_whichever_it_is(pristine: Callable[[], Path]) -> None:
    count = len(logs(pristine()))
    for number in range(count):
        path = pristine()
        logs(path)[number].unlink()
        assert errors(path), number


def test_a_renamed_file_is_found_whichever_it_is(pristine: Callable[[], Path]) -> None:
    path = pristine()
    for name in sorted(each.name for each in path.iterdir()):
        file = names.parse_file_name(name)
        if file is None or (file.kind == names.TIME_INDEX and file.offset == 0):
            continue
        if file.kind == names.SNAPSHOT and file.offset > int(logs(path)[-1].stem):
            continue  # a close's: past the batches it also lies after a truncation inside one (SEMANTICS 11.4)
        path = pristine()
        (path / name).rename(path / str(file._replace(offset=file.offset + 1)))
        # The last snapshot under a greater offset is what a close after a cut inside a batch leaves, too
        # (SEMANTICS 11.4).
        is_last_snapshot = file.kind == names.SNAPSHOT and file.offset == 48
        assert verify([path]).findings if is_last_snapshot else errors(path), name
        path = pristine()
        (path / name).rename(path / name.lstrip("0").rjust(19, "0"))
        assert errors(path), name


def test_a_tail_that_was_cut_off_is_found_wherever_the_cut_is(pristine: Callable[[], Path]) -> None:
    path = pristine()
    for log in logs(path):
        data = log.read_bytes()
        for size in [0, 1, 17, 60, 61, *batch_positions(data)[1:], len(data) - 1]:
            log.write_bytes(data[:size])
            assert errors(path), (log.name, size)
        log.write_bytes(data)


def test_a_snapshot_of_records_that_are_not_there_is_found(pristine: Callable[[], Path]) -> None:
    path = pristine()
    stale_snapshot(path)
    (found,) = errors(path)
    end = kstore.Log.open(path, mode="r").log_end_offset
    assert (found.path, found.rule) == (str(path / names.snapshot_name(end + 10)), "SEMANTICS 9.26")
    assert found.what.endswith(f"it knows of a batch at offset {end + 5}")


def test_the_snapshot_of_a_close_after_a_cut_inside_a_batch_is_no_error(tmp_path: Path) -> None:
    """SEMANTICS 11.4. The log ends inside the batch that went, so that the close's snapshot lies beyond the batches."""
    with kstore.Log.open(tmp_path / "events-0") as log:
        log.append(b"kept")
        log.append_many([b"cut", b"cut", b"cut"])
        log.truncate_to(2)
    (found,) = verify([tmp_path]).findings
    assert (found.severity, found.rule, found.offset) == ("note", "SEMANTICS 9.26", 2)


def test_snapshots_of_several_cuts_inside_batches_are_no_errors(tmp_path: Path) -> None:
    """SEMANTICS 9.26, 11.4. As in Kafka a truncation keeps the snapshots below it, and takes one at the log end."""
    path = tmp_path / "t-0"
    numbers = {"producer_id": 1, "producer_epoch": 0}
    with kstore.Log.open(path) as log:
        log.append_many([b"kept"] * 2, base_sequence=0, **numbers)
    with kstore.Log.open(path) as log:
        for end in (4, 5):
            log.append_many([b"cut"] * 3, base_sequence=2, **numbers)
            log.truncate_to(end)
            assert errors(tmp_path) == []
    assert [names.parse_offset(file.name) for file in sorted(path.glob("*.snapshot"))] == [2, 4, 5]
    assert unsound(tmp_path) == []
    with kstore.Log.open(path) as log:
        log.append(b"next")
    assert unsound(tmp_path) == []


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("as_follower", [False, True])
def test_records_before_1970_are_no_error(tmp_path: Path, codec: str, as_follower: bool) -> None:
    """As in Kafka a client's batch of such records is stored with the max timestamp -1, none; a follower copies it."""
    with kstore.Log.open(tmp_path / "t-0", segment_bytes=200) as log:
        for at in range(6):
            base_offset = at * 2 if as_follower else 0
            batch = client_batch([-1000, -993], base_offset=base_offset, partition_leader_epoch=0, compression=codec)
            log.append_as_follower(batch) if as_follower else log.append_batch(batch)
        assert [record.timestamp for record in log.read()] == [-1000, -993] * 6
    assert errors(tmp_path, deep=True) == []
    assert unsound(tmp_path) == []


@pytest.mark.parametrize("following", [[], [-5], [0]])
def test_a_time_index_entry_of_zeros_is_no_error(tmp_path: Path, following: list[int]) -> None:
    """The entry of timestamp 0 at the base offset looks like an empty slot."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        for timestamp in (0, *following):
            log.append_batch(client_batch([timestamp]))
    assert (tmp_path / "t-0" / names.time_index_name(0)).read_bytes()[:12] == bytes(12)
    assert unsound(tmp_path) == []


def killed_without_its_first_segment(tmp_path: Path, kinds: str) -> Path:
    """A copy of a store that is open, whose first segment has lost files."""
    with kstore.Store.open(tmp_path / "s", background=False) as store:
        store.create_topic("t", 1)
        store.append_many("t", [b"v"] * 38)
        store.log("t", 0).roll()
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    for file in (tmp_path / "killed" / "t-0").glob(f"{0:020}.{kinds}"):
        file.unlink()
    return tmp_path / "killed"


@pytest.mark.parametrize("kinds", ["log", "*"])
@pytest.mark.parametrize("point", [None, 0, 38])
def test_a_lost_first_segment_of_a_killed_store_is_told_before_and_after_opening(
    tmp_path: Path, kinds: str, point: int | None
) -> None:
    root = killed_without_its_first_segment(tmp_path, kinds)
    if point is not None:
        checkpoint.write_offsets(str(root), checkpoint.RECOVERY_POINTS, {("t", 0): point})
    for _ in range(2):
        assert any("no segment holds" in found.what or "is missing" in found.what for found in errors(root))
        plan = plan_repair(str(root / "t-0"))
        assert plan.lost == [(0, 38)]
        assert "lost: 0 bytes, offsets 0 to 37, at most 38 records" in plan.lines()
        with kstore.Store.open(root, background=False) as store:
            store.append("t", b"more")
    repair(plan_repair(str(root / "t-0")), str(tmp_path / "backup"))
    assert unsound(root) == []


def test_a_first_segment_that_retention_has_deleted_is_not_missing(tmp_path: Path) -> None:
    root = killed_without_its_first_segment(tmp_path, "log")
    checkpoint.write_offsets(str(root), checkpoint.LOG_STARTS, {("t", 0): 38})
    assert "error" not in {found.severity for found in verify([root / "t-0"]).findings if "epoch" in found.what}
    assert plan_repair(str(root / "t-0")).lost == []


def test_a_roll_after_a_cut_inside_a_batch_is_no_error(tmp_path: Path) -> None:
    """SEMANTICS 11.4. The new segment begins at the log end, and no segment holds the offsets between the batches and
    that."""
    with kstore.Log.open(tmp_path / "events-0") as log:
        log.append(b"kept")
        log.append_many([b"cut"] * 4)
        log.truncate_to(3)
        for change in (log.roll, lambda: log.append(b"after"), log.flush, log.run_housekeeping):
            change()
            assert errors(tmp_path) == []
        assert gap_files.read_gaps(log.path) == [(1, 3)]
    assert errors(tmp_path) == []
    for file in (tmp_path / "events-0").glob(f"{0:020d}.*"):
        file.unlink()
    (tmp_path / "events-0" / names.log_name(0)).touch()
    assert [found.what for found in errors(tmp_path) if found.what.startswith("no segment holds offsets 0 to 2")]


def test_a_roll_of_a_segment_that_a_cut_inside_a_batch_has_emptied_is_no_error(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "events-0") as log:
        log.append_many([b"cut"] * 4)
        log.truncate_to(2)
        log.roll()
        assert [segment.base_offset for segment in log.segments] == [0, 2]
        assert errors(tmp_path) == []
        log.append(b"after")
    assert errors(tmp_path) == []


@pytest.mark.parametrize("truncated", [False, True])
def test_a_gap_that_a_followers_batches_leave_where_the_log_rolls_is_no_error(truncated: bool, tmp_path: Path) -> None:
    """SEMANTICS 2.7. The new segment begins at the first offset of the append."""
    with kstore.Log.open(tmp_path / "events-0", segment_bytes=200) as log:
        log.append_many([b"v"] * 3)
        if truncated:
            log.append_many([b"v"] * 3)
            log.truncate_to(5)
        log.append_as_follower(kstore.encode_batch([b"v" * 60], base_offset=10, partition_leader_epoch=0))
        assert [segment.base_offset for segment in log.segments] == [0, 10]
        assert errors(tmp_path) == []
        assert gap_files.read_gaps(log.path) == [(3, 10)]
    assert errors(tmp_path) == []


def test_a_segment_that_is_missing_beside_a_gap_is_found(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "events-0") as log:
        log.append_many([b"cut"] * 4)
        log.truncate_to(3)
        for _ in range(3):
            log.roll()
            log.append(b"kept")
    for file in (tmp_path / "events-0").glob(f"{4:020d}.*"):
        file.unlink()
    assert [found.what.partition(",")[0] for found in errors(tmp_path)] == ["no segment holds offsets 4 to 4"]


def test_what_is_written_down_of_gaps_goes_with_the_records_behind_them(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "events-0") as log:
        for _ in range(2):
            log.append_many([b"cut"] * 4)
            log.truncate_to(log.log_end_offset - 1)
            log.roll()
        assert gap_files.read_gaps(log.path) == [(0, 6)]
        log.truncate_to(3)
        assert gap_files.read_gaps(log.path) == [(0, 3)]
        log.append(b"kept")
        log.truncate_to(2)
        assert gap_files.read_gaps(log.path) == []
        log.roll()
        assert gap_files.read_gaps(log.path) == [(0, 2)]
        log.truncate_fully_and_start_at(100)
        assert gap_files.read_gaps(log.path) == []
        assert errors(tmp_path) == []


def test_a_damaged_file_of_gaps_stops_no_roll_and_stays_as_it_is(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "events-0") as log:
        (Path(log.path) / gap_files.GAPS_FILE).write_bytes(b"{")
        log.append_many([b"cut"] * 4)
        log.truncate_to(3)
        log.roll()
        log.append(b"kept")
        assert (Path(log.path) / gap_files.GAPS_FILE).read_bytes() == b"{"
    assert {Path(found.path).name for found in errors(tmp_path)} == {gap_files.GAPS_FILE, names.log_name(3)}


def test_a_roll_that_cannot_write_its_gap_down_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    with FaultFS(tmp_path) as disk, kstore.Log.open(tmp_path / "events-0") as log:
        log.append_many([b"cut"] * 4)
        log.truncate_to(3)
        disk.fail("pwrite", error=errno.ENOSPC, path=f"{gap_files.GAPS_FILE}*")
        with pytest.raises(kstore.StorageError):
            log.roll()
        assert [segment.base_offset for segment in log.segments] == [0]
        assert log.append(b"kept") == 3
        assert errors(tmp_path) == []


def test_a_snapshot_that_knows_less_than_the_log_is_stale(tmp_path: Path) -> None:
    path = goldensets.copy_set("idempotent", tmp_path) / "dir" / "idem-0"
    shutil.copy(path / names.snapshot_name(249), path / names.snapshot_name(409))
    assert {found.rule for found in errors(path)} == {"SEMANTICS 9.24"}


def test_a_producer_that_a_marker_brought_back_after_it_had_expired_is_in_order(
    tmp_path: Path, clock: ManualClock
) -> None:
    with kstore.Log.open(tmp_path / "events-0", clock=clock) as log:
        log.append_many([b"v"], producer_id=1, producer_epoch=0, base_sequence=0)
        clock.advance(EXPIRATION_MS + EXPIRATION_CHECK_MS)
        log.run_housekeeping()
        log.append_marker(1, 0, commit=True)
        assert [info.batches for info in log.producer_states()] == [()]
    assert errors(tmp_path / "events-0") == []


def test_an_index_without_its_log_is_an_error_unless_a_deletion_explains_it(tmp_path: Path) -> None:
    """SEMANTICS 6.12, 8.8. The `.log` is renamed first, so that its index may outlive it when the process dies."""
    path = tmp_path / "events-0"
    with kstore.Log.open(path, segment_bytes=200, segment_index_bytes=1200) as log:
        for _ in range(5):
            log.append(b"x" * 100)
        log.delete_records(2)
        shutil.copytree(path, tmp_path / "left" / "events-0")
    left, root = tmp_path / "left" / "events-0", tmp_path / "left"
    (root / "recovery-point-offset-checkpoint").write_text("0\n1\nevents 0 3\n")
    (root / "log-start-offset-checkpoint").write_text("0\n1\nevents 0 2\n")

    def severity(base_offset: int) -> str:
        [found] = [f.severity for f in verify([left]).findings if f.path == str(left / names.index_name(base_offset))]
        return found

    (left / names.log_name(0)).rename(left / (names.log_name(0) + ".deleted"))  # by retention, below the log start
    assert severity(0) == "note"
    (left / (names.log_name(0) + ".deleted")).unlink()  # an opening died after that
    assert severity(0) == "note"
    (left / names.log_name(4)).rename(left / (names.log_name(4) + ".deleted"))  # by a truncation
    assert severity(4) == "note"
    (left / (names.log_name(4) + ".deleted")).unlink()
    assert severity(4) == "note"
    (left / names.log_name(2)).unlink()  # what was flushed
    assert severity(2) == "error"
    (root / ".kafka_cleanshutdown").write_text("{}")
    assert severity(0) == severity(4) == "error"


def test_an_unfinished_index_is_an_error_only_below_the_recovery_point(tmp_path: Path) -> None:
    """SEMANTICS 8.15. Opening builds the indexes of what lies above it anew, whatever they hold."""
    path = tmp_path / "events-0"
    with kstore.Log.open(path, segment_index_bytes=1200, index_interval_bytes=100) as log:
        for number in range(5):
            log.append(b"x" * 100, timestamp=1000 + number)
    times, points = path / names.time_index_name(0), tmp_path / "recovery-point-offset-checkpoint"
    assert len(times.read_bytes()) > 12
    os.truncate(times, times.stat().st_size - 12)
    for point, found in ((3, []), (4, []), (5, [str(times)])):
        points.write_text(f"0\n1\nevents 0 {point}\n")
        assert [finding.path for finding in errors(path)] == found, point
    points.write_text("0\n1\nevents 0 4\n")
    kstore.Log.open(path).close()
    points.write_text("0\n1\nevents 0 5\n")
    assert errors(path) == []


@pytest.mark.parametrize("left_out", ["the marker", "the entry"])
def test_a_half_written_aborted_transaction_is_an_error_only_below_recovery_point(
    tmp_path: Path, left_out: str
) -> None:
    """SEMANTICS 9.14. The entry is written before its marker; opening builds the index of what lies above the point
    anew."""
    path = tmp_path / "events-0"
    with kstore.Log.open(path, segment_index_bytes=1200) as log:
        log.append_many([b"x"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        size = (path / names.log_name(0)).stat().st_size
        log.append_marker(1, 0, commit=False)
        shutil.copytree(path, tmp_path / "left" / "events-0")
    left, points = tmp_path / "left" / "events-0", tmp_path / "left" / "recovery-point-offset-checkpoint"
    if left_out == "the marker":
        os.truncate(left / names.log_name(0), size)
    else:
        (left / names.txn_index_name(0)).unlink()
    for point, is_error in ((0, False), (1, False), (2, True)):
        points.write_text(f"0\n1\nevents 0 {point}\n")
        found = [f for f in errors(left) if f.path == str(left / names.txn_index_name(0))]
        assert bool(found) == is_error, point
    points.write_text("0\n1\nevents 0 1\n")
    with kstore.Log.open(left) as log:
        log.append_marker(1, 0, commit=False) if left_out == "the marker" else None
        assert list(log.read(isolation="read_committed")) == []
    assert errors(left) == []


@pytest.mark.parametrize("size", [0, 9, 10, 50, 60])
def test_a_snapshot_that_a_death_cut_is_an_error_only_below_the_recovery_point(tmp_path: Path, size: int) -> None:
    """A roll writes its snapshot in place; the opening after a death removes one that is not whole (SEMANTICS 9.24)."""
    path = tmp_path / "events-0"
    with kstore.Log.open(path, segment_bytes=200, segment_index_bytes=1200) as log:
        for producer_id in range(1, 5):
            log.append_many([b"x" * 100], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        shutil.copytree(path, tmp_path / "left" / "events-0")
    left, points = tmp_path / "left" / "events-0", tmp_path / "left" / "recovery-point-offset-checkpoint"
    snapshot = left / names.snapshot_name(3)
    assert snapshot.stat().st_size > 60
    os.truncate(snapshot, size)
    for point, is_error in ((2, False), (3, False), (4, True)):
        points.write_text(f"0\n1\nevents 0 {point}\n")
        found = [finding.severity for finding in verify([left]).findings if finding.path == str(snapshot)]
        assert found == ["error" if is_error else "note"], point
    points.write_text("0\n1\nevents 0 2\n")
    with kstore.Log.open(left) as log:
        assert [info.producer_id for info in log.producer_states()] == [1, 2, 3, 4]
    assert errors(left) == []


def test_a_bit_flipped_anywhere_in_a_snapshot_is_found(tmp_path: Path) -> None:
    path = goldensets.copy_set("idempotent", tmp_path) / "dir" / "idem-0"
    snapshot = path / names.snapshot_name(249)
    for position in range(snapshot.stat().st_size):
        bit = position % 8
        flip(snapshot, position, bit)
        assert errors(snapshot), (position, bit)
        flip(snapshot, position, bit)


def test_a_recovery_point_above_the_end_is_found(log_path: Path) -> None:
    checkpoint.update_offsets(log_path.parent, checkpoint.RECOVERY_POINTS, {("t", 0): 99})
    (found,) = errors(log_path)
    assert (found.rule, found.offset) == ("SEMANTICS 8.13", 48)


def test_a_log_start_beyond_the_end_is_found(log_path: Path) -> None:
    checkpoint.update_offsets(log_path.parent, checkpoint.LOG_STARTS, {("t", 0): 99})
    assert [found.rule for found in errors(log_path)] == ["SEMANTICS 8.11"]


@pytest.mark.parametrize("name", checkpoint.OFFSET_CHECKPOINTS)
def test_a_malformed_checkpoint_is_found(log_path: Path, name: str) -> None:
    (log_path.parent / name).write_bytes(b"0\n2\nt 0 48\n")
    (found,) = errors(log_path.parent)
    assert found.path == str(log_path.parent / name)
    assert "line 2" in found.what


# The command


def test_a_process_finds_each_kind_of_damage_and_nothing_elsewhere(log_path: Path) -> None:
    """One directory with a partition for each kind, and one that is whole."""
    root = log_path.parent
    lines = [f"{topic} 0 48" for topic in ("t", *DAMAGES)]
    for topic, damage in DAMAGES.items():
        shutil.copytree(log_path, root / f"{topic}-0")
        damage(root / f"{topic}-0")
    (root / checkpoint.RECOVERY_POINTS).write_text(f"0\n{len(lines)}\n" + "\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "kstore", "verify", "--json", root], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {Path(each["path"]).parent.name for each in found} == {f"{topic}-0" for topic in DAMAGES}
    assert all(each["severity"] == "error" and each["what"] and each["rule"] for each in found)


def flipped_header(path: Path) -> None:
    flip(logs(path)[1], 30, 4)


def moved_entry(path: Path) -> None:
    flip(sorted(path.glob("*.index"))[0], 15, 0)


def missing_segment(path: Path) -> None:
    for file in path.glob(f"{logs(path)[1].stem}.*"):
        file.unlink()


def renamed_file(path: Path) -> None:
    logs(path)[1].rename(logs(path)[1].with_name("00000000000000000019.log"))


def truncated_tail(path: Path) -> None:
    last = logs(path)[-1]
    last.write_bytes(last.read_bytes()[:-1])


def stale_snapshot(path: Path) -> None:
    """One of a producer whose batch is not in the log."""
    end = max(names.parse_offset(file.name) or 0 for file in path.glob("*.snapshot"))
    entries = struct.pack(">iqhiqiqiq", 1, 7, 0, 0, end + 5, 0, 1_700_000_000_000, -1, -1)
    data = struct.pack(">hI", 1, crc32c(entries)) + entries
    (path / names.snapshot_name(end + 10)).write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flipped_header,
    "moved": moved_entry,
    "missing": missing_segment,
    "renamed": renamed_file,
    "truncated": truncated_tail,
    "stale": stale_snapshot,
}


def test_the_command_says_what_is_wrong_and_exits_with_1(log_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(log_path)]) == 0
    assert "nothing wrong" in capsys.readouterr().out
    log = logs(log_path)[0]
    flip(log, 100, 0)
    assert cli.main(["verify", str(log_path.parent)]) == 1
    assert f"{log}:0: error: the CRC of the batch does not hold" in capsys.readouterr().out


def test_json_findings_have_path_position_offset_rule_and_repair(
    log_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(logs(log_path)[0], 100, 0)
    assert cli.main(["verify", "--json", str(logs(log_path)[0])]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["path"], found["position"], found["offset"]) == (str(logs(log_path)[0]), 0, 0)
    assert found["rule"] == "FORMAT 2.7"
    assert found["repair"]


def test_a_path_with_nothing_at_it_is_one_line_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# --- leader epochs that are none --------------------------------------------------------------------------------------

NO_EPOCH = b"\xff" * 4


def lose_epochs(log: Path, numbers: list[int]) -> list[int]:
    """Write -1 as the leader epoch of batches, which no checksum covers; returns their positions."""
    data = bytearray(log.read_bytes())
    positions = [batch_positions(bytes(data))[number] for number in numbers]
    for position in positions:
        data[position + 12 : position + 16] = NO_EPOCH
    log.write_bytes(data)
    return positions


@pytest.mark.parametrize("is_empty", [False, True], ids=["with entries", "without entries"])
@pytest.mark.parametrize(("segment", "number"), [(0, 1), (0, -1), (1, 0), (1, 2), (-1, -1)])
def test_a_leader_epoch_that_was_lost_behind_an_epoch_is_found(
    log_path: Path, segment: int, number: int, is_empty: bool
) -> None:
    if is_empty:
        (log_path / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n0\n")
        assert not errors(log_path)
    log = logs(log_path)[segment]
    (position,) = lose_epochs(log, [number])
    (found,) = errors(log_path)
    assert (found.path, found.position) == (str(log), position)
    assert found.what.startswith("leader epoch -1 ")


def test_a_leader_epoch_that_was_lost_is_mended(log_path: Path) -> None:
    before = logs(log_path)[1].read_bytes()
    lose_epochs(logs(log_path)[1], [2])
    assert cli.main(["repair", "--yes", str(log_path)]) == 0
    assert logs(log_path)[1].read_bytes() == before


def test_a_log_that_never_had_epochs_and_one_that_got_them_later_are_in_order(log_path: Path) -> None:
    first, *others = logs(log_path)
    checkpoint_path = log_path / names.LEADER_EPOCH_CHECKPOINT
    for log in (first, *others):
        lose_epochs(log, list(range(len(batch_positions(log.read_bytes())))))
    for content in ("", "0\n0\n"):
        checkpoint_path.write_text(content)
        assert not errors(log_path)
    last = others[-1]
    data = bytearray(last.read_bytes())
    for position in batch_positions(bytes(data)):
        data[position + 12 : position + 16] = bytes(4)
    last.write_bytes(data)
    for content in ("0\n0\n", f"0\n1\n0 {int(last.stem)}\n"):
        checkpoint_path.write_text(content)
        assert not errors(log_path)


def test_below_the_cleaners_offset_a_missing_epoch_is_only_a_note(
    log_path: Path,
) -> None:
    lose_epochs(logs(log_path)[0], [1])
    end = int(logs(log_path)[1].stem)
    checkpoint.write_offsets(str(log_path.parent), checkpoint.CLEANER_OFFSETS, {("t", 0): end})
    assert not errors(log_path)
    assert [found.what[:15] for found in verify([log_path]).findings if "epoch" in found.what] == ["leader epoch -1"]


def test_the_last_line_counts_the_single_files_that_were_checked(
    log_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def last_line(*paths: Path) -> str:
        cli.main(["verify", *map(str, paths)])
        return capsys.readouterr().out.splitlines()[-1]

    log, *others = logs(log_path)
    whole = verify([log_path])
    size = log.stat().st_size
    alone = verify([log])
    assert 0 < alone.batches < whole.batches
    assert 0 < alone.records < whole.records
    known = f"{alone.batches} batches, {alone.records} records"
    assert last_line(log) == f"1 file, {known}, {size} bytes checked: nothing wrong"
    index = log.with_suffix(".index")
    assert last_line(index) == f"1 file, {index.stat().st_size} bytes checked: nothing wrong"
    assert last_line(log, index).startswith(f"2 files, {known}, {size + index.stat().st_size} bytes checked")
    both = f"1 file, 1 partition, {len(others) + 1} segments, {whole.batches + alone.batches} batches"
    assert last_line(log, log_path).startswith(both)
    flip(log, 100, 0)
    assert last_line(log).endswith(" bytes checked: 1 error")
    assert sum(each.batches for each in map(verify, [[one] for one in logs(log_path)])) == whole.batches - 1
