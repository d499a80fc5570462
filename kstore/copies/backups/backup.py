"""`Backup`: a thread that backs up a store, or the directories of another process, in repeated rounds.

Invariant: failures of the object store stop neither appends nor the backup. A newer writer or a closed store stops it.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kstore.base import arguments, threads, times
from kstore.base.closing import Closing
from kstore.base.stats import BackupStats
from kstore.copies.backups.backup_source import DirectorySource, Source, StoreSource
from kstore.copies.backups.backup_writer import WINDOW_SECONDS, BackupWriter
from kstore.errors import BackupError, BackupFencedError, KStoreError, LogClosedError
from kstore.objects.object_store import Objects
from kstore.objects.open_objects import open_objects, refuse_inside
from kstore.store.store import Store

logger = logging.getLogger("kstore")

LONGEST_PAUSE = 60.0
"""The most seconds between a failed round and the next attempt."""


class Backup(Closing):
    """A running backup, returned by `kstore.backup`.

    A context manager that calls `close`. Thread-safe.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> place = store.append("orders", b"3 apples", key=b"alice")
        >>> backup = kstore.backup(store, "backups/data")
        >>> backup.flush()
        >>> backup.stats()["partitions"]["orders-0"]["lag_records"]
        0
    """

    url: str
    """The URL of the backup, without credentials."""

    def __init__(
        self,
        source: Source,
        url: str | Objects,
        *,
        every: float,
        window: float,
        options: Mapping[str, Any] | None,
        clock: Callable[[], int] | None = None,
        background: bool = True,
    ) -> None:
        """Take over the backup at `url`, or create it. `background` starts the thread that runs the rounds."""
        pause = arguments.seconds("every", every)
        kept = arguments.seconds("window", window)
        if pause is None or kept is None or math.isinf(kept) or kept > 1e9:
            raise ValueError(f"every is {every} and window {window}; numbers of seconds are needed")
        clock = times.checked_clock(clock)
        self._every = pause
        refuse_inside(url, source.roots)
        self._objects = open_objects(url, options, create=True)
        self.url = self._objects.url
        self._turn = threading.Lock()  # held during a round
        self._bell = threads.Bell()  # rung once, in `close`
        self._stopped = False
        self._failure: str | None = None
        self._fenced: BackupFencedError | None = None
        self._failed_rounds = 0
        self._last_ms: int | None = None
        self._writer = BackupWriter(source, self._objects, window_ms=int(kept * 1000), clock=clock)
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="kstore-backup", daemon=True)
            threads.start(self._thread)

    def flush(self) -> None:
        """Back up now, and return once everything that was appended before the call is backed up.

        Raises:
            BackupError: If the object store fails, or a partition cannot be backed up.
            BackupFencedError: If another writer has taken over.
            LogClosedError: If the store is closed.
            StorageError: If the store cannot be flushed.

        Example:
            >>> place = store.append("orders", b"1 pear", key=b"bob")
            >>> backup.flush()
            >>> kstore.restore("backups/data", "restored").partitions["orders", 0].log_end_offset
            2
        """
        while not self._round():
            if self._writer.unknown:
                where, why = next(iter(self._writer.unknown.items()))
                raise BackupError(f"{where} is not backed up: {why}")
            if not self._writer.wait(1.0):
                time.sleep(0.001)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._stopped

    def stats(self) -> BackupStats:
        """Return the progress of the backup.

        Returns:
            A `dict` of text and numbers only, so it can be written as JSON. `rounds`, `requests` (by kind) and
            `sent_bytes` count since this object was made. `partitions` has the `lag_records` of each partition at the
            last round. `unknown` has the partitions that cannot be backed up, and the reasons. `failure` is the reason
            why the last round failed, or `None` if it succeeded. `last_backup_ms` is the time when everything was last
            backed up, in milliseconds since the epoch, or `None`. docs/metrics.md describes each key.

        Example:
            >>> stats = backup.stats()
            >>> stats["failure"] is None, stats["unknown"]
            (True, {})
        """
        writer = self._writer
        lag = dict(writer.lag)
        return {
            "url": self.url,
            "backup": writer.manifest.backup,
            "generation": writer.manifest.generation,
            "rounds": writer.rounds,
            "round": writer.manifest.number,
            "requests": dict(self._objects.requests),
            "sent_bytes": self._objects.sent_bytes,
            "caught_up": writer.caught_up and not any(each["lag_records"] for each in lag.values()),
            "last_backup_ms": self._last_ms,
            "partitions": lag,
            "unknown": dict(writer.unknown),
            "failure": self._failure,
            "fenced": self._fenced is not None,
        }

    def close(self) -> None:
        """Back up the remaining data, and stop. A `KStoreError` is logged, not raised. Idempotent.

        Example:
            >>> place = store.append("orders", b"1 pear", key=b"bob")
            >>> backup.close()
            >>> backup.closed
            True
        """
        if self._stopped:
            return
        self._stopped = True
        self._bell.ring()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        try:
            if self._fenced is None:
                self._catch_up()
        except KStoreError as error:
            logger.warning("backup to %s: not everything is backed up: %s", self.url, error)
        finally:
            with self._turn:
                self._writer.close()
                self._objects.close()

    def _catch_up(self) -> None:
        """Run rounds until everything is backed up or a partition cannot be backed up; raise the first failure."""
        while not self._round() and not self._writer.unknown:
            if not self._writer.wait(1.0):
                time.sleep(0.001)

    def _round(self) -> bool:
        """Run one round and return whether everything is backed up. A failure is kept for `stats`, and raised."""
        with self._turn:
            if self._fenced is not None:
                raise self._fenced
            try:
                is_all = self._writer.round()
            except BackupFencedError as error:
                self._fenced = error
                self._failure = str(error)
                raise
            except (KStoreError, OSError) as error:
                self._failure = str(error)
                self._failed_rounds += 1
                raise
            self._failure, self._failed_rounds = None, 0
            if is_all:
                self._last_ms = time.time_ns() // 1_000_000
            return is_all

    def _run(self) -> None:
        while not self._stopped:
            begun = time.monotonic()
            try:
                is_all = self._round()
            except (BackupFencedError, LogClosedError) as error:
                logger.error("backup to %s stops: %s", self.url, error)
                return
            except (KStoreError, OSError) as error:
                is_all = True
                if self._failed_rounds == 1:
                    logger.warning("backup to %s: a round failed, and is tried again: %s", self.url, error)
            if not is_all and self._writer.wait(self._every):
                continue
            pause = self._every - (time.monotonic() - begun)
            if self._failed_rounds:
                pause = min(max(self._every, 0.1) * 2**self._failed_rounds, LONGEST_PAUSE)
            self._bell.wait(lambda: self._stopped, pause)


def backup(
    store: Store,
    url: str,
    *,
    every: float = 1.0,
    window: float = WINDOW_SECONDS,
    options: Mapping[str, Any] | None = None,
) -> Backup:
    """Back up a store to an object store or a directory, in a background thread, until the backup is closed.

    Each round flushes the store and sends the new data. A round makes two requests for any number of partitions, and no
    request if there is no new data. Sealed segments are sent separately, under Kafka's file names. Data that the
    store deletes, truncates or compacts is kept in the backup for another `window` seconds, so that `kstore.restore`
    can restore any time within them.

    A backup has one writer at a time. If another backup is opened on the same `url`, here or on another machine, it
    takes over, and this one stops with `BackupFencedError`. Close the backup before the store.

    Args:
        store: The store, open for writing.
        url: `s3://bucket/prefix`, `gs://`, `az://`, `file://`, `memory://` or the path of a directory.
        every: Seconds between the starts of two rounds.
        window: How many seconds deleted data is kept; 7 days by default.
        options: Options of the object store (`region`, `endpoint`, ...). Credentials that are not given are taken from
            the environment.

    Returns:
        The running backup.

    Raises:
        ConfigError: If obstore is not installed (`pip install 'kstore[backup]'`), or refuses an option.
        BackupError: If `url` is invalid, or lies inside a directory of the store; if the bucket does not exist or
            credentials are missing; or if the backup has only other topics than the store.
        ValueError: If `every` or `window` is negative or too large.

    Example:
        >>> with kstore.Store.open("data") as store, kstore.backup(store, "backups/data", every=1.0) as backup:
        ...     topic_id = store.create_topic("orders")
        ...     place = store.append("orders", b"3 apples", key=b"alice")
        >>> kstore.restore("backups/data", "restored").partitions["orders", 0].log_end_offset
        1
    """
    if not isinstance(store, Store):
        raise TypeError(f"store must be a kstore.Store, not {type(store).__name__}")
    return Backup(StoreSource(store), url, every=every, window=window, options=options)


def back_up_directory(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    url: str | Objects,
    *,
    follow: bool = False,
    every: float = 1.0,
    window: float = WINDOW_SECONDS,
    options: Mapping[str, Any] | None = None,
    clock: Callable[[], int] | None = None,
) -> Backup:
    """Back up directories that another process may be writing.

    Takes no lock and changes no file; unflushed files are synced first. Without `follow` everything is backed up when
    this returns, and the `Backup` only reports the result. With `follow` a thread runs rounds until `Backup.close`.
    """
    source = DirectorySource(paths)
    found = Backup(source, url, every=every, window=window, options=options, clock=clock, background=follow)
    if not follow:
        try:
            found.flush()
        except BaseException:
            found._stopped = True
            found._writer.close()
            raise
    return found
