"""Locks that are held together, as many as turn up."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from typing_extensions import disjoint_base

@disjoint_base
class LockSet:
    """Enters context managers one after the other; the end of its `with` block leaves all of them, the last one first.

    Those that are entered must be compiled, too. All are left, also when leaving one raises; its error is raised then.
    """
    def enter(self, manager: AbstractContextManager[Any]) -> None:
        """Enter a context manager."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
