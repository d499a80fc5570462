"""Chooses the source for a file, by the given format or the file's name."""

from __future__ import annotations

import io
import os

from kstore.cli.sources.arrow_files import Arrow, ArrowStream, Parquet
from kstore.cli.sources.csv_files import Csv
from kstore.cli.sources.json_lines import JsonLines
from kstore.cli.sources.row_source import Mapping, Progress, Source
from kstore.errors import ConfigError

__all__ = ["FORMATS", "open_source"]

FORMATS = ("csv", "jsonl", "parquet", "arrow")

_SUFFIXES = {
    "csv": "csv", "tsv": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "parquet": "parquet",
    "pq": "parquet", "arrow": "arrow", "arrows": "arrow", "feather": "arrow", "ipc": "arrow",
}  # fmt: skip
_COMPRESSED = ("gz", "bz2", "zst")


def open_source(path: str, mapping: Mapping, format: str | None, progress: Progress) -> Source:
    """Open a file, or standard input for `-`, and check its columns.

    Without `format` the file's name decides. `progress` is called with the number of bytes read. Raises
    `InvalidRecordError`, `ConfigError` and `OSError`.
    """
    kind = format or _format_of(path)
    if kind in ("parquet", "arrow") and path != "-":
        return (Parquet if kind == "parquet" else Arrow)(path, mapping, progress)
    if kind == "parquet":
        raise ConfigError("a Parquet file is read from its end: it cannot come through standard input")
    name = "standard input" if path == "-" else path
    # Not through sys.stdin: a thread that waits in its buffer holds the buffer's lock, and the process could not exit.
    file = io.FileIO(0, closefd=False) if path == "-" else io.FileIO(path)
    if kind == "arrow":
        return ArrowStream(name, mapping, file, progress)
    try:
        return Csv(name, mapping, file, progress, path) if kind == "csv" else JsonLines(name, mapping, file, progress)
    except BaseException:
        file.close()
        raise


def _format_of(path: str) -> str:
    if path == "-":
        raise ConfigError(f"--format is needed for standard input: {', '.join(FORMATS)}")
    parts = os.path.basename(path).lower().split(".")
    if len(parts) > 2 and parts[-1] in _COMPRESSED:
        parts.pop()
    if len(parts) < 2 or parts[-1] not in _SUFFIXES:
        raise ConfigError(f"{path}: the name does not tell the format; --format does: {', '.join(FORMATS)}")
    return _SUFFIXES[parts[-1]]
