"""kstore/testing/crashes.py: the work is ended at each step, and what a machine may find then is opened again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import kstore
from kstore.disk import fs
from kstore.testing import Crash, Crashes, ManualClock
from kstore.testing.recorder import Recorder
from tests.support.parking import values


@pytest.fixture
def crashes(tmp_path: Path) -> Crashes:
    directory = tmp_path / "crashes"
    directory.mkdir()
    return Crashes(directory, ManualClock())


def write(log: kstore.Log, count: int, confirmed: list[bytes]) -> None:
    for number in range(count):
        log.append(b"%d" % number)
        log.flush()
        confirmed.append(b"%d" % number)


def damage(log: kstore.Log) -> None:
    log.close()
    path = Path(log.path) / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[65] ^= 1
    path.write_bytes(data)


def test_after_each_crash_of_each_kind_all_flushed_records_are_there(crashes: Crashes) -> None:
    seen: list[tuple[str, int]] = []
    for crash in crashes():
        confirmed: list[bytes] = []
        with crash.log() as log:
            write(log, 3, confirmed)
        with crash.reopened() as log:
            assert values(log)[: len(confirmed)] == confirmed
        seen.append((crash.how, len(confirmed)))
    for how in ("kill", "power", "torn"):
        counts = [count for each, count in seen if each == how]
        assert counts == sorted(counts)
        assert set(counts) == {0, 1, 2, 3}


def test_each_step_has_a_crash_of_its_own_and_the_last_is_after_all(crashes: Crashes) -> None:
    rounds: list[Crash] = []
    for crash in crashes("kill"):
        with crash.log() as log:
            write(log, 1, [])
        rounds.append(crash)
    assert [crash.steps for crash in rounds] == list(range(len(rounds)))
    assert [crash.interrupted for crash in rounds] == [True] * (len(rounds) - 1) + [False]
    assert "pwrite test-0/00000000000000000000.log" in {
        str(crash).split(": ")[0].split(", ")[1] for crash in rounds[:-1]
    }
    assert str(rounds[-1]) == "after the last step: the process was killed, and all that it wrote is there"


def test_a_kill_keeps_what_was_appended_and_a_power_cut_may_lose_it(crashes: Crashes) -> None:
    lost = set()
    for crash in crashes():
        appended = 0
        with crash.log() as log:
            for _ in range(3):
                log.append(b"not flushed")
                appended += 1
        with crash.reopened() as log:
            if crash.how == "kill" or not crash.interrupted:
                assert len(values(log)) == appended
            elif len(values(log)) < appended:
                lost.add(crash.how)
    assert lost == {"power", "torn"}


def test_a_torn_crash_leaves_half_of_a_write(crashes: Crashes) -> None:
    cut = 0
    for crash in crashes("torn"):
        with crash.log() as log:
            log.append(b"not flushed")
        with crash.reopened() as log:
            cut += log.recovery.cut_bytes > 0
    assert cut


def test_a_confirmation_that_comes_too_early_is_found_and_the_crash_is_named(crashes: Crashes) -> None:
    def look() -> None:
        for crash in crashes("power"):
            confirmed = []
            with crash.log() as log:
                for number in range(2):
                    log.append(b"%d" % number)
                    confirmed.append(b"%d" % number)
            with crash.reopened() as log:
                assert values(log)[: len(confirmed)] == confirmed

    with pytest.raises(AssertionError) as caught:
        look()
    (note,) = caught.value.__notes__
    assert note.startswith("after a crash before step ")
    assert note.endswith(": the power was cut, and only what was synced is there")


def test_a_store_has_its_topics_and_all_flushed_records_after_each_crash(crashes: Crashes) -> None:
    for crash in crashes("power"):
        confirmed = set()
        with crash.store(topics={"orders": 2}, segment_bytes=16_384) as store:
            for number in range(2):
                store.append("orders", b"%d" % number, key=b"%d" % number)
                store.flush()
                confirmed.add(b"%d" % number)
        with crash.reopened() as store:
            assert store.partitions("orders") == (0, 1)
            assert confirmed <= {record.value for record in store.read("orders")}


def test_a_synced_transaction_is_found_whole_or_not_at_all(crashes: Crashes) -> None:
    found = set()
    for crash in crashes("power"):
        is_committed = False
        with crash.store(topics={"orders": 1, "bills": 1}) as store:
            with store.producer(transactional_id="t") as producer, producer.transaction(sync=True) as transaction:
                transaction.append("orders", b"one")
                transaction.append("bills", b"one")
            is_committed = True
        with crash.reopened() as store:
            counts = {len(list(store.read(topic, isolation="read_committed"))) for topic in ("orders", "bills")}
            assert len(counts) == 1
            assert not is_committed or counts == {1}
            found |= counts
        if is_committed:
            break  # closing takes as many steps again
    assert found == {0, 1}


def test_messages_of_a_machine_that_has_stopped_are_not_logged(
    crashes: Crashes, caplog: pytest.LogCaptureFixture
) -> None:
    for crash in crashes("power"):
        with crash.store(topics={"orders": 1}) as store:
            store.append("orders", b"value", sync=True)
            store.delete_topic("orders")
    assert caplog.messages == []


def test_work_may_open_what_it_wants_in_a_directory(crashes: Crashes) -> None:
    for crash in crashes("power"):
        confirmed: list[bytes] = []
        with crash.work_in() as directory, kstore.Log.open(directory / "orders-0", clock=ManualClock()) as log:
            write(log, 1, confirmed)
        with crash.reopened() as directory:
            if confirmed:
                with kstore.Log.open(directory / "orders-0", mode="r") as log:
                    assert values(log) == confirmed
        assert crash.directory.is_dir()


def test_an_error_of_the_work_before_the_crash_is_raised_and_the_disk_is_put_back(tmp_path: Path) -> None:
    before = {name: getattr(fs, name) for name in (*Recorder.CHANGES, *Recorder.SYNCS)}
    crash = Crash(tmp_path, ManualClock(), "kill", 1000)
    with pytest.raises(KeyError, match="mine"), crash.log():
        raise KeyError("mine")
    assert {name: getattr(fs, name) for name in before} == before


def test_what_the_work_left_is_found_when_an_error_of_its_own_ended_it(crashes: Crashes) -> None:
    class RejectedError(Exception):
        """The application's own."""

    rejections = 0
    for crash in crashes():
        confirmed: list[bytes] = []
        try:
            with crash.log() as log:
                write(log, 1, confirmed)
                raise RejectedError
        except RejectedError:
            rejections += 1
        with crash.reopened() as log:
            assert values(log)[: len(confirmed)] == confirmed
    assert rejections > 0


def test_an_error_that_the_crash_leads_to_is_passed_over(crashes: Crashes) -> None:
    class OrderError(Exception):
        """The application's own."""

    rounds = 0
    for crash in crashes("kill"):
        with crash.log() as log:
            try:
                log.append(b"value", sync=True)
            except kstore.StorageError as error:
                raise OrderError from error
        rounds += 1
    assert rounds > 3


def test_a_dead_disk_refuses_every_change_and_still_reads(tmp_path: Path) -> None:
    with Recorder(tmp_path) as disk:
        fd = fs.open(tmp_path / "a", new=True)
        disk.stop_after(1)
        fs.pwrite(fd, b"one", 0)
        for change in (
            lambda: fs.pwrite(fd, b"two", 3),
            lambda: fs.truncate(fd, 0),
            lambda: fs.fsync(fd),
            lambda: fs.fdatasync(fd),
            lambda: fs.sync_directory(tmp_path),
            lambda: fs.rename(tmp_path / "a", tmp_path / "b"),
            lambda: fs.unlink(tmp_path / "a"),
            lambda: fs.make_directory(tmp_path / "d"),
            lambda: fs.open(tmp_path / "new", create=True),
            lambda: fs.open(tmp_path / "a", empty=True),
        ):
            with pytest.raises(kstore.StorageError, match="the machine has stopped before: pwrite a"):
                change()
        assert fs.pread(fd, 10, 0) == b"one"
        fs.close(fs.open(tmp_path / "a"))
        fs.close(fs.open(tmp_path / "a", create=True))
        assert fs.make_directory(tmp_path) is False
        fs.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_lies_outside_of_the_works_directory_goes_on_after_the_crash(tmp_path: Path, crashes: Crashes) -> None:
    with kstore.Log.open(tmp_path / "other-0", clock=ManualClock()) as other:
        for crash in crashes("kill"):
            with crash.log() as log:
                log.append(b"value")
                other.append(b"value", sync=True)
        assert other.log_end_offset > 3


def test_threads_of_the_work_are_refused_too(crashes: Crashes) -> None:
    failures: list[BaseException] = []

    def append(log: kstore.Log) -> None:
        try:
            for _ in range(3):
                log.append(b"value", sync=True)
        except kstore.StorageError as error:
            failures.append(error)

    for crash in crashes("power"):
        with crash.log() as log:
            thread = threading.Thread(target=append, args=(log,))
            thread.start()
            thread.join()
        with crash.reopened() as log:
            assert len(values(log)) <= 3
    assert failures


def test_the_clock_moves_the_logs_of_a_crash(tmp_path: Path) -> None:
    clock = ManualClock()
    for crash in Crashes(tmp_path, clock)("power"):
        with crash.log(retention_ms=1000) as log:
            log.append(b"old", sync=True)
            clock.advance(1001)
        with crash.reopened() as log:
            clock.advance(1001)
            assert values(log) == []


def test_misuse_is_an_error_that_says_what_to_do(crashes: Crashes) -> None:
    with pytest.raises(RuntimeError, match=r"was not used: do the work in crash\.log\(\)"):
        for _ in crashes():
            pass
    with pytest.raises(ValueError, match=r"how is 'fire'; 'kill', 'power', 'torn' are allowed"):
        next(crashes("fire"))  # type: ignore[arg-type]


def test_a_crash_is_used_once_and_before_its_log_is_opened_again(tmp_path: Path) -> None:
    crash = Crash(tmp_path, ManualClock(), "kill", 1000)
    with pytest.raises(RuntimeError, match="there is nothing to open again"), crash.reopened():
        pass
    with crash.log() as log:
        log.append(b"value")
    with pytest.raises(RuntimeError, match="was used before"), crash.log():
        pass


def test_a_log_that_the_test_damages_after_the_crash_fails(tmp_path: Path) -> None:
    crash = Crash(tmp_path, ManualClock(), "kill", 1000)
    with crash.log() as log:
        log.append(b"value")
    with pytest.raises(AssertionError, match="is not sound") as caught, crash.reopened() as log:
        damage(log)
    assert caught.value.__notes__ == [
        "after a crash after the last step: the process was killed, and all that it wrote is there"
    ]


def test_the_directories_of_a_crash_go_when_the_next_one_comes(tmp_path: Path) -> None:
    for crash in Crashes(tmp_path, ManualClock())("power"):
        with crash.log() as log:
            log.append(b"value")
        assert [path.name for path in tmp_path.iterdir()] == [f"power-{crash.steps}"]
    assert list(tmp_path.iterdir()) == []
