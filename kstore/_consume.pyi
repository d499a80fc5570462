"""Records of a topic as they are read: `ConsumerRecord`, and the records of many partitions as one iterator."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, final

from typing_extensions import Buffer

from kstore._core import Record

@final
class ConsumerRecord:
    __match_args__: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: Buffer | None = None,
        value: Buffer | None = None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ConsumerIterator:
    def __init__(
        self,
        topic: str,
        rounds: Iterable[list[tuple[int, Iterator[Record]]]],
        *,
        by_timestamp: bool,
        explain: Callable[[Exception], Exception] | None = None,
    ) -> None: ...
    def __iter__(self) -> ConsumerIterator: ...
    def __next__(self) -> ConsumerRecord: ...
