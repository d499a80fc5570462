"""A set of locks that are held together."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from typing_extensions import disjoint_base

@disjoint_base
class LockSet:
    """Enters context managers one after the other; the end of its `with` block exits all of them, the last one first.

    The context managers must be compiled, too. All of them are exited even if an exit raises; then its error is raised.
    """
    def enter(self, manager: AbstractContextManager[Any]) -> None:
        """Enter a context manager."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
