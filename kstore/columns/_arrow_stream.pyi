"""An iterator of `Columns` as an Arrow stream, through which `pyarrow`, `polars`, `duckdb` and `pandas` read a log."""

from collections.abc import Iterable

from kstore.columns._columns import Columns

def stream_capsule(chunks: Iterable[Columns], fields: tuple[tuple[str, str], ...], owner: object = None) -> object:
    """An `arrow_array_stream` capsule of an iterator of `Columns`, with the fields as `fields_of` gives them.

    `owner` is kept alive until the stream is released.
    """
