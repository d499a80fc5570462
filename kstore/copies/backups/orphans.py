"""Objects that no manifest counts: of uploads whose writer was killed, or whose segment was replaced meanwhile.

Nothing is deleted here. A round drops what is found, and it is deleted after the restore window, as files that a log
does without are. Invariant: no later writer gives one of these names to anything.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kstore.copies.backups import object_keys
from kstore.copies.backups.backup_contents import BackupState
from kstore.copies.backups.backup_manifest import BackupManifest
from kstore.copies.backups.object_store import Objects


class Orphans(NamedTuple):
    """The names of such objects, and the numbers of such rounds."""

    keys: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()


def find(objects: Objects, manifest: BackupManifest, state: BackupState, others: Collection[str]) -> Orphans:
    """List all objects for those that neither the manifest nor the state after its last round counts, nor `others`.

    Numbers above the manifest's are left: the next round may have one of them. So is what was announced, since a
    request of an earlier writer may still be on its way, and what has no name of a backup's object.
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
