"""`RemoteObjects`: an object store, accessed through obstore. Errors say what to do about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain, islice
from typing import Any

from kstore.base import arguments, optional
from kstore.errors import BackupError, ConfigError
from kstore.objects.object_store import (
    MOST_BYTES,
    PART_BYTES,
    PARTS_AT_ONCE,
    Fetched,
    ObjectChangedError,
    ObjectInfo,
    ObjectMissingError,
    Objects,
    Tag,
    Tagged,
)

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
"""obstore's options for the HTTP client; obstore panics if they are passed as options of the object store."""

_ENDPOINT = re.compile(r"((aws|azure|azure_storage)_)?endpoint(_url)?", re.IGNORECASE)
"""obstore's options with the URL of the server; obstore panics at the first request if one is no URL."""

_memories: dict[str, Any] = {}
"""The stores of `memory://` URLs, shared by all calls of the process."""


class RemoteObjects(Objects):
    """The objects below a URL."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        arguments.one_of("the options of an object store", options, Mapping)
        super().__init__(without_credentials(url))
        self._obstore = optional.obstore("a backup", "store", "exceptions")
        self._errors = self._obstore.exceptions
        self._store = self._open(url, dict(options or {}))

    def _open(self, url: str, options: dict[str, Any]) -> Any:
        if url.startswith("memory://"):
            return _memories.setdefault(self.url, self._obstore.store.MemoryStore())
        for name, value in options.items():
            is_text = isinstance(name, str) and isinstance(value, str)
            if is_text and _ENDPOINT.fullmatch(name) and not re.fullmatch(r"https?://[^\s/]\S*", value):
                raise ConfigError(
                    f"{name} is {without_credentials(value)!r}; the URL of a server is needed, such as https://host:port"
                )
        special = {name: options.pop(name) for name in ("client_options", "retry_config") if name in options}
        special.setdefault("retry_config", _RETRIES)
        of_client = {name: options.pop(name) for name in _OF_CLIENT.intersection(options)}
        if of_client:
            special["client_options"] = {**of_client, **special.get("client_options", {})}
        try:
            with self._without_panic():
                return self._obstore.store.from_url(self.url, config=options, **special)
        except (self._errors.BaseError, ValueError, TypeError) as error:
            raise ConfigError(f"{self.url} cannot be opened with these options: {_short(error)}") from error

    def read(self, key: str, *, most_bytes: int = MOST_BYTES) -> Tagged | None:
        self._count("get")
        with self._failing(key, may_miss=True):
            found = self._obstore.get(self._store, key)
            size = found.meta["size"]
            if size > most_bytes:
                raise BackupError(f"{key} in {self.url} has {size} bytes; {most_bytes} are allowed")
            return Tagged(bytes(found.bytes()), (found.meta["e_tag"], found.meta["version"]))
        return None

    def read_range(self, key: str, position: int, length: int) -> bytes:
        if length <= 0:
            return b""
        self._count("get")
        with self._failing(key):
            return bytes(self._obstore.get_range(self._store, key, start=position, length=length))

    def fetch(self, key: str, position: int, length: int, etag: str | None = None) -> Fetched:
        self._count("get")
        options: dict[str, Any] = {"range": (position, position + length)}
        if etag is not None:
            options["if_match"] = etag
        with self._failing(key):
            found = self._obstore.get(self._store, key, options=options)
            return Fetched(memoryview(found.bytes()), found.meta["size"], found.meta["e_tag"])

    def stream(self, key: str, position: int, length: int) -> Iterator[memoryview]:
        if length <= 0:
            return
        self._count("get")
        with self._failing(key):
            found = self._obstore.get(self._store, key, options={"range": (position, position + length)})
            for part in found.stream(min_chunk_size=PART_BYTES):
                yield memoryview(part)

    def size(self, key: str) -> int | None:
        self._count("get")
        with self._failing(key, may_miss=True):
            return int(self._obstore.head(self._store, key)["size"])
        return None

    def put_new(self, key: str, data: bytes) -> bool:
        self._count("put", len(data))
        with self._failing(key), suppress(self._errors.AlreadyExistsError):
            self._obstore.put(self._store, key, data, mode="create")
            return True
        return False

    def put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Write an object part by part; a single part takes one request."""
        failures: list[Exception] = []
        rest = iter(parts)
        first = list(islice(rest, 2))
        if len(first) < 2:
            data = b"".join(first)
            self._count("put", len(data))
            with self._failing(key):
                self._obstore.put(self._store, key, data, use_multipart=False)
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

        multipart = {"use_multipart": True, "chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
        try:
            with self._without_panic():
                self._obstore.put(self._store, key, counted(), **multipart)
        except Exception as error:
            if failures:
                raise failures[0] from None
            if isinstance(error, (FileNotFoundError, self._errors.BaseError)):
                raise self._failed(key, error) from error
            raise
        finally:
            self._count("put", sent, 2 + -(-sent // PART_BYTES))  # one request starts the upload and one completes it

    def replace(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        self._count("put", len(data))
        mode: Any = "create"
        if tag is not None:
            mode = {name: value for name, value in zip(("e_tag", "version"), tag, strict=True) if value is not None}
        with self._failing(key):
            try:
                result = self._obstore.put(self._store, key, data, mode=mode)
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError, FileNotFoundError) as error:
                self._refuse_missing_bucket(error)
                text = f"{key} in {self.url} has another content than the one that was read"
                raise ObjectChangedError(text) from error
            return result["e_tag"], result["version"]

    def list(self) -> Iterator[ObjectInfo]:
        self._count("list")
        with self._failing("the listing"):
            for page in self._obstore.list(self._store):
                for found in page:
                    modified_ms = int(found["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(found["path"], found["size"], found["e_tag"], modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, up to 1000 in a request if the store supports it."""
        rest = iter(keys)
        while some := list(islice(rest, 1000)):
            self._count("delete")
            with self._failing(some[0]):
                try:
                    self._obstore.delete(self._store, some)
                except FileNotFoundError as error:  # one object is missing, and the others may not have been deleted
                    self._refuse_missing_bucket(error)
                    for key in some:
                        self._count("delete")
                        with self._failing(key), suppress(FileNotFoundError):
                            self._obstore.delete(self._store, key)

    @contextmanager
    def _failing(self, key: str, *, may_miss: bool = False) -> Iterator[None]:
        try:
            with self._without_panic():
                yield
        except (FileNotFoundError, self._errors.BaseError) as error:
            if not may_miss or not isinstance(error, FileNotFoundError):
                raise self._failed(key, error) from error
            self._refuse_missing_bucket(error)

    @contextmanager
    def _without_panic(self) -> Iterator[None]:
        """Raise `ConfigError` for a panic of obstore, which its options cause; the exception's class has no import."""
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise ConfigError(
                f"{self.url} cannot be requested with the options that are given or in the environment: an endpoint "
                f"begins with http:// or https://, and no value has control characters ({_short(error)})"
            ) from None

    def _refuse_missing_bucket(self, error: Exception) -> None:
        if _NO_BUCKET.search(str(error)):
            raise BackupError(f"{self.url}: there is no such bucket") from error

    def _failed(self, key: str, error: Exception) -> BackupError:
        self._refuse_missing_bucket(error)
        if isinstance(error, FileNotFoundError):
            return ObjectMissingError(f"{key} is missing in {self.url}")
        if isinstance(error, self._errors.PreconditionError):
            return ObjectChangedError(f"{key} in {self.url} has been replaced since it was listed or read")
        if _NO_CREDENTIALS.search(str(error)):
            return BackupError(
                f"{self.url} refuses the credentials, or there are none: give them as options of the object store or "
                f"in the environment ({_short(error)})"
            )
        if "builder error" in str(error):
            return BackupError(f"{self.url} has an endpoint with http://, which the option allow_http=true allows")
        return BackupError(f"{key} in {self.url}: {_short(error)}")


def without_credentials(url: str) -> str:
    """Return a URL without a user and a password. In abfss://container@account the first part is no user."""
    kept = r"//\1@" if url.startswith(("abfs://", "abfss://")) else "//"
    return re.sub(r"//([^/@:]*)[^/@]*@", kept, url).rstrip("/")


def _short(error: BaseException) -> str:
    """Return obstore's message in one line, without the Rust structures that may follow it."""
    return " ".join(str(error).split()).partition(" Debug source:")[0][:400]
