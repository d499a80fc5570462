"""The interface to an object store.

Invariant: an object that the manifest references is never written again. The manifest is replaced only if its content
is still the content that was read.
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
"""The size of the parts in which files are sent; nothing larger is held in memory."""
PARTS_AT_ONCE = 4

MOST_BYTES = 256 << 20
"""The largest object that is read as a whole, unless the caller allows less."""

Tag: TypeAlias = tuple[str | None, str | None]
"""The ETag and the version of one content of an object."""


class Tagged(NamedTuple):
    data: bytes
    tag: Tag


class ObjectInfo(NamedTuple):
    key: str
    size: int
    etag: str | None = None
    modified_ms: int = 0
    """When the object was written, in milliseconds since the epoch."""


class Fetched(NamedTuple):
    """Bytes of an object, the size of the whole object, and its ETag."""

    data: memoryview
    object_bytes: int
    etag: str | None


class ObjectChangedError(BackupError):
    """The object's content has changed since it was read; nothing was written."""


class ObjectMissingError(BackupError):
    """There is no such object."""


class Objects(Closing):
    """The objects below one prefix. All methods except `close` make one or more requests.

    If the store refuses a request or does not answer, `BackupError` names the object and the URL; a write may then have
    happened or not. All methods except `close` are thread-safe.
    """

    url: str
    """The URL, without credentials."""
    requests: Counter[str]
    """The number of requests by kind: get, put, list, delete."""
    parts_are_new: bool = False
    """Whether `put_new_parts` is supported."""
    sent_bytes: int

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
        """Return a whole object, None if there is none; raises `BackupError` if it is larger than `most_bytes`."""

    @abstractmethod
    def read_range(self, key: str, position: int, length: int) -> bytes:
        """Return `length` bytes of an object, fewer only at its end; raises `BackupError` if there is no object."""

    @abstractmethod
    def fetch(self, key: str, position: int, length: int, etag: str | None = None) -> Fetched:
        """Return up to `length` bytes of an object at `position`, which is in the object.

        Raises `ObjectMissingError` if there is no object, and `ObjectChangedError` if its ETag is not `etag`.
        """

    @abstractmethod
    def stream(self, key: str, position: int, length: int) -> Iterator[memoryview]:
        """Yield the bytes of `read_range` in parts of at most about `PART_BYTES`; holds one part at a time."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of an object; None if there is none."""

    @abstractmethod
    def put_new(self, key: str, data: bytes) -> bool:
        """Write a new object. Returns False, and writes nothing, if the object exists."""

    @abstractmethod
    def put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Write an object part by part. Replaces an existing object, so no other writer may use the key."""

    def put_new_parts(self, key: str, parts: Iterable[bytes | FilePart]) -> bool:
        """Write a new object part by part. Returns False if the object exists. Requires `parts_are_new`."""
        raise NotImplementedError(f"{self.url} cannot do this")

    @abstractmethod
    def replace(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        """Replace the content that has this tag (None: there is no object), and return the new tag.

        Raises `ObjectChangedError`, and writes nothing, if the object's content has another tag.
        """

    @abstractmethod
    def list(self) -> Iterator[ObjectInfo]:
        """Yield all objects below the prefix, in any order."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""

    def remove_unfinished(self) -> None:
        """Delete the incomplete objects of processes that have ended, if the store can find them."""

    def close(self) -> None:
        """Release connections and files."""
