"""The writable end of a log: whole batches in, bytes of the active segment and its index entries out."""

import os
from collections.abc import Callable
from enum import IntEnum
from threading import Lock
from types import TracebackType
from typing import Protocol

from typing_extensions import Buffer, disjoint_base

from kstore._index import Entries
from kstore._producers import ProducerTable
from kstore.errors import StorageError

class _LogFile(Protocol):
    @property
    def path(self) -> str: ...

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

def set_pwrite_hook(hook: Callable[[int, bytes, int], int] | None) -> None: ...
def rebase(
    fd: int,
    end: int,
    base_offset: int,
    leader_epoch: int,
    *,
    write: bool = True,
    path: str | os.PathLike[str] | None = None,
) -> tuple[int, int, int]: ...

@disjoint_base
class Appender:
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
    def base_offset(self) -> int: ...
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
    def first_timestamp(self) -> int: ...
    @property
    def offset_entries(self) -> int: ...
    @property
    def time_entries(self) -> int: ...
    def published_bytes(self, base_offset: int) -> int: ...
    def published_maximum(self, base_offset: int) -> tuple[int, int] | None: ...
    def now(self) -> int: ...
    def configure(
        self,
        *,
        max_message_bytes: int,
        before_max_ms: int,
        after_max_ms: int,
        log_append_time: bool,
        key_required: bool,
        plain: bool,
    ) -> None: ...
    def limit(
        self,
        *,
        segment_bytes: int,
        wait_ms: int,
        offset_entries: int,
        time_entries: int,
        index_interval_bytes: int,
    ) -> None: ...
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
    ) -> None: ...
    def detach(self) -> None: ...
    @property
    def attached(self) -> bool: ...
    @property
    def parked(self) -> bool: ...
    def park(self) -> None: ...
    def resume(self, *, log_fd: int, offset_fd: int, time_fd: int, log: _LogFile | None = None) -> None: ...
    def append(self, value: Buffer | None, key: Buffer | None, timestamp: int | None) -> int: ...
    def append_commit(
        self, table: ProducerTable, now: int, producer_id: int, epoch: int, coordinator_epoch: int, version: int
    ) -> int: ...
    def encode(
        self,
        value: Buffer | None,
        key: Buffer | None,
        timestamp: int | None,
        producer_id: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray: ...
    def should_roll(self, buffer: Buffer, follower: bool) -> int: ...
    def commit(self, buffer: Buffer, position: int, follower: bool, rolled: bool = False) -> tuple[int, int]: ...

@disjoint_base
class Gate:
    def __init__(
        self,
        mutex: Lock,
        appender: Appender,
        *,
        check: Callable[[], object],
        stopped: Callable[[], bool],
        failed: Callable[[BaseException], object] | None = None,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def attempt(self, action: Callable[[], object]) -> bool: ...
