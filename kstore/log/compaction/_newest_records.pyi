"""The first pass of a cleaning: the offset map, and which dirty records are superseded by a later record."""

from typing import final

from _typeshed import ReadableBuffer

from kstore.log.compaction._cleaned_transactions import CleanedTransactions

@final
class NewestRecords:
    """The result of the first pass: which dirty records are superseded by a later record of the same key.

    A record in [`first_dirty_offset`, `latest_offset`] is superseded if it has no key, or if a later record there has
    its key (SEMANTICS 7.11, 7.12); for records below that range, see `has`. Each record of each scanned batch has an
    ordinal, from 0 in the order of the file. `batches` counts the batches taken, `special_batches` those that the
    second pass must read in any case: of transactions, of control records and of formats 0 and 1. `capacity` is a
    number of keys; memory grows with the keys. After an error the object is unusable. Not thread-safe: a second call at
    the same time is a `ValueError`.
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
        """The first offset of the dirty part: records below it are looked up by key."""
    @property
    def latest_offset(self) -> int:
        """The last offset that the pass covers; -1 at first. The next first dirty offset is one past it."""
    @property
    def is_full(self) -> bool:
        """Whether the pass ended before the end of the data because there was no space for another key or record."""
    @property
    def keys(self) -> int: ...
    @property
    def records(self) -> int:
        """Number of records that have an ordinal: the next ordinal."""
    @property
    def next_offset(self) -> int:
        """One past the last offset of the last batch taken, or of the last segment that was ended."""
    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of the map and of the bits by ordinal."""
    def add(
        self,
        data: ReadableBuffer,
        transactions: CleanedTransactions,
        *,
        path: str,
        position: int,
        max_decompressed_bytes: int | None = None,
    ) -> int:
        """Take the whole batches at the start of `data`, in offset order. Return how many bytes were taken.

        A batch that is cut by the end of `data` is not taken. The call stops after the batch in which the map becomes
        full; this batch has ordinals like any other. More than 2^32 - 1 records count as a full map, too; then the
        batch with the next one is left. `data` is at `position` of the file `path`. Raises `CorruptRecordError`, which
        names `kstore repair`, also for a wrong CRC. The GIL is released.
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
        """Read and take the batches of `[position, end)` of a file in pieces. Return (where it stopped, the pieces).

        A piece is as many whole batches as fit into `buffer`, which is overwritten. The call stops after the batch that
        fills the map, and before a batch that does not fit into the buffer or goes beyond `end` or the file. The pieces
        are `Piece`s of five 64-bit integers each, as `ScannedPart.extend` takes them. Raises as `add` does, and
        `StorageError`. The GIL is released.
        """
    def end_segment(self, next_base: int) -> None:
        """Note that a segment was scanned to its end, and the next starts at `next_base`, unless the map is full."""
    def has(self, key: ReadableBuffer) -> bool:
        """Return whether a key has a dirty record, which supersedes all its records below the first dirty offset."""
    def is_superseded(self, ordinal: int) -> bool:
        """Return whether a scanned record is superseded."""
    def is_tombstone(self, ordinal: int) -> bool:
        """Return whether a scanned record has no value; unknown for control records and aborted ones."""
    def count_superseded(self, first: int, count: int) -> int:
        """Return the number of superseded records among the `count` records from the ordinal `first` on."""
    def count_tombstones(self, first: int, count: int) -> int:
        """Return how many of the `count` records from the ordinal `first` on have no value and are not superseded."""

@final
class OffsetMap:
    """The map alone, for tests and measurements: keys, each with an ordinal. Not thread-safe."""
    @property
    def capacity(self) -> int:
        """The number of keys at which it is full."""
    def __init__(self, capacity: int, *, _hash_bits: int = ...) -> None: ...
    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of the entries and of the space between them."""
    def __len__(self) -> int: ...
    def put(self, key: ReadableBuffer, ordinal: int) -> int | None:
        """Set a key's ordinal. Return the old one, or None. Raises `ValueError` if full, even for a known key."""
    def put_many(self, keys: ReadableBuffer, key_bytes: int, first_ordinal: int) -> int:
        """Put the keys in `keys`, of `key_bytes` bytes each, with rising ordinals. Return how many were put.

        Stops when the map is full. The GIL is released.
        """
    def get(self, key: ReadableBuffer) -> int | None:
        """Return the ordinal of a key, or None."""
    def clear(self) -> None:
        """Forget all keys, and free their memory."""

def _siphash(data: bytes, secret: bytes, rounds: int, last_rounds: int) -> bytes:
    """Return the hash alone, 16 bytes, for tests."""

def _hash_keys(keys: list[bytes], secret: bytes, *, by_aes: bool) -> list[bytes] | None:
    """Return the hashes of keys that are put together, 12 bytes each, for tests; None if AES is wanted and missing."""
