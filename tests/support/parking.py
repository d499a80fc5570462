"""What the tests of parked logs share: a log parked for good, and what of it is open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.log.writing import _appender
from kstore.log.writing.writer import Writer


def writer_of(log: kstore.Log) -> Writer:
    assert log._writer is not None
    return log._writer


def park(log: kstore.Log) -> None:
    """Park, and have everything closed."""
    assert writer_of(log).park()
    for segment in writer_of(log).segments.items:
        for holder in (segment, segment.offset_index, segment.time_index):
            holder.let_go()
    assert descriptors(log) == []


def descriptors(log: kstore.Log) -> list[str]:
    """The log's files that this process has open or mapped."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(fd.readlink())
    maps = Path("/proc/self/maps").read_text()
    return [path.name for path in sorted(Path(log.path).iterdir()) if path in found or f"{path}\n" in maps]


def values(log: kstore.Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def tree_without_directories(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir()) if path.is_file()}


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    yield
    _appender.set_pwrite_hook(None)
