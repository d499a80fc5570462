"""Reads CSV files with PyArrow. Every cell is read as bytes, so that values are written unchanged.

PyArrow gets pieces in memory that end with a whole row. PyArrow would read a Python file in a thread, and not join the
thread after an error. If such a thread still reads when the interpreter exits, the process aborts.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from kstore.base import optional
from kstore.cli.sources import arrow_rows, json_rows, row_source, text_files
from kstore.cli.sources.row_source import Mapping, Progress, Refused, Rows, Source
from kstore.errors import InvalidRecordError

__all__ = ["Csv"]


class Csv(Source):
    """One CSV file."""

    word = "line"

    def __init__(self, name: str, mapping: Mapping, file: io.FileIO, progress: Progress, path: str) -> None:
        super().__init__(name, mapping)
        self._pa = optional.pyarrow("a CSV file", "csv", "compute")
        if mapping.headers is not None:
            raise self.wrong("a cell of a CSV file cannot hold headers: --headers-column is for other formats")
        stem = path.lower().removesuffix(".gz").removesuffix(".bz2").removesuffix(".zst")
        self._delimiter = mapping.delimiter or ("\t" if stem.endswith(".tsv") else ",")
        self._text = text_files.unpacked(file, progress)
        self._start = self._read(row_source.PIECE_BYTES).removeprefix(codecs.BOM_UTF8)
        names = list(mapping.names) or self._header()
        self.check_names(names)
        self._names = names
        self._refused: list[Any] = []
        self._line = 1
        """The first line of the next piece."""

    def close(self) -> None:
        self._text.close()

    def _read(self, size: int) -> bytes:
        with text_files.named_errors(self):
            return self._text.read(size)

    def _header(self) -> list[str]:
        text = self._start.decode("utf-8", "surrogateescape")
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

    def pieces(self) -> Iterator[Rows]:
        for batch, numbers, lines, refused in self._batches():
            yield arrow_rows.rows_of(self, batch, lines[0] if lines else 1, numbers, lines=lines, refused=refused)

    def _batches(self) -> Iterator[tuple[Any, frozenset[int], Sequence[int], list[Refused]]]:
        """Yield record batches, each with the columns that hold numbers, its lines' numbers, and the refused lines."""
        whole = self.mapping.value is None
        numbers = None
        self._line = first = 1 if self.mapping.names else 2
        has_names = not self.mapping.names
        for piece in self._whole_rows():
            try:
                batches = self._parse(piece, None if has_names else self._names)
            except self._pa.ArrowInvalid as error:
                raise self._named(error, first, 0 if has_names else first - 1) from None
            refused, self._refused = self._sorted_out(0 if has_names else first - 1), []
            has_names = False
            bad = {row.number for row in refused}
            end = first + sum(batch.num_rows for batch in batches) + len(bad)
            lines = [line for line in range(first, end) if line not in bad] if bad else range(first, end)
            for batch in [batch for batch in batches if batch.num_rows] or batches[: bool(refused)]:
                if numbers is None and batch.num_rows:
                    numbers = json_rows.number_columns(batch) if whole else frozenset[int]()
                yield batch, numbers or frozenset(), lines[: batch.num_rows], refused
                lines, refused = lines[batch.num_rows :], []
            self._line = first = end

    def _sorted_out(self, before: int) -> list[Refused]:
        """Return the lines of a piece that have too few or too many cells; the piece has `before` lines before it."""
        return [
            Refused(before + row.number, _cells(row), row.text.encode(errors="surrogateescape"))
            for row in self._refused
        ]

    def _whole_rows(self) -> Iterator[bytes]:
        """Yield pieces of the file that end with a whole row."""
        quotes = text_files.Quotes(self._delimiter)
        piece, self._start = self._start, b""
        while piece:
            end = quotes.end_of_rows(piece)
            if not end and len(piece) >= row_source.PIECE_BYTES:
                message = f"a row is larger than {row_source.PIECE_BYTES >> 20} MiB, or a quote is not closed"
                raise self.wrong(message, self._line)
            rest = piece[end:]
            more = self._read(row_source.PIECE_BYTES - len(rest))
            if not more:
                if quotes.are_open(rest):
                    raise self.wrong(f"a quote is opened that nothing closes, in line {self._line} or later")
                end = len(piece)
            if end:
                yield piece[:end]
            piece = rest + more if more else b""

    def _parse(self, piece: bytes, names: list[str] | None) -> list[Any]:
        """Return the record batches of a piece. Without `names` the piece's first line has the names of the columns."""
        pa, mapping = self._pa, self.mapping
        if names is not None:
            piece = b"\n" + piece  # an empty line, so that PyArrow skips no byte order mark at the start of a row
        table = pa.csv.read_csv(
            pa.BufferReader(piece),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(piece) + 1, column_names=names),
            parse_options=pa.csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=self._refuse
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(self._names, pa.binary()),
                include_columns=None if mapping.value is None else list(mapping.columns),
                null_values=["", *mapping.nulls],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return list(table.to_batches()) or [pa.RecordBatch.from_pylist([], table.schema)]

    def _named(self, error: Exception, first: int, before: int) -> InvalidRecordError:
        """Return the error for a piece whose first row is line `first`, and that has `before` lines before it."""
        if self._refused:
            row = self._refused[0]
            return self.wrong(f"{_cells(row)}: {row.text[:60]!r}", before + row.number)
        return self.wrong(str(error), first)

    def _refuse(self, row: Any) -> str:
        self._refused.append(row)
        return "skip" if self.mapping.sorts_out else "error"


def _cells(row: Any) -> str:
    count = f"{row.actual_columns} {'column' if row.actual_columns == 1 else 'columns'}"
    return f"{count} where {row.expected_columns} are expected"
