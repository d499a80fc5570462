"""The writable end of a log: appends whole batches to the active segment, and their index entries."""

from collections.abc import Callable
from datetime import datetime
from enum import IntEnum
from typing import Protocol

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from kstore.errors import StorageError
from kstore.files._index_search import Entries
from kstore.log.reading._timestamp_lookup import ActiveEnd
from kstore.types import AppendInfo

class Code(IntEnum):
    DONE = 0
    BUSY = -1
    ROLL_SIZE = -2
    ROLL_TIME = -3
    ROLL_OFFSET_INDEX_FULL = -4
    ROLL_TIME_INDEX_FULL = -5
    ROLL_OFFSET_RANGE = -6
    DUE = -7
    SLOW = -8
    SPLIT = -9

def set_pwrite_hook(hook: Callable[[int, bytes, int], int] | None) -> None:
    """Send every write of this module through `hook(fd, data, position) -> int` (None: directly to the system).

    The hook returns the number of bytes written or raises `OSError`; tests use it to record and to fail writes.
    """

class _LogFile(Protocol):
    @property
    def path(self) -> str: ...

@disjoint_base
class Appender(ActiveEnd):
    """The writable end of one log.

    `busy` is the log's mutex as the fast path sees it. `due_ms` is when housekeeping is next due, `flush_at` the log
    end offset at which a flush is due. `on_publish` is called after an append if a reader waits or that flush is due,
    `on_error` with the error of a failed write, before it is raised.
    Not thread-safe except for `append`, see the module's docstring.
    """

    warned: bool
    @property
    def parked(self) -> bool: ...
    @property
    def base_offset(self) -> int: ...
    created_ms: int
    busy: bool
    epoch_assigned: bool
    leader_epoch: int
    due_ms: int
    flush_at: int
    waiters: int
    on_publish: Callable[[], None]
    on_error: Callable[[StorageError], object] | None
    def __init__(self, clock: Callable[[], int] | None = None) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def since_index(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the segment's first batch; -1 if unknown or none (SEMANTICS 2.5)."""
    @property
    def offset_entries(self) -> int: ...
    @property
    def time_entries(self) -> int: ...
    def published_bytes(self, base_offset: int) -> int:
        """Return the size of the segment with this base if it is the active one, else -1. Atomic for readers."""
    def published_maximum(self, base_offset: int) -> tuple[int, int] | None:
        """Return (max timestamp, its offset) of the segment with this base if it is the active one, else None."""
    def now(self) -> int:
        """Return the milliseconds since the epoch, by the log's clock."""
    def configure(
        self,
        *,
        max_message_bytes: int,
        before_max_ms: int,
        after_max_ms: int,
        log_append_time: bool,
        key_required: bool,
        plain: bool,
    ) -> None:
        """Set the record rules of a configuration; `plain` says that a lone record is stored uncompressed."""
    def limit(
        self, *, segment_bytes: int, wait_ms: int, offset_entries: int, time_entries: int, index_interval_bytes: int
    ) -> None:
        """Set the limits that `roll.limits` computed for the active segment."""
    def attach(
        self,
        *,
        log_fd: int,
        offset_fd: int,
        time_fd: int,
        base_offset: int,
        size: int,
        next_offset: int,
        offset_entries: int,
        time_entries: int,
        last_time_entry: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        first_timestamp: int,
        created_ms: int,
        offset_index: Entries | None = None,
        time_index: Entries | None = None,
        log: _LogFile | None = None,
    ) -> None:
        """Make this segment the active one, and restart the count of bytes since the last index entry (SEMANTICS 3.6).

        The `entries` of `offset_index` and `time_index` are set when their number has changed. `log` is held as long
        as `log_fd` is written to, so that the descriptor stays open.
        """
    def count_from(self, position: int) -> None:
        """Count the bytes since the last index entry from the position that this entry has."""
    def detach(self) -> None:
        """Forget the descriptors: nothing can be appended until the next `attach`."""
    @property
    def attached(self) -> bool:
        """Whether there are descriptors to write to."""
    def park(self) -> None:
        """Release descriptors and buffers until `resume`: appends return `BUSY`, and nothing else changes.

        The appender must be `attached`, and the caller holds the log's mutex.
        """
    def resume(self, *, log_fd: int, offset_fd: int, time_fd: int, log: _LogFile | None = None) -> None:
        """Continue after `park`, with new descriptors of the same files."""
    def append(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        timestamp: int | datetime | None,
        expected_offset: int | None = None,
    ) -> int:
        """Append one uncompressed record as its own batch. Return its offset, or a `Code`.

        Raises if the record is refused; then nothing has changed. `value` and `key` are bytes-like or None, `timestamp`
        is milliseconds or None for now. With an `expected_offset` the record is stored there or not at all.
        """
    def append_ready(
        self, data: object, origin: str, leader_epoch: int | None, transaction_version: int
    ) -> AppendInfo | None:
        """Append one encoded batch that needs only its offset and its epoch. Return its `AppendInfo`.

        Return None, with nothing changed, if more is to be done, or if the batch or an argument is wrong, which
        `Log.append_batch` then reports. The bytes are copied first, so the checked bytes are the stored ones.
        """
    def encode(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        timestamp: int | datetime | None,
        producer_id: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
        *,
        headers: bytes | None = None,
    ) -> bytearray:
        """Return the batch that `append` would write for this record, without its offset.

        Has a producer's numbers if given. `headers` are as `encode_headers` returns them.
        """
    def commit(self, buffer: ReadableBuffer, position: int, follower: bool, rolled: bool = False) -> tuple[int, int]:
        """Append the whole v2 batches of a writable `buffer` from `position` on. Return (code, bytes taken).

        As leader (SEMANTICS 1.19, 3.6), each batch is its own append and gets its offset and leader epoch in place; a
        code other than DONE says what has to be done before the next batch. As `follower`, all bytes are one append
        with the offsets that they carry. With `rolled`, the first append is not checked for a roll again: its segment
        is new, but tiny index files count as full even when empty. The caller holds the log's mutex and has set `busy`;
        the GIL is released for the write. Raises `StorageError`; then no batch of this call is in the log.
        """
    def should_roll(self, buffer: ReadableBuffer, follower: bool) -> int:
        """Return the `Code` of the roll that the v2 batches in `buffer` need first (SEMANTICS 2.2), or DONE.

        Checks one batch for a leader's append, all of them for a follower's.
        """
