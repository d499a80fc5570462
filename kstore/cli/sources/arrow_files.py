"""Reads Parquet files, Arrow files and Arrow streams with PyArrow."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterator
from typing import Any

from kstore.base import optional
from kstore.cli.sources import arrow_rows, row_source, text_files
from kstore.cli.sources.row_source import Mapping, Progress, Rows, Source

__all__ = ["Arrow", "ArrowStream", "Parquet"]


_DICTIONARY_ENCODINGS = frozenset(("PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY", "BIT_PACKED"))
_UNKNOWN_ROWS = 1024  # read at a time if an encoding may store a prefix once for many values


class Parquet(Source):
    """One Parquet file."""

    def __init__(self, path: str, mapping: Mapping, progress: Progress) -> None:
        super().__init__(path, mapping)
        self._pa = optional.pyarrow("a Parquet file", "parquet", "compute")
        self._size, self._progress = os.stat(path).st_size, progress
        with _named_errors(self, self._pa):
            self._file = self._pa.parquet.ParquetFile(path)
        schema = self._file.schema_arrow
        self.check_names(schema.names)
        arrow_rows.check_types(self, schema)
        self._check_nulls()
        self._check_sizes()
        names, self._has_others = _dictionary_columns(self._file.metadata)
        self._file.close()
        # A small dictionary may expand to gigabytes of rows, so batches are sliced before it is replaced by its values.
        with _named_errors(self, self._pa):
            self._file = self._pa.parquet.ParquetFile(path, read_dictionary=names)

    def close(self) -> None:
        self._file.close()

    def _check_sizes(self) -> None:
        """Raise `InvalidRecordError` if the footer shows values that are too large for a row."""
        meta = self._file.metadata
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            for column in map(group.column, range(group.num_columns)):
                most = row_source.ROW_BYTES * max(column.num_values, 1)
                if column.total_uncompressed_size > most:
                    raise self.wrong(
                        f"column {column.path_in_schema!r} of row group {number} has {column.total_uncompressed_size} "
                        f"bytes in {column.num_values} values, where at most {row_source.ROW_BYTES} bytes a row are "
                        "taken"
                    )

    def _check_nulls(self) -> None:
        """Raise `InvalidRecordError` if the statistics show nulls in the column of timestamps."""
        if self.mapping.sorts_out:
            return
        name, meta, first = self.mapping.timestamp, self._file.metadata, 1
        for group_number in range(meta.num_row_groups):
            group = meta.row_group(group_number)
            for column_number in range(group.num_columns if name is not None else 0):
                column = group.column(column_number)
                statistics = column.statistics if column.path_in_schema == name else None
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    last = first + group.num_rows - 1
                    message = f"column {name!r} has {statistics.null_count} nulls in rows {first} to {last}"
                    raise self.wrong(f"{message}, where each record needs a timestamp")
            first += group.num_rows

    def pieces(self) -> Iterator[Rows]:
        meta = self._file.metadata
        size = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
        batch_rows = max(1, min(row_source.BATCH_ROWS, row_source.BATCH_BYTES * meta.num_rows // max(size, 1)))
        first, reported = 1, 0
        with _named_errors(self, self._pa):
            columns = None if self.mapping.value is None else list(self.mapping.columns)
            if self._has_others:
                batch_rows = min(batch_rows, _UNKNOWN_ROWS)
            # PyArrow cannot join nested dictionaries of two row groups in one batch.
            batches = (
                self._file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns)
                for group in range(meta.num_row_groups)
            )
            for batch in itertools.chain.from_iterable(batches):
                for part in arrow_rows.cut(self, batch, first):
                    yield arrow_rows.rows_of(self, part, first)
                    first += part.num_rows
                read = self._size * (first - 1) // max(meta.num_rows, 1)
                self._progress(read - reported)
                reported = read


def _dictionary_columns(meta: Any) -> tuple[list[str], bool]:
    """Return the columns of bytes to read as dictionaries, and whether others may expand beyond their stored size."""
    names: dict[str, None] = {}
    others = set()
    for group in map(meta.row_group, range(meta.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.physical_type == "BYTE_ARRAY":
                names[column.path_in_schema] = None
                if not _DICTIONARY_ENCODINGS.issuperset(column.encodings):
                    others.add(column.path_in_schema)
    return [name for name in names if name not in others], bool(others)


class _Batches(Source):
    """Yields record batches of any size in pieces."""

    def _cut(self, batch: Any, first: int) -> Iterator[Rows]:
        batch.validate(full=True)  # the file may contain any offsets and lengths
        rows = max(1, min(row_source.BATCH_ROWS, row_source.BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        if self.mapping.value is not None:
            batch = batch.select(list(self.mapping.columns))
        for start in range(0, batch.num_rows, rows):
            yield arrow_rows.rows_of(self, batch.slice(start, rows), first + start)

    def _check(self, schema: Any) -> None:
        self.check_names(schema.names)
        arrow_rows.check_types(self, schema)


class Arrow(_Batches):
    """One Arrow file, or a file that contains an Arrow stream."""

    def __init__(self, path: str, mapping: Mapping, progress: Progress) -> None:
        super().__init__(path, mapping)
        self._pa = optional.pyarrow("an Arrow file", "ipc", "compute")
        self._size, self._progress = os.stat(path).st_size, progress
        self._file: Any = None
        with _named_errors(self, self._pa):
            self._file = self._pa.OSFile(path)
            is_file = self._file.read(6) == b"ARROW1"
            self._file.seek(0)
            self._reader = (self._pa.ipc.open_file if is_file else self._pa.ipc.open_stream)(self._file)
        self._is_file = is_file
        self._check(self._reader.schema)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def pieces(self) -> Iterator[Rows]:
        first, reported = 1, 0
        with _named_errors(self, self._pa):
            for batch in self._all():
                yield from self._cut(batch, first)
                first += batch.num_rows
                read = min(self._file.tell(), self._size)
                self._progress(max(read - reported, 0))
                reported = max(read, reported)

    def _all(self) -> Iterator[Any]:
        if self._is_file:
            return map(self._reader.get_batch, range(self._reader.num_record_batches))
        return iter(self._reader)


class ArrowStream(_Batches):
    """An Arrow stream on standard input."""

    def __init__(self, name: str, mapping: Mapping, file: io.FileIO, progress: Progress) -> None:
        super().__init__(name, mapping)
        self._pa = optional.pyarrow("an Arrow stream", "ipc", "compute")
        self._text = io.BufferedReader(text_files.Counted(file, progress), 1 << 20)
        with _named_errors(self, self._pa):
            if self._text.peek(6)[:6] == b"ARROW1":
                raise self.wrong("an Arrow file is read from its end: a stream can come through standard input")
            self._reader = self._pa.ipc.open_stream(self._text)
        self._check(self._reader.schema)

    def close(self) -> None:
        self._text.close()

    def pieces(self) -> Iterator[Rows]:
        first = 1
        with _named_errors(self, self._pa):
            for batch in self._reader:
                yield from self._cut(batch, first)
                first += batch.num_rows


@contextlib.contextmanager
def _named_errors(source: Source, pa: Any) -> Iterator[None]:
    """Turn PyArrow's errors about a file's contents into errors that name the file."""
    try:
        yield
    except (pa.ArrowException, pa.ArrowInvalid) as error:
        raise source.wrong(" ".join(str(error).split())) from None
    except OSError as error:
        # System errors have an errno; PyArrow's errors about a file's contents have none.
        if error.errno is not None:
            raise
        raise source.wrong(" ".join(str(error).split())) from None
