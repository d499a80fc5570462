"""What the tests of index files share: looking at a file, at who maps it, and at what an index holds."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.files.index_file import IndexFile, OffsetIndex, TimeIndex

Pair = tuple[int, int]

BASE = 45
"""The base offset of the indexes in OffsetIndexTest and TimeIndexTest."""

FULL_BYTES = 10_485_760
"""The default of `segment.index.bytes`."""


def active(folder: Path, kind: type[OffsetIndex] | type[TimeIndex], slots: int = 30) -> Any:
    """A new active index with room for so many entries."""
    size = 8 if kind is OffsetIndex else 12
    index = kind(folder / f"active.{kind.__name__}", BASE, slots * size)
    index.grow()
    return index


def reopened(index: OffsetIndex | TimeIndex, *, writable: bool = True) -> Any:
    """Another object for the same file."""
    return type(index)(index.path, index.base_offset, index.max_bytes, writable=writable)


def contents(index: OffsetIndex | TimeIndex) -> list[Pair]:
    """All entries in use."""
    return [index.entry(slot) for slot in range(index.entries)]


def bytes_of(index: IndexFile) -> bytes:
    """All bytes of the file."""
    return Path(index.path).read_bytes()


def packed(*pairs: Pair) -> bytes:
    """Offset entries as a file with the base offset BASE holds them."""
    return b"".join(struct.pack(">ii", offset - BASE, position) for offset, position in pairs)


def fill(index: TimeIndex, entries: int) -> None:
    """Append (10 i, 45 + 10 i), as TimeIndexTest does."""
    for number in range(1, entries + 1):
        assert index.maybe_append(10 * number, BASE + 10 * number)


def maps(path: Path | str) -> bool:
    """Whether this process has the file mapped (Linux)."""
    return str(path) in Path("/proc/self/maps").read_text()


def open_descriptors(path: Path | str) -> int:
    """How many descriptors this process has of the file (Linux)."""
    found = 0
    for name in Path("/proc/self/fd").iterdir():
        try:
            found += str(name.readlink()) == str(path)
        except FileNotFoundError:
            continue
    return found


@pytest.fixture
def offsets(tmp_path: Path) -> Iterator[OffsetIndex]:
    """An active index of 30 slots (OffsetIndexTest)."""
    index = active(tmp_path, OffsetIndex)
    yield index
    index.close()


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("the file was touched")


@pytest.fixture
def times(tmp_path: Path) -> Iterator[TimeIndex]:
    """An active time index of 30 slots (TimeIndexTest)."""
    index = active(tmp_path, TimeIndex)
    yield index
    index.close()
