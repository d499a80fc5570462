"""Batches of columns on their way into logs: encoded, compressed on threads, stored in the order of their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kstore.base.threads import Task, Workers
from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.config import cautions
from kstore.config.log_config import LogConfig
from kstore.log import batch_packer
from kstore.log.appended import Stored
from kstore.log.batch_packer import NO_PRODUCER, ProducerFields
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo

SPARE_WORKS = 2  # that wait while each thread has one, so that none waits for the calling thread


def _send_nothing() -> None:
    pass


class OrderedWork:
    """Steps that several threads do for one call, and what the calling thread does after each step, in order.

    The calling thread is one of the `threads`: where it would wait for a step, it does one that no other has begun.
    With one thread every step is done at once. A context manager: at its end, also when a row was refused, it calls
    `send_rest` and finishes what is under way, unless a step has failed. Then it waits for the threads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.send_rest: Callable[[], None] = _send_nothing
        self._broken = False
        self._spares: list[Packer] = []
        self._under_way: deque[tuple[Task[Any], Callable[[Any], None]]] = deque()
        self._pool: Workers | None = None

    def __enter__(self) -> OrderedWork:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if not self._broken:
                self.send_rest()
                while self._under_way:
                    self.settle()
        finally:
            self.send_rest = _send_nothing  # the bound method is a cycle, which would keep the packers alive
            if self._pool is not None:
                self._pool.shutdown(cancel=True)

    def do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have `work` done, then `then` with its result; settles older work while enough is under way."""
        if self.threads == 1:
            self._guard(lambda: then(work()))
            return
        if self._pool is None:
            self._pool = Workers(self.threads - 1, "kstore-columns")
        while len(self._under_way) >= self.threads + SPARE_WORKS:
            self.settle()
        self._under_way.append((self._pool.submit(work), then))

    def settle(self) -> None:
        """Wait for the oldest work, doing meanwhile what no thread has begun, and do what follows it."""
        self._guard(self._settle)

    def _settle(self) -> None:
        oldest, then = self._under_way[0]
        for task, _ in self._under_way:
            if oldest.done:
                break
            task.run()
            if task.done and not isinstance(task.error, Exception | None):
                task.wait()  # an interrupt does not wait for its turn
        self._under_way.popleft()
        then(oldest.wait())

    def _guard(self, step: Callable[[], None]) -> None:
        done = False
        try:
            step()
            done = True
        finally:
            self._broken = self._broken or not done

    def spare(self) -> Packer:
        """Take an empty packer, to hold batches that are under way."""
        return self._spares.pop() if self._spares else Packer(1, 1, now_ms=0)

    def give_back(self, spare: Packer) -> None:
        """Take back a spare packer that is empty again."""
        if len(self._spares) <= 4 * self.threads:
            self._spares.append(spare)


class Pipeline:
    """Batches on their way to `store`: from `packer`, which encodes, through the codec, in order.

    With a codec batches are compressed before they are stored, by all threads of the work. Without a codec and with
    several threads the next batches are encoded while one `store` of this pipeline is under way.
    """

    def __init__(
        self,
        config: LogConfig,
        work: OrderedWork,
        *,
        codec: int,
        batch_bytes: int | None,
        now_ms: int,
        producer: ProducerFields = NO_PRODUCER,
        single: bool = False,
    ) -> None:
        self.config = config
        self._codec, self._work = codec, work
        self._level = config.compression_level if config.compression_type != "producer" else None
        self._producer = producer
        self._single = single
        self.packer = batch_packer.packer(
            self, 0, batch_bytes, now_ms, single=single, draft=codec != 0, producer=producer
        )
        self.compressed: Packer | None = None
        self._batch_bytes, self._now_ms = batch_bytes, now_ms
        self._storing = 0

    def send(self) -> None:
        """Send the packer's finished batches on: to the codec, or to `store`."""
        if not self.packer.batches:
            return
        if 0 < self.packer.max_timestamp < cautions.LIKE_SECONDS_BELOW:
            self.warn_of_seconds(self.packer.max_timestamp)
        work, plain = self._work, self.packer
        while self._storing:
            work.settle()
        if work.threads > 1:
            plain = work.spare()
            _column_encoder.hand_over(self.packer, plain)
        if self._codec:
            packed = work.spare()
            work.do(
                lambda: _column_encoder.compress(plain, packed, self._codec, self._level),
                lambda _: self._pass_on(plain, packed),
            )
        else:
            self._storing += 1
            work.do(lambda: self.store(plain), lambda _: self._end_of_store(plain))

    def _end_of_store(self, plain: Packer) -> None:
        self._storing -= 1
        self._give_back(plain)

    def _pass_on(self, plain: Packer, packed: Packer) -> None:
        """Store the batches of `plain` with their compressed sections in `packed`."""
        if self.compressed is None:
            self.compressed = batch_packer.packer(
                self, self._codec, self._batch_bytes, self._now_ms, single=self._single, producer=self._producer
            )
        try:
            _column_encoder.put_compressed(self.compressed, plain, packed)
        finally:
            if self.compressed.batches:
                self.store(self.compressed)
        plain.clear()
        self._give_back(plain)
        self._give_back(packed)

    def _give_back(self, spare: Packer) -> None:
        if spare is not self.packer:
            self._work.give_back(spare)

    def warn_of_seconds(self, timestamp: int) -> None:
        """Warn of a timestamp that looks like seconds. Called in the calling thread, before it is stored."""
        raise NotImplementedError

    def store(self, packer: Packer) -> None:
        """Store the packer's batches, and empty it."""
        raise NotImplementedError


class BatchPipeline(Pipeline):
    """Batches on their way into one log."""

    def __init__(
        self,
        writer: Writer,
        work: OrderedWork,
        *,
        codec: int,
        batch_bytes: int | None,
        now_ms: int,
        leader_epoch: int | None = None,
        expected_offset: int | None = None,
        producer: ProducerFields = NO_PRODUCER,
        stored: Stored | None = None,
    ) -> None:
        """With an `expected_offset` all rows are one batch. `stored` is told what is in the log."""
        super().__init__(
            writer.config,
            work,
            codec=codec,
            batch_bytes=batch_bytes,
            now_ms=now_ms,
            producer=producer,
            single=expected_offset is not None,
        )
        self.writer = writer
        self._leader_epoch = leader_epoch
        self._expected_offset = expected_offset
        self.stored = Stored() if stored is None else stored

    @property
    def appended(self) -> AppendInfo:
        """What is in the log."""
        return self.stored.info(self.config, self._now_ms)

    def warn_of_seconds(self, timestamp: int) -> None:
        """Warn once for the log, and for the call."""
        if not self.writer.appender.warned:
            self.stored.caution.say(timestamp)

    def store(self, packer: Packer) -> None:
        """Append the packer's batches to the log, and empty it."""
        numbered = self._producer.producer_id >= 0
        batch_packer.store(
            self.writer,
            packer,
            self.stored,
            leader_epoch=self._leader_epoch,
            numbered=numbered,
            expected_offset=self._expected_offset,
        )
        packer.clear()
