"""Which log of a store is cleaned next, when, by whom, and what a failure does (SEMANTICS 7.1, 7.5 to 7.7).

Where a test is about the choice alone, the cleaning of a log is a stand-in that moves the first dirty offset.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore import BrokerConfig, CompactionStats, StorageError, Store
from kstore.files import checkpoint
from kstore.files.broker_directory import BROKER_FILE
from kstore.log.compaction import passes
from kstore.log.compaction.passes import DEFAULT_LIMITS, CleanerLimits
from kstore.log.hosted_log import HostedLog
from kstore.log.writing.cleaning_guard import CleaningAbortedError
from kstore.log.writing.writer import Writer
from kstore.store.cleaner import CLEANER, limits_of
from kstore.store.cleaner_throttle import Throttle
from kstore.store.manager import LogManager
from tests.conftest import ManualClock

SECOND, HOUR = 1000, 3_600_000
DAY = 24 * HOUR
BACKOFF = 15 * SECOND
VALUE = bytes(100)


class StandIn:
    """In the place of a round: it notes which log it was given, and calls the whole cleanable part clean."""

    def __init__(self) -> None:
        self.cleaned: list[tuple[str, int]] = []
        self.limits: list[CleanerLimits] = []
        self.failing: dict[tuple[str, int], Exception] = {}
        self.stuck: set[tuple[str, int]] = set()
        self.during: Callable[[Writer, Callable[[int], None]], object] = lambda writer, throttle: None

    def __call__(self, writer: Writer, dirtiness: Any, limits: CleanerLimits, *, throttle: Any) -> CompactionStats:
        first, end = dirtiness.first_dirty_offset, dirtiness.first_uncleanable_offset
        with writer.cleaning.running():
            self.cleaned.append(writer.partition)
            self.limits.append(limits)
            self.during(writer, throttle)
            if writer.partition in self.failing:
                raise self.failing[writer.partition]
            if writer.partition in self.stuck:
                end = first
            writer.housekeeping.housekeeper.write_first_dirty(writer.partition, end)
        return CompactionStats(first, end, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, False, False, 0.0)

    def take(self) -> list[tuple[str, int]]:
        """The logs that were cleaned since the last call, in order."""
        cleaned, self.cleaned = self.cleaned, []
        return cleaned


@pytest.fixture
def cleaning(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(passes, "compact", stand_in)
    return stand_in


@pytest.fixture
def opened(root: Path, clock: ManualClock, no_syncs: None) -> Iterator[Callable[..., Store]]:
    """`opened(**settings)`: a store whose housekeeping the test runs, and whose topics are compacted."""
    stores: list[Store] = []

    def open_store(**settings: Any) -> Store:
        paths = settings.pop("paths", root)
        settings = {"cleanup_policy": "compact", "log_initial_task_delay_ms": 0, "background": False, **settings}
        stores.append(Store.open(paths, clock=clock, **settings))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def manager_of(store: Store) -> LogManager:
    logs = store._logs
    assert isinstance(logs, LogManager)
    return logs


def fill(store: Store, topic: str, *counts: int, partition: int = 0) -> None:
    """Append closed segments of so many records each."""
    log = store.log(topic, partition)
    for count in counts:
        for n in range(count):
            log.append(VALUE, b"k%d" % n)
        log.roll()


def set_line(store: Store, topic: str, offset: int, partition: int = 0) -> None:
    writer = HostedLog(store.log(topic, partition)).writer
    writer.housekeeping.housekeeper.write_first_dirty(writer.partition, offset)


def lines(root: Path) -> dict[tuple[str, int], int]:
    return checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS)


def next_pass(store: Store, clock: ManualClock) -> None:
    clock.advance(BACKOFF)
    store.run_housekeeping()


# The choice.


def test_the_dirtiest_log_is_cleaned_first_and_then_each_other_that_is_eligible(
    opened: Callable[..., Store], cleaning: StandIn
) -> None:
    """SEMANTICS 7.3, 7.5."""
    store = opened()
    for topic, count in (("a", 5), ("b", 15), ("c", 10), ("d", 4)):
        store.create_topic(topic)
        fill(store, topic, 5, count)
        set_line(store, topic, 5)
    store.run_housekeeping()
    assert cleaning.take() == [("b", 0), ("c", 0)]  # a's half is not more than the least ratio, d's less
    store.update_topic_config("a", {"min.cleanable.dirty.ratio": "0.49"})
    store.run_housekeeping()
    assert cleaning.take() == []


def test_equally_dirty_logs_are_cleaned_one_after_the_other(opened: Callable[..., Store], cleaning: StandIn) -> None:
    store = opened()
    store.create_topic("a", 3)
    for partition in range(3):
        fill(store, "a", 5, partition=partition)
    store.run_housekeeping()
    assert sorted(cleaning.take()) == [("a", 0), ("a", 1), ("a", 2)]


def test_a_forced_log_is_cleaned_whatever_its_ratio_and_in_the_order_of_ratios(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    """SEMANTICS 7.3: forcing does not raise the priority."""
    store = opened(min_cleanable_dirty_ratio=0.8)
    for topic, count in (("a", 1), ("b", 9)):
        store.create_topic(topic, config={"max.compaction.lag.ms": str(DAY)})
        fill(store, topic, 5, count)
        set_line(store, topic, 5)
    store.run_housekeeping()
    assert cleaning.take() == []
    clock.advance(DAY)
    store.run_housekeeping()
    assert cleaning.take() == []
    next_pass(store, clock)
    assert cleaning.take() == [("b", 0), ("a", 0)]


def test_logs_without_the_policy_are_left_alone_until_they_get_it(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    store = opened(cleanup_policy="delete")
    for topic in ("a", "b"):
        store.create_topic(topic)
        fill(store, topic, 5)
    store.run_housekeeping()
    assert cleaning.take() == []
    store.update_topic_config("b", {"cleanup.policy": "compact,delete"})
    next_pass(store, clock)
    assert cleaning.take() == [("b", 0)]
    fill(store, "b", 50)
    store.update_topic_config("b", {"cleanup.policy": "delete"})
    next_pass(store, clock)
    assert cleaning.take() == []


def test_a_topic_that_a_broker_has_cleaned_is_compacted_once_a_setting_says_so(
    opened: Callable[..., Store], cleaning: StandIn, root: Path, clock: ManualClock
) -> None:
    """A broker keeps the line when it takes the policy away: a line alone is no reason to drop records."""
    with opened(cleanup_policy="delete") as store:
        for topic in ("a", "b"):
            store.create_topic(topic)
            fill(store, topic, 5)
    checkpoint.update_offsets(root, checkpoint.CLEANER_OFFSETS, {("a", 0): 2, ("b", 0): 2})
    store = opened(cleanup_policy="delete", min_cleanable_dirty_ratio=0)
    assert store.topic_config("a").cleanup_policy == ("compact",)  # so that retention deletes nothing
    store.run_housekeeping()
    assert cleaning.take() == []
    assert store.compact(dry_run=True) == {}
    store.update_topic_config("a", {"cleanup.policy": "compact"})
    next_pass(store, clock)
    assert cleaning.take() == [("a", 0)]
    store.close()
    store = opened(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    store.run_housekeeping()
    assert cleaning.take() == [("b", 0)]


def test_an_internal_topic_is_compacted_without_a_setting(
    opened: Callable[..., Store], cleaning: StandIn, root: Path
) -> None:
    with opened(cleanup_policy="delete") as store:
        store.create_topic("__consumer_offsets")
        fill(store, "__consumer_offsets", 5)
    store = opened(cleanup_policy="delete")
    store.run_housekeeping()
    assert cleaning.take() == [("__consumer_offsets", 0)]


def test_a_log_that_is_cleaned_or_paused_by_another_thread_is_passed_over(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    """LogCleanerManagerTest.testGrabFilthiestCompactedLogIgnoresInProgressPartitions,
    LogCleanerManagerTest.testLogsUnderCleanupIneligibleForCompaction."""
    store = opened()
    store.create_topic("a", 3)
    for partition in range(3):
        fill(store, "a", 5, partition=partition)
    states = [HostedLog(store.log("a", partition)).writer.cleaning for partition in range(3)]
    with states[0].running(), states[1].paused():
        store.run_housekeeping()
    assert cleaning.take() == [("a", 2)]
    next_pass(store, clock)
    assert sorted(cleaning.take()) == [("a", 0), ("a", 1)]


def test_a_log_taken_between_choice_and_cleaning_is_left_to_the_next_pass(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    store.create_topic("a")
    fill(store, "a", 5)

    def taken(writer: Writer, *arguments: Any, **named: Any) -> CompactionStats:
        with writer.cleaning.paused():
            return cleaning(writer, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(passes, "compact", taken)
        store.run_housekeeping()
    assert cleaning.take() == []
    assert store.stats()["failures"] == {}
    next_pass(store, clock)
    assert cleaning.take() == [("a", 0)]


def test_a_pass_ends_where_a_cleaning_does_not_move_the_first_dirty_offset(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    store = opened()
    store.create_topic("a")
    fill(store, "a", 5)
    cleaning.stuck.add(("a", 0))
    store.run_housekeeping()
    assert cleaning.take() == [("a", 0)]
    next_pass(store, clock)
    assert cleaning.take() == [("a", 0)]


def test_a_log_that_is_not_open_is_opened_only_if_it_has_closed_segments(
    opened: Callable[..., Store], cleaning: StandIn, root: Path
) -> None:
    with opened() as store:
        store.create_topic("a", 2)
        fill(store, "a", 5, partition=0)
        store.log("a", 1).append(VALUE, b"k")
    store = opened()
    store.run_housekeeping()
    assert cleaning.take() == [("a", 0)]
    assert store.stats()["open_logs"] == 1
    fill(store, "a", 5, partition=1)
    assert cleaning.take() == []


# The first-dirty line.


def test_a_line_outside_of_the_log_is_written_anew_though_nothing_is_cleaned(
    opened: Callable[..., Store], cleaning: StandIn, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LogCleanerManagerTest.testCheckpointUpdatedForInvalidOffsetNoCleaning; SEMANTICS 7.2."""
    store = opened()
    store.create_topic("a")
    store.log("a", 0).append(VALUE, b"k")
    store.log("a", 0).roll()
    set_line(store, "a", 200)
    cleaning.stuck.add(("a", 0))
    store.update_topic_config("a", {"min.compaction.lag.ms": str(DAY)})
    store.run_housekeeping()
    assert cleaning.take() == []
    assert lines(root) == {("a", 0): 0}
    assert "first dirty offset 200 is above the log end 1; cleaning begins at the log start" in caplog.text


@pytest.mark.parametrize(("policy", "warns"), [("compact", True), ("compact,delete", False)])
def test_a_line_below_the_log_start_is_written_anew_though_a_dirtier_log_is_cleaned(
    opened: Callable[..., Store],
    cleaning: StandIn,
    root: Path,
    caplog: pytest.LogCaptureFixture,
    policy: str,
    warns: bool,
) -> None:
    """LogCleanerManagerTest.testCheckpointUpdatedForInvalidOffsetNotSelected; SEMANTICS 7.29: with `compact,delete`
    retention moves the start, and nothing is warned about."""
    store = opened(cleanup_policy="compact,delete", retention_ms=-1, min_cleanable_dirty_ratio=0.8)
    for topic in ("a", "b"):
        store.create_topic(topic)
        fill(store, topic, 5, 5, 5)
    store.log("a", 0).delete_records(8)
    set_line(store, "a", 2)
    store.update_topic_config("a", {"cleanup.policy": policy})
    store.run_housekeeping()
    assert cleaning.take() == [("b", 0)]
    assert lines(root) == {("a", 0): 8, ("b", 0): 15}
    assert ("is below the log start 8" in caplog.text) == warns


def test_a_writing_of_the_cleaner_drops_the_partitions_that_are_not_here(
    opened: Callable[..., Store], cleaning: StandIn, root: Path
) -> None:
    """LogCleanerManagerTest.testUpdateCheckpointsShouldRemovePartitionData,
    LogCleanerManagerTest.testUpdateCheckpointsShouldAddOffsetToPartition; SEMANTICS 7.7."""
    checkpoint.update_offsets(root, checkpoint.CLEANER_OFFSETS, {("gone", 0): 7, ("kept", 0): 0})
    store = opened()
    store.create_topic("kept")
    store.create_topic("a")
    store.log("kept", 0).append(VALUE, b"k")
    store.run_housekeeping()
    assert lines(root) == {("gone", 0): 7}  # nothing was cleaned; the topic that was made has lost its line
    set_line(store, "kept", 1)
    fill(store, "a", 5)
    cleaning.take()
    manager_of(store).cleaner.run()
    assert lines(root) == {("kept", 0): 1, ("a", 0): 5}


def test_a_line_goes_with_its_topic(opened: Callable[..., Store], cleaning: StandIn, root: Path) -> None:
    store = opened()
    store.create_topic("a")
    fill(store, "a", 5)
    store.run_housekeeping()
    assert lines(root) == {("a", 0): 5}
    store.delete_topic("a")
    assert lines(root) == {}


def test_a_partition_with_lines_in_two_directories_has_that_of_its_own(
    opened: Callable[..., Store], cleaning: StandIn, tmp_path: Path
) -> None:
    """SEMANTICS 7.2a; docs/compatibility.md: `first-dirty-line-of-its-directory`."""
    roots = [tmp_path / "one", tmp_path / "two"]
    store = opened(paths=roots)
    store.create_topic("a", 2)
    fill(store, "a", 5, 5)
    mine = Path(manager_of(store)._metadata.partitions("a")[0].root)
    other = next(one for one in roots if one != mine)
    store.close()
    checkpoint.update_offsets(other, checkpoint.CLEANER_OFFSETS, {("a", 0): 10})
    store = opened(paths=roots)
    fill(store, "a", 5, partition=1)
    store.run_housekeeping()
    assert sorted(cleaning.take()) == [("a", 0), ("a", 1)]
    assert lines(mine) == {("a", 0): 10}
    assert lines(other) == {("a", 1): 5}


# Failures.


def test_a_log_whose_cleaning_fails_holds_up_no_other_and_is_tried_again(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    """LogCleanerManagerTest.testGrabFilthiestCompactedLogIgnoresUncleanablePartitions;
    docs/compatibility.md: `failed-cleaning`."""
    store = opened()
    for topic, count in (("a", 10), ("b", 5)):
        store.create_topic(topic)
        fill(store, topic, 5, count)
        set_line(store, topic, 4)
    cleaning.failing["a", 0] = ValueError("no room")
    store.run_housekeeping()
    assert cleaning.take() == [("a", 0), ("b", 0)]
    assert store.stats()["failures"] == {"cleaner a-0": "ValueError: no room"}
    assert store.log("a", 0).compaction_outlook().failure == "ValueError: no room"
    store.run_housekeeping()
    assert cleaning.take() == []
    next_pass(store, clock)
    assert cleaning.take() == [("a", 0)]
    cleaning.failing.clear()
    next_pass(store, clock)
    assert cleaning.take() == [("a", 0)]
    assert store.stats()["failures"] == {}
    assert store.log("a", 0).compaction_outlook().failure is None


def test_neither_a_failed_log_nor_one_in_progress_is_selected_and_then_none_is_left(
    opened: Callable[..., Store], cleaning: StandIn
) -> None:
    """LogCleanerManagerTest.testGrabFilthiestCompactedLogIgnoresBothInProgressPartitionsAndUncleanablePartitions."""
    store = opened()
    store.create_topic("a", 2)
    for partition in range(2):
        fill(store, "a", 5, partition=partition)
    cleaning.failing["a", 0] = ValueError("no room")
    with HostedLog(store.log("a", 1)).writer.cleaning.running():
        store.run_housekeeping()
    assert cleaning.take() == [("a", 0)]


def test_an_error_while_a_log_is_looked_at_is_noted_and_the_others_are_cleaned(
    opened: Callable[..., Store], cleaning: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LogCleanerManagerTest.testGrabFilthiestCompactedLogThrowsException."""
    store = opened()
    store.create_topic("a", 2)
    for partition in range(2):
        fill(store, "a", 5, partition=partition)
    housekeeper = HostedLog(store.log("a", 0)).writer.housekeeping.housekeeper
    real = housekeeper.first_dirty

    def failing(partition: tuple[str, int]) -> int | None:
        if partition == ("a", 0):
            raise StorageError(5, "not today", "x")
        return real(partition)

    monkeypatch.setattr(housekeeper, "first_dirty", failing)
    store.run_housekeeping()
    assert cleaning.take() == [("a", 1)]
    stats = store.stats()
    assert list(stats["failures"]) == ["cleaner a-0"]
    assert "not today" in stats["compaction"]["a-0"]["error"]


def test_a_topic_that_is_deleted_while_it_is_cleaned_is_no_failure(
    opened: Callable[..., Store], cleaning: StandIn
) -> None:
    """LogCleanerManagerTest.testConcurrentLogCleanupAndTopicDeletion."""
    store = opened()
    store.create_topic("a")
    fill(store, "a", 5)
    deleting: list[threading.Thread] = []

    def delete(writer: Writer, throttle: Callable[[int], None]) -> None:
        deleting.append(threading.Thread(target=store.delete_topic, args=("a",)))
        deleting[0].start()
        while "a" in store.topics and not writer.cleaning.pauses and not writer.closed:
            pass
        writer.cleaning.check()

    cleaning.during = delete
    store.run_housekeeping()
    deleting[0].join(60)
    assert store.topics == ()
    assert store.stats()["failures"] == {}


def test_logs_of_an_offline_directory_are_left_out_and_the_others_are_cleaned(
    opened: Callable[..., Store], cleaning: StandIn, tmp_path: Path
) -> None:
    """LogCleanerManagerTest.testHandleLogDirFailureShouldRemoveDirAndData."""
    roots = [tmp_path / "one", tmp_path / "two"]
    store = opened(paths=roots)
    store.create_topic("a", 2)
    for partition in range(2):
        fill(store, "a", 5, partition=partition)
    manager = manager_of(store)
    [failed, sound] = manager._metadata.partitions("a").values()
    manager.disks.take_offline(
        manager.disks.directories[failed.root], StorageError(5, "the disk has failed", failed.root)
    )
    store.run_housekeeping()
    assert cleaning.take() == [sound.key]
    assert lines(Path(sound.root)) == {sound.key: 5}
    assert lines(Path(failed.root)) == {}
    with pytest.raises(StorageError, match="the disk has failed"):
        store.close()


# Retention on logs with the policy `compact` (SEMANTICS 6.18, 7.5).


def old_log(store: Store, clock: ManualClock, topic: str, policy: str) -> None:
    store.create_topic(topic, config={"cleanup.policy": policy, "retention.ms": str(HOUR)})
    fill(store, topic, 5, 5)


def bases(store: Store, topic: str) -> list[int]:
    return [segment.base_offset for segment in store.log(topic, 0).segments]


@pytest.mark.parametrize(("policy", "left"), [("compact", [0, 5, 10]), ("compact,delete", [10])])
def test_a_pass_runs_retention_on_the_logs_that_are_compacted(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock, policy: str, left: list[int]
) -> None:
    """LogCleanerManagerTest.testLogsWithSegmentsToDeleteShouldConsiderCleanupPolicyCompactDeleteLogs,
    LogManagerTest.testDoesntCleanLogsWithCompactDeletePolicy: the task of retention leaves them to the cleaner."""
    store = opened(log_retention_check_interval_ms=SECOND)
    old_log(store, clock, "a", policy)
    store.run_housekeeping()
    clock.advance(HOUR + 1)
    manager_of(store)._retain()
    assert bases(store, "a") == [0, 5, 10]
    manager_of(store).cleaner.run()
    assert bases(store, "a") == left


def test_a_compacted_log_loses_what_is_below_its_log_start(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    """LogCleanerManagerTest.testLogsWithSegmentsToDeleteShouldConsiderCleanupPolicyCompactLogs."""
    store = opened(cleanup_policy="compact,delete")
    store.create_topic("a")
    fill(store, "a", 5, 5)
    store.log("a", 0).delete_records(5)
    store.update_topic_config("a", {"cleanup.policy": "compact"})
    store.run_housekeeping()
    assert bases(store, "a") == [5, 10]


def test_a_pass_leaves_the_logs_that_are_not_compacted_to_the_task_of_retention(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    """LogCleanerManagerTest.testLogsWithSegmentsToDeleteShouldNotConsiderCleanupPolicyDeleteLogs."""
    store = opened()
    old_log(store, clock, "a", "delete")
    clock.advance(HOUR + 1)
    manager_of(store).cleaner.run()
    assert bases(store, "a") == [0, 5, 10]
    manager_of(store)._retain()
    assert bases(store, "a") == [10]


@pytest.mark.parametrize("off", [{"log_cleaner_enable": False}, {"log_cleaner_threads": 0}])
@pytest.mark.filterwarnings("ignore::kstore.ConfigWarning")
def test_without_a_cleaner_nothing_is_cleaned_and_retention_does_not_stop(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock, off: dict[str, Any]
) -> None:
    """docs/compatibility.md: `retention-without-a-cleaner`."""
    store = opened(**off)
    old_log(store, clock, "a", "compact,delete")
    clock.advance(HOUR + 1)
    store.run_housekeeping()
    assert cleaning.take() == []
    assert bases(store, "a") == [10]
    assert CLEANER not in store.stats()["tasks"]


def test_retention_aborts_no_cleaning_of_a_log_that_the_cleaner_looks_after(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    store = opened()
    old_log(store, clock, "a", "compact,delete")
    clock.advance(HOUR + 1)
    during: list[list[int]] = []

    def retain(writer: Writer, throttle: Callable[[int], None]) -> None:
        thread = threading.Thread(target=manager_of(store)._retain)
        thread.start()
        thread.join(60)
        writer.cleaning.check()
        during.append(bases(store, "a"))

    cleaning.during = retain
    store.run_housekeeping()
    assert during == [[0, 5, 10]]
    assert bases(store, "a") == [10]


# When, and in which thread.


def test_the_first_pass_follows_the_initial_delay_and_the_next_the_backoff(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    """docs/compatibility.md: `cleaner-begins-later`."""
    store = opened(
        log_initial_task_delay_ms=30 * SECOND, log_cleaner_backoff_ms=2 * SECOND, min_cleanable_dirty_ratio=0
    )
    store.create_topic("a")
    times = []
    for _ in range(40):
        fill(store, "a", 50)
        store.run_housekeeping()
        times += [clock.now - 1_700_000_000_000] * len(cleaning.take())
        clock.advance(SECOND)
    assert times == [30 * SECOND, 32 * SECOND, 34 * SECOND, 36 * SECOND, 38 * SECOND]


def test_a_backoff_of_0_looks_again_at_the_next_millisecond(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    store = opened(log_cleaner_backoff_ms=0, min_cleanable_dirty_ratio=0)
    store.create_topic("a")
    store.run_housekeeping()
    for _ in range(3):
        fill(store, "a", 50)
        store.run_housekeeping()
        assert cleaning.take() == []
        clock.advance(1)
        store.run_housekeeping()
        assert cleaning.take() == [("a", 0)]


def cleaners() -> set[threading.Thread]:
    """The threads of all cleaners, those of stores that other tests have left open among them."""
    return {thread for thread in threading.enumerate() if thread.name == "kstore-cleaner"}


class Gate:
    """A place in a cleaning where it waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, writer: Writer, throttle: Callable[[int], None]) -> None:
        self.entered.release()
        while not self.open.wait(0.01):
            writer.cleaning.check()
            throttle(1)


def test_a_cleaning_in_the_background_holds_up_no_other_task(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock, root: Path
) -> None:
    cleaning.during = gate = Gate()
    store = opened(background=True, log_initial_task_delay_ms=0)
    store.create_topic("a")
    store.create_topic("b", config={"cleanup.policy": "delete", "retention.ms": str(HOUR)})
    fill(store, "b", 5)
    fill(store, "a", 5)
    clock.advance(DAY)
    assert gate.entered.acquire(timeout=60)
    waiting = threading.Event()
    for _ in range(6000):
        if bases(store, "b") == [5]:
            break
        waiting.wait(0.01)
    assert bases(store, "b") == [5]
    assert cleaning.cleaned == [("a", 0)]
    gate.open.set()


def test_each_thread_cleans_one_log_at_a_time(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    cleaning.during = gate = Gate()
    store = opened(background=True, log_cleaner_threads=2)
    store.create_topic("a", 3)
    for partition in range(3):
        fill(store, "a", 5, partition=partition)
    clock.advance(DAY)
    for _ in range(2):
        assert gate.entered.acquire(timeout=60)
    assert not gate.entered.acquire(timeout=0.2)
    assert len(set(cleaning.cleaned)) == 2
    gate.open.set()
    assert gate.entered.acquire(timeout=60)
    assert len(set(cleaning.cleaned)) == 3


def test_closing_the_store_aborts_the_cleaning_that_runs(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock, root: Path
) -> None:
    cleaning.during = gate = Gate()
    before = cleaners()
    store = opened(background=True)
    store.create_topic("a")
    fill(store, "a", 5)
    clock.advance(DAY)
    assert gate.entered.acquire(timeout=60)
    assert cleaners() > before
    store.close()  # would wait for ever
    assert cleaners() <= before
    assert lines(root) == {}


def test_a_store_that_is_dropped_takes_its_cleaners_threads_with_it(root: Path) -> None:
    before = cleaners()
    store = Store.open(root, log_cleaner_threads=2)
    assert len(cleaners() - before) == 2
    del store
    gc.collect()
    waiting = threading.Event()
    for _ in range(6000):
        if cleaners() <= before:
            break
        waiting.wait(0.01)
    assert cleaners() <= before


def test_the_housekeeping_of_a_caller_does_what_is_due_of_the_cleaners_own_threads(
    opened: Callable[..., Store], cleaning: StandIn, clock: ManualClock
) -> None:
    store = opened(background=True, log_initial_task_delay_ms=HOUR)
    assert CLEANER in store.stats()["tasks"]
    store.create_topic("a")
    fill(store, "a", 5)
    clock.advance(HOUR)
    waiting = threading.Event()
    for _ in range(6000):
        store.run_housekeeping()
        if cleaning.cleaned:
            break
        waiting.wait(0.01)
    assert cleaning.take() == [("a", 0)]


def test_housekeeping_of_the_caller_ends_when_another_thread_closes_the_store(
    opened: Callable[..., Store], cleaning: StandIn, root: Path
) -> None:
    cleaning.during = gate = Gate()
    store = opened()
    store.create_topic("a")
    fill(store, "a", 5)
    thread = threading.Thread(target=store.run_housekeeping)
    thread.start()
    assert gate.entered.acquire(timeout=60)
    store.close()
    thread.join(60)
    assert not thread.is_alive()
    assert lines(root) == {}


def test_every_read_and_write_asks_for_its_pace_and_aborts_when_the_store_closes(
    opened: Callable[..., Store], cleaning: StandIn
) -> None:
    store = opened(log_cleaner_io_max_bytes_per_second=1e9)
    cleaner = manager_of(store).cleaner
    counted: list[int] = []
    cleaner._throttle.__class__ = type(
        "Counted", (type(cleaner._throttle),), {"__call__": lambda _, n: counted.append(n)}
    )
    cleaner.pace(7)
    assert counted == [7]
    store.close()
    with pytest.raises(CleaningAbortedError):
        cleaner.pace(7)
    assert counted == [7]


# Memory.


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({}, DEFAULT_LIMITS),
        ({"log_cleaner_threads": 2}, CleanerLimits(2516581, 128 << 10, 1048588)),
        ({"log_cleaner_threads": 0}, DEFAULT_LIMITS),
        ({"log_cleaner_dedupe_buffer_size": (1 << 20) + 24}, CleanerLimits(39321, 256 << 10, 1048588)),
        ({"log_cleaner_dedupe_buffer_size": 2**62}, CleanerLimits(int((2**31 - 1) // 24 * 0.9), 256 << 10, 1048588)),
        ({"log_cleaner_io_buffer_load_factor": 0.5}, CleanerLimits(2796202, 256 << 10, 1048588)),
        ({"log_cleaner_io_buffer_size": 1 << 20}, CleanerLimits(5033164, 512 << 10, 1048588)),
        ({"log_cleaner_io_max_bytes_per_second": 1e9}, CleanerLimits(5033164, 256 << 10, 1048588, buffers_at_once=1)),
        ({"log_cleaner_io_buffer_size": 0}, CleanerLimits(5033164, 1, 1048588)),
    ],
)
def test_the_memory_of_a_thread_is_its_share_of_the_brokers(settings: dict[str, Any], limits: CleanerLimits) -> None:
    """SEMANTICS 7.9, 7.11, 7.23."""
    assert limits_of(BrokerConfig(**settings), 1048588) == limits


@pytest.mark.parametrize(("topic", "store_wide", "most"), [(100, 200, 200), (300, 200, 300)])
def test_a_buffer_grows_to_the_largest_batch_of_the_topic_or_the_store(
    opened: Callable[..., Store], cleaning: StandIn, topic: int, store_wide: int, most: int
) -> None:
    store = opened(max_message_bytes=store_wide)
    store.create_topic("a", config={"max.message.bytes": str(topic)})
    for n in range(3):
        store.log("a", 0).append(b"", b"%d" % n)
    store.log("a", 0).roll()
    store.run_housekeeping()
    assert [limits.max_io_buffer_bytes for limits in cleaning.limits] == [most]


# With the cleaning itself.


def values(store: Store, topic: str) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = {}
    for record in store.log(topic, 0).read():
        found.setdefault(record.key, []).append(record.value)
    return found


def test_housekeeping_leaves_the_newest_record_of_each_key(opened: Callable[..., Store], root: Path) -> None:
    store = opened()
    store.create_topic("a")
    log = store.log("a", 0)
    for n in range(30):
        log.append(b"%d" % n, b"k%d" % (n % 3))
        if n % 10 == 9:
            log.roll()
    store.run_housekeeping()
    assert values(store, "a") == {b"k0": [b"27"], b"k1": [b"28"], b"k2": [b"29"]}
    assert lines(root) == {("a", 0): 30}
    assert store.stats()["failures"] == {}


def test_records_younger_than_the_least_lag_stay(opened: Callable[..., Store], clock: ManualClock) -> None:
    """LogCleanerLagIntegrationTest.cleanerTest."""
    store = opened(min_compaction_lag_ms=HOUR, min_cleanable_dirty_ratio=0)
    store.create_topic("a")
    for number in (b"1", b"2"):
        for key in (b"x", b"y", b"x"):
            store.log("a", 0).append(number, key)
        store.log("a", 0).roll()
        clock.advance(HOUR // 2)
    store.run_housekeeping()
    assert values(store, "a") == {b"x": [b"1", b"2", b"2"], b"y": [b"1", b"2"]}
    clock.advance(HOUR // 2)
    store.run_housekeeping()
    assert values(store, "a") == {b"x": [b"2"], b"y": [b"2"]}


def test_the_greatest_lag_has_a_log_cleaned_that_is_not_dirty_enough(
    opened: Callable[..., Store], clock: ManualClock
) -> None:
    """LogCleanerIntegrationTest.testMaxLogCompactionLag."""
    store = opened(max_compaction_lag_ms=HOUR, min_cleanable_dirty_ratio=1.0)
    store.create_topic("a")
    for _ in range(5):
        store.log("a", 0).append(VALUE, b"k")
    clock.advance(HOUR + 1)
    store.log("a", 0).append(VALUE, b"k")  # a segment with a compacted policy is left by the lag, too
    store.run_housekeeping()
    assert len(list(store.log("a", 0).read())) == 2
    store.log("a", 0).append(VALUE, b"k")
    store.log("a", 0).roll()
    next_pass(store, clock)
    assert len(list(store.log("a", 0).read())) == 3  # the records since are younger


def test_a_damaged_log_is_told_with_what_mends_it_and_the_others_are_cleaned(
    opened: Callable[..., Store], clock: ManualClock
) -> None:
    """LogCleanerIntegrationTest.testMarksPartitionsAsOfflineAndPopulatesUncleanableMetrics: `stats()` has what a broker
    counts as uncleanable partitions and bytes."""
    store = opened()
    store.create_topic("a", 2)
    for partition in range(2):
        log = store.log("a", partition)
        for n in range(9):
            log.append(b"%d" % n, b"k%d" % (n % 3))
        log.roll()
    path = Path(store.log("a", 0).segments[0].path)
    data = bytearray(path.read_bytes())
    data[61 + 3] ^= 1
    path.write_bytes(data)
    store.run_housekeeping()
    stats = store.stats()
    assert list(stats["failures"]) == ["cleaner a-0"]
    assert "kstore repair" in stats["failures"]["cleaner a-0"]
    told = stats["compaction"]["a-0"]
    assert (told["size_bytes"], told["dirty_ratio"]) == (len(data), 1.0)
    assert "kstore repair" in told["compaction_failure"]
    assert path.read_bytes() == data
    assert not list(path.parent.glob("*.cleaned"))
    assert stats["compaction"]["a-1"]["first_dirty_offset"] == 9


def test_the_throttle_is_told_of_the_bytes_of_both_passes_and_of_what_is_written(opened: Callable[..., Store]) -> None:
    """SEMANTICS 7.27."""
    store = opened(log_cleaner_io_max_bytes_per_second=1000.0, min_cleanable_dirty_ratio=0)
    store.create_topic("a")
    time, slept, told, total = [0], [], [], 0

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time[0] += round(seconds * 1e9)

    class Told(Throttle):
        def __call__(self, count: int) -> None:
            told.append(count)
            time[0] += 400_000_000
            super().__call__(count)

    manager_of(store).cleaner._throttle = Told(1000.0, clock=lambda: time[0], sleep=sleep)
    for clean_bytes in (0, None):
        log = store.log("a", 0)
        already = log.stats()["size_bytes"] if clean_bytes is None else 0
        for n in range(30):
            log.append(VALUE, b"k%d" % (n % 3))
        log.roll()
        dirty = log.stats()["size_bytes"] - already
        told.clear()
        manager_of(store).cleaner.run()
        assert sum(told) == dirty + (already + dirty) + log.stats()["size_bytes"]
        total += sum(told)
    assert slept
    assert total / (time[0] / 1e9) <= 1000.0 * 1.05


# After a restart.


def test_retention_by_the_stores_policy_goes_on_after_a_restart(opened: Callable[..., Store], root: Path) -> None:
    """The store's own cleaner writes the line of a topic without settings; it is no sign of a broker's policy."""
    how: dict[str, Any] = {"cleanup_policy": "compact,delete", "retention_bytes": 1, "min_cleanable_dirty_ratio": 0}
    with opened(**how) as store:
        store.create_topic("a")
        fill(store, "a", 5, 5)
        store.compact()
        assert ("a", 0) in lines(root)
        fill(store, "a", 5)
    store = opened(**how)
    assert store.topic_config("a").cleanup_policy == ("compact", "delete")
    assert store.log("a", 0).apply_retention() != []
    assert store.log("a", 0).delete_records(15) == 15


def test_a_brokers_compacted_topic_is_kept_whatever_the_stores_policy(opened: Callable[..., Store], root: Path) -> None:
    how: dict[str, Any] = {"cleanup_policy": "compact,delete", "retention_bytes": 1}
    with opened(**how) as store:
        store.create_topic("a")
        fill(store, "a", 5, 5)
    checkpoint.update_offsets(root, checkpoint.CLEANER_OFFSETS, {("a", 0): 2})
    (root / BROKER_FILE).write_text("version=1\n")
    store = opened(**how)
    assert store.topic_config("a").cleanup_policy == ("compact",)
    assert store.log("a", 0).apply_retention() == []
    store.update_topic_config("a", {"cleanup.policy": "compact,delete"})
    assert store.log("a", 0).apply_retention() != []
