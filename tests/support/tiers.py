"""Prefixes of tiers in tests: objects as files, and the files that a `RemoteState` describes as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kstore.objects.local_objects import LocalObjects
from kstore.objects.object_store import Objects
from kstore.objects.remote_bytes import read_object_range
from kstore.objects.remote_state import RemoteFile, RemotePartition


def put(root: Path, *objects: Mapping[str, bytes]) -> LocalObjects:
    """Write objects below a directory, and open it."""
    for each in objects:
        for key, data in each.items():
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return LocalObjects(str(root), create=True)


def bytes_of(objects: Objects, file: RemoteFile) -> bytes:
    """The bytes of a file."""
    found = file.content
    if found is None:
        found = b"".join(read_object_range(objects, part) for part in file.ranges)[: file.size]
    assert len(found) == file.size
    return found


def log_of(objects: Objects, partition: RemotePartition) -> bytes:
    """The logs of all segments, one after another."""
    logs = sorted(name for name in partition.files if name.endswith(".log"))
    return b"".join(bytes_of(objects, partition.files[name]) for name in logs)
