"""A full disk, a failing sync, an interrupt: the log is as it was, or says that it is not known."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.disk import fs
from kstore.files import checkpoint
from kstore.log.hosted_log import HostedLog
from kstore.log.writing import _appender
from kstore.log.writing.housekeepers import RETRY_SECONDS, ThreadHousekeeper
from tests.conftest import ManualClock
from tests.support.faultfs import FaultFS
from tests.support.parking import values

REFUSED = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check(log: kstore.Log, expected: list[bytes]) -> None:
    """The log holds exactly these values, for its own readers and for those of other processes."""
    assert values(log) == expected
    assert log.log_end_offset == len(expected)
    with kstore.Log.open(log.path, mode="r") as reader:
        assert values(reader) == expected


def files(partition: Path) -> list[str]:
    return sorted(path.name for path in partition.iterdir())


def test_a_disk_that_fills_refuses_appends_and_takes_them_again_when_there_is_room(small_disk: Path) -> None:
    partition = small_disk / "events-0"
    with kstore.Log.open(partition, segment_bytes=100_000, index_interval_bytes=500) as log:
        expected: list[bytes] = []
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 300_000)
        for round_ in range(3):

            def fill(round_: int = round_, expected: list[bytes] = expected) -> None:
                for number in itertools.count():
                    value = b"%d-%d" % (round_, number) * 60
                    log.append(value)
                    expected.append(value)

            with pytest.raises(kstore.StorageError) as caught:
                fill()
            assert caught.value.errno == errno.ENOSPC
            check(log, expected)
            with pytest.raises(kstore.StorageError):
                log.append_many([b"y" * 5000] * 100)
            os.truncate(ballast, ballast.stat().st_size - 100_000)
            expected = [value for value in values(log) if value is not None]
            check(log, expected)
            log.append(b"again" * 50)
            expected.append(b"again" * 50)
            check(log, expected)
        ballast.unlink()
    with kstore.Log.open(partition, segment_bytes=100_000) as log:
        assert log.recovery.clean
        check(log, expected)


@pytest.mark.parametrize("failing", range(4))
def test_a_write_that_is_refused_leaves_the_log_as_it_was(partition: Path, failing: int) -> None:
    """The log's write is the last of three when an index entry is due: blocks first, then the batch, then entries."""
    with kstore.Log.open(partition, index_interval_bytes=0) as log:
        expected = [b"a" * 100, b"b" * 100]
        for value in expected:
            log.append(value)
        calls = itertools.count()

        def hook(fd: int, data: bytes, position: int) -> int:
            if next(calls) >= failing:
                raise REFUSED
            return os.pwrite(fd, data, position)

        def fill() -> None:
            for _ in range(5):
                log.append(b"c" * 100)
                expected.append(b"c" * 100)

        _appender.set_pwrite_hook(hook)
        try:
            with pytest.raises(kstore.StorageError, match="space") as caught:
                fill()
            assert caught.value.errno == errno.ENOSPC
        finally:
            _appender.set_pwrite_hook(None)
        check(log, expected)
        log.append(b"d")
        check(log, [*expected, b"d"])
    with kstore.Log.open(partition) as log:
        check(log, [*expected, b"d"])


def test_a_write_that_stops_in_the_middle_is_taken_back(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"a")
        halves = itertools.count()

        def hook(fd: int, data: bytes, position: int) -> int:
            if next(halves):
                raise REFUSED
            return os.pwrite(fd, data[: len(data) // 2], position)

        _appender.set_pwrite_hook(hook)
        try:
            with pytest.raises(kstore.StorageError):
                log.append_many([b"b" * 100] * 500)
        finally:
            _appender.set_pwrite_hook(None)
        check(log, [b"a"])


@pytest.mark.parametrize("how", ["append", "roll"])
@pytest.mark.parametrize("nth", range(1, 12))
def test_a_roll_that_fails_leaves_a_log_that_goes_on(
    partition: Path, how: str, nth: int, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Whatever call of the roll is refused: afterwards appends go on, and the next opening finds them all."""
    limits = {"segment_bytes": 300, "index_interval_bytes": 50}
    log = kstore.Log.open(partition, clock=clock, **limits)
    expected = [b"a" * 70, b"b" * 70]
    for value in expected:
        log.append(value)
    log.run_housekeeping()
    calls = itertools.count(1)

    def refusing(name: str) -> Any:
        real = getattr(fs, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if next(calls) == nth:
                raise kstore.StorageError(errno.ENOSPC, "full", str(arguments[0]))
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "pwrite", "truncate", "unlink", "write_file"):
            patch.setattr(fs, name, refusing(name))
        with contextlib.suppress(kstore.StorageError):
            if how == "append":
                log.append(b"c" * 100)
                expected.append(b"c" * 100)
            else:
                log.roll()
    check(log, expected)
    log.update_config(segment_bytes=10_000)  # what had to roll may stay in the old segment now
    for number in range(3):
        log.append(b"%d" % number)
        expected.append(b"%d" % number)
    check(log, expected)
    assert log.roll() == len(expected)
    log.append(b"last")
    expected.append(b"last")
    check(log, expected)
    log.close()
    with kstore.Log.open(partition, clock=clock, **limits) as log:
        check(log, expected)


def test_after_a_sync_that_failed_only_reading_goes_on(root: Path) -> None:
    partition = root / "events-0"
    with FaultFS(root) as disk:
        log = kstore.Log.open(partition)
        log.append(b"a")
        disk.fail("fdatasync")
        with pytest.raises(kstore.StorageError) as caught:
            log.flush()
        assert caught.value.errno == errno.EIO
        disk.heal()
        for write in (
            lambda: log.append(b"b"),
            lambda: log.append_many([b"b"]),
            lambda: log.append_batch(kstore.encode_batch([b"b"])),
            lambda: log.append(b"b", headers=[("h", b"x")]),
            log.flush,
            log.roll,
            lambda: log.truncate_to(0),
            lambda: log.delete_records(1),
        ):
            with pytest.raises(kstore.StorageError, match="until it is reopened"):
                write()
        assert values(log) == [b"a"]
        log.close()
        with kstore.Log.open(partition) as log:
            log.append(b"b")
            check(log, [b"a", b"b"])


def test_an_append_does_not_fail_for_what_housekeeping_had_to_write(
    root: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The flush of a roll wants its checkpoint written; the append tries for itself, and the file follows."""
    with FaultFS(root) as disk, kstore.Log.open(root / "events-0", clock=clock) as log:
        log.append(b"a")
        disk.fail("pwrite", error=errno.ENOSPC, path="*checkpoint*", times=-1)
        log.roll()
        for number in range(5):
            assert log.append(b"b") == number + 1
        assert "No space left" in str(log.stats()["full"]) or log.log_end_offset > 1
        assert [record.levelname for record in caplog.records] == ["WARNING"] * len(caplog.records)
        assert len(caplog.records) <= 5
        disk.heal()
        log.append(b"c")
        assert checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS) == {("events", 0): 1}


def test_a_flush_in_the_background_that_fails_is_logged_once_until_it_succeeds(
    root: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultFS(root) as disk, kstore.Log.open(root / "events-0", clock=clock) as log:
        housekeeper = ThreadHousekeeper("")  # without its thread
        housekeeping = HostedLog(log).writer.housekeeping
        for _ in range(2):
            log.append(b"a")
            housekeeping.housekeep()
            disk.fail("pwrite", error=errno.EDQUOT, path="*checkpoint*", times=-1)
            log.roll()
            caplog.clear()
            for _ in range(10):
                assert housekeeper.work_once(housekeeping) == RETRY_SECONDS
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            disk.heal()
            assert housekeeper.work_once(housekeeping) != RETRY_SECONDS
            assert len(caplog.records) == 1


# Interrupts.


def test_what_the_callers_code_raises_leaves_a_log_that_goes_on(partition: Path) -> None:
    class Ticks:
        stop = False

        def __call__(self) -> int:
            if self.stop:
                raise KeyboardInterrupt
            return 1000

    clock = Ticks()

    def records() -> Iterator[bytes]:
        yield from (b"x" * 100 for _ in range(20_000))
        raise KeyboardInterrupt

    with kstore.Log.open(partition, clock=clock, segment_bytes=300_000) as log:
        log.append(b"a")
        with pytest.raises(KeyboardInterrupt):
            log.append_many(records())
        stored = log.log_end_offset
        assert [record.offset for record in log.read()] == list(range(stored))
        clock.stop = True
        for write in (lambda: log.append(b"b"), lambda: log.append_many([b"b"]), log.roll):
            with pytest.raises(KeyboardInterrupt):
                write()
        clock.stop = False
        assert log.append(b"c") == stored
    with kstore.Log.open(partition, clock=clock) as log:
        assert [record.offset for record in log.read()] == list(range(stored + 1))


APPENDING = """
import itertools, os, random, signal, sys, time
import kstore
partition, seed = sys.argv[1:]
rng = random.Random(seed)
log = kstore.Log.open(partition, segment_bytes=20_000, index_interval_bytes=100, file_delete_delay_ms=0)
interrupts = 0
armed = False

def interrupt(*_):
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
deadline = time.monotonic() + 2.5
while time.monotonic() < deadline or interrupts <= 10 or log.log_end_offset <= 100:
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 3e-3))  # goes off once
        for _ in range(200):  # an interrupt may be lost where Python ignores exceptions
            if rng.random() < 0.5:
                for _ in range(20):
                    log.append(b"%d" % log.log_end_offset)
            else:
                begin = log.log_end_offset
                log.append_many((b"%d" % (begin + n) for n in range(50)), batch_bytes=500)
    except KeyboardInterrupt as error:
        armed = False
        interrupts += 1
        held = error  # with its traceback, and the frames in it
    armed = False
    end = log.log_end_offset
    assert log.append(b"%d" % end) == end
signal.setitimer(signal.ITIMER_REAL, 0)
values = [(record.offset, int(record.value)) for record in log.read()]
assert values == [(n, n) for n in range(log.log_end_offset)], "values"
end = log.log_end_offset
log.close()
with kstore.Log.open(partition, segment_bytes=20_000) as log:
    assert log.recovery.clean and log.log_end_offset == end
    assert sum(1 for _ in log.read()) == end
print(interrupts, end)
"""


@pytest.mark.parametrize("seed", range(3))
def test_interrupts_at_any_moment_leave_a_log_that_goes_on(partition: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", APPENDING, str(partition), str(seed)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    interrupts, end = map(int, done.stdout.split())
    assert interrupts > 10
    assert end > 100


def test_a_log_of_more_segments_than_files_may_be_open_is_written_and_read(partition: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
    try:
        with kstore.Log.open(partition, segment_bytes=100, segment_index_bytes=24) as log:
            for number in range(500):
                log.append(b"%d" % number)
            assert len(log.segments) == 500
            assert [record.offset for record in log.read()] == list(range(500))
            with kstore.Log.open(partition, mode="r") as reader:
                assert [record.offset for record in reader.read()] == list(range(500))
                assert len(reader.segments) == 500
        with kstore.Log.open(partition) as log:
            assert [record.offset for record in log.read(450)] == list(range(450, 500))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
