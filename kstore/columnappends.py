"""Appending whole columns: the third form of append, for records that nobody makes Python objects of.

Columns are brought into step (columnsources.py), encoded without the GIL (_columnpack), compressed on threads where
that is asked for, and stored as append_many stores. The hardest rule: batches are stored in the order of their rows,
and when a row is refused those before its batch are in the log, as the error's `appended` says.
"""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Callable
from typing import Any

from kstore import _columnpack, arguments
from kstore._pack import Packer
from kstore.appends import NOT_NUMBERED, PACK_BYTES, AppendInfo, Appends, Numbering, numbering
from kstore.columnsources import Columns
from kstore.errors import KStoreError, RecordTooLargeError

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
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
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
        many threads, in order; without a codec one batch is written while the next is encoded. A producer's numbers
        are as in `append_many`. Raises what `append_many` raises, `InvalidColumnError` for columns of different lengths
        and unsound Arrow data, and `TypeError` for a type that is not taken; errors name the row, and their `appended`
        tells what is stored.
        """
        writer = self._writable()
        codec = self._compression_id(compression)
        self._check_epoch(leader_epoch)
        works = Works(arguments.integer("threads", threads, 1, MAX_THREADS))
        columns = Columns(values, keys, timestamps, headers, now_ms := writer.now())
        numbers = numbering(producer_id, producer_epoch, base_sequence, transactional)
        line = Line(self, codec, batch_bytes, now_ms, leader_epoch, works, numbers)
        works.last = line.send
        try:
            with works:
                for rows in columns:
                    while _columnpack.pack(line.packer, rows, PACK_BYTES):
                        line.send()
                _columnpack.close(line.packer)
        except KStoreError as error:
            raise told(self, error, line.appended) from None
        if sync:
            self.flush()
        return line.appended


def told(log: ColumnAppends | None, error: KStoreError, appended: Any) -> KStoreError:
    """The error that says what the call had stored, and names the limit that binds."""
    if log is not None and isinstance(error, RecordTooLargeError):
        error = log._too_large(error)
    if hasattr(error, "appended"):
        error.appended = appended
    return error


def _nothing() -> None:
    pass


class Works:
    """What one call has other threads do, and what follows it in the calling thread, in order.

    With one thread everything is done at once, in the calling thread. A context manager: at its end, or when a row is
    refused, `last` (which sends what is finished) and everything under way are done; not if it was one of those that
    failed. Then it waits for the threads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.last: Callable[[], None] = _nothing
        self._broken = False
        self._spares: list[Packer] = []
        self._under_way: deque[tuple[concurrent.futures.Future[Any], Callable[[Any], None]]] = deque()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def __enter__(self) -> Works:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if not self._broken:
                self.last()
                while self._under_way:
                    self.settle()
        finally:
            self.last = _nothing  # whose packers go back at once, and not when garbage is collected
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)

    def do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have `work` done, then `then` with its result; waits while there is a work for every thread."""
        if self.threads == 1:
            self._guard(lambda: then(work()))
            return
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self.threads)
        while len(self._under_way) >= self.threads:
            self.settle()
        self._under_way.append((self._pool.submit(work), then))

    def settle(self) -> None:
        """Wait for the oldest work, and do what follows it."""
        work, then = self._under_way.popleft()
        self._guard(lambda: then(work.result()))

    def _guard(self, step: Callable[[], None]) -> None:
        done = False
        try:
            step()
            done = True
        finally:
            self._broken = self._broken or not done

    def spare(self) -> Packer:
        """An empty packer, to hold batches that are under way."""
        return self._spares.pop() if self._spares else Packer(1, 1, now_ms=0)

    def give_back(self, spare: Packer) -> None:
        """Take a spare packer that is empty again."""
        if len(self._spares) <= self.threads:
            self._spares.append(spare)


class Line:
    """Batches on their way into one log: from the packer, through the codec, in order.

    `packer` encodes. With a codec its batches are compressed before they are written, by other threads if there may
    be any; without one and with threads, another thread writes, one write of this log at a time.
    """

    def __init__(
        self,
        log: ColumnAppends,
        codec: int,
        batch_bytes: int | None,
        now_ms: int,
        leader_epoch: int | None,
        works: Works,
        numbers: Numbering = NOT_NUMBERED,
    ) -> None:
        self.log = log
        self._writer = log._writable()
        self._codec, self._leader_epoch, self._works = codec, leader_epoch, works
        self._level = log._config.compression_level if log._config.compression_type != "producer" else None
        self._numbers = numbers
        self.packer = log._packer(0, batch_bytes, now_ms, unlimited=codec != 0, numbers=numbers)
        self._compressed: Packer | None = None
        self._batch_bytes, self._now_ms = batch_bytes, now_ms
        self._writing = 0
        self._first = self._last = self._maximum = -1

    @property
    def appended(self) -> AppendInfo:
        """What is in the log."""
        at_append = self.log._config.message_timestamp_type == "LogAppendTime" and self._last >= 0
        return AppendInfo(self._first, self._last, self._maximum, self._now_ms if at_append else -1)

    def send(self) -> None:
        """Take the packer's finished batches on their way."""
        if not self.packer.batches:
            return
        works = self._works
        if works.threads == 1:
            works.do(lambda: self._squeeze(self.packer), lambda packed: self._pass_on(self.packer, packed))
            return
        while self._writing:
            works.settle()
        spare = works.spare()
        _columnpack.hand_over(self.packer, spare)
        if self._codec:
            works.do(lambda: self._squeeze(spare), lambda packed: self._pass_on(spare, packed, give_back=True))
        else:
            self._writing += 1
            works.do(lambda: self._store(spare), lambda _: self._written(spare))

    def _written(self, spare: Packer) -> None:
        self._writing -= 1
        self._works.give_back(spare)

    def _squeeze(self, packer: Packer) -> list[bytes]:
        return _columnpack.compress(packer, self._codec, self._level) if self._codec else []

    def _pass_on(self, packer: Packer, packed: list[bytes], *, give_back: bool = False) -> None:
        """Store the packer's batches, or the compressed ones in their place."""
        if not self._codec:
            self._store(packer)
            return
        if self._compressed is None:
            self._compressed = self.log._packer(self._codec, self._batch_bytes, self._now_ms, numbers=self._numbers)
        try:
            _columnpack.put_compressed(self._compressed, packer, packed)
        finally:
            if self._compressed.batches:
                self._store(self._compressed)
        packer.clear()
        if give_back:
            self._works.give_back(packer)

    def _store(self, packer: Packer) -> None:
        numbered = self._numbers.producer_id >= 0
        first, self._last = self.log._store(self._writer, packer, self._leader_epoch, numbered=numbered)
        self._first = first if self._first < 0 else self._first
        at_append = self.log._config.message_timestamp_type == "LogAppendTime"
        self._maximum = max(self._maximum, self._now_ms if at_append else packer.max_timestamp)
        packer.clear()
