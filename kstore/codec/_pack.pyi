"""The encoder: packs records, in any form that users write, into v2 record batches."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias, final

from _typeshed import ReadableBuffer

from kstore._core import Record
from kstore.types import Headers

_Data: TypeAlias = ReadableBuffer | None
_Item: TypeAlias = ReadableBuffer | Record | tuple[_Data, _Data] | tuple[_Data, _Data, int | None, Headers | None]

def give_back_memory() -> None:
    """Return the kept buffers to the system."""

def encode_headers(headers: Headers | None) -> bytes:
    """Encode the headers of a single record, in any form that `Packer.pack` accepts.

    Raises `TypeError` or `InvalidRecordError`.
    """

@final
class Packer:
    """Packs records into consecutive v2 batches in one growing, reused buffer.

    A batch closes when its header and records, before compression, would exceed `batch_bytes`; a larger record gets its
    own batch. A batch that exceeds `max_batch_bytes` as written, or would decompress to more than readers accept
    (`compression.MAX_DECOMPRESSED_BYTES`), is split; if it has one record, `RecordTooLargeError` is raised. With
    `single=True` all records go into one batch, or `RecordTooLargeError` is raised. With `draft=True` batches get no
    checksum. Sequence numbers continue from batch to batch. If a record is refused, the open batch is dropped and
    `buffer` keeps the finished ones. Not thread-safe: a call during another call, even by the user's code that this
    other call runs, raises `RuntimeError`.
    """
    @property
    def batches(self) -> int:
        """The number of finished batches in `buffer`."""
    @property
    def records(self) -> int:
        """The number of records packed over the packer's life."""
    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of the finished batches in `buffer`, -1 if none."""
    now_ms: int
    """The timestamp of records that have none; timestamp limits are relative to it."""
    def __init__(
        self,
        batch_bytes: int,
        max_batch_bytes: int,
        compression: int = 0,
        level: int | None = None,
        *,
        now_ms: int,
        timestamp_type: str = "CreateTime",
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        before_max_ms: int = 0x7FFFFFFFFFFFFFFF,
        after_max_ms: int = 0x7FFFFFFFFFFFFFFF,
        require_key: bool = False,
        single: bool = False,
        draft: bool = False,
    ) -> None: ...
    def pack(self, iterator: Iterator[_Item], limit_bytes: int = 0x7FFFFFFF) -> bool:
        """Pack records until `limit_bytes` of finished batches are in `buffer`; return False once `iterator` has ended.

        Items are buffers (values), `(key, value)`, `(key, value, timestamp, headers)` or `Record`, whose offset is
        ignored. Exceptions of the iterator propagate. Raises `InvalidRecordError`, `InvalidTimestampError`,
        `RecordTooLargeError` or `TypeError` with the index of a refused record.
        """
    @property
    def buffer(self) -> memoryview:
        """A writable view of the finished batches; while it exists, `pack` and `clear` raise `BufferError`."""
    def __len__(self) -> int: ...
    def clear(self) -> None:
        """Drop the finished batches; an open batch remains open."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def encode_batch(
    records: Iterable[_Item],
    *,
    base_offset: int = 0,
    compression: str = "none",
    level: int | None = None,
    timestamp_type: str = "CreateTime",
    partition_leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    now_ms: int | None = None,
) -> bytes:
    """Encode all `records` as one v2 batch.

    Args:
        records: An iterable of buffers (values), `(key, value)`, `(key, value, timestamp, headers)` or `Record`, whose
            offset is ignored.
        base_offset: The offset of the first record; the others follow without gaps.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
        level: The compression level, as in Kafka's settings; by default Kafka's default for the type.
        timestamp_type: "CreateTime" or "LogAppendTime"; with the latter, `now_ms` is the timestamp of all records.
        partition_leader_epoch: The leader epoch of the batch; -1 means unknown.
        producer_id: The id of an idempotent producer, which needs an epoch and a base sequence; -1 means none.
        producer_epoch: The epoch of that producer.
        base_sequence: The sequence number of the first record.
        transactional: Whether the batch belongs to a transaction, which needs a producer id.
        control: Whether the records are control records.
        now_ms: The timestamp of records that have none, in milliseconds since the epoch; now if omitted.

    Returns:
        The bytes of the batch; no bytes if there are no records, as in Kafka.

    Raises:
        InvalidRecordError: If a record, `base_offset` or a field of the producer is not valid.
        InvalidTimestampError: If a timestamp is out of range.
        RecordTooLargeError: If the batch exceeds 2 GiB, or its records 256 MiB before compression.
        UnsupportedCompressionError: If the compression type is not known.
        ConfigError: If the compression type does not have this level.
        TypeError: If a record has another type, or a number is not an integer.
        ValueError: If a number is out of range, or the timestamp type is not known.

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples"), b"1 pear"], base_offset=7, compression="zstd")
        >>> [(record.offset, record.value) for decoded in kstore.decode_batches(batch) for record in decoded]
        [(7, b'3 apples'), (8, b'1 pear')]
    """
