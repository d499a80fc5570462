"""An object store in memory, and a wrapper around any that fails requests by a plan.

The faults are those of `objectserver.Fault`, without a network, so that thousands of runs take seconds: "refused" fails
before anything is done, "lost" after it, "late" fails now and is done when `FaultyObjects.release` is called, "half"
deletes the first half of the keys. `then` is called after a request that was done, before its caller has the answer.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kstore.errors import BackupError
from kstore.objects.object_store import MOST_BYTES, ObjectChangedError, ObjectInfo, Objects, Tag, Tagged
from tests.support.objectserver import Fault, Plan, Request

CHANGES = ("put", "create", "update", "delete")
"""The kinds of requests that change something."""


class MemoryObjects(Objects):
    """Objects in a dictionary. Each content has a tag of its own, as ETags with versions do."""

    def __init__(self) -> None:
        super().__init__("memory of a test")
        self.contents: dict[str, Tagged] = {}
        self._writes = 0

    def copy(self) -> MemoryObjects:
        """Other objects with the same contents now."""
        other = MemoryObjects()
        other.contents, other._writes = dict(self.contents), self._writes
        return other

    def read(self, key: str, *, most_bytes: int = MOST_BYTES) -> Tagged | None:
        self.requests["get"] += 1
        found = self.contents.get(key)
        if found is not None and len(found.data) > most_bytes:
            raise BackupError(f"{key} has {len(found.data)} bytes; {most_bytes} are allowed")
        return found

    def read_range(self, key: str, position: int, length: int) -> bytes:
        return b"".join(self.stream(key, position, length))

    def stream(self, key: str, position: int, length: int) -> Iterator[memoryview]:
        self.requests["get"] += 1
        if key not in self.contents:
            raise BackupError(f"{key} is missing")
        yield memoryview(self.contents[key].data[position : position + length])

    def size(self, key: str) -> int | None:
        self.requests["get"] += 1
        found = self.contents.get(key)
        return None if found is None else len(found.data)

    def put_new(self, key: str, data: bytes) -> bool:
        self.requests["put"] += 1
        if key in self.contents:
            return False
        self._put(key, data)
        return True

    def put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        self.requests["put"] += 1
        self._put(key, b"".join(parts))

    def replace(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        self.requests["put"] += 1
        found = self.contents.get(key)
        if (None if found is None else found.tag) != tag:
            raise ObjectChangedError(f"{key} has another content than the one that was read")
        return self._put(key, data)

    def list(self) -> Iterator[ObjectInfo]:
        self.requests["list"] += 1
        contents = dict(self.contents)  # others may put some meanwhile
        yield from [ObjectInfo(key, len(found.data)) for key, found in contents.items()]

    def delete(self, keys: Iterable[str]) -> None:
        self.requests["delete"] += 1
        for key in keys:
            self.contents.pop(key, None)

    def _put(self, key: str, data: bytes) -> Tag:
        self._writes += 1
        tag: Tag = (f"tag-{self._writes}", None)
        self.contents[key] = Tagged(bytes(data), tag)
        return tag


class FaultyObjects(Objects):
    """Requests to other objects, each of which a plan may fail."""

    def __init__(self, inner: Objects, plan: Plan | None = None, then: Callable[[Request], None] | None = None) -> None:
        super().__init__(inner.url)
        self.inner, self.plan, self.then = inner, plan, then
        self.seen: list[Request] = []
        self._late: list[Callable[[], Any]] = []
        self._lock = threading.Lock()

    def release(self) -> int:
        """Have the late requests done, in their order; how many there were."""
        late, self._late = self._late, []
        for do in late:
            with contextlib.suppress(ObjectChangedError):
                do()
        return len(late)

    def _ask(self, kind: str, key: str, do: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        with self._lock:
            request = Request(len(self.seen), kind, key)
            self.seen.append(request)
        fault = (self.plan(request) if self.plan is not None else None) or Fault()
        failed = BackupError(f"{key}: request {request.number} ({kind}) {fault.kind}")
        if fault.kind == "late" and kind in CHANGES:
            self._late.append(do)
        if fault.kind in ("refused", "late", "status", "cut"):
            raise failed
        if fault.kind == "half" and half is not None:
            half()
            raise failed
        answer = do()
        if self.then is not None:
            self.then(request)
        if fault.kind in ("lost", "half"):
            raise failed
        return answer

    def read(self, key: str, *, most_bytes: int = MOST_BYTES) -> Tagged | None:
        found: Tagged | None = self._ask("get", key, lambda: self.inner.read(key, most_bytes=most_bytes))
        return found

    def read_range(self, key: str, position: int, length: int) -> bytes:
        data: bytes = self._ask("get", key, lambda: self.inner.read_range(key, position, length))
        return data

    def stream(self, key: str, position: int, length: int) -> Iterator[memoryview]:
        parts: list[memoryview] = self._ask("get", key, lambda: list(self.inner.stream(key, position, length)))
        yield from parts

    def size(self, key: str) -> int | None:
        found: int | None = self._ask("head", key, lambda: self.inner.size(key))
        return found

    def put_new(self, key: str, data: bytes) -> bool:
        done: bool = self._ask("create", key, lambda: self.inner.put_new(key, data))
        return done

    def put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        data = b"".join(parts)  # a late one is written when its caller has closed the file
        self._ask("put", key, lambda: self.inner.put_parts(key, [data]))

    def replace(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        def late_or_now() -> Tag:
            return self.inner.replace(key, data, tag)

        given: Tag = self._ask("update", key, late_or_now)
        return given

    def list(self) -> Iterator[ObjectInfo]:
        found: list[ObjectInfo] = self._ask("list", "", lambda: [*self.inner.list()])
        yield from found

    def remove_unfinished(self) -> None:
        self.inner.remove_unfinished()

    def delete(self, keys: Iterable[str]) -> None:
        named = [*keys]
        half = named[: len(named) // 2]
        first = named[0] if named else ""
        self._ask("delete", first, lambda: self.inner.delete(named), lambda: self.inner.delete(half))
