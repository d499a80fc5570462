"""`RemoteObjects`: an object store as obstore reaches it. Errors say what to do about them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import chain, islice
from typing import Any

from kstore.base import optional
from kstore.copies.backups.object_store import (
    MOST_BYTES,
    PART_BYTES,
    PARTS_AT_ONCE,
    ObjectChangedError,
    ObjectInfo,
    Objects,
    Tag,
    Tagged,
)
from kstore.errors import BackupError, ConfigError

_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified bucket does not exist", re.IGNORECASE)
_NO_CREDENTIALS = re.compile(
    r"latest/api/token|latest/meta-data|169\.254\.|metadata\.google|InvalidAccessKeyId|SignatureDoesNotMatch"
    r"|AuthenticationFailed|ExpiredToken"
    r"|401 Unauthorized|403 Forbidden|AccessDenied",
    re.IGNORECASE,
)

_OF_CLIENT = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_excludes",
        "read_timeout",
        "timeout",
        "user_agent",
    )
)
"""What obstore takes as an option of its HTTP client; among those of the object store it would end in a panic."""

_memories: dict[str, Any] = {}
"""The stores of `memory://` URLs, so that what one call has written another one of the same process reads."""


class RemoteObjects(Objects):
    """The objects below a URL."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(without_credentials(url))
        self._obstore = optional.obstore("a backup", "store", "exceptions")
        self._errors = self._obstore.exceptions
        self._store = self._open(url, dict(options or {}))
        self._counting = threading.Lock()

    def _open(self, url: str, options: dict[str, Any]) -> Any:
        if url.startswith("memory://"):
            return _memories.setdefault(self.url, self._obstore.store.MemoryStore())
        special = {name: options.pop(name) for name in ("client_options", "retry_config") if name in options}
        special.setdefault("retry_config", _RETRIES)
        of_client = {name: options.pop(name) for name in _OF_CLIENT.intersection(options)}
        if of_client:
            special["client_options"] = {**of_client, **special.get("client_options", {})}
        try:
            return self._obstore.store.from_url(self.url, config=options, **special)
        except (self._errors.BaseError, ValueError, TypeError) as error:
            raise ConfigError(f"{self.url} cannot be opened with these options: {_short(error)}") from error

    def read(self, key: str, *, most_bytes: int = MOST_BYTES) -> Tagged | None:
        """A whole object."""
        self._count("get")
        try:
            found = self._obstore.get(self._store, key)
            size = found.meta["size"]
            if size > most_bytes:
                raise BackupError(f"{key} in {self.url} has {size} bytes; {most_bytes} are allowed")
            tag = found.meta["e_tag"], found.meta["version"]
            return Tagged(bytes(found.bytes()), tag)
        except FileNotFoundError as error:
            self._refuse_missing_bucket(error)
            return None
        except self._errors.BaseError as error:
            raise self._failed(key, error) from error

    def read_range(self, key: str, position: int, length: int) -> bytes:
        """Some bytes of an object."""
        if length <= 0:
            return b""
        self._count("get")
        try:
            return bytes(self._obstore.get_range(self._store, key, start=position, length=length))
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._failed(key, error) from error

    def stream(self, key: str, position: int, length: int) -> Iterator[memoryview]:
        """Some bytes of an object in parts."""
        if length <= 0:
            return
        self._count("get")
        try:
            found = self._obstore.get(self._store, key, options={"range": (position, position + length)})
            for part in found.stream(min_chunk_size=PART_BYTES):
                yield memoryview(part)
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._failed(key, error) from error

    def size(self, key: str) -> int | None:
        """An object's length."""
        self._count("get")
        try:
            return int(self._obstore.head(self._store, key)["size"])
        except FileNotFoundError as error:
            self._refuse_missing_bucket(error)
            return None
        except self._errors.BaseError as error:
            raise self._failed(key, error) from error

    def put_new(self, key: str, data: bytes) -> bool:
        """Write an object that was not there."""
        self._count("put", len(data))
        try:
            self._obstore.put(self._store, key, data, mode="create")
        except self._errors.AlreadyExistsError:
            return False
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._failed(key, error) from error
        return True

    def put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Write an object part by part; one of a single part by one request."""
        failures: list[Exception] = []
        rest = iter(parts)
        first = list(islice(rest, 2))
        if len(first) < 2:
            self._put_whole(key, b"".join(first))
            return

        sent = 0

        def counted() -> Iterator[bytes]:
            nonlocal sent
            try:
                for part in chain(first, rest):
                    sent += len(part)
                    yield part
            except Exception as error:
                failures.append(error)
                raise

        try:
            self._obstore.put(
                self._store, key, counted(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        except Exception as error:
            if failures:
                raise failures[0] from None
            if isinstance(error, (FileNotFoundError, self._errors.BaseError)):
                raise self._failed(key, error) from error
            raise
        finally:
            self._count("put", sent, 2 + -(-sent // PART_BYTES))  # one that begins it and one that completes it

    def _put_whole(self, key: str, data: bytes) -> None:
        self._count("put", len(data))
        try:
            self._obstore.put(self._store, key, data, use_multipart=False)
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._failed(key, error) from error

    def replace(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        """Replace an object whose content has this tag."""
        self._count("put", len(data))
        mode: Any = "create"
        if tag is not None:
            mode = {name: value for name, value in zip(("e_tag", "version"), tag, strict=True) if value is not None}
        try:
            result = self._obstore.put(self._store, key, data, mode=mode)
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError, FileNotFoundError) as error:
            self._refuse_missing_bucket(error)
            raise ObjectChangedError(f"{key} in {self.url} has another content than the one that was read") from error
        except self._errors.BaseError as error:
            raise self._failed(key, error) from error
        return result["e_tag"], result["version"]

    def list(self) -> Iterator[ObjectInfo]:
        """All objects below the URL."""
        self._count("list")
        try:
            for page in self._obstore.list(self._store):
                for found in page:
                    yield ObjectInfo(found["path"], found["size"])
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._failed("the listing", error) from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand in a request where the store can."""
        keys = list(keys)
        for at in range(0, len(keys), 1000):
            self._count("delete")
            try:
                self._obstore.delete(self._store, keys[at : at + 1000])
            except FileNotFoundError as error:  # of one of them, and the others may be there still
                self._refuse_missing_bucket(error)
                for key in keys[at : at + 1000]:
                    self._delete_one(key)
            except self._errors.BaseError as error:
                raise self._failed(keys[at], error) from error

    def _delete_one(self, key: str) -> None:
        self._count("delete")
        try:
            self._obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except self._errors.BaseError as error:
            raise self._failed(key, error) from error

    def _refuse_missing_bucket(self, error: Exception) -> None:
        if _NO_BUCKET.search(str(error)):
            raise BackupError(f"{self.url}: there is no such bucket; make it first") from error

    def _failed(self, key: str, error: Exception) -> BackupError:
        self._refuse_missing_bucket(error)
        if isinstance(error, FileNotFoundError):
            return BackupError(f"{key} is missing in {self.url}")
        if _NO_CREDENTIALS.search(str(error)):
            return BackupError(
                f"{self.url} refuses the credentials, or there are none: give them in options= or in the environment "
                f"({_short(error)})"
            )
        return BackupError(f"{key} in {self.url}: {_short(error)}")

    def _count(self, kind: str, size: int = 0, requests: int = 1) -> None:
        with self._counting:
            self.requests[kind] += requests
            self.sent_bytes += size


def without_credentials(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"//[^/@]*@", "//", url).rstrip("/")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
