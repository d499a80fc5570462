"""What a path on the command line means: a directory of logs, a topic in one, a partition, a file of one.

Reads directory names alone. A topic is written `DIR/TOPIC`, a partition `DIR/TOPIC-P`, as its directory is called.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from kstore import fs, names
from kstore.catalog import Entry, look
from kstore.config import LogConfig
from kstore.errors import ConfigError, InvalidTopicError, UnknownTopicOrPartitionError
from kstore.log import Log
from kstore.topics import read_topics

__all__ = ["Place", "find", "first_offset", "log_bytes", "overrides"]


@dataclass(frozen=True)
class Place:
    """What a path names: a `root` with its partitions, or some of them; `topic` and `partition` where one was named."""

    root: str
    entries: tuple[Entry, ...]
    topic: str | None = None
    partition: int | None = None
    passed_over: tuple[str, ...] = ()


def find(path: str, *, may_be_new: bool = False) -> Place:
    """Find out what `path` names.

    With `may_be_new` a partition, and a topic's name with a dash and a number behind it, need not exist. Raises
    `UnknownTopicOrPartitionError`, `ConfigError` for a file, or `StorageError` for a path that nothing is at.
    """
    full = os.path.abspath(path)
    name = os.path.basename(full)
    if fs.exists(full):
        if not os.path.isdir(full):
            raise ConfigError(f"{path} is a file: give its directory, or use 'kstore dump --files {path}'")
        if _is_partition(full, name):
            topic, number = names.parse_partition_name(name)[:2]
            return Place(os.path.dirname(full), (Entry(topic, number, os.path.dirname(full)),), topic, number)
        found = look([full])
        return Place(full, tuple(_in_order(found.entries)), passed_over=tuple(found.passed_over))
    root = os.path.dirname(full)
    if fs.exists(root):
        entries = tuple(_in_order(entry for entry in look([root]).entries if entry.topic == name))
        if entries:
            return Place(root, entries, name)
    if may_be_new:
        try:
            parsed = names.parse_partition_name(name)
        except InvalidTopicError as error:
            raise InvalidTopicError(f"{path}: no such topic is there; {path}-0 would be made") from error
        names.check_topic(parsed.topic)
        return Place(root, (), parsed.topic, parsed.partition)
    if not fs.exists(root):
        fs.stat(full)
    raise UnknownTopicOrPartitionError(f"{path}: no partition, no topic and no directory of logs is there")


def _is_partition(path: str, name: str) -> bool:
    try:
        parsed = names.parse_partition_name(name)
    except InvalidTopicError:
        return False
    if parsed.suffix:
        return False
    # A directory of logs may be called data-2: it is one if it has partitions in it, and no segment.
    entries = fs.scandir(path)
    if any(names.parse_file_name(entry.name) is not None for entry in entries):
        return True
    return not look([path]).entries


def _in_order(entries: object) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.key)  # type: ignore[call-overload, no-any-return]


def first_offset(place: Place, log: Log, offset: int | None) -> int | None:
    """Where reading from `offset` on begins: a partition of a whole topic may end before it, or begin after it."""
    if offset is None or place.partition is not None:
        return offset
    return min(max(offset, log.log_start_offset), log.log_end_offset)


def overrides(root: str, topic: str) -> LogConfig:
    """The settings that a store at `root` keeps for a topic, over the defaults."""
    record = read_topics([root]).find(topic)
    return LogConfig() if record is None else LogConfig().for_topic(record.config)


def log_bytes(path: str) -> int:
    """How many bytes are in the log files of a partition's directory, or in the one at `path`; 0 for anything else."""
    name = names.parse_file_name(os.path.basename(path))
    if name is not None:
        return fs.stat(path).st_size if name.kind == names.LOG else 0
    try:
        return sum(each.stat().st_size for each in fs.scandir(path) if each.name.endswith(".log"))
    except OSError:  # it goes while we look: who reads it says so
        return 0
