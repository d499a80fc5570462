"""The encoder for columns: rows of them go into a `Packer`'s batches without the GIL and without an object each."""

from collections.abc import Iterable
from typing import Any, final

from kstore._arrow import Column
from kstore._pack import Packer

__pyx_capi__: dict[str, Any]

@final
class Rows:
    def __init__(
        self,
        values: Column,
        value_at: int,
        keys: Column | None,
        key_at: int,
        times: Column | None,
        time_at: int,
        headers: Column | None,
        header_at: int,
        *,
        count: int,
        first: int,
        time: int,
    ) -> None: ...
    @property
    def at(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def first(self) -> int: ...

def pack(packer: Packer, rows: Rows, limit_bytes: int) -> bool: ...
def close(packer: Packer) -> None: ...
def memory(packer: Packer) -> int: ...
def shrink(packer: Packer) -> int: ...
def hand_over(packer: Packer, spare: Packer) -> None: ...
def compress(packer: Packer, codec: int, level: int | None) -> list[bytes]: ...
def put_compressed(packer: Packer, plain: Packer, packed: list[bytes]) -> None: ...
def header_sections(what: str, rows: Iterable[Any], first: int) -> Column: ...
