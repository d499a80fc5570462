"""Opens the URLs among a store's paths: prefixes of object stores, and archives of directories.

They are mounted, so that the rest of the store reads them like directories. Invariant: a URL is only read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from kstore.disk import mounts
from kstore.errors import ConfigError
from kstore.log.reading.remote_view import RemoteSegment
from kstore.objects.joined_tree import JoinedTree
from kstore.objects.remote_prefix import RemoteOptions, RemotePrefix, is_prefix, refuse_to_write
from kstore.objects.remote_state import SegmentFacts
from kstore.store import catalog

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class OpenedPaths(NamedTuple):
    """The paths of directories, and the prefix that is mounted for them."""

    paths: tuple[str, ...]
    given: tuple[str, ...]
    """Paths that another process can open."""
    prefix: RemotePrefix | None = None
    mounted: str | None = None
    """The root of the tree in which a directory and the prefix are joined."""

    def close(self) -> None:
        if self.mounted is not None:
            mounts.unmount(self.mounted)
        if self.prefix is not None:
            self.prefix.close()


def open_paths(paths: Paths, mode: str, options: RemoteOptions, archive: str | os.PathLike[str] | None) -> OpenedPaths:
    """Return the paths of log directories; mount a URL, or a directory with its archive.

    Raises `ReadOnlyError` for a URL that is not opened to read, and `ConfigError` for arguments that do not fit.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths) if isinstance(paths, Iterable) else paths
    urls = [path for path in named if mode == "r" and is_prefix(path)] if isinstance(named, list) else []
    if mode == "a" and isinstance(named, list):
        for path in named:
            refuse_to_write(path)
    if not urls:
        real = catalog.real_paths(paths)
        if archive is not None:
            return _join(real, mode, options, archive)
        options.refuse_unused(", ".join(real))
        return OpenedPaths(real, real)
    if len(named) > 1:
        raise ConfigError(f"{urls[0]} is given with {len(named) - 1} other paths; a URL is opened by itself")
    if archive is not None:
        raise ConfigError(f"archive is given with the URL {urls[0]}; it belongs to a directory")
    prefix = RemotePrefix(os.fspath(urls[0]), options)
    return OpenedPaths((prefix.root,), (prefix.url,), prefix)


def _join(paths: tuple[str, ...], mode: str, options: RemoteOptions, archive: str | os.PathLike[str]) -> OpenedPaths:
    if mode != "r":
        raise ConfigError("archive is given, and mode is 'a'; an archive is only read: mode='r'")
    if len(paths) > 1:
        raise ConfigError(f"archive is given with {len(paths)} directories; it is joined with one")
    prefix = RemotePrefix(os.fspath(archive), options, is_archive=True)

    def find_cut(directory: str, base: int, offset: int) -> tuple[int, int]:
        return RemoteSegment(f"{prefix.root}/{directory}", base, SegmentFacts(), {}).find_cut(offset)

    tree = JoinedTree(paths[0], prefix.tree, prefix.reader, find_cut)
    tree.root = mounts.mount(f"file://{paths[0]}", tree)
    return OpenedPaths((tree.root,), paths, prefix, tree.root)
