"""CSV files, read by PyArrow: every cell as bytes, so that a value is written as it stands."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from kstore.base import optional
from kstore.cli.sources import base, batches, jsonrows, texts
from kstore.cli.sources.base import Mapping, Progress, Rows, Source

__all__ = ["Csv"]


class Csv(Source):
    """One CSV file. PyArrow reads it through `read`."""

    word = "line"

    def __init__(self, name: str, mapping: Mapping, file: io.FileIO, progress: Progress, path: str) -> None:
        super().__init__(name, mapping)
        self._pa = optional.pyarrow("a CSV file", "csv", "compute")
        if mapping.headers is not None:
            raise self.wrong("a cell of a CSV file cannot hold headers: --headers-column is for other formats")
        stem = path.lower().removesuffix(".gz").removesuffix(".bz2").removesuffix(".zst")
        self._delimiter = mapping.delimiter or ("\t" if stem.endswith(".tsv") else ",")
        self._text = texts.unpacked(file, progress)
        self._start = self._read(base.PIECE_BYTES)
        names = list(mapping.names) or self._header()
        self.check_names(names)
        self._names = names
        self._quotes, self._is_read = texts.Quotes(self._delimiter), False
        self._refused: list[Any] = []

    def close(self) -> None:
        self._text.close()

    def _read(self, size: int) -> bytes:
        try:
            return self._text.read(size)
        except texts.UNPACKING_ERRORS as error:
            if not texts.is_unpacking(error):
                raise
            raise self.wrong(f"it cannot be unpacked: {error}") from error

    def _header(self) -> list[str]:
        text = self._start.decode("utf-8-sig", "surrogateescape")
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter)
        try:
            names = next((row for row in rows if row), [])
        except csv.Error as error:
            raise self.wrong(f"the line with the names of the columns: {error}") from None
        if not names:
            raise self.wrong("it is empty: no line names the columns")
        if any("\udc80" <= sign <= "\udcff" for name in names for sign in name):
            raise self.wrong("the names of the columns are no UTF-8")
        return names

    def read(self, size: int = -1) -> bytes:
        """The file's bytes, from the start: PyArrow calls this."""
        piece, self._start = self._start or self._read(max(size, 1)), b""
        self._quotes.take(piece)
        self._is_read = self._is_read or not piece
        return piece

    closed = False  # PyArrow asks for it

    def pieces(self) -> Iterator[Rows]:
        for batch, numbers, first in self._batches():
            yield batches.rows_of(self, batch, first, numbers)

    def _batches(self) -> Iterator[tuple[Any, frozenset[int], int]]:
        """Record batches, each with the columns that hold numbers, and with the number of its first line."""
        pa = self._pa
        whole = self.mapping.value is None
        numbers = None
        first = 1 if self.mapping.names else 2
        try:
            reader = pa.csv.open_csv(
                pa.PythonFile(self, mode="r"),
                read_options=pa.csv.ReadOptions(
                    use_threads=False, block_size=base.PIECE_BYTES, column_names=list(self.mapping.names) or None
                ),
                parse_options=pa.csv.ParseOptions(
                    delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=self._refuse
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, pa.binary()),
                    include_columns=None if whole else list(self.mapping.columns),
                    null_values=["", *self.mapping.nulls],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            for batch in reader:
                if self._is_read and self._quotes.are_open:
                    raise self.wrong(f"a quote is opened that nothing closes, in line {first} or later")
                if not batch.num_rows:
                    continue
                if numbers is None:
                    numbers = jsonrows.number_columns(batch) if whole else frozenset[int]()
                yield batch, numbers, first
                first += batch.num_rows
        except pa.ArrowInvalid as error:
            if self._refused:
                row = self._refused[0]
                count = f"{row.actual_columns} {'column' if row.actual_columns == 1 else 'columns'}"
                message = f"{count} where {row.expected_columns} are expected: {row.text[:60]!r}"
                raise self.wrong(message, row.number) from None
            if "straddling" in str(error):
                message = f"a row is larger than {base.PIECE_BYTES >> 20} MiB, or a quote is not closed"
                raise self.wrong(message, first) from None
            if "Empty CSV" in str(error):
                return
            raise self.wrong(str(error)) from None

    def _refuse(self, row: Any) -> str:
        self._refused.append(row)
        return "error"
