"""`Map`: the bytes of a file and its length, also when the file changes, and what a map holds until it is closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.disk._map import Map
from tests.support.indexfiles import open_descriptors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture
def fd(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDWR)
    yield fd
    os.close(fd)


def test_a_map_shows_what_is_written_and_how_long_the_file_is(fd: int) -> None:
    with Map(fd, 6) as mapped:
        assert (len(mapped), mapped.size(), bytes(mapped)) == (6, 10, b"012345")
        os.pwrite(fd, b"ab", 4)
        assert bytes(mapped) == b"0123ab"
        for length in (11, 6, 5, 0, 1 << 20):
            os.ftruncate(fd, length)
            assert mapped.size() == length


def test_a_map_is_read_only(fd: int) -> None:
    with Map(fd, 6) as mapped:
        with memoryview(mapped) as view:
            assert view.readonly
        with pytest.raises(BufferError):
            os.preadv(fd, [mapped], 0)  # type: ignore[list-item]


def test_a_map_that_is_exported_is_not_taken_away(fd: int) -> None:
    mapped = Map(fd, 10)
    view = memoryview(mapped)
    with pytest.raises(BufferError, match="exported"):
        mapped.close()
    assert bytes(view) == b"0123456789"
    del mapped
    assert bytes(view) == b"0123456789"
    view.release()


def test_a_closed_map_has_nothing_left(fd: int, file: Path) -> None:
    before = open_descriptors(file)
    mapped = Map(fd, 10)
    assert open_descriptors(file) == before + 1
    mapped.close()
    mapped.close()
    assert open_descriptors(file) == before
    for use in (mapped.size, lambda: bytes(mapped), lambda: memoryview(mapped)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_map_that_is_collected_is_given_back(fd: int, file: Path) -> None:
    before = open_descriptors(file)
    for _ in range(50):
        memoryview(Map(fd, 10)).release()
    assert open_descriptors(file) == before


def test_what_cannot_be_mapped_is_refused_and_holds_nothing(fd: int, file: Path) -> None:
    before = open_descriptors(file)
    with pytest.raises(ValueError, match="11 bytes of a file that has 10"):
        Map(fd, 11)
    for size in (0, -1):
        with pytest.raises(ValueError, match="1 is the least"):
            Map(fd, size)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Map(-1, 1)
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="Illegal seek"):
        Map(reading, 1)
    os.close(reading), os.close(writing)
    assert open_descriptors(file) == before


def test_what_is_no_descriptor_or_size_closes_nothing(fd: int) -> None:
    """In a child, whose descriptor 0 is a file: a map that holds nothing yet must not take it for its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(fd, 0)
            for arguments in ((), ("x", 1), (1 << 40, 1), (fd, 1 << 70), (fd, 0)):
                try:
                    Map(*arguments)  # type: ignore[arg-type]
                except (TypeError, OverflowError, ValueError):
                    os.fstat(0)
            mapped = Map(fd, 10)
            try:
                mapped.__init__(fd, 5)  # type: ignore[misc]
            except TypeError:
                code = 0 if bytes(mapped) == b"0123456789" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
