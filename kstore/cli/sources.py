"""Files of rows on their way into a topic: CSV, JSON lines, Parquet and Arrow as columns of records, piece by piece.

A source gives `Rows`, which `Store.append_columns` takes, and holds one piece at a time. PyArrow reads the files; JSON
lines are read without it. The hardest rule: what is wrong is named with its file and row, and what the first look at a
file can tell (its columns, their types) is told before anything is appended.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, NamedTuple

from kstore.cli import jsonrows, needs, texts
from kstore.closing import Closing
from kstore.errors import ConfigError, InvalidRecordError

__all__ = ["FORMATS", "Mapping", "Rows", "Source", "open_source"]

FORMATS = ("csv", "jsonl", "parquet", "arrow")
UNITS = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}

_SUFFIXES = {
    "csv": "csv", "tsv": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "parquet": "parquet",
    "pq": "parquet", "arrow": "arrow", "arrows": "arrow", "feather": "arrow", "ipc": "arrow",
}  # fmt: skip
_COMPRESSED = ("gz", "bz2", "zst")
_PIECE_BYTES = 8 << 20  # of a text file at a time
_BATCH_BYTES, _BATCH_ROWS = 16 << 20, 1 << 17  # of a Parquet or Arrow file
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OUT_OF_RANGE = "before the epoch, or beyond 64 bits of milliseconds (-1 alone means none)"
_DECIMAL = re.compile(
    r"\s*[+-]?[0-9]{1,40}\.[0-9]{0,40}(?:[eE][+-]?[0-9]{1,2})?\s*|\s*[+-]?[0-9]{1,40}[eE][+-]?[0-9]{1,2}\s*"
)
_LONG = re.compile(rb"[0-9]{19}")

Progress = Callable[[int], object]


@dataclass(frozen=True)
class Mapping:
    """Which columns make a record, and how text is read."""

    key: str | None = None
    value: str | None = None
    """None: the whole row as JSON."""
    timestamp: str | None = None
    headers: str | None = None
    unit: str = "ms"
    delimiter: str = ""
    names: tuple[str, ...] = ()
    """The columns of a CSV file that has no line with their names."""
    nulls: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """The columns that must be there."""
        named = (self.key, self.value, self.timestamp, self.headers)
        return tuple(dict.fromkeys(name for name in named if name is not None))


class Rows(NamedTuple):
    """Some rows, as `append_columns` takes them; `first` is the number of the first one in its file, from 1 on."""

    first: int
    size: int
    values: Any
    keys: Any
    timestamps: Any
    headers: Any


class Source(Closing):
    """One file. A context manager. Not thread-safe."""

    word = "row"
    """What its rows are called; lines are those of a CSV file as long as no cell has a line break in it."""

    def __init__(self, name: str, mapping: Mapping) -> None:
        self.name = name
        self.mapping = mapping

    def pieces(self) -> Iterator[Rows]:
        """Read piece by piece; `InvalidRecordError` names the file and the row."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""

    def wrong(self, what: str, row: int | None = None) -> InvalidRecordError:
        """An error about this file."""
        return InvalidRecordError(f"{self.name}: {what}" if row is None else f"{self.name}, {self.word} {row}: {what}")

    def check_names(self, names: Sequence[str]) -> None:
        """Raise for a column that is not there, or there twice."""
        for name in names if self.mapping.value is None else self.mapping.wanted:
            if names.count(name) > 1:
                raise self.wrong(f"there are two columns {name!r}")
        for name in self.mapping.wanted:
            if name not in names:
                there = ", ".join(map(repr, names[:40])) + (", ..." if len(names) > 40 else "")
                raise self.wrong(f"there is no column {name!r}; there is {there or 'none'}")


def open_source(path: str, mapping: Mapping, format: str | None, progress: Progress) -> Source:
    """Open a file, or standard input for `-`, and look at what it says about its columns.

    The format is told by the name if not by `format`. `progress` hears of bytes that were read. Raises
    `InvalidRecordError`, `ConfigError` and `OSError`.
    """
    kind = format or _kind(path)
    if kind in ("parquet", "arrow") and path != "-":
        return (_Parquet if kind == "parquet" else _Arrow)(path, mapping, progress)
    if kind == "parquet":
        raise ConfigError("a Parquet file is read from its end: it cannot come through standard input")
    name = "standard input" if path == "-" else path
    # Standard input is read below Python's own buffer, which could not be waited for and left alone.
    file = io.FileIO(0, closefd=False) if path == "-" else io.FileIO(path)
    if kind == "arrow":
        return _ArrowStream(name, mapping, file, progress)
    source: Source
    try:
        if kind == "csv":
            source = _Csv(name, mapping, file, progress, path)
        else:
            source = _JsonLines(name, mapping, file, progress)
    except BaseException:
        file.close()
        raise
    return source


def _kind(path: str) -> str:
    if path == "-":
        raise ConfigError(f"--format is needed for standard input: {', '.join(FORMATS)}")
    parts = os.path.basename(path).lower().split(".")
    if len(parts) > 2 and parts[-1] in _COMPRESSED:
        parts.pop()
    if len(parts) < 2 or parts[-1] not in _SUFFIXES:
        raise ConfigError(f"{path}: the name does not tell the format; --format does: {', '.join(FORMATS)}")
    return _SUFFIXES[parts[-1]]


class _Csv(Source):
    word = "line"

    def __init__(self, name: str, mapping: Mapping, file: io.FileIO, progress: Progress, path: str) -> None:
        super().__init__(name, mapping)
        self._pa = needs.pyarrow("a CSV file", "csv", "compute")
        if mapping.headers is not None:
            raise self.wrong("a cell of a CSV file cannot hold headers: --headers-column is for other formats")
        stem = path.lower().removesuffix(".gz").removesuffix(".bz2").removesuffix(".zst")
        self._delimiter = mapping.delimiter or ("\t" if stem.endswith(".tsv") else ",")
        self._text = texts.unpacked(file, progress)
        self._start = self._read(_PIECE_BYTES)
        names = list(mapping.names) or self._header()
        self.check_names(names)
        self._names = names
        self._quotes, self._is_read = texts.Quotes(self._delimiter), False
        self._bad: list[Any] = []

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
        try:
            found = next(
                (row for row in csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter) if row), []
            )
        except csv.Error as error:
            raise self.wrong(f"the line with the names of the columns: {error}") from None
        if not found:
            raise self.wrong("it is empty: no line names the columns")
        if any("\udc80" <= sign <= "\udcff" for name in found for sign in name):
            raise self.wrong("the names of the columns are no UTF-8")
        return found

    def read(self, size: int = -1) -> bytes:
        """The file's bytes once more from the start: what PyArrow calls."""
        piece, self._start = self._start or self._read(max(size, 1)), b""
        self._quotes.take(piece)
        self._is_read = self._is_read or not piece
        return piece

    closed = False

    def pieces(self) -> Iterator[Rows]:
        for batch, numbers, first in self._batches():
            yield _mapped(self, batch, first, numbers)

    def _batches(self) -> Iterator[tuple[Any, frozenset[int], int]]:
        pa = self._pa
        whole = self.mapping.value is None
        numbers = None
        first = 1 if self.mapping.names else 2
        try:
            reader = pa.csv.open_csv(
                pa.PythonFile(self, mode="r"),
                read_options=pa.csv.ReadOptions(
                    use_threads=False, block_size=_PIECE_BYTES, column_names=list(self.mapping.names) or None
                ),
                parse_options=pa.csv.ParseOptions(
                    delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=self._refuse
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, pa.binary()),
                    include_columns=None if whole else list(self.mapping.wanted),
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
            if self._bad:
                row = self._bad[0]
                count = f"{row.actual_columns} {'column' if row.actual_columns == 1 else 'columns'}"
                told = f"{count} where {row.expected_columns} are expected: {row.text[:60]!r}"
                raise self.wrong(told, row.number) from None
            if "straddling" in str(error):
                told = f"a row is larger than {_PIECE_BYTES >> 20} MiB, or a quote is not closed"
                raise self.wrong(told, first) from None
            if "Empty CSV" in str(error):
                return
            raise self.wrong(str(error)) from None

    def _refuse(self, row: Any) -> str:
        self._bad.append(row)
        return "error"


# JSON lines.


class _JsonLines(Source):
    """Each line is an object; a column is a field of it, or as base64 its field of that name with `_base64` behind."""

    word = "line"

    def __init__(self, name: str, mapping: Mapping, file: io.FileIO, progress: Progress) -> None:
        super().__init__(name, mapping)
        self._text = texts.unpacked(file, progress)
        self._loads, self._error = _json_reader()
        self._exact = _exact_reader()
        self._ahead: list[bytes] = self._read()
        self._look()

    def close(self) -> None:
        self._text.close()

    def _read(self) -> list[bytes]:
        try:
            return self._text.readlines(_PIECE_BYTES)
        except texts.UNPACKING_ERRORS as error:
            if not texts.is_unpacking(error):
                raise
            raise self.wrong(f"it cannot be unpacked: {error}") from error

    def _look(self) -> None:
        """Some row of the first piece must have each column: rows may leave out what is null."""
        missing = set(self.mapping.wanted)
        names: dict[str, None] = {}
        for row in map(self._object, range(1, len(self._ahead) + 1), self._ahead):
            if not missing:
                return
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
        """A line's object; None for an empty line."""
        if line.isspace() or not line:
            return None
        try:
            row = self._loads(line)
        except (self._error, RecursionError) as error:
            raise self.wrong(f"no JSON: {error}: {line[:60]!r}", number) from None
        if not isinstance(row, dict):
            raise self.wrong(f"no JSON object: {line[:60]!r}", number)
        return row

    def _in_full(self, row: dict[str, Any], line: bytes) -> dict[str, Any]:
        """The row with its whole numbers as they stand, of which orjson makes floats if they are beyond 64 bits."""
        for name in self.mapping.wanted:
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
        for number, line in enumerate(lines, first):
            row = self._object(number, line)
            if row is None:
                continue
            try:
                row = self._in_full(row, line)
                if mapping.value is None:
                    values.append(line.strip())
                else:
                    values.append(_cell(row, mapping.value))
                if mapping.key is not None:
                    keys.append(_cell(row, mapping.key))
                if mapping.timestamp is not None:
                    times.append(_moment(row.get(mapping.timestamp), mapping.timestamp, mapping.unit))
                if mapping.headers is not None:
                    headers.append(_headers(row.get(mapping.headers), mapping.headers))
            except (ValueError, UnicodeError) as error:
                raise self.wrong(str(error), number) from None
        return Rows(
            first,
            len(values),
            values,
            keys if mapping.key is not None else None,
            times if mapping.timestamp is not None else None,
            headers if mapping.headers is not None else None,
        )


def _json_reader() -> tuple[Callable[[bytes], Any], type[ValueError]]:
    """The fastest reader of JSON that is here, and what it raises."""
    with contextlib.suppress(ImportError):
        import orjson

        return orjson.loads, orjson.JSONDecodeError

    return _exact_reader(), ValueError


def _exact_reader() -> Callable[[bytes], Any]:
    """Python's own, which keeps whole numbers of any size."""

    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is not in JSON")

    decoder = json.JSONDecoder(parse_constant=refuse)
    return lambda line: decoder.decode(line.decode())


def _cell(row: dict[str, Any], name: str) -> bytes | None:
    """A field as bytes: text as it is, what is no text as JSON."""
    found = row.get(name)
    if isinstance(found, str):
        return found.encode()
    if found is not None:
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    packed = row.get(f"{name}_base64")
    if packed is None:
        return None
    try:
        return base64.b64decode(packed, validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError(f"{name}_base64 is no base64: {error}") from None


def _moment(found: Any, name: str, unit: str) -> int:
    """Milliseconds since the epoch, from a number of `unit` or from ISO 8601 (in UTC unless it has a zone)."""
    if found is None:
        raise ValueError(f"column {name!r} is null, where each record needs a timestamp")
    moment = _milliseconds(found, unit)
    if moment is None:
        raise ValueError(f"column {name!r} is {str(found)[:60]!r}: no moment in ISO 8601, and no number of {unit}")
    if not -1 <= moment < 1 << 63:
        raise ValueError(f"column {name!r} is {str(found)[:60]!r}: {_OUT_OF_RANGE}")
    return moment


def _milliseconds(found: Any, unit: str) -> int | None:
    if isinstance(found, str):
        with contextlib.suppress(ValueError):
            found = int(found) if found.isascii() else found
    if isinstance(found, int) and not isinstance(found, bool):
        return found * int(UNITS[unit]) if unit in ("s", "ms") else found // round(1 / UNITS[unit])
    if isinstance(found, float) and abs(found) < 1e18:
        return int(found * UNITS[unit] // 1)
    if isinstance(found, str):
        if _DECIMAL.fullmatch(found):
            return math.floor(Fraction(found) * Fraction(str(UNITS[unit])))
        with contextlib.suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(found.strip())
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return (moment - _EPOCH) // timedelta(milliseconds=1)
    return None


def _headers(found: Any, name: str) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as `kstore cat --json` prints them, or an object of names and text."""
    if found is None:
        return ()
    if isinstance(found, dict):
        return tuple((key, _cell(found, key)) for key in found)
    if isinstance(found, list) and all(isinstance(each, dict) and isinstance(each.get("key"), str) for each in found):
        return tuple((each["key"], _cell(each, "value")) for each in found)
    raise ValueError(f"column {name!r} is no list of objects with key and value: {str(found)[:60]!r}")


# Parquet and Arrow.


class _Parquet(Source):
    def __init__(self, path: str, mapping: Mapping, progress: Progress) -> None:
        super().__init__(path, mapping)
        self._pa = needs.pyarrow("a Parquet file", "parquet", "compute")
        self._size, self._progress = os.stat(path).st_size, progress
        with _told(self):
            self._file = self._pa.parquet.ParquetFile(path)
        schema = self._file.schema_arrow
        self.check_names(schema.names)
        _check_types(self, schema)
        self._check_nulls()

    def close(self) -> None:
        self._file.close()

    def _check_nulls(self) -> None:
        """What the statistics tell of nulls where there must be none."""
        name, meta, first = self.mapping.timestamp, self._file.metadata, 1
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            for place in range(group.num_columns if name is not None else 0):
                column = group.column(place)
                statistics = column.statistics if column.path_in_schema == name else None
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    last = first + group.num_rows - 1
                    told = f"column {name!r} has {statistics.null_count} nulls in rows {first} to {last}"
                    raise self.wrong(f"{told}, where each record needs a timestamp")
            first += group.num_rows

    def pieces(self) -> Iterator[Rows]:
        meta = self._file.metadata
        size = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * meta.num_rows // max(size, 1)))
        first, told = 1, 0
        with _told(self):
            wanted = None if self.mapping.value is None else list(self.mapping.wanted)
            for batch in self._file.iter_batches(batch_size=rows, columns=wanted):
                yield _mapped(self, batch, first)
                first += batch.num_rows
                read = self._size * (first - 1) // max(meta.num_rows, 1)
                self._progress(read - told)
                told = read


class _Batches(Source):
    """Record batches of any size, cut to pieces."""

    def _cut(self, batch: Any, first: int) -> Iterator[Rows]:
        batch.validate(full=True)  # a file may say anything
        count = max(1, min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        if self.mapping.value is not None:
            batch = batch.select(list(self.mapping.wanted))
        for start in range(0, batch.num_rows, count):
            yield _mapped(self, batch.slice(start, count), first + start)

    def _check(self, schema: Any) -> None:
        self.check_names(schema.names)
        _check_types(self, schema)


class _Arrow(_Batches):
    def __init__(self, path: str, mapping: Mapping, progress: Progress) -> None:
        super().__init__(path, mapping)
        self._pa = needs.pyarrow("an Arrow file", "ipc", "compute")
        self._size, self._progress = os.stat(path).st_size, progress
        self._file: Any = None
        with _told(self):
            self._file = self._pa.OSFile(path)
            is_file = self._file.read(6) == b"ARROW1"
            self._file.seek(0)
            self._reader = (self._pa.ipc.open_file if is_file else self._pa.ipc.open_stream)(self._file)
        self._is_file = is_file
        self._check(self._reader.schema)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def pieces(self) -> Iterator[Rows]:
        first, told = 1, 0
        with _told(self):
            for batch in self._all():
                yield from self._cut(batch, first)
                first += batch.num_rows
                read = min(self._file.tell(), self._size)
                self._progress(max(read - told, 0))
                told = max(read, told)

    def _all(self) -> Iterator[Any]:
        if self._is_file:
            return map(self._reader.get_batch, range(self._reader.num_record_batches))
        return iter(self._reader)


class _ArrowStream(_Batches):
    def __init__(self, name: str, mapping: Mapping, file: io.FileIO, progress: Progress) -> None:
        super().__init__(name, mapping)
        pa = self._pa = needs.pyarrow("an Arrow stream", "ipc", "compute")
        self._text = io.BufferedReader(texts.Counted(file, progress), 1 << 20)
        with _told(self):
            if self._text.peek(6)[:6] == b"ARROW1":
                raise self.wrong("an Arrow file is read from its end: a stream can come through standard input")
            self._reader = pa.ipc.open_stream(self._text)
        self._check(self._reader.schema)

    def close(self) -> None:
        self._text.close()

    def pieces(self) -> Iterator[Rows]:
        first = 1
        with _told(self):
            for batch in self._reader:
                yield from self._cut(batch, first)
                first += batch.num_rows


@contextlib.contextmanager
def _told(source: Source) -> Iterator[None]:
    """PyArrow's complaints about a file, with its name."""
    pa = sys.modules["pyarrow"]
    try:
        yield
    except (pa.ArrowException, pa.ArrowInvalid) as error:
        raise source.wrong(" ".join(str(error).split())) from None
    except OSError as error:
        # Of the system's errors these have a number; those of PyArrow about a file's bytes have none.
        if error.errno is not None:
            raise
        raise source.wrong(" ".join(str(error).split())) from None


def _check_types(source: Source, schema: Any) -> None:
    """Whether the columns can be what they are wanted for."""
    pa = sys.modules["pyarrow"]
    types, mapping = pa.types, source.mapping
    if mapping.timestamp is not None:
        kind = schema.field(mapping.timestamp).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        number = types.is_integer(kind) or (types.is_floating(kind) and not types.is_float16(kind))
        if not (number or types.is_timestamp(kind) or types.is_date(kind) or _is_text(kind)):
            raise source.wrong(f"column {mapping.timestamp!r} is of type {kind}, which says no time")
    if mapping.headers is not None:
        kind = schema.field(mapping.headers).type
        listed = types.is_list(kind) or types.is_large_list(kind)
        if not (types.is_map(kind) or (listed and types.is_struct(kind.value_type))):
            raise source.wrong(f"column {mapping.headers!r} is of type {kind}; a map, or a list of structs, is wanted")


def _is_text(kind: Any) -> bool:
    types = sys.modules["pyarrow"].types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or _is_binary(kind))


def _is_binary(kind: Any) -> bool:
    types = sys.modules["pyarrow"].types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _mapped(source: Source, batch: Any, first: int, numbers: frozenset[int] = frozenset()) -> Rows:
    """Make the columns of records of a record batch."""
    mapping = source.mapping
    of: Callable[[str], Any] = lambda name: batch.column(batch.schema.get_field_index(name))  # noqa: E731
    try:
        values = jsonrows.encode(batch, numbers) if mapping.value is None else jsonrows.octets(of(mapping.value))
        keys = None if mapping.key is None else jsonrows.octets(of(mapping.key))
    except sys.modules["pyarrow"].ArrowException as error:
        raise source.wrong(f"rows {first} to {first + batch.num_rows - 1}: {error}") from None
    times = None if mapping.timestamp is None else _times(source, of(mapping.timestamp), first)
    headers = None
    if mapping.headers is not None:
        headers = of(mapping.headers)
    return Rows(first, batch.num_rows, values, keys, times, headers)


def _times(source: Source, array: Any, first: int) -> Any:
    """A column as timestamps that `append_columns` takes; an error names the row of one that is out of range."""
    found = _as_times(source, array, first)
    pa = sys.modules["pyarrow"]
    kind = found.type
    scale = Fraction(86_400_000) if pa.types.is_date32(kind) else Fraction(1)
    if pa.types.is_timestamp(kind):
        scale = Fraction(str(UNITS[kind.unit]))
    numbers = found.cast(pa.int32()) if pa.types.is_date32(kind) else found
    numbers = numbers if pa.types.is_integer(numbers.type) else numbers.cast(pa.int64())
    ends = pa.compute.min_max(numbers).as_py()
    for each in ends.values():
        if each is not None and each * scale != -1 and not 0 <= each * scale < 1 << 63:
            row = first + pa.compute.index(numbers, each).as_py()
            told = str(found[row - first].value if not pa.types.is_integer(kind) else each)
            raise source.wrong(f"column {source.mapping.timestamp!r} is {told!r}: {_OUT_OF_RANGE}", row)
    return found


def _as_times(source: Source, array: Any, first: int) -> Any:
    """A column as `append_columns` takes timestamps, whatever moments they are."""
    pa = sys.modules["pyarrow"]
    pc, name, unit = pa.compute, source.mapping.timestamp, source.mapping.unit
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        row = first + pc.index(pc.is_null(array), True).as_py()
        raise source.wrong(f"column {name!r} is null, where each record needs a timestamp", row)
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return array
    if pa.types.is_integer(kind) and unit == "ms":
        return array
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if pa.types.is_integer(kind):
            return array.cast(pa.int64()).cast(pa.timestamp(unit))
        if _is_text(kind):
            text = array.cast(pa.binary()).cast(pa.string())
            if len(text) and _is_digits(text[0].as_py()):
                return text.cast(pa.int64()).cast(pa.timestamp(unit))
            for wanted in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
                with contextlib.suppress(pa.ArrowInvalid):
                    return text.cast(wanted)
    found = []
    for row, each in enumerate(array.to_pylist(), first):
        try:
            found.append(_moment(each.decode() if isinstance(each, bytes) else each, str(name), unit))
        except ValueError as error:
            raise source.wrong(str(error), row) from None
    return pa.array(found, pa.int64())


def _is_digits(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()
