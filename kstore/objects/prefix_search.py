"""Finds the prefix that a path leads into.

A backup is found by its manifest. For other layouts prefixes are listed, the longest first. Invariant: a whole bucket
is listed only if it is named, or if a partition of it is.
"""

from __future__ import annotations

import os

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import names
from kstore.objects.backup_manifest import read_manifest
from kstore.objects.open_objects import open_objects, url_of
from kstore.objects.prefix_paths import PrefixPath, prefix_paths
from kstore.objects.remote_prefix import NoLogError, RemoteOptions, RemotePrefix


def open_around(path: str, options: RemoteOptions, *, whole: bool) -> tuple[RemotePrefix, str]:
    """Mount the prefix that a path leads into, under its URL; return it and the rest of the path.

    Unless `whole`, of a prefix whose partitions are read one by one only the named one is read. Raises `StorageError`
    or `BackupError` if there is no log, or if the object store refuses.
    """
    found = [each for each in prefix_paths(path) if _may_exist(each.prefix)] or [PrefixPath(path, "")]
    for each in found:
        if _has_manifest(each.prefix, options):
            return _open(each, options, whole=whole)
    first: StorageError | None = None
    for each in found:
        if first is not None and _is_bucket(each.prefix) and _partition_in(each.rest) is None:
            break
        try:
            return _open(each, options, whole=whole)
        except StorageError as error:
            if not isinstance(error.__cause__, NoLogError):
                raise
            first = error if first is None else first
    assert first is not None
    raise first


def _open(found: PrefixPath, options: RemoteOptions, *, whole: bool) -> tuple[RemotePrefix, str]:
    only = None if whole else _partition_in(found.rest)
    return RemotePrefix(found.prefix, options, only, under_url=True), found.rest


def _partition_in(rest: str) -> str | None:
    name = rest.partition("/")[0]
    return name if names.is_partition_name(name) else None


def _has_manifest(prefix: str, options: RemoteOptions) -> bool:
    with open_objects(prefix, options.storage) as objects:
        return read_manifest(objects) is not None


def _may_exist(prefix: str) -> bool:
    """Return False for a directory of this machine that is missing."""
    at = url_of(prefix)
    return not os.path.isabs(at) or fs.is_directory(at)


def _is_bucket(url: str) -> bool:
    return "/" not in url.partition("://")[2]
