"""Two services in real processes, killed and terminated at any moment: nothing is lost, and nothing is done twice.

services.py is the program: a producer, and a service that reads, computes, and writes in transactions which carry its
group's positions. A death by DIE_AT falls into the middle of a write that is named by its number, whatever the
machine's speed; a signal meets the process wherever it is then. What is held against the stores follows from the orders
alone: a total that misses an order, or has one twice, is another number.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint
from tests.conftest import BUDGET
from tests.support import services

# The service opens its store and makes two transactions with about so many writes.
WRITES = 26
DEATHS_BY_WRITE = max(int(6 * BUDGET), 1)
DEATHS_BY_SIGNAL = max(int(2 * BUDGET), 1)

pytestmark = pytest.mark.timeout(300 * max(BUDGET, 1))


class Service:
    """A process of services.py and the lines that it has printed."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, services.__file__, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                with self._more:
                    if line.endswith("\n"):  # a kill may cut the last one
                        self.lines.append(line.strip())
                    self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()

    def wait_for_lines(self, count: int) -> None:
        """Until it has printed so many lines, or is over."""
        with self._more:
            self._more.wait_for(lambda: self._over or len(self.lines) >= count)

    def wait_for(self, line: str) -> None:
        with self._more:
            self._more.wait_for(lambda: self._over or line in self.lines)
        assert line in self.lines, f"it ended with {self.process.wait()} and printed {self.lines[-3:]}"

    def end(self, number: signal.Signals) -> None:
        self.wait_for_lines(1)  # from then on it knows what a signal means
        self.process.send_signal(number)
        self.wait()
        self.ended_as_told(number)

    def wait(self) -> int:
        """Its end; the exit code."""
        self._reader.join()
        return self.process.wait()

    def ended_as_told(self, number: signal.Signals) -> None:
        """A termination is a clean end; of a kill nothing is asked."""
        if number == signal.SIGTERM:
            assert self.process.returncode == 0
            assert self.lines[-1] == "ends"
        else:
            assert self.process.returncode == -number


class World:
    """Both stores, the services of the moment, and what the producers have told."""

    def __init__(self, home: Path) -> None:
        self.orders, self.results = home / "orders", home / "results"
        for root, topic in ((self.orders, "orders"), (self.results, "totals")):
            with kstore.Store.open(root, background=False, **services.SMALL) as store:
                store.create_topic(topic, services.PARTITIONS)
        self.told = [0] * services.PARTITIONS
        self.running: list[Service] = []

    def start(self, *arguments: object) -> Service:
        service = Service(*arguments)
        self.running.append(service)
        return service

    def produce(self, *die_at: int) -> Service:
        return self.start("produce", self.orders, *die_at)

    def serve(self, *die_at: int) -> Service:
        return self.start("serve", self.orders, self.results, *die_at)

    def hear(self, producer: Service) -> None:
        """What a producer that is over has told of its orders is there."""
        for line in producer.lines:
            if line not in ("begins", "ends"):
                partition, end = map(int, line.split())
                self.told[partition] = max(self.told[partition], end)
        for partition, end in enumerate(self.told):
            assert self.orders_of(partition) >= end

    def orders_of(self, partition: int) -> int:
        """How many orders there are; each is the one that belongs there."""
        with kstore.Log.open(self.orders / f"orders-{partition}", "r") as log:
            records = list(log.read())
        assert [record.value for record in records] == [services.order(partition, n) for n in range(len(records))]
        return len(records)

    def totals_of(self, partition: int) -> int:
        """How many orders were taken into the totals: each once, and in their order."""
        with kstore.Log.open(self.results / f"totals-{partition}", "r") as log:
            found = [record.value for record in log.read(isolation="read_committed")]
        total, expected = 0, []
        for offset in range(len(found)):
            value = services.order(partition, offset)
            total += services.worth(value)
            expected.append(b"%s=%d" % (value, total))
        assert found == expected
        return len(found)

    def check(self) -> None:
        for partition in range(services.PARTITIONS):
            done = self.totals_of(partition)
            assert done <= self.orders_of(partition)

    def finish(self) -> None:
        """Both run until all is done, and end cleanly: then nothing is missing."""
        producer = self.produce()
        producer.wait_for_lines(20)
        producer.end(signal.SIGTERM)
        self.hear(producer)
        orders = [self.orders_of(partition) for partition in range(services.PARTITIONS)]
        service = self.serve()
        service.wait_for(str(sum(orders)))
        service.end(signal.SIGTERM)
        assert [self.totals_of(partition) for partition in range(services.PARTITIONS)] == orders
        with kstore.Store.open(self.results, background=False) as store:
            committed = store.committed_offsets(services.GROUP)
            assert [committed["orders", n] for n in range(services.PARTITIONS)] == orders
            for partition in range(services.PARTITIONS):
                log = store.log("totals", partition)
                assert log.recovery.clean
                assert log.last_stable_offset == log.log_end_offset


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for service in made.running:
        service.process.kill()
        service.wait()


def test_a_service_that_dies_amid_any_write_loses_no_order_and_counts_none_twice(
    world: World, rng: random.Random
) -> None:
    producer = world.produce()
    for number in range(DEATHS_BY_WRITE):  # each in another part of the writes
        share = WRITES / DEATHS_BY_WRITE
        service = world.serve(int(share * number + rng.random() * share))
        assert service.wait() == -signal.SIGKILL
        world.check()
    producer.end(signal.SIGTERM)
    world.hear(producer)
    world.finish()


def test_a_producer_that_dies_amid_any_write_loses_no_order_that_it_told(world: World, rng: random.Random) -> None:
    service = world.serve()
    for _ in range(DEATHS_BY_WRITE):
        producer = world.produce(rng.randrange(20))
        assert producer.wait() == -signal.SIGKILL
        world.hear(producer)
    service.end(signal.SIGTERM)
    world.finish()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_services_that_are_ended_by_a_signal_go_on_where_they_were(
    world: World, rng: random.Random, how: signal.Signals
) -> None:
    for _ in range(DEATHS_BY_SIGNAL):
        both = [world.produce(), world.serve()]
        for each in both:
            each.wait_for_lines(rng.randint(1, 20))
        for each in rng.sample(both, 2):
            each.end(how)
        world.hear(both[0])
        world.check()
        clean = [checkpoint.find_clean_marker(root) is not None for root in (world.orders, world.results)]
        assert clean == [how == signal.SIGTERM] * 2
    world.finish()


def test_a_service_that_is_terminated_and_killed_at_once_loses_nothing(world: World, rng: random.Random) -> None:
    """A supervisor's SIGTERM, and its SIGKILL while the service still closes its store."""
    for _ in range(DEATHS_BY_SIGNAL):
        both = [world.produce(), world.serve()]
        for each in both:
            each.wait_for_lines(rng.randint(1, 10))
        for each in rng.sample(both, 2):
            each.process.send_signal(signal.SIGTERM)
            threading.Event().wait(rng.random() * 0.02)
            each.process.kill()
            assert each.wait() in (0, -signal.SIGKILL)
        world.hear(both[0])
        world.check()
    world.finish()
