"""The commits of a consumer of a store that only reads: `kstore-commits-ID` in the store's first log directory.

The process of the consumer writes its positions; the process of the store takes them in and writes how far.
docs/format.md has the layout. The file is locked while its consumer exists. Invariant: each write goes to a slot that
holds neither the newest state nor the newest synced one, so that neither the end of the process nor a power failure
damages a state that was promised.
"""

from __future__ import annotations

import errno
import re
import struct
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from kstore._core import crc32c
from kstore.base.numbers import INT_MAX
from kstore.codec.coordinator import group_records
from kstore.codec.coordinator.group_records import OffsetKey, Position, SchemaError
from kstore.disk import fs, newfiles
from kstore.errors import InvalidTopicError, StorageError
from kstore.files import names

__all__ = ["Commit", "CommitFile", "Contents", "TakenFile", "find", "read", "taking"]

PREFIX = "kstore-commits-"
SLOT_BYTES = 4 << 20
"""The room of a slot: the positions of about thirty thousand partitions. The file is sparse."""

MAX_TIMESTAMP = 1 << 48
"""The largest timestamp of a commit: the year 10889."""

_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{32}}")
_MAGIC = b"kcommits"
_HEAD_BYTES = 4096
_SLOTS = 3
_TAKEN_AT = len(_MAGIC)
_TAKEN = struct.Struct(">qI")  # sequence, CRC
_FRAME = struct.Struct(">iI")  # length of the state, CRC
_STATE = struct.Struct(">hqi")  # version, sequence, number of commits
_LENGTH = struct.Struct(">i")
_SEQUENCE = struct.Struct(">q")
_VERSION = 1
_FIRST_READ = 4096
_LOOKS = 3  # at a file that its consumer writes meanwhile


class Commit(NamedTuple):
    """A committed position; `sequence` is the number of the consumer's commit that moved it last."""

    sequence: int
    key: OffsetKey
    position: Position

    @property
    def place(self) -> tuple[str, int]:
        """The topic and the number of the partition."""
        return self.key.topic, self.key.partition


class Contents(NamedTuple):
    """The newest state of a file, and the sequence number up to which the store has taken commits in."""

    taken: int
    sequence: int
    commits: tuple[Commit, ...]

    @property
    def waiting(self) -> list[Commit]:
        """The commits that the store has not taken in."""
        return [commit for commit in self.commits if commit.sequence > self.taken]


class CommitFile:
    """The writing end, which belongs to the consumer's process. In a forked child it is closed. Not thread-safe."""

    def __init__(self, root: str) -> None:
        """Create a file in a log directory, durably, and lock it."""
        self.path = f"{root}/{PREFIX}{uuid.uuid4().hex}"
        self._newest = self._synced = -1
        self._handles = fs.Handles()
        self._fd = self._handles.add(newfiles.new_locked(self.path))
        try:
            fs.pwrite(self._fd, _MAGIC + _taken_bytes(0), 0)
            fs.fsync(self._fd)
            fs.sync_directory(root)
        except BaseException:
            self.close()
            with suppress(StorageError):
                fs.unlink(self.path)
            raise

    @property
    def is_gone(self) -> bool:
        """Whether the file was closed or deleted."""
        return self._handles.closed or fs.fstat(self._fd).st_nlink == 0

    def taken(self) -> int:
        """Return the sequence number up to which the store has taken the commits in."""
        return _taken_in(fs.pread(self._fd, _TAKEN.size, _TAKEN_AT))

    def write(self, sequence: int, commits: Iterable[Commit], *, sync: bool) -> None:
        """Write a state with a new sequence number; with `sync` it is durable when this returns.

        After an error the former state is unchanged, and the sequence number must not be used again. Raises
        `StorageError` (EFBIG) if the state is too large.
        """
        state = _encode(sequence, commits, self.path)
        slot = next(slot for slot in range(_SLOTS) if slot not in (self._newest, self._synced))
        fs.pwrite(self._fd, _FRAME.pack(len(state), crc32c(state)) + state, _place_of(slot))
        if sync:
            fs.fdatasync(self._fd)
            self._newest = self._synced = slot
        else:
            self._newest = slot

    def flush(self) -> None:
        """Make the newest state durable."""
        if self._synced != self._newest:
            newest = self._newest
            fs.fdatasync(self._fd)
            self._synced = newest

    def close(self) -> None:
        """Unlock the file: the store removes it once its commits are taken in. Idempotent."""
        if not self._handles.closed:
            newfiles.unlock(self._fd)
            self._handles.close()


def find(root: str) -> list[str]:
    """Return the paths of the files in a log directory. Links, pipes and directories are none."""
    return [
        f"{root}/{entry.name}"
        for entry in fs.scandir(root)
        if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
    ]


def read(path: str) -> Contents | None:
    """Read a file; None if it is gone. Raises `StorageError` if its content is not valid."""
    try:
        fd = fs.open(path)
    except fs.MissingFileError:
        return None
    with fs.closing(fd):
        return _read(fd, path)


class TakenFile:
    """The taking end, which belongs to the store. Not thread-safe."""

    def __init__(self, fd: int, path: str, *, writable: bool) -> None:
        self.path = path
        self._fd = fd
        self._writable = writable
        self.is_left = newfiles.try_lock(fd)
        """Whether its consumer is gone."""
        self.contents = _read(fd, path)

    def mark_taken(self) -> None:
        """Note, durably, that all commits of `contents` are taken in and flushed."""
        if self.contents.taken < self.contents.sequence:
            if not self._writable:
                what = "the store's process may not write this file, so that its commits may be taken in again"
                raise StorageError(errno.EACCES, what, self.path)
            fs.pwrite(self._fd, _taken_bytes(self.contents.sequence), _TAKEN_AT)
            fs.fdatasync(self._fd)

    def remove(self) -> None:
        """Delete the file, whose consumer is gone and whose commits are taken in."""
        if fs.is_at(self._fd, self.path):
            fs.unlink(self.path)

    def unlock(self) -> None:
        if self.is_left:
            newfiles.unlock(self._fd)


@contextmanager
def taking(path: str) -> Iterator[TakenFile | None]:
    """Open a file to take its commits in; None if it is gone. A consumer that is gone is kept out until the end."""
    writable = True
    try:
        try:
            fd = fs.open(path, write=True)
        except StorageError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            writable, fd = False, fs.open(path)
    except fs.MissingFileError:
        yield None
        return
    with fs.closing(fd):
        file = None
        try:
            file = TakenFile(fd, path, writable=writable)
            yield file
        finally:
            if file is not None:
                file.unlock()


# Bytes.


def _place_of(slot: int) -> int:
    return _HEAD_BYTES + slot * SLOT_BYTES


def _taken_bytes(sequence: int) -> bytes:
    return _TAKEN.pack(sequence, crc32c(_SEQUENCE.pack(sequence)))


def _taken_in(data: bytes) -> int:
    if len(data) < _TAKEN.size:
        return 0
    sequence, crc = _TAKEN.unpack(data)
    return sequence if sequence > 0 and crc == crc32c(data[: _SEQUENCE.size]) else 0


def _encode(sequence: int, commits: Iterable[Commit], path: str) -> bytes:
    parts = []
    count = 0
    for commit in commits:
        key = group_records.offset_key(*commit.key)
        value = group_records.offset_value(commit.position)
        parts += [_SEQUENCE.pack(commit.sequence), _LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value]
        count += 1
    state = b"".join((_STATE.pack(_VERSION, sequence, count), *parts))
    if _FRAME.size + len(state) > SLOT_BYTES:
        what = f"the positions of {count} partitions take {len(state)} bytes; {SLOT_BYTES - _FRAME.size} are allowed"
        raise StorageError(errno.EFBIG, what, path)
    return state


def _read(fd: int, path: str) -> Contents:
    """Read the newest state; look again if the consumer was writing one of the slots."""
    looks = 0
    while True:
        looks += 1
        head = fs.pread(fd, _TAKEN_AT + _TAKEN.size, 0)
        if head.strip(b"\0") and not head.startswith(_MAGIC):
            raise _malformed(path, f"it starts with {head[: len(_MAGIC)]!r}")
        states = [_state_in(fd, slot) for slot in range(_SLOTS)]
        if None not in states or looks == _LOOKS:
            break
    newest = max(filter(None, states), key=_sequence_of, default=b"")
    if not newest:
        return Contents(_taken_in(head[_TAKEN_AT:]), 0, ())
    return _parse(newest, _taken_in(head[_TAKEN_AT:]), path)


def _state_in(fd: int, slot: int) -> bytes | None:
    """Return the state in a slot, empty if the slot was never written; None if it is torn."""
    data = fs.pread(fd, _FIRST_READ, _place_of(slot))
    if not data.strip(b"\0"):
        return b""
    if len(data) < _FRAME.size:
        return None
    length, crc = _FRAME.unpack_from(data)
    if not _STATE.size <= length <= SLOT_BYTES - _FRAME.size:
        return None
    state = data[_FRAME.size : _FRAME.size + length]
    if len(state) < length:
        state += fs.pread(fd, length - len(state), _place_of(slot) + _FRAME.size + len(state))
    return state if len(state) == length and crc == crc32c(state) else None


def _sequence_of(state: bytes) -> int:
    sequence: int = _STATE.unpack_from(state)[1]
    return sequence


def _parse(state: bytes, taken: int, path: str) -> Contents:
    version, sequence, count = _STATE.unpack_from(state)
    if version != _VERSION:
        raise StorageError(errno.EBADMSG, f"version {version} of this file; {_VERSION} is known", path)
    commits = []
    try:
        at = _STATE.size
        for _ in range(count):
            (number,) = _SEQUENCE.unpack_from(state, at)
            key, at = _bytes_at(state, at + _SEQUENCE.size)
            value, at = _bytes_at(state, at)
            commits.append(Commit(number, *_checked(key, value)))
            if not 0 < number <= sequence:
                raise SchemaError(f"sequence number {number} of {sequence}")
        if at != len(state) or len({commit.key.group for commit in commits}) != 1:
            raise SchemaError(f"{len(state) - at} bytes are left, or there is not one group")
    except (ValueError, struct.error, InvalidTopicError) as error:
        raise _malformed(path, str(error)[:200]) from None
    return Contents(taken, sequence, tuple(commits))


def _bytes_at(state: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(state, at)
    at += _LENGTH.size
    if not 0 <= length <= len(state) - at:
        raise SchemaError(f"a length of {length} bytes, where {len(state) - at} are left")
    return state[at : at + length], at + length


def _checked(key_bytes: bytes, value: bytes) -> tuple[OffsetKey, Position]:
    key = group_records.parse_key(key_bytes)
    if not isinstance(key, OffsetKey) or not key.group:
        raise SchemaError("a record is not the position of a group")
    names.check_topic(key.topic)
    position = group_records.parse_position(value)
    group_records.text_bytes("metadata", position.metadata)
    if not (0 <= key.partition <= INT_MAX and position.offset >= 0 and position.leader_epoch >= -1):
        raise SchemaError(f"partition {key.partition}, offset {position.offset}, epoch {position.leader_epoch}")
    if not 0 <= position.commit_timestamp <= MAX_TIMESTAMP:
        raise SchemaError(f"commit timestamp {position.commit_timestamp}; {MAX_TIMESTAMP} is the largest")
    return key, position._replace(expires_ms=None)


def _malformed(path: str, what: str) -> StorageError:
    return StorageError(errno.EBADMSG, f"malformed: {what}; the positions in it are ignored", path)
