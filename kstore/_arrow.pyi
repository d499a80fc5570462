"""Columns from elsewhere, read where they lie: Arrow data through its C interfaces, strided buffers, lists of bytes."""

from collections.abc import Iterable
from typing import Any, Self, final

from typing_extensions import Buffer

@final
class Column:
    @property
    def what(self) -> str: ...
    def __len__(self) -> int: ...

@final
class Source:
    def __init__(self, what: str, role: str, source: Any) -> None: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def rows(self) -> int: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> dict[str, Column]: ...

def fixed(what: str, source: Any, valid: Buffer | None = None, *, padded: bool = False) -> Column: ...
def times(
    what: str,
    source: Any,
    valid: Buffer | None = None,
    *,
    multiplier: int = 1,
    divisor: int = 1,
    is_unsigned: bool = False,
    has_nat: bool = False,
) -> Column: ...
def pointers(what: str, rows: Iterable[Buffer | None], first: int = 0) -> Column: ...
