"""Which partition of a topic a record goes to."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from typing_extensions import Buffer

from kstore._pack import Packer

def murmur2(key: Buffer, /) -> int: ...
def partition_of(key: Buffer, partitions: int, /) -> int: ...

@final
class Router:
    def __init__(
        self, partitions: int, *, sticky_bytes: int, seed: int | None = None, available: Iterable[int] | None = None
    ) -> None: ...
    @property
    def partitions(self) -> int: ...
    @property
    def sticky_bytes(self) -> int: ...
    def route(self, key: Buffer | None, value: Buffer | None, /) -> int: ...

@final
class Splitter:
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
    def records(self) -> int: ...
    @property
    def ready(self) -> list[tuple[int, Packer]]: ...
    def pack(self, iterator: Iterator[Any]) -> bool: ...
    def taken(self, partition: int) -> None: ...
