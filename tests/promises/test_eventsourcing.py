"""The recorders of examples/eventsourcing.py: the library's own tests of recorders, conflicts, and crashes.

The library gives its tests as abstract cases in `eventsourcing.tests.persistence`; the classes here run them, and
`test_every_case_of_the_library_is_run` names each.
"""

from __future__ import annotations

import inspect
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent, Tracking
from eventsourcing.tests import persistence as theirs
from eventsourcing.utils import Environment

import kstore
from tests.support import bankers
from tests.support.bankers import EXAMPLE, MODULE, ids_of, recorders


def factory_at(path: str | Path, mode: str = "a") -> Any:
    return recorders.Factory(Environment("Test", {"KSTORE_PATH": str(path), "KSTORE_MODE": mode}))


def events_of(originator_id: UUID | str, *versions: int) -> list[StoredEvent]:
    return [StoredEvent(originator_id, version, "topic", b"%d" % version) for version in versions]


# --- the library's own tests ------------------------------------------------------------------------------------------


class WithFactory(unittest.TestCase):
    def setUp(self) -> None:
        self.factory = factory_at(self.enterContext(tempfile.TemporaryDirectory()))
        self.addCleanup(self.factory.close)


class TestAggregateRecorder(WithFactory, theirs.AggregateRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.aggregate_recorder()


class TestSnapshotRecorder(WithFactory, theirs.AggregateRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.aggregate_recorder("snapshots")


class TestTextIds(TestAggregateRecorder):
    def new_originator_id(self) -> str:
        return f"account-{uuid4()}"


class TestApplicationRecorder(WithFactory, theirs.ApplicationRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestNotificationsDoNotInterleave(WithFactory, theirs.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class TestTrackingRecorder(WithFactory, theirs.TrackingRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.tracking_recorder()


class TestProcessRecorder(WithFactory, theirs.ProcessRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.process_recorder()


class TestProcessRecorderAsApplicationRecorder(TestApplicationRecorder):
    def create_recorder(self) -> Any:
        return self.factory.process_recorder()


class TestProcessRecorderAsTrackingRecorder(TestTrackingRecorder):
    def create_recorder(self) -> Any:
        return self.factory.process_recorder()


class SubclassedTrackingRecorder(recorders.KStoreTrackingRecorder):
    pass


class TestInfrastructureFactory(theirs.InfrastructureFactoryTestCase):
    def setUp(self) -> None:
        path = self.enterContext(tempfile.TemporaryDirectory())
        self.env = Environment("Test", {"PERSISTENCE_MODULE": MODULE, "KSTORE_PATH": path})
        super().setUp()
        self.addCleanup(self.factory.close)

    def expected_factory_class(self) -> Any:
        return recorders.Factory

    def expected_aggregate_recorder_class(self) -> Any:
        return recorders.KStoreAggregateRecorder

    def expected_application_recorder_class(self) -> Any:
        return recorders.KStoreApplicationRecorder

    def expected_tracking_recorder_class(self) -> Any:
        return recorders.KStoreTrackingRecorder

    def tracking_recorder_subclass(self) -> Any:
        return SubclassedTrackingRecorder

    def expected_process_recorder_class(self) -> Any:
        return recorders.KStoreProcessRecorder


RUN = {
    "AggregateRecorderTestCase": [TestAggregateRecorder, TestSnapshotRecorder, TestTextIds],
    "ApplicationRecorderTestCase": [TestApplicationRecorder, TestProcessRecorderAsApplicationRecorder],
    "TrackingRecorderTestCase": [TestTrackingRecorder, TestProcessRecorderAsTrackingRecorder],
    "ProcessRecorderTestCase": [TestProcessRecorder],
    "NonInterleavingNotificationIDsBaseCase": [TestNotificationsDoNotInterleave],
    "InfrastructureFactoryTestCase": [TestInfrastructureFactory],
}
LEFT_OUT = {
    "RecorderTestCase": "what the others have in common; it has no test",
    "TranscoderTestCase": "about the library's JSON, which no recorder takes part in",
}
# Of an application recorder's case the library calls this one by hand, since not each recorder has subscriptions.
CALLED = {"optional_test_insert_subscribe": "test_insert_subscribe"}


def test_every_case_of_the_library_is_run() -> None:
    cases = {
        name: case
        for name, case in vars(theirs).items()
        if inspect.isclass(case) and issubclass(case, unittest.TestCase) and case is not unittest.TestCase
    }
    assert cases.keys() == RUN.keys() | LEFT_OUT.keys()
    for name, ours in RUN.items():
        there = [each for each in vars(cases[name]) if each.startswith(("test", "optional_test"))]
        assert there
        for case in ours:
            for test in there:
                run = CALLED.get(test, test)
                assert run.startswith("test")
                assert test in CALLED or getattr(case, test) is getattr(cases[name], test), f"{case}.{test} is another"
                assert callable(getattr(case, run))
    assert not [each for each in vars(cases["RecorderTestCase"]) if each.startswith("test")]


# --- conflicts --------------------------------------------------------------------------------------------------------


def test_a_conflict_is_of_an_aggregate_and_not_of_the_partition(tmp_path: Path) -> None:
    """Two recorders of one log, each with what it knew when the other appended."""
    factory = factory_at(tmp_path)
    one, other = factory.application_recorder(), factory.application_recorder()
    assert one.insert_events(events_of("a", 1, 2)) == [1, 2]
    assert other.insert_events(events_of("b", 1)) == [3]
    assert one.insert_events(events_of("b", 2) + events_of("a", 3)) == [4, 5]
    with pytest.raises(IntegrityError, match="version 2 of b is recorded already"):
        other.insert_events(events_of("c", 1) + events_of("b", 2))
    assert one.select_events("c") == []
    assert other.insert_events(events_of("c", 1)) == [6]
    factory.close()


def test_an_append_between_the_look_for_conflicts_and_the_append_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = factory_at(tmp_path)
    one, other = factory.application_recorder(), factory.application_recorder()
    look = one._refuse_conflicts
    between = [events_of("a", 1), events_of("b", 1), []]

    def late(*given: Any) -> None:
        look(*given)
        other.insert_events(between.pop(0))

    monkeypatch.setattr(one, "_refuse_conflicts", late)
    assert one.insert_events(events_of("c", 1)) == [3]  # two retries: nobody wrote that
    assert between == []
    between[:] = [events_of("d", 1)]
    with pytest.raises(IntegrityError, match="version 1 of d"):
        one.insert_events(events_of("d", 1, 2))
    assert [each.originator_id for each in one.select_notifications(None, 10)] == ["a", "b", "c", "d"]
    factory.close()


def test_of_all_threads_that_save_the_same_version_one_does(tmp_path: Path) -> None:
    factory = factory_at(tmp_path)
    shared = factory.application_recorder()
    saved: list[tuple[int, int]] = []

    def work(number: int) -> None:
        recorder = shared if number % 2 else factory.application_recorder()
        for version in range(20):
            try:
                recorder.insert_events([*events_of("contended", version), *events_of(f"own-{number}", version)])
                saved.append((version, number))
            except IntegrityError:
                continue

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version for version, _ in saved) == list(range(20))
    for number in range(8):
        own = [each.originator_version for each in shared.select_events(f"own-{number}")]
        assert own == sorted(version for version, by in saved if by == number)
    factory.close()


def test_tracking_is_stored_with_its_events_or_neither_is(tmp_path: Path) -> None:
    factory = factory_at(tmp_path)
    recorder = factory.process_recorder()
    recorder.insert_events(events_of("a", 1), tracking=Tracking("upstream", 5))
    with pytest.raises(IntegrityError):
        recorder.insert_events(events_of("a", 1), tracking=Tracking("upstream", 6))
    with pytest.raises(IntegrityError):
        recorder.insert_events(events_of("a", 2), tracking=Tracking("upstream", 5))
    factory.close()
    factory = factory_at(tmp_path)
    recorder = factory.process_recorder()
    assert recorder.max_tracking_id("upstream") == 5
    assert [each.originator_version for each in recorder.select_events("a")] == [1]
    assert recorder.max_notification_id() == 1  # the tracking record behind it is none
    assert recorder.insert_events(events_of("a", 2)) == [3]
    assert [each.id for each in recorder.select_notifications(None, 10)] == [1, 3]
    factory.close()


def test_compaction_leaves_the_newest_snapshot_and_the_newest_tracking(tmp_path: Path) -> None:
    factory = factory_at(tmp_path)
    snapshots, tracking = factory.aggregate_recorder("snapshots"), factory.tracking_recorder()
    for version in (10, 20, 30):
        snapshots.insert_events(events_of("a", version))
        tracking.insert_tracking(Tracking("upstream", version))
    for topic in ("snapshots", "tracking"):
        factory.store.log(topic, 0).compact(roll=True)
    for each in (snapshots, factory.aggregate_recorder("snapshots")):
        assert each.select_events("a", desc=True, limit=1) == events_of("a", 30)
        assert each.select_events("a") == events_of("a", 30)
        assert each.select_events("a", lte=29, desc=True, limit=1) == []
    assert factory.tracking_recorder().max_tracking_id("upstream") == 30
    assert [recorders.event_of(each).state for each in factory.store.table("snapshots")] == [b"30"]
    factory.close()


# --- crashes and other processes --------------------------------------------------------------------------------------


def run(function: str, directory: Path) -> subprocess.Popen[bytes]:
    """A function of bankers.py in a process of its own."""
    arguments = [sys.executable, bankers.__file__, function, str(directory)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE)


def check(directory: Path, acknowledged: int) -> int:
    """Every save is whole, what was acknowledged is there, snapshots and replay agree; the newest notification."""
    with recorders.bank(str(directory)) as app:
        newest = app.recorder.max_notification_id() or 0
        assert newest >= acknowledged
        accounts = [app.repository.get(each) for each in ids_of(app)]
        if len(accounts) == 2:
            assert sum(account.balance for account in accounts) == 2000
            assert len({account.version for account in accounts}) == 1
        for account in accounts:
            versions = [each.originator_version for each in app.recorder.select_events(account.id)]
            assert versions == list(range(1, account.version + 1))
            moved = 1 - account.version if account.owner == "Ada" else account.version - 1
            assert account.balance == 1000 + moved
            table = app.factory.store.table("events")
            newest_event = recorders.event_of(table[recorders.key_of(account.id)])
            assert newest_event.originator_version == account.version
    return newest


def test_a_save_that_is_killed_half_way_is_not_there_and_all_before_it_is(tmp_path: Path) -> None:
    with run("die_in_the_middle_of_a_save", tmp_path) as process:
        assert process.wait() == -signal.SIGKILL
    file = tmp_path / "events-0" / f"{0:020}.log"
    with kstore.Log.open(file.parent, "r") as log:
        whole = sum(batch.size_bytes for batch in log.read_batches())
        assert log.log_end_offset == 4
    assert file.stat().st_size > whole
    assert check(tmp_path, 4) == 4
    assert file.stat().st_size == whole


@pytest.mark.parametrize("number", range(3))
def test_a_bank_that_is_ended_again_and_again_loses_no_save_and_no_part_of_one(
    tmp_path: Path, number: int, rng: random.Random
) -> None:
    """SIGTERM is not handled there, so it ends the process as it is, too."""
    acknowledged = 0
    for life in range(3):
        with run("transfer_for_ever", tmp_path) as process:
            assert process.stdout is not None
            for _ in range(1 + number * 5 + life):
                acknowledged = int(process.stdout.readline())
            process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
            told = process.stdout.read().split(b"\n")[:-1]  # whole lines that were on their way
            acknowledged = int(told[-1]) if told else acknowledged
        assert check(tmp_path, acknowledged) >= acknowledged


def test_a_reader_in_another_process_sees_what_is_saved_while_the_writer_works(tmp_path: Path) -> None:
    with run("transfer_for_ever", tmp_path) as process:
        assert process.stdout is not None
        saved = int(process.stdout.readline())
        with recorders.bank(str(tmp_path), "r") as reader:
            assert (reader.recorder.max_notification_id() or 0) >= saved
            with reader.recorder.subscribe(gt=0) as subscription:
                seen = [next(subscription).id for _ in range(saved + 10)]
            assert seen == list(range(1, saved + 11))
            with pytest.raises(kstore.KStoreError):
                reader.open("Carl", 1)
        process.kill()


def test_the_demo_shows_a_bank_that_is_the_same_after_it_was_opened_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "demo", str(tmp_path)], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.split("Opened again:")
    assert second.strip() in first
    assert "'Ada': " in second
