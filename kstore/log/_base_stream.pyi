"""`anext` of a stream in C: a record that is in memory is returned without a coroutine."""

from typing import Any, Self, final

from typing_extensions import disjoint_base

@disjoint_base
class BaseStream:
    """Base of `Stream`, which defines `_next`, a coroutine that reads or waits for the next record, and `_end`."""

    _records: Any
    """The iterator whose records are returned now; None if there is none."""
    _pending: Any
    """The record that a thread is reading; None if no thread is reading."""
    _left: int
    """How many more records may be returned before the loop's other tasks run."""
    _ready: int
    """How many of the iterator's records are in memory and belong to this turn."""
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Any: ...

@final
class NextRecord:
    """A call of `anext`, to be awaited once; it has the methods of a coroutine."""
    def __await__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def send(self, value: object, /) -> Any:
        """Continue until the stream waits for something, which is returned; `StopIteration` has the record."""
    def throw(self, *error: Any) -> Any:
        """Raise an error where the stream waits."""
    def close(self) -> None:
        """End the call."""
