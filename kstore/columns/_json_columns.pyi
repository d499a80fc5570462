"""Columns as JSON: an object for each row, without a Python object for it."""

from collections.abc import Iterable
from typing import Literal, Self, TypeAlias, final

from kstore.columns._arrow import Column

@final
class Text:
    """JSON objects, with or without line ends: a buffer. `ends` has a 0, then the end of each object (int64)."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def ends(self) -> Ends: ...

@final
class Ends:
    """The ends of a `Text`: a buffer of bytes, eight for each row and eight before them."""
    def __new__(cls, text: Text) -> Self: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def are_numbers(column: Column) -> bool:
    """Whether a column of bytes holds only JSON numbers and nulls, and at least one number."""

_Kind: TypeAlias = Literal["text", "number", "raw", "int", "headers"]

def render_rows(fields: Iterable[tuple[str, _Kind, Column]], *, prefix: bytes = b"", lines: bool = False) -> Text:
    """Write an object for each row of the columns, up to the end of the shortest one.

    `fields` are (name, kind, `Column`). Kinds: "text", bytes written as a string, or as base64 under the name with
    `_base64` appended if they are no UTF-8; "number", bytes written as they are if they are a JSON number, as text
    otherwise; "raw", bytes that are JSON; "int", a column of times or other whole numbers; "headers". `prefix` goes
    before the first field of each object. With `lines` each object is a line. Raises `InvalidColumnError` for a row
    that is no sound Arrow data. The columns must not change meanwhile: the GIL is released.
    """
