"""The encoder: records of the forms that users write, packed into v2 record batches."""

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
    """The headers of a lone record as they stand in it, from any form that `Packer.pack` takes.

    Raises `TypeError`, `InvalidRecordError`.
    """

@final
class Packer:
    """Packs records into consecutive v2 batches in one growing, reused buffer.

    A batch closes when its header and records, before compression, would exceed `batch_bytes`; a larger record goes
    alone. A batch that is more than `max_batch_bytes` as written, or would decompress to more than readers take
    (`compression.MAX_DECOMPRESSED_BYTES`), is split; if it holds one record, that record is a `RecordTooLargeError`. `single=True` packs one batch or raises `RecordTooLargeError`. With `draft=True` batches get
    no checksum. Sequences go on from batch to batch. A refused record drops the open batch; the finished ones stay in
    `buffer`. Not thread-safe: a second call at the same time, or from code that a first call runs, is a `RuntimeError`.
    """
    @property
    def batches(self) -> int:
        """Finished batches in `buffer`."""
    @property
    def records(self) -> int:
        """Records taken in over the packer's life."""
    @property
    def max_timestamp(self) -> int:
        """Greatest timestamp of the finished batches in `buffer`, -1 if none."""
    now_ms: int
    """What a record without a timestamp gets, and what limits are counted from."""
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
        """Take records until `limit_bytes` of finished batches are in `buffer`; False once `iterator` has ended.

        Items are buffers (values), `(key, value)`, `(key, value, timestamp, headers)` or `Record`, whose offset is
        ignored. What the iterator raises passes through. A refused record raises `InvalidRecordError`,
        `InvalidTimestampError`, `RecordTooLargeError` or `TypeError`, which name its index.
        """
    @property
    def buffer(self) -> memoryview:
        """The finished batches as a `memoryview` to patch offsets in; while it lives, `pack` and `clear` raise `BufferError`."""
    def __len__(self) -> int: ...
    def clear(self) -> None:
        """Forget the finished batches; an open one stays open."""
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
    """One v2 batch of all `records`, offsets counted from `base_offset`; no records give no bytes, as in Kafka.

    Records are buffers (values), `(key, value)`, `(key, value, timestamp, headers)` or `Record`, whose offset is
    ignored. A record without a timestamp gets `now_ms`, by default the clock's now; with `"LogAppendTime"` that is
    the time of the whole batch. Raises `InvalidRecordError`, `InvalidTimestampError`, `RecordTooLargeError` (more
    than 2 GiB, or 256 MiB before compression), `UnsupportedCompressionError`, and `TypeError` and `ValueError` for what
    is no whole number, or out of its range.
    """
