"""Loads rows as a bulk load: stages them next to the store, and commits them at once.

Invariant: the store is open for writing meanwhile. So files that an earlier process has staged under the same name of a
job are leftovers of a killed one, or have been committed by the store's opening.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from kstore.cli.sources.row_source import Rows
from kstore.errors import KStoreError
from kstore.spark.load_driver import discard
from kstore.spark.staging import staging_directory
from kstore.spark.task_attempt import Attempt, Topic
from kstore.store.bulk_loads.load_manifest import Adopted, Transaction
from kstore.store.store import Store, partition_count

__all__ = ["StagedLoad", "remove_leftovers"]

_JOB = "kstore-ingest"


def remove_leftovers(store: Store) -> None:
    """Delete what killed processes have staged."""
    discard(store, job=_JOB)


class StagedLoad:
    """One bulk load. A context manager that removes the staged files, unless the load is decided. Not thread-safe."""

    def __init__(self, store: Store, number: int, compression: str | None, batch_bytes: int | None) -> None:
        """`number` decides where rows without a key begin."""
        self._store = store
        area = staging_directory(store.paths, None)
        self._attempt = Attempt(f"{area}/{_JOB}", _JOB, number, compression=compression, batch_bytes=batch_bytes)
        self._is_staged = False

    def __enter__(self) -> StagedLoad:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._is_staged:
            self._attempt.__exit__(None, None, None)  # a decided load needs its files, also after an error
        else:
            self._attempt.__exit__(kind, *rest)
        if kind is not None:
            with contextlib.suppress(KStoreError):  # the next load does it
                remove_leftovers(self._store)  # keeps those of a decided load

    def topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> Topic:
        """Return what rows are added to: an existing topic, or one that the commit creates."""
        store = self._store
        if name in store.topics:
            return Topic(name, partition_count(store, name), store.topic_config(name).to_kafka())
        settings = store.config.for_topic(config or {}).to_kafka()
        return Topic(name, partitions, settings, json.dumps(config) if config else None)

    def add(self, topic: Topic, rows: Rows) -> None:
        """Stage rows. Raises the errors of `Store.append_columns`; the load must then be dropped."""
        self._attempt.append(topic, self._attempt.columns(rows.values, rows.keys, rows.timestamps, rows.headers))

    def add_record(self, topic: Topic, key: bytes, value: bytes) -> None:
        """Stage one record."""
        self._attempt.append(topic, self._attempt.columns([value], [key]))

    def commit(self, txn: Transaction | None = None) -> Adopted:
        """Add everything to the logs, once; see `Store.adopt`."""
        staged = self._attempt.finish()
        self._is_staged = True
        return self._store.adopt(staged, txn=txn)
