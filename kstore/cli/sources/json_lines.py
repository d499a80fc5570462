"""Reads JSON lines without PyArrow: with orjson if it is installed, otherwise with Python's `json`."""

from __future__ import annotations

import base64
import binascii
import codecs
import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from kstore.cli.sources import row_source, text_files
from kstore.cli.sources.row_source import Mapping, Progress, Refused, Rows, Source
from kstore.cli.sources.timestamps import milliseconds_of
from kstore.errors import InvalidRecordError

__all__ = ["JsonLines", "span_of"]

_LONG = re.compile(rb"[0-9]{19}")  # a line without this many digits in a row has no number beyond 64 bits


class JsonLines(Source):
    """One file, with an object in each line. A column NAME is the field NAME, or NAME_base64 decoded from base64."""

    word = "line"

    def __init__(self, name: str, mapping: Mapping, file: io.FileIO, progress: Progress) -> None:
        super().__init__(name, mapping)
        self._text = text_files.unpacked(file, progress)
        self._loads, self._error = _json_reader()
        self._exact = _exact_reader()
        self._ahead: list[bytes] = self._read()
        if self._ahead:
            self._ahead[0] = self._ahead[0].removeprefix(codecs.BOM_UTF8)
        self._check_columns()

    def close(self) -> None:
        self._text.close()

    def _read(self) -> list[bytes]:
        with text_files.named_errors(self):
            return self._text.readlines(row_source.PIECE_BYTES)

    def _check_columns(self) -> None:
        """Raise an error if all rows of the first piece lack a column. In a single row a missing column is null."""
        missing = set(self.mapping.columns)
        names: dict[str, None] = {}
        for number, line in enumerate(self._ahead, 1):
            if not missing:
                return
            try:
                row = self._object(number, line)
            except InvalidRecordError:
                if not self.mapping.sorts_out:
                    raise
                continue
            names.update(dict.fromkeys(row or ()))
            missing -= {name for name in missing if name in names or f"{name}_base64" in names}
        if missing and names:
            self.check_names(list(names))

    def pieces(self) -> Iterator[Rows]:
        first = 1
        while self._ahead:
            lines, self._ahead = self._ahead, []
            yield self._rows(lines, first)
            first += len(lines)
            self._ahead = self._read()

    def _object(self, number: int, line: bytes) -> dict[str, Any] | None:
        """Parse a line's object; None for an empty line."""
        if line.isspace() or not line:
            return None
        try:
            row = self._loads(line)
        except (self._error, RecursionError) as error:
            raise self.wrong(f"no JSON: {error}: {line[:60]!r}", number) from None
        if not isinstance(row, dict):
            raise self.wrong(f"no JSON object: {line[:60]!r}", number)
        return row

    def _with_exact_numbers(self, row: dict[str, Any], line: bytes) -> dict[str, Any]:
        """Return the row with exact whole numbers: orjson turns whole numbers beyond 64 bits into floats."""
        for name in self.mapping.columns:
            if isinstance(row.get(name), float | list | dict) and _LONG.search(line):
                try:
                    return dict(self._exact(line))
                except RecursionError as error:
                    raise ValueError(f"no JSON: {error}") from None
        return row

    def _rows(self, lines: list[bytes], first: int) -> Rows:
        mapping = self.mapping
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        times: list[int] = []
        headers: list[Any] = []
        numbers: list[int] = []
        refused: list[Refused] = []
        for number, line in enumerate(lines, first):
            try:
                row = self._object(number, line)
                if row is None:
                    continue
                record = self._record(row, line, number)
            except InvalidRecordError as error:
                if not mapping.sorts_out:
                    raise
                refused.append(Refused(number, error.record_errors[0][1], line.rstrip(b"\r\n")))
                continue
            value, key, time, pairs = record
            values.append(value)
            if mapping.key is not None:
                keys.append(key)
            if mapping.timestamp is not None:
                times.append(time)
            if mapping.headers is not None:
                headers.append(pairs)
            if mapping.sorts_out:
                numbers.append(number)
        return Rows(
            first,
            len(values),
            values,
            keys if mapping.key is not None else None,
            times if mapping.timestamp is not None else None,
            headers if mapping.headers is not None else None,
            span_of(times),
            tuple(refused),
            numbers,
            lambda index: lines[numbers[index] - first].rstrip(b"\r\n"),
        )

    def _record(self, row: dict[str, Any], line: bytes, number: int) -> tuple[bytes | None, bytes | None, int, Any]:
        """Return a row's value, key, timestamp and headers, with None and -1 for what the mapping does not name."""
        mapping = self.mapping
        try:
            row = self._with_exact_numbers(row, line)
            return (
                line.strip() if mapping.value is None else _cell(row, mapping.value),
                None if mapping.key is None else _cell(row, mapping.key),
                -1
                if mapping.timestamp is None
                else milliseconds_of(row.get(mapping.timestamp), mapping.timestamp, mapping.unit),
                None if mapping.headers is None else _headers(row.get(mapping.headers), mapping.headers),
            )
        except (ValueError, UnicodeError) as error:
            raise self.wrong(str(error), number) from None


def span_of(times: list[int]) -> tuple[int, int] | None:
    """Return the least and greatest timestamp, without -1; None if there is none."""
    known = [time for time in times if time >= 0]
    return (min(known), max(known)) if known else None


def _json_reader() -> tuple[Callable[[bytes], Any], type[ValueError]]:
    """Return the fastest installed parser of JSON, and the error that it raises."""
    with contextlib.suppress(ImportError):
        import orjson

        return orjson.loads, orjson.JSONDecodeError

    return _exact_reader(), ValueError


def _exact_reader() -> Callable[[bytes], Any]:
    """Return a parser that keeps whole numbers of any size."""

    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is not in JSON")

    decoder = json.JSONDecoder(parse_constant=refuse)
    return lambda line: decoder.decode(line.decode())


def _cell(row: dict[str, Any], name: str) -> bytes | None:
    """Return a field as bytes: text unchanged, everything else as JSON."""
    value = row.get(name)
    if isinstance(value, str):
        return value.encode()
    if value is not None:
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except ValueError:
            raise ValueError(f"column {name!r} has a number that is larger than a float can be") from None
    packed = row.get(f"{name}_base64")
    if packed is None:
        return None
    try:
        return base64.b64decode(packed, validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError(f"{name}_base64 is no base64: {error}") from None


def _headers(value: Any, name: str) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers from the form that `kstore cat --json` prints, or from an object of names and text."""
    if value is None:
        return ()
    if isinstance(value, dict):
        return tuple((key, _cell(value, key)) for key in value)
    if isinstance(value, list) and all(isinstance(pair, dict) and isinstance(pair.get("key"), str) for pair in value):
        return tuple((pair["key"], _cell(pair, "value")) for pair in value)
    raise ValueError(f"column {name!r} is no list of objects with key and value: {str(value)[:60]!r}")
