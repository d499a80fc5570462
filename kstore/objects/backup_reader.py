"""Reads a backup's catalogs and the headers of its rounds, and computes the states after each round.

Invariant: a state is built from valid objects in order. A `BackupError` names an object that is invalid or missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from kstore._core import crc32c
from kstore.base import times
from kstore.base.threads import Workers
from kstore.errors import BackupError
from kstore.objects import backup_rounds, object_keys
from kstore.objects.backup_contents import BackupState
from kstore.objects.backup_manifest import BackupManifest, CatalogPlace, numbers_in
from kstore.objects.backup_rounds import Round
from kstore.objects.object_store import Objects

FIRST_BYTES = 64 << 10
"""The size of the first read of a round; most headers are shorter."""
AHEAD = 64
"""How many rounds are read at the same time."""


def read_catalog(objects: Objects, place: CatalogPlace) -> BackupState:
    """Read a catalog; raises `BackupError` if it is not the catalog that the manifest names."""
    key = object_keys.catalog_key(place.number)
    where = f"{key} in {objects.url}"
    found = objects.read(key, most_bytes=backup_rounds.PREFIX.size + backup_rounds.MOST_HEADER_BYTES)
    if found is None:
        raise BackupError(f"{where} is missing: no state since {times.show(place.time_ms)} can be restored without it")
    if len(found.data) != place.length or crc32c(found.data) != place.crc:
        raise BackupError(
            f"{where} has {len(found.data)} bytes of CRC {crc32c(found.data):#010x}; the manifest says {place.length} "
            f"of {place.crc:#010x}"
        )
    state = backup_rounds.decode_catalog(found.data, where)
    if (state.number, state.time_ms) != (place.number, place.time_ms):
        raise BackupError(f"{where} is of round {state.number} at {state.time_ms} ms; the manifest says otherwise")
    return state


def read_round(objects: Objects, number: int) -> tuple[Round, int]:
    """Read the header of a round; return the header and its size in bytes."""
    key = object_keys.round_key(number)
    where = f"{key} in {objects.url}"
    data = objects.read_range(key, 0, FIRST_BYTES)
    length = backup_rounds.header_bytes(data, where)
    if length > len(data):
        data += objects.read_range(key, len(data), length - len(data))
    found = backup_rounds.decode_round(data, where)
    if found.number != number:
        raise BackupError(f"{where} is round {found.number}, not {number}")
    return found, length


def states(objects: Objects, place: CatalogPlace | None, numbers: Iterable[int]) -> Iterator[BackupState]:
    """Yield the state of a catalog, if there is one, then the state after each of the rounds that follow it."""
    state = BackupState()
    if place is not None:
        state = read_catalog(objects, place)
        yield state
    rest = iter(numbers)
    with Workers(AHEAD, "kstore-backup") as workers:
        ahead = [workers.submit(partial(read_round, objects, number)) for number in islice(rest, AHEAD)]
        try:
            while ahead:
                found, header = ahead.pop(0).wait()
                ahead += [workers.submit(partial(read_round, objects, number)) for number in islice(rest, 1)]
                where = f"{object_keys.round_key(found.number)} in {objects.url}"
                state = backup_rounds.apply(state, found, where, header)
                yield state
        finally:
            for future in ahead:
                future.cancel()


def read_newest(objects: Objects, manifest: BackupManifest) -> BackupState:
    """Return the state after the last round."""
    newest = BackupState()
    place = manifest.catalogs[-1] if manifest.catalogs else None
    for state in states(objects, place, numbers_in(manifest.rounds)):
        newest = state
    return newest
