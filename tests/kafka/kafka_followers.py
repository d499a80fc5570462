"""Kafka's followers in a Java process: its fetcher thread, over its partitions and logs or over epoch caches alone.

`Followers` is `Kafka` with leaders and followers. Kafka's `AbstractFetcherThread` decides what a follower does, and
Kafka's `Partition` what a leader answers; `Failovers.java` connects them in one process, where nothing waits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kafka.kafka_jvm import Kafka, KafkaLog, command, why_missing
from tests.kafka.kafka_sides import copy_sparse, read_checkpoints
from tests.support.batches import NOW
from tests.support.replicas import PARTITION, Cut, KstoreReplica, State, state_of
from tests.support.replicas import SETTINGS as TOPIC_SETTINGS

# Kafka itself takes no segments as small as that but in its own tests.
SETTINGS = {
    {"segment.bytes": "internal.segment.bytes"}.get(name, name): value for name, value in TOPIC_SETTINGS.items()
}

CLASS_PATH = "broker-classpath.txt"


class Followed(NamedTuple):
    """What Kafka's fetcher did: ("truncate", offset, is complete), ("fully", offset), ("fetch", from, to)."""

    events: list[tuple[Any, ...]]
    failed: bool
    fetch_offset: int | None
    last_fetched_epoch: int | None

    @property
    def truncations(self) -> list[tuple[Any, ...]]:
        """The events that cut something, or would have."""
        return [event for event in self.events if event[0] != "fetch"]


class Followers(Kafka):
    """Kafka's logs, with partitions that lead and a fetcher that follows."""

    def __init__(self) -> None:
        super().__init__(command("kstore.oracle.Failovers", classpath=CLASS_PATH))

    def lead(self, log: KafkaLog, leader_epoch: int) -> None:
        """Make the partition of `log` leader."""
        self.call("lead", log=log.name, leader_epoch=leader_epoch)

    def fetch(self, log: KafkaLog, offset: int, last_fetched_epoch: int | None) -> tuple[int, int] | None:
        """Fetch as a follower: the diverging epoch and its end, or None; `KafkaError` where it is out of range."""
        answer = self.call("fetch", log=log.name, offset=offset, last_fetched_epoch=last_fetched_epoch)
        return None if answer is None else (answer[0], answer[1])

    def follow(self, log: KafkaLog, leader: KafkaLog, leader_epoch: int, **how: Any) -> Followed:
        """Follow until all is copied. `how`: offset, max_bytes, turns, truncate_on_fetch."""
        return _followed(self.call("follow", log=log.name, leader=leader.name, leader_epoch=leader_epoch, **how))

    def truncations(self, cases: Sequence[dict[str, Any]]) -> list[Followed]:
        """What the fetcher truncates in each case, where both logs are epoch caches."""
        return [_followed(answer) for answer in self.call("truncations", cases=cases)]


def _followed(answer: dict[str, Any]) -> Followed:
    return Followed(**{**answer, "events": [tuple(event) for event in answer["events"]]})


@pytest.fixture(scope="session")
def followers() -> Iterator[Followers]:
    """Kafka with followers, one process for the whole run; skips, and says what is missing, where there is none."""
    missing = why_missing(CLASS_PATH)
    if missing is not None:
        pytest.skip(missing)
    with Followers() as process:
        yield process


class KafkaReplica:
    """A replica of Kafka's: its log, its partition when it leads, its fetcher when it follows.

    After a crash or a restart it is told the same recovery point and log start as `twin`, the replica of ours.
    """

    def __init__(self, followers: Followers, root: Path, twin: KstoreReplica) -> None:
        self.root = root
        self.excused = 0
        self.name = f"Kafka's {root.name}"
        self._followers = followers
        self._twin = twin
        self._log: KafkaLog | None = None
        self._is_clean = False
        self.open()

    @property
    def log(self) -> KafkaLog:
        assert self._log is not None
        return self._log

    def open(self) -> None:
        found = read_checkpoints(self._twin.root)
        self._log = self._followers.open(
            self.root / PARTITION,
            now=NOW,
            config=SETTINGS,
            clean=self._is_clean,
            recovery_point=found.recovery_point or 0,
            log_start=found.log_start or 0,
        )
        self._is_clean = False

    def close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()
            self._is_clean = True

    def crash(self) -> None:
        self.log.crash()
        self._log = None

    def lead(self, above: int) -> int:
        self._followers.lead(self.log, above + 1)
        return above + 1

    def append(self, data: bytes, leader_epoch: int) -> None:
        self.log.append_as_leader(data, leader_epoch=leader_epoch)

    def follow(self, leader: KafkaReplica, leader_epoch: int) -> list[Cut]:
        end = self.log.marks()["log_end_offset"]
        followed = self._followers.follow(self.log, leader.log, leader_epoch)
        if followed.failed:
            self._excuse(followed)
            return self._twin.cuts
        cuts = []
        for event in followed.truncations:
            if event[0] == "fully":
                cuts.append(Cut(event[1], True))
            elif event[1] < end:
                cuts.append(Cut(event[1], False))
                end = event[1]
        return cuts[-1:]

    def _excuse(self, followed: Followed) -> None:
        """Go on from the files of `twin`, if Kafka could not follow into a batch (`follower-inside-a-batch`)."""
        (failure,) = [event for event in followed.events if event[0] == "failure"]
        assert "UnexpectedAppendOffsetException" in failure[1], followed
        self.excused += 1
        self.crash()
        shutil.rmtree(self.root / PARTITION)
        copy_sparse(self._twin.root / PARTITION, self.root / PARTITION)
        self.open()

    def flush(self) -> None:
        self.log.call("flush")

    def roll(self) -> None:
        self.log.call("roll")

    def delete_records(self, offset: int) -> None:
        self.log.call("delete_records", offset=offset)

    def retain(self) -> None:
        self.log.call("retain")

    def state(self) -> State:
        self.log.call("run_tasks")
        marks = self.log.marks()
        producers = [(producer, epoch, offset) for producer, offset, epoch in self.log.call("last_records")]
        return state_of(self.root, marks["log_start_offset"], marks["log_end_offset"], producers)
