"""The first pass of a cleaning: the offset map, and which of the dirty records a later one supersedes."""

from typing import final

from _typeshed import ReadableBuffer

from kstore.log.compaction._cleaned_transactions import CleanedTransactions

@final
class NewestRecords:
    """What the first pass learns of the dirty records: which are superseded by a later record of the same key.

    A record is superseded if it lies in [`first_dirty_offset`, `latest_offset`] and has no key, or a later one there has its
    key (SEMANTICS 7.11, 7.12); of records before that `has` says so. Each record of each scanned batch has an ordinal, from 0 in
    the order of the file. `batches` counts the batches that were taken, `special_batches` those of them that the second
    pass has to look at, whichever records are superseded: of transactions, of control records and of formats 0 and 1.
    `capacity` is a number of keys; memory grows with the keys. After an error the object is of no further use. Not
    thread-safe: a second call at the same time is a `ValueError`.
    """
    @property
    def batches(self) -> int: ...
    @property
    def special_batches(self) -> int: ...
    def __init__(
        self, capacity: int, first_dirty_offset: int, *, _hash_bits: int = ..., _most_records: int = ...
    ) -> None: ...
    @property
    def capacity(self) -> int:
        """The number of keys at which the map is full."""
    @property
    def first_dirty_offset(self) -> int:
        """Where the dirty part begins: records below it are looked up by key."""
    @property
    def latest_offset(self) -> int:
        """The last offset that the pass covers; -1 before anything. The next first dirty offset is the one behind it."""
    @property
    def is_full(self) -> bool:
        """Whether the pass ended before the data did: no room for another key, or for another record."""
    @property
    def keys(self) -> int:
        """Distinct keys in the map."""
    @property
    def records(self) -> int:
        """Records that have an ordinal: the next ordinal."""
    @property
    def next_offset(self) -> int:
        """The offset behind the last batch that was taken, or behind the segment that was ended."""
    @property
    def memory_bytes(self) -> int:
        """Memory of the map and of the bits by ordinal."""
    def add(
        self,
        data: ReadableBuffer,
        transactions: CleanedTransactions,
        *,
        path: str,
        position: int,
        max_decompressed_bytes: int | None = None,
    ) -> int:
        """Take the whole batches at the start of `data`, in offset order; how many bytes were taken.

        A batch that is cut off by the end is left. When the map is full it stops, behind the batch in which that happened:
        this batch has ordinals as any other. More than 2^32 - 1 records count as a full map too; then the batch that has
        the next one is left. `data` is at `position` of the file `path`. Raises `CorruptRecordError`, for a wrong CRC too,
        which names `kstore repair`. The GIL is released.
        """
    def scan(
        self,
        fd: int,
        position: int,
        end: int,
        buffer: ReadableBuffer,
        transactions: CleanedTransactions,
        *,
        path: str,
        max_decompressed_bytes: int | None = None,
    ) -> tuple[int, bytes]:
        """Read the batches of `[position, end)` of a file, piece by piece, and take them; (where it stopped, the pieces).

        A piece is as many whole batches as `buffer`, which is overwritten, has room for. It stops behind the batch with which
        the map is full, and before a batch for which the buffer has no room or that goes beyond `end` or the file. The
        pieces are `Piece`s of five 64-bit integers each, as `ScannedPart.extend` takes them. Raises as `add`, and
        `StorageError`. The GIL is released.
        """
    def end_segment(self, next_base: int) -> None:
        """Note that a segment was scanned to its end, and the next one begins at `next_base`; nothing if the map is full."""
    def has(self, key: ReadableBuffer) -> bool:
        """Whether a key has a record that supersedes all those below the first dirty offset."""
    def is_superseded(self, ordinal: int) -> bool:
        """Whether a scanned record is superseded."""
    def is_tombstone(self, ordinal: int) -> bool:
        """Whether a scanned record has no value; not known of control records and of aborted ones."""
    def count_superseded(self, first: int, count: int) -> int:
        """How many of the `count` records from the ordinal `first` on are superseded."""
    def count_tombstones(self, first: int, count: int) -> int:
        """How many of the `count` records from the ordinal `first` on have no value and are not superseded."""

@final
class OffsetMap:
    """The map alone, for tests and measurements: keys, each with an ordinal. Not thread-safe."""
    @property
    def capacity(self) -> int:
        """The number of keys at which it is full."""
    def __init__(self, capacity: int, *, _hash_bits: int = ...) -> None: ...
    @property
    def memory_bytes(self) -> int:
        """Memory of the entries and of the room between them."""
    def __len__(self) -> int: ...
    def put(self, key: ReadableBuffer, ordinal: int) -> int | None:
        """Give a key an ordinal; the one that it had, or None. A `ValueError` when the map is full, for known keys too."""
    def put_many(self, keys: ReadableBuffer, key_bytes: int, first_ordinal: int) -> int:
        """Put keys of `key_bytes` bytes each, one after the other in `keys`, with rising ordinals; how many were put.

        It stops where the map is full. The GIL is released.
        """
    def get(self, key: ReadableBuffer) -> int | None:
        """The ordinal of a key, or None."""
    def clear(self) -> None:
        """Forget all keys, and give their memory back."""

def _siphash(data: bytes, secret: bytes, rounds: int, last_rounds: int) -> bytes:
    """The hash alone, for tests: 16 bytes."""

def _hash_keys(keys: list[bytes], secret: bytes, *, by_aes: bool) -> list[bytes] | None:
    """The hashes of keys that are put at once, for tests: 12 bytes of each; None where AES is asked for and not there."""
