"""Reads while the interpreter is held: the same bytes as by the other way, which is for what is on the disk alone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import kstore
from kstore.disk import _cached, fs
from kstore.errors import StorageError
from kstore.files import _log_search

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file of 3 MiB and a few bytes, on a file system that says what is in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 * MIB + 5))
    fd = fs.open(path)
    if _cached.read(fd, 1, 0) is None:
        pytest.skip("this file system does not say what is in the page cache")
    yield fd
    fs.close(fd)


def drop(fd: int, position: int = 0, size: int = 0) -> None:
    """Have the system forget the pages; skips where it does not, as tmpfs."""
    os.fsync(fd)
    os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)
    if _cached.read(fd, 1, position) is not None:
        pytest.skip("this file system keeps its pages")


def refuse(*_: object) -> NoReturn:
    raise AssertionError("a call that gives the interpreter up")


def test_up_to_a_mebibyte_of_the_page_cache_is_read_while_the_interpreter_is_held(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pread(file, 4 * MIB, 0)
    monkeypatch.setattr(os, "pread", refuse)
    monkeypatch.setattr(os, "preadv", refuse)
    for size in (1, PAGE - 1, PAGE, PAGE + 1, MIB - 1, MIB):
        for position in (0, 1, PAGE, MIB - 3, len(whole) - MIB):
            assert fs.pread(file, size, position) == whole[position : position + size]
            buffer = bytearray(size)
            assert fs.pread_into(file, buffer, position) == size
            assert buffer == whole[position : position + size]
    assert (_cached.read(file, MIB + 1, 0), _cached.read_into(file, bytearray(MIB + 1), 0)) == (None, 0)
    for call in (lambda: fs.pread(file, MIB + 1, 0), lambda: fs.pread_into(file, bytearray(MIB + 1), 0)):
        with pytest.raises(AssertionError, match="gives the interpreter up"):
            call()


def test_the_end_of_the_file_ends_a_read(file: int) -> None:
    size = fs.size(file)
    for missing in (1, PAGE, MIB - 5):
        buffer = bytearray(5 + missing)
        assert fs.pread_into(file, buffer, size - 5) == 5
        assert buffer == os.pread(file, 5, size - 5) + bytes(missing)
        assert fs.pread(file, 5 + missing, size - 5) == os.pread(file, 5, size - 5)
    assert (fs.pread(file, 5, size), fs.pread(file, 5, size + 9)) == (b"", b"")


def test_what_is_not_in_the_page_cache_is_read_all_the_same(file: int) -> None:
    whole = os.pread(file, 4 * MIB, 0)
    drop(file)
    assert (_cached.read(file, PAGE, 0), _cached.read_into(file, bytearray(PAGE), 0)) == (None, 0)
    assert fs.pread(file, 100, 50) == whole[50:150]
    drop(file)
    buffer = bytearray(MIB)
    assert fs.pread_into(file, buffer, 7) == MIB
    assert buffer == whole[7 : MIB + 7]


@pytest.mark.parametrize("warm", [0, MIB])
def test_a_read_of_which_only_a_part_is_in_the_page_cache_gives_all(file: int, warm: int) -> None:
    whole = os.pread(file, 4 * MIB, 0)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
    buffer = bytearray(MIB)

    def read_into(fd: int, size: int, position: int) -> bytes:
        return bytes(buffer[: fs.pread_into(fd, buffer, position)])

    for read in (fs.pread, read_into):
        drop(file)
        os.pread(file, MIB, warm)
        assert (_cached.read(file, MIB, MIB // 2), _cached.read_into(file, buffer, MIB // 2)) == (None, 0)
        assert read(file, MIB, MIB // 2) == whole[MIB // 2 : MIB // 2 + MIB]


@pytest.mark.parametrize(("size", "position"), [(10, -1), (10, -2), (-1, 0)])
def test_a_place_or_size_below_0_is_an_error_and_moves_no_descriptor(file: int, size: int, position: int) -> None:
    os.lseek(file, 100, os.SEEK_SET)
    with pytest.raises(StorageError) as caught:
        fs.pread(file, size, position)
    assert caught.value.errno == errno.EINVAL
    assert os.lseek(file, 0, os.SEEK_CUR) == 100


def test_what_cannot_be_read_is_an_error_of_the_system(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for call in (lambda: fs.pread(fd, 5, 0), lambda: fs.pread_into(fd, bytearray(5), 0)):
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.errno == errno.EISDIR
    finally:
        os.close(fd)
    with pytest.raises(BufferError):
        _cached.read_into(fd, b"read-only", 0)


# --- searches and reads of a log --------------------------------------------------------------------------------------


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    """Some 6 MB of batches of one record, of 300 bytes and more, in segments of 4 MB."""
    with kstore.Log.open(partition, segment_bytes=4 * MIB, index_interval_bytes=64 << 10) as log:
        log.append_columns(
            [b"%d" % number + bytes(200 + number % 400) for number in range(12_000)],
            timestamps=[1_700_000_000_000 + number for number in range(12_000)],
            batch_bytes=1,
        )
        log.flush()
        yield log


def forget(log: kstore.Log) -> None:
    for segment in log.segments:
        fd = os.open(segment.path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def found(log: kstore.Log, offset: int) -> list[Any]:
    """What each way of looking at a record gives."""
    time = 1_700_000_000_000 + offset
    return [
        next(log.read(offset)).value,
        bytes(log.fetch(offset, max_bytes=1).records),
        log.read_columns(offset, max_records=3).values.to_pylist(),
        log.offset_for_timestamp(time).offset,
        next(log.read_batches(offset)).base_offset,
        len(log.read_columns(max(offset, log.log_end_offset - 20))),
    ]


def test_searches_find_the_same_in_cold_and_in_warm_files(log: kstore.Log) -> None:
    for offset in (0, 1, 3_000, 6_000, 9_001, 11_999):
        forget(log)
        cold = found(log, offset)
        assert cold == found(log, offset)
        assert cold[0].startswith(b"%d\0" % offset)
        assert cold[2][0] == cold[0]
        assert cold[3:5] == [offset, offset]


def test_a_walk_of_more_than_a_mebibyte_finds_the_same(log: kstore.Log) -> None:
    """Without an index, from the beginning: behind the first MiB it goes on without the interpreter."""
    (first, second) = log.segments
    fd = os.open(first.path, os.O_RDONLY)
    try:
        for cold in (False, True):
            if cold:
                forget(log)
            for offset in (0, 100, 5_000, second.base_offset - 1):
                place = _log_search.find_batch(fd, 0, first.size_bytes, offset)
                assert place is not None
                assert place.base_offset == offset
                assert _log_search.leads_to(fd, 0, first.size_bytes, 0, offset) == 0
    finally:
        os.close(fd)


def test_threads_that_search_cold_and_warm_files_at_once_find_the_same(log: kstore.Log) -> None:
    offsets = range(0, 12_000, 1_500)
    expected = {offset: found(log, offset) for offset in offsets}
    wrong: list[Any] = []

    def search() -> None:
        for _ in range(5):
            wrong.extend(offset for offset in offsets if found(log, offset) != expected[offset])

    def cool() -> None:
        for _ in range(40):
            forget(log)

    threads = [threading.Thread(target=each) for each in (search, search, search, cool)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
