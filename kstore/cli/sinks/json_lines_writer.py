"""Writes JSON lines, those of `kstore cat --json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from kstore.cli import decoded_values
from kstore.cli.sinks.packed_file import PackedFile
from kstore.cli.sinks.piece import CONSTANT, Piece
from kstore.cli.sources import json_rows
from kstore.columns import _arrow, _json_columns
from kstore.columns._columns import COLUMN_NAMES

__all__ = ["JsonLines"]


class JsonLines:
    """Writes JSON lines without PyArrow, unless a piece is a record batch."""

    def __init__(self, file: BinaryIO, codec: str, names: Sequence[str]) -> None:
        self._names = [name for name in names if name not in CONSTANT]
        self._constant = {name for name in names if name in CONSTANT}
        self._file = PackedFile(file, codec)

    def write(self, piece: Piece) -> None:
        fields = [(name, *_field(name, piece.column(name))) for name in self._names]
        before = {"topic": piece.topic, "partition": piece.partition}
        prefix = "".join(f"{json.dumps(name)}:{json.dumps(before[name])}," for name in before if name in self._constant)
        if not fields:
            self._file.write(f"{{{prefix[:-1]}}}\n".encode() * piece.size)
            return
        text = _json_columns.render_rows(fields, prefix=prefix.encode(), lines=True)
        if piece.kept is None:
            self._file.write(text)
            return
        ends = np.frombuffer(memoryview(text.ends), np.int64)
        borders = np.flatnonzero(np.diff(piece.kept, prepend=False, append=False))
        for first, end in borders.reshape(-1, 2).tolist():  # runs of rows that count
            self._file.write(memoryview(text)[ends[first] : ends[end]])

    def close(self) -> None:
        self._file.close()


def _field(name: str, column: Any) -> tuple[Any, _arrow.Column]:
    """Return how the renderer writes a column, and the column in the form that it takes."""
    if str(getattr(column, "type", "")).startswith("struct<"):
        return "raw", _arrow.pointers(name, decoded_values.json_texts(column))
    if name in ("key", "value"):
        return "text", next(_arrow.Source(name, "value", column))["value"]
    if name == "headers":
        return "headers", next(_arrow.Source(name, "headers", column))["headers"]
    if name not in COLUMN_NAMES:
        kind, array = json_rows.field(column)
        return kind, json_rows.column(array, name, "timestamp" if kind == "int" else "value")
    numbers = np.asarray(column)
    if numbers.dtype == np.bool_:
        words = [b"true" if is_true else b"false" for is_true in numbers.tolist()]
        return "raw", _arrow.pointers(name, words)
    return "int", _arrow.times(name, numbers)
