"""Reads a log into columns: as chunks (`Columns`), as an Arrow stream, or as a table with a row for each batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from kstore.base import arguments
from kstore.base.numbers import LONG_MAX
from kstore.base.threads import ForkLock
from kstore.columns import _arrow_stream, _batch_table, _column_reader, _columns
from kstore.columns._columns import Columns
from kstore.columns.keyed_rows import checked_columns, checked_layout
from kstore.log.column_source import ColumnSource
from kstore.log.reading.log_reader import open_reader
from kstore.log.reading.read_options import ReadOptions
from kstore.log.reading.view import View

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

T = TypeVar("T")
Layout = Literal["binary", "large_binary", "view"]

CHUNK_BYTES = 4 << 20  # the size of a chunk of `iter_columns`: about ten thousand records, which fit the CPU caches
NO_LIMIT = LONG_MAX


class ColumnOptions(NamedTuple):
    """Which columns to read, and how large the chunks are."""

    names: tuple[str, ...]
    layout: Layout
    threads: int
    most_rows: int
    most_bytes: int
    in_chunks: bool = False  # the reader chooses the chunks and reads ahead


def column_options(
    columns: Sequence[str] | None,
    layout: Layout = "binary",
    threads: int | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
    *,
    whole: bool,
) -> ColumnOptions:
    """Check a caller's arguments; if `whole`, a chunk has no default limit of bytes."""
    names = _columns.DEFAULT_COLUMNS
    if columns is not None:
        names = checked_columns(columns, _columns.COLUMN_NAMES, "known")
    count = _column_reader.DEFAULT_THREADS if threads is None else arguments.integer("threads", threads, low=1)
    checked_layout(layout)
    rows = NO_LIMIT if max_records is None else arguments.integer("max_records", max_records, low=1)
    size = NO_LIMIT if whole else CHUNK_BYTES
    if max_bytes is not None:
        size = arguments.integer("max_bytes", max_bytes, low=1)
    if layout == "binary":
        size = min(size, _columns.MAX_BINARY_BYTES)
    if "headers" in names:
        size = min(size, _column_reader.MAX_HEADER_BYTES)
    in_chunks = not whole and max_records is None and max_bytes is None
    return ColumnOptions(names, layout, min(count, _column_reader.MAX_THREADS), rows, size, in_chunks)


def read_chunk(view: View, options: ReadOptions, columns: ColumnOptions) -> Columns:
    """Read one chunk; see `Log.read_columns`."""
    source = ColumnSource(open_reader(view, options), _reader(view, columns))
    return source.next(columns.most_rows, columns.most_bytes, whole=True)


def iterate_chunks(view: View, options: ReadOptions, columns: ColumnOptions, owner: object) -> Iterator[Columns]:
    """Iterate over chunks; see `Log.iter_columns`."""
    source = ColumnSource(open_reader(view, options, owner), _reader(view, columns))
    return _chunks(source, columns)


def _chunks(source: ColumnSource, columns: ColumnOptions) -> Iterator[Columns]:
    while not source.is_done:
        chunk = source.next(columns.most_rows, columns.most_bytes, whole=False)
        if len(chunk) == 0:
            return
        yield chunk


def read_kept(view: View, offsets: NDArray[int64], end_offset: int, names: tuple[str, ...]) -> list[Columns]:
    """Read the records at `offsets`, which increase and are below `end_offset`, into one or more `Columns`.

    Offsets that are not in the log are left out. Raises as `Log.read_columns` does.
    """
    start = int(offsets[0]) if len(offsets) else end_offset
    columns = column_options(names, threads=1, whole=True)
    reader = _reader(view, columns)
    reader.keep_only(offsets)
    source = ColumnSource(open_reader(view, ReadOptions(start, end_offset)), reader)
    chunks = [source.next(columns.most_rows, columns.most_bytes, whole=True)]
    while not source.is_done:
        chunks.append(source.next(columns.most_rows, columns.most_bytes, whole=True))
    return chunks


def read_batch_table(view: View, options: ReadOptions) -> Columns:
    """Read the headers of batches; see `Log.batch_table`."""
    table = _batch_table.BatchTable(threads=_column_reader.DEFAULT_THREADS)
    return ColumnSource(open_reader(view, options), table).next(NO_LIMIT, NO_LIMIT, whole=True)


def _reader(view: View, columns: ColumnOptions) -> _column_reader.Reader:
    return _column_reader.Reader(
        columns.names,
        columns.layout,
        max_decompressed_bytes=view.max_decompressed_bytes,
        threads=columns.threads,
        in_chunks=columns.in_chunks,
    )


def stream_fields(
    names: tuple[str, ...], default: tuple[str, ...], requested_schema: object
) -> tuple[tuple[tuple[str, str], ...], Layout]:
    """Return the fields of an Arrow stream, and the layout in which keys and values are read for it.

    A requested schema chooses from the columns `names`; without it the stream has the columns `default`.
    """
    fields = _columns.fields_of(default if requested_schema is None else names, "binary", requested_schema)
    layouts = (_columns.layout_of(text) for name, text in fields if name in ("key", "value"))
    return fields, next(layouts, "binary")


class StreamEnd(Generic[T]):
    """Where streams end. Each of these streams keeps this object alive."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: T) -> None:
        self.value = value


_handing_over = ForkLock()


class SharedEnd(Generic[T]):
    """Lets all streams that are open at the same time end at the same place. Thread-safe."""

    _shared: weakref.ref[StreamEnd[T]] | None = None

    def get(self, find: Callable[[], T]) -> StreamEnd[T]:
        """Return the end of the open streams; if none is open, the one that `find` returns."""
        end = self._of_open_streams()
        if end is not None:
            return end
        found = StreamEnd(find())
        with _handing_over.mutex:
            end = self._of_open_streams()
            if end is None:
                end, self._shared = found, weakref.ref(found)
            return end

    def _of_open_streams(self) -> StreamEnd[T] | None:
        return None if self._shared is None else self._shared()


class ArrowStreams:
    """Makes the Arrow streams of one log; all streams open at the same time end at the same offset. Thread-safe."""

    def __init__(self) -> None:
        self._end: SharedEnd[int] = SharedEnd()

    def schema(self) -> object:
        return _columns.schema_capsule(_columns.fields_of(_columns.DEFAULT_COLUMNS, "binary"))

    def stream(self, view: View, requested_schema: object, owner: object) -> object:
        """Return the whole log as an Arrow stream; see `Log.__arrow_c_stream__`."""
        fields, layout = stream_fields(_columns.COLUMN_NAMES, _columns.DEFAULT_COLUMNS, requested_schema)
        columns = column_options(tuple(name for name, _ in fields), layout, whole=False)

        def find_end() -> int:
            view.refresh()
            return view.log_end_offset

        end = self._end.get(find_end)
        chunks = iterate_chunks(view, ReadOptions(end_offset=end.value), columns, owner)
        return _arrow_stream.stream_capsule(chunks, fields, end)
