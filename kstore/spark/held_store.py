"""The store of a URL that a Python process of Spark keeps open between its tasks.

The driver plans ranges of offsets, and each process opens the URL itself. Invariant: a task reads a state of the
prefix that is not older than the one that its range was planned from.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from kstore.base import arguments
from kstore.errors import ConfigError
from kstore.objects.open_objects import SCHEMES
from kstore.objects.remote_objects import without_credentials
from kstore.objects.remote_prefix import is_prefix
from kstore.spark.storage_options import StorageOptions
from kstore.store.store import Store

PREFIX_SCHEMES = tuple(f"{scheme}://" for scheme in SCHEMES if scheme != "file")

Roots = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Prefix:
    """A prefix of an object store, as tasks open it. Plain values; can be pickled."""

    url: str
    storage: StorageOptions = field(default_factory=StorageOptions)
    look: str = ""
    """Differs for each plan: a process reads the prefix again when it is first given another one."""

    def planned(self) -> Prefix:
        """Return the prefix for a new plan."""
        return Prefix(self.url, self.storage, secrets.token_hex(8))

    def open(self) -> Store:
        """Open a store that only reads; raises as `Store.open` does."""
        return Store.open(self.url, mode="r", storage=self.storage)


def url_in(root: Roots) -> str | None:
    """Return the URL of an object store that `root` is, without credentials; None if it has paths only."""
    roots = [root] if isinstance(root, str | os.PathLike) else list(root)
    paths = [arguments.path("a log directory's path", path) for path in roots]
    urls = [without_credentials(path) for path in paths if path.startswith(PREFIX_SCHEMES)]
    if urls and len(paths) > 1:
        raise ConfigError(f"{urls[0]} is given with {len(paths) - 1} other paths; a URL is read by itself")
    return urls[0] if urls else None


def prefix_at(paths: tuple[str, ...], storage: StorageOptions | None) -> Prefix | None:
    """Return the prefix that a path or URL is; None for log directories, which have no `storage`."""
    if len(paths) == 1 and is_prefix(paths[0]):
        return Prefix(paths[0], storage or StorageOptions())
    if storage:
        raise ConfigError(f"options of an object store are given, and {paths[0]} is a directory: {storage}")
    return None


class _Held:
    """The store that is kept. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prefix: Prefix | None = None
        self._store: Store | None = None

    def store(self, prefix: Prefix) -> Store:
        """Return the open store of a prefix. Only the last one is kept: each has a cache in memory."""
        with self._lock:
            store, before = self._store, self._prefix
            is_same = before is not None and (before.url, before.storage) == (prefix.url, prefix.storage)
            if store is None or store.closed or not is_same:
                self._drop()
                store = self._store = prefix.open()
            elif before != prefix:
                store.refresh()
            self._prefix = prefix
            return store

    def drop(self) -> None:
        """Close the store, so that a task that is tried again opens it anew."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        store, self._store, self._prefix = self._store, None, None
        if store is not None:
            store.close()


held = _Held()
"""The store of this process."""
