"""`store.compact`: logs are cleaned because the store's user says so, whatever their dirty ratios and lags; and what
`store.stats` says of compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from kstore.errors import KStoreError, LogClosedError, PolicyViolationError, StorageError
from kstore.log.compaction import compact_log
from kstore.log.compaction.passes import DEFAULT_LIMITS, CleanerLimits
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.catalog import Entry, is_deleted

if TYPE_CHECKING:
    from kstore.base.stats import CompactionStateStats
    from kstore.store.metadata import Metadata
    from kstore.types import CompactionStats


class Logs(Protocol):
    """The logs of a store."""

    def log(self, entry: Entry) -> Log: ...


def compact(
    metadata: Metadata,
    logs: Logs,
    topic: str | None,
    *,
    roll: bool,
    dry_run: bool,
    limits: Callable[[int], CleanerLimits] | None,
) -> dict[tuple[str, int], CompactionStats]:
    """Clean the partitions of a topic, or of all topics whose policy has `compact`; see `Store.compact`.

    `limits(max.message.bytes)` is the memory of a cleaner by the store's settings; None: Kafka's defaults.
    """
    if roll and dry_run:
        raise ValueError("roll and dry_run exclude each other: a dry run rolls nothing")
    done: dict[tuple[str, int], CompactionStats] = {}
    first: KStoreError | None = None
    for entry in _entries(metadata, topic):
        try:
            config = metadata.config_of(entry.topic)
            of_log = DEFAULT_LIMITS if limits is None else limits(config.max_message_bytes)
            log = logs.log(entry)
            if dry_run:
                done[entry.key] = log.compact(dry_run=True)
                continue
            if roll:
                log.roll()
            done[entry.key] = compact_log.compact(
                HostedLog(log).writer, limits=of_log, progress=lambda done, total: _refuse_if_closed(metadata)
            )
        except KStoreError as error:  # the others are cleaned all the same
            metadata.refuse_if_closed()
            if topic is None and (is_deleted(entry) or isinstance(error, PolicyViolationError)):
                continue  # it was one of them when the call began
            first = first or error
    if first is not None:
        raise first
    return done


def statistics(entries: Iterable[Entry]) -> dict[str, CompactionStateStats]:
    """What the statistics of the open logs whose policy has `compact` say of compaction, by `topic-partition`."""
    found: dict[str, CompactionStateStats] = {}
    for entry in entries:
        log = entry.log
        if log is not None and not log.closed and log.config.compacts:
            try:
                stats = log.stats()
                numbers: CompactionStateStats = {
                    "size_bytes": stats["size_bytes"],
                    "first_dirty_offset": stats["first_dirty_offset"],
                    "dirty_ratio": stats["dirty_ratio"],
                    "compacted_ms": stats["compacted_ms"],
                    "compacted_records_before": stats["compacted_records_before"],
                    "compacted_records_after": stats["compacted_records_after"],
                    "compaction_failure": stats["compaction_failure"],
                }
            except KStoreError as error:
                numbers = {"error": str(error)}
            found[f"{entry.topic}-{entry.partition}"] = numbers
    return found


def _entries(metadata: Metadata, topic: str | None) -> Iterable[Entry]:
    current = metadata.current()
    if topic is None:
        return [entry for entry in current.entries() if _may_be_compacted(metadata, entry.topic)]
    partitions: Mapping[int, Entry] = current.partitions(topic)
    compact_log.refuse_policy(metadata.config_of(topic))
    return partitions.values()


def _may_be_compacted(metadata: Metadata, topic: str) -> bool:
    try:
        return metadata.is_compacted(topic)
    except StorageError:  # its settings are not known: the caller is told once the others are done
        return True


def _refuse_if_closed(metadata: Metadata) -> None:
    if metadata.closed:
        raise LogClosedError("the store has been closed")
