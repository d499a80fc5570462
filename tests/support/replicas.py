"""Copies of one log that lead and follow in turn: what tests of failovers are made of.

A replica is a directory with one partition, open all the time but for its crashes and restarts. `failovers` says what
happens to several of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

import kstore
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.writing import truncation
from tests.support.batches import NOW

TOPIC = "events"
PARTITION = "events-0"
SETTINGS = {"segment.bytes": 1500, "index.interval.bytes": 300, "file.delete.delay.ms": 0}
RECOVERY_POINTS = "recovery-point-offset-checkpoint"


class State(NamedTuple):
    """All of a replica that has to be alike: `batches` are the bytes from the log start on, and of each producer there
    are id, epoch and the offset of its last record."""

    log_start_offset: int
    log_end_offset: int
    epochs: tuple[tuple[int, int], ...]
    batches: tuple[bytes, ...]
    producers: tuple[tuple[int, int, int], ...] = ()

    def copied(self) -> State:
        """What a follower has of it: an epoch without a record is not in any batch."""
        return self._replace(epochs=tuple(entry for entry in self.epochs if entry[1] < self.log_end_offset))

    def since(self, offset: int) -> State:
        """What a log has of it that starts at `offset`, or where this starts if that is later; a log may still know a
        producer whose records are below."""
        offset = max(offset, self.log_start_offset)
        at = max((entry for entry in self.epochs if entry[1] <= offset), default=None)
        later = tuple(entry for entry in self.epochs if entry[1] > offset)
        epochs = later if at is None else ((at[0], offset), *later)
        batches = tuple(batch for batch in self.batches if last_of(batch) >= offset)
        return State(offset, self.log_end_offset, epochs, batches, tuple(p for p in self.producers if p[2] >= offset))

    def __str__(self) -> str:
        found = [f"{base_of(batch)}-{last_of(batch)}@{epoch_of(batch)}" for batch in self.batches]
        batches, marks = " ".join(found), f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"{marks} epochs {list(self.epochs)} batches {batches} producers {list(self.producers)}"


class Cut(NamedTuple):
    """What following took from a replica: truncated to `offset`, or emptied to start there."""

    offset: int
    fully: bool


class Replica(Protocol):
    """One copy."""

    root: Path
    name: str

    def open(self) -> None: ...
    def close(self) -> None:
        """End in order; nothing for one that is closed."""

    def crash(self) -> None:
        """Leave the files as they are."""

    def lead(self, above: int) -> int:
        """Become leader in an epoch above this one; the epoch."""

    def append(self, data: bytes, leader_epoch: int) -> None: ...
    def follow(self, leader: Any, leader_epoch: int) -> list[Cut]:
        """Follow until all is copied, and end; the last cut, if there was one: how many steps lead there is not
        compared. It is opened again afterwards."""

    def flush(self) -> None: ...
    def roll(self) -> None: ...
    def delete_records(self, offset: int) -> None: ...
    def retain(self) -> None: ...
    def state(self) -> State: ...


def base_of(batch: bytes) -> int:
    return int.from_bytes(batch[:8])


def last_of(batch: bytes) -> int:
    return base_of(batch) + int.from_bytes(batch[23:27])


def epoch_of(batch: bytes) -> int:
    return int.from_bytes(batch[12:16], signed=True)


def segments_of(root: Path) -> list[Path]:
    return sorted((root / PARTITION).glob("*.log"))


def batches_in(path: Path) -> list[bytes]:
    """The batches of a `.log` file, up to one that is torn."""
    data, found, at = path.read_bytes(), [], 0
    while len(data) - at >= 61:
        size = 12 + int.from_bytes(data[at + 8 : at + 12])
        if size > len(data) - at:
            break
        found.append(data[at : at + size])
        at += size
    return found


def state_of(
    root: Path, log_start_offset: int, log_end_offset: int, producers: Iterable[tuple[int, int, int]] = ()
) -> State:
    """A replica's state by its files and these two marks; what was cut away above the end does not count."""
    batches = [batch for path in segments_of(root) for batch in batches_in(path) if last_of(batch) >= log_start_offset]
    lines = (root / PARTITION / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    epochs = tuple((int(epoch), int(start)) for epoch, start in (line.split() for line in lines))
    return State(log_start_offset, log_end_offset, epochs, tuple(batches), tuple(sorted(producers)))


def recovery_point_of(root: Path) -> int:
    path = root / RECOVERY_POINTS
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{TOPIC} 0 ")), 0)


class KstoreReplica:
    """A store with one partition, which becomes leader, or follows by one-shot replications."""

    def __init__(self, root: Path, watch: Watch) -> None:
        self.root = root
        self.name = f"kstore's {root.name}"
        self.store: kstore.Store | None = None
        self.cuts: list[Cut] = []
        """What the last following cut; the steps to it are not told."""
        self._watch = watch
        self._crashes = 0

    def create(self) -> None:
        """Make the topic; of the first leader alone, since the others get it by following."""
        self.open()
        self._store.create_topic(TOPIC, config=SETTINGS)

    @property
    def _store(self) -> kstore.Store:
        assert self.store is not None
        return self.store

    @property
    def _log(self) -> Log:
        return self._store.log(TOPIC, 0)

    def open(self) -> None:
        self.store = kstore.Store.open(self.root, clock=lambda: NOW, background=False)

    def close(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            store.close()

    def crash(self) -> None:
        store, self.store = self._store, None
        self._crashes += 1
        image = self.root.with_name(f"{self.root.name}+{self._crashes}")
        shutil.copytree(self.root, image)
        store.close()
        shutil.rmtree(self.root)
        image.rename(self.root)

    def lead(self, above: int) -> int:
        epoch = self._store.become_leader()[TOPIC, 0]
        while epoch <= above:  # another replica has had it
            epoch = self._store.become_leader()[TOPIC, 0]
        return epoch

    def append(self, data: bytes, leader_epoch: int) -> None:
        """With the epoch that the log has by itself: that of its last `lead`."""
        self._log.append_batch(data)
        assert epoch_of(batches_in(segments_of(self.root)[-1])[-1]) == leader_epoch

    def follow(self, leader: KstoreReplica, leader_epoch: int) -> list[Cut]:
        self.close()
        with self._watch.cuts() as cuts:
            kstore.replicate(leader.root, self.root, clock=lambda: NOW)
        self.cuts = cuts[-1:]
        return self.cuts

    def flush(self) -> None:
        self._store.flush()

    def roll(self) -> None:
        self._log.roll()

    def delete_records(self, offset: int) -> None:
        self._log.delete_records(offset)

    def retain(self) -> None:
        self._log.apply_retention()

    def state(self) -> State:
        log = self._log
        HostedLog(log).writer.epochs.flush()  # a truncation leaves the file for later
        producers = [
            (each.producer_id, each.producer_epoch, max((batch.last_offset for batch in each.batches), default=-1))
            for each in log.producer_states()
        ]
        return state_of(self.root, log.log_start_offset, log.log_end_offset, producers)


class Watch:
    """Sees every truncation of the process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cuts: list[Cut] | None = None
        to, restart = truncation.truncate_to, truncation.restart

        def truncate_to(writer: Any, offset: int) -> bool:
            if self._cuts is not None and offset < writer.log_end_offset:
                self._cuts.append(Cut(offset, False))
            return to(writer, offset)

        def restarted(writer: Any, offset: int, log_start_offset: int) -> None:
            if self._cuts is not None:
                self._cuts.append(Cut(offset, True))
            restart(writer, offset, log_start_offset)

        monkeypatch.setattr(truncation, "truncate_to", truncate_to)
        monkeypatch.setattr(truncation, "restart", restarted)

    @contextmanager
    def cuts(self) -> Iterator[list[Cut]]:
        self._cuts = found = []
        try:
            yield found
        finally:
            self._cuts = None
