"""Builds the names of a backup's objects, and parses them as untrusted input.

Invariant: a key is accepted only if its parsed parts build exactly the same key.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kstore.base.numbers import LONG_MAX
from kstore.errors import BackupError, InvalidTopicError
from kstore.files import names

MANIFEST = "kstore-backup.json"
ROUND = ".round"
CATALOG = ".catalog"

KINDS = (*names.SEGMENT_KINDS, names.SNAPSHOT)
"""The kinds of files that a backup has of a segment, including the producer snapshot at its base offset."""

_NUMBERED = re.compile(r"kstore-backup-([0-9]{20})(\.round|\.catalog)")
_SUFFIX = re.compile(r"[1-9][0-9]{0,18}-(0|[1-9][0-9]{0,18})")


class FileKey(NamedTuple):
    """A segment's file in a backup: `orders-0/00000000000000000000.log`, then a dot and `suffix` unless it is empty."""

    topic: str
    partition: int
    base_offset: int
    kind: str
    suffix: str = ""

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}/{names.file_name(self.base_offset, self.kind)}"
        return f"{name}.{self.suffix}" if self.suffix else name


def round_key(number: int) -> str:
    return f"kstore-backup-{number:020d}{ROUND}"


def catalog_key(number: int) -> str:
    """Build the name of the catalog that holds the state after this round."""
    return f"kstore-backup-{number:020d}{CATALOG}"


def suffix_of(generation: int, number: int) -> str:
    """Build the suffix for a file whose plain name is taken; no other writer builds the same suffix."""
    return f"{generation}-{number}"


def is_suffix(text: object) -> bool:
    """Return whether `text` is a suffix or empty."""
    return isinstance(text, str) and (not text or _SUFFIX.fullmatch(text) is not None)


def parse_numbered(key: str) -> tuple[int, str] | None:
    """Return the number of a round or catalog, and `ROUND` or `CATALOG`; None for another name."""
    match = _NUMBERED.fullmatch(key)
    if match is None or int(match[1]) > LONG_MAX:
        return None
    return int(match[1]), match[2]


def parse_file(key: str) -> FileKey | None:
    """Return the parts of the name of a segment's file; None for another name."""
    directory, slash, name = key.partition("/")
    if not slash or len(key) > 2 * names.MAX_NAME_LENGTH:
        return None
    for kind in KINDS:
        digits, found, suffix = name.partition(kind)
        if found and len(digits) == 20 and digits.isascii() and digits.isdigit():
            try:
                place = names.parse_partition_name(directory)
                built = FileKey(names.check_topic(place.topic), place.partition, int(digits), kind, suffix[1:])
                is_its = is_suffix(built.suffix) and str(built) == key and not place.suffix
            except (InvalidTopicError, ValueError):
                return None
            if is_its:
                return built
    return None


def place_of(key: str) -> tuple[str, int] | None:
    """Return the topic and number of the partition that an object belongs to; None if it belongs to none."""
    file = parse_file(key)
    if file is not None:
        return file.topic, file.partition
    if is_small_file(key):
        place = names.parse_partition_name(key.partition("/")[0])
        return place.topic, place.partition
    return None


def is_small_file(key: str) -> bool:
    """Whether the object is a `partition.metadata` or `leader-epoch-checkpoint`, which only other tools read."""
    directory, _, name = key.partition("/")
    try:
        place = names.parse_partition_name(directory)
        is_place = names.partition_name(place.topic, place.partition) == directory and not place.suffix
    except InvalidTopicError:
        return False
    return is_place and name in (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT)


def check(key: str) -> str:
    """Return the key if it names an object of a backup, but not the manifest; raises `BackupError` otherwise."""
    if not isinstance(key, str) or not (parse_numbered(key) or parse_file(key) or is_small_file(key)):
        raise BackupError(f"{str(key)[:80]!a} is no name of a backup's object")
    return key
