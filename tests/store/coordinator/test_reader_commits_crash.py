"""Whatever dies at whatever step, a group's position is that of its latest commit, or of one that was begun."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore.disk import fs
from kstore.files import commit_file
from kstore.testing.plans import Plan
from tests.conftest import ManualClock
from tests.support.faultfs import DATA_LOST, DATA_SHORT, DATA_ZEROS, KEPT, LOST, NAMES_LOST, FaultFS, shuffled

PLACE = ("orders", 0)


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk is the images' business."""
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)
    monkeypatch.setattr(fs, "fdatasync", lambda fd: None)


class Done(NamedTuple):
    """An act: the steps between which it was done, the position after it, and whether it was durable then."""

    begun: int
    ended: int
    position: int | None
    durable: bool


class Story:
    """A writer and two readers of one store, who commit for one group, one after the other."""

    def __init__(self, root: Path, disk: FaultFS) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.root = root
        self.done = [Done(disk.step, disk.step, None, True)]
        self.writer = self._open()
        self.readers = [self._reader() for _ in range(2)]

    def _open(self) -> kstore.Store:
        return kstore.Store.open(self.root, background=False, clock=self.clock)

    def _reader(self) -> kstore.Store:
        return kstore.Store.open(self.root, "r", clock=self.clock)

    def act(self, rng: random.Random) -> None:
        self.clock.advance(rng.choice([1, 1, 7000]))
        begun, position, durable = self.disk.step, self.done[-1].position, self.done[-1].durable
        number = rng.randrange(2)
        kind = rng.choice(["send"] * 4 + ["write", "delete", "take in", "take in", "reader again", "writer again"])
        if kind in ("send", "write"):
            committer = self.writer if kind == "write" else self.readers[number]
            position, durable = len(self.done), rng.random() < 0.5
            committer.commit_offsets("grp", {PLACE: position}, sync=durable)
        elif kind == "delete":
            self.writer.delete_offsets("grp")
            position, durable = None, rng.random() < 0.5
            if durable:
                self.writer.flush()
        elif kind == "take in":
            self.clock.advance(5000)
            self.writer.run_housekeeping()
        elif kind == "reader again":
            self.readers[number].close()
            self.readers[number] = self._reader()
        else:
            self.writer.close()
            self.writer = self._open()
        self.done.append(Done(begun, self.disk.step, position, durable))
        for store in (self.writer, *self.readers):
            assert seen(store) == position, kind

    def close(self) -> None:
        for store in (self.writer, *self.readers):
            store.close()

    def possible(self, step: int, plan: Plan) -> set[int | None]:
        """The positions that may be found after a crash at a step."""
        ended = [at for at, done in enumerate(self.done) if done.ended <= step and (done.durable or plan is KEPT)]
        return {done.position for at, done in enumerate(self.done) if at >= ended[-1] and done.begun < step} | {
            self.done[ended[-1]].position
        }


def seen(store: kstore.Store) -> int | None:
    position = store.committed_offsets("grp").get(PLACE)
    assert ("grp" in store.groups) == (position is not None)
    return None if position is None else int(position)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    root = tmp_path / "world" / "data"
    with kstore.Store.open(root) as store:
        store.create_topic("orders")
        store.commit_offsets("another", {PLACE: 0})  # so that the internal topic is there
    with FaultFS(tmp_path / "world") as disk:
        story = Story(root, disk)
        yield story
        story.close()


def test_the_latest_commit_is_seen_whatever_step_was_the_last(story: Story, tmp_path: Path, rng: random.Random) -> None:
    for _ in range(30):
        story.act(rng)
    story.disk.uninstall()
    story.close()
    plans = [KEPT, LOST, DATA_LOST, NAMES_LOST, DATA_SHORT, DATA_ZEROS, shuffled(rng)]
    steps = [(step, plan) for step in range(story.done[0].ended, story.disk.step + 1) for plan in plans]
    for step, plan in rng.sample(steps, 40):
        image = story.disk.crash_image(tmp_path / "image", step, plan)
        possible = story.possible(step, plan)
        try:
            with kstore.Store.open(image / "data", "r") as reader:
                found = reader.committed_offsets("grp").get(PLACE)
            assert found in possible
            for _ in range(2):
                with kstore.Store.open(image / "data", background=False) as store:
                    assert store.committed_offsets("grp").get(PLACE) == found
                    assert store.stats()["failures"] == {}
            assert commit_file.find(str(image / "data")) == []
        except BaseException as error:
            error.add_note(f"after step {step} of {story.disk.step}, plan {plan}, in {story.done}")
            raise
        shutil.rmtree(image)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("sync", [False, True])
def test_a_torn_write_of_a_commit_leaves_the_former_one(story: Story, sync: bool, error: int) -> None:
    reader = story.readers[0]
    for offset in range(1, 6):
        reader.commit_offsets("grp", {PLACE: offset}, sync=offset % 2 == 1)
    for partial in (0, 1, 7, 8, 20, 60):
        story.disk.fail("pwrite", path="kstore-commits-*", error=error, partial=partial)
        with pytest.raises(kstore.StorageError):
            reader.commit_offsets("grp", {PLACE: 99}, sync=sync)
        assert seen(story.writer) == seen(reader) == 5
    reader.commit_offsets("grp", {PLACE: 6}, sync=sync)
    assert seen(story.writer) == seen(reader) == 6


def test_a_commit_whose_sync_failed_leaves_those_before_it(story: Story, tmp_path: Path) -> None:
    reader = story.readers[0]
    reader.commit_offsets("grp", {PLACE: 1}, sync=True)
    reader.commit_offsets("grp", {PLACE: 2})
    story.disk.fail("fdatasync", path="kstore-commits-*")
    with pytest.raises(kstore.StorageError):
        reader.commit_offsets("grp", {PLACE: 3}, sync=True)
    image = story.disk.crash_image(tmp_path / "image", None, LOST)
    with kstore.Store.open(image / "data", "r") as after:
        assert seen_in(after, "grp") == 1
    story.clock.advance(1)
    reader.commit_offsets("grp", {PLACE: 4}, sync=True)
    image = story.disk.crash_image(tmp_path / "again", None, LOST)
    with kstore.Store.open(image / "data") as after:
        assert seen_in(after, "grp") == 4


def seen_in(store: kstore.Store, group: str) -> int:
    return int(store.committed_offsets(group)[PLACE])


def interrupted_at(call: str, skip: int) -> Callable[..., object]:
    """A function of `fs` that raises KeyboardInterrupt after it has done its work, at the call after `skip` others."""
    real = getattr(fs, call)
    left = [skip]

    def act(*given: object, **named: object) -> object:
        result = real(*given, **named)
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return result

    return act


@pytest.mark.parametrize(("call", "skip"), [("pwrite", 0), ("pwrite", 1), ("fdatasync", 0), ("fsync", 0), ("open", 0)])
def test_an_interrupted_commit_is_repeated(tmp_path: Path, call: str, skip: int) -> None:
    clock = ManualClock()
    with kstore.Store.open(tmp_path, background=False, clock=clock) as store:
        store.create_topic("orders")
        with kstore.Store.open(tmp_path, "r", clock=clock) as reader:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fs, call, interrupted_at(call, skip))
                with pytest.raises(KeyboardInterrupt):
                    reader.commit_offsets("grp", {PLACE: 1}, sync=True)
            clock.advance(5000)
            store.run_housekeeping()
            reader.commit_offsets("grp", {PLACE: 2}, sync=True)
            assert seen(store) == seen(reader) == 2
        clock.advance(5000)
        store.run_housekeeping()
        assert seen(store) == 2
        assert commit_file.find(str(tmp_path)) == []


def test_a_power_failure_between_unsynced_commits_leaves_the_synced_one(
    story: Story, tmp_path: Path, rng: random.Random
) -> None:
    reader = story.readers[0]
    reader.commit_offsets("grp", {PLACE: 1}, sync=True)
    for offset in range(2, 6):
        reader.commit_offsets("grp", {PLACE: offset})
        for plan in (LOST, DATA_LOST, DATA_SHORT, DATA_ZEROS, shuffled(rng)):
            image = story.disk.crash_image(tmp_path / "image", None, plan)
            with kstore.Store.open(image / "data", "r") as after:
                assert 1 <= seen_in(after, "grp") <= offset
            shutil.rmtree(image)
