"""`kstore-backup.json`: names the rounds and catalogs of a backup, and is replaced by compare-and-set.

Invariant: a writer takes a generation before it writes, and a manifest of a higher generation stops every older writer.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kstore.base.numbers import LONG_MAX
from kstore.errors import BackupError, StorageError
from kstore.files import json_file
from kstore.objects import object_keys
from kstore.objects.object_store import Objects, Tag

VERSION = 1
MOST_MANIFEST_BYTES = 64 << 20
MOST_CATALOGS = 200_000
MOST_ROUNDS = 1 << 24
MOST_INTENTS = 100_000
MOST_LENGTH = 1 << 40
CRC_MAX = 2**32 - 1

_ID = re.compile(r"[0-9a-f]{32}")


class Span(NamedTuple):
    """The rounds from `first` to `last`."""

    first: int
    last: int


class CatalogPlace(NamedTuple):
    """A catalog: the state after round `number`. `rounds` has those after the previous catalog."""

    number: int
    time_ms: int
    length: int
    crc: int
    rounds: tuple[Span, ...] = ()


class Intent(NamedTuple):
    """A file whose upload may be unfinished: a later writer must not use its name for other bytes."""

    key: str
    length: int
    crc: int


@dataclasses.dataclass(frozen=True, slots=True)
class BackupManifest:
    """The content of `kstore-backup.json`. Immutable; thread-safe."""

    backup: str
    """The backup's id, 32 hexadecimal digits. A restore records it."""
    generation: int
    """The writer's generation: the number of writers so far. A writer with a lower generation is fenced."""
    writer: str
    """The writer's id, 32 hexadecimal digits."""
    revision: int
    """Rises with each write of the manifest, so that no two manifests have the same text."""
    number: int
    """The last valid round; 0 if there is none."""
    time_ms: int
    """When the last valid round was made, in milliseconds since the epoch. Later rounds have later times."""
    window_ms: int
    """How long dropped objects are kept: the restore window."""
    kept_from_ms: int = 0
    """Objects dropped up to this time may have been deleted, so states from before it may lack objects."""
    swept_ms: int = 0
    """The time of the last search for objects that no manifest references."""
    catalogs: tuple[CatalogPlace, ...] = ()
    """The catalogs of the restore window, oldest first."""
    rounds: tuple[Span, ...] = ()
    """The rounds since the newest catalog; all rounds if there is none."""
    intents: tuple[Intent, ...] = ()
    """The files that the writer may be uploading."""

    @property
    def all_rounds(self) -> Iterator[int]:
        """The numbers of all rounds that the manifest names, including those of its catalogs."""
        return numbers_in((*(span for each in self.catalogs for span in each.rounds), *self.rounds))

    def encode(self) -> bytes:
        fields = {"version": VERSION, **{each.name: getattr(self, each.name) for each in dataclasses.fields(self)}}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes, where: str) -> BackupManifest:
    """Decode a manifest. A `BackupError` names the manifest (`where`), the field, its value and the allowed values."""
    fields = parse(data, where)
    with malformed_fields(where):
        check_version(fields)
        number = fields.integer("number", 0, LONG_MAX)
        time_ms = fields.integer("time_ms", 0, LONG_MAX)
        catalogs = tuple(_catalogs(fields))
        manifest = BackupManifest(
            backup=_id(fields, "backup"),
            generation=fields.integer("generation", 1, LONG_MAX),
            writer=_id(fields, "writer"),
            revision=fields.integer("revision", 1, LONG_MAX),
            number=number,
            time_ms=time_ms,
            window_ms=fields.integer("window_ms", 0, LONG_MAX),
            kept_from_ms=fields.integer("kept_from_ms", 0, LONG_MAX),
            swept_ms=fields.integer("swept_ms", 0, LONG_MAX),
            catalogs=catalogs,
            rounds=spans_of(fields, "rounds", fields.take("rounds")),
            intents=tuple(_intents(fields)),
        )
        fields.end()
    last = catalogs[-1].number if catalogs else 0
    if manifest.rounds and manifest.rounds[0].first <= last:
        raise BackupError(f"{where}: rounds begin at {manifest.rounds[0].first}; above catalog {last} is needed")
    newest = manifest.rounds[-1].last if manifest.rounds else last
    if newest != number:
        raise BackupError(f"{where}: number is {number}, and the last of its rounds is {newest}")
    if catalogs and catalogs[-1].time_ms > time_ms:
        raise BackupError(f"{where}: time_ms is {time_ms}, before its newest catalog's {catalogs[-1].time_ms}")
    return manifest


def read_manifest(objects: Objects) -> tuple[BackupManifest, Tag] | None:
    """Return the manifest of a backup and its tag; None if there is no backup."""
    found = objects.read(object_keys.MANIFEST, most_bytes=MOST_MANIFEST_BYTES)
    if found is None:
        return None
    return decode(found.data, f"{object_keys.MANIFEST} in {objects.url}"), found.tag


def numbers_in(spans: Iterable[Span]) -> Iterator[int]:
    return (number for first, last in spans for number in range(first, last + 1))


def add_round(rounds: tuple[Span, ...], number: int) -> tuple[Span, ...]:
    """Return the spans with one more round, whose number is above all others."""
    if rounds and rounds[-1].last + 1 == number:
        return (*rounds[:-1], Span(rounds[-1].first, number))
    return (*rounds, Span(number, number))


# Functions that parse a backup's JSON, also used for rounds and catalogs.


def parse(data: bytes, where: str) -> json_file.Fields:
    """Return the fields of a JSON object; raises `BackupError` for anything else."""
    try:
        parsed = json_file.parse(data)
    except (ValueError, RecursionError) as error:
        raise BackupError(f"{where} is malformed: {str(error)[:200]}") from None
    with malformed_fields(where):
        return json_file.Fields(parsed, where)


def check_version(fields: json_file.Fields, most: int = VERSION) -> None:
    """Take the version; raises `BackupError` if this release does not know it."""
    version = fields.integer("version", 0, LONG_MAX)
    if not 1 <= version <= most:
        known = "version 1" if most == 1 else f"versions 1 to {most}"
        raise BackupError(f"{fields.path} has version {version}; this release of kstore knows {known}")


@contextmanager
def malformed_fields(where: str) -> Iterator[None]:
    """Turn a `StorageError` about a field, raised in the block, into a `BackupError` about the object."""
    try:
        yield
    except StorageError as error:
        reason = str(error.strerror).removeprefix("malformed: ").partition("; 'kstore repair'")[0]
        raise BackupError(f"{where} is malformed: {reason}") from None


def list_of(fields: json_file.Fields, place: str, value: Any, count: int) -> list[Any]:
    """Return `value` if it is a list of `count` items; raises `StorageError` otherwise."""
    if not isinstance(value, list) or len(value) != count:
        raise fields.refusal(place, value, f"a list of {count}")
    return value


def lists(fields: json_file.Fields, name: str, count: int, most: int = LONG_MAX) -> Iterator[tuple[str, list[Any]]]:
    """Yield each item of a list and its place; raises `StorageError` if an item is not a list of `count`."""
    items = fields.items(name)
    if len(items) > most:
        raise fields.refusal(name, items, f"at most {most} of them")
    for place, item in items:
        yield place, list_of(fields, place, item, count)


def numbers_of(fields: json_file.Fields, place: str, value: Any, highs: tuple[int, ...]) -> tuple[int, ...]:
    """Return whole numbers in `[0, high]`, one for each of `highs`; raises `StorageError` for anything else."""
    for number, high in zip(list_of(fields, place, value, len(highs)), highs, strict=True):
        if type(number) is not int or not 0 <= number <= high:
            raise fields.refusal(place, number, f"a whole number from 0 to {high}")
    return tuple(value)


def spans_of(fields: json_file.Fields, name: str, value: Any) -> tuple[Span, ...]:
    """Return `value` as spans of rounds; raises `StorageError` unless they rise."""
    if not isinstance(value, list):
        raise fields.refusal(name, value, "a list")
    found = [Span(*numbers_of(fields, f"{name}[{at}]", each, (LONG_MAX, LONG_MAX))) for at, each in enumerate(value)]
    last = 0
    for span in found:
        if not last < span.first <= span.last:
            raise fields.refusal(name, str(tuple(span)), f"spans that rise above {last}")
        last = span.last
    if sum(span.last - span.first + 1 for span in found) > MOST_ROUNDS:
        raise fields.refusal(name, value, f"at most {MOST_ROUNDS} rounds")
    return tuple(found)


def _catalogs(fields: json_file.Fields) -> Iterator[CatalogPlace]:
    last, last_ms = 0, -1
    for place, item in lists(fields, "catalogs", 5, MOST_CATALOGS):
        number, time_ms, length, crc = numbers_of(fields, place, item[:4], (LONG_MAX, LONG_MAX, MOST_LENGTH, CRC_MAX))
        found = CatalogPlace(number, time_ms, length, crc, spans_of(fields, place, item[4]))
        above = [found.rounds[0].first] if found.rounds else []
        if not all(last < each <= number for each in (*above, number)):
            raise fields.refusal(place, number, f"rounds and a number above {last}")
        if found.time_ms < last_ms or (found.rounds and found.rounds[-1].last != found.number):
            raise fields.refusal(place, found.time_ms, f"a time from {last_ms} on, and rounds up to the catalog's own")
        last, last_ms = found.number, found.time_ms
        yield found


def _intents(fields: json_file.Fields) -> Iterator[Intent]:
    for place, item in lists(fields, "intents", 3, MOST_INTENTS):
        if not isinstance(item[0], str) or object_keys.parse_file(item[0]) is None:
            raise fields.refusal(place, item[0], "the name of a segment's file")
        yield Intent(item[0], *numbers_of(fields, place, item[1:], (MOST_LENGTH, CRC_MAX)))


def _id(fields: json_file.Fields, name: str) -> str:
    value = fields.take(name)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise fields.refusal(name, value, "32 hexadecimal digits")
    return value
