"""Rows of columns over the partitions of a topic: hashed, sorted and packed in C, without an object for each."""

from collections.abc import Callable
from typing import final

from kstore._columnpack import Rows
from kstore._pack import Packer
from kstore._route import Router

@final
class ColumnSplitter:
    def __init__(
        self,
        router: Router,
        make: Callable[[int], Packer],
        *,
        limit_bytes: int,
        most_bytes: int,
        sticky_bytes: int,
        partition: int | None = None,
    ) -> None: ...
    @property
    def ready(self) -> list[tuple[int, Packer]]: ...
    def pack(self, rows: Rows) -> bool: ...
    def close(self) -> None: ...

def partitions_of(rows: Rows, partitions: int) -> bytes: ...
