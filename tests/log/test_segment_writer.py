"""A `SegmentWriter` writes the very files that a log with the same configuration has after a clean close."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.config.log_config import LogConfig
from kstore.disk import openfiles
from kstore.errors import LogClosedError, StorageError
from kstore.log.segment_writer import SegmentWriter
from kstore.log.writing import _appender
from tests.conftest import SEED

START_MS = 1_700_000_000_000
SUFFIXES = (".log", ".index", ".timeindex")


@pytest.fixture(autouse=True)
def nothing_stays_set() -> Iterator[None]:
    yield
    openfiles.set_limit(None)
    _appender.set_pwrite_hook(None)


def encoded(rng: random.Random, count: int, *, with_times: bool = True) -> Iterator[bytes]:
    """Batches of one to five records, whose times go up and down."""
    for number in range(count):
        times = [START_MS + number * 1000 + rng.randrange(-5000, 5000) if with_times else -1 for _ in range(5)]
        records = [(b"key", b"v" * rng.randrange(300), times[n], ()) for n in range(rng.randrange(1, 6))]
        yield kstore.encode_batch(records, partition_leader_epoch=0)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix in SUFFIXES}


def written(directory: Path, batches: list[bytes], config: LogConfig, *, at_a_time: int = 3) -> SegmentWriter:
    directory.mkdir()
    writer = SegmentWriter(str(directory), config)
    for start in range(0, len(batches), at_a_time):
        writer.append(bytearray(b"".join(batches[start : start + at_a_time])))
    return writer


@pytest.mark.parametrize(
    ("settings", "with_times"),
    [
        ({}, True),
        ({"segment_bytes": 4096, "index_interval_bytes": 0}, True),
        ({"segment_bytes": 16_384, "index_interval_bytes": 512}, True),
        ({"segment_bytes": 1 << 20, "segment_index_bytes": 120, "index_interval_bytes": 0}, True),  # rolls: index full
        ({"segment_bytes": 1 << 20, "segment_ms": 20_000}, True),  # rolls by the records' times
        ({"segment_bytes": 4096, "index_interval_bytes": 0}, False),
        ({"segment_bytes": 4096, "message_timestamp_type": "CreateTime", "compression_type": "producer"}, True),
    ],
)
@pytest.mark.parametrize("is_parked", [False, True])
def test_the_files_are_those_of_a_log_and_nothing_else_is_there(
    tmp_path: Path, settings: dict[str, object], with_times: bool, is_parked: bool
) -> None:
    batches = list(encoded(random.Random(SEED), 200, with_times=with_times))
    config = LogConfig().replace(retention_ms=-1, **settings)
    with kstore.Log.open(tmp_path / "log-0", config=config) as log:
        for batch in batches:
            log.append_batch(batch)
        expected = [(s.base_offset, s.next_offset, s.size_bytes, s.max_timestamp) for s in log.segments]
    directory = tmp_path / "staged"
    directory.mkdir()
    writer = SegmentWriter(str(directory), config)
    for start in range(0, len(batches), 3):
        if is_parked:
            writer.let_go()
            assert writer.holds() == 0
        writer.append(bytearray(b"".join(batches[start : start + 3])))
    segments = writer.seal()
    writer.flush()
    writer.close()
    assert [tuple(segment) for segment in segments] == expected
    if settings:
        assert len(segments) > 1
    assert files(directory) == files(tmp_path / "log-0")
    assert len(files(directory)) == len(list(directory.iterdir())) == 3 * len(segments)


def test_without_a_batch_no_file_is_made(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), LogConfig())
    assert writer.seal() == []
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_many_writers_hold_no_more_files_open_than_are_allowed(tmp_path: Path) -> None:
    openfiles.set_limit(12)
    batches = list(encoded(random.Random(SEED), 40))
    config = LogConfig().replace(segment_bytes=4096, retention_ms=-1)
    writers = [SegmentWriter(str(tmp_path / str(number)), config) for number in range(10)]
    for number in range(10):
        (tmp_path / str(number)).mkdir()
    for batch in batches:
        for writer in writers:
            writer.append(bytearray(batch))
            assert openfiles.held() <= 12 + 3
    for writer in writers:
        writer.seal()
        writer.close()
    first, *others = (files(tmp_path / str(number)) for number in range(10))
    assert all(other == first for other in others)


def test_a_sealed_writer_takes_no_batch(tmp_path: Path) -> None:
    [batch] = encoded(random.Random(SEED), 1)
    writer = written(tmp_path / "staged", [batch], LogConfig())
    writer.seal()
    with pytest.raises(LogClosedError):
        writer.append(bytearray(batch))
    writer.close()
    writer.close()


def test_a_failed_write_is_raised(tmp_path: Path) -> None:
    [batch] = encoded(random.Random(SEED), 1)
    writer = written(tmp_path / "staged", [batch], LogConfig())

    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(28, "no room")

    _appender.set_pwrite_hook(full)
    with pytest.raises(StorageError, match="No space"):
        writer.append(bytearray(batch))
    writer.close()


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    [batch] = encoded(random.Random(SEED), 1)
    writer = written(tmp_path / "staged", [batch], LogConfig())
    child = os.fork()
    if child == 0:
        try:
            writer.append(bytearray(batch))
        except LogClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    writer.append(bytearray(batch))
    [segment] = writer.seal()
    writer.close()
    assert segment.size_bytes == 2 * len(batch)
