"""Every exception that kstore raises, as one tree under `KStoreError`.

Each class is also the built-in that a caller would catch (a refused record is a `ValueError`, a failing disk an
`OSError`), and bears the name of Kafka's exception where Kafka has one (SEMANTICS.md section 14).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kstore.adopt import Staged
    from kstore.appends import AppendInfo

__all__ = [
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
    "OffsetOutOfRangeError",
    "OffsetsOutOfOrderError",
    "OutOfOrderSequenceError",
    "PolicyViolationError",
    "RecordBatchTooLargeError",
    "RecordTooLargeError",
    "StorageError",
    "TopicExistsError",
    "TransactionCoordinatorFencedError",
    "UnexpectedAppendOffsetError",
    "UnknownTopicOrPartitionError",
    "UnsupportedCompressionError",
]


class KStoreError(Exception):
    """The root of all that kstore raises."""


class ConfigError(KStoreError, ValueError):
    """A setting is unknown, or its value is of the wrong type or out of range."""


class ConfigWarning(UserWarning):
    """Settings that are each allowed do together what their owner may not expect; says what, with the numbers.

    Issued once, by what opens a log or a store for writing, creates a topic or changes its settings. Silence or raise
    it as any warning (`warnings.filterwarnings("ignore", category=kstore.ConfigWarning)`).
    """


class InvalidTopicError(KStoreError, ValueError):
    """A topic or partition directory name that Kafka forbids (FORMAT.md 1.2)."""


class TopicExistsError(KStoreError, ValueError):
    """A topic of that name is there already, or one whose name differs in `.` and `_` alone (FORMAT.md 1.2)."""


class UnknownTopicOrPartitionError(KStoreError, LookupError):
    """No topic, or no partition, of that name and number is in the store."""


class OffsetOutOfRangeError(KStoreError, ValueError):
    """An offset below the log start or above the log end; carries both marks."""

    def __init__(self, message: str, *, log_start_offset: int = -1, log_end_offset: int = -1) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class _RefusedRecord(KStoreError, ValueError):
    """A record or batch that was not appended; `appended` is what the same call had already stored.

    That is a dict by partition where the call was a store's.
    """

    appended: AppendInfo | dict[int, AppendInfo] | None = None


class InvalidRecordError(_RefusedRecord):
    """A record or batch that breaks a rule of the format or of the topic; `record_errors` lists (index, reason)."""

    def __init__(self, message: str, *, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidColumnError(_RefusedRecord):
    """A column that cannot be read: unsound Arrow data, a stream that failed, columns of different lengths."""


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is negative, or too far from the clock (SEMANTICS.md 1.17)."""


class RecordTooLargeError(_RefusedRecord):
    """A written batch would be larger than `max.message.bytes`."""


class RecordBatchTooLargeError(_RefusedRecord):
    """An append would be larger than `segment.bytes`."""


class OffsetsOutOfOrderError(_RefusedRecord):
    """Batches of a follower's append do not have increasing offsets."""


class _RefusedProducer(_RefusedRecord):
    """A batch or marker that does not fit what the log knows of its producer.

    Carries the batch's `producer_id` and `producer_epoch`, and, where two numbers are compared, what was `expected` and
    `found`; -1 where there is none.
    """

    def __init__(
        self, message: str, *, producer_id: int = -1, producer_epoch: int = -1, expected: int = -1, found: int = -1
    ) -> None:
        super().__init__(message)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class OutOfOrderSequenceError(_RefusedProducer):
    """A producer's batch does not follow the last one of its producer id: which sequence was expected and found."""


class InvalidProducerEpochError(_RefusedProducer):
    """A producer's batch carries an epoch older than the newest known of its producer id: it has been fenced."""


class InvalidTxnStateError(_RefusedProducer):
    """A batch does not fit the state of its producer's transaction."""


class TransactionCoordinatorFencedError(_RefusedProducer):
    """A transaction marker comes from a coordinator that has been replaced."""


class UnexpectedAppendOffsetError(_RefusedRecord):
    """A follower's append starts below the log end offset; carries its first and last offset."""

    def __init__(self, message: str, *, first_offset: int = -1, last_offset: int = -1) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class InconsistentTopicIdError(KStoreError, ValueError):
    """A partition's directory belongs to another topic of the same name (SEMANTICS.md 13.7)."""


class PolicyViolationError(KStoreError, ValueError):
    """The log's cleanup policy forbids the operation (SEMANTICS.md 11.9)."""


class UnsupportedCompressionError(KStoreError, ValueError):
    """A compression type that the format or this call does not know."""


class CorruptRecordError(KStoreError, ValueError):
    """Bytes that are no record batch, or not the one that was written.

    `path` is the file or None for bytes in memory, `position` the byte where the bad batch starts, `reason` what was
    found and what was allowed.
    """

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, position: int = 0) -> None:
        where = f"{os.fspath(path)} at position {position}" if path is not None else f"position {position}"
        super().__init__(f"{where}: {reason}")
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class CorruptIndexError(KStoreError, ValueError):
    """An index file whose contents break the index's own rules; carries `path` and `reason`."""

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(reason if path is None else f"{os.fspath(path)}: {reason}")
        self.reason = reason
        self.path = None if path is None else os.fspath(path)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class StorageError(KStoreError, OSError):
    """The operating system refused an operation; `errno`, `strerror` and `filename` are the system's."""

    _reported = False  # the log that met it has told its host


class LogLockedError(StorageError):
    """Another writer, or a broker, holds the directory; names the path, and the pid where the kernel knows it.

    Of a bulk load that waited in vain, `manifest` is what was staged and stays valid.
    """

    pid: int | None = None
    manifest: tuple[Staged, ...] = ()


class LogClosedError(KStoreError, ValueError):
    """The log, store or iterator has been closed."""


def _rebuild(kind: type[KStoreError], args: tuple[object, ...], state: dict[str, object]) -> KStoreError:
    """Make the error again without its constructor's arithmetic, so that it survives pickling."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
