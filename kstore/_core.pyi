"""The decoder: reads record batches of any format as `Record`s and `RecordBatch`es."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Self, TypeAlias, final

from _typeshed import ReadableBuffer, StrPath
from typing_extensions import disjoint_base

_Chunk: TypeAlias = tuple[ReadableBuffer, StrPath | None, int] | tuple[ReadableBuffer, StrPath | None, int, int]

@final
class Buffer:
    """A held export of any contiguous buffer; released with the last reference to this object."""
    def __new__(cls, data: ReadableBuffer) -> Self: ...

def crc32c(data: ReadableBuffer, value: int = 0, /) -> int:
    """Return the CRC-32C (Castagnoli) of any contiguous buffer, continued from `value`; long input releases the GIL."""

@final
class Record:
    """One record; it unpacks as `offset, timestamp, key, value, headers`.

    Keys and values are `bytes` or None. `headers` is a tuple of (str, bytes or None) pairs, `()` if there are none.
    Header names that are not UTF-8 keep their bytes as lone surrogates (`surrogateescape`). Reading a record with more
    than 1,048,576 headers raises `InvalidRecordError`; such a record can be read as columns. Records are immutable and
    compared by value. They hold no reference cycle, so the garbage collector does not track them. Thread-safe.

    Example:
        >>> record = kstore.Record(0, 1_764_000_000_000, b"alice", b"3 apples")
        >>> offset, timestamp, key, value, headers = record
        >>> record.key, value, headers
        (b'alice', b'3 apples', ())
    """
    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch; -1 if the record has no timestamp."""
    @property
    def key(self) -> bytes | None:
        """The key; None if the record has none."""
    @property
    def value(self) -> bytes | None:
        """The value; None for a tombstone."""
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """(name, value) pairs; a value is `bytes` or None."""
    __match_args__: Final = ("offset", "timestamp", "key", "value", "headers")
    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: ReadableBuffer | None = None,
        value: ReadableBuffer | None = None,
        headers: Iterable[tuple[str, ReadableBuffer | None]] = (),
    ) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def check_headers(count: int, what: str, number: int) -> None:
    """Raise `InvalidRecordError` if there are more headers than `MAX_HEADERS`, too many for objects or text."""

@final
class RecordBatch:
    """One record batch: the fields of its header under Kafka's names, its records, and its bytes.

    Iterating yields the batch's `Record`s; it decodes them again each time and may raise `CorruptRecordError`.
    `bytes(batch)` and the buffer protocol return the batch as stored. In formats 0 and 1 a batch is one message, or a
    wrapper with the messages inside it; reading its `base_offset` or `count` may decompress it. Only `decode_batches`
    and reads make batches. `path` and `position` say where a batch was found. Immutable; thread-safe.

    Example:
        >>> records = [(b"alice", b"3 apples"), (b"bob", b"1 pear")]
        >>> data = kstore.encode_batch(records, base_offset=7, compression="zstd")
        >>> (batch,) = kstore.decode_batches(data)
        >>> batch.base_offset, batch.last_offset, batch.count, batch.compression
        (7, 8, 2, 'zstd')
        >>> [record.value for record in batch]
        [b'3 apples', b'1 pear']
    """
    @property
    def path(self) -> Any:
        """The file that contains the batch; None for bytes in memory."""
    @property
    def position(self) -> int:
        """The position in bytes of the batch in the file or buffer."""
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def magic(self) -> int:
        """The format: 0, 1 or 2."""
    @property
    def base_offset(self) -> int:
        """The offset from which the records' offset deltas count."""
    @property
    def last_offset(self) -> int:
        """The last offset that the batch covers."""
    @property
    def next_offset(self) -> int:
        """One past the last offset: the lowest offset that the next batch may have."""
    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, including its header."""
    @property
    def crc(self) -> int:
        """The checksum in the header."""
    @property
    def attributes(self) -> int:
        """The attribute bits of the header."""
    @property
    def compression(self) -> str:
        """Name of the compression type; `"unknown"` for the types 5 to 7, whose records cannot be read."""
    @property
    def timestamp_type(self) -> str:
        """The type: "CreateTime", "LogAppendTime", or in format 0 "NoTimestampType"."""
    @property
    def base_timestamp(self) -> int:
        """The timestamp that the records' deltas count from; `max_timestamp` in formats 0 and 1 (without deltas)."""
    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp, in milliseconds; -1 if there is none."""
    @property
    def producer_id(self) -> int:
        """The producer id; -1 if there is none."""
    @property
    def producer_epoch(self) -> int:
        """The producer epoch; -1 if there is none."""
    @property
    def base_sequence(self) -> int:
        """The sequence number of the first record; -1 if there is none."""
    @property
    def partition_leader_epoch(self) -> int:
        """The leader epoch in which the batch was appended; -1 if it is not known."""
    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
    @property
    def is_control(self) -> bool:
        """Whether this is a control batch: it holds a transaction marker or another control record."""
    @property
    def delete_horizon_ms(self) -> int | None:
        """Time in milliseconds at which the batch's tombstones may be removed; None until compaction sets it."""
    @property
    def count(self) -> int:
        """Number of records that the header declares; in formats 0 and 1, the number of messages found."""
    @property
    def is_valid(self) -> bool:
        """Whether the size and the CRC are right; the records are not parsed."""
    def ensure_valid(self) -> None:
        """Check the size and the CRC; the records are not parsed.

        Raises:
            CorruptRecordError: If either is wrong.

        Example:
            >>> batch.ensure_valid()
            >>> (damaged,) = kstore.decode_batches(data[:-1] + b"?", check_crc=False)
            >>> damaged.ensure_valid()
            Traceback (most recent call last):
            ...
            kstore.errors.CorruptRecordError: ...
        """
    def __iter__(self) -> Iterator[Record]: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Guard:
    """A version number that a writer changes if data that iterators have read ahead may have become invalid.

    An iterator that sees a new `version` calls `recheck` of its source of chunks before it returns another record.
    Any thread may change `version`.
    """

    version: int

class ReaderPosition(NamedTuple):
    """The state of an iterator: its next offset, the guard's version that it saw, and the batch of its last record."""

    next_offset: int
    seen_version: int
    base_offset: int
    crc: int

@disjoint_base
class _Walk:
    """Base of both iterators: walks over chunks and their batches. Not thread-safe: concurrent calls are refused."""
    @property
    def next_offset(self) -> int:
        """The offset at which reading continues: one past the last record or batch that was returned or skipped."""
    def __iter__(self) -> Self: ...

@final
class RecordIterator(_Walk):
    """Iterate over the `Record`s of `[start_offset, end_offset)` in chunks `(buffer, path, position)`.

    Each buffer contains whole batches, the first at `position` of `path`. The iterator holds a buffer until it needs
    the next one; records copy their bytes. A chunk may have a fourth item, the offset at which the batch before it
    ended: messages of formats 0 and 1 below it are an error. Batches below the start are checked and skipped; control
    records are skipped unless `include_control`. After a `CorruptRecordError` the iteration ends. Not thread-safe: a
    concurrent call raises `ValueError` and never returns a wrong record.
    """
    def __init__(
        self,
        chunks: Iterable[_Chunk],
        start_offset: int = 0,
        end_offset: int = 0x7FFFFFFFFFFFFFFF,
        *,
        check_crc: bool = True,
        guard: Guard | None = None,
        include_control: bool = False,
        max_decompressed_bytes: int | None = None,
    ) -> None: ...
    def __next__(self) -> Record: ...
    @property
    def needs_bytes(self) -> bool:
        """Whether the next record is not in memory, so that `next` reads from a file."""
    @property
    def in_memory(self) -> int:
        """How many of the next records are in memory, as far as is known without looking at the next batch."""
    def resume(self, end_offset: int) -> None:
        """Continue to `end_offset`, also after the end was reached; for a caller that waits for new records itself.

        Calls `recheck` as for a new version of the guard; it raises if records returned before are no longer valid.
        """

@final
class BatchIterator(_Walk):
    """Iterate over the `RecordBatch`es that reach into `[start_offset, end_offset)`, in chunks as for `RecordIterator`.

    Each batch owns its bytes. After a `CorruptRecordError` the iteration ends. Not thread-safe: a concurrent call
    raises `ValueError`.
    """
    def __init__(
        self,
        chunks: Iterable[_Chunk],
        start_offset: int = 0,
        end_offset: int = 0x7FFFFFFFFFFFFFFF,
        *,
        check_crc: bool = True,
        guard: Guard | None = None,
        max_decompressed_bytes: int | None = None,
    ) -> None: ...
    def __next__(self) -> RecordBatch: ...

def decode_batches(
    buffer: ReadableBuffer,
    check_crc: bool = True,
    *,
    path: StrPath | None = None,
    position: int = 0,
    max_decompressed_bytes: int | None = None,
) -> BatchIterator:
    """Iterate over the `RecordBatch`es in a buffer.

    A batch that is cut off by the end of the buffer is left out without an error, as Kafka's clients do with the
    bytes of a fetch (FORMAT 2.7).

    Args:
        buffer: Record batches of any format. The batches refer to it if it is `bytes`, otherwise to a copy.
        check_crc: Whether to compare each batch with its CRC.
        path: The file that errors and batches name; None for bytes in memory.
        position: The position of the buffer's first byte in that file.
        max_decompressed_bytes: The most that a batch may decompress to; `compression.MAX_DECOMPRESSED_BYTES` if None.

    Returns:
        An iterator. It is not thread-safe: a concurrent call of `next` raises `ValueError`.

    Raises:
        CorruptRecordError: If a batch has a wrong length, magic, size or CRC; the iterator raises it, and ends.

    Example:
        >>> first = kstore.encode_batch([(b"alice", b"3 apples")])
        >>> second = kstore.encode_batch([(b"bob", b"1 pear")], base_offset=1)
        >>> for batch in kstore.decode_batches(first + second):
        ...     print(batch.base_offset, [record.value for record in batch])
        0 [b'3 apples']
        1 [b'1 pear']
    """
