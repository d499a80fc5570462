"""The steps of a recorded disk: each change and each sync that was made below one directory, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

ROOT = 0
"""The number of the root's own directory; files and directories are numbered as they are met, and never again."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """A file (with its bytes) or a directory (None) that was there before it was met: durable."""

    number: int
    parent: int
    name: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Write:
    number: int
    path: str
    position: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Truncate:
    number: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """An fsync or fdatasync; one that failed makes nothing durable, and may have lost what it was to write."""

    number: int
    path: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A name made: a file's or directory's creation, or a rename, which takes the old name away in the same step."""

    parent: int
    name: str
    number: int
    is_directory: bool
    source: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Unlink:
    parent: int
    name: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    number: int
    path: str


Data: TypeAlias = Write | Truncate
Name: TypeAlias = Link | Unlink
Op: TypeAlias = Adopt | Write | Truncate | Sync | Link | Unlink | SyncDirectory
