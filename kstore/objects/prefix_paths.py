"""The prefixes that a path may lead into: a person names a topic, a partition or a file of a prefix by one path.

Names alone are looked at, and for paths of this machine whether a backup's manifest is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from kstore.disk import fs, mounts
from kstore.errors import InvalidTopicError
from kstore.files import names
from kstore.objects.object_keys import MANIFEST


class PrefixPath(NamedTuple):
    """A prefix, and the rest of the path in it: nothing, or TOPIC, TOPIC-P, TOPIC-P/FILE, FILE."""

    prefix: str
    rest: str


def prefix_paths(path: str) -> Iterator[PrefixPath]:
    """Yield the prefixes that a path may lead into: itself first, then its parents as far as the names allow."""
    prefix, rest = path.rstrip("/") or path, ""
    yield PrefixPath(prefix, rest)
    for _ in range(2):
        parent, slash, name = prefix.rpartition("/")
        if not slash:
            parent = "" if "://" in path else "."
        if not parent or parent.endswith("/") or not _may_be(name, rest):
            return
        prefix, rest = parent, f"{name}/{rest}" if rest else name
        yield PrefixPath(prefix, rest)


def is_remote(path: str) -> bool:
    """Return whether a path is a URL, or leads into the directory of a backup on this machine.

    What is in that directory under the path's own name is meant itself, unless it is a partition's.
    """
    if "://" in path:
        return not mounts.is_mounted(path) and not fs.exists(path)
    for prefix, rest in prefix_paths(path):
        if has_backup(prefix):
            return not rest or names.is_partition_name(rest) or not fs.exists(path)
    return False


def has_backup(directory: str) -> bool:
    """Return whether a directory of this machine has the manifest of a backup."""
    return os.path.isfile(os.path.join(directory, MANIFEST))


def _may_be(name: str, rest: str) -> bool:
    """Return whether a name may be that of a topic, a partition or a file; with a rest, of the rest's directory."""
    if rest:
        return names.is_partition_name(name) and is_file_name(rest)
    if is_file_name(name) or names.is_partition_name(name):
        return True
    try:
        names.check_topic(name)
    except InvalidTopicError:
        return False
    return True


def is_file_name(name: str) -> bool:
    """Return whether a name may be that of a file of a log: of a segment, or a checkpoint."""
    return names.parse_file_name(name) is not None or name.endswith(("-checkpoint", ".metadata", ".json"))
