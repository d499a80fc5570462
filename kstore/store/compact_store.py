"""`Store.compact`: cleans logs regardless of their dirty ratios and compaction lags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kstore.errors import KStoreError, LogClosedError, PolicyViolationError, StorageError
from kstore.log.compaction import compact_log
from kstore.log.hosted_log import HostedLog
from kstore.store.catalog import Entry, is_deleted
from kstore.store.manager import LogManager

if TYPE_CHECKING:
    from kstore.store.metadata import Metadata
    from kstore.store.read_only_logs import LogReaders
    from kstore.types import CompactionStats


def compact(
    metadata: Metadata, logs: LogManager | LogReaders, topic: str | None, *, roll: bool, dry_run: bool
) -> dict[tuple[str, int], CompactionStats]:
    """Clean the partitions of a topic, or of all topics whose policy has `compact`; see `Store.compact`."""
    if not dry_run:
        logs.writing()
    if roll and dry_run:
        raise ValueError("roll and dry_run exclude each other: a dry run rolls nothing")
    done: dict[tuple[str, int], CompactionStats] = {}
    first: KStoreError | None = None
    for entry in _entries(metadata, topic):
        try:
            config = metadata.config_of(entry.topic)
            log = logs.log(entry)
            if dry_run:
                done[entry.key] = log.compact(dry_run=True)
                continue
            if roll:
                log.roll()
            done[entry.key] = compact_log.compact(
                HostedLog(log).writer,
                limits=logs.writing().cleaner.limits(config.max_message_bytes),
                progress=lambda done, total: _refuse_if_closed(metadata),
            )
        except KStoreError as error:  # the other partitions are still cleaned
            metadata.refuse_if_closed()
            if topic is None and (is_deleted(entry) or isinstance(error, PolicyViolationError)):
                continue  # deleted or reconfigured since the call started
            first = first or error
    if first is not None:
        raise first
    return done


def _entries(metadata: Metadata, topic: str | None) -> Iterable[Entry]:
    current = metadata.current()
    if topic is None:
        return [entry for entry in current.entries() if _may_be_compacted(metadata, entry.topic)]
    partitions = current.partitions(topic)
    compact_log.refuse_policy(metadata.config_of(topic))
    return partitions.values()


def _may_be_compacted(metadata: Metadata, topic: str) -> bool:
    try:
        return metadata.is_compacted(topic)
    except StorageError:  # its settings are unknown: `compact` raises after it has cleaned the other topics
        return True


def _refuse_if_closed(metadata: Metadata) -> None:
    if metadata.closed:
        raise LogClosedError("the store has been closed")
