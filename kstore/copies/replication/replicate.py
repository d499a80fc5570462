"""`replicate`: makes a store in another directory follow a store or a broker.

Invariant: `ReplicationError` for a wrong source or target is raised before the target's first byte changes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self, Unpack

from kstore.base import arguments, threads, times
from kstore.base.closing import Closing
from kstore.config.log_config import ConfigSource
from kstore.copies.replication import target_checks
from kstore.copies.replication.leader_directory import LeaderStore
from kstore.copies.replication.replication_rounds import Rounds
from kstore.disk import watches
from kstore.errors import ReplicationError
from kstore.files import follower_file, names
from kstore.files.follower_file import FollowerRole
from kstore.store import catalog
from kstore.store.store import Paths, Store

if TYPE_CHECKING:
    from kstore.base.stats import ReplicationStats
    from kstore.config.keywords import StoreSettings

logger = logging.getLogger("kstore")

FIRST_PAUSE, LONGEST_PAUSE, IDLE_PAUSE, LONGEST_IDLE_PAUSE = 0.0005, 0.005, 0.02, 0.1
IDLE_SECONDS = 1.0  # after this time without a change the pauses grow beyond `LONGEST_PAUSE`
GONE_PAUSE = 0.2
WATCHED_PAUSE = 0.5  # the longest pause while the kernel watches the leader's directories: a change ends it
LOOK_SHARE = 9  # a pause is at least this many times the processor time of a sweep that found nothing
IDLE_SHARE = 399  # the same factor after `IDLE_SECONDS`; a pause is at most `LONGEST_IDLE_PAUSE`


def replicate(
    source: Paths,
    target: Paths,
    *,
    topics: str | Iterable[str] | None = None,
    follow: bool = False,
    save_truncated: str | os.PathLike[str] | None = None,
    clock: Callable[[], int] | None = None,
    config: ConfigSource = None,
    **settings: Unpack[StoreSettings],
) -> Replication:
    """Copy a store to a follower with the same batches, offsets and leader epochs.

    The source is only read, and another process may be writing it. The follower's topics get the ids, settings,
    partitions and log start offsets of the source's topics. Clients can read the follower, but cannot change it until
    `Store.become_leader` is called.

    Records that the follower has and the leader does not have are truncated as Kafka's followers do (SEMANTICS 10.20 to
    10.23), and counted in `stats`. The headers of all batches are compared once, at the start.

    A partition that cannot be copied does not stop the others: `stats` reports the reason, and without `follow` its
    error is raised after the others are copied.

    Args:
        source: The directory or directories of the leader: a store, or the `log.dirs` of a broker.
        target: The directory or directories of the follower. They are created if they are missing.
        topics: The topics to copy; all by default, including the internal ones.
        follow: Whether to keep following in a background thread until `Replication.close`. If false, the call returns
            when everything that the source had is copied and the target is closed and unlocked.
        save_truncated: A directory in which truncated records are kept.
        clock: Returns the time in milliseconds, in place of the system's clock.
        config: The settings of the target's store, which deletes and compacts by itself: use the source's.
        **settings: Settings of the target's store as keyword arguments.

    Returns:
        The replication; it is closed unless `follow` is true.

    Raises:
        ReplicationError: If the source is the target or follows it, or one lies inside the other; if the target has
            other data or an unfinished bulk load; or if the target has newer leader epochs than the source, because it
            was made leader since. Then nothing is changed. Also if `follow` is true and no thread can be started.
        LogLockedError: If a store or a broker has the target open for writing.

    Example:
        >>> with kstore.Store.open("data") as store:
        ...     topic_id = store.create_topic("orders")
        ...     place = store.append("orders", b"3 apples", key=b"alice")
        >>> replication = kstore.replicate("data", "copy")
        >>> with kstore.Store.open("copy", mode="r") as copy:
        ...     print([record.value for record in copy.read("orders")])
        [b'3 apples']
    """
    arguments.one_of("save_truncated", save_truncated, str, os.PathLike)
    selected = None if topics is None else tuple([topics] if isinstance(topics, str) else topics)
    for topic in selected or ():
        names.check_topic(topic)
    targets = catalog.real_paths(target)
    sources = catalog.real_paths(source)
    target_checks.refuse_same(sources, targets)
    clock = times.checked_clock(clock)
    leader = LeaderStore(sources)
    try:
        target_checks.refuse(leader, targets, selected)
        follower_file.follow(targets, FollowerRole(leader.paths, selected))
        store = Store.open(targets, config=config, clock=clock, **settings)
    except BaseException:
        leader.close()
        raise
    try:
        kept = None if save_truncated is None else os.path.abspath(os.fspath(save_truncated))
        now = clock or (lambda: time.time_ns() // 1_000_000)
        rounds = Rounds(leader, store, selected, now, kept)
        replication = Replication(leader, store, rounds)
        if follow:
            replication._start()
        else:
            rounds.copy_once()
            replication.close()
    except BaseException:
        store.close()
        leader.close()
        raise
    return replication


class Replication(Closing):
    """The replication of a source to a follower, returned by `replicate`.

    A context manager that calls `close`. Thread-safe.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> place = store.append("orders", b"3 apples", key=b"alice")
        >>> replication = kstore.replicate("data", "copy", follow=True)
        >>> replication.wait_caught_up(timeout=10)
        True
        >>> [record.value for record in replication.store.read("orders")]
        [b'3 apples']
    """

    store: Store
    """The target, open as a follower. `close` closes it; its `become_leader` first stops the replication."""

    def __init__(self, leader: LeaderStore, store: Store, rounds: Rounds) -> None:
        self.store = store
        self._leader = leader
        self._rounds = rounds
        self._thread: threading.Thread | None = None
        self._closing = False
        self._bell = threads.Bell()  # rung after each sweep, and at the end
        self._failure: Exception | None = None
        self._last: tuple[ReplicationStats, bool] | None = None  # taken before the stores were closed

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kstore-follower", daemon=True)
        if not threads.start(self._thread):
            raise ReplicationError("no thread could be started to follow with; replicate without follow=True")

    def _run(self) -> None:
        pause, changed_at = FIRST_PAUSE, time.monotonic()
        try:
            while not self._closing:
                used = time.thread_time()
                with watches.taken(self._rounds.watched_directories) as watch:
                    is_watched = watch is not None and watch.arm()
                    busy = self._rounds.sweep()
                    used, now = time.thread_time() - used, time.monotonic()
                    self._bell.ring()
                    if watch is not None and is_watched and not busy and not self._rounds.is_gone and not self._closing:
                        self._rounds.has_changed |= watch.wait(self._rounds.seconds_to_next_look(WATCHED_PAUSE))
                        continue
                if self._rounds.is_gone:
                    pause = GONE_PAUSE
                elif busy:
                    pause, changed_at = FIRST_PAUSE, now
                    if self._rounds.has_backlog:
                        continue
                else:
                    is_idle = now - changed_at > IDLE_SECONDS
                    least = max(LOOK_SHARE * used, min(IDLE_SHARE * used, LONGEST_IDLE_PAUSE) if is_idle else 0)
                    pause = max(min(pause * 1.5, IDLE_PAUSE if is_idle else LONGEST_PAUSE), least)
                self._bell.wait(lambda: self._closing, pause)
        except ReplicationError as error:
            self._failure = error
            logger.warning("%s follows no longer: %s", self.store.paths[0], error)
        except Exception as error:
            self._failure = error
            logger.exception("%s follows no longer", self.store.paths[0])
        finally:
            self._closing = True
            self._bell.ring()

    @property
    def closed(self) -> bool:
        """Whether the target's store is closed."""
        return self.store.closed

    def stats(self) -> ReplicationStats:
        """Return how far the follower is behind the leader. After `close`, the last values are returned.

        Returns:
            A `dict` of text and numbers only, so it can be written as JSON. `source` is "followed" (a process writes
            it), "no writer" or "gone". `partitions` has for each partition `log_start_offset`, `log_end_offset`,
            `leader_log_end_offset`; the lag as `lag_records`, `lag_bytes` and `lag_ms` (how long ago the follower last
            had everything); `truncations` (each with `offset`, `end_offset`, `records` and the files in `saved`); and
            `failure`, which is "" if there is none. `failures` has the topics that are not copied and the reasons.
            `failure` is the reason why nothing is copied any more, or "". docs/metrics.md describes each key.

        Example:
            >>> stats = replication.stats()
            >>> stats["source"], stats["partitions"]["orders-0"]["lag_records"]
            ('followed', 0)
        """
        return self._stats() if self._last is None else self._last[0]

    def _stats(self) -> ReplicationStats:
        return {
            "source": self._leader.presence(),
            "source_paths": list(self._leader.paths),
            "target_paths": list(self.store.paths),
            "following": self._thread is not None and not self._closing,
            "failure": "" if self._failure is None else str(self._failure),
            "partitions": self._rounds.partitions(),
            "failures": self._rounds.failures(),
        }

    def wait_caught_up(self, timeout: float | None = None) -> bool:
        """Wait until the follower has everything that the source has now.

        Args:
            timeout: Seconds to wait; no limit by default.

        Returns:
            True if the follower has everything. False after `timeout`, if a partition cannot be copied and the others
            are done, or if the following has ended. After `close`, whether the copy was complete when it was closed.

        Example:
            >>> place = store.append("orders", b"1 pear", key=b"bob")
            >>> replication.wait_caught_up(timeout=10)
            True
        """
        seconds = None if timeout is None else arguments.seconds("timeout", timeout)
        if self._last is not None:
            return self._last[1]
        ticket = self._rounds.ask()
        self._wake()
        if not self._bell.wait(lambda: self._closing or self._rounds.answered(ticket), seconds):
            return False
        return self._rounds.answered(ticket) and self._rounds.is_complete

    def close(self) -> None:
        """Stop following and close both stores. All copied data is on the disk when this returns. Idempotent.

        Example:
            >>> replication.close()
            >>> replication.stats()["partitions"]["orders-0"]["log_end_offset"]
            1
        """
        self._closing = True
        self._bell.ring()
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._last is None:
            self._last = self._stats(), self._rounds.is_complete
        try:
            self._rounds.close()
            self.store.close()
        finally:
            self._leader.close()

    def _wake(self) -> None:
        for path in self._leader.paths:
            watches.wake(path)

    def __enter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<kstore.Replication of {', '.join(self._leader.paths)} to {', '.join(self.store.paths)}>"
