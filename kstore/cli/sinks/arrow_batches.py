"""Makes record batches of PyArrow of the pieces, with the columns and types of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kstore.base import optional
from kstore.cli.sinks.piece import Piece
from kstore.columns._columns import Columns
from kstore.errors import InvalidRecordError

__all__ = ["Batches"]


class Batches:
    """Makes record batches of one schema, that of the first piece.

    `no_text` is None to leave keys and values binary; otherwise they become text, and it ends the error for a key or
    value that is no UTF-8. Not thread-safe.
    """

    def __init__(self, names: Sequence[str], no_text: str | None = None) -> None:
        self._pa = optional.pyarrow("a Parquet, Arrow or CSV file", "compute")
        self._names, self._no_text = names, no_text
        self._schema: Any = None

    def of(self, piece: Piece) -> Any:
        """Return the rows of a piece that count."""
        pa = self._pa
        batch = pa.record_batch(piece.rows) if isinstance(piece.rows, Columns) else piece.rows
        if piece.kept is not None:
            batch = batch.filter(pa.array(piece.kept))
        if self._schema is None:
            self._schema = pa.schema([self._type(name, batch.schema) for name in self._names])
        arrays = [self._array(name, batch, piece) for name in self._names]
        return pa.record_batch(arrays, schema=self._schema)

    def _type(self, name: str, schema: Any) -> Any:
        pa = self._pa
        if name == "topic":
            return pa.field(name, pa.dictionary(pa.int32(), pa.string()), nullable=False)
        if name == "partition":
            return pa.field(name, pa.int32(), nullable=False)
        if name == "timestamp":
            return pa.field(name, pa.timestamp("ms", "UTC"), nullable=False)
        if name in ("key", "value") and self._no_text is not None and not pa.types.is_struct(schema.field(name).type):
            return pa.field(name, pa.string())
        return schema.field(name)

    def _array(self, name: str, batch: Any, piece: Piece) -> Any:
        pa, rows = self._pa, batch.num_rows
        if name == "topic":
            return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([piece.topic]))
        if name == "partition":
            return pa.array(np.full(rows, piece.partition, np.int32))
        array = batch.column(batch.schema.get_field_index(name))
        try:
            return array.cast(self._schema.field(name).type)
        except pa.ArrowInvalid:
            if name in ("key", "value") and self._no_text is not None:
                raise self._no_utf8(name, array, batch, piece) from None
            raise

    def _no_utf8(self, name: str, array: Any, batch: Any, piece: Piece) -> InvalidRecordError:
        row = next(row for row, value in enumerate(array.to_pylist()) if not _is_utf8(value))
        at = batch.schema.get_field_index("offset")
        where = f", at offset {batch.column(at)[row].as_py()}" if at >= 0 else ""
        return InvalidRecordError(f"{piece.topic}-{piece.partition}: a {name} is no UTF-8{where}; {self._no_text}")


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
