"""Reading columns: from the batches of files, or of a buffer, to `Columns`."""

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from _typeshed import ReadableBuffer, StrPath

from kstore.codec._aborted import AbortedFilter
from kstore.columns._columns import Columns

MAX_HEADER_BYTES: Final[int]
DEFAULT_THREADS: Final[int]
MAX_THREADS: Final[int]
MAX_BORDERS: Final[int]

@final
class Reader:
    """Builds columns from batches of files, one `Columns` after the other.

    `columns` are names of COLUMN_NAMES, `layout` one of LAYOUTS. `seek` chooses the offsets, `begin` opens the next
    `Columns`, `open` goes to a batch of a file, `read` reads batches with `threads` threads, `finish` returns the
    `Columns`. Not thread-safe.
    """
    @property
    def threads(self) -> int: ...
    @property
    def path(self) -> Any: ...
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
    @property
    def rows(self) -> int:
        """Rows built since `begin`."""
    @property
    def next_offset(self) -> int:
        """Where to go on: one past the last record that was built or left out."""
    @property
    def position(self) -> int:
        """Where the next batch begins in the file."""
    @property
    def is_amid(self) -> bool:
        """Whether a batch was begun and some of its rows are not built yet."""
    @property
    def is_estimating(self) -> bool:
        """Whether `bytes_ahead` is still used to estimate the room for further rows."""
    def sample(self, pause: int, end: int, most: int = ...) -> None:
        """Estimate from the next batch how far apart chunks should begin, if there are chunks and no estimate yet.

        No row is built. The arguments are those of `read`, which raises the errors of that batch.
        """
    @property
    def chunk_spacing(self) -> int:
        """How far apart in the file several chunks should begin, for `divide`; 0 if they should not."""
    def divide(self, borders: Sequence[int]) -> None:
        """Let further chunks be read at the same time, from these rising positions on, each possibly that of a batch."""
    @property
    def last_batch(self) -> tuple[int, bytes, int, int]:
        """(position, first 21 bytes, base offset, CRC) of the batch read last since `seek`; position -1 for none."""
    def seek(self, start_offset: int, end_offset: int) -> None:
        """Read `[start_offset, end_offset)` from now on; drops all that was read ahead."""
    def begin(self, max_rows: int, max_bytes: int) -> None:
        """Open the next `Columns`, with at most so many rows and bytes of records; a single row may be larger."""
    @property
    def least(self) -> int:
        """The least base offset of the next batch: where the one before it ended."""
    def open(
        self,
        fd: int,
        position: int,
        path: StrPath | None,
        base_offset: int = 0,
        least: int | None = None,
        held: object = None,
    ) -> None:
        """Go to a batch of a file; the segment's base offset is not used here.

        The batch's base offset is at least `least`, and the batches follow one another; None if that is not known.
        `held` keeps the descriptor open: helpers may use it until the reader has gone, or another file is opened.
        """
    def leave_out(self, aborted: AbortedFilter | None) -> None:
        """Leave out the batches of these transactions from now on; None for none."""
    def keep_only(self, offsets: npt.NDArray[np.int64]) -> None:
        """Build rows of the records at these offsets alone from now on, which rise and must not change."""
    def mark(self) -> None:
        """Remember where we are, for `back`."""
    def back(self) -> None:
        """Forget the rows since `mark`; a `seek` to `next_offset` must follow."""
    def read(self, pause: int, end: int, bytes_ahead: int, most: int = ...) -> str:
        """Read batches up to one that begins at or behind `pause`, within `[position, end)` of the file.

        All offsets in the file are below `most`. A batch that does not follow the one before it is left alone.
        Returns "end" there, "full" when the columns are full, "past" when the next record is behind the last one to
        read, "alone" before a batch that `read_slowly` must read. `bytes_ahead` is an estimate of the bytes still to
        read, also those behind `end`.
        """
    def read_slowly(self, data: ReadableBuffer | None = None) -> str:
        """Build rows from whole batches that begin at `position`, through the record reader; returns what `read` does.

        `data` is a buffer of them, needed unless the call before returned "full". Reads all batches of formats 0 and 1
        at its beginning, or one v2 batch. Raises the errors of the record reader.
        """
    def finish(self, next_offset: int | None = None) -> Columns:
        """Return the rows since `begin` as `Columns`; `next_offset` replaces theirs."""

def decode_columns(
    buffer: ReadableBuffer,
    *,
    columns: Sequence[str] | None = None,
    layout: str = "binary",
    check_crc: bool = True,
    path: StrPath | None = None,
    position: int = 0,
    max_decompressed_bytes: int | None = None,
    threads: int | None = None,
) -> Columns:
    """The records of the batches in `buffer`, of any format, as `Columns`; control records are left out.

    `columns` and `layout` are as in `Log.read_columns`. A batch that the end of the buffer cuts off is left out without
    an error, as in `decode_batches`. Raises `CorruptRecordError`, and `ValueError` for 2 GiB and more of records in the
    layout "binary". `path` and `position` are for errors. A buffer of megabytes is divided among `threads`.
    """
