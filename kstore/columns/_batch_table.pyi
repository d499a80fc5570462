"""One row for each batch, read from the headers only: `Log.batch_table`."""

from collections.abc import Iterable
from typing import Any, Final, final

from _typeshed import ReadableBuffer, StrPath

from kstore.codec._aborted import AbortedFilter
from kstore.columns._columns import Columns

BATCH_COLUMNS: Final[tuple[str, ...]]

@final
class BatchTable:
    """Builds a table of batches; its methods are those of `_column_reader.Reader`. Not thread-safe."""
    @property
    def path(self) -> Any: ...
    def __init__(self, threads: int = 1) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def position(self) -> int: ...
    is_amid: bool
    is_estimating: bool
    @property
    def last_batch(self) -> tuple[int, bytes, int, int]: ...
    def seek(self, start_offset: int, end_offset: int) -> None:
        """Read the batches with offsets in `[start_offset, end_offset)` from now on."""
    def begin(self, max_rows: int, max_bytes: int) -> None:
        """Drop all rows; the limits are not used."""
    @property
    def least(self) -> int: ...
    def open(
        self,
        fd: int,
        position: int,
        path: StrPath | None,
        base_offset: int,
        least: int | None = None,
        held: object = None,
    ) -> None:
        """Move to a batch of the segment with this base offset; `least` is as in `Reader.open`.

        `held` is not used: no thread reads the file after `read` has returned.
        """
    def leave_out(self, aborted: AbortedFilter | None) -> None:
        """Leave out the batches of these transactions from now on; None leaves out none."""
    def mark(self) -> None:
        """Remember the number of rows, for `back`."""
    def back(self) -> None:
        """Drop the rows since `mark`, and restore the `next_offset` of that time."""
    def divide(self, borders: Iterable[int]) -> None:
        """Let the next `read` start at these positions, in parallel: batches may start there. Any order is allowed."""
    def read(self, pause: int, end: int, bytes_ahead: int, most: int = ...) -> str:
        """Read headers up to a batch that starts at or after `pause`; returns "end", "past" or "alone"."""
    def read_slowly(self, data: ReadableBuffer | None) -> str:
        """Read the first batch of `data`, which is at `position`, with the batch iterator; raises its errors."""
    def finish(self, next_offset: int | None = None) -> Columns:
        """Return the rows as `Columns`."""
