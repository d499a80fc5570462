"""Writes CSV with PyArrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from kstore.base import optional
from kstore.cli.sinks.arrow_batches import Batches
from kstore.cli.sinks.packed_file import PackedFile
from kstore.cli.sinks.piece import Piece
from kstore.errors import ConfigError, InvalidRecordError

__all__ = ["CsvWriter"]

_ADVICE = "a CSV file holds text: --columns leaves it out, other formats hold bytes"
_YEAR_1_MS, _YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000


class CsvWriter:
    """Writes CSV: text in UTF-8, times in ISO 8601, an empty cell for null and "" for empty text."""

    def __init__(self, file: BinaryIO, codec: str, names: Sequence[str]) -> None:
        self._pa = optional.pyarrow("a CSV file", "csv", "compute")
        self._batches = Batches(names, _ADVICE)
        self._file = PackedFile(file, codec)
        self._is_new = True

    def write(self, piece: Piece) -> None:
        pa = self._pa
        batch = self._batches.of(piece)
        if not batch.num_rows and not self._is_new:
            return
        cells = [self._cells(piece, name, array) for name, array in zip(batch.schema.names, batch.columns, strict=True)]
        options = pa.csv.WriteOptions(include_header=self._is_new)
        sink = pa.BufferOutputStream()
        pa.csv.write_csv(pa.record_batch(cells, names=batch.schema.names), sink, options)
        self._file.write(sink.getvalue())
        self._is_new = False

    def _cells(self, piece: Piece, name: str, array: Any) -> Any:
        """Return a column in a type that has a form in CSV."""
        pa = self._pa
        types = pa.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        kind = array.type
        if types.is_timestamp(kind):
            return self._moments(array)
        if types.is_nested(kind):
            raise ConfigError(f"column {name!r} is of type {kind}, which a cell of a CSV file cannot hold")
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
            try:
                return array.cast(pa.string())
            except pa.ArrowInvalid:
                where = f"{piece.topic}-{piece.partition}"
                raise InvalidRecordError(f"{where}: a {name} is no UTF-8; {_ADVICE}") from None
        return array

    def _moments(self, array: Any) -> Any:
        """Return times in ISO 8601, which Arrow keeps in UTC if they have a zone."""
        pa = self._pa
        zone = "" if array.type.tz is None else "Z"
        times = array.cast(pa.timestamp(array.type.unit))
        extremes = pa.compute.min_max(times.cast(pa.int64())).as_py()
        if (
            array.type.unit != "ms"
            or array.null_count == len(array)
            or (extremes["min"] >= _YEAR_1_MS and extremes["max"] < _YEAR_10000_MS)
        ):
            return pa.compute.strftime(times, f"%Y-%m-%dT%H:%M:%S{zone}")
        texts = np.datetime_as_string(times.to_numpy(zero_copy_only=False))  # Arrow writes nonsense for such years
        return pa.array([None if text == "NaT" else text + zone for text in texts.tolist()], pa.string())

    def close(self) -> None:
        self._file.close()
