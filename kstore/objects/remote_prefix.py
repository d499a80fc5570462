"""`RemotePrefix`: a prefix of an object store, opened as a log directory that is only read.

The layout is found out by looking. Invariant: what is read is one state, that of the opening or of the last `refresh`;
nothing is written and no lock is taken.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kstore.base import times
from kstore.base.closing import Closing
from kstore.disk import mounts
from kstore.errors import BackupError, ConfigError, ReadOnlyError, StorageError
from kstore.files import names
from kstore.objects import aiven_tier, copied_prefix, local_tier, object_keys
from kstore.objects.backup_manifest import read_manifest
from kstore.objects.backup_prefix import read_backup
from kstore.objects.backup_state import History
from kstore.objects.block_cache import BlockCache
from kstore.objects.object_reader import ObjectReader
from kstore.objects.open_objects import SCHEMES, open_objects
from kstore.objects.prefix_paths import has_backup, is_file_name
from kstore.objects.remote_objects import without_credentials
from kstore.objects.remote_state import RemoteState
from kstore.objects.remote_tree import RemoteTree

TIERS = (
    (aiven_tier.looks_like_aiven, aiven_tier.read_aiven),
    (local_tier.looks_like_local_tier, local_tier.read_local_tier),
)
"""The layouts of tiered storage: how to know one, and how to read it."""

MOST_LISTED = 50_000_000
"""The most objects of a prefix that is listed."""

_ONE_SLASH = re.compile(rf"({'|'.join(SCHEMES)}):/(?!/)")
"""A URL that was misspelt, or made to a `pathlib.Path`, which loses the second slash."""


class NoLogError(BackupError):
    """A prefix has no log."""

    def __init__(self, url: str, objects: int) -> None:
        text = (
            f"{url} has {objects} objects and no log: neither a backup of kstore, nor partition "
            "directories such as orders-0 with segments in them, nor a tier of Kafka's tiered storage"
        )
        name = url.rpartition("/")[2]
        if names.is_partition_name(name) or is_file_name(name):
            text += "; give the URL above the directories of partitions (Log.open opens one of them)"
        super().__init__(text)


def is_prefix(path: object) -> bool:
    """Return whether a path is the URL of a prefix, or a directory that has a backup."""
    given = _text(path)
    if given is None or mounts.is_mounted(given):
        return False
    if "://" in given:
        return not os.path.exists(given)
    return has_backup(given)


def refuse_to_write(path: object, *, is_partition: bool = False) -> None:
    """Raise `ReadOnlyError` for the URL of a prefix and for a directory that has a backup, which are only read.

    `is_partition` says that the path is the directory of a partition, which is in the one that has a backup.
    """
    given = _text(path)
    if given is None:
        return
    if "://" in given:
        raise ReadOnlyError(f"{without_credentials(given)}: an object store is only read; open it with mode='r'")
    place = os.path.dirname(os.path.abspath(given)) if is_partition else given
    if has_backup(place):
        raise ReadOnlyError(f"{place} has a backup, which is only read; open it with mode='r'")


def _text(path: object) -> str | None:
    """Return a path as a str, None for other objects; raise `ConfigError` for a URL that has lost a slash."""
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str):
        return None
    if _ONE_SLASH.match(given) and not os.path.exists(given):
        raise ConfigError(f"{given[:200]!r} is no URL: two slashes follow the colon, and a URL is given as a str")
    return given


class RemoteOptions(NamedTuple):
    """The arguments of an opening that are about a prefix."""

    storage: Mapping[str, Any] | None = None
    """obstore's settings."""
    cache: str | os.PathLike[str] | None = None
    """A directory in which fetched bytes are kept."""
    until: datetime | int | None = None
    """The state of a backup at this time."""
    with_deleted: bool = False
    """Whether the segments that retention has deleted are read as long as the backup has them."""

    def refuse_unused(self, path: object) -> None:
        """Raise `ConfigError` if an argument is given: the path is one of a directory."""
        given = [name for name, value in self._asdict().items() if value]
        if given:
            raise ConfigError(f"{', '.join(given)} is given, and {path} is no URL and has no backup")


NO_OPTIONS = RemoteOptions()


class RemotePrefix(Closing):
    """A mounted prefix; `under_url` is that of `mount`. Thread-safe."""

    def __init__(
        self,
        url: str,
        options: RemoteOptions,
        only: str | None = None,
        *,
        is_archive: bool = False,
        under_url: bool = False,
    ) -> None:
        """`only` is the name of a partition's directory; of a broker's tier no other partition is read.

        Of an archive the deleted segments are always read.
        """
        self._until_ms = None if options.until is None else times.moment("until", options.until)
        self._with_deleted = bool(options.with_deleted) or is_archive
        self.url = url
        """The URL, as it was given."""
        self.options = options
        self._only = None if only is None else copied_prefix.partition_of(only)
        self.objects = open_objects(url, options.storage)
        try:
            state = self._read()
        except BackupError as error:
            raise StorageError(errno.EREMOTEIO, str(error), self.objects.url) from error
        self.reader = ObjectReader(self.objects, cache=None if options.cache is None else BlockCache(options.cache))
        self.tree = RemoteTree(self.objects.url, self.reader, state)
        shown = self.objects.url if "://" in self.objects.url else f"file://{self.objects.url}"
        self.root = self.tree.root = mounts.mount(shown, self.tree, under_url=under_url)

    @property
    def state(self) -> RemoteState:
        return self.tree.state

    def refresh(self) -> None:
        """Read what the prefix holds now."""
        try:
            state = self._read()
            self.reader.forget_etags()
            self.tree.replace(state)
        except BackupError as error:
            raise StorageError(errno.EREMOTEIO, str(error), self.root) from error

    def close(self) -> None:
        mounts.unmount(self.root)
        self.reader.close()
        self.objects.close()

    def _read(self) -> RemoteState:
        found = read_manifest(self.objects)
        if found is not None:
            return read_backup(History(self.objects, found[0]), self._until_ms, with_deleted=self._with_deleted)
        for name in ("until", "with_deleted"):
            if getattr(self.options, name):
                raise ConfigError(
                    f"{name} is given, and {self.objects.url} is no backup of kstore: it has only one state"
                )
        listing = []
        for info in self.objects.list():
            listing.append(info)
            if len(listing) > MOST_LISTED:
                raise BackupError(f"{self.objects.url} has more than {MOST_LISTED} objects; name a longer prefix")
        if any(object_keys.parse_numbered(info.key) for info in listing):
            raise BackupError(
                f"{self.objects.url} has rounds or catalogs of a backup, and {object_keys.MANIFEST} is missing"
            )
        for looks_like, read in TIERS:
            if looks_like(listing):
                return read(self.objects, listing, self._only)
        if copied_prefix.looks_like_copy(listing):
            return copied_prefix.read_copy(listing)
        raise NoLogError(self.objects.url, len(listing))


def open_parent(
    path: str | os.PathLike[str], options: RemoteOptions
) -> tuple[str | os.PathLike[str], RemotePrefix | None]:
    """Return the path of a partition's directory; if its parent is a prefix, mount the parent."""
    given = _text(path)
    if given is not None:
        parent, _, name = given.rstrip("/").rpartition("/")
        if parent.endswith(":/"):
            parent += "/"  # of a URL without a bucket
        if name and is_prefix(parent):
            names.parse_partition_name(name)
            prefix = RemotePrefix(parent, options, name)
            return f"{prefix.root}/{name}", prefix
    options.refuse_unused(path)
    return path, None
