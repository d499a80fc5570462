"""`verify` calls sound what kstore writes, copies, restores and accepts, and `repair` finds nothing to do there.

Random histories of a store (`backedup.World`); now and then it is closed or killed, backed up and restored, followed by
a copy that takes over. Each directory is checked, opened, appended to, closed and checked again.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from tests.conftest import ManualClock
from tests.support.backedup import CODECS, PASSING, SETTINGS, TABLE, World
from tests.support.staging import stage_task
from tests.support.verifying import client_batch, unsound

pytestmark = pytest.mark.usefixtures("no_syncs")

TIMESTAMPS = (-(2**40), -1000, -1, 0, 1, 1_700_000_000_000)


class History(World):
    """A world with the batches of clients, of any timestamps, and with truncations that end in a gap."""

    def step(self) -> str:
        changes = {
            self.truncate: 3,
            self.append_batch: 3,
            self.append_columns: 3,
            self.append_to_table: 2,
            self.append_as_follower: 2,
            self.adopt: 1,
            self.roll: 1,
            self.flush: 1,
            super().step: 20,
        }
        [change] = self.rng.choices(list(changes), list(changes.values()))
        self.clock.advance(1)
        return change() or change.__name__

    def truncate(self) -> None:
        log = self.store.log(PASSING, 0)
        log.truncate_to(self.rng.randint(log.log_start_offset, log.log_end_offset))
        if self.rng.random() < 0.2:
            log.truncate_fully_and_start_at(log.log_end_offset + self.rng.choice((0, 5)))

    def batch(self, base_offset: int, epoch: int) -> bytes:
        stamps = self.rng.choices(TIMESTAMPS, k=self.rng.choice((1, 3, 5)))
        codec = self.rng.choice(("none", "lz4"))
        return client_batch(stamps, base_offset=base_offset, partition_leader_epoch=epoch, compression=codec)

    def append_batch(self) -> None:
        topic, number = self.place()
        self.store.log(topic, number).append_batch(self.batch(0, 0))

    def append_columns(self) -> None:
        topic, number = self.place()
        count = self.rng.choice((1, 3, 20))
        self.store.log(topic, number).append_columns(
            [self.value() for _ in range(count)],
            timestamps=self.rng.choice((None, [self.rng.choice(TIMESTAMPS[3:]) for _ in range(count)])),
            compression=self.rng.choice(CODECS),
        )

    def append_to_table(self) -> None:
        """Records of any times where cleaning takes most of them away again."""
        self.store.log(TABLE, 0).append_batch(self.batch(0, 0))

    def adopt(self) -> None:
        """Bulk loads, which are renamed into the log, or appended where they are small."""
        topic, number = self.place()
        rows = [(b"key", self.value(), self.rng.choice(TIMESTAMPS[3:]), ()) for _ in range(self.rng.choice((1, 30)))]
        partitions, job = len(self.store.partitions(topic)), f"job-{self.count}"
        settings = {"segment_bytes": 1000, "message_timestamp_after_max_ms": 2**62}
        staged = stage_task(self.root, 0, topic, {number: rows}, partitions=partitions, job=job, **settings)
        self.store.adopt(staged, rename_bytes=self.rng.choice((0, 1 << 20)))

    def append_as_follower(self) -> None:
        log = self.store.log(PASSING, 0)
        newest = max((batch.partition_leader_epoch for batch in log.read_batches()), default=0)
        log.append_as_follower(self.batch(log.log_end_offset + self.rng.choice((0, 0, 3)), newest))

    def roll(self) -> None:
        topic, number = self.place()
        self.store.log(topic, number).roll()

    def flush(self) -> None:
        self.store.flush()


def is_sound(root: Path, clock: ManualClock) -> None:
    """Check a store that is not open; again after an opening, an append to each partition and a close."""
    assert unsound(root) == []
    with kstore.Store.open(root, clock=clock, background=False, **SETTINGS) as store:
        for name in store.topics:
            for number in store.partitions(name) if not name.startswith("__") else ():
                store.append(name, b"next", b"key", partition=number)
        assert unsound(root) == []
    assert unsound(root) == []


def closed(world: World, into: Path) -> None:
    world.close()
    shutil.copytree(world.root, into)
    world.open()


def killed(world: World, into: Path) -> None:
    shutil.copytree(world.root, into)


def restored(world: World, into: Path) -> None:
    with kstore.backup(world.store, str(world.root) + ".backup", every=3600) as backup:
        backup.flush()
    kstore.restore(str(world.root) + ".backup", into)


def followed(world: World, into: Path) -> None:
    """The same follower each time, until a topic is another one; as a leader of its own in the copy."""
    target = Path(f"{world.root}.follower")
    try:
        kstore.replicate(world.root, target, **SETTINGS)
    except kstore.ReplicationError:  # a topic is another one of the same name
        shutil.rmtree(target)
        kstore.replicate(world.root, target, **SETTINGS)
    assert unsound(target) == []
    shutil.copytree(target, into)
    with kstore.Store.open(into, clock=world.clock, background=False, **SETTINGS) as store:
        store.become_leader()


WAYS: tuple[Callable[[World, Path], None], ...] = (closed, killed, restored, followed)


def test_what_kstore_leaves_is_sound(
    tmp_path: Path, rng: random.Random, clock: ManualClock, budget: Callable[[float], float]
) -> None:
    world = History(tmp_path / "data", rng, clock)
    for number in range(max(int(budget(12)), 3)):
        for _ in range(rng.randrange(1, 25)):
            world.step()
        assert unsound(world.root) == []
        into = tmp_path / f"copy-{number}"
        WAYS[number % len(WAYS)](world, into)
        is_sound(into, clock)
        shutil.rmtree(into)
    world.close()
    is_sound(world.root, clock)
