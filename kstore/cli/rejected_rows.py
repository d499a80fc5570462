"""Sorts out the rows that a topic refuses, and writes them to a file of JSON lines with the reasons.

Invariant: a row is in the file, on the disk, before the rows after it are committed or reported as stored.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kstore.base.closing import Closing
from kstore.cli.sources import arrow_rows
from kstore.cli.sources.json_lines import span_of
from kstore.cli.sources.row_source import Refused, Rows, Source, find_refused
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import ConfigError, InvalidColumnError, InvalidRecordError, KStoreError, RecordTooLargeError
from kstore.log.batch_packer import PACK_BYTES, codec_of, too_large
from kstore.log.batch_pipeline import OrderedWork, Pipeline

__all__ = ["RejectsFile", "Sieve"]

_START = b'{"file":'  # of each line
_RECORD = re.compile(r"record [0-9]+: ")


class RejectsFile(Closing):
    """A file of JSON lines, which is created with its first line. Rows are added to a file of earlier runs.

    A context manager. Not thread-safe.
    """

    def __init__(self, path: str, inputs: Iterable[str]) -> None:
        """Raise `ConfigError` if the path is one of the `inputs`, or of a file that has something else."""
        self.path, self.count = path, 0
        self._fd = -1
        directory = os.path.dirname(path) or "."
        if not os.path.isdir(directory):
            raise ConfigError(f"--rejects is {path}: there is no directory {directory}")
        if not os.path.exists(path):
            return
        if any(given != "-" and os.path.exists(given) and os.path.samefile(given, path) for given in inputs):
            raise ConfigError(f"--rejects is {path}, which is a file to read")
        if not os.path.isfile(path):
            raise ConfigError(f"--rejects is {path}, which is no file")
        with open(path, "rb") as file:
            start = file.read(len(_START))
        if start not in (b"", _START):
            raise ConfigError(f"--rejects is {path}, which has something else than rejected rows: {start!r}...")

    def add(self, source: Source, refused: Sequence[Refused]) -> None:
        if not refused:
            return
        lines = b"".join(_line(source, row) for row in refused)
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a power cut has torn the last line
                lines = b"\n" + lines
        while lines:
            lines = lines[os.write(self._fd, lines) :]
        self.count += len(refused)

    def sync(self) -> None:
        """Make the added lines durable."""
        if self._fd >= 0:
            os.fsync(self._fd)
            fs.sync_directory(os.path.dirname(os.path.abspath(self.path)))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _line(source: Source, refused: Refused) -> bytes:
    line: dict[str, object] = {"file": source.name, source.word: refused.number, "reason": refused.reason}
    if refused.row is not None:
        try:
            line["text"] = refused.row.decode()
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(refused.row).decode()
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace") + b"\n"  # a surrogate, from a file's name, becomes its JSON escape


@dataclass(frozen=True, slots=True)
class _Topic:
    config: LogConfig


class Sieve:
    """Writes the rows that cannot be read, or that the topic refuses, to a file; and returns the others."""

    def __init__(self, file: RejectsFile, config: LogConfig, compression: str | None, batch_bytes: int | None) -> None:
        self._file, self._topic = file, _Topic(config)
        self._codec, self._batch_bytes = codec_of(config, compression), batch_bytes

    def sift(self, source: Source, rows: Rows, now_ms: int) -> Rows:
        wrong = find_refused(rows.size, lambda start, end: self._error_of(_cut(rows, start, end), now_ms))
        refused = [
            Refused(rows.numbers[index], _RECORD.sub("", str(error), count=1), rows.text(index))
            for index, error in wrong
        ]
        self._file.add(source, sorted([*rows.refused, *refused], key=lambda row: row.number))
        return _without(rows, {index for index, _ in wrong}) if wrong else rows

    def _error_of(self, columns: tuple[Any, Any, Any, Any], now_ms: int) -> KStoreError | None:
        """Encode rows as an append does, and return its error."""
        work = OrderedWork(1)
        pipeline = Pipeline(
            self._topic, work, _drop, _drop, codec=self._codec, batch_bytes=self._batch_bytes, now_ms=now_ms
        )
        work.send_rest = pipeline.send
        try:
            with work:
                for part in ColumnInput(*columns, now_ms):
                    while _column_encoder.pack(pipeline.packer, part, PACK_BYTES):
                        pipeline.send()
                _column_encoder.close(pipeline.packer)
        except RecordTooLargeError as error:
            return too_large(self._topic.config, error)
        except (InvalidRecordError, InvalidColumnError) as error:
            return error
        return None


def _drop(_: Any) -> None:
    pass


def _columns(rows: Rows, change: Callable[[Any], Any]) -> tuple[Any, Any, Any, Any]:
    """Return the columns that there are, changed."""

    def column(found: Any) -> Any:
        return None if found is None else change(found)

    return column(rows.values), column(rows.keys), column(rows.timestamps), column(rows.headers)


def _cut(rows: Rows, start: int, end: int) -> tuple[Any, Any, Any, Any]:
    """Return the columns of the rows in `[start, end)`."""
    return _columns(
        rows, lambda column: column[start:end] if isinstance(column, list) else column.slice(start, end - start)
    )


def _without(rows: Rows, left_out: set[int]) -> Rows:
    kept = [index for index in range(rows.size) if index not in left_out]

    def rest(column: Any) -> Any:
        return [column[index] for index in kept] if isinstance(column, list) else arrow_rows.taken(column, kept)

    values, keys, times, headers = _columns(rows, rest)
    span = None if times is None else span_of(times) if isinstance(times, list) else arrow_rows.span_of(times)
    return Rows(rows.first, len(kept), values, keys, times, headers, span)
