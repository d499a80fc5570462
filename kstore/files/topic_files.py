"""The store's file of topics: their ids, partition counts, settings, and unfinished creations and deletions.

Kafka keeps these in its cluster's metadata; kstore has a copy of `kstore-topics.json` in every log directory of a
store. A broker ignores it. Invariant: an unreadable file is never treated as an empty one. A damaged file is an error
unless another directory has a sound one; a file of a later version is always an error.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import uuid
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from kstore.base.numbers import INT_MAX
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import checkpoint, json_file, names
from kstore.files.broker_directory import is_of_broker

logger = logging.getLogger("kstore")

TOPICS_FILE = "kstore-topics.json"
MAX_FILE_BYTES = 32 << 20
"""The largest size of the file: about two hundred thousand topics."""

INTERNAL_CONFIGS: Mapping[str, Mapping[str, str]] = {
    "__consumer_offsets": {"cleanup.policy": "compact"},
    "__transaction_state": {"cleanup.policy": "compact"},
    "__share_group_state": {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
}
"""The settings of topics of a broker's coordinators: no age or size limit may delete their newest values."""

State: TypeAlias = Literal["live", "creating", "deleting"]

MAX_PARTITIONS = 100_000
"""The most partitions of a topic (each is a directory), and of all topics in state "creating" together."""
MAX_GENERATION = 2**62

_VERSION = 1
_MAX_PARTITIONS = INT_MAX
_RESERVED_IDS = (0, 1)
_STATES = get_args(State)
_OWN_KEYS = ("topic_id", "partitions", "config", "state")


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The store's record of one topic. `config` has the topic's own settings as text, by Kafka's names.

    `extra` has the other fields of the file, unchanged. Thread-safe, as long as no caller changes `config`.
    """

    topic_id: uuid.UUID
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    state: State = "live"
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.topic_id, uuid.UUID) or self.topic_id.int in _RESERVED_IDS:
            raise ValueError(f"topic id {self.topic_id!r} is none: a UUID that is not reserved is needed")
        whole = isinstance(self.partitions, int) and not isinstance(self.partitions, bool)
        if not whole or not 1 <= self.partitions <= _MAX_PARTITIONS:
            raise ValueError(f"partitions {self.partitions!r} is no number in 1..{_MAX_PARTITIONS}")
        if self.state not in _STATES:
            raise ValueError(f"state {self.state!r} is none of {', '.join(_STATES)}")
        for name, value in self.config.items():
            if not isinstance(name, str) or not isinstance(value, str) or not json_file.is_text(name + value):
                raise ValueError(f"config {str(name)[:60]!a}: {str(value)[:60]!a} is not text")


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All topics of a store in one generation of the file. A change returns a new table, which `write` stores.

    `behind` has the roots whose file was missing, damaged or older when it was read; the next `write` replaces those.
    Thread-safe, since it is immutable.
    """

    generation: int = 0
    topics: Mapping[str, TopicRecord] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    behind: tuple[str, ...] = ()
    # Shared by all tables made from one read, so that no two writes, even failed ones, have the same generation.
    _generations: Iterator[int] = field(default_factory=lambda: itertools.count(1), repr=False, compare=False)

    def put(self, topic: str, record: TopicRecord) -> TopicTable:
        """Return a table with this record for the topic; raise `InvalidTopicError` for a name that Kafka forbids."""
        return self._changed({**self.topics, names.check_topic(topic): record})

    def remove(self, topic: str) -> TopicTable:
        return self._changed({name: record for name, record in self.topics.items() if name != topic})

    def find(self, topic: str, topic_id: uuid.UUID | None = None) -> TopicRecord | None:
        """Return a topic's record; None if there is none, or if the topic's directories have another id.

        `topic_id` is the id in a `partition.metadata`, None if there is no such file.
        """
        record = self.topics.get(topic)
        stale = record is not None and topic_id is not None and topic_id != record.topic_id
        return None if stale else record

    def write(self, roots: Iterable[str | os.PathLike[str]]) -> TopicTable:
        """Write this table to every root, durably, as a new generation; return the table that was written.

        Each file is replaced as a whole. An error other than a full disk is raised immediately, before later roots are
        written; the next opening may then find the old table or the new one. The caller may write the same table again
        without the root that failed. Roots with a full disk are in `behind` of the result; if all are full,
        `FullDiskError` is raised and nothing has changed.
        """
        written = TopicTable(next(self._generations), self.topics, self.extra, (), self._generations)
        data = written.to_bytes()
        full: dict[str, fs.FullDiskError] = {}
        paths = [os.fspath(root) for root in roots]
        for root in paths:
            try:
                fs.write_atomically(_path(root), data)
            except fs.FullDiskError as error:
                full[root] = error
        if full and len(full) == len(paths):
            raise full[paths[0]]
        return replace(written, behind=tuple(full))

    def _changed(self, topics: Mapping[str, TopicRecord]) -> TopicTable:
        return TopicTable(self.generation, topics, self.extra, self.behind, self._generations)

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        topics = {
            name: {
                **record.extra,
                "topic_id": checkpoint.format_topic_id(record.topic_id),
                "partitions": record.partitions,
                "config": dict(record.config),
                "state": record.state,
            }
            for name, record in self.topics.items()
        }
        content = {**self.extra, "version": _VERSION, "generation": self.generation, "topics": topics}
        content["crc32"] = _checksum(content)
        del content["topics"]
        lines = ",\n".join(f"{_text(name)}: {_text(topics[name])}" for name in sorted(topics))
        if self.generation > MAX_GENERATION:
            what = f"generation {self.generation}; {MAX_GENERATION} is the last"
            raise StorageError(errno.EOVERFLOW, what, TOPICS_FILE)
        data = f'{_text(content)[:-1]}, "topics": {{\n{lines}\n}}}}\n'.encode()
        if len(data) > MAX_FILE_BYTES:
            raise StorageError(errno.EFBIG, f"{len(data)} bytes of topics; {MAX_FILE_BYTES} are allowed", TOPICS_FILE)
        return data


def read_topics(roots: Iterable[str | os.PathLike[str]]) -> TopicTable:
    """Read the roots' files and return the sound table of the highest generation, an empty one if there is no file.

    Raises `StorageError`, which names the file, if a file has a later version, or is damaged and no root has a sound
    one. Otherwise damage is logged. Needs no lock, since the files are only ever replaced as a whole.
    """
    best = TopicTable()
    tables: dict[str, TopicTable | None] = {}
    damage: list[StorageError] = []
    for root in [os.fspath(path) for path in roots]:
        try:
            tables[root] = table = _read(_path(root))
        except _LaterVersionError:
            raise
        except StorageError as error:
            damage.append(error)
            tables[root] = None
            continue
        if table is None:
            continue
        if table.generation == best.generation and table != best:
            logger.warning("%s is another than that of the same generation in the roots before it", _path(root))
        elif table.generation > best.generation:
            best = table
    if damage and best.generation == 0:
        raise damage[0]
    for fault in damage:
        logger.warning("%s; generation %d of another directory holds", fault, best.generation)
    behind = tuple(root for root, table in tables.items() if table != best) if best.generation else ()
    return TopicTable(best.generation, best.topics, best.extra, behind, itertools.count(best.generation + 1))


class MissingPartition(NamedTuple):
    """A partition without a directory, though its topic exists. A checkpoint file in `root` names it with `offset`."""

    topic: str
    partition: int
    root: str
    offset: int


def missing_partitions(
    roots: Sequence[str], records: Mapping[str, TopicRecord], present: Container[checkpoint.Partition], here: Set[str]
) -> list[MissingPartition]:
    """Return the partitions that a checkpoint file of the roots names but that are not `present`, sorted.

    A topic's record says how many partitions it has. `here` has the topics with a directory. If such a topic has no
    record, only the lines of recovery points and log starts count: they are removed when a partition is deleted or
    moved away (SEMANTICS 13.8). Other topics have no missing partitions.
    """
    missing = []
    lasting: Container[checkpoint.Partition] | None = None
    for (topic, number), (root, offset) in sorted(checkpoint.find_marks(roots).items()):
        if (topic, number) in present or not 0 <= number < MAX_PARTITIONS:  # a damaged line may have any number
            continue
        record = records.get(topic)
        if record is not None:
            counts = record.state == "live" and number < record.partitions
        elif topic in here:
            if lasting is None:
                lasting = checkpoint.find_marks(roots, (checkpoint.RECOVERY_POINTS, checkpoint.LOG_STARTS))
            counts = (topic, number) in lasting
        else:
            counts = False
        if counts:
            missing.append(MissingPartition(topic, number, root, offset))
    return missing


def cleaned_topics(roots: Iterable[str | os.PathLike[str]]) -> frozenset[str] | None:
    """Return the topics that a log cleaner has cleaned; None if that cannot be read."""
    try:
        return frozenset(
            topic for root in roots for topic, _ in checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS)
        )
    except StorageError as error:
        logger.warning("%s; topics that a broker made are taken for compacted ones", error)
        return None


def cleans_itself(roots: Iterable[str | os.PathLike[str]], compacts: bool) -> bool:
    """Return whether the cleaner's checkpoint lines are the store's own: it compacts, and no broker wrote a root."""
    return compacts and not any(is_of_broker(os.fspath(root)) for root in roots)


def inherited_config(topic: str, cleaned: frozenset[str] | None) -> Mapping[str, str]:
    """Return the settings of a topic that has no record, as far as the disk shows them.

    A broker keeps its topics' settings elsewhere. If a topic that it compacts got the store's default policy, retention
    would delete records that compaction keeps. Therefore the policy is "compact" if the topic was `cleaned`, or if that
    is not known. Where the store `cleans_itself`, the caller passes an empty set: the lines say nothing of a broker.
    """
    if topic in INTERNAL_CONFIGS:
        return INTERNAL_CONFIGS[topic]
    return {"cleanup.policy": "compact"} if cleaned is None or topic in cleaned else {}


class _LaterVersionError(StorageError):
    """The file has a version that this release does not know; callers see a `StorageError`."""


def _read(path: str) -> TopicTable | None:
    try:
        data = fs.read_file(path, most_bytes=MAX_FILE_BYTES)
    except fs.MissingFileError:
        return None
    try:
        content = json_file.parse(data)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not an object")
        return _parse(content, path)
    except (ValueError, RecursionError) as error:
        reason = f"the file of topics is damaged: {str(error)[:300]}"
        how = "topics' settings are in no other place; 'kstore repair' says what of it can be kept"
        raise StorageError(errno.EBADMSG, f"{reason}; {how}", path) from None


@dataclass(frozen=True, slots=True)
class Salvage:
    """The readable part of a damaged file: the records that still parse.

    If `is_cut`, only the end of the file is missing, and the records are as they were written. Otherwise some byte of a
    record may have changed undetected: only the whole file has a checksum. Immutable.
    """

    topics: Mapping[str, TopicRecord]
    is_cut: bool


def salvage(root: str | os.PathLike[str]) -> Salvage | None:
    """Return the records of a root's damaged file that still parse; None if the file is missing or not damaged."""
    try:
        _read(_path(root))
        return None
    except _LaterVersionError:
        return None
    except StorageError as error:
        if error.errno != errno.EBADMSG:
            return None
    lines = fs.read_file(_path(root), most_bytes=MAX_FILE_BYTES).decode(errors="replace").split("\n")
    records: dict[str, TopicRecord] = {}
    unread = []
    for number, line in enumerate(lines):
        if number == 0 or line.rstrip(",") in ("", "}}"):
            continue
        try:
            ((name, fields),) = json_file.parse(f"{{{line.rstrip(',')}}}".encode()).items()
            records[names.check_topic(name)] = _parse_record(name, fields)
        except (ValueError, RecursionError):
            unread.append(number)
    ends = lines[-2:] == ["}}", ""]
    header_stands = lines[0].startswith('{"crc32": ') and lines[0].endswith('"topics": {')
    is_cut = not ends and header_stands and unread in ([], [len(lines) - 1])
    return Salvage(records, is_cut)


def _parse(content: dict[str, Any], path: str) -> TopicTable:
    """Return the table of a file's content; raise `ValueError` if the content is invalid.

    The checksum is computed in the same way in every version, so a file of a later version does not look damaged.
    """
    crc = content.pop("crc32", None)
    if crc != (computed := _checksum(content)) or type(crc) is not int:
        raise ValueError(f"crc32 is {ascii(crc)[:20]}, the content has {computed}")
    version = content.pop("version", None)
    if type(version) is int and version > _VERSION:
        what = f"version {str(version)[:20]} comes from a later release of kstore; {_VERSION} is known here"
        raise _LaterVersionError(errno.EBADMSG, what, path)
    if type(version) is not int or version != _VERSION:
        raise ValueError(f"the version is {ascii(version)[:40]}, not {_VERSION}")
    generation, topics = content.pop("generation", None), content.pop("topics", None)
    if type(generation) is not int or not 1 <= generation <= MAX_GENERATION or not isinstance(topics, dict):
        raise ValueError(f"a generation from 1 on and an object of topics are needed, not {str(generation)[:40]!r}")
    records = {names.check_topic(name): _parse_record(name, fields) for name, fields in topics.items()}
    to_make = sum(record.partitions for record in records.values() if record.state == "creating")
    if to_make > MAX_PARTITIONS:
        raise ValueError(f"{to_make} partitions are being created; {MAX_PARTITIONS} are allowed")
    return TopicTable(generation, records, content)


def _parse_record(name: str, fields: Any) -> TopicRecord:
    if not isinstance(fields, dict) or not isinstance(fields.get("config"), dict):
        raise ValueError(f"topic {name!r} is no object with a config")
    extra = {key: value for key, value in fields.items() if key not in _OWN_KEYS}
    try:
        topic_id = checkpoint.parse_topic_id(str(fields.get("topic_id")))
        return TopicRecord(topic_id, fields.get("partitions", 0), fields["config"], fields.get("state", "live"), extra)
    except (TypeError, ValueError) as error:
        raise ValueError(f"topic {name!r}: {error}") from None


def _checksum(content: Mapping[str, Any]) -> int:
    """Return a checksum of the file's content, independent of whitespace and of the order of keys."""
    return zlib.crc32(_text(content).encode())


def _text(content: object) -> str:
    return json.dumps(content, sort_keys=True, allow_nan=False)


def _path(root: str | os.PathLike[str]) -> str:
    return os.path.join(os.fspath(root), TOPICS_FILE)
