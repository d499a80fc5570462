"""The base class of objects with `close()`: a `with` block closes them at its end."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class Closing:
    """A context manager that calls `close()` at the end of the block, also after an error.

    Each subclass says whether it is thread-safe.
    """

    @abstractmethod
    def close(self) -> None:
        """Close the object. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
