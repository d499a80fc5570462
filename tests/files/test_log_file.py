"""Whole batches of a `.log` file, piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.codec.header import size_of
from kstore.disk import fs
from kstore.files.log_file import CHUNK_BYTES, LogFile
from kstore.log.reading.log_reader import FIRST_BYTES
from tests.conftest import ManualClock


def batch(size: int) -> bytes:
    """A batch of about this size."""
    return kstore.encode_batch([(None, bytes(max(size - 80, 0)), 5, None)])


def sizes_of(data: bytes) -> list[int]:
    """The sizes of the batches."""
    sizes = []
    while data:
        sizes.append(size_of(data))
        data = data[sizes[-1] :]
    return sizes


@given(
    st.lists(st.integers(80, 3_000), max_size=40),
    st.none() | st.integers(1, 4_096),
    st.integers(1, 8_192),
)
def test_every_batch_comes_once_and_whole_whatever_the_sizes_of_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], first_bytes: int | None, piece_bytes: int
) -> None:
    data = b"".join(map(batch, sizes))
    path = tmp_path_factory.mktemp("pieces") / "00000000000000000000.log"
    path.write_bytes(data)
    file, got = LogFile(str(path)), b""
    sizes = []
    for piece, at in file.pieces(0, len(data), piece_bytes=piece_bytes, first_bytes=first_bytes):
        assert at == len(got)
        sizes += sizes_of(bytes(piece))
        got += piece
    assert got == data
    assert sizes == sizes_of(data)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (100, [FIRST_BYTES]),
        (16 * 1024, [FIRST_BYTES]),
        (FIRST_BYTES, [FIRST_BYTES]),
        (FIRST_BYTES + 1, [FIRST_BYTES, FIRST_BYTES + 1]),
        (CHUNK_BYTES + 1, [FIRST_BYTES, CHUNK_BYTES + 1]),
    ],
)
def test_who_wants_one_record_reads_its_batch_and_little_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, size: int, wanted: list[int]
) -> None:
    data = batch(size)
    data = batch(size - (len(data) - size))
    assert len(data) == size
    real, read = fs.pread_into, []

    def counted(fd: int, buffer: memoryview, position: int) -> int:
        read.append(len(buffer))
        return real(fd, buffer, position)

    with kstore.Log.open(tmp_path / "t-0", clock=clock) as log:
        for _ in range(8 * CHUNK_BYTES // size):
            log.append_batch(data)
        middle = log.log_end_offset // 3
        monkeypatch.setattr(fs, "pread_into", counted)
        records = log.read(middle, isolation="read_committed")  # not by the short way, which reads in C
        assert next(iter(records)).offset == middle
        assert read == wanted


def test_who_reads_on_soon_gets_pieces_as_large_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    real, read = fs.pread_into, []

    def counted(fd: int, buffer: memoryview, position: int) -> int:
        read.append(len(buffer))
        return real(fd, buffer, position)

    with kstore.Log.open(tmp_path / "t-0", clock=clock) as log:
        log.append_many((b"x" * 954 for _ in range(2_000)), batch_bytes=1_024)
        monkeypatch.setattr(fs, "pread_into", counted)
        assert sum(1 for _ in log.read()) == 2_000
    assert read[:4] == [FIRST_BYTES, 4 * FIRST_BYTES, CHUNK_BYTES, CHUNK_BYTES]
    assert len(read) == 10
