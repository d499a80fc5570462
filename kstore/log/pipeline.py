"""Batches of columns on their way into logs: encoded, compressed on threads, stored in the order of their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kstore.base.threads import Workers
from kstore.codec._pack import Packer
from kstore.columns import _encode
from kstore.config.log import LogConfig
from kstore.log import batches
from kstore.log.batches import NO_PRODUCER, ProducerFields
from kstore.log.stored import Stored
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo


def _send_nothing() -> None:
    pass


class OrderedWork:
    """Steps that other threads do for one call, and what the calling thread does after each step, in order.

    With one thread every step is done at once, in the calling thread. A context manager: at its end, also when a row
    was refused, it calls `send_rest` and finishes what is under way, unless a step has failed. Then it waits for the
    threads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.send_rest: Callable[[], None] = _send_nothing
        self._broken = False
        self._spares: list[Packer] = []
        self._under_way: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
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
        """Have `work` done, then `then` with its result; waits while each thread has work."""
        if self.threads == 1:
            self._guard(lambda: then(work()))
            return
        if self._pool is None:
            self._pool = Workers(self.threads, "kstore-columns")
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
        """Take an empty packer, to hold batches that are under way."""
        return self._spares.pop() if self._spares else Packer(1, 1, now_ms=0)

    def give_back(self, spare: Packer) -> None:
        """Take back a spare packer that is empty again."""
        if len(self._spares) <= self.threads:
            self._spares.append(spare)


class Pipeline:
    """Batches on their way to `store`: from `packer`, which encodes, through the codec, in order.

    With a codec batches are compressed before they are stored, by other threads if there are any. Without a codec and
    with threads another thread stores them, one `store` of this pipeline at a time.
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
        self.packer = batches.packer(
            self, 0, batch_bytes, now_ms, single=single, unlimited=codec != 0, producer=producer
        )
        self.compressed: Packer | None = None
        self._batch_bytes, self._now_ms = batch_bytes, now_ms
        self._storing = 0

    def send(self) -> None:
        """Send the packer's finished batches on: to the codec, or to `store`."""
        if not self.packer.batches:
            return
        work = self._work
        if work.threads == 1:
            work.do(lambda: self._compress(self.packer), lambda packed: self._pass_on(self.packer, packed))
            return
        while self._storing:
            work.settle()
        spare = work.spare()
        _encode.hand_over(self.packer, spare)
        if self._codec:
            work.do(lambda: self._compress(spare), lambda packed: self._pass_on(spare, packed, give_back=True))
        else:
            self._storing += 1
            work.do(lambda: self.store(spare), lambda _: self._end_of_store(spare))

    def _end_of_store(self, spare: Packer) -> None:
        self._storing -= 1
        self._work.give_back(spare)

    def _compress(self, packer: Packer) -> list[bytes]:
        return _encode.compress(packer, self._codec, self._level) if self._codec else []

    def _pass_on(self, packer: Packer, packed: list[bytes], *, give_back: bool = False) -> None:
        """Store the packer's batches, or the compressed ones in their place."""
        if not self._codec:
            self.store(packer)
            return
        if self.compressed is None:
            self.compressed = batches.packer(
                self, self._codec, self._batch_bytes, self._now_ms, single=self._single, producer=self._producer
            )
        try:
            _encode.put_compressed(self.compressed, packer, packed)
        finally:
            if self.compressed.batches:
                self.store(self.compressed)
        packer.clear()
        if give_back:
            self._work.give_back(packer)

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

    def store(self, packer: Packer) -> None:
        """Append the packer's batches to the log, and empty it."""
        numbered = self._producer.producer_id >= 0
        batches.store(
            self.writer,
            packer,
            self.stored,
            leader_epoch=self._leader_epoch,
            numbered=numbered,
            expected_offset=self._expected_offset,
        )
        packer.clear()
