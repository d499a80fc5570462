"""Writes CSV with PyArrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

from kstore.base import optional
from kstore.cli.sinks.arrow_batches import Batches
from kstore.cli.sinks.packed_file import PackedFile
from kstore.cli.sinks.piece import Piece
from kstore.errors import ConfigError, InvalidRecordError

__all__ = ["CsvWriter"]


class CsvWriter:
    """Writes CSV: text in UTF-8, times in ISO 8601, an empty cell for null and "" for empty text."""

    def __init__(self, file: BinaryIO, codec: str, names: Sequence[str]) -> None:
        self._pa = optional.pyarrow("a CSV file", "csv", "compute")
        self._batches = Batches(names, "a CSV file holds text: --columns leaves it out, other formats hold bytes")
        self._file = PackedFile(file, codec)
        self._is_new = True

    def write(self, piece: Piece) -> None:
        pa = self._pa
        batch = self._batches.of(piece)
        if not batch.num_rows and not self._is_new:
            return
        cells = [self._cells(name, array) for name, array in zip(batch.schema.names, batch.columns, strict=True)]
        options = pa.csv.WriteOptions(include_header=self._is_new)
        sink = pa.BufferOutputStream()
        pa.csv.write_csv(pa.record_batch(cells, names=batch.schema.names), sink, options)
        self._file.write(sink.getvalue())
        self._is_new = False

    def _cells(self, name: str, array: Any) -> Any:
        """Return a column in a type that has a form in CSV."""
        pa = self._pa
        types = pa.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        kind = array.type
        if types.is_timestamp(kind):
            zone = "" if kind.tz is None else "Z"  # Arrow keeps times in UTC
            return pa.compute.strftime(array.cast(pa.timestamp(kind.unit)), f"%Y-%m-%dT%H:%M:%S{zone}")
        if types.is_nested(kind):
            raise ConfigError(f"column {name!r} is of type {kind}, which a cell of a CSV file cannot hold")
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
            try:
                return array.cast(pa.string())
            except pa.ArrowInvalid:
                raise InvalidRecordError(f"a {name} is no UTF-8, and a CSV file holds text") from None
        return array

    def close(self) -> None:
        self._file.close()
