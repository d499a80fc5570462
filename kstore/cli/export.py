"""`kstore export`: the records of a partition or a topic into a Parquet, Arrow or JSON lines file."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gzip
import json
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from kstore import _arrow, _jsonlines, fs
from kstore._columns import COLUMN_NAMES, Columns
from kstore.cli import needs, options, output, places, times
from kstore.cli.progress import Progress
from kstore.errors import ConfigError, InvalidRecordError
from kstore.log import Log

__all__ = ["run"]

_ABOUT = """\
Write the records of a partition (DIR/TOPIC-P), or of a topic (DIR/TOPIC) partition by partition, to a Parquet, Arrow or
JSON lines file. The file appears when it is whole, and under its name there is nothing of it before. The directory may
be written by a store or a broker meanwhile."""
_EXAMPLES = """\
In Parquet and Arrow files keys, values and the values of headers are binary (--text makes keys and values text), and
timestamps are milliseconds in UTC. JSON lines are those of `kstore cat --json`. What is exported `kstore ingest` takes
back: --key-column key --value-column value --timestamp-column timestamp --headers-column headers. Parquet and Arrow
need PyArrow: pip install 'kstore[arrow]'.

examples:
  kstore export data/events-0 --to events.parquet
  kstore export data/events --to today.jsonl.gz --from -1d --columns key,value
  kstore export data/events --to events.arrow --offset 1000 --to-offset 2000 --compression zstd
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

_CHUNK_BYTES = 32 << 20  # read, and held, at a time: a row group of a Parquet file
_PIECE_BYTES = 1 << 20  # compressed at a time: an interrupt waits for it


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code."""
    asked = _parser().parse_args(arguments)
    place = places.find(asked.path)
    if place.topic is None:
        raise ConfigError(f"{asked.path} is a directory of logs: name a topic or a partition of it")
    kind, codec = _format(asked)
    names = tuple(asked.columns.split(",")) if asked.columns else _DEFAULT
    known = ("topic", "partition", *COLUMN_NAMES)
    for name in names:
        if name not in known or names.count(name) > 1:
            raise ConfigError(f"--columns has {name!r}; {', '.join(known)} are known, each once")
    make = _Lines if kind == "jsonl" else _Table
    if os.path.lexists(asked.to) and not asked.force:
        raise ConfigError(f"{asked.to} is there: --force writes over it")
    rows = 0
    with Progress("export", unit="records") as bar, _whole_or_nothing(asked.to, force=asked.force) as file:
        writer = make(file, kind, codec, names, as_text=asked.text)
        try:
            for topic, partition, columns in _ahead(_chunks(place, asked, names)):
                writer.write(topic, partition, columns)
                rows += len(columns) if isinstance(columns, Columns) else columns.num_rows
                bar.reach(rows)
        finally:
            writer.close()
    size = fs.stat(asked.to).st_size
    if asked.json:
        output.json_line({"file": asked.to, "records": rows, "bytes": size})
    else:
        print(f"{asked.to}: {rows} records, {size} bytes")
    return 0


@contextlib.contextmanager
def _whole_or_nothing(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """A file that gets its name, and is on the disk, when all went well; otherwise nothing is left of it.

    With `force` it takes the place, and the mode, of a file that is there, behind a symbolic link, too.
    """
    mode = _mode_of(path)
    place = os.path.realpath(path) if force else os.path.abspath(path)
    directory, name = os.path.split(place)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}.tmp")
    try:
        with _new(temporary, directory) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, place)
        else:
            _link(temporary, place)
        fs.sync_directory(directory)
    except OSError as error:
        if error.errno is not None and error.filename in (None, temporary):
            error.filename = path  # where the disk is full, say
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _mode_of(path: str) -> int | None:
    """The permissions of the file that is there; `ConfigError` for what is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} is a directory; a file is wanted")
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is no regular file; what is exported takes the place of a file")
    return stat.S_IMODE(found.st_mode)


def _new(temporary: str, directory: str) -> BinaryIO:
    try:
        return open(temporary, "xb", buffering=1 << 20)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EROFS):
            error.filename = directory
        raise


def _link(temporary: str, path: str) -> None:
    """Give a file a name that nobody took meanwhile; where there are no hard links, just now."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise ConfigError(f"{path} is there: --force writes over it") from None
    except OSError:
        os.replace(temporary, path)


def _chunks(place: places.Place, asked: argparse.Namespace, names: tuple[str, ...]) -> Iterator[_Chunk]:
    """The records asked for, in pieces: topic, partition and `Columns`, or record batches where rows were left out."""
    until = None if asked.until is None else times.parse(asked.until)
    since = None if asked.since is None else times.parse(asked.since)
    wanted = [name for name in names if name in COLUMN_NAMES]
    if until is not None and "timestamp" not in wanted:
        wanted.append("timestamp")
    for entry in place.entries:
        with Log.open(entry.path, "r") as log:
            chunks = log.iter_columns(
                places.first_offset(place, log, asked.offset),
                start_timestamp=since,
                end_offset=asked.to_offset,
                columns=wanted or ["offset"],
                max_bytes=_CHUNK_BYTES,
                isolation=asked.isolation,
            )
            for columns in chunks:
                yield entry.topic, entry.partition, columns if until is None else _before(columns, until)
            # A file without a record has columns, too.
            yield entry.topic, entry.partition, log.read_columns(log.log_end_offset, columns=wanted or ["offset"])


def _ahead(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """The same, each read by another thread while the one before it is written."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(next, chunks, None)
            yield chunk


def _before(columns: Columns, until: int) -> Any:
    """The rows of before a moment."""
    early = columns.timestamps < until
    if early.all():
        return columns
    pa = needs.pyarrow("--until")
    return pa.record_batch(columns).filter(pa.array(early))


class _Lines:
    """JSON lines, which need no library but ours."""

    def __init__(self, file: BinaryIO, kind: str, codec: str, names: tuple[str, ...], *, as_text: bool) -> None:
        self._names = [name for name in names if name in COLUMN_NAMES]
        self._places = {name for name in names if name not in COLUMN_NAMES}
        self._file: Any = gzip.GzipFile("", "wb", 6, file, 0) if codec == "gzip" else file

    def write(self, topic: str, partition: int, columns: Any) -> None:
        fields = [(name, *_field(name, _column(columns, name))) for name in self._names]
        before = {"topic": topic, "partition": partition}
        prefix = "".join(f"{json.dumps(name)}:{json.dumps(before[name])}," for name in before if name in self._places)
        rows = len(columns) if isinstance(columns, Columns) else columns.num_rows
        if fields:
            text = memoryview(_jsonlines.render_rows(fields, prefix=prefix.encode(), lines=True))
        else:
            text = memoryview(f"{{{prefix[:-1]}}}\n".encode() * rows)
        for start in range(0, len(text), _PIECE_BYTES):
            self._file.write(text[start : start + _PIECE_BYTES])

    def close(self) -> None:
        if isinstance(self._file, gzip.GzipFile):
            self._file.close()


def _column(columns: Any, name: str) -> Any:
    return columns[name] if isinstance(columns, Columns) else columns.column(columns.schema.get_field_index(name))


def _field(name: str, found: Any) -> tuple[Any, _arrow.Column]:
    """How a column goes into a line."""
    if name in ("key", "value"):
        return "text", next(_arrow.Source(name, "value", found))["value"]
    if name == "headers":
        return "headers", next(_arrow.Source(name, "headers", found))["headers"]
    numbers = found if isinstance(found, np.ndarray) else np.asarray(found)
    if numbers.dtype == np.bool_:
        words = [b"true" if each else b"false" for each in numbers.tolist()]
        return "raw", _arrow.pointers(name, words)
    return "int", _arrow.times(name, numbers)


class _Table:
    """Parquet, Arrow files and Arrow streams."""

    def __init__(self, file: BinaryIO, kind: str, codec: str, names: tuple[str, ...], *, as_text: bool) -> None:
        self._pa = needs.pyarrow("a Parquet or Arrow file", "parquet", "ipc")
        self._file, self._kind, self._codec = file, kind, codec
        self._names, self._as_text = names, as_text
        self._writer: Any = None

    def write(self, topic: str, partition: int, columns: Any) -> None:
        batch = self._pa.record_batch(columns) if isinstance(columns, Columns) else columns
        if self._writer is None:
            self._open(batch.schema)
        arrays = [self._array(name, batch, topic, partition) for name in self._names]
        made = self._pa.record_batch(arrays, schema=self._schema)
        if made.num_rows and self._kind == "parquet":
            self._writer.write_batch(made, row_group_size=made.num_rows)
        elif made.num_rows:
            self._writer.write_batch(made)

    def _array(self, name: str, batch: Any, topic: str, partition: int) -> Any:
        """One column of the file."""
        pa, rows = self._pa, batch.num_rows
        if name == "topic":
            return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([topic]))
        if name == "partition":
            return pa.array(np.full(rows, partition, np.int32))
        found = batch.column(batch.schema.get_field_index(name))
        if name in ("key", "value") and self._as_text:
            try:
                return found.cast(pa.string())
            except pa.ArrowInvalid:
                raise InvalidRecordError(f"{topic}-{partition}: a {name} is no UTF-8; leave --text out") from None
        return found.cast(self._schema.field(name).type)

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


def _format(asked: argparse.Namespace) -> tuple[str, str]:
    """The format and the codec of the file, from its name where they are not given."""
    parts = os.path.basename(asked.to).lower().split(".")
    codec = asked.compression
    if len(parts) > 2 and parts[-1] == "gz":
        parts.pop()
        codec = codec or "gzip"
    kind = asked.format or (_SUFFIXES.get(parts[-1]) if len(parts) > 1 else None)
    if kind is None:
        raise ConfigError(f"{asked.to}: the name does not tell the format; --format does: {', '.join(_CODECS)}")
    codec = codec or _CODECS[kind][0]
    if codec not in _CODECS[kind]:
        raise ConfigError(f"there is no {codec} in {kind} files: there is {', '.join(_CODECS[kind])}")
    return kind, codec


def _parser() -> options.Parser:
    parser = options.Parser(
        prog="kstore export",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="DIR", help="DIR/TOPIC-P, or DIR/TOPIC")
    parser.add_argument("--to", metavar="FILE", required=True, help="the file: .parquet, .arrow, .arrows or .jsonl")
    parser.add_argument("--format", choices=_CODECS, help="of the file (default: what its name says)")
    parser.add_argument("--compression", metavar="CODEC", help="of the file: Parquet's is snappy unless told otherwise")
    parser.add_argument("--columns", metavar="A,B,...", help=f"default: {','.join(_DEFAULT)}")
    parser.add_argument("--text", action="store_true", help="keys and values as text in Parquet and Arrow files")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--offset", type=options.whole(0), metavar="N", help="begin at this offset in each partition")
    start.add_argument(
        "--from", dest="since", metavar="TIME", help=f"begin at the first record of a time: {times.HELP}"
    )
    parser.add_argument("--until", metavar="TIME", help="leave out records at or after this time")
    parser.add_argument("--to-offset", type=options.whole(0), metavar="N", help="end before this offset")
    options.add_isolation(parser)
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser
