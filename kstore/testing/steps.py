"""The steps of a recorded disk: each change and each sync below one directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

ROOT = 0
"""The number of the root. Files and directories get numbers when they are first seen; no number is used twice."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """A file (with its bytes) or a directory (None) that existed before it was first seen; it counts as durable."""

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
    """An fsync or fdatasync. A failed sync makes nothing durable, and may lose the pending writes of the file."""

    number: int
    path: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A new name: a file or directory was created or renamed. A rename removes the old name in the same step."""

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
