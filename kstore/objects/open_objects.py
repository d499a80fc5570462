"""Opens the URL of a backup: a directory on this machine, or an object store through obstore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from kstore.errors import BackupError
from kstore.objects.local_objects import LocalObjects
from kstore.objects.object_store import Objects
from kstore.objects.remote_objects import RemoteObjects, without_credentials

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "memory", "file")
"""The allowed schemes. A path without a scheme is a directory on this machine."""


def open_objects(url: str | Objects, options: Mapping[str, Any] | None = None, *, create: bool = False) -> Objects:
    """Open the objects below a URL: `s3://`, `gs://`, `az://`, `abfs://`, `memory://`, `file://` or a directory's path.

    `options` may have obstore's settings for the scheme (`endpoint`, `region`, `access_key_id`, ...), settings for
    the HTTP client (`allow_http`, `timeout`, ...), and the mapping `retry_config`. A setting that is missing is
    taken from the environment. With `create` a missing directory is created. Raises `ConfigError` if obstore is missing
    or refuses an option, and `BackupError` for an unknown scheme or an empty URL.
    """
    if isinstance(url, Objects):
        return url
    path = _path_of(url)
    return RemoteObjects(url, options) if path is None else LocalObjects(path, create=create)


def url_of(url: str | Objects) -> str:
    """Return the `url` of the objects that `open_objects` would return."""
    if isinstance(url, Objects):
        return url.url
    path = _path_of(url)
    return without_credentials(url) if path is None else os.path.realpath(path)


def refuse_inside(url: str | Objects, roots: Iterable[str]) -> None:
    """Raise `BackupError` if the URL is in a log directory: a backup would replace the files there."""
    real = url_of(url)
    if not os.path.isabs(real):
        return  # an object store
    for root in roots:
        if os.path.commonpath([real, root]) == root:
            raise BackupError(f"the backup {real} would lie in the log directory {root}; another directory is needed")


def _path_of(url: str) -> str | None:
    """Return the path of a directory on this machine; None for an object store."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}")
    if not url:
        raise BackupError("the URL of a backup is empty; '.' is the current directory")
    if "\0" in unquote(url):
        raise BackupError(f"the URL of a backup is {url[:200]!r}; it may have no null character")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme not in SCHEMES:
        raise BackupError(f"{url[:200]!r} begins with {scheme[:20]!r}; {', '.join(SCHEMES)} and paths are allowed")
    shown = without_credentials(url)[:200]
    if "?" in rest or "#" in rest:
        raise BackupError(f"{shown!r} has '?' or '#'; in the name of an object they are written %3F and %23")
    host, slash, path = rest.partition("/")
    if scheme == "file":
        if host not in ("", "localhost") or not slash:
            raise BackupError(f"{url[:200]!r} is no file on this machine: file:///path is")
        return unquote(slash + path)
    if not host and scheme != "memory":
        raise BackupError(f"{shown!r} names no bucket: {scheme}://bucket/prefix does")
    return None
