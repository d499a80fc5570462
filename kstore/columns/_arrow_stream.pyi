"""An iterator of `Columns` as an Arrow stream, through which `pyarrow`, `polars`, `duckdb` and `pandas` read a log."""

from collections.abc import Iterable

from kstore.columns._columns import Columns

def stream_capsule(chunks: Iterable[Columns], fields: tuple[tuple[str, str], ...], owner: object = None) -> object:
    """Return an `arrow_array_stream` capsule of `Columns`, with the fields that `fields_of` returns.

    `owner` is kept alive until the stream is released.
    """
