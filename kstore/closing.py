"""What is closed by `close()`, and at the end of a `with` block."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class Closing:
    """`with` closes it, whatever happens in the block."""

    @abstractmethod
    def close(self) -> None:
        """End it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
