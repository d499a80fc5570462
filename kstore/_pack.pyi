"""The encoder: records of the forms that users write, packed into v2 record batches."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias, final

from typing_extensions import Buffer

from kstore._core import Record

_Data: TypeAlias = Buffer | None
_Headers: TypeAlias = Iterable[tuple[str, _Data]] | dict[str, _Data] | None
_Item: TypeAlias = Buffer | Record | tuple[_Data, _Data] | tuple[_Data, _Data, int | None, _Headers]

@final
class Packer:
    now_ms: int
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
        before_max_ms: int = ...,
        after_max_ms: int = ...,
        require_key: bool = False,
        single: bool = False,
    ) -> None: ...
    @property
    def batches(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def buffer(self) -> memoryview: ...
    def pack(self, iterator: Iterator[_Item], limit_bytes: int = ...) -> bool: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...
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
) -> bytes: ...
def assign(buffer: Buffer, base_offset: int, leader_epoch: int, *, position: int = 0) -> None: ...
def restamp(buffer: Buffer, max_timestamp: int, log_append_time: bool, *, position: int = 0) -> bool: ...
