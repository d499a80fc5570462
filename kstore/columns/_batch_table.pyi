"""One row for each batch, from the headers alone: `Log.batch_table`."""

from collections.abc import Iterable
from typing import Any, Final, final

from _typeshed import ReadableBuffer, StrPath

from kstore.codec._aborted import AbortedFilter
from kstore.columns._columns import Columns

BATCH_COLUMNS: Final[tuple[str, ...]]

@final
class BatchTable:
    """Builds a table of batches; its methods are those of `_read.Reader`. Not thread-safe."""
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
        """Begin with no rows; the limits are not used."""
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
        """Go to a batch of the file of the segment that begins at `base_offset`; `least` is as with `Reader.open`.

        `held` is not needed: all threads are done when `read` returns.
        """
    def leave_out(self, aborted: AbortedFilter | None) -> None:
        """Leave out the batches of these transactions from now on; None for none."""
    def mark(self) -> None:
        """Remember how many rows there are, for `back`."""
    def back(self) -> None:
        """Drop the rows since `mark`; the next `read` begins where they began."""
    def divide(self, borders: Iterable[int]) -> None:
        """Let the next `read` begin at several positions at once: those of possible batches, in any order."""
    def read(self, pause: int, end: int, bytes_ahead: int, most: int = ...) -> str:
        """Read headers up to a batch that begins at or behind `pause`; returns "end", "past" or "alone"."""
    def read_slowly(self, data: ReadableBuffer | None) -> str:
        """Read the first batch of `data`, which is at `position`; raises its error, unless it is sound after all."""
    def finish(self, next_offset: int | None = None) -> Columns:
        """Return the rows as `Columns`."""
