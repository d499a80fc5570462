"""What a store says of itself in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from kstore.base.stats import StoreStats
from kstore.codec._compression import ZSTD_OF_COLUMNS
from kstore.errors import KStoreError
from kstore.store import compact_store
from kstore.store.catalog import Entry
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import LogReaders


def stats(paths: Sequence[str], mode: str, metadata: Metadata, logs: LogManager | LogReaders) -> StoreStats:
    """Numbers and troubles of a store; see `Store.stats`."""
    found = overview(paths, mode, metadata, logs)
    found["compaction"] = compact_store.statistics(metadata.current().entries())
    return found


def overview(paths: Sequence[str], mode: str, metadata: Metadata, logs: LogManager | LogReaders) -> StoreStats:
    """What `stats` says without a look at each log."""
    current = metadata.current()
    entries = current.entries()
    follows = metadata.current_role()
    found: StoreStats = {
        "paths": list(paths),
        "mode": mode,
        "role": "leader" if follows is None else "follower",
        "source": [] if follows is None else list(follows.source),
        "topics": len(current.topics),
        "partitions": len(entries),
        "open_logs": sum(entry.log is not None and not entry.log.closed for entry in entries),
        "refused": {f"{e.topic}-{e.partition}": str(why) for e in entries if (why := _refused(e)) is not None},
        "passed_over": list(metadata.passed_over),
        "compaction": {},
        "zstd_of_columns": ZSTD_OF_COLUMNS,
    }
    if isinstance(logs, LogManager):
        logs.add_stats(found)
    return found


def _refused(entry: Entry) -> KStoreError | None:
    """Why a partition cannot be written though its directory can, None if it can."""
    if entry.failure is not None or entry.log is None:
        return entry.failure or entry.waits
    return entry.log.failed
