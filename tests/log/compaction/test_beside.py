"""A pass beside all else that a log does: changes abort it, a failure leaves the log as it was, readers go on."""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint
from kstore.log.hosted_log import HostedLog
from tests.conftest import ManualClock
from tests.support.cleaning import SECONDS, Aborting, Once, clean, fill, newest, open_log, unfinished
from tests.support.faultfs import FaultFS


@pytest.fixture
def log(root: Path, clock: ManualClock) -> kstore.Log:
    log = open_log(root, clock)
    fill(log, clock, 300, 20)
    log.update_config(internal_segment_bytes=100_000)  # all segments are one group
    return log


def lines(root: Path) -> dict[tuple[str, int], int]:
    return checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS)


@pytest.mark.parametrize("call", [2, 14])
def test_a_truncation_aborts_the_pass_which_begins_anew_after_it(root: Path, log: kstore.Log, call: int) -> None:
    """LogCleanerManagerTest.testConcurrentLogCleanupAndLogTruncation"""
    offset = log.segments[4].base_offset + 3
    aborting = Aborting(log, lambda: log.truncate_to(offset))
    stats = log.compact(progress=Once(aborting, call))
    assert aborting.finish() is True
    assert log.log_end_offset == offset
    assert stats.first_dirty_offset == log.segments[-1].base_offset <= offset
    assert lines(root) == {("events", 0): stats.first_dirty_offset}
    assert unfinished(root / "events-0") == []
    log.close()


def test_a_truncation_lowers_the_first_dirty_line_to_the_active_segment(
    root: Path, log: kstore.Log, clock: ManualClock
) -> None:
    """LogCleanerManagerTest.testMaybeTruncateCheckpointShouldTruncateData: a line that is lower, or missing, stays."""
    with log:
        log.update_config(internal_segment_bytes=2000)
        end = log.compact(roll=True).first_dirty_offset
        assert lines(root) == {("events", 0): end}
        log.truncate_to(end - 1)
        active = log.segments[-1].base_offset
        assert lines(root) == {("events", 0): active}
        assert active < end
        fill(log, clock, 1, 1)
        log.roll()
        log.truncate_to(log.log_end_offset - 1)
        assert lines(root) == {("events", 0): active}
        log.truncate_fully_and_start_at(active - 1)
        assert lines(root) == {("events", 0): active - 1}


def test_closing_the_log_aborts_the_pass_and_leaves_no_file_of_it(
    root: Path, log: kstore.Log, clock: ManualClock
) -> None:
    before = newest(log)
    aborting = Aborting(log, log.close)
    with pytest.raises(kstore.LogClosedError):
        log.compact(progress=Once(aborting, 14))
    aborting.finish()
    assert unfinished(root / "events-0") == []
    with open_log(root, clock) as log:
        assert log.recovery.clean
        assert newest(log) == before


def test_a_policy_that_loses_compact_aborts_the_pass(root: Path, log: kstore.Log) -> None:
    with log:
        aborting = Aborting(log, lambda: log.update_config(cleanup_policy="delete"))
        with pytest.raises(kstore.PolicyViolationError, match=r"cleanup\.policy is delete"):
            log.compact(progress=Once(aborting, 14))
        aborting.finish()
        assert unfinished(root / "events-0") == []
        assert lines(root) == {("events", 0): 0}  # where the pass began


def test_retention_that_deletes_a_segment_aborts_the_pass(root: Path, log: kstore.Log, clock: ManualClock) -> None:
    with log:
        log.update_config(cleanup_policy="compact,delete", retention_ms=200)
        aborting = Aborting(log, log.apply_retention)
        log.compact(progress=Once(aborting, 14))
        gone = aborting.finish()
        assert gone
        assert log.log_start_offset == log.segments[0].base_offset > 0
        assert unfinished(root / "events-0") == []


def test_appends_rolls_and_a_higher_log_start_go_on_beside_the_pass(
    root: Path, log: kstore.Log, clock: ManualClock
) -> None:
    with log:
        log.update_config(cleanup_policy="compact,delete")

        def work() -> None:
            fill(log, clock, 40, 20)
            log.roll()
            log.delete_records(5)
            log.flush()

        end = log.segments[-1].base_offset
        assert log.compact(progress=Once(work, 14)).first_dirty_offset == end
        assert log.log_end_offset == 340
        before = newest(log)
        log.compact()
        assert newest(log) == before
    with open_log(root, clock) as log:
        assert newest(log) == before


def test_a_second_cleaner_waits_and_finds_nothing_left_to_do(log: kstore.Log) -> None:
    with log, ThreadPoolExecutor(1) as pool:
        second: list[Future[kstore.CompactionStats]] = []

        def work() -> None:
            second.append(pool.submit(log.compact))
            with pytest.raises(kstore.KStoreError, match="this thread is cleaning"):
                clean(log)

        assert log.compact(progress=Once(work)).rounds == 1
        assert second[0].result(SECONDS).rounds == 0


def test_what_a_pass_calls_cannot_wait_for_the_pass(log: kstore.Log) -> None:
    for work in (lambda: log.truncate_to(3), log.close, log.compact):
        with pytest.raises(kstore.KStoreError, match="this thread is cleaning"):
            log.compact(progress=Once(work))
    log.close()


def test_an_interrupted_pass_leaves_no_file(root: Path, log: kstore.Log) -> None:
    def interrupt() -> None:
        assert unfinished(root / "events-0")
        raise KeyboardInterrupt

    with log:
        before = newest(log)
        with pytest.raises(KeyboardInterrupt):
            log.compact(progress=Once(interrupt, 14))
        assert unfinished(root / "events-0") == []
        assert newest(log) == before
        assert log.compact().rounds == 1
        assert newest(log) == before


def test_a_forked_child_of_a_pass_cleans_nothing_and_removes_nothing(root: Path, log: kstore.Log) -> None:
    def fork() -> None:
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            assert unfinished(root / "events-0")

    parent = os.getpid()
    with log:
        before = newest(log)
        try:
            assert log.compact(progress=Once(fork, 14)).rounds == 1
        except BaseException as error:
            if os.getpid() != parent:
                os._exit(0 if isinstance(error, kstore.LogClosedError) else 1)
            raise
        assert os.getpid() == parent
        assert newest(log) == before


def test_readers_go_on_through_a_swap_and_see_no_offset_twice(root: Path, log: kstore.Log, clock: ManualClock) -> None:
    with log:
        before = newest(log)
        readers = [log.read(0) for _ in range(3)]
        offsets = [[next(reader).offset for _ in range(10 * number)] for number, reader in enumerate(readers)]
        old = log._view.segments.items[2]
        position = old.find_batch(old.base_offset, old.size_bytes)
        log.compact()
        assert old.find_batch(old.base_offset, old.size_bytes) == position  # by its file, which has another name now
        for seen, reader in zip(offsets, readers, strict=True):
            seen += [record.offset for record in reader]
            assert seen == sorted(set(seen))
            assert seen[-1] == 299
            assert {record.offset for record in log.read(0)} <= set(seen) | set(range(seen[0]))
        clock.advance(log.config.file_delete_delay_ms + 1)
        log.run_housekeeping()
        assert not [path for path in (root / "events-0").iterdir() if path.name.endswith(".deleted")]
        assert newest(log) == before


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failure_before_the_swap_leaves_the_log_as_it_was_and_writable(
    root: Path, log: kstore.Log, clock: ManualClock, error: int
) -> None:
    """`failed-cleaning`: the next pass tries again."""
    before, files = newest(log), set((root / "events-0").iterdir())
    log.flush()
    for after in range(40):
        with FaultFS(root) as disk:
            disk.fail(error=error, after=after, path="*.cleaned", times=-1)
            with pytest.raises(kstore.StorageError) as raised:
                log.compact()
            assert HostedLog(log).writer.cleaning.failure is raised.value
            disk.heal()
            if unfinished(root / "events-0"):  # the files could not be removed either
                break
            assert log.failed is None
            assert newest(log) == before
    assert after > 0
    assert files <= set((root / "events-0").iterdir())
    log.compact()
    assert HostedLog(log).writer.cleaning.failure is None
    assert newest(log) == before
    assert unfinished(root / "events-0") == []
    log.close()


@pytest.mark.parametrize("call", ["rename", "sync_directory"])
def test_a_failure_in_the_swap_is_taken_back_or_finished_by_the_next_opening(
    root: Path, clock: ManualClock, call: str
) -> None:
    """`failed-cleaning`"""
    refused = 0
    for after in range(16):
        with open_log(root, clock) as log:
            log.truncate_fully_and_start_at(0)
            fill(log, clock, 60, 7)
            log.flush()
            before = newest(log)
            with FaultFS(root) as disk:
                disk.fail(call, error=errno.EIO, after=after, path="*events-0*")
                try:
                    log.compact()
                except kstore.StorageError:
                    disk.heal()
                    refused += log.failed is not None
                    if log.failed is None:
                        assert unfinished(root / "events-0") == []
                        assert newest(log) == before
                        log.compact()
            end = log.log_end_offset
            assert newest(log) == before
        with open_log(root, clock) as log:
            assert newest(log) == before
            assert log.log_end_offset == end
    assert refused
