"""`BulkLoads`: adds segments that tasks have staged to a store's logs, exactly once.

Tasks create only private files, with offsets from 0. A commit assigns the offsets, writes them durably to the COMMIT
record, and only then changes a log. Invariant: before that record is written, no log has changed; afterwards the load
will be finished, by this process or by a later opening.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kstore.base import arguments, uninterrupted
from kstore.base.threads import Workers
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import BackupError, ConfigError, InvalidTopicError, KStoreError, StorageError, first_report
from kstore.files import load_files, names
from kstore.files.load_files import CommitRecord, Done
from kstore.log.hosted_log import HostedLog
from kstore.log.writing.writer import Writer
from kstore.objects import staged_objects
from kstore.objects.object_store import Objects
from kstore.store.administration import Administration
from kstore.store.bulk_loads import fetch_staged, job_manifest
from kstore.store.bulk_loads import place as steps
from kstore.store.bulk_loads.load_manifest import (
    TASK_PREFIX,
    Adopted,
    Manifest,
    Staged,
    Transaction,
    check_transaction,
    name_of,
)
from kstore.store.bulk_loads.place import PartitionShare, StagedSegment
from kstore.store.bulk_loads.staged_files import remove_staged
from kstore.store.catalog import Entry
from kstore.store.coordinator._lock_set import LockSet
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs

logger = logging.getLogger("kstore")

RENAME_BYTES = 4 << 20
"""Files of a partition are renamed into it if their average size is at least this; otherwise they are appended."""

THREADS = 4  # to patch staged files; they mostly wait for the disk

Key = tuple[str, int]  # topic and partition


class _Load(NamedTuple):
    """A load: its rows, its transaction, its name among the finished loads, and what fetches its files, if needed."""

    rows: tuple[Staged, ...]
    txn: tuple[str | None, int]
    name: str
    fetch: Callable[[Callable[[], None]], None] | None = None

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.directory for row in self.rows))


class BulkLoads:
    """The bulk loads of a store. Thread-safe: `loading` is held during a load, so there is one at a time."""

    def __init__(
        self,
        metadata: Metadata,
        logs: Logs,
        administration: Administration,
        staging_dir: str | os.PathLike[str] | None,
    ) -> None:
        self.loading = threading.Lock()
        self._metadata = metadata
        self._logs = logs
        self._administration = administration
        self._areas = load_files.staging_areas(metadata.paths)  # the directories in which loads may be staged
        self._add_area(staging_dir)
        self._done = Done()
        self._pending: CommitRecord | None = None
        fs.register(self)

    def _after_fork(self) -> None:
        """Make a new lock in a forked child: the thread that holds the old one may not exist there."""
        self.loading = threading.Lock()

    def has(self, application: str, version: int) -> bool:
        return self._done.has("", application, version)

    def _add_area(self, staging_dir: str | os.PathLike[str] | None) -> None:
        if staging_dir is not None:
            area = arguments.real_path("staging_dir", staging_dir)
            self._areas = tuple(dict.fromkeys([*self._areas, area]))

    def adopt(
        self,
        manifest: Manifest | str,
        txn: Transaction | None,
        rename_bytes: int,
        staging_dir: str | os.PathLike[str] | None,
        storage: Mapping[str, Any] | None,
    ) -> Adopted:
        """Commit a staged load atomically and exactly once; see `Store.adopt`."""
        self._logs.leading()
        if isinstance(manifest, str):
            if txn is not None or staging_dir is not None:
                raise ConfigError("the transaction and the staging directory are those of the job at this URL")
            return self._adopt_job(manifest, rename_bytes, storage)
        rows = [Staged.of(row) for row in manifest]
        transaction = check_transaction(txn)
        if staging_dir is not None and staged_objects.is_url(staging_dir):
            if not rows:
                return self._run(_Load((), transaction, name_of((), transaction)), rename_bytes)
            stage, job = _stage_of(rows, str(staging_dir))
            with staged_objects.open_job(stage, job, storage, create=False) as objects:
                return self._adopt_objects(objects, rows, transaction, name_of(rows, transaction), rename_bytes)
        self._add_area(staging_dir)
        for row in {row.path: row for row in rows}.values():
            if row.objects is not None:
                raise ConfigError(f"{row.directory[:400]!a} is in an object store; staging_dir must name its URL")
            fs.refuse_links(row.path, below=load_files.check_staged(row.directory, self._areas))
        return self._run(_Load(tuple(rows), transaction, name_of(rows, transaction)), rename_bytes)

    def _adopt_job(self, url: str, rename_bytes: int, storage: Mapping[str, Any] | None) -> Adopted:
        """Commit the job at a URL, which its manifest describes."""
        stage, job = staged_objects.split_job(url)
        with staged_objects.open_job(stage, job, storage, create=False) as objects:
            found = job_manifest.read(objects, stage, job)
            if found is None:
                if not self._done.has_job(job):
                    raise BackupError(
                        f"{objects.url} has no {staged_objects.MANIFEST}: the job is not finished, or was removed, or "
                        f"adopted by another store"
                    )
                _remove_objects(objects)
                return Adopted(duplicate=True)
            transaction = check_transaction(found.txn)
            is_batch = transaction[0] is not None and load_files.is_stream(transaction[0])
            load = name_of(found.rows, transaction) if is_batch else job
            return self._adopt_objects(objects, found.rows, transaction, load, rename_bytes)

    def _adopt_objects(
        self, objects: Objects, rows: Sequence[Staged], txn: tuple[str | None, int], name: str, rename_bytes: int
    ) -> Adopted:
        """Commit rows that are in an object store, and delete the objects of their job."""
        area = self._areas[0]
        fs.refuse_links(area, below=area)
        local = tuple(fetch_staged.local_rows(rows, area))

        def fetch(check: Callable[[], None]) -> None:
            fetch_staged.fetch(objects, rows, area, self._config_of, check)

        done = self._run(_Load(local, txn, name, fetch), rename_bytes)
        _remove_objects(objects)
        return done

    def _config_of(self, topic: str) -> LogConfig:
        """Return the settings that count for the indexes of a topic's segments; the topic may not exist yet."""
        return self._metadata.config_of(topic) if topic in self._metadata.catalog else self._metadata.config

    def _run(self, load: _Load, rename_bytes: int) -> Adopted:
        def adopt(check: Callable[[], None]) -> Adopted:
            with self.loading:
                check()
                try:
                    return self._adopt_locked(load, rename_bytes, check)
                except BaseException:
                    if load.fetch is not None:
                        self._forget_locked(load)
                    raise

        return uninterrupted.run(adopt)

    def _forget_locked(self, load: _Load) -> None:
        """Remove what was fetched for a load that failed, unless it is decided."""
        try:
            records = [load_files.read_commit(root) for root in self._metadata.paths if fs.exists(root)]
        except KStoreError as error:
            logger.warning("%s: staged files stay behind: %s", self._areas[0], error)
            return
        needed = {directory for record in records if record for directory in record.directories}
        if needed.isdisjoint(load.directories):
            self._remove(load)

    def _remove(self, load: _Load) -> None:
        """Remove the files of a load; of fetched ones also those of attempts that an earlier call has fetched."""
        if load.fetch is None:
            remove_staged(load.directories, self._areas)
            return
        for job in {row.job for row in load.rows}:
            fetch_staged.clear(self._areas[0], job)

    def _adopt_locked(self, load: _Load, rename_bytes: int, check: Callable[[], None]) -> Adopted:
        """Commit a load. `check` raises if the caller was interrupted; it is called only until the load is decided."""
        rows, txn = load.rows, load.txn
        if self._pending is not None and not self._pending.shares:
            self._finish(self._pending)
        if self._pending is not None:
            raise _unfinished(self._pending, "it keeps others out")
        if not rows and txn[0] is None:
            return Adopted()
        if self._done.has(load.name, *txn):
            self._refuse_grown_batch(load.name)
            self._remove(load)
            return Adopted(duplicate=True)
        by_key: dict[Key, list[Staged]] = {}
        for row in rows:
            by_key.setdefault((row.topic, row.partition), []).append(row)
        if len({row.path for row in rows}) < len(rows):
            raise ValueError("the manifest has a task's rows twice")
        wanted = self._check_topics(rows)
        if load.fetch is not None:
            load.fetch(check)
        staged = self._look_through(by_key)
        check()
        self._make_topics(wanted)
        record = CommitRecord(load.name, "", (), *txn, (), load.directories)
        return self._commit(record, staged, rename_bytes, check)

    def _refuse_grown_batch(self, load: str) -> None:
        """Raise `ConfigError` if a micro-batch that is done had fewer records.

        A checkpoint that has lost its last batch makes Spark plan it again, with the rows that have arrived since. To
        skip these would lose them. Fewer records than before lose nothing: compaction or retention came in between.
        """
        batch, _, count = load.rpartition(":")
        for name in self._done.loads if batch else ():
            before = name.removeprefix(f"{batch}:")
            if before != name and before.isdecimal() and int(before) < int(count):
                raise ConfigError(
                    f"{batch} was committed with {before} records, and is to be committed with {count}: the checkpoint "
                    f"of this query has lost its last batch, or the query's rows differ from run to run. Start a query "
                    f"with a new checkpoint that continues after the rows of that batch"
                )

    def _check_topics(self, rows: Sequence[Staged]) -> dict[str, Staged]:
        """Return a row of each topic; raise `ValueError` if its number of partitions is not that of the rows."""
        wanted: dict[str, Staged] = {}
        for row in rows:
            if row.topic in names.INTERNAL_TOPICS:
                raise InvalidTopicError(f"{row.topic} is its coordinator's own topic")
            first = wanted.setdefault(row.topic, row)
            count = self._metadata.partition_count(row.topic) or first.partitions
            if row.partitions != count:
                raise ValueError(f"topic {row.topic} has {count} partitions, and was staged for {row.partitions}")
        return wanted

    def _make_topics(self, wanted: Mapping[str, Staged]) -> None:
        for topic, row in wanted.items():
            if topic not in self._metadata.catalog:
                config = None if row.config is None else json.loads(row.config)
                self._administration.create_topic(topic, row.partitions, config)

    def _commit(
        self,
        record: CommitRecord,
        staged: Mapping[Key, Sequence[StagedSegment]],
        rename_bytes: int,
        check: Callable[[], None],
    ) -> Adopted:
        manager = self._logs.writing()
        entries = {key: self._metadata.catalog.find(*key) for key in sorted(staged)}
        with Workers(THREADS, "kstore-adopt") as pool:
            opened = pool.map(lambda entry: HostedLog(manager.log(entry)).writer, entries.values())
            writers = dict(zip(entries, opened, strict=True))
        with LockSet() as held:
            for key in sorted(writers):  # always in this order, so that two loads cannot deadlock
                held.enter(writers[key].gate())
            shares = self._share_out(staged, entries, writers, rename_bytes)
            roots = manager.disks.roots
            used = {entry.root for entry in entries.values()}
            record = replace(
                record,
                primary=roots[0],
                roots=tuple(root for root in roots if root in used or root == roots[0]),
                shares=tuple(share.to_json() for share in shares),
            )
            check()
            if shares:
                self._decide(manager, record)
                self._pending = record
                self._carry_out(record, shares, writers)
                # All shares are in the logs; only the done-file must still be written.
                self._pending = replace(record, shares=())
        self._finish(record)
        records = sum(share.offsets[1] - share.offsets[0] for share in shares)
        size = sum(segment.bytes for share in shares for segment in share.segments)
        return Adopted({share.key: share.offsets for share in shares}, records, size)

    @staticmethod
    def _look_through(by_key: Mapping[Key, Sequence[Staged]]) -> dict[Key, list[StagedSegment]]:
        """Check the staged files against the manifest, before any log is locked."""

        def look(key: Key) -> list[StagedSegment]:
            segments = []
            for row in by_key[key]:
                for base, next_offset, size in row.parts:
                    segment = steps.look_at(row.path, base, size)
                    if segment.next_offset != next_offset - base:
                        raise StorageError(
                            errno.EIO,
                            f"{segment.next_offset} records are staged, and the manifest says {next_offset - base}",
                            segment.paths[0],
                        )
                    segments.append(segment)
            return segments

        with Workers(THREADS, "kstore-adopt") as pool:
            return dict(zip(by_key, pool.map(look, by_key), strict=True))

    @staticmethod
    def _share_out(
        staged: Mapping[Key, Sequence[StagedSegment]],
        entries: Mapping[Key, Entry],
        writers: Mapping[Key, Writer],
        rename_bytes: int,
    ) -> list[PartitionShare]:
        """Assign an offset to every staged record, and write it durably into the files that will be renamed."""

        def share_of(key: Key) -> PartitionShare:
            segments, entry, writer = staged[key], entries[key], writers[key]
            device = fs.stat(entry.path).st_dev
            directories = {segment.directory for segment in segments}
            renames = (
                sum(segment.bytes for segment in segments) >= rename_bytes * len(segments)
                and all(fs.stat(directory).st_dev == device for directory in directories)
                and all(steps.can_be_renamed(segment, entry.path) for segment in _one_of_each_job(segments))
            )
            end = steps.make_ready_locked(writer, renames=renames)
            placed = []
            for segment in segments:
                placed.append(replace(segment, base_offset=end, next_offset=end + segment.next_offset))
                end = placed[-1].next_offset
            share = PartitionShare(entry.root, *key, renames, writer.appender.leader_epoch, tuple(placed))
            if renames:
                try:
                    steps.patch(share)
                except StorageError as error:
                    first_report(error)  # mark the error as reported: it says nothing about the log's disk
                    raise
            return share

        with Workers(THREADS, "kstore-adopt") as pool:
            return list(pool.map(share_of, sorted(staged)))

    @staticmethod
    def _decide(manager: LogManager, record: CommitRecord) -> None:
        """Write the COMMIT record; if that fails, remove it."""
        try:
            load_files.write_commit(record)
        except BaseException as error:
            try:
                load_files.remove_commit(record)
            except BaseException as second:
                # It is unknown whether an opening will find the record, so nothing may be written here until the next
                # opening.
                for root in record.roots:
                    manager.disks.take_offline(manager.disks.directories[root], _as_storage_error(second, root))
                raise error from second
            raise

    def _carry_out(self, record: CommitRecord, shares: Sequence[PartitionShare], writers: Mapping[Key, Writer]) -> None:
        """Add every share to its log. The load is decided: a log for which this fails refuses writes from now on."""

        def take_in(share: PartitionShare) -> BaseException | None:
            writer = writers[share.key]
            try:
                steps.take_in_locked(writer, share)
            except BaseException as error:
                writer.fail(error)
                writer.report(error)
                return error
            return None

        left = list(shares)
        first: BaseException | None = None
        try:
            with Workers(THREADS, "kstore-adopt") as pool:
                for share, error in zip(shares, pool.map(take_in, shares), strict=True):
                    if error is None:
                        left.remove(share)
                    first = first or error
        except BaseException as error:  # an interrupt; the threads have ended nevertheless
            first = error
        if not left:
            return
        assert first is not None
        for share in left:
            writers[share.key].fail(first)
        self._keep_pending(record, left)
        if not isinstance(first, KStoreError):
            raise first
        raise _unfinished(record, str(first)) from first

    @staticmethod
    def _keep_pending(record: CommitRecord, left: Sequence[PartitionShare]) -> None:
        """Rewrite the record with only the remaining shares: a share must not be added to its log twice."""
        try:
            load_files.write_commit(replace(record, shares=tuple(share.to_json() for share in left)))
        except KStoreError:
            logger.exception("%s: the record of a bulk load stays as it was", record.primary)

    def _finish(self, record: CommitRecord) -> None:
        """Note durably that a load is done, and remove its COMMIT record and its staged files."""
        manager = self._logs.writing()
        done = self._done.with_load(record.load, record.application, record.version)
        try:
            done.write(manager.disks.roots)
            load_files.remove_commit(record)
        except BaseException:
            self._pending = replace(record, shares=())  # the next load or opening notes it
            raise
        self._done = done
        self._pending = None
        remove_staged(record.directories, self._areas)

    # At an opening.

    def begin_recovery(self, manager: LogManager) -> list[PartitionShare]:
        """Before any log is opened, read which loads are done, and rename the remaining files of a pending load.

        Returns the shares that `finish_recovery` must append.
        """
        self._done = load_files.read_done(manager.disks.roots)
        record = self._pending = load_files.find_pending(manager.disks.roots, self._areas)
        if record is None:
            return []
        shares = [PartitionShare.from_json(fields) for fields in record.shares]
        logger.info("%s: finishing a bulk load into %d partitions", record.primary, len(shares))
        left = []
        for share in shares:
            entry = self._entry_of(share)
            if share.root in manager.disks.roots and entry is None:
                logger.warning("%s: has been deleted, and a bulk load into it with it", share.directory)
                continue
            left.append(share)
            if entry is None or not share.renames or entry.failure is not None:
                continue
            try:
                if steps.finish_files(share):
                    manager.distrust(entry, share.offsets[0])
                left.remove(share)
            except KStoreError as error:
                entry.failure = _refusal(record, error)
                logger.error("%s: a bulk load into it is not finished: %s", share.directory, entry.failure)
        return left

    def _entry_of(self, share: PartitionShare) -> Entry | None:
        entry = self._metadata.partitions(share.topic).get(share.partition)
        return entry if entry is not None and entry.root == share.root else None

    def finish_recovery(self, manager: LogManager, shares: Sequence[PartitionShare]) -> None:
        """After the recovery of the logs, append the remaining shares of a pending load, and note that it is done."""
        record = self._pending
        if record is None:
            return
        left = []
        for share in shares:
            entry = self._entry_of(share)
            if entry is None or share.renames or entry.failure is not None:
                left.append(share)
                continue
            try:
                steps.finish_appends(manager.log(entry), share)
            except KStoreError as error:
                left.append(share)
                refusal = _refusal(record, error)
                logger.error("%s: a bulk load into it is not finished: %s", share.directory, refusal)
                if entry.log is None:
                    entry.failure = refusal
                else:
                    HostedLog(entry.log).fail(refusal)
        if left:
            self._keep_pending(record, left)
        else:
            try:
                self._finish(record)
            except fs.FullDiskError as error:  # the next load or opening notes it
                logger.error("%s: the load is done, and noted later: %s", record.primary, error)


def _stage_of(rows: Sequence[Staged], url: str) -> tuple[str, str]:
    """Return the staging URL and the job of rows in an object store; raise `ConfigError` if they are elsewhere."""
    stage = staged_objects.check_url(url)
    for row in rows:
        if row.objects is None or row.directory != f"{stage}/{row.job}/{os.path.basename(row.directory)}":
            raise ConfigError(f"{row.directory[:400]!a} is not JOB/{TASK_PREFIX}... below {stage}")
        if row.job != rows[0].job:
            raise ConfigError(f"the rows are of the jobs {rows[0].job} and {row.job}; all must be of one job")
    return stage, rows[0].job


def _remove_objects(objects: Objects) -> None:
    """Delete the objects of a job that is done; log failures, as a repetition deletes them."""
    try:
        staged_objects.remove_job(objects)
    except KStoreError as error:
        logger.warning("%s: staged objects stay behind: %s", objects.url, error)


def _one_of_each_job(segments: Iterable[StagedSegment]) -> Iterable[StagedSegment]:
    """Return one staged segment of each job: all files of a job are on the same mount."""
    return {os.path.dirname(os.path.dirname(segment.directory)): segment for segment in segments}.values()


def _unfinished(record: CommitRecord, reason: str) -> StorageError:
    path = f"{record.primary}/{load_files.COMMIT_FILE}"
    return StorageError(
        errno.EIO, f"a bulk load is decided and not finished ({reason}); opening the store again finishes it", path
    )


def _refusal(record: CommitRecord, error: KStoreError) -> StorageError:
    """Make the error that says why an opening could not finish a load in a partition, and what to do about it."""
    path = f"{record.primary}/{load_files.COMMIT_FILE}"
    copies = "".join(f", {root}/{load_files.COMMIT_FILE}" for root in record.roots if root != record.primary)
    return StorageError(
        error.errno if isinstance(error, StorageError) and error.errno else errno.EIO,
        f"a bulk load is decided and not finished ({error}); an opening after this has been put right finishes it, and "
        f"removing this file{copies} while no store is open gives up what is left of it",
        path,
    )


def _as_storage_error(error: BaseException, path: str) -> StorageError:
    return error if isinstance(error, StorageError) else StorageError(errno.EIO, str(error) or "interrupted", path)
