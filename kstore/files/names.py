"""Builds, parses and checks names of topics, partition directories and segment files (FORMAT 1.2, 1.3).

Invariant: a directory name is split at its last `-`, since topic names may have dashes, and only after a transitional
suffix (`-delete`, `-stray`, `-future`) is removed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.errors import InvalidTopicError

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_KINDS = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
"""The files of one segment, in the order in which they are renamed and unlinked (SEMANTICS 6.12)."""

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
FUTURE_DIRECTORY = "-future"

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
METADATA_TOPIC = "__cluster_metadata"

MAX_TOPIC_LENGTH = 249
MAX_NAME_LENGTH = 255

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION = re.compile(r"\+?[0-9]+")
_TRANSITIONAL = re.compile(r"\S+-\S+\.(\S+)(-delete|-stray|-future)", re.ASCII)
_MOST_DIGITS = f"{LONG_MAX:020}"
_FILE = re.compile(r"([0-9]+)(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(|\.deleted|\.cleaned|\.swap)")


class FileName(NamedTuple):
    """The parts of a file's name: offset, kind (`.log`, …) and state (`""`, `.deleted`, `.cleaned`, `.swap`).

    `str()` builds the name with 20 digits, as Kafka does.
    """

    offset: int
    kind: str
    state: str = ""

    def __str__(self) -> str:
        return file_name(self.offset, self.kind, self.state)


class PartitionName(NamedTuple):
    """The parts of a partition directory's name; `suffix` and `unique_id` are `""` unless the name is transitional.

    In a `-delete` or `-stray` name the topic may be cut short.
    """

    topic: str
    partition: int
    suffix: str = ""
    unique_id: str = ""


def file_name(offset: int, kind: str, state: str = "") -> str:
    """Build the name of a segment's file or of a snapshot; raise `ValueError` unless the offset is in 0..2^63-1."""
    if not 0 <= offset <= LONG_MAX:
        raise ValueError(f"offset {offset} is not in 0..{LONG_MAX}, so it names no file")
    return f"{offset:020d}{kind}{state}"


def log_name(offset: int) -> str:
    return file_name(offset, LOG)


def index_name(offset: int) -> str:
    return file_name(offset, OFFSET_INDEX)


def time_index_name(offset: int) -> str:
    return file_name(offset, TIME_INDEX)


def txn_index_name(offset: int) -> str:
    """Build the name of a segment's index of aborted transactions."""
    return file_name(offset, TXN_INDEX)


def snapshot_name(offset: int) -> str:
    """Build the name of the snapshot with the producers' state below this offset."""
    return file_name(offset, SNAPSHOT)


def parse_file_name(name: str) -> FileName | None:
    """Parse the name of a segment's file or of a snapshot; return None for any other name.

    Any number of digits is accepted, as in Kafka; `str(parsed) == name` says whether Kafka would write this name.
    """
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    digits, kind, state = match.groups()
    offset = _parse_digits(digits, LONG_MAX)
    return None if offset is None else FileName(offset, kind, state)


def offsets_by_kind(entries: Iterable[str]) -> dict[str, list[int]]:
    """Group the offsets in the names of segment files and snapshots by kind; names with a state are left out.

    Parses as `parse_file_name` does, but makes no object for each of possibly hundreds of thousands of names.
    """
    offsets: dict[str, list[int]] = {kind: [] for kind in (*SEGMENT_KINDS, SNAPSHOT)}
    for name in entries:
        digits, of_kind = name[:20], offsets.get(name[20:])
        if of_kind is not None and digits.isascii() and digits.isdigit() and digits <= _MOST_DIGITS:
            of_kind.append(int(digits))
        elif (file := parse_file_name(name)) is not None and not file.state:
            offsets[file.kind].append(file.offset)
    return offsets


def parse_offset(name: str) -> int | None:
    """Return the offset before the first `.` of any name, whatever follows; None if there is none (SEMANTICS 8.6)."""
    digits, dot, _ = name.partition(".")
    return _parse_digits(digits, LONG_MAX) if dot and digits.isascii() and digits.isdigit() else None


def check_topic(topic: str) -> str:
    """Return the topic, or raise `InvalidTopicError` with the rule that it breaks (FORMAT 1.2)."""
    if not isinstance(topic, str):
        raise InvalidTopicError(f"a topic is a str, not {type(topic).__name__}")
    if not topic:
        raise InvalidTopicError("a topic's name cannot be empty")
    if topic in (".", ".."):
        raise InvalidTopicError(f"a topic cannot be named {topic!r}")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise InvalidTopicError(f"topic {topic[:60]!r}... has {len(topic)} characters; {MAX_TOPIC_LENGTH} are allowed")
    if not _TOPIC.fullmatch(topic):
        raise InvalidTopicError(f"topic {topic!r} has characters other than ASCII letters, digits, '.', '_' and '-'")
    return topic


def metric_name(topic: str) -> str:
    """Return a topic's name in metrics, which do not distinguish `.` and `_`."""
    return topic.replace(".", "_")


def partition_name(topic: str, partition: int) -> str:
    """Build a partition directory's name; raise `InvalidTopicError` for a bad topic or partition number."""
    return f"{check_topic(topic)}-{_check_partition(partition)}"


def delete_directory_name(topic: str, partition: int) -> str:
    """Build a unique name for a partition directory that awaits its removal; a long topic is cut short to fit."""
    tail = f"-{_check_partition(partition)}.{uuid.uuid4().hex}{DELETE_DIRECTORY}"
    return check_topic(topic)[: MAX_NAME_LENGTH - len(tail)] + tail


def parse_partition_name(name: str) -> PartitionName:
    """Parse a partition directory's name, or raise `InvalidTopicError` (FORMAT 1.2; SEMANTICS 0.7).

    The topic is not checked, since a name may be cut for deletion or written by another tool.
    """
    suffix = unique_id = ""
    rest = name
    if name.endswith((DELETE_DIRECTORY, STRAY_DIRECTORY, FUTURE_DIRECTORY)):
        match = _TRANSITIONAL.fullmatch(name)
        if match is None:
            raise _no_partition(name, "a transitional name is topic-partition.id-suffix")
        suffix = match[2]
        rest, _, tail = name.rpartition(".")
        unique_id = tail.removesuffix(suffix)
    topic, dash, digits = rest.rpartition("-")
    if not dash:
        raise _no_partition(name, f"it has no '-'{_suggested(name)}")
    if not topic:
        raise _no_partition(name, "the topic is empty")
    partition = _parse_digits(digits, INT_MAX) if _PARTITION.fullmatch(digits) else None
    if partition is None:
        raise _no_partition(name, f"{digits!r} is no partition number in 0..{INT_MAX}{_suggested(name)}")
    return PartitionName(topic, partition, suffix, unique_id)


def _suggested(name: str) -> str:
    """Return a hint with the directory name of partition 0 if `name` is a valid topic name, otherwise ""."""
    is_topic = _TOPIC.fullmatch(name) and name not in (".", "..") and len(name) <= MAX_TOPIC_LENGTH
    return f"; partition 0 of a topic {name!r} is '{name}-0'" if is_topic else ""


def is_partition_name(name: str) -> bool:
    try:
        parse_partition_name(name)
    except InvalidTopicError:
        return False
    return True


def _parse_digits(digits: str, limit: int) -> int | None:
    digits = digits.lstrip("+").lstrip("0") or "0"
    if len(digits) > 19:  # no 64-bit number has more, and int() raises its own error for thousands of digits
        return None
    value = int(digits)
    return value if value <= limit else None


def _check_partition(partition: int) -> int:
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition <= INT_MAX:
        raise InvalidTopicError(f"partition {partition!r} is no number in 0..{INT_MAX}")
    return partition


def _no_partition(name: str, reason: str) -> InvalidTopicError:
    return InvalidTopicError(f"{name!r} is no partition directory: {reason}")
