"""Decides in which order a follower's partitions are checked for changes (looked at) and copied.

A failover may happen at any time. `__transaction_state` is copied before data, up to an end offset read after the
data's, so every transaction with data is known. `__consumer_offsets` is copied after data, up to an end offset read
before the data's, so no group is above a log end offset. Invariant: a failed partition stops no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from errno import ENOENT

from kstore.base.stats import FollowerStats
from kstore.base.threads import Workers
from kstore.copies.replication.follower_partition import PIECE_BYTES, PartitionFollower
from kstore.copies.replication.leader_directory import LeaderStore
from kstore.copies.replication.replicated_topics import CopiedTopics
from kstore.copies.replication.schedule import Schedule
from kstore.disk import fs
from kstore.disk._stamps import Stamps
from kstore.errors import KStoreError
from kstore.store.leadership import follower_of
from kstore.store.store import Store

logger = logging.getLogger("kstore")

SLICE_BYTES = 8 << 20  # of one partition in one sweep
LARGE_BYTES = 1 << 20  # if a sweep copied this much of a partition, its next slice gets a thread
THREADS = 2
TOPICS_SECONDS = 0.05
STAMPS_SHARE = 149  # the pause between two checks of all stamps is this many times the processor time of a check
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0

STATE, DATA, OFFSETS = 0, 1, 2
_KINDS = {"__transaction_state": STATE, "__consumer_offsets": OFFSETS}


@dataclass(slots=True, eq=False)
class Copy:
    """One partition and the state of its copying."""

    key: tuple[str, int]
    kind: int
    follower: PartitionFollower | None = None
    bound: int = -1  # the leader's log end offset at the last `look`: copied up to here
    goal: int = -1  # `bound` at the last `look` at all partitions
    is_large: bool = True
    failure: KStoreError | None = None
    retry_at: float = 0.0
    retry_pause: float = FIRST_RETRY

    @property
    def is_behind(self) -> bool:
        """Whether there is something to copy up to `bound`, and no failure."""
        follower = self.follower
        if follower is None or self.failure is not None:
            return False
        return not follower.is_settled or not (follower.log_end_offset >= self.bound or follower.is_caught_up)

    @property
    def has_reached_goal(self) -> bool:
        """Whether everything up to `goal` is copied or cannot be copied."""
        return not self.is_behind or (self.follower is not None and self.follower.log_end_offset >= self.goal)


class Rounds:
    """Copies new batches in sweeps. `sweep` and `copy_once` are for one thread, the other methods for any."""

    def __init__(
        self,
        leader: LeaderStore,
        store: Store,
        selected: Collection[str] | None,
        now: Callable[[], int],
        save_truncated: str | None,
    ) -> None:
        self._leader = leader
        self._follower = follower_of(store)
        self._topics = CopiedTopics(leader, store, self._follower, selected)
        self._now = now
        self._save = save_truncated
        self._copies: dict[tuple[str, int], Copy] = {}
        self._records: Schedule[Copy] = Schedule()  # the partitions of data and of transactions
        self._offsets: Schedule[Copy] = Schedule()
        self._stamps: Stamps[Copy] = Stamps()  # of the files of unchanged partitions
        self._stamps_at = 0.0
        self._held: list[Copy] = []  # partitions of `__consumer_offsets` that wait until earlier data is copied
        self._topics_at = 0.0
        self._directories: tuple[str, ...] | None = None
        self._workers = Workers(THREADS, "kstore-copies")
        self._buffers = threading.local()
        self._asked = self._taken = self._answered = 0
        self.is_gone = False
        self.has_changed = False  # whether a directory has changed since the stamps were last checked
        self.has_backlog = False

    def close(self) -> None:
        self._workers.shutdown()

    @property
    def is_complete(self) -> bool:
        """Whether every partition is copied up to its last `look`, and nothing has failed."""
        copies = list(self._copies.values())
        return not self._topics.failures and not any(copy.failure or copy.is_behind for copy in copies)

    @property
    def watched_directories(self) -> tuple[str, ...]:
        """The leader's directories: each of its changes changes one of them."""
        if self._directories is None:
            followers = [copy.follower for copy in self._copies.values() if copy.follower is not None]
            self._directories = (*self._leader.paths, *(follower.leader.path for follower in followers))
        return self._directories

    def seconds_to_next_look(self, most: float) -> float:
        """Return how long a sweep after this one would find nothing, if no directory changes."""
        if self._asked > self._taken:
            return 0.0
        return min(most, max(self._stamps_at - time.monotonic(), 0.0)) if self.has_changed else most

    def ask(self) -> int:
        """Request that a sweep looks at all partitions; return a ticket for `answered`."""
        self._asked += 1
        return self._asked

    def answered(self, ticket: int) -> bool:
        """Whether everything the leader had when the ticket was issued is copied, except for failed partitions."""
        return self._answered >= ticket

    def partitions(self) -> dict[str, FollowerStats]:
        found: dict[str, FollowerStats] = {}
        for copy in list(self._copies.values()):
            numbers: FollowerStats = {"failure": ""} if copy.follower is None else copy.follower.stats()
            found[f"{copy.key[0]}-{copy.key[1]}"] = numbers
            numbers["failure"] = "" if copy.failure is None else str(copy.failure)
        return found

    def failures(self) -> dict[str, str]:
        return {topic: str(error) for topic, error in self._topics.failures.items()}

    def copy_once(self) -> None:
        """Copy everything that the leader has now; then raise the first failure, if there was one."""
        self._sweep_to(self.ask())
        if self._topics.failures or any(copy.failure is not None for copy in self._copies.values()):
            self._sweep_to(self.ask())  # the failed partition may be of a topic that was deleted during the sweep
        failures: list[Exception] = list(self._topics.failures.values())
        if failed := [copy for copy in self._copies.values() if copy.failure is not None]:
            theirs = self._leader.topics()  # without topics that are being deleted
            failures += [copy.failure for copy in failed if copy.failure is not None and copy.key[0] in theirs]
        for other in failures[1:]:
            failures[0].add_note(f"and: {other}")
        if failures:
            raise failures[0]

    def _sweep_to(self, ticket: int) -> None:
        while not self.answered(ticket):
            self.sweep()
            if self.is_gone:
                raise fs.MissingFileError(ENOENT, "the leader's log directory has gone", self._leader.paths[0])

    def sweep(self) -> bool:
        """Copy some new batches; return whether there were any. `ReplicationError` if the follower was made leader."""
        with self._follower.changing():
            return self._sweep()

    def _sweep(self) -> bool:
        begun = time.monotonic()
        self.is_gone = self._leader.is_gone()
        if self.is_gone:
            return False
        asked = self._asked  # read once: a ticket issued from here on is answered by the next sweep
        if begun - self._topics_at >= TOPICS_SECONDS or asked > self._taken:
            self._topics_at = begun
            if not self._look_at_topics():
                asked = self._taken
        self._wake_changed(begun)
        is_whole = not self._held and self._look_at_offsets(asked)
        copies = self._copies.values()
        news = self._look([copy for copy in copies if copy.kind != OFFSETS] if is_whole else self._records.due(begun))
        if is_whole:
            for copy in copies:
                copy.goal = copy.bound
        # A partition that is behind stays hot, even if its leader's log has not changed for a long time.
        self._saw(self._records, begun, [*news, *(copy for copy in self._records.hot if copy.is_behind)])
        behind = [copy for copy in self._records.hot if copy.is_behind]
        if behind:
            state = [copy for copy in copies if copy.kind == STATE]
            self._look(state)  # after the data, so that it contains each transaction with data
            self._copy_all(state)
            self._copy_all([copy for copy in behind if copy.kind == DATA])
        if all(copy.has_reached_goal for copy in self._records.hot):
            self._copy_all(self._held)
            self._held = [copy for copy in self._held if copy.is_behind]
            if not self._held:
                self._answered = self._taken
        self.has_backlog = bool(self._held) or any(copy.is_behind for copy in self._records.hot)
        return bool(behind) or bool(news)

    def _look_at_offsets(self, asked: int) -> bool:
        """Look at `__consumer_offsets`, before data; return whether a change or a ticket requires looking at data."""
        now = time.monotonic()
        is_asked = asked > self._taken
        every = [copy for copy in self._copies.values() if copy.kind == OFFSETS]
        self._saw(self._offsets, now, self._look(every if is_asked else self._offsets.due(now)))
        self._held = [copy for copy in self._offsets.hot if copy.is_behind]
        self._taken = asked
        return is_asked or bool(self._held)

    def _wake_changed(self, now: float) -> None:
        """Make partitions due if their files have changed."""
        if now < self._stamps_at:
            return
        used = time.thread_time()
        for copy in self._stamps.take_changed():
            self._schedule_of(copy).wake([copy])
        self.has_changed = False
        self._stamps_at = now + STAMPS_SHARE * (time.thread_time() - used)

    def _saw(self, schedule: Schedule[Copy], now: float, news: Iterable[Copy]) -> None:
        """Note which partitions changed. Watch the files of those that became cold, and look at them once more."""
        cooled = schedule.saw(now, news)
        for copy in cooled:
            if copy.follower is not None:
                self._stamps.add(copy, *copy.follower.leader.files)
        schedule.wake(self._look(cooled))

    def _look_at_topics(self) -> bool:
        """Apply the leader's changes to topics; return False if they must be looked at again."""
        try:
            changed = self._topics.look()
        except fs.MissingFileError:
            return False  # the leader is changing its directories, or they are gone: the next look decides
        if not changed:
            return True
        here = set(self._topics.partitions())
        self._directories = None
        for key in [key for key in self._copies if key not in here]:
            self._forget(self._copies.pop(key))
        for key in here - self._copies.keys():
            copy = self._copies[key] = Copy(key, _KINDS.get(key[0], DATA))
            self._schedule_of(copy).add(copy)
        return True

    def _schedule_of(self, copy: Copy) -> Schedule[Copy]:
        return self._offsets if copy.kind == OFFSETS else self._records

    def _forget(self, copy: Copy) -> None:
        self._schedule_of(copy).remove(copy)
        self._stamps.remove(copy)
        if copy in self._held:
            self._held.remove(copy)

    def _look(self, copies: Iterable[Copy]) -> list[Copy]:
        """Look at the leader's logs; return the copies whose log has changed or was opened."""
        news = []
        for copy in copies:
            if copy.failure is not None and time.monotonic() < copy.retry_at:
                continue
            try:
                if copy.follower is None:
                    copy.follower = self._open(copy.key)
                    self._directories = None
                before = copy.bound
                copy.bound = copy.follower.look()
                if copy.failure is not None or copy.bound != before or not copy.follower.is_settled:
                    copy.failure = None
                    news.append(copy)
            except KStoreError as error:
                self._fail(copy, error)
        return news

    def _open(self, key: tuple[str, int]) -> PartitionFollower:
        leader, target = self._leader.partition(*key), self._follower.partition(*key)
        return PartitionFollower(leader, target, now=self._now, save_truncated=self._save)

    def _copy_all(self, copies: Iterable[Copy]) -> None:
        """Copy a slice of each partition; large slices in parallel."""
        behind = [copy for copy in copies if copy.is_behind]
        large = [copy for copy in behind if copy.is_large]
        if len(large) > 1:
            for _ in self._workers.map(self._copy, large):
                pass
        for copy in behind:
            if len(large) <= 1 or not copy.is_large:
                self._copy(copy)

    def _copy(self, copy: Copy) -> None:
        if (buffer := getattr(self._buffers, "buffer", None)) is None:
            buffer = self._buffers.buffer = memoryview(bytearray(PIECE_BYTES))
        try:
            assert copy.follower is not None
            copied = copy.follower.step(buffer, SLICE_BYTES, copy.bound)
            copy.is_large = copied >= LARGE_BYTES
            copy.retry_pause = FIRST_RETRY
        except KStoreError as error:
            self._fail(copy, error)

    def _fail(self, copy: Copy, error: KStoreError) -> None:
        if str(copy.failure) != str(error):
            logger.error("%s-%d is not copied: %s", *copy.key, error)
        copy.failure = error
        copy.retry_at = time.monotonic() + copy.retry_pause
        copy.retry_pause = min(2 * copy.retry_pause, LONGEST_RETRY)
        self._topics_at = 0.0  # the partition's topic may have been deleted
