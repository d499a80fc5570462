"""The second pass of a cleaning, batch by batch: what is kept, dropped or rebuilt."""

from collections.abc import Mapping
from typing import NamedTuple, final

from _typeshed import ReadableBuffer

from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._newest_records import NewestRecords

class CleanedChunk(NamedTuple):
    """The result of filtering a chunk of batches.

    `taken` bytes of it were whole batches. `output` is the whole batches that they became; it is valid until the next
    call, and may be a part of the input. `changed` says whether it differs from the input. `max_offset` is the greatest
    offset of the output as Kafka counts it (SEMANTICS 7.23): of a rebuilt batch its last kept record's, of any other
    its last offset; -1 without output.
    """

    taken: int
    output: memoryview
    changed: bool
    max_offset: int

@final
class BatchFilter:
    """The second pass of a cleaning (SEMANTICS 7.16 to 7.22): batches in, cleaned batches out.

    `newest` has seen the whole dirty part, `transactions` is new for this pass, and batches come in offset order from
    the start of the log. `first_uncleanable_offset` is where the round ends: the batch before it is kept, emptied if
    necessary. After an error the object is unusable. Not thread-safe: a second call at the same time is a `ValueError`.
    """
    def __init__(
        self,
        newest: NewestRecords,
        transactions: CleanedTransactions,
        *,
        now_ms: int,
        delete_retention_ms: int,
        first_uncleanable_offset: int,
        max_decompressed_bytes: int | None = None,
    ) -> None: ...
    @property
    def batches_read(self) -> int: ...
    @property
    def batches_kept(self) -> int: ...
    @property
    def batches_rebuilt(self) -> int:
        """Number of batches that were rebuilt with the records that are kept."""
    @property
    def batches_emptied(self) -> int:
        """Number of batches that keep only their header."""
    @property
    def records_read(self) -> int:
        """Records of the batches read, as their headers declare them."""
    @property
    def records_kept(self) -> int: ...
    @property
    def keyless_dropped(self) -> int:
        """Records dropped because they have no key, including those that the first pass found."""
    @property
    def tombstones_kept(self) -> int: ...
    @property
    def tombstones_removed(self) -> int:
        """Tombstones dropped because their retention is over, although they were their keys' newest records."""
    def set_last_records(self, last: Mapping[int, tuple[int, int]]) -> None:
        """Set the active producers' last records, once a group: producer id to (last data offset or -1, epoch)."""
    def clean(
        self, data: ReadableBuffer, *, scanned: bool, path: str, position: int, keeps_old_tombstones: bool
    ) -> CleanedChunk:
        """Filter the whole batches at the start of `data`, which is at `position` of the file `path`.

        `scanned` says that the first pass has seen these batches; they start at the next ordinal.
        `keeps_old_tombstones` says whether tombstones of formats 0 and 1 are kept (SEMANTICS 7.19). Raises
        `CorruptRecordError`, which names `kstore repair`, for bytes that are no batches and for a damaged batch that
        would not be kept as it is; `RecordTooLargeError` for a batch that would have more than 2^31 - 1 bytes;
        `ValueError` for batches that the first pass should have seen and has not. The GIL is released.
        """
    def clean_file(
        self,
        fd: int,
        position: int,
        end: int,
        buffer: ReadableBuffer,
        *,
        enough_bytes: int,
        scanned: bool,
        path: str,
        keeps_old_tombstones: bool,
    ) -> CleanedChunk:
        """Filter the batches of `[position, end)` of a file as `clean` does, reading them in pieces into `buffer`.

        A piece is as many whole batches as fit into the buffer. The call stops after the piece that brings the output
        to `enough_bytes`, after a piece that is kept as it is while there is no other output, and before a batch that
        does not fit into the buffer or that the end of the file cuts. Raises as `clean` does, and `StorageError`.
        """
    def drop(self, *, records: int, batches: int, last_offset: int) -> bool:
        """Drop the next whole batches unread if each of their records is superseded. Return whether they were.

        The first pass has seen these batches, up to the one that ends with `last_offset`, and none was special to it.
        If one must be kept without its records, as the last one of a producer, none is dropped: `clean` takes them all.
        """
