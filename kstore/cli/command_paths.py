"""Resolves a path on the command line to a directory of logs, a topic in one (`DIR/TOPIC`) or a partition.

A partition is written `DIR/TOPIC-P`, the path of its directory. Only names of directories and files are read.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import ConfigError, InvalidTopicError, UnknownTopicOrPartitionError
from kstore.files import checkpoint, names
from kstore.files.broker_directory import is_of_broker, of_brokers
from kstore.files.topic_files import cleaned_topics, cleans_itself, inherited_config, read_topics
from kstore.store import disk_usage
from kstore.store.catalog import Entry, look

if TYPE_CHECKING:
    from kstore.log.log import Log

__all__ = [
    "Place",
    "find",
    "find_topic",
    "first_offset",
    "kept_settings",
    "log_bytes",
    "note_on_broker",
    "overrides",
    "refuse_empty",
    "settings_in_force",
]


@dataclass(frozen=True)
class Place:
    """A resolved path: the partitions `entries` in `root`, with `topic` and `partition` if the path names them."""

    root: str
    entries: tuple[Entry, ...]
    topic: str | None = None
    partition: int | None = None
    passed_over: tuple[str, ...] = ()


def find(path: str, *, may_be_new: bool = False) -> Place:
    """Resolve a path.

    With `may_be_new` a partition `DIR/TOPIC-P` need not exist. Raises `UnknownTopicOrPartitionError` if the parent
    directory exists and has nothing of this name, `StorageError` if the parent does not exist either, and
    `ConfigError` for a file or an empty path.
    """
    if not path:
        raise ConfigError("the path is empty; '.' is the current directory")
    full = fs.absolute(path)
    name = os.path.basename(full)
    if fs.exists(full):
        if not fs.is_directory(full):
            raise ConfigError(f"{path} is a file: give its directory, or use 'kstore dump --files {path}'")
        if _is_partition(full, name):
            topic, number = names.parse_partition_name(name)[:2]
            return Place(os.path.dirname(full), (Entry(topic, number, os.path.dirname(full)),), topic, number)
        contents = look([full])
        return Place(full, tuple(_in_order(contents.entries)), passed_over=tuple(contents.passed_over))
    root = os.path.dirname(full)
    if fs.exists(root):
        entries = tuple(_in_order(entry for entry in look([root]).entries if entry.topic == name))
        if entries:
            return Place(root, entries, name)
    if may_be_new:
        try:
            parsed = names.parse_partition_name(name)
        except InvalidTopicError as error:
            raise InvalidTopicError(
                f"{path}: there is no such topic; {path}-0 would name a partition to create"
            ) from error
        names.check_topic(parsed.topic)
        return Place(root, (), parsed.topic, parsed.partition)
    if not fs.exists(root):
        fs.stat(full)
    raise UnknownTopicOrPartitionError(f"{path}: there is no partition, topic or directory of logs of this name")


def find_topic(path: str, *, may_be_new: bool = False) -> Place:
    """Resolve a path like `find`, but refuse it unless it names a topic or a partition."""
    place = find(path, may_be_new=may_be_new)
    if place.topic is None:
        refuse_empty(place, path)
        raise ConfigError(f"{path} is a directory of logs: name a topic or a partition of it")
    return place


def refuse_empty(place: Place, path: str) -> None:
    """Raise `UnknownTopicOrPartitionError` for a directory without a partition."""
    if place.topic is None and not place.entries:
        raise UnknownTopicOrPartitionError(f"there is no partition in {path}")


def _is_partition(path: str, name: str) -> bool:
    try:
        parsed = names.parse_partition_name(name)
    except InvalidTopicError:
        return False
    if parsed.suffix:
        return False
    # A directory of logs may be named data-2: it contains partitions and no segment.
    entries = fs.scandir(path)
    if any(names.parse_file_name(entry.name) is not None for entry in entries):
        return True
    return not look([path]).entries


def _in_order(entries: object) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.key)  # type: ignore[call-overload, no-any-return]


def first_offset(place: Place, log: Log, offset: int | None) -> int | None:
    """Return the offset to read from. For a whole topic the offset is moved into the partition's range."""
    if offset is None or place.partition is not None:
        return offset
    return min(max(offset, log.log_start_offset), log.log_end_offset)


def overrides(root: str, topic: str) -> LogConfig:
    """Return the configuration of a topic: the defaults, and the settings that a store at `root` keeps for it."""
    record = read_topics([root]).find(topic)
    return LogConfig() if record is None else LogConfig().for_topic(record.config)


def kept_settings(
    root: str, topic: str, topic_id: uuid.UUID | None = None, *, compacts: bool = False
) -> Mapping[str, str]:
    """Return the settings that a store at `root` keeps for a topic.

    Without a record of the topic, return what the disk shows: the policy `compact` if a log cleaner has cleaned the
    topic or if that is not known. Internal topics have fixed settings. `compacts` says whether the store's own policy
    has `compact`: outside of a broker's directory the cleaner is then the store's.
    """
    record = read_topics([root]).find(topic, topic_id)
    if record is not None:
        return record.config
    return inherited_config(topic, frozenset() if cleans_itself([root], compacts) else cleaned_topics([root]))


def settings_in_force(directory: str, given: Mapping[str, str] | None) -> LogConfig:
    """Return the settings of the log in a partition's directory: those given, and over them those kept for its topic.

    Raises `StorageError` if the partition's topic id cannot be read.
    """
    root, name = os.path.split(directory)
    metadata = checkpoint.read_partition_metadata(directory)
    topic_id = None if metadata is None else metadata.topic_id
    config = LogConfig.resolve(given)
    topic = names.parse_partition_name(name).topic
    return config.for_topic(kept_settings(root, topic, topic_id, compacts=config.compacts))


def note_on_broker(paths: Iterable[str], given: Mapping[str, str] | None, setting: str, default: str) -> str | None:
    """Return a note that a broker may have another value of `setting` than kstore's default; None if none is needed.

    `paths` are data directories, topics and partitions. `given` has the settings of the command line. `default` is a
    sentence about the defaults.
    """
    [row] = [row for row in LogConfig.settings if row.name == setting]
    if {setting, *(at.name for at in row.broker_names)} & set(given or ()):
        return None
    brokers = [root for root in dict.fromkeys(find(path).root for path in paths) if is_of_broker(root)]
    return of_brokers(brokers, default, setting) if brokers else None


def log_bytes(path: str) -> int:
    """Return the size of the log files in a partition's directory, or of one log file; 0 for anything else."""
    name = names.parse_file_name(os.path.basename(path))
    if name is not None:
        return fs.stat(path).st_size if name.kind == names.LOG else 0
    return disk_usage.log_bytes(path)  # 0 if it was just deleted: the command reports that when it reads the directory
