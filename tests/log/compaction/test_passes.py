"""A round of cleaning over an open log: what stays, what the readers see, and what the files are."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint
from kstore.log.compaction import compact_log
from kstore.log.compaction.dirtiness import survey
from kstore.log.compaction.passes import compact
from kstore.log.hosted_log import HostedLog
from tests.conftest import ManualClock
from tests.support.cleaning import LIMITS, clean, fill, newest, open_log, unfinished


def test_the_newest_record_of_each_key_stays_through_rounds_and_openings(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock) as log:
        fill(log, clock, 500, 50)
        before, end = newest(log), log.log_end_offset
        stats = clean(log)
        assert newest(log) == before
        assert stats.first_dirty_offset == log.segments[-1].base_offset
        assert stats.records_after < 100 < stats.records_before
        assert clean(log).rounds == 0
        fill(log, clock, 100, 50)
        before = newest(log)
        clean(log)
        assert newest(log) == before
        assert len(log.segments) < 10
        assert log.log_end_offset == end + 100
    with open_log(root, clock) as log:
        assert newest(log) == before


def test_log_compact_cleans_all_below_the_active_segment_and_with_roll_all(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock) as log:
        fill(log, clock, 300, 20)
        before = newest(log)
        dry = log.compact(dry_run=True)
        files = sorted(path.name for path in (root / "events-0").iterdir())
        stats = log.compact()
        assert dry.dry_run
        assert replace(dry, dry_run=False, seconds=0) == replace(stats, seconds=0)
        assert files != sorted(path.name for path in (root / "events-0").iterdir())
        assert log.compact().rounds == 0
        assert log.compact(roll=True).first_dirty_offset == log.log_end_offset == 300
        assert newest(log) == before
        line = {("events", 0): 300}
        assert checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS) == line


def test_a_dry_run_of_a_log_that_is_only_read_says_what_its_writer_would_do(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock) as log:
        fill(log, clock, 300, 20)
        log.roll()
        log.flush()
        with kstore.Log.open(root / "events-0", "r", clock=clock, config=log.config) as reader:
            dry = reader.compact(dry_run=True)
            with pytest.raises(kstore.LogClosedError, match="mode='r'"):
                reader.compact()
        stats = log.compact()
        assert replace(dry, dry_run=False, seconds=0) == replace(stats, seconds=0)


def test_only_a_log_whose_policy_says_so_is_compacted(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock, cleanup_policy="delete") as log:
        for dry_run in (False, True):
            with pytest.raises(kstore.PolicyViolationError, match=r"cleanup\.policy is delete"):
                log.compact(dry_run=dry_run)
        log.update_config(cleanup_policy="compact,delete")
        log.compact()
        with pytest.raises(ValueError, match="exclude each other"):
            log.compact(roll=True, dry_run=True)


def test_a_full_map_ends_a_round_and_the_next_goes_on_until_all_is_clean(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock) as log:
        fill(log, clock, 300, 20)
        log.roll()
        before = newest(log)
        first = clean(log, LIMITS._replace(map_keys=7))
        assert first.map_full
        assert first.first_dirty_offset == 7  # inside of the first segment
        assert first.keys == 7
        stats = compact_log.compact(HostedLog(log).writer, limits=LIMITS._replace(map_keys=7))
        assert stats.map_full
        assert stats.rounds > 2
        assert stats.first_dirty_offset == 300
        assert stats.records_after == len(newest(log))
        assert newest(log) == before


def test_the_checkpoint_may_lie_inside_of_a_batch(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock) as log:
        log.append_many([(b"key %d" % (number % 8), b"value") for number in range(10)])
        log.roll()
        assert clean(log, LIMITS._replace(map_keys=5)).first_dirty_offset == 5
        assert [record.offset for record in log.read(0)] == list(range(10))
        stats = clean(log)
        assert stats.first_dirty_offset_before == 5
        assert [record.offset for record in log.read(0)] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_lone_segment_in_which_nothing_changes_is_left_alone(root: Path, clock: ManualClock) -> None:
    """`unchanged-segment-is-left`"""
    with open_log(root, clock, internal_segment_bytes=100_000) as log:
        log.append_many([(b"key %d" % number, b"value") for number in range(10)])
        log.roll()
        path = Path(log.segments[0].path)
        before = path.stat()
        stats = log.compact()
        assert (stats.records_before, stats.records_after, stats.segments_after) == (10, 10, 1)
        after = path.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        log.append_many([(b"key %d" % number, b"value") for number in range(5)])
        log.roll()
        assert log.compact().records_after == 10
        assert path.stat().st_ino != before.st_ino


def test_a_segment_with_other_index_files_than_a_cleaning_writes_is_written_anew(
    root: Path, clock: ManualClock
) -> None:
    """`unchanged-segment-is-left`"""
    with open_log(root, clock, internal_segment_bytes=100_000) as log:
        for number in range(100):
            log.append(b"value", key=b"key %d" % number)
        log.roll()
        log.append(b"value", key=b"key")
        log.roll()
        index = Path(log.segments[0].path).with_suffix(".index")
        entries = index.read_bytes()
    index.write_bytes(entries[:-8])
    with open_log(root, clock, internal_segment_bytes=100) as log:
        log.compact()
        assert index.read_bytes() == entries


def test_new_segments_have_the_time_of_the_last_one_they_were_made_from(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock, internal_segment_bytes=100_000) as log:
        for number in range(3):
            fill(log, clock, 20, 3)
            log.roll()
            path = Path(log.segments[number].path)
            os.utime(path, ns=(0, (1_600_000_000 + number) * 10**9))
        log.compact()
        base = Path(log.segments[0].path)
        for suffix in (".log", ".index", ".timeindex"):
            assert base.with_suffix(suffix).stat().st_mtime == 1_600_000_002, suffix


def test_an_index_without_room_begins_another_segment(root: Path, clock: ManualClock) -> None:
    """`full-cleaned-index`"""
    with open_log(root, clock, internal_segment_bytes=100_000) as log:
        fill(log, clock, 100, 1000)
        log.roll()
        fill(log, clock, 20, 10)
        log.roll()
        log.update_config(segment_index_bytes=10 * 8)
        before = newest(log)
        stats = log.compact()
        assert stats.segments_after > stats.segments_before
        assert newest(log) == before
        assert all(segment.offset_index_entries <= 10 for segment in log.segments)
    with open_log(root, clock) as log:
        assert newest(log) == before


@pytest.mark.parametrize("entries", [1, 2, 7, 19, 20, 21])
def test_an_index_without_room_for_one_piece_begins_segments_of_their_own(
    root: Path, clock: ManualClock, entries: int
) -> None:
    """`full-cleaned-index`: the first of them is where the old segment was, and no two are there."""
    with open_log(root, clock, internal_segment_bytes=100_000, index_interval_bytes=0) as log:
        for number in range(42):
            log.append(b"value", b"key %d" % (number if number < 40 else number - 20))
        log.roll()
        log.update_config(segment_index_bytes=entries * 12)
        before = newest(log)
        stats = log.compact()
        bases = [segment.base_offset for segment in log.segments]
        assert (stats.records_before, stats.records_after, bases[0]) == (42, 40, 0)
        assert sorted(set(bases)) == bases
        assert all(segment.offset_index_entries <= entries * 12 // 8 for segment in log.segments)
        assert newest(log) == before
    with open_log(root, clock) as log:
        assert newest(log) == before


def test_keyless_records_are_dropped_with_a_warning_that_counts_them(
    root: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(root, clock, cleanup_policy="delete") as log:
        log.append_many([b"1", b"2", b"3"])
        log.append(b"value", key=b"key")
        log.roll()
        log.update_config(cleanup_policy="compact")
        assert log.compact(dry_run=True).keyless_dropped == 3
        assert "3 records without keys would be dropped" in caplog.text
        assert log.compact().keyless_dropped == 3
        assert "3 records without keys were dropped" in caplog.text
        assert [record.offset for record in log.read(0)] == [3]


def test_damage_leaves_the_log_as_it_was_and_names_the_repair(root: Path, clock: ManualClock) -> None:
    """`cleaner-checks-batches`"""
    with open_log(root, clock) as log:
        fill(log, clock, 300, 20)
        path = Path(log.segments[3].path)
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        with pytest.raises(kstore.CorruptRecordError, match="kstore repair") as raised:
            log.compact()
        assert raised.value.path == str(path)
        assert HostedLog(log).writer.cleaning.failure is raised.value
        assert "kstore repair" in log.compaction_outlook().explanation
        assert unfinished(root / "events-0") == []
        fill(log, clock, 1, 20)
        data[-3] ^= 1
        path.write_bytes(data)
        assert log.compact().rounds == 1
        assert HostedLog(log).writer.cleaning.failure is None


def test_progress_and_throttle_are_told_of_all_bytes(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock) as log:
        fill(log, clock, 300, 20)
        told: list[tuple[int, int]] = []
        size = sum(segment.size_bytes for segment in log.segments[:-1])
        log.compact(progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (2 * size, 2 * size)
        assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_buffers_are_read_at_once_than_allowed_also_where_nothing_stays(
    root: Path, clock: ManualClock, at_once: int
) -> None:
    """SEMANTICS 7.8 and 7.27: an abort is seen, and a pace is kept, between two of these reads."""
    with open_log(root, clock, internal_segment_bytes=100_000) as log:
        for _ in range(2):  # in the second round all of the first one's records are superseded
            fill(log, clock, 400, 400)
            log.roll()
            writer, told = HostedLog(log).writer, [0]
            line = writer.housekeeping.housekeeper.first_dirty(("events", 0))
            compact(
                writer,
                survey(writer, log.config, writer.now(), line, lag=False),
                LIMITS._replace(io_buffer_bytes=1000, buffers_at_once=at_once),
                progress=lambda done, total, told=told: told.append(done),  # type: ignore[misc]
            )
        steps = [after - before for before, after in itertools.pairwise(told)]
        assert 1000 * (at_once - 1) < max(steps) <= 1000 * at_once
        assert sum(steps) == told[-1] > 30_000


@pytest.mark.parametrize("kept", [0, 1])
def test_what_the_first_pass_saw_die_as_a_whole_is_not_read_again(root: Path, clock: ManualClock, kept: int) -> None:
    """A piece of which one record stays is read by both passes."""
    with open_log(root, clock, internal_segment_bytes=100_000) as log:
        for value in (b"old", b"new"):
            for number in range(20):
                log.append(value, key=b"other" if (value, number) == (b"old", 0) and kept else b"key %02d" % number)
        log.roll()
        size, batch = log.segments[0].size_bytes, log.segments[0].size_bytes // 40
        moved: list[int] = []
        writer = HostedLog(log).writer
        stats = compact(
            writer,
            survey(writer, log.config, writer.now(), None, lag=False),
            LIMITS._replace(io_buffer_bytes=batch + 5),
            throttle=moved.append,
        )
        assert stats.records_after == len(newest(log)) == 20 + kept
        assert stats.records_before == 40
        assert abs(sum(moved) - (size + 2 * stats.bytes_after)) < batch  # read; read again and written
