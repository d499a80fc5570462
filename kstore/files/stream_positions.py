"""The positions of streaming queries, for monitors: the files `GROUP.json` in `<log directory>.kstore-positions`.

A query that reads takes no lock, so it cannot append to `__consumer_offsets`, which belongs to the process that has the
store. The files are beside the log directory, so that a reader changes nothing in it. No query reads its file: the
query's own checkpoint has its positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.disk import fs
from kstore.files import json_file, names
from kstore.files.json_file import Fields

POSITIONS = ".kstore-positions"
"""The suffix that makes a root's path the path of the directory with these files."""

SUFFIX = ".json"
MAX_BYTES = 32 << 20

_VERSION = 1
_ADVICE = "remove it: the query writes a new one"


class StreamPositions(NamedTuple):
    """The next offset of each partition that a group's query has read, and when the file was written."""

    group: str
    written_ms: int
    offsets: Mapping[tuple[str, int], int]


def write_positions(root: str, positions: StreamPositions) -> None:
    """Create or replace the file of a group, durably. Raises `StorageError`."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic, number in sorted(positions.offsets):
        by_topic.setdefault(topic, {})[str(number)] = positions.offsets[topic, number]
    data = {"version": _VERSION, "written_ms": positions.written_ms, "offsets": by_topic}
    fs.make_directories(f"{root}{POSITIONS}")
    fs.write_atomically(_path(root, positions.group), json.dumps(data, indent=1).encode() + b"\n")


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
    path = _path(root, group)
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
    fields.end()
    return StreamPositions(group, written_ms, offsets)


def _partition(path: str, topic: str, number: str) -> int:
    is_plain = number.isascii() and number.isdecimal() and len(number) <= 10
    if not is_plain or str(int(number)) != number or int(number) > INT_MAX:
        raise json_file.malformed(path, f"offsets has the partition {ascii(number)[:100]}", _ADVICE)
    try:
        names.partition_name(topic, int(number))
    except ValueError as error:
        raise json_file.malformed(path, f"offsets: {error}", _ADVICE) from None
    return int(number)


def _path(root: str, group: str) -> str:
    return f"{root}{POSITIONS}/{group}{SUFFIX}"
