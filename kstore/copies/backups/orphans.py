"""Finds objects that no manifest references, because the writer was killed or a segment was replaced during its upload.

Nothing is deleted here: a round drops the objects, and they are deleted after the restore window like other dropped
objects. Invariant: no later writer uses one of these names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kstore.objects import object_keys
from kstore.objects.backup_contents import BackupState
from kstore.objects.backup_manifest import BackupManifest
from kstore.objects.object_store import Objects


class Orphans(NamedTuple):
    """The names of unreferenced objects, and the numbers of unreferenced rounds."""

    keys: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()


def find(objects: Objects, manifest: BackupManifest, state: BackupState, others: Collection[str]) -> Orphans:
    """Return the objects that are in neither the manifest, nor the state after its last round, nor `others`.

    Leaves rounds and catalogs above the manifest's number, which the next round may use; announced objects, since a
    request of an earlier writer may still be under way; and objects with a name that no backup uses.
    """
    counted = {intent.key for intent in manifest.intents} | {
        object_keys.catalog_key(each.number) for each in manifest.catalogs
    }
    counted.update(others)
    counted.update(map(object_keys.round_key, manifest.all_rounds))
    for partition in state.partitions.values():
        counted.update(partition.objects(), (partition.object_of_chunk(chunk) for chunk in partition.tail))
    for each in state.dropped:
        counted.update(each.objects())
    found: list[str] = []
    rounds: list[int] = []
    for key in (info.key for info in objects.list() if info.key not in counted):
        numbered = object_keys.parse_numbered(key)
        if numbered is None:
            is_of_partition = object_keys.is_small_file(key) and object_keys.place_of(key) in state.partitions
            if object_keys.place_of(key) is not None and not is_of_partition:
                found.append(key)
        elif numbered[0] <= manifest.number:
            found += [key] if numbered[1] == object_keys.CATALOG else []
            rounds += [numbered[0]] if numbered[1] == object_keys.ROUND else []
    return Orphans(tuple(sorted(found)), tuple(sorted(rounds)))
