"""Makes one partition of a follower equal to the leader's log: compares, truncates, restarts and appends.

Invariant: a batch is appended only after one that the leader has. If the leader's log has changed other than by
appends, epochs and batches are compared again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kstore.base.stats import FollowerStats
from kstore.codec import header
from kstore.copies.replication import common_batch, truncated_batches
from kstore.copies.replication.divergence import Ends, Restart, find_common_end
from kstore.copies.replication.leader_directory import LeaderLog, Piece
from kstore.errors import CorruptRecordError, OffsetOutOfRangeError, RecordBatchTooLargeError, ReplicationError
from kstore.files.epochs import LeaderEpochCache
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.coordinator.group_lag import offsets_behind
from kstore.types import AppendInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = 1 << 20
"""The most bytes of one fetch and one append. A larger batch is appended alone."""

T = TypeVar("T")

LOOKS = 20  # how often a step looks again if the leader's log changes during it


class Target(Protocol):
    """The operations of a follower's log that replication uses."""

    @property
    def log(self) -> Log: ...
    @property
    def epochs(self) -> LeaderEpochCache: ...
    def append(self, batches: ReadableBuffer, *, leader_epoch: int | None = None) -> AppendInfo: ...
    def truncate_to(self, offset: int) -> bool: ...
    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int | None = None) -> None: ...
    def move_log_start(self, offset: int) -> None: ...
    def mark_high_watermark(self, offset: int) -> None: ...


class Truncated(NamedTuple):
    """One truncation of a follower: the removed offsets `[offset, end_offset)`, and how many records they had."""

    offset: int
    end_offset: int
    records: int
    saved: tuple[str, ...]  # the files with the records


class PartitionFollower:
    """Makes a follower's log equal to its leader's, in steps. For one thread at a time."""

    def __init__(
        self, leader: LeaderLog, target: Target, *, now: Callable[[], int], save_truncated: str | None = None
    ) -> None:
        self.leader = leader
        self.target = target
        self.truncations: list[Truncated] = []
        self._now = now
        self._save = save_truncated
        self._settled = -1  # the version of the leader's log with which epochs and batches were compared
        self._compared: int | None = 0  # all batches below this offset were compared; None: all batches of that time
        self._all_at = (-1, -1)  # the leader's version and log end when its last batch was copied
        self._log = target.log
        self._view = HostedLog(self._log).view
        self.caught_up_ms = now()

    @property
    def log_end_offset(self) -> int:
        return self._view.log_end_offset

    @property
    def is_settled(self) -> bool:
        """Whether epochs and batches were compared since the leader's log last changed other than by an append."""
        return self._settled == self.leader.version

    @property
    def is_caught_up(self) -> bool:
        """Whether the follower had all of the leader's log at the last `look`."""
        version, end = self.leader.version, self.leader.log_end_offset
        return self._settled == version and (self.log_end_offset >= end or self._all_at == (version, end))

    def look(self) -> int:
        """Look at the leader's log; return its end offset."""
        self.leader.look()
        return self.leader.log_end_offset

    def step(self, buffer: memoryview, most_bytes: int, end_offset: int | None = None) -> int:
        """Append about `most_bytes` of the leader's log at the last `look`, up to `end_offset`; return the byte count.

        Raises `ReplicationError` if the follower has newer leader epochs, `CorruptRecordError` for damage in the
        leader's log, and the errors of the follower's log.
        """
        copied = 0
        for _ in range(LOOKS):
            if self._settled != self.leader.version:
                self._settle()
            while copied < most_bytes and self._settled == self.leader.version:
                own_end = self.log_end_offset
                if own_end >= (self.leader.log_end_offset if end_offset is None else end_offset):
                    break
                size = self._copy(own_end, buffer)
                if size is None:
                    break
                copied += size
            if self._settled == self.leader.version:
                self._move_start()  # the leader's log may start inside a batch
                break
        if self.is_caught_up:
            self.caught_up_ms = self._now()
        return copied

    def _copy(self, own_end: int, buffer: memoryview) -> int | None:
        """Append one piece of the leader's log. Return its size, or None if there is none or the log has changed."""
        leader, version, end = self.leader, self.leader.version, self.leader.log_end_offset
        most = min(PIECE_BYTES, len(buffer), self._log.config.effective_segment_bytes)
        piece = self._of_one_state(lambda: leader.read(own_end, most, buffer))
        if piece is None:
            if leader.version == version:
                self._all_at = (version, end)  # the leader's log ends with a gap that a truncation left
            return None
        first = header.BASE_OFFSET.of(piece.data)
        if first < own_end and header.MAGIC.of(piece.data) >= 2:
            self._meet(first, own_end)
            return 0
        self._append(piece)
        leader.passed(version, piece, self.log_end_offset)
        return len(piece.data)

    def _meet(self, first: int, own_end: int) -> None:
        """Truncate to the base offset of a batch of the leader (SEMANTICS 1.24); an empty log restarts there."""
        if own_end <= max(self.leader.log_start_offset, self._view.log_start_offset):
            self.target.truncate_fully_and_start_at(first)
        else:
            self._cut(first)

    def _append(self, piece: Piece) -> None:
        try:
            self.target.append(piece.data)
            self.leader.has_had(self.target.epochs.latest_epoch)
        except CorruptRecordError as error:
            reason, position = f"in the leader's log: {error.reason}", piece.position + error.position
            raise CorruptRecordError(reason, path=piece.path, position=position) from None
        except RecordBatchTooLargeError as error:
            raise RecordBatchTooLargeError(f"{self._log.path} cannot take a batch of the leader's: {error}") from None

    def _of_one_state(self, read: Callable[[], T]) -> T | None:
        """Return the result of `read`; None if the leader's log changed during it other than by appends."""
        version = self.leader.version
        try:
            found = read()
        except (CorruptRecordError, OffsetOutOfRangeError, OSError):
            self.leader.look()
            if self.leader.version == version:
                raise
            return None
        self.leader.look()
        return found if self.leader.version == version else None

    def _settle(self) -> None:
        """Truncate what the leader's log lacks (SEMANTICS 10.21 to 10.23). Stops if the leader's log changes."""
        version = self.leader.version
        compared = self._of_one_state(self._compare)
        if compared is None:
            return
        restart, high_watermark = compared
        if restart.fully:
            self._start_anew(restart.offset)
        elif restart.offset < self.log_end_offset:
            self._cut(restart.offset)
        elif restart.drops_epochs:
            self.target.truncate_to(restart.offset)
        self._move_start()
        self.target.mark_high_watermark(high_watermark)
        self._settled = version
        self._compared = None

    def _compare(self) -> tuple[Restart, int]:
        """Return where the follower continues, and the leader's high watermark."""
        view = self._view
        theirs = self.leader.ends()
        own = Ends(self.target.epochs, view.log_start_offset, view.log_end_offset, view.log_end_offset)
        refuse_newer_epochs(self.leader.newest_epoch, own.epochs.latest_epoch, self._log.path)
        restart = find_common_end(theirs, own)
        if not restart.fully:
            by_batches = self._compare_batches(theirs, own, restart.offset)
            restart = by_batches._replace(drops_epochs=restart.drops_epochs)
        if restart.fully:  # continue at the start of the batch that holds this offset
            found = common_batch.find_at(self.leader.view, restart.offset)
            if found is not None:
                restart = restart._replace(offset=min(found.place.base_offset, restart.offset))
        return restart, theirs.high_watermark

    def _move_start(self) -> None:
        start = min(self.leader.log_start_offset, self.log_end_offset)
        if start > self._view.log_start_offset:
            self.target.move_log_start(start)

    def _compare_batches(self, theirs: Ends, own: Ends, end_offset: int) -> Restart:
        """Return where the follower continues: after the last batch below `end_offset` that both logs have.

        The first time, all batches are compared: if the last batches are equal, earlier ones may still differ.
        """
        start = max(theirs.log_start_offset, own.log_start_offset)
        if start >= end_offset:
            return Restart(end_offset, False)
        views, compacted = (self.leader.view, self._view), self._log.config.compacts
        if self._compared is not None:
            end_offset = self._compare_all(max(start, self._compared), end_offset)
        last = common_batch.find_last_common(*views, start, end_offset, compacted=compacted)
        kept = start if last is None else last
        if not any(common_batch.has_batches(view, kept, end_offset) for view in views):
            return Restart(end_offset, False)  # a cleaning left no batch at these offsets
        return Restart(kept, last is None and theirs.log_start_offset > own.log_start_offset)

    def _compare_all(self, start_offset: int, end_offset: int) -> int:
        """Return where the leader first contradicts a batch; `end_offset` if nowhere. Stops if the leader changes."""
        version, compacted = self.leader.version, self._log.config.compacts
        stretches = common_batch.compare_all(self.leader.log, self._log, start_offset, end_offset, compacted=compacted)
        for reached, difference in stretches:
            self.leader.look()
            if self.leader.version != version:
                break
            if difference is not None:
                return difference
            self._compared = reached
        return end_offset

    def _cut(self, offset: int) -> None:
        self._note(offset)
        self.target.truncate_to(offset)

    def _start_anew(self, offset: int) -> None:
        """Delete all records and restart the log at `offset`."""
        if self.leader.log_start_offset <= self.log_end_offset:  # otherwise the leader has deleted these records too
            self._note(self._view.log_start_offset)
        self.target.truncate_fully_and_start_at(offset)

    def _note(self, offset: int) -> None:
        """Count the records from `offset` on, and save them if wanted, before they are truncated."""
        view, partition = self._view, os.path.basename(self._log.path)
        records = sum(found.records for found in common_batch.batches_from(view, offset, view.log_end_offset))
        saved = [] if self._save is None else truncated_batches.save(view, self._save, partition, offset)
        self.truncations.append(Truncated(offset, view.log_end_offset, records, tuple(saved)))

    def stats(self) -> FollowerStats:
        """Return the follower's offsets, and how far it is behind the leader's log at the last `look`."""
        end, leader_end = self.log_end_offset, self.leader.log_end_offset
        behind = 0 if self.is_caught_up else max(offsets_behind(leader_end, end, self.leader.log_start_offset), 0)
        return {
            "log_start_offset": self._view.log_start_offset,
            "log_end_offset": end,
            "leader_log_end_offset": leader_end,
            "lag_records": behind,
            "lag_bytes": self.leader.bytes_behind(end) if behind else 0,
            "lag_ms": max(self._now() - self.caught_up_ms, 0) if behind or not self.is_caught_up else 0,
            "truncations": [
                {"offset": offset, "end_offset": cut_to, "records": records, "saved": list(saved)}
                for offset, cut_to, records, saved in self.truncations
            ],
            "failure": "",
        }


def refuse_newer_epochs(leader: int | None, own: int | None, path: str) -> None:
    """Raise `ReplicationError` if a follower has a newer leader epoch than its leader ever had: it was made leader."""
    # Epoch 0 does not show that: `become_leader` starts at 1, and a leader with an emptied log has no epoch.
    if own is not None and own > max(-1 if leader is None else leader, 0):
        least = "the leader has none" if leader is None else f"the latest of the leader is {leader}"
        raise ReplicationError(
            f"{path} has leader epoch {own}, and {least}: it was made leader since, so replicate the other way"
        )
