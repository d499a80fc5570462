"""Writes records into one file: Parquet, Arrow, an Arrow stream, CSV or JSON lines.

The records come in pieces: kstore's `Columns`, or record batches of PyArrow with any columns, always the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol

from kstore.base import optional
from kstore.cli.sinks.arrow_batches import Batches
from kstore.cli.sinks.csv_writer import CsvWriter
from kstore.cli.sinks.json_lines_writer import JsonLines
from kstore.cli.sinks.piece import Piece

__all__ = ["CODECS", "SUFFIXES", "Writer", "open_writer"]

SUFFIXES = {
    "parquet": "parquet", "pq": "parquet", "arrow": "arrow", "feather": "arrow", "ipc": "arrow", "arrows": "arrows",
    "csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl",
}  # fmt: skip
"""The format that the end of a file's name tells."""

CODECS = {
    "parquet": ("snappy", "gzip", "zstd", "lz4", "brotli", "none"),
    "arrow": ("none", "lz4", "zstd"),
    "arrows": ("none", "lz4", "zstd"),
    "csv": ("none", "gzip"),
    "jsonl": ("none", "gzip"),
}
"""The codecs of each format; the first one is the default."""


class Writer(Protocol):
    """Writes one file."""

    def write(self, piece: Piece) -> None:
        """Write the rows of a piece. A piece without rows tells the columns of the file."""

    def close(self) -> None:
        """End the file, but leave the file object open."""


def open_writer(file: BinaryIO, kind: str, codec: str, names: Sequence[str], *, as_text: bool) -> Writer:
    """Return the writer of a file of this format; raise `ConfigError` if PyArrow is needed and missing.

    `names` are the columns of the file, in this order: `topic`, `partition`, and columns that the pieces have. With
    `as_text` the columns `key` and `value` become text in Parquet and Arrow files; in CSV files they always are.
    """
    if kind == "jsonl":
        return JsonLines(file, codec, names)
    if kind == "csv":
        return CsvWriter(file, codec, names)
    return _Table(file, kind, codec, Batches(names, "leave --text out" if as_text else None))


class _Table:
    """Writes Parquet files, Arrow files and Arrow streams."""

    def __init__(self, file: BinaryIO, kind: str, codec: str, batches: Batches) -> None:
        self._pa = optional.pyarrow("a Parquet or Arrow file", "parquet", "ipc")
        self._file, self._kind, self._codec, self._batches = file, kind, codec, batches
        self._writer: Any = None

    def write(self, piece: Piece) -> None:
        batch = self._batches.of(piece)
        if self._writer is None:
            self._writer = self._open(batch.schema)
        if batch.num_rows and self._kind == "parquet":
            self._writer.write_batch(batch, row_group_size=batch.num_rows)
        elif batch.num_rows:
            self._writer.write_batch(batch)

    def _open(self, schema: Any) -> Any:
        pa = self._pa
        if self._kind == "parquet":
            return pa.parquet.ParquetWriter(self._file, schema, compression=self._codec)
        codec = None if self._codec == "none" else self._codec
        how = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=False)
        make = pa.ipc.new_stream if self._kind == "arrows" else pa.ipc.new_file
        return make(self._file, schema, options=how)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
