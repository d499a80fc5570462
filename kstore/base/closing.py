"""The base of classes with `close()`: a `with` block closes their objects at its end."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class Closing:
    """A context manager that calls `close()` at the end of the block, also after an error."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
