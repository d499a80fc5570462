"""Many tasks that append, sync, read and follow one log, and are cancelled at random: what a task was told holds.

Every record that a task was given an offset for is at that offset; what a cancelled call has left is there once or not
at all; a follower that is cancelled again and again gets every record once, in order; and the log is sound at the end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import kstore
from kstore.errors import UnexpectedOffsetError
from kstore.tools.check.verify import verify
from tests.support.cancelling import cancelled_at


class _Machine:
    """The tasks of one run, and what each of them was told."""

    def __init__(self, log: kstore.Log, rng: random.Random) -> None:
        self.log = log
        self.rng = rng
        self.told: dict[int, bytes] = {}
        self.given_up: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.followed: list[bytes | None] = []
        self._values = 0

    async def _append(self, value: bytes) -> None:
        log, rng = self.log, self.rng
        expected = log.log_end_offset if rng.random() < 0.3 else None
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        sync = rng.random() < 0.5
        headers = [("h", b"x")] if rng.random() < 0.2 else None
        try:
            offset = await log.aappend(value, headers=headers, sync=sync, expected_offset=expected)
        except UnexpectedOffsetError:
            self.refused.add(value)
            return
        assert expected in (None, offset)
        self.told[offset] = value
        if sync:
            assert log.stats()["recovery_point"] > offset  # type: ignore[operator]

    async def write(self, calls: int) -> None:
        """Append again and again; some of the calls are cancelled."""
        for _ in range(calls):
            self._values += 1
            value = b"%d" % self._values
            number = self.rng.choice((1, 2, 3, 1000))
            call = asyncio.create_task(self._run(number, value))
            await asyncio.wait((call,))
            if call.cancelled():
                self.given_up.add(value)
            else:
                call.result()

    async def _run(self, number: int, value: bytes) -> None:
        await cancelled_at(number, self._append(value), later=self.rng.random() < 0.3)

    async def follow(self, is_done: Callable[[], bool]) -> None:
        """Follow the log with one iterator, whose waits are cancelled at random."""
        records = self.log.aread(0, follow=True)
        while not is_done() or len(self.followed) < self.log.log_end_offset:
            try:
                record = await asyncio.wait_for(anext(records), self.rng.choice((0.0, 0.0001, 0.002)))
            except TimeoutError:
                continue
            assert record.offset == len(self.followed)
            self.followed.append(record.value)

    async def run(self, tasks: int, calls: int) -> None:
        writers = [asyncio.create_task(self.write(calls)) for _ in range(tasks)]
        follower = asyncio.create_task(self.follow(lambda: all(writer.done() for writer in writers)))
        await asyncio.gather(*writers)
        await asyncio.wait_for(follower, 120)
        await self.log.aflush()
        assert self.log.stats()["recovery_point"] == self.log.log_end_offset

    def check(self) -> None:
        values = [record.value for record in self.log.read()]
        assert values == self.followed
        assert all(values[offset] == value for offset, value in self.told.items())
        counts = Counter(values)
        assert all(count == 1 for count in counts.values())
        left = {value for value in counts if value is not None} - set(self.told.values())
        assert left <= self.given_up
        assert not self.refused & set(counts)
        assert self.log._writer is not None
        assert self.log._writer.appender.waiters == 0


def test_what_tasks_were_told_holds_however_they_are_cancelled(
    tmp_path: Path, rng: random.Random, budget: Callable[[float], float]
) -> None:
    end_of_test = time.monotonic() + budget(3)
    number = 0
    while number == 0 or time.monotonic() < end_of_test:
        path = tmp_path / f"t-{number}"
        number += 1
        with kstore.Log.open(path, segment_bytes=4096) as log:
            machine = _Machine(log, rng)
            asyncio.run(machine.run(tasks=12, calls=15))
            machine.check()
            assert machine.told
            assert machine.given_up
            end = log.log_end_offset
        assert [found for found in verify([path]).findings if found.severity == "error"] == []
        with kstore.Log.open(path) as log:
            assert log.log_end_offset == end
            assert log.recovery.cut_bytes == 0
