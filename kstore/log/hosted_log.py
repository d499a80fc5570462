"""`HostedLog`: the non-public operations on an open log that stores, replication, backups and metrics need."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import names
from kstore.files.follower_file import FollowerRole
from kstore.log import encoded_append
from kstore.log.compaction import compaction_stats
from kstore.log.log import Log
from kstore.log.opening import Marks, take_role
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.segments.producer_state import Expiry
from kstore.log.segments.recovery import Seen
from kstore.log.writing import retention_run
from kstore.log.writing.housekeeping import Housekeeper
from kstore.log.writing.retention import Deletion
from kstore.log.writing.writer import Writer
from kstore.types import AppendInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class HostedLog:
    """Wraps a `Log` for the code that owns it, such as a store. Stateless; as thread-safe as the log."""

    __slots__ = ("log",)

    def __init__(self, log: Log) -> None:
        self.log = log

    @classmethod
    def open_to_read(
        cls, path: str, config: LogConfig, broker: BrokerConfig, clock: Callable[[], int] | None = None
    ) -> HostedLog:
        """Open a partition for reading in a store with the settings `broker`; the store closes it."""
        log = Log.open(path, "r", config=config, clock=clock)
        log._is_own, log._broker = False, broker
        return cls(log)

    @classmethod
    def open(
        cls,
        path: str,
        config: LogConfig,
        *,
        housekeeper: Housekeeper,
        clock: Callable[[], int] | None,
        marks: Marks,
        expiry: Expiry,
        on_storage_error: Callable[[StorageError], object],
        broker: BrokerConfig,
        follows: FollowerRole | None = None,
        seen: Seen | None = None,
    ) -> HostedLog:
        """Open a partition for writing in a store, which holds the locks and writes the checkpoint files.

        Creates missing files. `housekeeper` is the store's housekeeper; `broker` has the store's settings. `seen` is
        the result of the caller's `recovery.look` at the directory. `follows` is the role of a follower's log, or None
        for a leader's. If the latest epoch of a leader's log is below `marks.leader_epoch`, the log starts that epoch.
        Raises the errors of `Log.open`.
        """
        config.check_for_writing()
        parsed = names.parse_partition_name(os.path.basename(path))
        log = Log._begin(path, parsed.topic, parsed.partition, "a", config)
        log._broker = broker
        if seen is None:
            fs.mkdir(path)
        log._load(marks, clock, housekeeper, expiry, seen)
        hosted = cls(log)
        hosted.writer.on_storage_error = on_storage_error
        try:
            take_role(hosted.writer, follows, marks.leader_epoch)
        except BaseException:
            hosted.abandon()
            raise
        return hosted

    @property
    def writer(self) -> Writer:
        """The log's `Writer`; raises `LogClosedError` if the log is closed, `ReadOnlyError` in mode "r"."""
        return self.log._writable()

    @property
    def view(self) -> Writer | ReadOnlyView:
        return self.log._view

    @property
    def dirty_ratio(self) -> float:
        """The dirty ratio of a compacted log, as in `Log.stats`, but without reading the segments' files."""
        return compaction_stats.numbers(self.view, self.log.config, self.log._now())["dirty_ratio"]

    def plan_retention(self, config: LogConfig) -> list[Deletion]:
        """Return what retention would delete now with other settings."""
        return retention_run.survey(self.view, config, self.log._now())[0]

    def configure(self, config: LogConfig) -> None:
        """Replace the whole configuration; it takes effect as after `Log.update_config`."""
        self.log._configure(config)

    def follow(self, role: FollowerRole | None) -> None:
        """Give the log a follower's role; None makes it a leader's log."""
        writer = self.writer
        with writer.gate():
            writer.append_epochs.follow(role)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Start a leader epoch at the log end, durably (SEMANTICS 10.24)."""
        writer = self.writer
        with writer.gate():
            writer.append_epochs.begin(leader_epoch, writer.log_end_offset)

    def append_fetched(self, data: ReadableBuffer, leader_epoch: int | None = None) -> AppendInfo:
        """Append fetched batches like `Log.append_as_follower`, but accept a follower's log, too."""
        return encoded_append.append_fetched(self.writer, data, leader_epoch)

    def fail(self, error: StorageError) -> None:
        """Refuse writes from now on; called if the disk failed for any log in the same log directory."""
        writer = self.log._writer
        if writer is not None:
            writer.fail(error)

    def abandon(self) -> None:
        """Close the log immediately and leave its files as they are, as a crash of the process would."""
        writer = self.log._writer
        if writer is not None and not writer.closed:
            with writer.mutex:
                writer.housekeeping.stop()
                writer.abandon()
                for segment in writer.segments.items:
                    segment.close()
                writer.housekeeping.release()
