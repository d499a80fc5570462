"""The second pass of a cleaning, batch by batch: what stays as it is, what goes, and what is written anew."""

from collections.abc import Mapping
from typing import NamedTuple, final

from _typeshed import ReadableBuffer

from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._newest_records import NewestRecords

class CleanedChunk(NamedTuple):
    """What became of a chunk of batches.

    `taken` bytes of it were whole batches; `output` is what they became, as whole batches, and is valid until the next
    call: it may be a part of what was given. `changed` says whether it differs from what was taken. `max_offset` is that
    of the output as Kafka counts it (SEMANTICS 7.23): of a batch that was rebuilt its last kept record's, of any other
    its last offset; -1 where there is no output.
    """

    taken: int
    output: memoryview
    changed: bool
    max_offset: int

@final
class BatchFilter:
    """The second pass of a cleaning (SEMANTICS 7.16 to 7.22): batches in, cleaned batches out.

    `newest` has seen the whole dirty part, `transactions` is new for this pass, and batches come in offset order from the
    beginning of the log. `first_uncleanable_offset` is where the round ends: the batch before it stays, emptied if need
    be. After an error the object is of no further use. Not thread-safe: a second call at the same time is a `ValueError`.
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
    def batches_read(self) -> int:
        """Batches that came in."""
    @property
    def batches_kept(self) -> int:
        """Batches that stayed byte for byte."""
    @property
    def batches_rebuilt(self) -> int:
        """Batches that were written anew with the records that stay."""
    @property
    def batches_emptied(self) -> int:
        """Batches of which only the header stays."""
    @property
    def records_read(self) -> int:
        """Records of the batches that came in, as their headers declare them."""
    @property
    def records_kept(self) -> int:
        """Records that stay."""
    @property
    def keyless_dropped(self) -> int:
        """Records that go because they have no key, with those that the first pass met."""
    @property
    def tombstones_kept(self) -> int:
        """Records without a value that stay."""
    @property
    def tombstones_removed(self) -> int:
        """The newest records of their keys that go because they have no value and their time is over."""
    def set_last_records(self, last: Mapping[int, tuple[int, int]]) -> None:
        """Take the active producers' last records, once for each group: producer id to (last data offset or -1, epoch)."""
    def clean(
        self, data: ReadableBuffer, *, scanned: bool, path: str, position: int, keeps_old_tombstones: bool
    ) -> CleanedChunk:
        """Filter the whole batches at the start of `data`, which begins at `position` of the file `path`.

        `scanned` says that the first pass has seen these batches: they go on at the next ordinal. `keeps_old_tombstones`
        says whether tombstones of formats 0 and 1 stay (SEMANTICS 7.19). Raises `CorruptRecordError`, which names
        `kstore repair`, for bytes that are no batches and for a damaged batch that would not stay as it is;
        `RecordTooLargeError` for one that would have more than 2^31 - 1 bytes; `ValueError` for batches that the first
        pass should have seen and has not. The GIL is released.
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
        """Filter the batches of `[position, end)` of a file, which is read piece by piece into `buffer`, as `clean`.

        A piece is as many whole batches as the buffer has room for. It stops with the piece that brings the output to
        `enough_bytes`, with one that stays as it is while there is no other output, and before a batch for which the
        buffer has no room or that the file ends in. Raises as `clean`, and `StorageError`.
        """
    def drop(self, *, records: int, batches: int, last_offset: int) -> bool:
        """Leave out the next whole batches unread, where each of their records is superseded; whether that was done.

        The first pass has seen these batches, up to the one that ends with `last_offset`, and none was special to it. A
        batch that would stay without its records, as the last one of a producer, is not left out so: then `clean` takes
        them all.
        """
