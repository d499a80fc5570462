"""An iterator of `Columns` as an Arrow stream."""

from collections.abc import Iterable

from kstore._columns import Columns

def stream_capsule(chunks: Iterable[Columns], fields: tuple[tuple[str, str], ...], owner: object = None) -> object: ...
