"""The leader epochs that appends enter into the cache and the appender, and how a failed append restores them.

Called with the log's gate held. Invariant: an append that has stored nothing leaves the epochs as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kstore.errors import StorageError
from kstore.files.epochs import EpochEntry, LeaderEpochCache
from kstore.files.follower_file import FollowerRole
from kstore.log.writing._appender import Appender

if TYPE_CHECKING:
    from kstore.codec.validation import Batch


class AppendEpochs:
    def __init__(self, epochs: LeaderEpochCache, appender: Appender, directory: str) -> None:
        self._epochs = epochs
        self._appender = appender
        self._directory = directory
        self.role: FollowerRole | None = None
        self.before: tuple[tuple[EpochEntry, ...], int, bool, int] | None = None  # state before a change in the gate
        self.take_latest()

    def assign(self, leader_epoch: int | None, next_offset: int) -> None:
        """Enter the leader epoch of the next append into the cache and its file, if it is new (SEMANTICS 1.26, 10.3).

        Raises `NotLeaderError` in a follower.
        """
        self.refuse_follower()
        epoch = self._appender.leader_epoch if leader_epoch is None else leader_epoch
        if epoch != self._epochs.latest_epoch:
            self._remember()
            self._epochs.assign(epoch, next_offset)
        self._appender.leader_epoch = epoch
        self._appender.epoch_assigned = True

    def assign_of(self, batches: Sequence[Batch]) -> None:
        """Enter the leader epochs of a follower's batches (SEMANTICS 1.26)."""
        self._remember()
        for batch in batches:
            if batch.magic >= 2:
                self._epochs.assign(batch.leader_epoch, batch.base_offset)
            elif self._epochs.entries:
                self._epochs.clear_and_flush()

    def take_latest(self) -> None:
        """Set the appender's leader epoch to the latest of the cache."""
        latest = self._epochs.latest_epoch
        self._appender.leader_epoch = 0 if latest is None else latest
        self._appender.epoch_assigned = latest is not None and self.role is None

    def follow(self, role: FollowerRole | None) -> None:
        """Make the log a follower's, which refuses clients' appends, or a leader's (None).

        In a follower no epoch counts as assigned, so every append as leader calls `assign`.
        """
        self.role = role
        self.take_latest()

    def refuse_follower(self) -> None:
        if self.role is not None:
            raise self.role.refusal(self._directory)

    def begin(self, leader_epoch: int, next_offset: int) -> None:
        """Enter the epoch of a new leader at the log end, durably (SEMANTICS 10.24)."""
        self._epochs.assign(leader_epoch, next_offset)
        self._epochs.flush()
        self.take_latest()

    def were_cut(self) -> None:
        """Note that a truncation has removed entries of the cache: the next append may have to enter its epoch."""
        latest = self._epochs.latest_epoch
        is_known = latest is not None and latest == self._appender.leader_epoch
        self._appender.epoch_assigned = is_known and self.role is None

    def _remember(self) -> None:
        appender = self._appender
        self.before = (
            self._epochs.entries, appender.leader_epoch, appender.epoch_assigned, appender.next_offset
        )  # fmt: skip

    def take_back(self) -> None:
        """Restore the epochs from before an append that has stored nothing."""
        if self.before is None:
            return
        entries, leader_epoch, assigned, end = self.before
        self.before = None
        if self._appender.next_offset == end:
            self._appender.leader_epoch, self._appender.epoch_assigned = leader_epoch, assigned
            with suppress(StorageError):  # the cache is restored, and the next write of the file stores it
                self._epochs.restore(entries)
