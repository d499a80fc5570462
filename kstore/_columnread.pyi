"""Reading columns: from the batches of files, or of a buffer, to `Columns`."""

import os
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

from typing_extensions import Buffer

from kstore._columns import Columns
from kstore._producers import AbortedFilter

_Path: TypeAlias = str | os.PathLike[str] | None

MAX_HEADER_BYTES: Final[int]
DEFAULT_THREADS: Final[int]
MOST_THREADS: Final[int]
HAS_ZSTD: Final[bool]

@final
class Reader:
    def __init__(
        self,
        columns: Sequence[str],
        layout: str,
        *,
        check_crc: bool = True,
        max_decompressed_bytes: int | None = None,
        threads: int = 1,
        in_chunks: bool = False,
    ) -> None: ...
    path: Any
    @property
    def rows(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def is_amid(self) -> bool: ...
    @property
    def is_estimating(self) -> bool: ...
    @property
    def bytes_apart(self) -> int: ...
    def divide(self, borders: Sequence[int]) -> None: ...
    @property
    def last_batch(self) -> tuple[int, bytes, int, int]: ...
    def seek(self, start_offset: int, end_offset: int) -> None: ...
    def begin(self, most_rows: int, most_bytes: int) -> None: ...
    def open(self, fd: int, position: int, path: _Path, base_offset: int = 0) -> None: ...
    def leave_out(self, aborted: AbortedFilter | None) -> None: ...
    def mark(self) -> None: ...
    def back(self) -> None: ...
    def read(self, pause: int, end: int, bytes_ahead: int) -> str: ...
    def read_slowly(self, data: Buffer | None = None) -> str: ...
    def finish(self, next_offset: int | None = None) -> Columns: ...

def unpack(codec: int, data: bytes, limit: int) -> bytes | None: ...
def decode_columns(
    buffer: Buffer,
    *,
    columns: Sequence[str] | None = None,
    layout: str = "binary",
    check_crc: bool = True,
    path: _Path = None,
    position: int = 0,
    max_decompressed_bytes: int | None = None,
    threads: int | None = None,
) -> Columns: ...
