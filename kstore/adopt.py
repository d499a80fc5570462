"""Bulk loads: segments that others have staged become part of a store's logs, exactly once.

Owns what a task hands over (`Staged`), what a load has become (`Adopted`) and the order of steps of a commit. Tasks
only ever create private files, with offsets from 0; one commit assigns the offsets, writes them down durably, and only
then changes a log. The hardest rule: from that moment on the load happens, whatever dies; before it, nothing has.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from kstore import adoption, arguments, fs, loads, names, undisturbed
from kstore.adoption import Share, StagedSegment
from kstore.errors import InvalidTopicError, KStoreError, StorageError
from kstore.loads import CommitRecord, Done

if TYPE_CHECKING:
    import uuid

    from kstore.catalog import Catalog, Entry
    from kstore.keeper import Keeper
    from kstore.log import Log
    from kstore.topics import TopicTable
    from kstore.writer import Writer

logger = logging.getLogger("kstore")

RENAME_BYTES = 4 << 20
"""Files become segments by a rename where a partition's are this large on the average; smaller ones are appended."""

THREADS = 4  # that patch staged files and wait for the disk
TASK_PREFIX = "task-"

Transaction = tuple[str, int]
"""The application's name and its version: a load is left out unless its version is above the last one committed."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task has staged for one partition: a row of a manifest. Plain values only; may be pickled.

    `directory` is the task attempt's own, in the staging directory; the partition's files are in `topic-partition`
    below it, `segments` says which, as JSON: `[[base offset, next offset, bytes], ...]` with offsets from 0.
    `partitions` is how many the topic has, or is to have, and `config` the settings of its own that it is to have then,
    as JSON. Times are milliseconds, -1 where there are none.
    """

    job: str
    directory: str
    task: int
    topic: str
    partition: int
    partitions: int
    records: int
    batches: int
    bytes: int
    max_timestamp: int
    segments: str
    config: str | None = None
    query: str | None = None
    batch: int | None = None

    @classmethod
    def of(cls, row: Any) -> Staged:
        """Take a row as it comes back: a `Staged`, a mapping, or what has an `asDict` (Spark's Row)."""
        if isinstance(row, cls):
            return row
        found = row if isinstance(row, Mapping) else row.asDict() if hasattr(row, "asDict") else None
        if found is None:
            raise TypeError(f"a manifest's rows are Staged, mappings or Spark's Rows, not {type(row).__name__}")
        names = [each.name for each in fields(cls)]
        missing = [name for name in names[:11] if name not in found]
        if missing:
            raise ValueError(f"a row of a manifest lacks {', '.join(missing)}")
        return cls(**{name: found[name] for name in names if name in found})._checked()

    def _checked(self) -> Staged:
        """This row, if it can be one; `ValueError` otherwise. What it names is going to be renamed and removed."""
        try:
            parts = [(int(base), int(end), int(size)) for base, end, size in json.loads(self.segments)]
            config = {} if self.config is None else json.loads(self.config)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"a row of a manifest for {self.topic}-{self.partition} has no list of segments") from None
        path = self.directory
        if (
            not os.path.isabs(path)
            or os.path.normpath(path) != path
            or not os.path.basename(path).startswith(TASK_PREFIX)
            or os.path.basename(os.path.dirname(path)) != self.job
        ):
            raise ValueError(f"{path!r} is no directory of a task of the job {self.job!r}")
        names.partition_name(self.topic, self.partition)
        if not parts or not 0 <= self.partition < self.partitions or not isinstance(config, dict):
            raise ValueError(f"a row of a manifest for {self.topic}-{self.partition} of {self.partitions} partitions")
        if any(not 0 <= base < end or size <= 0 for base, end, size in parts):
            raise ValueError(f"{path}: segments {parts} cannot be")
        return self

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """The staged segments: base offset, next offset, bytes."""
        return [(base, end, size) for base, end, size in json.loads(self.segments)]

    @property
    def path(self) -> str:
        """The directory of the partition's staged files."""
        return f"{self.directory}/{self.topic}-{self.partition}"


Manifest = Iterable[Staged | Mapping[str, Any] | Any]
"""What all tasks of a load have staged; records get their offsets in the order of its rows."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What a load has become: by (topic, partition), its first offset and one past its last.

    `duplicate` says that the transaction, or this very load, had been committed before: nothing was changed, and
    `offsets` is empty.
    """

    offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    duplicate: bool = False


class Adoptions:
    """What a `Store` can do with what tasks have staged; see there about threads."""

    paths: tuple[str, ...]
    _adopting: threading.Lock
    _admin: threading.RLock
    _catalog: Catalog
    _done: Done
    _pending: CommitRecord | None
    _table: TopicTable
    _id_on_disk: Callable[[Mapping[int, Entry]], uuid.UUID | None]
    _open_log: Callable[[Entry], Log]
    _writing: Callable[[], Keeper]
    create_topic: Callable[..., uuid.UUID]

    def _start_adoptions(self) -> None:
        self._adopting = threading.Lock()
        self._done = Done()
        self._pending = None

    def adopt(self, manifest: Manifest, *, txn: Transaction | None = None, rename_bytes: int = RENAME_BYTES) -> Adopted:
        """Make what tasks have staged part of the logs, all of it and once; where it went.

        Records get offsets in the order of the manifest's rows. With a `txn` (application, version) a load is left out
        unless its version is above the last one of that application; without, this same manifest counts once. Durable
        when this returns, and decided before the first log changes: after a crash the next opening finishes it. Topics
        that are missing are made, with the partitions that the manifest says. Appends of others wait meanwhile.

        Raises `ValueError` for a manifest that does not fit the topics, `StorageError` where staged files are missing
        or the disk fails; unless its message says that the load is decided, nothing has happened. An interrupt is
        raised when the load is either done or given up; the same call again says which.
        """
        self._writing()
        rows = [Staged.of(row) for row in manifest]
        application, version = check_transaction(txn)

        def load(check: Callable[[], None]) -> Adopted:
            with self._adopting:
                check()
                return self._adopt_locked(rows, (application, version), rename_bytes, check)

        return undisturbed.run(load)

    def _adopt_locked(
        self, rows: Sequence[Staged], txn: tuple[str | None, int], rename_bytes: int, check: Callable[[], None]
    ) -> Adopted:
        """Adopt; where `check` is called the load may still be given up."""
        if self._pending is not None and not self._pending.shares:
            self._finish(self._pending)
        if self._pending is not None:
            raise _unfinished(self._pending, "it keeps others out")
        if not rows and txn[0] is None:
            return Adopted()
        directories = tuple(dict.fromkeys(row.directory for row in rows))
        load = name_of(directories)
        if self._done.has(load, *txn):
            remove_staged(directories)
            return Adopted(duplicate=True)
        by_key: dict[tuple[str, int], list[Staged]] = {}
        for row in rows:
            by_key.setdefault((row.topic, row.partition), []).append(row)
        if len({row.path for row in rows}) < len(rows):
            raise ValueError("the manifest has a task's rows twice")
        wanted = self._check_topics(rows)
        found = self._look_through(by_key)
        check()
        self._make_topics(wanted)
        record = CommitRecord(load, "", (), *txn, (), directories)
        return self._commit(record, found, rename_bytes, check)

    def _check_topics(self, rows: Sequence[Staged]) -> dict[str, Staged]:
        """The topics of a load; `ValueError` for one that has another number of partitions."""
        wanted: dict[str, Staged] = {}
        for row in rows:
            if row.topic in names.INTERNAL_TOPICS:
                raise InvalidTopicError(f"{row.topic} is its coordinator's own topic")
            first = wanted.setdefault(row.topic, row)
            count = self._count_of(row.topic) or first.partitions
            if row.partitions != count:
                raise ValueError(f"topic {row.topic} has {count} partitions, and was staged for {row.partitions}")
        return wanted

    def _make_topics(self, wanted: Mapping[str, Staged]) -> None:
        """Make those that are missing."""
        for topic, row in wanted.items():
            if topic not in self._catalog:
                config = None if row.config is None else json.loads(row.config)
                self.create_topic(topic, row.partitions, config=config)

    def _count_of(self, topic: str) -> int:
        """How many partitions a topic has, those included that are on a disk that is missing; 0 without a topic."""
        if topic not in self._catalog:
            return 0
        entries = self._catalog.partitions(topic)
        record = self._table.find(topic, self._id_on_disk(entries))
        return max(max(entries) + 1, 0 if record is None else record.partitions)

    def _commit(
        self,
        record: CommitRecord,
        found: Mapping[tuple[str, int], Sequence[StagedSegment]],
        rename_bytes: int,
        check: Callable[[], None],
    ) -> Adopted:
        keeper = self._writing()
        entries = {key: self._catalog.find(*key) for key in sorted(found)}
        with ThreadPoolExecutor(THREADS, thread_name_prefix="kstore-adopt") as pool:
            opened = pool.map(lambda entry: self._open_log(entry)._writable(), entries.values())
            writers = dict(zip(entries, opened, strict=True))
        with ExitStack() as stack:
            for key in sorted(writers):  # always in this order: two who hold several must not wait for each other
                stack.enter_context(writers[key].gate())
            shares = self._share_out(found, entries, writers, rename_bytes)
            roots = keeper.roots
            used = {entry.root for entry in entries.values()}
            record = replace(
                record,
                primary=roots[0],
                roots=tuple(root for root in roots if root in used or root == roots[0]),
                shares=tuple(share.to_json() for share in shares),
            )
            check()
            if shares:
                self._decide(keeper, record)
                self._pending = record
                self._carry_out(record, shares, writers)
                self._pending = replace(record, shares=())  # whatever comes: all that is left is to note it
        self._finish(record)
        records = sum(share.offsets[1] - share.offsets[0] for share in shares)
        size = sum(segment.bytes for share in shares for segment in share.segments)
        return Adopted({share.key: share.offsets for share in shares}, records, size)

    @staticmethod
    def _look_through(by_key: Mapping[tuple[str, int], Sequence[Staged]]) -> dict[tuple[str, int], list[StagedSegment]]:
        """See that the staged files are what the manifest says, before anybody waits for anything."""

        def look(key: tuple[str, int]) -> list[StagedSegment]:
            found = []
            for row in by_key[key]:
                for base, next_offset, size in row.parts:
                    segment = adoption.look_at(row.path, base, size)
                    if segment.next_offset != next_offset - base:
                        raise StorageError(
                            errno.EIO,
                            f"{segment.next_offset} records are staged, and the manifest says {next_offset - base}",
                            segment.paths[0],
                        )
                    found.append(segment)
            return found

        with ThreadPoolExecutor(THREADS, thread_name_prefix="kstore-adopt") as pool:
            return dict(zip(by_key, pool.map(look, by_key), strict=True))

    @staticmethod
    def _share_out(
        found: Mapping[tuple[str, int], Sequence[StagedSegment]],
        entries: Mapping[tuple[str, int], Entry],
        writers: Mapping[tuple[str, int], Writer],
        rename_bytes: int,
    ) -> list[Share]:
        """Give every staged record its offset; whoever is renamed gets it in its file, durably."""

        def share_of(key: tuple[str, int]) -> Share:
            segments, entry, writer = found[key], entries[key], writers[key]
            device = fs.stat(entry.path).st_dev
            renames = (
                sum(each.bytes for each in segments) >= rename_bytes * len(segments)
                and all(fs.stat(directory).st_dev == device for directory in {each.directory for each in segments})
                and all(adoption.can_be_renamed(each, entry.path) for each in _one_of_each_job(segments))
            )
            end = adoption.make_ready_locked(writer, renames=renames)
            placed = []
            for each in segments:
                placed.append(replace(each, base_offset=end, next_offset=end + each.next_offset))
                end = placed[-1].next_offset
            share = Share(entry.root, *key, renames, writer.appender.leader_epoch, tuple(placed))
            if renames:
                try:
                    adoption.patch(share)
                except StorageError as error:
                    error._reported = True  # it says nothing about the disk that the log is on
                    raise
            return share

        with ThreadPoolExecutor(THREADS, thread_name_prefix="kstore-adopt") as pool:
            return list(pool.map(share_of, sorted(found)))

    @staticmethod
    def _decide(keeper: Keeper, record: CommitRecord) -> None:
        """Write the COMMIT record; when that fails, see that there is none."""
        try:
            loads.write_commit(record)
        except BaseException as error:
            try:
                loads.remove_commit(record)
            except BaseException as second:
                # Nobody knows what an opening will find: until then nothing is written here.
                for root in record.roots:
                    keeper.take_offline(keeper.directories[root], _as_storage_error(second, root))
                raise error from second
            raise

    def _carry_out(
        self, record: CommitRecord, shares: Sequence[Share], writers: Mapping[tuple[str, int], Writer]
    ) -> None:
        """Have every log take in its share. The load is decided: a log that cannot refuses writes from now on."""

        def take_in(share: Share) -> BaseException | None:
            writer = writers[share.key]
            try:
                adoption.take_in_locked(writer, share)
            except BaseException as error:
                writer.fail(error)
                writer.report(error)
                return error
            return None

        left = list(shares)
        first: BaseException | None = None
        try:
            with ThreadPoolExecutor(THREADS, thread_name_prefix="kstore-adopt") as pool:
                for share, error in zip(shares, pool.map(take_in, shares), strict=True):
                    if error is None:
                        left.remove(share)
                    first = first or error
        except BaseException as error:  # an interrupt; the threads have ended all the same
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
    def _keep_pending(record: CommitRecord, left: Sequence[Share]) -> None:
        """Have the record name only what is left: what is done already is to be done no second time."""
        try:
            loads.write_commit(replace(record, shares=tuple(share.to_json() for share in left)))
        except KStoreError:
            logger.exception("%s: the record of a bulk load stays as it was", record.primary)

    def _finish(self, record: CommitRecord) -> None:
        """Note that a load is done, and remove what it was made of."""
        keeper = self._writing()
        done = self._done.with_load(record.load, record.application, record.version)
        try:
            done.write(keeper.roots)
            loads.remove_commit(record)
        except BaseException:
            self._pending = replace(record, shares=())  # the next load notes it, or the next opening
            raise
        self._done = done
        self._pending = None
        remove_staged(record.directories)

    # At an opening.

    def _find_load(self, keeper: Keeper) -> list[Share]:
        """Read which loads were done; of one that is pending, rename the files that a crash left.

        Before any log is opened. The shares that are still to be appended.
        """
        self._done = loads.read_done(keeper.roots)
        record = self._pending = loads.find_pending(keeper.roots)
        if record is None:
            return []
        try:
            shares = [Share.from_json(each) for each in record.shares]
        except (TypeError, KeyError, ValueError) as error:
            raise StorageError(errno.EINVAL, f"malformed COMMIT record: {error}"[:300], record.primary) from None
        logger.info("%s: finishing a bulk load into %d partitions", record.primary, len(shares))
        left = []
        for share in shares:
            entry = self._entry_of(share)
            if share.root in keeper.roots and entry is None:
                logger.warning("%s: has been deleted, and a bulk load into it with it", share.directory)
                continue
            left.append(share)
            if entry is None or not share.renames or entry.failure is not None:
                continue
            try:
                if adoption.finish_files(share):
                    keeper.distrust(entry, share.offsets[0])
                left.remove(share)
            except KStoreError as error:
                entry.failure = _refusal(record, error)
                logger.error("%s: %s", share.directory, entry.failure)
        return left

    def _entry_of(self, share: Share) -> Entry | None:
        if share.topic not in self._catalog:
            return None
        entry = self._catalog.partitions(share.topic).get(share.partition)
        return entry if entry is not None and entry.root == share.root else None

    def _finish_load(self, keeper: Keeper, shares: Sequence[Share]) -> None:
        """Append what a pending load has left to append, and note that it is done; after the logs were recovered."""
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
                adoption.finish_appends(keeper.log(entry), share)
            except KStoreError as error:
                left.append(share)
                refusal = _refusal(record, error)
                logger.error("%s: %s", share.directory, refusal)
                if entry.log is None:
                    entry.failure = refusal
                else:
                    entry.log.fail(refusal)
        if left:
            self._keep_pending(record, left)
        else:
            self._finish(record)


def check_transaction(txn: Transaction | None) -> tuple[str | None, int]:
    """The application and the version of a transaction, (None, -1) for none; `TypeError` and `ValueError`."""
    if txn is None:
        return None, -1
    if not isinstance(txn, tuple | list) or len(txn) != 2 or not isinstance(txn[0], str):
        raise TypeError(f"txn must be (application, version), a str and an int, not {txn!r:.100}")
    if not txn[0] or len(txn[0]) > 1000:
        raise ValueError(f"the application's name has {len(txn[0])} characters; 1 to 1000 are allowed")
    return txn[0], arguments.integer("the version of txn", txn[1], 0, arguments.LONG_MAX)


def name_of(directories: Iterable[str]) -> str:
    """What a load is known by: every attempt of every task stages in a directory that there is only once.

    "" for a load of nothing, which is like any other of that kind.
    """
    found = sorted(directories)
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:32] if found else ""


def _one_of_each_job(segments: Iterable[StagedSegment]) -> Iterable[StagedSegment]:
    """One staged segment of each job: what holds for it of mounts holds for the others."""
    return {os.path.dirname(os.path.dirname(each.directory)): each for each in segments}.values()


def remove_staged(directories: Iterable[str]) -> None:
    """Remove the directories of task attempts, and those of their jobs that are empty then; what fails is logged."""
    jobs = set()

    def remove(directory: str) -> None:
        try:
            fs.remove_tree(directory)
        except KStoreError as error:
            logger.warning("%s: staged files stay behind: %s", directory, error)

    directories = list(directories)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="kstore-adopt") as pool:
        for directory in directories:
            try:
                partitions = [entry.path for entry in fs.scandir(directory) if entry.is_dir(follow_symlinks=False)]
            except KStoreError:  # it has gone, or will be told of below
                continue
            for _ in pool.map(remove, partitions):
                pass
    for directory in directories:
        remove(directory)
        jobs.add(os.path.dirname(directory))
    for job in sorted(jobs):
        try:
            if fs.exists(job) and not fs.listdir(job):
                fs.rmdir(job)
        except KStoreError as error:  # somebody stages in it again
            logger.info("%s: stays behind: %s", job, error)


def _unfinished(record: CommitRecord, reason: str) -> StorageError:
    path = f"{record.primary}/{loads.COMMIT_FILE}"
    return StorageError(
        errno.EIO, f"a bulk load is decided and not finished ({reason}); opening the store anew finishes it", path
    )


def _refusal(record: CommitRecord, error: KStoreError) -> StorageError:
    """Why an opening could not finish a load in a partition, and the two ways from there."""
    path = f"{record.primary}/{loads.COMMIT_FILE}"
    copies = "".join(f", {root}/{loads.COMMIT_FILE}" for root in record.roots if root != record.primary)
    return StorageError(
        error.errno if isinstance(error, StorageError) and error.errno else errno.EIO,
        f"a bulk load is decided and not finished ({error}); an opening after this has been put right finishes it, and "
        f"what is left of it is given up by whoever removes this file{copies} while no store is open",
        path,
    )


def _as_storage_error(error: BaseException, path: str) -> StorageError:
    return error if isinstance(error, StorageError) else StorageError(errno.EIO, str(error) or "interrupted", path)
