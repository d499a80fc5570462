"""`ColumnAppender`: rows of columns go to the partitions of a topic by their keys, through a pipeline for each log.

The hardest rule: each partition gets what `append_many` would give it of the same records; with the same seed, byte for
byte.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple

from kstore.base import arguments
from kstore.base.numbers import INT_MAX
from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.config.cautions import TimestampCaution
from kstore.errors import RecordTooLargeError
from kstore.log import batch_packer
from kstore.log.append_columns import MAX_THREADS
from kstore.log.appended import Stored
from kstore.log.batch_packer import PACK_BYTES
from kstore.log.batch_pipeline import BatchPipeline, OrderedWork
from kstore.log.writing.writer import Writer
from kstore.store.read_only_logs import Logs
from kstore.store.topics._column_partitioner import ColumnSplitter
from kstore.store.topics.route_cache import Routes
from kstore.store.topics.topic_append import OPEN_BYTES, READY_BYTES, AppendOptions, TopicCall
from kstore.types import AppendInfo


class ColumnArguments(NamedTuple):
    """The columns of one call, as its caller gave them."""

    values: Any
    keys: Any = None
    timestamps: Any = None
    headers: Any = None

    def digest(self) -> object:
        """A hash of the rows, equal for equal rows; an object that equals no other, where they can be read only once.

        Where a row is refused, it covers the rows before it and the refusal.
        """
        if not all(map(_is_repeatable, self)):
            return object()
        found = sha256()
        packer = Packer(1, INT_MAX, now_ms=_NO_TIME)  # each record is a batch, so that no row is with a refused one
        try:
            for rows in ColumnInput(*self, _NO_TIME):
                while _column_encoder.pack(packer, rows, PACK_BYTES):
                    _hash(found, packer)
            _column_encoder.close(packer)
        except Exception as error:
            found.update(f"{type(error).__name__}: {error}".encode(errors="surrogatepass"))
        _hash(found, packer)
        return found.digest()


_NO_TIME = -2  # in place of the time of an append: no record can be given this one


def _is_repeatable(column: Any) -> bool:
    """Whether a column gives its rows again; a stream of Arrow data without a length does not."""
    is_stream = hasattr(column, "__arrow_c_stream__") and not hasattr(column, "__arrow_c_array__")
    return not is_stream or hasattr(column, "__len__")


def _hash(found: Any, packer: Packer) -> None:
    with packer.buffer as encoded:
        found.update(encoded)
    packer.clear()


class ColumnLoad:
    """One call of `append_columns`: a pipeline for each partition that gets rows."""

    def __init__(self, call: TopicCall, threads: int) -> None:
        self.call = call
        self.now_ms = call.now_ms
        self.writers: dict[int, Writer] = {}
        self.stored: dict[int, Stored] = {}
        self._caution = TimestampCaution()
        self._work = OrderedWork(arguments.integer("threads", threads, 1, MAX_THREADS))
        self._pipelines: dict[int, BatchPipeline] = {}

    def run(self, columns: ColumnArguments, sync: bool) -> dict[int, AppendInfo]:
        """Append a record for each row; what each partition got."""
        call = self.call
        rows_in_step = ColumnInput(*columns, self.now_ms)
        splitter = ColumnSplitter(
            call.router,
            self._packer,
            limit_bytes=READY_BYTES,
            max_bytes=OPEN_BYTES,
            sticky_bytes=call.batch_bytes,
            partition=call.partition,
        )

        def send() -> None:
            for number, _ in splitter.ready:
                self._pipelines[number].send()

        self._work.send_rest = send
        try:
            with self._work:
                for rows in rows_in_step:
                    while splitter.pack(rows):
                        send()
                splitter.close()
            if sync:
                call.flush(self.appended)
        except BaseException as error:
            named = self._too_large(error) if isinstance(error, RecordTooLargeError) else error
            reason = call.reason(named, self.appended)
            if reason is not error:
                raise reason from None
            raise
        return self.appended

    def _packer(self, number: int) -> Packer:
        """Make a packer for a partition that gets its first row."""
        writer = self.writers[number] = self.call.writer(number)
        if number not in self.stored:
            self.stored[number] = Stored(self._caution)
        pipeline = self._pipelines[number] = self._pipeline(number, writer)
        return pipeline.packer

    def _pipeline(self, number: int, writer: Writer) -> BatchPipeline:
        return BatchPipeline(writer, self._work, **self._options(number, writer))

    def _options(self, number: int, writer: Writer) -> dict[str, Any]:
        """How a partition's rows become batches."""
        return {
            "codec": batch_packer.codec_of(writer.config, self.call.compression),
            "batch_bytes": self.call.batch_bytes,
            "now_ms": self.now_ms,
            "stored": self.stored[number],
        }

    @property
    def appended(self) -> dict[int, AppendInfo]:
        """What each partition has got, in their order."""
        return {
            number: stored.info(self.writers[number].config, self.now_ms)
            for number, stored in sorted(self.stored.items())
            if stored.last >= 0
        }

    def _too_large(self, error: RecordTooLargeError) -> BaseException:
        """The refusal of a row, named after the limit that binds."""
        writer = next(iter(self.writers.values()), None)
        return error if writer is None else batch_packer.too_large(writer.config, error)


class ColumnAppender:
    """Appends columns to the topics of a store. Thread-safe."""

    def __init__(self, logs: Logs, routes: Routes) -> None:
        self._logs = logs
        self._routes = routes

    def append(
        self, topic: str, columns: ColumnArguments, options: AppendOptions, threads: int
    ) -> dict[int, AppendInfo]:
        """Append a record for each row; see `Store.append_columns`."""
        self._logs.leading().stand_in()
        return ColumnLoad(TopicCall(self._routes, topic, options), threads).run(columns, options.sync)
