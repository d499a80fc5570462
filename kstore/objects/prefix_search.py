"""Finds the prefix that a path leads into.

A backup is found by its manifest. For other layouts prefixes are listed, the longest first. Invariant: a whole bucket
is listed only if it is named, or if a partition of it is.
"""

from __future__ import annotations

import os

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.objects.backup_manifest import read_manifest
from kstore.objects.open_objects import open_objects, url_of
from kstore.objects.prefix_paths import PrefixPath, prefix_paths
from kstore.objects.remote_prefix import NoLogError, RemoteOptions, RemotePrefix


def open_around(path: str, options: RemoteOptions) -> tuple[RemotePrefix, str]:
    """Mount the prefix that a path leads into, under its URL; return it and the rest of the path.

    Raises `StorageError` or `BackupError` if there is no log, or if the object store refuses.
    """
    found = [each for each in prefix_paths(path) if _may_exist(each.prefix)] or [PrefixPath(path, "")]
    for prefix, rest in found:
        if _has_manifest(prefix, options):
            return RemotePrefix(prefix, options, under_url=True), rest
    failures: list[StorageError] = []
    for prefix, rest in found:
        if failures and _is_bucket(prefix) and not _had_objects(failures[-1]):
            break
        try:
            return RemotePrefix(prefix, options, under_url=True), rest
        except StorageError as error:
            if not isinstance(error.__cause__, NoLogError):
                raise
            failures.append(error)
    raise failures[0]


def _has_manifest(prefix: str, options: RemoteOptions) -> bool:
    with open_objects(prefix, options.storage) as objects:
        return read_manifest(objects) is not None


def _may_exist(prefix: str) -> bool:
    """Return False for a directory of this machine that is missing."""
    at = url_of(prefix)
    return not os.path.isabs(at) or fs.is_directory(at)


def _is_bucket(url: str) -> bool:
    return "/" not in url.partition("://")[2]


def _had_objects(error: StorageError) -> bool:
    return isinstance(error.__cause__, NoLogError) and error.__cause__.objects > 0
