"""The sources of a backup: an open store, or directories that another process writes. A `Look` is a snapshot of one.

Invariant: everything below the end offsets of a look is synced. An open store's end offsets are taken together, between
two transactions. Those of directories are not, and `Look.together` says so.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from kstore.base.times import is_settled
from kstore.copies.backups import source_partition
from kstore.copies.backups.source_partition import ChangedMeanwhileError
from kstore.disk import fs
from kstore.errors import KStoreError, StorageError
from kstore.files import checkpoint, epochs, load_files, names, topic_files
from kstore.log.hosted_log import HostedLog
from kstore.objects.backup_contents import EpochStart, PartitionKey, TopicState
from kstore.store import catalog
from kstore.store.catalog import Entry
from kstore.store.log_directory import LogDirectory
from kstore.store.manager import LogManager
from kstore.store.store import Store, between_transactions

BROKEN_OFF_NS = 10_000_000_000
"""If a directory has not changed for this long, no compaction is renaming its segments."""

_FIRST, _LAST = "__consumer_offsets", "__transaction_state"


class PartitionLook(NamedTuple):
    """One partition in a look. If two looks are equal, nothing has changed between them."""

    topic: str
    partition: int
    path: str
    log_start_offset: int
    end_offset: int
    high_watermark: int
    cleaned_offset: int
    epochs: tuple[EpochStart, ...]
    layout: object
    """Two values are equal if no segment was added, deleted or replaced between them."""
    log_end_offset: int
    """The log end offset; records from `end_offset` on may not be synced."""

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


@dataclass(slots=True)
class Look:
    """All partitions of a source, in the order in which they are backed up."""

    partitions: list[PartitionLook] = field(default_factory=list)
    unknown: dict[PartitionKey, str] = field(default_factory=dict)
    """Partitions that cannot be read now, and the reasons; the backup keeps its data of these partitions."""
    is_whole: bool = True
    """Whether a partition that is in neither field was deleted; False while a directory is missing."""
    topics: dict[str, TopicState] = field(default_factory=dict)
    loads: str = ""
    together: bool = True
    """Whether the ends of all partitions were taken at the same point in time."""


class Source(Protocol):
    """Where the partitions of a backup come from."""

    @property
    def roots(self) -> Sequence[str]:
        """The canonical paths of the log directories."""

    def look(self) -> Look:
        """Return the current state of all partitions, up to synced end offsets."""

    def bases(self, look: PartitionLook) -> tuple[int, ...]:
        """Return the base offsets of a partition's segments, sorted.

        Raises `ChangedMeanwhileError` while a compaction renames segments, `KStoreError` if one stopped midway.
        """

    def topic_id(self, look: PartitionLook) -> str:
        """Return the id of a partition's topic; empty if there is none."""


class _Source:
    """The base class of both sources: reads from the directories."""

    _recorded: Mapping[str, TopicState] = {}  # the file of topics, at the last `look`

    def bases(self, look: PartitionLook) -> tuple[int, ...]:
        path = look.path
        changed_ns = fs.stat(path).st_mtime_ns
        files = _files(path)
        if any(file.state == names.SWAP for file in files):
            if time.time_ns() - changed_ns > BROKEN_OFF_NS:
                raise KStoreError(f"{path}: a compaction broke off amid its renames; the next opening finishes them")
            raise ChangedMeanwhileError(f"{path}: a compaction renames segments")
        return _bases_of(files)

    def topic_id(self, look: PartitionLook) -> str:
        metadata = checkpoint.read_partition_metadata(look.path)
        if metadata is not None:
            return checkpoint.format_topic_id(metadata.topic_id)
        record = self._recorded.get(look.topic)
        return "" if record is None else record.topic_id


class StoreSource(_Source):
    """The partitions of a store that is open for writing. For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._metadata = store._metadata
        self.roots: Sequence[str] = store.paths

    def look(self) -> Look:
        store = self._store
        manager = store._logs.writing()
        for entry in self._metadata.current().entries():
            if self._end(manager, entry) is None:  # the end is in no checkpoint, so the log is opened
                with suppress(KStoreError):  # `_look_at` raises the error again
                    manager.log(entry)
        ends = between_transactions(store, partial(self._ends, manager))
        store.flush()
        look = Look(loads=read_loads(self.roots), is_whole=not manager.disks.any_offline)
        for entry in in_order(self._metadata.current().entries()):
            try:
                look.partitions.append(self._look_at(manager, entry, ends.get(entry)))
            except KStoreError as error:
                look.unknown[entry.key] = str(error)
        self._recorded = look.topics = _live_topics(self._metadata.table)
        return look

    def _ends(self, manager: LogManager) -> dict[Entry, int]:
        ends = {entry: self._end(manager, entry) for entry in in_order(self._metadata.current().entries())}
        return {entry: end for entry, end in ends.items() if end is not None}

    @staticmethod
    def _end(manager: LogManager, entry: Entry) -> int | None:
        """Return the log end offset. If the log is not open, return its recovery point, or None if that is unknown."""
        log = entry.log
        if log is not None and not log.closed:
            return log.log_end_offset
        directory = manager.disks.directories.get(entry.root)
        return None if directory is None else directory.mark(checkpoint.RECOVERY_POINTS, entry.key)

    def _look_at(self, manager: LogManager, entry: Entry, end: int | None) -> PartitionLook:
        if entry.failure is not None:
            raise entry.failure
        directory = manager.disks.directories[entry.root]
        directory.refuse_if_offline()
        log = entry.log
        if log is None or log.closed:
            recovery_point = directory.mark(checkpoint.RECOVERY_POINTS, entry.key)
            if recovery_point is not None and end in (None, recovery_point):
                start = directory.mark(checkpoint.LOG_STARTS, entry.key) or 0
                return _seen(directory, entry, start, recovery_point, read_epochs(entry.path), ("closed", entry))
            log = manager.log(entry)
        writer = HostedLog(log).writer
        layout = writer.segments
        durable = writer.housekeeping.recovery_point
        end = min(durable, writer.log_end_offset if end is None else end)
        epochs_ = tuple(EpochStart(*found) for found in writer.epochs.entries)
        return _seen(directory, entry, writer.log_start_offset, end, epochs_, (layout, writer))


def _seen(
    directory: LogDirectory, entry: Entry, start: int, end: int, epochs: tuple[EpochStart, ...], layout: object
) -> PartitionLook:
    cleaned = directory.mark(checkpoint.CLEANER_OFFSETS, entry.key)
    return PartitionLook(
        *entry.key, entry.path, start, end, end, -1 if cleaned is None else cleaned, epochs, layout, end
    )


class DirectorySource(_Source):
    """The partitions of directories that another process may write. `look` syncs unflushed files. For one thread."""

    def __init__(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        self.roots: Sequence[str] = catalog.real_paths(paths)
        self._last_batches: dict[str, source_partition.Place] = {}
        # The last segment and batch at the last sync.
        self._synced: dict[str, tuple[int, source_partition.Place | None]] = {}
        self._begun: dict[str, int] = {}  # last segments without batches: the segment before may not be sealed yet
        for root in self.roots:
            catalog.refuse_partition(root)
            if not fs.exists(root):
                raise fs.MissingFileError(2, "no such log directory", root)

    def look(self) -> Look:
        closed = self._are_closed()
        marks = {root: _Marks(root) for root in self.roots}
        listing = catalog.look(self.roots)
        table = topic_files.read_topics(self.roots)
        look = Look(loads=read_loads(self.roots), topics=_live_topics(table))
        self._recorded = look.topics
        for entry in in_order(listing.entries):
            if entry.key in listing.doubles:
                look.unknown[entry.key] = "it is in more than one log directory"
                continue
            try:
                look.partitions.append(self._look_at(entry, marks[entry.root]))
            except (KStoreError, OSError) as error:
                look.unknown[entry.key] = str(error)
        look.together = closed and self._are_closed()
        return look

    def _are_closed(self) -> bool:
        """Whether the process that last wrote the directories has shut down cleanly."""
        return all(checkpoint.find_clean_marker(root) is not None for root in self.roots)

    def bases(self, look: PartitionLook) -> tuple[int, ...]:
        """Return the base offsets, without an empty last segment if the segment before it may not be sealed yet."""
        bases = super().bases(look)
        begun = bases and bases[-1] == self._begun.get(look.path)
        return bases[:-1] if begun and source_partition.find_end(look.path, bases[-1], 0)[1] is None else bases

    def _look_at(self, entry: Entry, marks: _Marks) -> PartitionLook:
        path = entry.path
        changed_ns = fs.stat(path).st_mtime_ns
        flushed = end = marks.ends.get(entry.key, 0)
        bases = _bases_of(_files(path))
        log_end = max(flushed, self._log_end(path, bases))
        self._begun.pop(path, None)
        if log_end > flushed:
            if path not in self._last_batches and len(bases) > 1:  # the segment before may not be sealed yet
                self._begun[path] = bases[-1]
            end = self._sync(entry, bases, flushed, log_end)
        return PartitionLook(
            *entry.key,
            path=path,
            log_start_offset=marks.starts.get(entry.key, 0),
            end_offset=end,
            high_watermark=min(marks.watermarks.get(entry.key, end), end),
            cleaned_offset=marks.cleaned.get(entry.key, -1),
            epochs=read_epochs(path),
            layout=(changed_ns, self._begun.get(path)) if is_settled(changed_ns) else object(),
            log_end_offset=log_end,
        )

    def _log_end(self, path: str, bases: tuple[int, ...]) -> int:
        """Return the end of a log's whole batches. Starts at the last batch that an earlier `look` found."""
        base = bases[-1] if bases else 0
        known = self._last_batches.pop(path, None)
        if known is None or known.base_offset != base or not source_partition.is_still_there(path, known):
            known = None
        end, last = source_partition.find_end(path, base, 0 if known is None else known.position)
        if last is not None:
            self._last_batches[path] = last
        return end

    def _sync(self, entry: Entry, bases: tuple[int, ...], flushed: int, log_end: int) -> int:
        """Sync the log from its recovery point on, and return the offset up to which it is synced."""
        path = entry.path
        synced = bases[-1], self._last_batches.get(path)
        before = self._synced.get(path)
        if before == synced:
            return log_end
        try:
            for base, end in itertools.pairwise((*bases, log_end)):
                if end > flushed:
                    source_partition.sync(path, base)
            if before is None or before[0] != bases[-1]:
                fs.sync_directory(path)
                fs.sync_directory(entry.root)
        except (KStoreError, OSError):  # the recovery point rises when the other process syncs the log
            return flushed
        self._synced[path] = synced
        return log_end


class _Marks:
    """The checkpoint files of one directory. Recovery points are read first: data below them was flushed by then."""

    def __init__(self, root: str) -> None:
        was_closed = checkpoint.find_clean_marker(root) is not None
        self.ends: Mapping[PartitionKey, int] = checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS)
        if was_closed:
            self.ends = {**self.ends, **checkpoint.flushed_high_watermarks(root)}
        self.starts = checkpoint.read_offsets(root, checkpoint.LOG_STARTS)
        self.watermarks = checkpoint.read_offsets(root, checkpoint.HIGH_WATERMARKS)
        self.cleaned = checkpoint.read_offsets(root, checkpoint.CLEANER_OFFSETS)


def _files(path: str) -> list[names.FileName]:
    return [file for file in map(names.parse_file_name, fs.listdir(path)) if file]


def _bases_of(files: list[names.FileName]) -> tuple[int, ...]:
    """Return the sorted base offsets of the `.log` files without a suffix. A log's last segment never has a suffix."""
    return tuple(sorted(file.offset for file in files if file.kind == names.LOG and not file.state))


def _live_topics(table: topic_files.TopicTable) -> dict[str, TopicState]:
    return {
        name: TopicState(checkpoint.format_topic_id(record.topic_id), record.partitions, dict(record.config))
        for name, record in table.topics.items()
        if record.state == "live"
    }


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort partitions: groups' offsets (so that none is above a log's end), then data, then `__transaction_state`."""
    return sorted(entries, key=lambda entry: (entry.topic != _FIRST, entry.topic == _LAST))


def read_epochs(path: str) -> tuple[EpochStart, ...]:
    cache = epochs.LeaderEpochCache.open(os.path.join(path, names.LEADER_EPOCH_CHECKPOINT), create=False)
    return tuple(EpochStart(*entry) for entry in cache.entries)


def read_loads(roots: Iterable[str]) -> str:
    """Return the text of the first `kstore-loads.json` found; empty if there is none."""
    for root in roots:
        path = os.path.join(root, load_files.LOADS_FILE)
        try:
            return fs.read_file(path, most_bytes=load_files.MAX_LOADS_BYTES).decode()
        except fs.MissingFileError:
            continue
        except (UnicodeDecodeError, StorageError):
            return ""
    return ""
