"""The contents of `Store.stats`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from kstore.base.stats import CompactionStateStats, StoreStats
from kstore.codec.compression import LIBRARIES
from kstore.errors import KStoreError
from kstore.store.manager import LogManager

if TYPE_CHECKING:
    from kstore.store.catalog import Entry
    from kstore.store.metadata import Metadata
    from kstore.store.read_only_logs import LogReaders

_OF_A_LOG = [name for name in CompactionStateStats.__annotations__ if name != "error"]


def overview(metadata: Metadata, logs: LogManager | LogReaders) -> StoreStats:
    """Return the contents of `Store.stats` without the compaction of each log and the lag of groups."""
    current = metadata.current()
    entries = current.entries()
    follows = metadata.current_role()
    found: StoreStats = {
        "paths": list(metadata.paths),
        "mode": "a" if isinstance(logs, LogManager) else "r",
        "role": "leader" if follows is None else "follower",
        "source": [] if follows is None else list(follows.source),
        "topics": len(current.topics),
        "partitions": len(entries),
        "open_logs": sum(entry.log is not None and not entry.log.closed for entry in entries),
        "refused": {f"{e.topic}-{e.partition}": str(why) for e in entries if (why := _refused(e)) is not None},
        "passed_over": list(metadata.passed_over),
        "compaction": {},
        "group_lag": {},
        "libraries": dict(LIBRARIES),
    }
    if isinstance(logs, LogManager):
        logs.add_stats(found)
    return found


def _refused(entry: Entry) -> KStoreError | None:
    """Return why a partition cannot be written although its log directory can; None if it can be written."""
    if entry.failure is not None or entry.log is None:
        return entry.failure or entry.waits
    return entry.log.failed


def compaction(metadata: Metadata) -> dict[str, CompactionStateStats]:
    """Return the state of the compaction of each open log whose policy has `compact`, by `topic-partition`."""
    found: dict[str, CompactionStateStats] = {}
    for entry in metadata.current().entries():
        log = entry.log
        if log is not None and not log.closed and log.config.compacts:
            try:
                stats: Mapping[str, object] = log.stats()
                numbers = cast("CompactionStateStats", {name: stats[name] for name in _OF_A_LOG})
            except KStoreError as error:
                numbers = {"error": str(error)}
            found[f"{entry.topic}-{entry.partition}"] = numbers
    return found
