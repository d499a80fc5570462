"""What runs on the driver: commits, and whole loads.

Opens a store where a path is given, waits for its lock, and calls `kstore.adopt`; needs no Spark but what it is handed.
The hardest rule: whoever is refused the lock keeps what was staged, and is told how to go on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kstore.adopt import Adopted, Manifest, Transaction

if TYPE_CHECKING:
    from kstore.store import Store

COMMIT_TIMEOUT = 60.0


def commit(
    root: str | os.PathLike[str] | Store,
    manifest: Manifest,
    *,
    txn: Transaction | None = None,
    commit_timeout: float = COMMIT_TIMEOUT,
) -> Adopted:
    """Make what was staged part of the logs; exactly once for a `txn`, else for this manifest.

    Waits up to `commit_timeout` seconds while another process holds the store, then raises `LogLockedError`, whose
    `manifest` stays valid: commit it later, or hand it to who holds the store (`Store.adopt`).
    """
    raise NotImplementedError


def discard(root: str | os.PathLike[str] | Store, manifest: Manifest = (), *, job: str | None = None) -> None:
    """Give up what was staged: the directories of `manifest`, or all of a `job`; nothing that has been committed."""
    raise NotImplementedError


def ingest(
    data: Any,
    root: str | os.PathLike[str] | Store,
    *,
    topic: str | None = None,
    partitions: int | None = None,
    txn: Transaction | None = None,
    compression: str | None = None,
    batch_bytes: int | None = None,
    config: Mapping[str, object] | None = None,
    staging_dir: str | os.PathLike[str] | None = None,
    commit_timeout: float = COMMIT_TIMEOUT,
) -> Adopted:
    """Stage a DataFrame, or an RDD of tuples, and commit it; see `stage` and `commit`."""
    raise NotImplementedError


def partition_of(key: Any, partitions: int) -> Any:
    """The column that says where Kafka's default partitioner sends a `key`, by an Arrow UDF; null for a null key."""
    raise NotImplementedError


__all__ = ["COMMIT_TIMEOUT", "commit", "discard", "ingest", "partition_of"]
