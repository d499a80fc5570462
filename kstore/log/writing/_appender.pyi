"""The tail of a log: whole batches in, bytes of the active segment and its index entries out."""

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
    """Send every write of this module through `hook(fd, data, position) -> int` (None: straight to the system).

    The hook answers with the number of bytes written or raises `OSError`; tests use it to record and to fail writes.
    """

class _LogFile(Protocol):
    @property
    def path(self) -> str: ...

@disjoint_base
class Appender(ActiveEnd):
    """The writable end of one log.

    `busy` is the log's mutex as the fast path sees it. `due_ms` is when housekeeping is next due, `flush_at` the log
    end offset at which a flush is due. `on_publish` is called after an append when a reader waits or that flush is due,
    `on_error` with the error of a failed write, before it is raised.
    Not thread-safe but for `append`, see the module's first paragraph.
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
        """The greatest timestamp of the segment's first batch, -1 when unknown or none (SEMANTICS 2.5)."""
    @property
    def offset_entries(self) -> int: ...
    @property
    def time_entries(self) -> int: ...
    def published_bytes(self, base_offset: int) -> int:
        """The size of the segment with this base if it is the active one, else -1; one step for readers."""
    def published_maximum(self, base_offset: int) -> tuple[int, int] | None:
        """(max timestamp, its offset) of the segment with this base if it is the active one, else None."""
    def now(self) -> int:
        """Milliseconds since the epoch, by the log's clock."""
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
        """Take the record rules of a configuration; `plain` says that a lone record is stored uncompressed."""
    def limit(
        self, *, segment_bytes: int, wait_ms: int, offset_entries: int, time_entries: int, index_interval_bytes: int
    ) -> None:
        """Take the limits that `roll.limits` computed for the active segment."""
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
        """Make this segment the active one; the count of bytes since the last index entry starts anew (SEMANTICS 3.6).

        The `entries` of `offset_index` and `time_index` are set when their number has changed. `log` is held as long
        as `log_fd` is written to, so that the descriptor stays open.
        """
    def detach(self) -> None:
        """Forget the descriptors: nothing can be appended until the next `attach`."""
    @property
    def attached(self) -> bool:
        """Whether there are descriptors to write to."""
    def park(self) -> None:
        """Do without descriptors and buffers until `resume`: appends are answered `BUSY`, nothing else changes.

        For an appender that is `attached`, under the log's mutex.
        """
    def resume(self, *, log_fd: int, offset_fd: int, time_fd: int, log: _LogFile | None = None) -> None:
        """Go on where `park` stopped, with new descriptors of the same files."""
    def append(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None,
        timestamp: int | datetime | None,
        expected_offset: int | None = None,
    ) -> int:
        """Append one uncompressed record as a batch of its own; its offset, or a `Code`.

        Raises what the record's refusal is; then nothing has changed. `value` and `key` are bytes-like or None,
        `timestamp` milliseconds or None for now. With an `expected_offset` the record is stored there or not at all.
        """
    def append_ready(
        self, data: object, origin: str, leader_epoch: int | None, transaction_version: int
    ) -> AppendInfo | None:
        """Append one encoded batch that needs nothing but its offset and its epoch; its `AppendInfo`.

        None where there is more to do, or something is wrong with the batch or an argument: nothing has changed then,
        and `Log.append_batch` says what it is. The bytes are copied first, so the checked ones are those stored.
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
        """The batch that `append` would write for this record, as a bytearray without its offset; with numbers if given.

        `headers` are as `encode_headers` makes them.
        """
    def commit(self, buffer: ReadableBuffer, position: int, follower: bool, rolled: bool = False) -> tuple[int, int]:
        """Append the whole v2 batches of a writable `buffer` from `position` on; (code, bytes taken).

        As leader (SEMANTICS 1.19, 3.6) each batch is an append of its own and gets its offset and leader epoch in
        place; a code other than DONE says what comes before the next batch. As `follower` all bytes are one append
        with the offsets that they carry. With `rolled` what stands first is not asked again whether it wants a new
        segment: it has just been given one, which tiny index files leave full. The caller holds the log's mutex and
        has set `busy`; the GIL is released for the write. Raises `StorageError`, and then none of the batches of this
        call is in the log.
        """
    def should_roll(self, buffer: ReadableBuffer, follower: bool) -> int:
        """Which `Code` says that the v2 batches in `buffer` want a new segment first (SEMANTICS 2.2); DONE for none.

        One batch as a leader's append, all of them as a follower's.
        """
