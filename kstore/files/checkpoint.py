"""Offset checkpoints, the marker of a clean shutdown, and a partition's topic id (FORMAT 1.7, 1.9, 1.10, 11).

Other writers' partitions share the checkpoint files of a root. Invariant: a change reads the file, changes only its own
lines and renames the new file into place under one lock.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import logging
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.base.times import is_settled
from kstore.disk import fs
from kstore.errors import InconsistentTopicIdError, StorageError
from kstore.files.names import PARTITION_METADATA

logger = logging.getLogger("kstore")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
LEADER_EPOCHS = "kstore-leader-epochs"
"""kstore's own file of the same form: the least leader epoch of each partition that `Store.become_leader` promoted."""
ROOT_CHECKPOINTS = (*OFFSET_CHECKPOINTS, LEADER_EPOCHS)
CLEAN_MARKER = ".kafka_cleanshutdown"

StrPath: TypeAlias = str | os.PathLike[str]
Partition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Partition, int]

MAX_CHECKPOINT_BYTES = 32 << 20
"""The largest size of a text checkpoint: about five hundred thousand partitions."""
_MAX_METADATA_BYTES = 64 << 10

_VERSION = 0
_INTEGER = re.compile(rb"[+-]?[0-9]{1,40}")
_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")
_RESERVED_UUIDS = (uuid.UUID(int=0), uuid.UUID(int=1))


# The common form of the text checkpoints


def parse_checkpoint(data: bytes, path: StrPath, fields: int) -> list[list[bytes]]:
    """Read a text checkpoint's entries as lists of `fields` fields; the first entry is in line 3 of the file.

    An empty file, or one with only the version line, has no entries. Raises `StorageError`, which names the line and
    the fault, if anything else is not a whole, well-formed file.
    """
    lines = data.splitlines()  # of bytes, so only at \n, \r and \r\n
    if lines and parse_integer(lines[0], INT_MAX, path, 1) != _VERSION:
        raise malformed(path, 1, f"version {lines[0][:40]!r} is not {_VERSION}")
    if len(lines) < 2:
        return []
    count = parse_integer(lines[1], INT_MAX, path, 2)
    entries = []
    for number, line in enumerate(lines[2:], 3):
        entries.append(line.split())
        if len(entries[-1]) != fields or line[:1].isspace():
            raise malformed(path, number, f"{line[:200]!r} has not {fields} fields")
    if len(entries) != count:
        raise malformed(path, 2, f"{count} entries are announced, {len(entries)} are there")
    return entries


def read_checkpoint(path: StrPath, fields: int) -> list[list[bytes]]:
    """Read a text checkpoint as `parse_checkpoint` does; raise `MissingFileError` if there is no file."""
    return parse_checkpoint(fs.read_file(path, most_bytes=MAX_CHECKPOINT_BYTES), path, fields)


def parse_integer(field: bytes, limit: int, path: StrPath, line: int) -> int:
    """Read an integer of a text file; raise `StorageError` for other text or a number outside of -limit-1..limit."""
    value = int(field) if _INTEGER.fullmatch(field) else None
    if value is None or not -limit - 1 <= value <= limit:
        raise malformed(path, line, f"{field[:40]!r} is no integer in {-limit - 1}..{limit}")
    return value


def format_checkpoint(entries: Iterable[Iterable[object]]) -> bytes:
    """Return the bytes of a text checkpoint."""
    lines = [" ".join(map(str, entry)) for entry in entries]
    return "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines)).encode()


def malformed(path: StrPath, line: int, reason: str) -> StorageError:
    """Return the error for a file whose text is malformed; a storage error, as in Kafka."""
    how = "'kstore repair' keeps what is whole"
    return StorageError(errno.EBADMSG, f"malformed in line {line}: {reason}; {how}", os.fspath(path))


# Offset checkpoints of a root


def read_offsets(root: StrPath, name: str) -> Offsets:
    """Read one of the `ROOT_CHECKPOINTS`; a missing or empty file has no offsets. Raises `StorageError` if malformed.

    Needs no lock, since the file is only ever replaced as a whole.
    """
    path = _join(root, name)
    try:
        entries = read_checkpoint(path, 3)
    except fs.MissingFileError:
        return {}
    offsets: Offsets = {}
    for line, (topic, partition, offset) in enumerate(entries, 3):
        number = parse_integer(partition, INT_MAX, path, line)
        try:
            key = (topic.decode(), number)
        except UnicodeDecodeError:
            raise malformed(path, line, f"{topic[:40]!r} is not UTF-8") from None
        offsets[key] = parse_integer(offset, LONG_MAX, path, line)
    return offsets


_Identity: TypeAlias = tuple[int, int, int, int]
_MOST_KEPT = 16
_kept: dict[str, tuple[_Identity, Offsets]] = {}  # by path: the files that `read_offset` read last


def read_offset(root: StrPath, name: str, partition: Partition) -> int | None:
    """Read one partition's line as `read_offsets` does; None if there is none.

    The content is cached, so that calls for many partitions read the file once. It is read again when the file was
    replaced. A file that was written just now is not cached, since a later change might not show in its times.
    """
    path = _join(root, name)
    try:
        found = fs.stat(path)
    except fs.MissingFileError:
        return None
    identity = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
    before, offsets = _kept.get(path, (None, {}))
    if before != identity:
        is_sure = is_settled(found.st_mtime_ns)  # checked before the read
        offsets = read_offsets(root, name)
        if is_sure:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[path] = identity, offsets
    return offsets.get(partition)


def write_offsets(root: StrPath, name: str, offsets: Mapping[Partition, int]) -> None:
    """Replace one of the `ROOT_CHECKPOINTS` as a whole, durably; only for the process that owns the root."""
    with fs.checkpoint_lock(root):
        _write(root, name, offsets)


def update_offsets(root: StrPath, name: str, changes: Mapping[Partition, int | None]) -> None:
    """Set the lines of some partitions, or remove them (None), durably and atomically; other lines are kept.

    Waits for other writers of the root. Writes nothing if nothing changes. Raises `StorageError` for a malformed file
    and does not change it: it may hold the only copy of other partitions' lines.
    """
    if not changes:
        return
    with fs.checkpoint_lock(root):
        _update(root, name, changes)


def forget_partitions(root: StrPath, partitions: Iterable[Partition]) -> None:
    """Remove partitions from all checkpoints of a root, as before a partition is created (SEMANTICS 13.8)."""
    gone = dict.fromkeys(partitions)
    with fs.checkpoint_lock(root):
        for name in ROOT_CHECKPOINTS:
            _update(root, name, gone)


def _update(root: StrPath, name: str, changes: Mapping[Partition, int | None]) -> None:
    before = read_offsets(root, name)
    merged = {**before, **changes}
    after = {partition: offset for partition, offset in merged.items() if offset is not None}
    if after != before:
        _write(root, name, after)


def format_offsets(offsets: Mapping[Partition, int]) -> bytes:
    """Return the bytes of one of the `ROOT_CHECKPOINTS`."""
    return format_checkpoint(sorted((topic, partition, offset) for (topic, partition), offset in offsets.items()))


def _write(root: StrPath, name: str, offsets: Mapping[Partition, int]) -> None:
    data, path = format_offsets(offsets), _join(root, name)
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise StorageError(errno.EFBIG, f"{len(data)} bytes of lines; {MAX_CHECKPOINT_BYTES} are allowed", path)
    fs.write_atomically(path, data)


# The marker of a clean shutdown


def write_clean_marker(root: StrPath, broker_epoch: int = -1) -> None:
    """Mark a root as shut down cleanly, the last step after logs and checkpoints are on the disk (SEMANTICS 13.5)."""
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    path = _join(root, CLEAN_MARKER)
    try:
        fs.write_file(path, text.encode())
    except fs.FullDiskError:
        if not fs.exists(path):
            raise  # otherwise the file exists without its text, and nothing depends on its text
    fs.sync_directory(root)


def find_clean_marker(root: StrPath) -> int | None:
    """Return the broker epoch in the marker, -1 if it has no readable one, None if there is no marker.

    Only the file's existence counts; its content never makes a root unclean.
    """
    try:
        said = json.loads(fs.read_file(_join(root, CLEAN_MARKER), most_bytes=_MAX_METADATA_BYTES))
    except fs.MissingFileError:
        return None
    except StorageError as error:
        if error.errno != errno.EFBIG:
            raise
        return -1
    except (ValueError, RecursionError):  # the file may hold any bytes, nested to any depth
        return -1
    epoch = said.get("brokerEpoch") if isinstance(said, dict) else None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) and abs(epoch) <= LONG_MAX else -1


def find_marks(
    roots: Iterable[str], files: Iterable[str] = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
) -> dict[Partition, tuple[str, int]]:
    """Return for each partition the greatest offset in its lines and the root that has that line.

    The partition's log end offset is at least that offset. Partitions whose lines are all 0 are left out.
    """
    greatest: dict[Partition, tuple[str, int]] = {}
    for root in roots:
        for name in files:
            for partition, offset in read_offsets(root, name).items():
                if offset > greatest.get(partition, (root, 0))[1]:
                    greatest[partition] = root, offset
    return greatest


def flushed_high_watermarks(root: StrPath) -> Offsets:
    """Return the high watermarks above their partitions' recovery points, for a root that was shut down cleanly.

    The shutdown flushed all data from the log start to these offsets (SEMANTICS 13.5). Without the marker only a
    recovery point shows this, so the recovery points must be raised to these offsets before the marker is removed.
    """
    lower = [read_offsets(root, name) for name in (RECOVERY_POINTS, LOG_STARTS)]
    watermarks = read_offsets(root, HIGH_WATERMARKS)
    return {key: offset for key, offset in watermarks.items() if offset > max(lines.get(key, 0) for lines in lower)}


def remove_clean_marker(root: StrPath) -> bool:
    """Remove the marker durably before a log is opened, so that a later crash is noticed; False if there was none.

    Kafka does not sync the removal. A marker that came back after a power cut would make damaged logs look clean.
    """
    if not fs.unlink(_join(root, CLEAN_MARKER)):
        return False
    fs.sync_directory(root)
    return True


# partition.metadata


class PartitionMetadata(NamedTuple):
    """The content of `partition.metadata`."""

    version: int
    topic_id: uuid.UUID


def new_topic_id() -> uuid.UUID:
    """Return a random topic id, as Kafka does: not a reserved one, and its text does not start with a dash."""
    while True:
        topic_id = uuid.uuid4()
        if topic_id not in _RESERVED_UUIDS and not format_topic_id(topic_id).startswith("-"):
            return topic_id


def format_topic_id(topic_id: uuid.UUID) -> str:
    """Return a topic id as text, as Kafka does: 22 characters of URL-safe base64 (FORMAT 1.8)."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def parse_topic_id(text: str) -> uuid.UUID:
    """Parse a topic id; raise `ValueError` for other text."""
    if not _UUID_TEXT.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no topic id: 22 characters of URL-safe base64 are needed")
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text[:22] + "=="))
    except binascii.Error as error:  # pragma: no cover - the pattern leaves nothing to refuse
        raise ValueError(f"{text!r} is no topic id: {error}") from None


def read_partition_metadata(directory: StrPath) -> PartitionMetadata | None:
    """Read a partition's `partition.metadata`; None if there is none. Raises `StorageError` if it is malformed.

    A file without content (`is_metadata_blank`) counts as missing, and is logged once as a warning.
    """
    path = _join(directory, PARTITION_METADATA)
    try:
        data = fs.read_file(path, most_bytes=_MAX_METADATA_BYTES)
    except fs.MissingFileError:
        return None
    if _is_blank(data):
        _warn_of_blank(path)
        return None
    lines = data.splitlines()
    fields = []
    for number in (0, 1):
        parts = re.split(rb":\s+", lines[number]) if number < len(lines) else []
        if len(parts) != 2:
            raise malformed(path, number + 1, "a key, a colon, a blank and a value are needed")
        fields.append(parts[1])
    version = parse_integer(fields[0], INT_MAX, path, 1)
    if version < 0:
        raise malformed(path, 1, f"version {version} is negative")
    try:
        topic_id = parse_topic_id(fields[1].decode("latin-1"))
    except ValueError as error:
        raise malformed(path, 2, str(error)) from None
    if topic_id == _RESERVED_UUIDS[0]:
        raise malformed(path, 2, "the topic id is all zeros, which stands for none")
    return PartitionMetadata(version, topic_id)


def is_metadata_blank(directory: StrPath) -> bool:
    """Return whether a partition's `partition.metadata` is empty or all zeros, as an unfinished copy leaves it."""
    try:
        return _is_blank(fs.read_file(_join(directory, PARTITION_METADATA), most_bytes=_MAX_METADATA_BYTES))
    except fs.MissingFileError:
        return False


def _is_blank(data: bytes) -> bool:
    return not data.strip(b"\0")


_MOST_TOLD = 10_000
_told: set[str] = set()  # blank files already warned of: each commit of a position reads them again


def _warn_of_blank(path: str) -> None:
    if path not in _told and len(_told) < _MOST_TOLD:
        _told.add(path)
        logger.warning("%s: empty, and counts as missing", path)


def ensure_partition_metadata(directory: StrPath, topic_id: uuid.UUID) -> None:
    """Write a partition's `partition.metadata`, durably, unless it exists with this id (SEMANTICS 13.7).

    A file without content is replaced. Raises `InconsistentTopicIdError` if the file has another id.
    """
    if topic_id == _RESERVED_UUIDS[0]:
        raise ValueError("a topic id of all zeros stands for none")
    metadata = read_partition_metadata(directory)
    if metadata is not None:
        if metadata.topic_id != topic_id:
            wanted, stored = format_topic_id(topic_id), format_topic_id(metadata.topic_id)
            raise InconsistentTopicIdError(f"{os.fspath(directory)} is of topic id {stored}, not of {wanted}")
        return
    fs.write_atomically(_join(directory, PARTITION_METADATA), format_partition_metadata(topic_id))


def format_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Return the bytes of a `partition.metadata`."""
    return f"version: {_VERSION}\ntopic_id: {format_topic_id(topic_id)}".encode()


def _join(directory: StrPath, name: str) -> str:
    return f"{os.fspath(directory).rstrip('/') or '/'}/{name}" if os.fspath(directory) else name
