"""What a backup asks of an object store.

Invariant: an object is new or is not written; only the manifest is replaced, if its content is still what was read.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from kstore.base.closing import Closing
from kstore.disk.newfiles import FilePart
from kstore.errors import BackupError

PART_BYTES = 8 << 20
"""Files go in parts of this size, and nothing larger is held in memory."""
PARTS_AT_ONCE = 4

MOST_BYTES = 256 << 20
"""The largest object that is read as a whole, unless its reader allows less."""

Tag: TypeAlias = tuple[str | None, str | None]
"""What an object store says of one content of an object: its ETag and its version."""


class Tagged(NamedTuple):
    """An object's bytes, and their tag."""

    data: bytes
    tag: Tag


class ObjectInfo(NamedTuple):
    """An object in a listing."""

    key: str
    size: int


class ObjectChangedError(BackupError):
    """The object's content is no longer the one that was read; nothing was written."""


class Objects(Closing):
    """The objects below one prefix. Every method but `close` is one request or some, and thread-safe.

    What the store refuses, and what does not answer, is a `BackupError` that names the object and the URL; then a write
    may have happened or not.
    """

    url: str
    """Where it is, without credentials."""
    requests: Counter[str]
    """How many requests there were, by kind: get, put, list, delete."""
    parts_are_new: bool = False
    """Whether `put_new_parts` can be called: whether an object that goes in parts can be one that was not there."""
    sent_bytes: int
    """How many bytes the requests have written."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = Counter()
        self.sent_bytes = 0
        self._counting = threading.Lock()

    def _count(self, kind: str, size: int = 0, requests: int = 1) -> None:
        with self._counting:
            self.requests[kind] += requests
            self.sent_bytes += size

    @abstractmethod
    def read(self, key: str, *, most_bytes: int = MOST_BYTES) -> Tagged | None:
        """A whole object, None when there is none; `BackupError` when it is larger than `most_bytes`."""

    @abstractmethod
    def read_range(self, key: str, position: int, length: int) -> bytes:
        """Some bytes of an object, fewer only at its end; `BackupError` without the object."""

    @abstractmethod
    def stream(self, key: str, position: int, length: int) -> Iterator[memoryview]:
        """The same bytes in parts of about `PART_BYTES`, none of which is held in memory for longer."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """How large an object is; None when there is none."""

    @abstractmethod
    def put_new(self, key: str, data: bytes) -> bool:
        """Write an object that was not there; False when one is there, which stays as it is."""

    @abstractmethod
    def put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Write an object part by part. One that is there is replaced: the key is no other writer's by then."""

    def put_new_parts(self, key: str, parts: Iterable[bytes | FilePart]) -> bool:
        """Write an object part by part that was not there; False when one is there. Only with `parts_are_new`."""
        raise NotImplementedError(f"{self.url} cannot do this")

    @abstractmethod
    def replace(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        """Write an object in place of the content with this tag, None for no object, and give its new tag.

        `ObjectChangedError` when the object has another content; nothing is written then.
        """

    @abstractmethod
    def list(self) -> Iterator[ObjectInfo]:
        """All objects below the prefix, in any order."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is not there is no error."""

    def remove_unfinished(self) -> None:
        """Delete what processes that are gone have left of objects that they did not finish, where this is known."""

    def close(self) -> None:
        """Let go of connections and files."""
