"""A producer's sequence numbers, and the append of one numbered record in one step."""

from types import TracebackType
from typing import Any, final

from typing_extensions import Buffer, disjoint_base

from kstore.log import Log
from kstore.topicwrites import RecordMetadata, Route
from kstore.writer import Writer

@final
class Line:
    sequence: int
    doubtful: bool
    @property
    def log(self) -> Log | None: ...
    def attach(self, log: Log, writer: Writer) -> None: ...

@disjoint_base
class Sequences:
    busy: bool
    def __init__(
        self, producer_id: int, producer_epoch: int, *, transactional: bool, metadata: type[RecordMetadata]
    ) -> None: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def lines(self) -> dict[tuple[str, int], Line]: ...
    def append(
        self,
        taken: list[Any],
        route: Route,
        topic: str,
        partition: int | None,
        value: Buffer | None,
        key: Buffer | None,
        timestamp: int | None,
    ) -> RecordMetadata | int: ...
    def append_locked(
        self, line: Line, value: Buffer | None, key: Buffer | None, timestamp: int | None
    ) -> tuple[int, int] | None: ...

@final
class Hold:
    def __init__(self, sequences: Sequences) -> None: ...
    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
