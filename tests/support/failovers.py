"""Random histories of replicas that lead and follow in turn, with crashes in between.

`Failovers` draws what happens and does it to every side: kstore's replicas, and Kafka's where they stand beside them. A
side has several replicas. `live` makes the history of one seed, `live_many` one after the other.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import ReplicationError
from tests.support.batches import CODECS, messages_of, v2
from tests.support.replicas import (
    KstoreReplica,
    Replica,
    State,
    Watch,
    base_of,
    batches_in,
    epoch_of,
    recovery_point_of,
    segments_of,
)

STEPS = 25


def live(
    seed: str,
    home: Path,
    watch: Watch,
    *,
    unique_epochs: bool,
    beside: Callable[[KstoreReplica], Replica] | None = None,
) -> Failovers:
    """Live the history of this seed in a directory; `beside` makes the other side's replica that is like this one."""
    rng = random.Random(seed)
    ours = [KstoreReplica(home / f"replica{i}", watch) for i in range(rng.choice((2, 3)))]
    for replica in ours:
        replica.create() if replica is ours[0] else replica.open()
    theirs = [] if beside is None else [beside(replica) for replica in ours]
    try:
        history = Failovers(rng, [ours, theirs] if theirs else [ours], unique_epochs=unique_epochs)
        history.live(STEPS)
    except BaseException as error:
        error.add_note(f"history {seed!r}")
        raise
    finally:
        for each in (*ours, *theirs):
            each.close()
    return history


def live_many(one: Callable[[int], Failovers], seconds: float) -> Counter[str]:
    """Live histories by their numbers for so long, four at least; how often what happened, and how many `histories`."""
    counts, ends = Counter[str](), time.monotonic() + seconds
    for number in itertools.count():
        counts.update(one(number).counts, histories=1)
        if time.monotonic() > ends and number >= 3:
            return counts
    raise AssertionError


class Failovers:
    """A random history of replicas. `sides` have the same replicas, each of its own kind; the first is kstore's."""

    def __init__(self, rng: random.Random, sides: Sequence[Sequence[Replica]], *, unique_epochs: bool) -> None:
        self.rng = rng
        self.sides = sides
        self.count = len(sides[0])
        self.unique_epochs = unique_epochs
        """Whether each epoch has one leader and no crash within, as in Kafka; kstore's leaders may share one."""
        self.leader = 0
        self.epochs = [-1] * self.count  # that each replica leads in, or -1
        self.newest = -1
        self.producer_epoch = 0
        self.told: list[str] = []
        self.counts: dict[str, int] = {}
        self.knows = {0}  # the replicas that have the topic
        self._elect(0)

    def live(self, steps: int) -> None:
        """What happens is told in `told`; ends with replicas that are alike."""
        acts: list[tuple[Callable[[], None], int]] = [
            (self._append, 10),
            (self._follow, 6),
            (self._fail_over, 3),
            (self._crash, 2),
            (self._restart, 1),
            (self._flush, 2),
            (self._roll, 1),
            (self._delete_records, 1),
        ]
        chosen = self.rng.choices([act for act, _ in acts], [weight for _, weight in acts], k=steps)
        for act in chosen:
            act()
        self._finish()

    def _finish(self) -> None:
        for i in range(self.count):
            if i != self.leader:
                self._follow_leader(i)

    def _check(self, holds: bool, what: str) -> None:
        assert holds, "\n".join([*self.told, what])

    def _tell(self, what: str, kind: str) -> None:
        self.told.append(what)
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _do(self, i: int, what: Callable[[Replica], Any]) -> Any:
        """Do it to one replica of each side; its states, and what came of it, are alike afterwards."""
        answers = [what(side[i]) for side in self.sides]
        self._check(all(answer == answers[0] for answer in answers), f"of replica {i} the sides answer {answers}")
        states = [side[i].state() for side in self.sides]
        for side, state in zip(self.sides, states, strict=True):
            self._check(
                state.copied() == states[0].copied(), f"{side[i].name} has {state}\n{self.sides[0][i].name} {states[0]}"
            )
        self._check_epochs(states[0])
        return answers[0]

    def _check_epochs(self, state: State) -> None:
        """Each batch is in the epoch that the checkpoint gives it."""
        for batch in state.batches:
            at = max(
                [entry for entry in state.epochs if entry[1] <= max(base_of(batch), state.log_start_offset)],
                default=None,
            )
            self._check(at is not None and at[0] == epoch_of(batch), f"epochs do not fit the batches: {state}")

    # What happens

    def _elect(self, i: int) -> None:
        epochs = {side[i].lead(self.newest if self.unique_epochs else -1) for side in self.sides[:1]}
        (epoch,) = epochs
        for side in self.sides[1:]:
            side[i].lead(epoch - 1)
        self.leader, self.epochs[i] = i, epoch
        self.newest = max(self.newest, epoch)
        self._tell(f"replica {i} leads in epoch {epoch}", "elections")
        self._do(i, lambda replica: None)

    def _append(self) -> None:
        """At any replica that believes it leads."""
        i = self.rng.choice([i for i in range(self.count) if self.epochs[i] >= 0] or [self.leader])
        if self.epochs[i] < 0:
            return
        for _ in range(self.rng.randint(1, 4)):
            values = [
                self.rng.randbytes(self.rng.choice((0, 5, 40, 150))) for _ in range(self.rng.choice((1, 1, 2, 7)))
            ]
            codec = self.rng.choice(CODECS) if self.rng.random() < 0.2 else "none"
            # Each batch of a producer is the first of a new epoch, which any leader takes.
            self.producer_epoch += 1
            producer = {
                "producer_id": self.rng.randint(1, 3),
                "producer_epoch": self.producer_epoch,
                "base_sequence": 0,
            }
            data = v2(messages_of(values), codec=codec, **(producer if self.rng.random() < 0.3 else {}))
            self._tell(f"replica {i} appends {len(values)} records of {len(data)} bytes", "appends")
            self._do(i, lambda replica, data=data: replica.append(data, self.epochs[i]))  # type: ignore[misc]

    def _follow(self) -> None:
        others = [i for i in range(self.count) if i != self.leader]
        self._follow_leader(self.rng.choice(others))

    def _follow_leader(self, i: int) -> None:
        self.epochs[i] = -1
        before = self.sides[0][i].state() if i in self.knows else None
        self._tell(f"replica {i} follows {self.leader}", "follows")
        leader = self.leader
        if not self.unique_epochs:
            self._lead_above(i)
        self._open_again(i)
        cuts = [side[i].follow(side[leader], self.epochs[leader]) for side in self.sides]
        self._open_again(i)
        self.knows.add(i)
        self._check(all(cut == cuts[0] for cut in cuts), f"the sides cut {cuts} of {before}")
        if cuts[0]:
            self._tell(f"  which cuts it to {cuts[0]}", "truncations")
        self._do(i, lambda replica: None)
        ours, leaders = self.sides[0][i].state(), self.sides[0][leader].state()
        # A log start is never lowered: a replica that was behind may lead, and have records that others have deleted.
        self._check(
            ours.since(0).copied() == leaders.since(ours.log_start_offset).copied(),
            f"follower {i} has {ours}\nleader {leader} {leaders}",
        )

    def _lead_above(self, i: int) -> None:
        """A replica that has had a newer epoch than its leader is refused, until the leader is one of that epoch."""
        newest = max((epoch for epoch, _ in self.sides[0][i].state().epochs), default=-1) if i in self.knows else -1
        if newest <= max((epoch for epoch, _ in self.sides[0][self.leader].state().epochs), default=0):
            return
        with pytest.raises(ReplicationError, match=f"has leader epoch {newest}, and"):
            self.sides[0][i].follow(self.sides[0][self.leader], -1)
        self.sides[0][i].open()
        while self.epochs[self.leader] < newest:
            self._elect(self.leader)

    def _fail_over(self) -> None:
        """To any replica, however far behind it is. The old leader crashes, or goes on without knowing."""
        old, new = self.leader, self.rng.choice(sorted(self.knows))
        if self.rng.random() < 0.5:
            self._crash_replica(old)
        self._elect(new)

    def _crash(self) -> None:
        self._crash_replica(self.rng.choice(sorted(self.knows)))

    def _crash_replica(self, i: int) -> None:
        """Any of what was not flushed since is gone, in the middle of a batch or between two."""
        offset, torn = self._draw_cut(i)
        lost = f", and all from {offset} on is lost but {torn} bytes" if offset >= 0 else ""
        self._tell(f"replica {i} crashes{lost}", "crashes")
        for side in self.sides:
            side[i].crash()
            if offset >= 0:
                cut_file(side[i].root, offset, torn)
                self.counts["tails lost"] = self.counts.get("tails lost", 0) + 1
        for side in self.sides:
            side[i].open()
        self._do(i, lambda replica: None)
        self._goes_on(i)

    def _goes_on(self, i: int) -> None:
        """After a crash: a replica that led leads in a new epoch, or in the one that it had, or no more."""
        if self.epochs[i] < 0:
            return
        self.epochs[i] = -1 if self.unique_epochs or self.rng.random() < 0.3 else self._epoch_of(i)
        if i == self.leader and (self.epochs[i] < 0 or self.rng.random() < 0.5):
            self._elect(i)

    def _epoch_of(self, i: int) -> int:
        """A log that a crash cut has the latest epoch that is left (SEMANTICS 8.13)."""
        epochs = self.sides[0][i].state().epochs
        return epochs[-1][0] if epochs else 0

    def _draw_cut(self, i: int) -> tuple[int, int]:
        """A batch that a crash loses, with all behind it, and how many of its bytes are left; -1 for none."""
        flushed = max(recovery_point_of(side[i].root) for side in self.sides)
        last = [
            {base_of(batch): len(batch) for batch in batches_in(segments_of(side[i].root)[-1])} for side in self.sides
        ]
        common = [base for base in last[0] if base >= flushed and all(base in bases for bases in last)]
        if not common or self.rng.random() < 0.2:
            return -1, 0
        base = self.rng.choice(common)
        return base, self.rng.choice((0, 0, self.rng.randrange(last[0][base])))

    def _restart(self) -> None:
        i = self.rng.choice(sorted(self.knows))
        self._tell(f"replica {i} is closed and opened", "restarts")
        self._open_again(i)
        self._do(i, lambda replica: None)
        if self.unique_epochs:
            self._goes_on(i)

    def _open_again(self, i: int) -> None:
        for side in self.sides:
            side[i].close()
            side[i].open()

    def _flush(self) -> None:
        i = self.rng.choice(sorted(self.knows))
        self._tell(f"replica {i} flushes", "flushes")
        self._do(i, lambda replica: replica.flush())

    def _roll(self) -> None:
        i = self.leader
        self._tell(f"replica {i} rolls", "rolls")
        self._do(i, lambda replica: replica.roll())

    def _delete_records(self) -> None:
        i, state = self.leader, self.sides[0][self.leader].state()
        if self.epochs[i] < 0:
            return
        offset = self.rng.randint(state.log_start_offset, state.log_end_offset)
        self._tell(f"leader {i} deletes its records below {offset}", "deletions")
        self._do(i, lambda replica: replica.delete_records(offset))
        self._do(i, lambda replica: replica.retain())


def cut_file(root: Path, offset: int, torn: int) -> None:
    """Cut the last segment where the batch at `offset` begins, but for its first `torn` bytes."""
    path = segments_of(root)[-1]
    position = 0
    for batch in batches_in(path):
        if base_of(batch) >= offset:
            break
        position += len(batch)
    with path.open("r+b") as file:
        file.truncate(position + torn)
