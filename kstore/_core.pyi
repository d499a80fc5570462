"""The decoder: record batches of any format as `Record`s and `RecordBatch`es."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Self, TypeAlias, final

from _typeshed import ReadableBuffer, StrPath
from typing_extensions import disjoint_base

_Chunk: TypeAlias = tuple[ReadableBuffer, StrPath | None, int] | tuple[ReadableBuffer, StrPath | None, int, int]

@final
class Buffer:
    """A held export of any contiguous buffer, released when the last user of its bytes lets go."""
    def __new__(cls, data: ReadableBuffer) -> Self: ...

def crc32c(data: ReadableBuffer, value: int = 0, /) -> int:
    """CRC-32C (Castagnoli) of any contiguous buffer, going on from `value`; thread-safe, long input without the GIL."""

@final
class Record:
    """One record: `offset, timestamp, key, value, headers`, in which order it unpacks.

    Keys and values are `bytes` or None; `headers` is a tuple of (str, bytes or None), `()` without headers. Header
    names that are not UTF-8 keep their bytes as lone surrogates (`surrogateescape`). A record with more than 1,048,576
    headers is an `InvalidRecordError` where it is read, and can be read as columns. Immutable, compared by value;
    holds no cycle, hence has no part in garbage collection. Thread-safe.
    """
    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch; -1 without one."""
    @property
    def key(self) -> bytes | None:
        """The key; None without one."""
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
    """Refuse to make objects, or text, of more headers than MAX_HEADERS: `InvalidRecordError`."""

@final
class RecordBatch:
    """One record batch: its header's fields under Kafka's names, its `Record`s by iteration, its bytes as a buffer.

    Of formats 0 and 1 a message is a batch, and so is a wrapper with the messages inside it; their `base_offset` and
    `count` may need a decompression. Iterating decodes anew each time and may raise `CorruptRecordError`. Made by
    `decode_batches` and by reads, never by hand. `path` and `position` say where it was found. Immutable; thread-safe.
    """
    @property
    def path(self) -> Any:
        """The file that holds the batch; None for bytes in memory."""
    @property
    def position(self) -> int:
        """The byte at which the batch starts, from the start of the file or buffer."""
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
        """One past the last offset: where the next batch may begin."""
    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, its header included."""
    @property
    def crc(self) -> int:
        """The checksum in the header."""
    @property
    def attributes(self) -> int:
        """The attribute bits of the header."""
    @property
    def compression(self) -> str:
        """Name of the compression type; `"unknown"` for 5 to 7, with which iterating fails."""
    @property
    def timestamp_type(self) -> str:
        """One of "CreateTime", "LogAppendTime"; in format 0 "NoTimestampType"."""
    @property
    def base_timestamp(self) -> int:
        """The timestamp that deltas count from; formats 0 and 1 have no deltas, and it is `max_timestamp` there."""
    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp, in milliseconds; -1 without one."""
    @property
    def producer_id(self) -> int:
        """The producer id; -1 without one."""
    @property
    def producer_epoch(self) -> int:
        """The producer's epoch; -1 without one."""
    @property
    def base_sequence(self) -> int:
        """The sequence number of the first record; -1 without one."""
    @property
    def partition_leader_epoch(self) -> int:
        """The leader epoch in which the batch was appended; -1 where it is not known."""
    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker that ends a transaction, or another control record."""
    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which tombstones here may be dropped, or None; set by compaction only."""
    @property
    def count(self) -> int:
        """Number of records, as the header declares it (formats 0 and 1: as found)."""
    @property
    def is_valid(self) -> bool:
        """Whether size and CRC hold; records are not looked at."""
    def ensure_valid(self) -> None:
        """Raise `CorruptRecordError` unless size and CRC hold."""
    def __iter__(self) -> Iterator[Record]: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Guard:
    """A number that a writer moves when what iterators have read ahead may no longer stand.

    An iterator that sees a new `version` asks the `recheck` of what feeds it before it hands out another record. Any
    thread may change `version`.
    """

    version: int

class ReaderPosition(NamedTuple):
    """Where an iterator stands: the next offset, the guard's version that it saw, and the batch it was given last."""

    next_offset: int
    seen_version: int
    base_offset: int
    crc: int

@disjoint_base
class _Walk:
    """Chunk by chunk, batch by batch: what both iterators share. Not thread-safe: a second call at once is refused."""
    @property
    def next_offset(self) -> int:
        """Where to go on: one past the last record or batch given or passed over."""
    def __iter__(self) -> Self: ...

@final
class RecordIterator(_Walk):
    """`Record`s of `[start_offset, end_offset)` from an iterator of `(buffer, path, position)`.

    A fourth item says where the batch before the buffer ended, where messages of the old formats must not begin below.
    Each buffer holds whole batches that begin at `position` of `path`; it is held until the next is asked for, and
    records copy what they need. Batches below the start are checked and passed over; control records are passed over
    unless `include_control`. Raises `CorruptRecordError`, and then ends. Not thread-safe: a second call at the same
    time is a `ValueError`, never a wrong record.
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
        """Whether the next record is not in memory: to get it, the next piece of a file is read."""
    def resume(self, end_offset: int) -> None:
        """Go on to `end_offset`, after the end too: for a caller that waits for more by other means.

        What feeds the iterator is asked as when the guard has moved: it raises when what was given no longer stands.
        """

@final
class BatchIterator(_Walk):
    """`RecordBatch`es that reach into `[start_offset, end_offset)`, from chunks as `RecordIterator` takes them.

    Each batch owns its bytes. Raises `CorruptRecordError`, and then ends. Not thread-safe: a second call at the same
    time is a `ValueError`.
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
    """Iterate over the `RecordBatch`es in `buffer`, of any format.

    Raises `CorruptRecordError` at a batch whose length, magic, size or CRC is wrong. A batch that is cut off by the
    end of the buffer is left out in silence, as Kafka's clients do with what a fetch gives them (FORMAT 2.7).
    Batches of a `bytes` object refer to it, those of any other buffer own a copy. `path` and `position` go into
    errors. A batch may decompress to `max_decompressed_bytes` (default `compression.MAX_DECOMPRESSED_BYTES`).
    """
