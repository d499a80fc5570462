"""Index files and the system: when they are touched, mapped, cut, synced and closed, and what a failure costs."""

from __future__ import annotations

import errno
import itertools
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kstore.disk import fs
from kstore.errors import CorruptIndexError, LogClosedError, StorageError
from kstore.files.index_file import COPY_BYTES, OffsetIndex, TimeIndex
from tests.support.indexfiles import (
    BASE,
    FULL_BYTES,
    bytes_of,
    contents,
    maps,
    open_descriptors,
    packed,
    refuse,
    reopened,
)
from tests.support.indexfiles import offsets as offsets
from tests.support.indexfiles import times as times
from tests.support.meeting import Line

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


# ---- when the file is touched ----


def test_making_an_index_touches_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open", "size", "map", "pread", "stat", "exists"):
        monkeypatch.setattr(fs, name, refuse)
    index = OffsetIndex(tmp_path / "missing" / "x", BASE, 80)
    reader = OffsetIndex(tmp_path / "missing" / "x", BASE, 80, writable=False)
    assert "missing" in repr(index)
    index.close()
    reader.close()


@LINUX
def test_a_small_sealed_index_is_copied_and_keeps_no_descriptor(offsets: OffsetIndex) -> None:
    offsets.append(50, 10)
    offsets.trim()
    again = reopened(offsets)
    assert again.lookup(60) == offsets.lookup(60) == (50, 10)
    assert not maps(offsets.path)
    assert open_descriptors(offsets.path) == 0


@LINUX
@pytest.mark.parametrize("extra", [0, 8])
def test_a_sealed_index_is_mapped_when_it_is_larger_than_a_copy_may_be(tmp_path: Path, extra: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(struct.pack(">ii", n, n) for n in range(1, (COPY_BYTES + extra) // 8 + 1)))
    index = OffsetIndex(path, 0, FULL_BYTES)
    assert index.lookup(8193) == (8192 + extra // 8, 8192 + extra // 8)
    assert maps(path) == (extra > 0)
    index.close()
    assert not maps(path)
    assert open_descriptors(path) == 0


@LINUX
def test_no_file_is_cut_while_it_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinking a file under a map is a SIGBUS at the next touch. Threads that search keep mapping it meanwhile."""
    path = tmp_path / "x"
    index = OffsetIndex(path, 0, FULL_BYTES)
    index.grow()
    cuts = []

    def watched(fd: int, size: int, *, truncate: Callable[[int, int], None] = fs.truncate) -> None:
        cuts.append(maps(path))
        truncate(fd, size)

    monkeypatch.setattr(fs, "truncate", watched)
    over = threading.Event()
    wanted = range(0, 40_000, 37)
    wrong: list[object] = []

    def search() -> None:
        while not over.is_set():
            for target in wanted:
                found = index.lookup(target)
                if found[0] > target or found[0] != found[1]:
                    wrong.append(found)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            index.replace(b"".join(struct.pack(">ii", n, n) for n in range(1, 20_000)))
            index.grow()
            index.append(20_000, 20_000)
            index.truncate_to(9_000)
            index.append(9_000, 9_000)
            index.trim()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(cuts) >= 60
    assert not any(cuts)


@LINUX
def test_a_file_that_another_program_cut_is_reported_and_not_mapped(offsets: OffsetIndex) -> None:
    offsets.append(50, 10)
    os.truncate(offsets.path, 0)
    with pytest.raises(CorruptIndexError, match="another program cut it to 0 bytes from 240"):
        offsets.lookup(50)


def test_a_search_by_position_beside_a_cut_gives_what_was_there_before_or_after(offsets: OffsetIndex) -> None:
    place = "the first line"
    for number in itertools.count(1):
        offsets.truncate_to(BASE)
        for slot in range(9):
            offsets.append(BASE + 10 * slot + 10, 100 * slot + 100)
        offsets.park()
        cut = threading.Thread(target=offsets.truncate_to, args=(BASE + 15,))
        line = Line(number, partial(start_beside, cut), ("files",))
        assert line.run(lambda: offsets.offset_from(500)) in (BASE + 50, None), place
        if not (place := line.place):
            break
        cut.join()  # one thread at a time may change the file
    assert number > 1


def start_beside(thread: threading.Thread) -> None:
    """Start a thread, and wait for its end unless it waits for this one."""
    thread.start()
    thread.join(0.02)


def test_a_closed_index_says_so(offsets: OffsetIndex, times: TimeIndex) -> None:
    offsets.append(50, 10)
    assert offsets.lookup(60) == (50, 10)
    for index in (offsets, times):
        index.close()
        index.close()
    uses: list[Callable[[], object]] = [
        lambda: offsets.lookup(60),
        lambda: offsets.offset_from(3),
        lambda: offsets.entries,
        lambda: offsets.last,
        lambda: offsets.fd,
        lambda: offsets.append(70, 80),
        lambda: times.maybe_append(70, 80),
        lambda: times.last,
        offsets.grow,
        offsets.trim,
        lambda: offsets.truncate_to(3),
        lambda: offsets.replace(b""),
        offsets.refresh,
    ]
    for use in uses:
        with pytest.raises(LogClosedError, match="closed"):
            use()


# ---- a writer with a pwrite of its own ----


def test_entries_written_through_the_descriptor_count_once_they_are_announced(offsets: OffsetIndex) -> None:
    offsets.append(46, 5)
    assert offsets.lookup(60) == (46, 5)
    os.pwrite(offsets.fd, packed((50, 9), (55, 12)), offsets.entries * offsets.entry_bytes)
    assert offsets.lookup(60) == (46, 5)
    offsets.entries = 3
    assert offsets.lookup(60) == (55, 12)
    offsets.append(56, 20)
    offsets.trim()
    assert bytes_of(offsets) == packed((46, 5), (50, 9), (55, 12), (56, 20))


def test_a_number_of_entries_beyond_the_file_is_refused(offsets: OffsetIndex) -> None:
    for entries in (-1, 31):
        with pytest.raises(ValueError, match=f"{entries} entries in an index that has room for 30"):
            offsets.entries = entries
    offsets.entries = 30
    assert offsets.is_full


def test_a_descriptor_of_a_sealed_index_sees_what_is_written_after_a_lookup(offsets: OffsetIndex) -> None:
    """The lookup has made a copy; opening the file for writing throws it away."""
    offsets.append(46, 5)
    offsets.append(50, 9)
    offsets.trim()
    assert offsets.lookup(60) == (50, 9)
    os.pwrite(offsets.fd, packed((51, 10)), 8)
    assert offsets.lookup(60) == (51, 10)


# ---- failures ----


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise StorageError(number, os.strerror(number), "x")

    return fail


def test_a_full_disk_is_a_storage_error_and_adds_nothing(
    offsets: OffsetIndex, times: TimeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets.append(46, 5)
    with monkeypatch.context() as patch:
        patch.setattr(fs, "pwrite", failing(errno.ENOSPC))
        for use in (
            lambda: offsets.append(50, 9),
            lambda: times.maybe_append(50, 50),
            lambda: times.maybe_append(50, 50, force=True),
        ):
            with pytest.raises(StorageError) as caught:
                use()
            assert caught.value.errno == errno.ENOSPC
    assert contents(offsets) == [(46, 5)]
    assert times.entries == 0
    offsets.append(50, 9)
    assert offsets.lookup(50) == (50, 9)


def test_an_index_that_cannot_be_made_longer_stays_as_it_was(
    offsets: OffsetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets.append(46, 5)
    for call in (lambda: offsets.grow(800), offsets.trim, lambda: offsets.truncate_to(50)):
        with monkeypatch.context() as patch:
            patch.setattr(fs, "truncate", failing(errno.EIO))
            with pytest.raises(StorageError):
                call()
        assert contents(offsets) == [(46, 5)]
        assert offsets.max_entries == 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_file_over_the_systems_limit_is_a_storage_error_and_no_signal(tmp_path: Path) -> None:
    """A real refusal by the kernel, met in a child."""
    import resource

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        index = OffsetIndex(tmp_path / "x", 0, FULL_BYTES)
        with pytest.raises(StorageError) as caught:
            index.grow()
        assert caught.value.errno == errno.EFBIG
        index.grow(4096)
        index.append(1, 1)
        assert index.lookup(5) == (1, 1)

    assert in_child(child) == 0


def in_child(body: Callable[[], None]) -> int:
    """Run in a forked child; 0 when it went well."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_cannot_write_through_its_parents_index(offsets: OffsetIndex) -> None:
    offsets.append(46, 5)

    def child() -> None:
        for use in (lambda: offsets.fd, lambda: offsets.append(50, 9), offsets.trim):
            with pytest.raises(LogClosedError):
                use()

    assert in_child(child) == 0
    offsets.append(50, 9)
    assert contents(offsets) == [(46, 5), (50, 9)]


def test_a_flush_syncs_once_for_what_was_written(offsets: OffsetIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(fs, "fdatasync", synced.append)

    def syncs() -> int:
        synced.clear()
        offsets.flush()
        return len(synced)

    assert syncs() == 1  # its size
    assert syncs() == 0
    offsets.append(46, 5)
    assert (syncs(), syncs()) == (1, 0)
    os.pwrite(offsets.fd, packed((50, 9)), 8)
    offsets.entries = 2
    assert (syncs(), syncs()) == (1, 0)
    offsets.entries = 2
    assert syncs() == 0
    offsets.trim()
    assert (syncs(), syncs()) == (1, 0)
    offsets.truncate_to(50)
    assert syncs() == 1


def test_a_flush_that_failed_is_not_forgotten(offsets: OffsetIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets.append(46, 5)
    with monkeypatch.context() as patch:
        patch.setattr(fs, "fdatasync", failing(errno.EIO))
        with pytest.raises(StorageError):
            offsets.flush()
    synced: list[int] = []
    monkeypatch.setattr(fs, "fdatasync", synced.append)
    offsets.flush()
    assert len(synced) == 1


@LINUX
def test_flushing_a_sealed_index_leaves_no_descriptor(offsets: OffsetIndex) -> None:
    offsets.append(46, 5)
    offsets.trim()
    offsets.flush()
    assert open_descriptors(offsets.path) == 0


# ---- another program cuts the file


CUT_UNDER_A_WRITER = """
import logging, os, sys
import kstore

logging.basicConfig(format="%(message)s")
directory, suffix, which = sys.argv[1:]
log = kstore.Log.open(directory, index_interval_bytes=0, segment_index_bytes=1 << 20)
for start in range(0, 24_000, 8_000):
    log.append_many(((None, b"v", 1_000 + n, None) for n in range(start, start + 8_000)), batch_bytes=70)
    if start == 8_000:
        log.roll()

def ask():
    for offset in (3, 9_000, 15_998, 16_001, 20_000, 23_998):
        assert next(log.read(offset)).offset == offset
        assert log.fetch(offset, 1).offset <= offset
        assert log.offset_for_timestamp(1_000 + offset) == (1_000 + offset, offset)
    log.batch_table(12_000)

ask()
path = log.segments[int(which)].path.replace(".log", suffix)
size = os.path.getsize(path)
assert which == "1" or size > 65_536, size
for cut in (size - 1, size // 2, 100, 0):
    os.truncate(path, cut)
    try:
        ask()
        log.append(b"v", timestamp=30_000)
    except kstore.errors.KStoreError as error:
        print(type(error).__name__, flush=True)
print("alive", flush=True)
os._exit(0)
"""


@LINUX
@pytest.mark.parametrize("which", ["0", "1"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_another_program_cuts_kills_no_process(tmp_path: Path, suffix: str, which: str) -> None:
    """Of a sealed segment (0), whose index is mapped, and of the active one (1): a touch of a cut map is a SIGBUS."""
    done = subprocess.run(
        [sys.executable, "-c", CUT_UNDER_A_WRITER, str(tmp_path / "t-0"), suffix, which],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["alive"]
    assert which == "1" or "another program cut it to" in done.stderr


@LINUX
def test_an_index_that_is_written_to_is_never_mapped(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "x", 0, FULL_BYTES)
    index.grow()
    for number in range(1, 3 * COPY_BYTES // 8):
        index.append(number, number)
        if number % 1000 < 2:
            assert index.lookup(number) == (number, number)
    assert index.holds() >= 3  # it counts by its size
    assert not maps(index.path)
    index.park()
    assert index.lookup(number) == (number, number)
    assert not maps(index.path)
