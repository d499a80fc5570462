"""`TopicFile`: writes topic records to `kstore-topics.json`.

Invariant: a topic's record is in the file of every directory before the topic changes.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

from kstore.base.weak import weak_method
from kstore.disk import fs
from kstore.files.topic_files import TopicRecord
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs

logger = logging.getLogger("kstore")

TASK = "file of topics"
RETRY_MS = 10_000  # how often a write that found the disk full is retried


class TopicFile:
    """The file of topics of a store that writes. The caller of `record` holds `Metadata.changing`."""

    def __init__(self, metadata: Metadata, logs: Logs) -> None:
        self._metadata = metadata
        self._logs = logs
        self._waits = False  # whether a write waits for space on a full disk

    def record(self, topic: str, record: TopicRecord | None, *, may_wait: bool = False) -> None:
        """Write a topic's new record, or its removal, durably into every directory in service.

        If a directory is full, the record is written into it later. If all are full, this raises unless `may_wait` is
        true.
        """
        metadata, manager = self._metadata, self._logs.writing()
        if record is not None and record.state == "live" and not record.config and len(metadata.paths) == 1:
            record = None  # the partitions' directories have its id and their number
        table = metadata.table
        if record == table.topics.get(topic):
            return
        table = table.remove(topic) if record is None else table.put(topic, record)
        try:
            table = manager.disks.on_each_root(table.write)
        except fs.FullDiskError as error:
            if not may_wait:
                raise
            logger.warning("topic %s: its record is written when there is room: %s", topic, error)
            table = replace(table, behind=tuple(manager.disks.roots))
        metadata.table = table
        if table.behind:
            self._waits = True
            manager.scheduler.once(TASK, weak_method(self._write_again), RETRY_MS)

    def _write_again(self) -> int | None:
        """Retry a write that found no space; return the milliseconds until the next attempt, None if none is due.

        A task of the scheduler.
        """
        changing = self._metadata.changing
        if not changing.acquire(blocking=False):  # a close may hold it, and wait for this task to end
            return RETRY_MS
        try:
            if not self._metadata.closed:
                self.write_waiting()
            return RETRY_MS if self._waits else None
        finally:
            changing.release()

    def write_waiting(self) -> None:
        """Retry a write that waits for space; if there is still none, it continues to wait."""
        metadata = self._metadata
        if self._waits:
            with suppress(fs.FullDiskError):
                metadata.table = self._logs.writing().disks.on_each_root(metadata.table.write)
            self._waits = bool(metadata.table.behind)
