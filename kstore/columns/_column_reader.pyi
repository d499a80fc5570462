"""Reading columns: the batches of files, or of a buffer, become `Columns`."""

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
    """Builds a series of `Columns` from batches of files.

    `columns` are names of COLUMN_NAMES, `layout` is one of LAYOUTS. `seek` sets the range of offsets, `begin` starts a
    `Columns`, `open` moves to a batch of a file, `read` reads batches with `threads` threads, `finish` returns the
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
        """The number of rows built since `begin`."""
    @property
    def next_offset(self) -> int:
        """The offset at which to continue: one past the last record that was built or left out."""
    @property
    def position(self) -> int:
        """The position of the next batch in the file."""
    @property
    def is_amid(self) -> bool:
        """Whether some rows of the current batch are not built yet."""
    @property
    def is_estimating(self) -> bool:
        """Whether `bytes_ahead` is still used to estimate the space for further rows."""
    def sample(self, pause: int, end: int, most: int = ...) -> None:
        """Estimate from the next batch how far apart chunks should start, if there are chunks and no estimate yet.

        Builds no row. Takes the arguments of `read`; errors of that batch are raised by `read`, not here.
        """
    @property
    def chunk_spacing(self) -> int:
        """The distance in the file between the starts of chunks, for `divide`; 0 if the file should not be divided."""
    def divide(self, borders: Sequence[int]) -> None:
        """Let further chunks be read in parallel from these rising positions, at each of which a batch may start."""
    @property
    def last_batch(self) -> tuple[int, bytes, int, int]:
        """(position, first 21 bytes, base offset, CRC) of the last batch read since `seek`; position -1 if none."""
    def seek(self, start_offset: int, end_offset: int) -> None:
        """Read `[start_offset, end_offset)` from now on, and discard all chunks that were read ahead."""
    def begin(self, max_rows: int, max_bytes: int) -> None:
        """Start the next `Columns`, with at most `max_rows` rows and `max_bytes` of records; one row may be larger."""
    @property
    def least(self) -> int:
        """The lowest base offset that the next batch may have: one past the batch before it."""
    def open(
        self,
        fd: int,
        position: int,
        path: StrPath | None,
        base_offset: int = 0,
        least: int | None = None,
        held: object = None,
    ) -> None:
        """Move to a batch of a file; the segment's base offset is not used here.

        The batch's base offset is at least `least`, and offsets rise in the file; `least` is None if it is not known.
        `held` keeps the descriptor open: helper threads may use it until the reader is freed or opens another file.
        """
    def leave_out(self, aborted: AbortedFilter | None) -> None:
        """Leave out the batches of these transactions from now on; None leaves out none."""
    def keep_only(self, offsets: npt.NDArray[np.int64]) -> None:
        """Build only the rows at these offsets from now on; they rise, and the array must not change."""
    def mark(self) -> None:
        """Remember the current rows and next offset, for `back`."""
    def back(self) -> None:
        """Drop the rows since `mark`; a `seek` to `next_offset` must follow."""
    def read(self, pause: int, end: int, bytes_ahead: int, most: int = ...) -> str:
        """Read the batches of `[position, end)` up to the first one that starts at or after `pause`.

        All offsets in the file are below `most`. Returns "end" at `pause` or `end`; "full" when the columns are full;
        "past" when the next record is beyond the last one to read; "alone" before a batch that `read_slowly` must read,
        such as one whose base offset is out of order. `bytes_ahead` estimates the bytes to read, also after `end`.
        """
    def read_slowly(self, data: ReadableBuffer | None = None) -> str:
        """Build rows from whole batches at `position` with the record reader; returns the results of `read`.

        `data` is a buffer of these batches, needed unless the last call returned "full". Reads all batches of formats 0
        and 1 at its start, or one v2 batch. Raises the errors of the record reader.
        """
    def finish(self, next_offset: int | None = None) -> Columns:
        """Return the rows since `begin` as `Columns`, with the given `next_offset` if there is one."""

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
    """Decode the records of the batches in `buffer`, of any format, into columns.

    Control records are left out, and so is a batch that the end of the buffer cuts off, as in `decode_batches`.

    Args:
        buffer: The encoded batches.
        columns: The columns to build, from those that `Log.read_columns` lists; by default offset, timestamp, key and
            value.
        layout: How keys and values lie in memory, as in `Log.read_columns`: "binary", "large_binary" or "view".
        check_crc: Whether to check the CRC of each batch.
        path: The file that errors name.
        position: The position of `buffer` in that file; errors add it to the positions of batches.
        max_decompressed_bytes: The most bytes that the records of one batch may decompress to; by default 256 MiB.
        threads: The most threads that share the work of a buffer of several megabytes; at most 16, by default one per
            core and at most 4.

    Returns:
        The columns of all records. Its `next_offset` is one past the last record that was read or left out.

    Raises:
        CorruptRecordError: If the length, magic, size, CRC or records of a batch are wrong.
        ValueError: If a column or the layout is unknown; if the layout is "binary" and there are 2 GiB or more of
            records; or if headers are requested and the records are too large for one column of headers (about 683
            MiB in the other layouts).

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples"), (b"bob", None)])
        >>> columns = kstore.decode_columns(batch, columns=["offset", "value"])
        >>> columns.offsets.tolist(), columns.values.to_pylist()
        ([0, 1], [b'3 apples', None])
    """
