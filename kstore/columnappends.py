"""Appending whole columns: the third form of append, for records that nobody makes Python objects of.

Columns are brought into step (columnsources.py), encoded without the GIL (_columnpack), compressed on threads where
that is asked for, and stored as append_many stores. The hardest rule: batches are stored in the order of their rows,
and when a row is refused those before its batch are in the log, as the error's `appended` says.
"""

from __future__ import annotations

import concurrent.futures
from collections import deque
from typing import TYPE_CHECKING, Any

from kstore import _columnpack, arguments
from kstore.appends import PACK_BYTES, AppendInfo, Appends
from kstore.columnsources import Columns
from kstore.errors import KStoreError, RecordTooLargeError

if TYPE_CHECKING:
    from kstore._pack import Packer
    from kstore.writer import Writer

MAX_THREADS = 256


class ColumnAppends(Appends):
    """What a `Log` can append, columns included; see there about threads."""

    def append_columns(
        self,
        values: Any,
        *,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        compression: str | None = None,
        sync: bool = False,
        batch_bytes: int | None = None,
        threads: int = 1,
        leader_epoch: int | None = None,
    ) -> AppendInfo:
        """Append a record for each row of `values`, with the same row of the other columns; nulls are nulls.

        A column is whatever speaks the Arrow PyCapsule interface (an array, a chunked array, a stream), a NumPy array,
        or a list. Bytes may be binary or utf8 in any of Arrow's layouts, dictionary-encoded or not; NumPy's `S` (the
        NUL bytes at a row's end are padding, as in NumPy), `V` or rows of uint8. `values` may be a record batch, a
        table, a stream of them or a structured array with columns value, key, timestamp and headers. `timestamps` are
        milliseconds, Arrow timestamps, dates, or datetime64, one int for all, or None for now, which null is, too;
        times between two milliseconds belong to the earlier one. `headers` are an Arrow map or list of structs, or a
        list of what `append_many` takes for each record.

        Batches are those of `append_many` for the same records. With `threads` above 1 batches are compressed on so
        many threads, in order; without a codec one batch is written while the next is encoded. Raises what
        `append_many` raises, `InvalidColumnError` for columns of different lengths and unsound Arrow data, and
        `TypeError` for a type that is not taken; errors name the row, and their `appended` tells what is stored.
        """
        writer = self._writable()
        codec = self._compression_id(compression)
        self._check_epoch(leader_epoch)
        threads = arguments.integer("threads", threads, 1, MAX_THREADS)
        columns = Columns(values, keys, timestamps, headers, now_ms := writer.now())
        with _Line(self, writer, codec, batch_bytes, threads, now_ms, leader_epoch) as line:
            try:
                for rows in columns:
                    while _columnpack.pack(line.packer, rows, PACK_BYTES):
                        line.send()
                _columnpack.close(line.packer)
                line.finish()
            except RecordTooLargeError as error:
                line.finish_after(refused := self._too_large(error))
                raise refused from None
            except KStoreError as error:
                line.finish_after(error)
                raise
            except BaseException:
                line.finish()
                raise
        if sync:
            self.flush()
        return line.appended


class _Line:
    """Batches on their way into the log: from the packer, through the codec, in order.

    `packer` encodes. With a codec its batches are compressed before they are written, by other threads if there may
    be any; without one and with threads, another thread writes. At most `threads` + 1 packers are under way.
    """

    def __init__(
        self,
        log: ColumnAppends,
        writer: Writer,
        codec: int,
        batch_bytes: int | None,
        threads: int,
        now_ms: int,
        leader_epoch: int | None,
    ) -> None:
        self._log, self._writer, self._codec, self._leader_epoch = log, writer, codec, leader_epoch
        self._threads = threads
        self._level = log._config.compression_level if log._config.compression_type != "producer" else None
        self.packer = log._packer(0, batch_bytes, now_ms, unlimited=codec != 0)
        self._compressed = log._packer(codec, batch_bytes, now_ms)
        self._batch_bytes, self._now_ms = batch_bytes, now_ms
        self._spares: list[Packer] = []
        self._under_way: deque[tuple[Packer, concurrent.futures.Future[Any]]] = deque()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._broken = False
        self._first = self._last = self._maximum = -1

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def appended(self) -> AppendInfo:
        """What is in the log."""
        at_append = self._log._config.message_timestamp_type == "LogAppendTime" and self._last >= 0
        return AppendInfo(self._first, self._last, self._maximum, self._now_ms if at_append else -1)

    def send(self) -> None:
        """Take the packer's finished batches on their way."""
        if not self.packer.batches:
            return
        if self._threads == 1:
            self._pass_on(self.packer, None)
            return
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self._threads)
        while len(self._under_way) >= (self._threads if self._codec else 1):
            self._settle()
        spare = self._spares.pop() if self._spares else self._log._packer(0, self._batch_bytes, self._now_ms)
        _columnpack.hand_over(self.packer, spare)
        work: concurrent.futures.Future[Any]
        if self._codec:
            work = self._pool.submit(_columnpack.compress, spare, self._codec, self._level)
        else:
            work = self._pool.submit(self._store, spare)
        self._under_way.append((spare, work))

    def finish(self) -> None:
        """Store what is under way, and what is finished in the packer."""
        if self._broken:
            return
        if self._pool is None:
            if self.packer.batches:
                self._pass_on(self.packer, None)
            return
        self.send()
        while self._under_way:
            self._settle()

    def finish_after(self, error: KStoreError) -> None:
        """The same, when `error` has ended the call; it is told what was stored."""
        self.finish()
        if hasattr(error, "appended"):
            error.appended = self.appended

    def _settle(self) -> None:
        spare, work = self._under_way.popleft()
        try:
            result = work.result()
        except BaseException:
            self._broken = True
            raise
        if self._codec:
            self._pass_on(spare, result)
        self._spares.append(spare)

    def _pass_on(self, packer: Packer, packed: list[bytes] | None) -> None:
        """Compress the packer's batches, unless that was done, and store them; nothing follows if that fails."""
        ready = False
        try:
            if self._codec:
                if packed is None:
                    packed = _columnpack.compress(packer, self._codec, self._level)
                try:
                    _columnpack.put_compressed(self._compressed, packer, packed)
                finally:
                    if self._compressed.batches:
                        self._store(self._compressed)
                packer.clear()
            else:
                self._store(packer)
            ready = True
        finally:
            self._broken = not ready

    def _store(self, packer: Packer) -> None:
        first, self._last = self._log._store(self._writer, packer, self._leader_epoch)
        self._first = first if self._first < 0 else self._first
        at_append = self._log._config.message_timestamp_type == "LogAppendTime"
        self._maximum = max(self._maximum, self._now_ms if at_append else packer.max_timestamp)
        packer.clear()
