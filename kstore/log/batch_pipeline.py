"""Encodes columns into batches, compresses the batches on several threads, and stores them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kstore.base.threads import Task, Workers
from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.config import cautions
from kstore.log import batch_packer
from kstore.log.batch_packer import NO_PRODUCER, Configured, ProducerFields

SPARE_WORKS = 2  # steps in the queue while each thread runs one, so that no thread waits for the calling thread


def _send_nothing() -> None:
    pass


class OrderedWork:
    """Runs the steps of one call on several threads, and after each step its follow-up in the calling thread, in order.

    The calling thread is one of the `threads`: instead of waiting, it runs a step that no other thread has started.
    With one thread every step runs immediately. A context manager: on exit, also if a row was refused, it calls
    `send_rest` and finishes all steps. If a step has failed, it does neither. In both cases it waits for the threads.
    Not thread-safe.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.send_rest: Callable[[], None] = _send_nothing
        self.broken = False
        self._spares: list[Packer] = []
        self._under_way: deque[tuple[Task[Any], Callable[[Any], None]]] = deque()
        self._pool: Workers | None = None

    def __enter__(self) -> OrderedWork:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if not self.broken:
                self.send_rest()
                while self._under_way:
                    self.settle()
        finally:
            self.send_rest = _send_nothing  # the bound method would make a cycle that keeps the packers alive
            if self._pool is not None:
                self._pool.shutdown(cancel=True)

    def do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `work` in a thread and pass its result to `then`; first settle older steps if too many are under way."""
        if self.threads == 1:
            self.guard(lambda: then(work()))
            return
        if self._pool is None:
            self._pool = Workers(self.threads - 1, "kstore-columns")
        while len(self._under_way) >= self.threads + SPARE_WORKS:
            self.settle()
        self._under_way.append((self._pool.submit(work), then))

    def settle(self) -> None:
        """Wait for the oldest step and run its follow-up; while waiting, run steps that no thread has started."""
        self.guard(self._settle)

    def _settle(self) -> None:
        oldest, then = self._under_way[0]
        for task, _ in self._under_way:
            if oldest.done:
                break
            task.run()
            if task.done and not isinstance(task.error, Exception | None):
                task.wait()  # raises an interrupt immediately, out of order
        self._under_way.popleft()
        then(oldest.wait())

    def guard(self, step: Callable[[], None]) -> None:
        """Run a step; if it fails, set `broken`, so that nothing more is sent."""
        done = False
        try:
            step()
            done = True
        finally:
            self.broken = self.broken or not done

    def spare(self) -> Packer:
        """Return an empty packer for batches that are being compressed or stored."""
        return self._spares.pop() if self._spares else Packer(1, 1, now_ms=0)

    def give_back(self, spare: Packer) -> None:
        if len(self._spares) <= 4 * self.threads:
            self._spares.append(spare)


class Pipeline:
    """Passes batches in order from `packer`, which encodes them, through the codec to `store`.

    With a codec, all threads of `work` compress batches before they are stored. Without a codec and with several
    threads, the next batches are encoded while `store` stores the last ones. Not thread-safe.
    """

    def __init__(
        self,
        log: Configured,
        work: OrderedWork,
        store: Callable[[Packer], object],
        warn: Callable[[int], None],
        *,
        codec: int,
        batch_bytes: int | None,
        now_ms: int,
        producer: ProducerFields = NO_PRODUCER,
        single: bool = False,
    ) -> None:
        """`store` stores a packer's batches. If a timestamp looks like seconds, `warn` is called with it first."""
        config = log.config
        self._log, self._work, self._store, self._warn = log, work, store, warn
        self._codec = codec
        self._compresses = codec != 0
        self._level = config.compression_level if config.compression_type != "producer" else None
        self._batch_bytes, self._now_ms, self._producer, self._single = batch_bytes, now_ms, producer, single
        self.packer = self._packer(0, draft=self._compresses)
        self.compressed: Packer | None = None
        self._storing = 0

    def _packer(self, codec: int, draft: bool = False) -> Packer:
        return batch_packer.packer(
            self._log,
            codec,
            self._batch_bytes,
            self._now_ms,
            single=self._single,
            draft=draft,
            producer=self._producer,
        )

    def send(self) -> None:
        """Pass the packer's finished batches to the codec, or to `store`."""
        if not self.packer.batches:
            return
        if 0 < self.packer.max_timestamp < cautions.LIKE_SECONDS_BELOW:
            self._warn(self.packer.max_timestamp)
        work, plain = self._work, self.packer
        while self._storing:
            work.settle()
        if work.threads > 1:
            plain = work.spare()
            _column_encoder.hand_over(self.packer, plain)
        if self._compresses:
            packed = work.spare()
            work.do(
                lambda: _column_encoder.compress(plain, packed, self._codec, self._level),
                lambda _: self._pass_on(plain, packed),
            )
        elif work.threads == 1:
            work.broken = True  # if `store` or `clear` raises
            self._store(plain)
            plain.clear()
            work.broken = False
        else:
            self._storing += 1
            work.do(lambda: self._empty(plain), lambda _: self._end_of_store(plain))

    def _empty(self, packer: Packer) -> None:
        self._store(packer)
        packer.clear()

    def _end_of_store(self, plain: Packer) -> None:
        self._storing -= 1
        self._give_back(plain)

    def _pass_on(self, plain: Packer, packed: Packer) -> None:
        """Store the batches of `plain` with the compressed sections in `packed`."""
        if self.compressed is None:
            self.compressed = self._packer(self._codec)
        try:
            _column_encoder.put_compressed(self.compressed, plain, packed)
        finally:
            if self.compressed.batches:
                self._empty(self.compressed)
        plain.clear()
        self._give_back(plain)
        self._give_back(packed)

    def _give_back(self, spare: Packer) -> None:
        if spare is not self.packer:
            self._work.give_back(spare)
