"""The exceptions that kstore raises: one tree under `KStoreError`.

Each class also derives from the built-in that a caller would catch: a refused record is a `ValueError`, a failing disk
an `OSError`. A class has the name of Kafka's exception if Kafka has one (SEMANTICS 14). All of them can be pickled.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kstore.types import AppendInfo

__all__ = [
    "BackupError",
    "BackupFencedError",
    "ConfigError",
    "ConfigWarning",
    "CorruptIndexError",
    "CorruptRecordError",
    "InconsistentTopicIdError",
    "InvalidColumnError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTxnStateError",
    "KStoreError",
    "LogClosedError",
    "LogLockedError",
    "NotLeaderError",
    "OffsetOutOfRangeError",
    "OffsetsOutOfOrderError",
    "OutOfOrderSequenceError",
    "PolicyViolationError",
    "ReadOnlyError",
    "RecordBatchTooLargeError",
    "RecordTooLargeError",
    "ReplicationError",
    "StorageError",
    "TimestampWarning",
    "TopicExistsError",
    "TransactionCoordinatorFencedError",
    "UnexpectedAppendOffsetError",
    "UnexpectedOffsetError",
    "UnknownTopicOrPartitionError",
    "UnsupportedCompressionError",
]


class KStoreError(Exception):
    """The base class of every exception of kstore."""

    appended: AppendInfo | dict[int, AppendInfo] | None = None
    """What the call stored before it failed; a dict by partition if it was a call of a store. None, an empty dict, or
    offsets of -1 if it stored nothing."""


def _rebuild(kind: type[KStoreError], args: tuple[object, ...], state: dict[str, object]) -> KStoreError:
    """Make an unpickled error without calling its constructor: the constructor's arguments differ from `args`."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _reduce(error: KStoreError) -> tuple[object, ...]:
    """Pickle an error whose constructor takes more than a message."""
    return _rebuild, (type(error), error.args, error.__dict__)


class ConfigError(KStoreError, ValueError):
    """A setting is unknown, or its value is of the wrong type or out of range."""


class ConfigWarning(UserWarning):
    """Settings that are valid one by one have a surprising effect together; the text gives the numbers.

    Issued once when a log or a store is opened for writing, and when a topic is created or its settings change. To
    silence it: `warnings.filterwarnings("ignore", category=kstore.ConfigWarning)`.
    """


class TimestampWarning(UserWarning):
    """A timestamp is from before March 1973: it was probably given in seconds instead of milliseconds.

    Issued at the first such append to each open log; a call that appends to several logs issues it once. Of records
    that are written together, only the greatest timestamp is checked. The records are stored as given.
    """


class InvalidTopicError(KStoreError, ValueError):
    """Kafka forbids this name of a topic or of a partition's directory (FORMAT 1.2)."""


class TopicExistsError(KStoreError, ValueError):
    """A topic with this name exists, or a topic with a name that differs only in `.` and `_` (FORMAT 1.2)."""


class UnknownTopicOrPartitionError(KStoreError, LookupError):
    """The store has no topic with this name, or the topic has no partition with this number."""


class OffsetOutOfRangeError(KStoreError, ValueError):
    """An offset is below the log start offset or above the log end offset."""

    log_start_offset: int
    """The smallest offset that can be read; -1 if it is not known."""
    log_end_offset: int
    """One past the last offset; -1 if it is not known."""

    def __init__(self, message: str, *, log_start_offset: int = -1, log_end_offset: int = -1) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset

    __reduce__ = _reduce


class _RefusedRecord(KStoreError, ValueError):
    """A record or batch was not appended; `appended` says what the call had stored before the refusal."""


class InvalidRecordError(_RefusedRecord):
    """A record or batch breaks a rule of the format or of the topic."""

    record_errors: tuple[tuple[int, str], ...]
    """For each refused record its index in the batch and the reason; empty if the batch as a whole was refused."""

    def __init__(self, message: str, *, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors

    __reduce__ = _reduce


class InvalidColumnError(_RefusedRecord):
    """A column cannot be read: malformed Arrow data, a stream that failed, or columns of different lengths."""


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is negative, or too far from the clock (SEMANTICS 1.17)."""


class RecordTooLargeError(_RefusedRecord):
    """A batch would be larger than `max.message.bytes`, or decompress to more than readers accept (256 MiB)."""


class RecordBatchTooLargeError(_RefusedRecord):
    """An append would be larger than `segment.bytes`."""


class OffsetsOutOfOrderError(_RefusedRecord):
    """The offsets of the batches in a follower's append do not increase."""


class _RefusedProducer(_RefusedRecord):
    """A batch or marker does not fit the log's state of its producer."""

    producer_id: int
    """The batch's producer id."""
    producer_epoch: int
    """The batch's producer epoch."""
    expected: int
    """The number that the log allows, if two numbers were compared; else -1."""
    found: int
    """The number in the batch, if two numbers were compared; else -1."""

    def __init__(
        self, message: str, *, producer_id: int = -1, producer_epoch: int = -1, expected: int = -1, found: int = -1
    ) -> None:
        super().__init__(message)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.expected = expected
        self.found = found

    __reduce__ = _reduce


class OutOfOrderSequenceError(_RefusedProducer):
    """A batch's sequence number does not follow its producer id's last number; see `expected` and `found`."""


class InvalidProducerEpochError(_RefusedProducer):
    """A batch's epoch is older than its producer id's newest epoch: a newer producer has fenced this producer."""


class InvalidTxnStateError(_RefusedProducer):
    """A batch does not fit the state of its producer's transaction."""


class TransactionCoordinatorFencedError(_RefusedProducer):
    """A transaction marker comes from a coordinator that has been replaced."""


class UnexpectedAppendOffsetError(_RefusedRecord):
    """A follower's append starts below the log end offset."""

    first_offset: int
    """The first offset of the append."""
    last_offset: int
    """The last offset of the append, or of its first batch if no more is known."""

    def __init__(self, message: str, *, first_offset: int = -1, last_offset: int = -1) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset

    __reduce__ = _reduce


class UnexpectedOffsetError(_RefusedRecord):
    """A conditional append would not get the offset that its caller expects; nothing was written."""

    expected: int
    """The offset that the caller expected for the first record."""
    actual: int
    """The offset that it would have got: the log end offset, or the batch's offset if the log has the batch already."""

    def __init__(self, message: str, *, expected: int = -1, actual: int = -1) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual

    __reduce__ = _reduce


class InconsistentTopicIdError(KStoreError, ValueError):
    """A partition's directory belongs to another topic of the same name (SEMANTICS 13.7)."""


class PolicyViolationError(KStoreError, ValueError):
    """The log's cleanup policy forbids the operation (SEMANTICS 11.9)."""


class UnsupportedCompressionError(KStoreError, ValueError):
    """The format or the call does not know this compression type."""


class CorruptRecordError(KStoreError, ValueError):
    """Bytes are not a record batch, or not the batch that was written."""

    path: str | None
    """The file; None for bytes in memory."""
    position: int
    """The position in bytes of the bad batch in the file or buffer."""
    reason: str
    """What was found and what is allowed, in words."""
    advice: str = ""
    """What to do about it; it ends the error's text."""

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, position: int = 0) -> None:
        where = f"{os.fspath(path)} at position {position}" if path is not None else f"position {position}"
        super().__init__(f"{where}: {reason}")
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.position = position

    def __str__(self) -> str:
        return f"{super().__str__()}{self.advice}"

    __reduce__ = _reduce


class CorruptIndexError(KStoreError, ValueError):
    """The contents of an index file break the rules of an index."""

    path: str | None
    """The file."""
    reason: str
    """What was found and what is allowed, in words."""

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(reason if path is None else f"{os.fspath(path)}: {reason}")
        self.reason = reason
        self.path = None if path is None else os.fspath(path)

    __reduce__ = _reduce


class StorageError(KStoreError, OSError):
    """The operating system reported an error; `errno`, `strerror` and `filename` are the system's."""

    advice: str = ""
    """What still works; it ends the error's text."""
    _is_refusal = False  # made by `refusal`
    _reported = False  # by the log in which it occurred

    @property
    def is_full(self) -> bool:
        """Whether the disk was full or a quota was used up; a sync can also fail for this reason."""
        return self.errno in (errno.ENOSPC, errno.EDQUOT)

    @property
    def is_of_the_disk(self) -> bool:
        """Whether the disk has failed; False if it is full, or if descriptors, memory or a lock were not available."""
        return not self.is_full and self.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

    def __str__(self) -> str:
        return f"{super().__str__()}{self.advice}"


def first_report(error: StorageError) -> bool:
    """Mark an error as reported to the owner of its log; return whether this is the first time."""
    is_first = not error._reported
    error._reported = True
    return is_first


def refusal(failure: BaseException, path: str, what: str) -> StorageError:
    """Make the error of a log or directory that refuses writes since `failure`; its text starts with the failure.

    `what` says what is refused and what can still be read.
    """
    if isinstance(failure, StorageError) and failure._is_refusal:
        error = StorageError(failure.errno, failure.strerror, failure.filename)
    else:
        number = getattr(failure, "errno", None) or errno.EIO
        error = StorageError(number, f"{_cause(failure)}; {what}", path)
    error._is_refusal = error._reported = True  # the failure was reported
    return error


def _cause(failure: BaseException) -> str:
    """Return one line that says why a log failed; for an interrupt, which has no text, return its class name."""
    if isinstance(failure, StorageError) and failure.strerror:
        return failure.strerror if failure.filename is None else f"{failure.strerror} at {failure.filename}"
    return str(failure) or f"interrupted by {type(failure).__name__}"


def as_storage_error(failure: BaseException, path: str) -> StorageError:
    """Return `failure`, or a `StorageError` at `path` that names it as its cause."""
    if isinstance(failure, StorageError):
        return failure
    made = StorageError(errno.EIO, _cause(failure), path)
    made.__cause__ = failure
    return made


class LogLockedError(StorageError):
    """Another writer, or a broker, holds the lock of the directory."""

    pid: int | None = None
    """The process that holds the lock; None if the system does not say."""
    manifest: tuple[object, ...] = ()
    """What was staged, if a bulk load waited too long for the lock. It stays valid: commit it later."""


class NotLeaderError(KStoreError, PermissionError):
    """A call would change a follower, which accepts records only from its leader; the text names the leader."""


class ReplicationError(KStoreError, ValueError):
    """A directory cannot follow this leader; nothing in it was changed.

    For example, replication would form a ring, the directory has other data, or its leader epoch is newer.
    """


class BackupError(KStoreError, ValueError):
    """A backup does not exist, cannot be read, or does not fit the directory; the text names the object."""


class BackupFencedError(BackupError):
    """Another writer has taken over the backup; this writer has stopped and changed nothing since then."""


class LogClosedError(KStoreError, ValueError):
    """The log, store or iterator has been closed."""


def closed(what: str, opened_in: int = 0) -> LogClosedError:
    """Make the error for a closed `what`; in a forked child, `opened_in` is the id of the process that opened it."""
    if not opened_in:
        return LogClosedError(f"{what} is closed")
    return LogClosedError(
        f"{what} was opened in process {opened_in}, before a fork, and is closed in this one, {os.getpid()}: "
        "open it here, after the fork"
    )


class ReadOnlyError(LogClosedError):
    """A call would change a log or store that was opened with `mode="r"`; callers may catch it as `LogClosedError`."""
