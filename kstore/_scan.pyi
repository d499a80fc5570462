"""Walking the batches of a `.log` file by descriptor: recovery's scan, and searches that start at an index entry."""

import os
from typing import Any, TypeAlias, final

from typing_extensions import Buffer

_Path: TypeAlias = str | os.PathLike[str] | None

@final
class ScanResult:
    @property
    def position(self) -> int: ...
    @property
    def end_position(self) -> int: ...
    @property
    def stop(self) -> str: ...
    @property
    def reason(self) -> Any: ...
    @property
    def batches(self) -> int: ...
    @property
    def last_position(self) -> int: ...
    @property
    def next_offset(self) -> Any: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def index_entries(self) -> bytes: ...
    @property
    def time_entries(self) -> bytes: ...
    @property
    def epochs(self) -> list[tuple[int, int]]: ...
    @property
    def producer_batches(self) -> list[tuple[int, int, int, int, int, int, int, int, int]]: ...

def scan(
    fd: int,
    position: int,
    end: int,
    base_offset: int,
    *,
    index_interval_bytes: int = 4096,
    latest_epoch: int = -1,
    check_crc: bool = True,
    path: _Path = None,
) -> ScanResult: ...
def find_batch(
    fd: int, position: int, end: int, offset: int, *, path: _Path = None
) -> tuple[int, int, int, int, int, int] | None: ...
def last_offset(fd: int, position: int, end: int, *, path: _Path = None) -> tuple[int, int] | None: ...
def find_timestamp(
    fd: int,
    position: int,
    end: int,
    timestamp: int,
    min_offset: int = 0,
    *,
    check_crc: bool = True,
    max_decompressed_bytes: int | None = None,
    path: _Path = None,
) -> tuple[int, int, int] | None: ...

@final
class BatchCheck:
    @property
    def count(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def consecutive(self) -> bool: ...
    @property
    def errors(self) -> list[tuple[int, str, bool]]: ...

def check_batch(
    data: Buffer,
    *,
    position: int = 0,
    create_time: bool = True,
    now_ms: int = 0,
    before_max_ms: int = ...,
    after_max_ms: int = ...,
    require_key: bool = False,
    max_decompressed_bytes: int | None = None,
) -> BatchCheck: ...
def whole_batches(buffer: Buffer) -> tuple[int, int]: ...
def last_batch(buffer: Buffer) -> int: ...
