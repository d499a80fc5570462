"""`kstore export`: writes the records of a partition or a topic to a Parquet, Arrow or JSON lines file."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gzip
import json
import os
import stat
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from kstore._core import check_headers
from kstore.base import optional
from kstore.base.threads import Workers
from kstore.cli import command_options, command_paths, command_times, output
from kstore.cli.progress import Progress
from kstore.columns import _arrow, _json_columns
from kstore.columns._columns import COLUMN_NAMES, Columns
from kstore.disk import fs
from kstore.errors import ConfigError, InvalidRecordError
from kstore.log.log import Log

__all__ = ["run"]

_ABOUT = """\
Write the records of a partition (DIR/TOPIC-P), or of a topic (DIR/TOPIC) partition by partition, to a Parquet, Arrow or
JSON lines file. The file gets its name only when it is complete. A store or a broker may be writing to the
directory."""
_EXAMPLES = """\
In Parquet and Arrow files keys, values and the values of headers are binary (--text makes keys and values text), and
timestamps are milliseconds in UTC. JSON lines are those of `kstore cat --json`. To append an exported file again, give
`kstore ingest` these options: --key-column key --value-column value --timestamp-column timestamp --headers-column
headers. Parquet and Arrow need PyArrow: pip install 'kstore[arrow]'.

examples:
  kstore export data/events-0 --to events.parquet
  kstore export data/events --to today.jsonl.gz --from -1d --columns key,value
  kstore export data/events --to events.arrow --offset 1000 --until-offset 2000 --compression zstd
"""

_SUFFIXES = {
    "parquet": "parquet", "pq": "parquet", "arrow": "arrow", "feather": "arrow", "ipc": "arrow", "arrows": "arrows",
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl",
}  # fmt: skip
_CODECS = {
    "parquet": ("snappy", "gzip", "zstd", "lz4", "brotli", "none"),
    "arrow": ("none", "lz4", "zstd"),
    "arrows": ("none", "lz4", "zstd"),
    "jsonl": ("none", "gzip"),
}
_DEFAULT = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_Chunk: TypeAlias = tuple[str, int, Any]
"""A topic, a partition, and some of its records."""

_CHUNK_BYTES = 32 << 20  # the records in memory at a time, and in a row group of a Parquet file
_PIECE_BYTES = 1 << 20  # the bytes compressed in one step; an interrupt waits for the step


def run(arguments: list[str]) -> int:
    parsed = _parser().parse_args(arguments)
    place = command_paths.find_topic(parsed.path)
    kind, codec = _format(parsed)
    names = tuple(parsed.columns.split(",")) if parsed.columns else _DEFAULT
    known = ("topic", "partition", *COLUMN_NAMES)
    for name in names:
        if name not in known or names.count(name) > 1:
            raise ConfigError(f"--columns has {name!r}; {', '.join(known)} are known, each once")
    make = _Lines if kind == "jsonl" else _Table
    if os.path.lexists(parsed.to) and not parsed.force:
        raise ConfigError(f"{parsed.to} is there: --force writes over it")
    rows = 0
    with Progress("export", unit="records") as bar, _whole_or_nothing(parsed.to, force=parsed.force) as file:
        writer = make(file, kind, codec, names, as_text=parsed.text)
        try:
            for topic, partition, columns in _ahead(_chunks(place, parsed, names)):
                writer.write(topic, partition, columns)
                rows += len(columns) if isinstance(columns, Columns) else columns.num_rows
                bar.reach(rows)
        finally:
            writer.close()
    size = fs.stat(parsed.to).st_size
    if parsed.json:
        output.json_line({"file": parsed.to, "records": rows, "bytes": size})
    else:
        print(f"{parsed.to}: {rows} records, {size} bytes")
    return 0


@contextlib.contextmanager
def _whole_or_nothing(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """Open a new file, which gets its name when it is complete and synced. After an error it is deleted.

    With `force` it replaces an existing file, following a symbolic link, and keeps that file's mode.
    """
    mode = _mode_of(path)
    target = os.path.realpath(path) if force else os.path.abspath(path)
    directory, name = os.path.split(target)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}.tmp")
    try:
        with _new(temporary, directory) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, target)
        else:
            _link(temporary, target)
        fs.sync_directory(directory)
    except OSError as error:
        if error.errno is not None and error.filename in (None, temporary):
            error.filename = path  # for example if the disk is full
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _mode_of(path: str) -> int | None:
    """Return the permissions of a file, None if there is none; raises `ConfigError` if it is not a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is a directory; a file is wanted")
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is no regular file, and an export replaces only a regular file")
    return stat.S_IMODE(mode)


def _new(temporary: str, directory: str) -> BinaryIO:
    try:
        return open(temporary, "xb", buffering=1 << 20)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EROFS):
            error.filename = directory
        raise


def _link(temporary: str, path: str) -> None:
    """Give a file its name; `ConfigError` if the name exists. Without hard links, an existing file is replaced."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise ConfigError(f"{path} is there: --force writes over it") from None
    except OSError:
        os.replace(temporary, path)


def _chunks(place: command_paths.Place, parsed: argparse.Namespace, names: tuple[str, ...]) -> Iterator[_Chunk]:
    """Yield the records in pieces: topic, partition and `Columns`, or a record batch if `--until` has removed rows."""
    until = None if parsed.until is None else command_times.parse(parsed.until)
    since = None if parsed.since is None else command_times.parse(parsed.since)
    wanted = [name for name in names if name in COLUMN_NAMES]
    if until is not None and "timestamp" not in wanted:
        wanted.append("timestamp")
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            chunks = log.iter_columns(
                command_paths.first_offset(place, log, parsed.offset),
                start_timestamp=since,
                end_offset=parsed.to_offset,
                columns=wanted or ["offset"],
                max_bytes=_CHUNK_BYTES,
                isolation=parsed.isolation,
            )
            for columns in chunks:
                if "headers" in wanted and len(columns):
                    most = int(np.diff(columns.headers.offsets).max())
                    check_headers(most, f"{entry.topic}-{entry.partition}: a record below offset", columns.next_offset)
                yield entry.topic, entry.partition, columns if until is None else _before(columns, until)
            # An empty piece, so that a file without records has the columns too.
            yield entry.topic, entry.partition, log.read_columns(log.log_end_offset, columns=wanted or ["offset"])


def _ahead(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """Yield the same pieces. Another thread reads the next piece while the caller writes the current piece."""
    with Workers(1, "kstore-export") as pool:
        coming = pool.submit(partial(next, chunks, None))
        while (chunk := coming.wait()) is not None:
            coming = pool.submit(partial(next, chunks, None))
            yield chunk


def _before(columns: Columns, until: int) -> Any:
    early = columns.timestamps < until
    if early.all():
        return columns
    pa = optional.pyarrow("--until")
    return pa.record_batch(columns).filter(pa.array(early))


class _Lines:
    """Writes JSON lines without PyArrow."""

    def __init__(self, file: BinaryIO, kind: str, codec: str, names: tuple[str, ...], *, as_text: bool) -> None:
        self._names = [name for name in names if name in COLUMN_NAMES]
        self._constant = {name for name in names if name not in COLUMN_NAMES}
        self._file: Any = gzip.GzipFile("", "wb", 6, file, 0) if codec == "gzip" else file

    def write(self, topic: str, partition: int, columns: Any) -> None:
        fields = [(name, *_field(name, _column(columns, name))) for name in self._names]
        before = {"topic": topic, "partition": partition}
        prefix = "".join(f"{json.dumps(name)}:{json.dumps(before[name])}," for name in before if name in self._constant)
        rows = len(columns) if isinstance(columns, Columns) else columns.num_rows
        if fields:
            text = memoryview(_json_columns.render_rows(fields, prefix=prefix.encode(), lines=True))
        else:
            text = memoryview(f"{{{prefix[:-1]}}}\n".encode() * rows)
        for start in range(0, len(text), _PIECE_BYTES):
            self._file.write(text[start : start + _PIECE_BYTES])

    def close(self) -> None:
        if isinstance(self._file, gzip.GzipFile):
            self._file.close()


def _column(columns: Any, name: str) -> Any:
    return columns[name] if isinstance(columns, Columns) else columns.column(columns.schema.get_field_index(name))


def _field(name: str, column: Any) -> tuple[Any, _arrow.Column]:
    """Return how the renderer writes a column, and the column in the form that it takes."""
    if name in ("key", "value"):
        return "text", next(_arrow.Source(name, "value", column))["value"]
    if name == "headers":
        return "headers", next(_arrow.Source(name, "headers", column))["headers"]
    numbers = column if isinstance(column, np.ndarray) else np.asarray(column)
    if numbers.dtype == np.bool_:
        words = [b"true" if is_true else b"false" for is_true in numbers.tolist()]
        return "raw", _arrow.pointers(name, words)
    return "int", _arrow.times(name, numbers)


class _Table:
    """Writes Parquet files, Arrow files and Arrow streams."""

    def __init__(self, file: BinaryIO, kind: str, codec: str, names: tuple[str, ...], *, as_text: bool) -> None:
        self._pa = optional.pyarrow("a Parquet or Arrow file", "parquet", "ipc")
        self._file, self._kind, self._codec = file, kind, codec
        self._names, self._as_text = names, as_text
        self._writer: Any = None

    def write(self, topic: str, partition: int, columns: Any) -> None:
        batch = self._pa.record_batch(columns) if isinstance(columns, Columns) else columns
        if self._writer is None:
            self._open(batch.schema)
        arrays = [self._array(name, batch, topic, partition) for name in self._names]
        rows = self._pa.record_batch(arrays, schema=self._schema)
        if rows.num_rows and self._kind == "parquet":
            self._writer.write_batch(rows, row_group_size=rows.num_rows)
        elif rows.num_rows:
            self._writer.write_batch(rows)

    def _array(self, name: str, batch: Any, topic: str, partition: int) -> Any:
        pa, rows = self._pa, batch.num_rows
        if name == "topic":
            return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([topic]))
        if name == "partition":
            return pa.array(np.full(rows, partition, np.int32))
        array = batch.column(batch.schema.get_field_index(name))
        if name in ("key", "value") and self._as_text:
            try:
                return array.cast(pa.string())
            except pa.ArrowInvalid:
                raise InvalidRecordError(f"{topic}-{partition}: a {name} is no UTF-8; leave --text out") from None
        return array.cast(self._schema.field(name).type)

    def _open(self, schema: Any) -> None:
        pa = self._pa
        fields = []
        for name in self._names:
            field = schema.field(name) if name in COLUMN_NAMES else None
            if name == "topic":
                field = pa.field(name, pa.dictionary(pa.int32(), pa.string()), nullable=False)
            elif name == "partition":
                field = pa.field(name, pa.int32(), nullable=False)
            elif name == "timestamp":
                field = pa.field(name, pa.timestamp("ms", "UTC"), nullable=False)
            elif name in ("key", "value") and self._as_text:
                field = pa.field(name, pa.string())
            fields.append(field)
        self._schema = pa.schema(fields)
        if self._kind == "parquet":
            self._writer = pa.parquet.ParquetWriter(self._file, self._schema, compression=self._codec)
            return
        codec = None if self._codec == "none" else self._codec
        how = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=False)
        make = pa.ipc.new_stream if self._kind == "arrows" else pa.ipc.new_file
        self._writer = make(self._file, self._schema, options=how)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _format(parsed: argparse.Namespace) -> tuple[str, str]:
    """Return the format and the codec of the file, from the options or the file's name."""
    parts = os.path.basename(parsed.to).lower().split(".")
    codec = parsed.compression
    if len(parts) > 2 and parts[-1] == "gz":
        parts.pop()
        codec = codec or "gzip"
    kind = parsed.format or (_SUFFIXES.get(parts[-1]) if len(parts) > 1 else None)
    if kind is None:
        raise ConfigError(f"{parsed.to}: the name does not tell the format; --format does: {', '.join(_CODECS)}")
    codec = codec or _CODECS[kind][0]
    if codec not in _CODECS[kind]:
        raise ConfigError(f"there is no {codec} in {kind} files: there is {', '.join(_CODECS[kind])}")
    return kind, codec


def _parser() -> command_options.Parser:
    parser = command_options.Parser("export", _ABOUT, _EXAMPLES)
    parser.add_argument("path", metavar="DIR", help="DIR/TOPIC-P, or DIR/TOPIC")
    parser.add_argument("--to", metavar="FILE", required=True, help="the file: .parquet, .arrow, .arrows or .jsonl")
    parser.add_argument("--format", choices=_CODECS, help="of the file (default: what its name says)")
    parser.add_argument("--compression", metavar="CODEC", help="default: snappy for Parquet, gzip for .gz, else none")
    parser.add_argument("--columns", metavar="A,B,...", help=f"default: {','.join(_DEFAULT)}")
    parser.add_argument("--text", action="store_true", help="keys and values as text in Parquet and Arrow files")
    command_options.add_range(parser)
    command_options.add_isolation(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser
