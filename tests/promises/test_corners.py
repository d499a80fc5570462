"""Forks, locks, the ends of the number line, borders of buffers, readers that are stopped in the middle."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.files.log_file import CHUNK_BYTES, LogFile
from kstore.log.reading.log_reader import LogReader
from kstore.log.reading.view import HEADER_BYTES
from kstore.log.segments.segment import Segment

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Forks.


class Child:
    """A forked process that runs `work` and stays until it is let go; 0 is what it ends with when all is well."""

    def __init__(self, work: Callable[[], object]) -> None:
        done, told = os.pipe()
        self._stay, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._go)
                signal.alarm(60)
                work()
                code = 0
            finally:
                os.write(told, bytes([code]))
                os.read(self._stay, 1)
                os._exit(code)
        os.close(told)
        self.code = ord(os.read(done, 1) or b"\xff")
        os.close(done)

    def end(self) -> None:
        os.close(self._go)
        os.waitpid(self.pid, 0)
        os.close(self._stay)


def is_closed(log: kstore.Log) -> None:
    for call in (
        lambda: log.append(b"x"),
        lambda: log.append_many([b"x"]),
        lambda: log.append_batch(kstore.encode_batch([b"x"])),
        log.flush,
        log.roll,
        lambda: log.truncate_to(0),
        lambda: log.delete_records(0),
        lambda: log.update_config(segment_bytes=1000),
        log.run_housekeeping,
        lambda: log.read(),
        lambda: log.fetch(0, 1),
        lambda: log.offset_for_timestamp(0),
        lambda: log.segments,
    ):
        with pytest.raises(kstore.LogClosedError):
            call()
    log.close()


def test_in_a_forked_child_the_log_is_closed_and_the_parents_goes_on(partition: Path) -> None:
    log = kstore.Log.open(partition, segment_bytes=200)
    log.append_many([b"a"] * 10, batch_bytes=1)
    records = log.read()
    next(records)

    def work() -> None:
        is_closed(log)
        with pytest.raises(kstore.LogClosedError):
            next(records)
        with pytest.raises(kstore.LogLockedError):
            kstore.Log.open(partition)  # the parent's
        with kstore.Log.open(partition, mode="r") as reader:
            assert len(list(reader.read())) == 10

    child = Child(work)
    assert child.code == 0
    child.end()
    assert log.append(b"b") == 10  # the child's end took nothing away
    assert [record.offset for record in records] == list(range(1, 10))
    with pytest.raises(kstore.LogLockedError):
        kstore.Log.open(partition)
    log.close()


def test_a_parent_that_closes_frees_its_locks_although_a_child_lives(partition: Path) -> None:
    log = kstore.Log.open(partition)
    child = Child(lambda: None)
    log.close()
    with kstore.Log.open(partition) as again:
        again.append(b"x")
    child.end()


def test_a_child_forked_while_other_threads_hold_every_lock_waits_for_none(partition: Path) -> None:
    """The thread that held a lock is not in the child."""
    with kstore.Log.open(partition, segment_bytes=2000) as log, kstore.Log.open(partition, mode="r") as reader:
        done = threading.Event()

        def write() -> None:
            while not done.is_set():
                log.append_many([b"x" * 100] * 50)
                log.flush()
                log.truncate_to(10)

        def read() -> None:
            while not done.is_set():
                reader.offset_for_timestamp(reader.log_end_offset)

        threads = [threading.Thread(target=work) for work in (write, write, read)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                child = Child(lambda: (is_closed(log), reader.close()))
                assert child.code == 0
                child.end()
        finally:
            done.set()
            for thread in threads:
                thread.join()


# Locks.


BROKER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the whole file, as Java's FileChannel.tryLock does
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


def broker(root: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BROKER, str(root / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_broker_and_a_writer_exclude_each_other_in_either_order(partition: Path) -> None:
    process, said = broker(partition.parent)
    assert said == "locked"
    with pytest.raises(kstore.LogLockedError, match=str(process.pid)) as caught:
        kstore.Log.open(partition)
    assert caught.value.pid == process.pid
    assert caught.value.filename == str(partition.parent / ".lock")
    assert not partition.exists()
    process.communicate("")
    with kstore.Log.open(partition) as log, kstore.Log.open(partition.parent / "other-1"):
        process, said = broker(partition.parent)
        assert said == "refused"
        process.communicate("")
        log.append(b"x")
    process, said = broker(partition.parent)
    assert said == "locked"
    process.communicate("")


def test_two_writers_of_one_partition_exclude_each_other(partition: Path) -> None:
    with kstore.Log.open(partition):
        with pytest.raises(kstore.LogLockedError, match="this process") as caught:
            kstore.Log.open(partition)
        assert (caught.value.pid, caught.value.filename) == (os.getpid(), str(partition))
        said = run(
            "import kstore, sys\n"
            "try: kstore.Log.open(sys.argv[1])\n"
            "except kstore.LogLockedError as error: print(error.pid, error.filename)",
            partition,
        )
        assert said.split() == [str(os.getpid()), str(partition)]


def test_of_threads_that_race_to_open_one_wins(partition: Path) -> None:
    for _ in range(10):
        barrier = threading.Barrier(8)
        won: list[kstore.Log] = []
        lost: list[kstore.LogLockedError] = []

        def race(barrier: threading.Barrier = barrier, won: list[kstore.Log] = won, lost: list[object] = lost) -> None:  # type: ignore[assignment]
            barrier.wait()
            try:
                won.append(kstore.Log.open(partition))
            except kstore.LogLockedError as error:
                lost.append(error)

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        won[0].append(b"x")
        won[0].close()


HAMMER = """
import kstore, sys
from kstore.disk import fs
fs.fsync = fs.fdatasync = lambda fd: None
fs.sync_directory = lambda path, *, missing_ok=False: None
root, name = sys.argv[1:]
for n in range(1, 16):
    with kstore.Log.open(f"{root}/{name}") as log:
        log.append_many([b"x"] * 10)
        log.delete_records(n)
        log.truncate_to(10 * n - 1)
        log.append(b"x")
"""


def test_writers_of_different_partitions_keep_each_others_checkpoint_lines(root: Path) -> None:
    names = [f"{topic}-{number}" for topic in ("a", "b") for number in range(3)]
    crowd = [subprocess.Popen([sys.executable, "-c", HAMMER, str(root), name]) for name in names]
    assert [process.wait(120) for process in crowd] == [0] * len(names)
    for file, offset in (("recovery-point-offset-checkpoint", 150), ("log-start-offset-checkpoint", 15)):
        lines = (root / file).read_text().splitlines()
        assert lines[:2] == ["0", str(len(names))]
        assert sorted(lines[2:]) == [f"{name.replace('-', ' ')} {offset}" for name in names]


def test_a_log_that_is_collected_frees_its_locks_and_loses_nothing(partition: Path) -> None:
    log = kstore.Log.open(partition)
    log.append_many([b"a", b"b"])
    records = log.read()
    del log
    gc.collect()
    assert [record.value for record in records] == [b"a", b"b"]  # the iterator kept it
    with pytest.raises(kstore.LogLockedError):
        kstore.Log.open(partition)
    del records
    gc.collect()
    with kstore.Log.open(partition) as again:
        assert [record.value for record in again.read()] == [b"a", b"b"]


def test_a_log_left_open_at_exit_loses_nothing(partition: Path) -> None:
    said = run(
        "import kstore, sys\n"
        "log = kstore.Log.open(sys.argv[1], segment_bytes=5000, flush_ms=1)\n"
        "log.append_many([b'x' * 100] * 500, batch_bytes=1)\n"
        "records = log.read(follow=True)\n"
        "next(records)\n"
        "print(log.log_end_offset)",
        partition,
    )
    assert said.split() == ["500"]
    with kstore.Log.open(partition) as log:
        assert [record.offset for record in log.read()] == list(range(500))


# The ends of the number line.


@pytest.mark.parametrize("start", [INT_MAX - 2, 2**31, 2**32 + 5, 2**62, LONG_MAX - 10])
def test_offsets_of_any_size_are_written_found_and_read(partition: Path, start: int) -> None:
    with kstore.Log.open(partition, index_interval_bytes=0, segment_bytes=500) as log:
        log.truncate_fully_and_start_at(start)
        expected = list(range(start, start + 8))
        for offset in expected:
            assert log.append(b"x" * 50, timestamp=offset - start) == offset
        for offset in expected:
            assert next(log.read(offset)).offset == offset
            assert log.fetch(offset, 1).offset == offset
            assert log.offset_for_timestamp(offset - start) == (offset - start, offset)
    for mode in ("a", "r"):
        with kstore.Log.open(partition, mode) as log:  # type: ignore[arg-type]
            assert [record.offset for record in log.read()] == expected


def test_the_greatest_offset_is_never_passed(partition: Path) -> None:
    """The log end is one past the last offset, and is a number of 64 bits too."""
    with kstore.Log.open(partition) as log:
        log.truncate_fully_and_start_at(LONG_MAX - 2)
        assert log.append(b"a") == LONG_MAX - 2
        with pytest.raises(kstore.InvalidRecordError, match=str(LONG_MAX - 2)):
            log.append_many([b"x"] * 5, atomic=True)
        assert log.append(b"b") == LONG_MAX - 1
        for call in (
            lambda: log.append(b"c"),
            lambda: log.append(b"c", headers=[("h", b"")]),
            lambda: log.append_many([b"c"]),
            lambda: log.append_batch(kstore.encode_batch([b"c"])),
            lambda: log.append_as_follower(kstore.encode_batch([b"c"], base_offset=LONG_MAX, partition_leader_epoch=0)),
        ):
            with pytest.raises((kstore.InvalidRecordError, kstore.OffsetsOutOfOrderError)):
                call()
            assert log.log_end_offset == LONG_MAX
        assert [record.value for record in log.read()] == [b"a", b"b"]
    with kstore.Log.open(partition) as log:
        assert [record.value for record in log.read()] == [b"a", b"b"]
        assert log.log_end_offset == LONG_MAX


@pytest.mark.parametrize(("last", "rolls"), [(INT_MAX - 1, False), (INT_MAX, False), (INT_MAX + 1, True)])
def test_a_segment_spans_no_more_offsets_than_an_index_entry_can_say(partition: Path, last: int, rolls: bool) -> None:
    """SEMANTICS 2.2(e), with both neighbours."""
    with kstore.Log.open(partition, index_interval_bytes=0) as log:
        log.append(b"x")
        log.append_as_follower(kstore.encode_batch([b"y"], base_offset=last, partition_leader_epoch=0))
        assert [segment.base_offset for segment in log.segments] == ([0, last] if rolls else [0])
        assert log.segments[-1].roll_reason == ("offset_range" if rolls else None)
        assert log.append(b"z") == last + 1
        assert [record.offset for record in log.read(1)] == [last, last + 1]
    with kstore.Log.open(partition) as log:
        assert [record.offset for record in log.read()] == [0, last, last + 1]


# Borders.


@pytest.mark.parametrize("border", [4096, CHUNK_BYTES, 2 * CHUNK_BYTES])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_batches_that_end_about_a_border_of_pages_and_buffers_are_read(
    partition: Path, border: int, extra: int
) -> None:
    """The first batch ends at the border or a byte beside it; others, small and larger than a buffer, follow."""
    with kstore.Log.open(partition, max_message_bytes=1 << 22) as log:
        overhead = len(kstore.encode_batch([b"x" * (border // 2)])) - border // 2
        sizes = [border + extra - overhead, 1, border - overhead, 3 * CHUNK_BYTES + extra, 0, 100]
        for size in sizes:
            log.append(b"x" * size)
        assert kstore.Log.fetch(log, 0, 1).records.nbytes in range(border + extra - 2, border + extra + 3)
        for view in (log, kstore.Log.open(partition, mode="r")):
            for start in range(len(sizes) + 1):
                assert [len(record.value or b"") for record in view.read(start)] == sizes[start:]
                assert [batch.base_offset for batch in view.read_batches(start)] == list(range(start, len(sizes)))


def test_a_batch_beyond_two_gibibytes_is_refused_by_the_segments_size(partition: Path) -> None:
    """Positions are 31 bits: a sparse file stands for a segment that is nearly full."""
    with kstore.Log.open(partition, segment_bytes=INT_MAX) as log:
        filler = kstore.encode_batch([b"x" * 100])
        log.append_batch(filler)
    path = partition / "00000000000000000000.log"
    header = bytearray(filler[:61])
    size = INT_MAX - len(filler) - 200
    struct.pack_into(">qi", header, 0, 1, size - 12)
    with open(path, "r+b") as file:
        file.seek(len(filler))
        file.write(header)
        file.truncate(len(filler) + size)
    with kstore.Log.open(partition, mode="r") as reader:
        # The hole is no sound batch, so the log ends before it, in bounded time and memory.
        assert reader.log_end_offset == 1
        assert len(list(reader.read())) == 1


# Readers that are stopped in the middle.


CHANGES: dict[str, Callable[[kstore.Log], object]] = {
    "truncate below": lambda log: log.truncate_to(3),
    "truncate above": lambda log: log.truncate_to(50),
    "truncate and go on": lambda log: (log.truncate_to(3), log.append_many([b"new"] * 60, batch_bytes=1)),
    "delete": lambda log: log.delete_records(60),
    "start anew": lambda log: log.truncate_fully_and_start_at(500),
    "close": lambda log: log.close(),
    "roll": lambda log: (log.roll(), log.append(b"more")),
}


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("how", ["records", "batches"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_stopped_in_the_middle_goes_on_or_says_why_not(
    partition: Path, change: str, how: str, mode: str
) -> None:
    log = kstore.Log.open(partition, segment_bytes=2000)
    log.append_many([b"old%d" % n for n in range(100)], batch_bytes=1)
    view = log if mode == "a" else kstore.Log.open(partition, mode="r")
    walk = view.read() if how == "records" else view.read_batches()
    given = [next(walk) for _ in range(10)]
    kept = [tuple(item) if how == "records" else bytes(item) for item in given]  # type: ignore[arg-type, call-overload]
    CHANGES[change](log)
    if mode == "r" and change != "close":
        view.log_end_offset  # noqa: B018 - it looks
    error: BaseException | None = None
    try:
        given.extend(walk)  # type: ignore[arg-type]
    except (kstore.OffsetOutOfRangeError, kstore.LogClosedError) as caught:
        error = caught
    assert kept == [tuple(item) if how == "records" else bytes(item) for item in given[:10]]  # type: ignore[arg-type, call-overload]
    offsets = [item.offset if how == "records" else item.base_offset for item in given]  # type: ignore[union-attr]
    assert offsets == list(range(len(offsets)))
    if change in ("truncate below", "truncate and go on", "delete", "start anew"):
        assert isinstance(error, kstore.OffsetOutOfRangeError)
        assert (error.log_start_offset, error.log_end_offset) == (view.log_start_offset, view.log_end_offset)
    elif change == "close" and mode == "a":
        assert isinstance(error, kstore.LogClosedError)
    else:
        assert error is None
        assert len(offsets) == (50 if change == "truncate above" else 100)
    log.close()
    view.close()


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "roll"])
def test_bytes_that_were_fetched_stay_and_are_sent_or_refused(partition: Path, change: str) -> None:
    log = kstore.Log.open(partition, segment_bytes=2000)
    log.append_many([b"old%d" % n for n in range(100)], batch_bytes=1)
    result = log.fetch(0, 1500)
    before = bytes(result.records)
    CHANGES[change](log)
    assert bytes(result.records) == before
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            assert result.send_to(ours) == len(before)
        except kstore.StorageError:
            assert change.startswith("truncate")
        else:
            sent = theirs.recv(1 << 20)
            if change != "truncate and go on":  # the file's bytes are others now
                assert sent == before
    log.close()


def test_an_iterator_that_two_threads_use_never_gives_a_wrong_record(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many([b"%d" % n for n in range(50_000)], batch_bytes=500)
        records = log.read()
        found: list[int] = []
        wrong: list[object] = []

        def take() -> None:
            while True:
                try:
                    record = next(records, None)
                except ValueError:
                    continue  # the other thread is in there
                if record is None:
                    return
                if record.value != b"%d" % record.offset:
                    wrong.append(record)
                found.append(record.offset)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert sorted(found) == list(range(50_000))


def test_a_reader_elsewhere_is_told_of_a_cut_before_it_reads_on(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would go on behind a record that is gone, with one of another history."""
    with kstore.Log.open(partition) as writer, kstore.Log.open(partition, mode="r") as log:
        for number in range(5):
            writer.append(b"old %d" % number)
        records = log.read(follow=True, timeout=0.01)
        assert [next(records).value for _ in range(3)] == [b"old 0", b"old 1", b"old 2"]
        look = LogReader._start_in
        cuts = iter([1])

        def cut_behind(self: LogReader, segment: Segment) -> int:
            for offset in cuts:
                writer.truncate_to(offset)
                writer.append_many([b"new %d" % number for number in range(1, 7)], batch_bytes=100)
            return look(self, segment)

        monkeypatch.setattr(LogReader, "_start_in", cut_behind)
        log._view.guard.version += 1
        with pytest.raises(kstore.OffsetOutOfRangeError, match="offset 3"):
            next(records)
        assert [record.value for record in log.read(1)] == [b"new %d" % number for number in range(1, 7)]


def test_a_reader_elsewhere_whose_file_is_cut_between_two_of_its_reads_looks_again(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, cuts = LogFile.read, [1]
    with kstore.Log.open(partition) as log, kstore.Log.open(partition, "r") as reader:
        for value in (b"a", b"b", b"c"):
            log.append(value)

        def cut_once(file: LogFile, position: int, size: int) -> bytes:
            if size == HEADER_BYTES and cuts:  # the header of the last batch, after the scan that saw it
                log.truncate_to(cuts.pop())
            return read(file, position, size)

        monkeypatch.setattr(LogFile, "read", cut_once)
        assert [record.value for record in reader.read()] == [b"a"]
        assert cuts == []
        log.append(b"d")
        assert [record.value for record in reader.read()] == [b"a", b"d"]
