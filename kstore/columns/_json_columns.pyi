"""Columns as JSON: one JSON object for each row, written without Python objects."""

from collections.abc import Iterable
from typing import Literal, Self, TypeAlias, final

from kstore.columns._arrow import Column

@final
class Text:
    """A buffer of JSON objects, with or without line ends; `ends` holds 0 and the end of each object (int64)."""
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
    """Return whether a column of bytes holds only JSON numbers and nulls, and at least one number."""

_Kind: TypeAlias = Literal["text", "number", "raw", "int", "headers"]

def render_rows(fields: Iterable[tuple[str, _Kind, Column]], *, prefix: bytes = b"", lines: bool = False) -> Text:
    """Write an object for each row of the columns, up to the end of the shortest one.

    `fields` are (name, kind, `Column`). The kinds are "text" (bytes, written as a string; if they are not UTF-8, as
    base64 under the name with `_base64` appended), "number" (bytes, written unchanged if they are a JSON number,
    otherwise as text), "raw" (bytes that are JSON), "int" (times or other integers) and "headers". `prefix` is written
    before the first field of each object. With `lines` each object is a line. Raises `InvalidColumnError` for a row of
    unsound Arrow data. Releases the GIL: the columns must not change during the call.
    """
