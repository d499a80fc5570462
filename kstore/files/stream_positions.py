"""The positions of streaming queries and of exports: the files `GROUP.json` in `<log directory>.kstore-positions`.

A query that reads takes no lock, so it cannot append to `__consumer_offsets`, which belongs to the process that has the
store; nor can an export. The files are beside the log directory, so that a reader changes nothing in it. A query's file
is for monitors: the query's own checkpoint has its positions. An export goes on from its file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.disk import fs
from kstore.errors import ConfigError
from kstore.files import checkpoint, json_file, names
from kstore.files.json_file import Fields

POSITIONS = ".kstore-positions"
"""The suffix that makes a root's path the path of the directory with these files."""

SUFFIX = ".json"
MAX_BYTES = 32 << 20

_VERSION = 1
_ADVICE = "remove it: the query writes a new one, an export with this group starts anew"


class StreamPositions(NamedTuple):
    """The next offset of each partition that a group has read, and when the file was written.

    An export's file has the ids of the topics that have one; None for a query's.
    """

    group: str
    written_ms: int
    offsets: Mapping[tuple[str, int], int]
    topic_ids: Mapping[str, str] | None = None


def check_group(group: str, option: str) -> None:
    """Raise `ConfigError` for a group that cannot be part of a file's name."""
    try:
        names.check_topic(group)
        names.check_topic(f"{group}{SUFFIX}")
    except ValueError as error:
        raise ConfigError(
            f"{option} is {group[:300]!r}; the characters of a topic's name are allowed: {error}"
        ) from None


def write_positions(root: str, positions: StreamPositions) -> None:
    """Create or replace the file of a group, durably. Raises `StorageError`."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic, number in sorted(positions.offsets):
        by_topic.setdefault(topic, {})[str(number)] = positions.offsets[topic, number]
    data: dict[str, object] = {"version": _VERSION, "written_ms": positions.written_ms, "offsets": by_topic}
    if positions.topic_ids is not None:
        data["topic_ids"] = dict(sorted(positions.topic_ids.items()))
    fs.make_directories(f"{root}{POSITIONS}")
    fs.write_atomically(positions_path(root, positions.group), json.dumps(data, indent=1).encode() + b"\n")


def read_positions(root: str) -> list[StreamPositions]:
    """Read the files of all groups, sorted by name; raise `StorageError` if one is malformed."""
    read = (read_group(root, group) for group in groups_with_positions(root))
    return [positions for positions in read if positions is not None]


def groups_with_positions(root: str) -> list[str]:
    """Return the names of the groups that have a file, sorted; a name may be any that a file can have."""
    directory = f"{root}{POSITIONS}"
    found = fs.listdir(directory) if fs.exists(directory) else []
    return sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX))


def read_group(root: str, group: str) -> StreamPositions | None:
    """Read the file of one group; None if there is none. Raises `StorageError` if it is malformed."""
    path = positions_path(root, group)
    fields = json_file.read(path, MAX_BYTES, _VERSION, _ADVICE)
    if fields is None:
        return None
    written_ms = fields.integer("written_ms", 0, LONG_MAX)
    offsets: dict[tuple[str, int], int] = {}
    for topic, by_number in fields.mapping("offsets").items():
        numbers = Fields(by_number, path, f"offsets.{ascii(topic)[:100]}.", _ADVICE)
        for number in by_number:
            place = topic, _partition(path, topic, number)
            offsets[place] = numbers.integer(number, 0, LONG_MAX)
    topic_ids = _topic_ids(fields) if fields.has("topic_ids") else None
    fields.end()
    return StreamPositions(group, written_ms, offsets, topic_ids)


def _topic_ids(fields: Fields) -> Mapping[str, str]:
    found = fields.mapping("topic_ids")
    for topic, topic_id in found.items():
        try:
            names.check_topic(topic)
            checkpoint.parse_topic_id(fields.text_of("topic_ids", topic_id))
        except ValueError as error:
            raise json_file.malformed(fields.path, f"topic_ids: {error}", _ADVICE) from None
    return found


def _partition(path: str, topic: str, number: str) -> int:
    is_plain = number.isascii() and number.isdecimal() and len(number) <= 10
    if not is_plain or str(int(number)) != number or int(number) > INT_MAX:
        raise json_file.malformed(path, f"offsets has the partition {ascii(number)[:100]}", _ADVICE)
    try:
        names.partition_name(topic, int(number))
    except ValueError as error:
        raise json_file.malformed(path, f"offsets: {error}", _ADVICE) from None
    return int(number)


def positions_path(root: str, group: str) -> str:
    """Return the path of a group's file."""
    return f"{root}{POSITIONS}/{group}{SUFFIX}"
