"""`PartitionDirectories`: makes the directories of partitions, renames deleted ones, and removes them later.

Changes names in the log directories, and opens no log: the manager closes a log before it is deleted. Invariant: each
change is durable before the call returns, and may be repeated after a crash or an interrupt.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from errno import EEXIST

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import checkpoint, names
from kstore.store.catalog import Entry
from kstore.store.directory_choice import EVERY, spread
from kstore.store.log_directories import Disks
from kstore.store.log_directory import LogDirectory
from kstore.store.scheduler import Scheduler

DELETION = "deletion"
"""The scheduler's task that calls `PartitionDirectories.remove_due`."""


class PartitionDirectories:
    """The partitions' directories of a store that writes. Thread-safe if one thread at a time changes a topic."""

    def __init__(
        self, disks: Disks, scheduler: Scheduler, now: Callable[[], int], *, cordoned: Sequence[str], delay_ms: int
    ) -> None:
        """`cordoned` directories get no new partition; renamed directories are removed after `delay_ms`."""
        self._disks = disks
        self._scheduler = scheduler
        self._now = now
        self._cordoned = cordoned
        self._delay_ms = delay_ms
        self._removals: dict[str, int] = {}  # renamed partition directories, and when each is to be removed

    @property
    def to_be_removed(self) -> list[str]:
        """The renamed directories that wait for their removal."""
        return list(self._removals)

    def make(
        self, topic: str, numbers: Iterable[int], topic_id: uuid.UUID, known: Callable[[], Iterable[Entry]]
    ) -> list[Entry]:
        """Durably make new partitions' directories with the topic's id (SEMANTICS 13.7); drop old checkpoint lines.

        Each partition goes to the log directory that has the fewest of the `known` partitions and is not cordoned. If a
        log directory fails, it goes offline; if it is full, it does not. In both cases, its new partitions go to
        another one (SEMANTICS 13.3). Raises `StorageError` if no log directory is left.
        """
        full: dict[str, StorageError] = {}
        cordoned = [each if each == EVERY else os.path.realpath(each) for each in self._cordoned]
        counts = Counter(entry.root for entry in known()) if len(self._disks.directories) > 1 else Counter[str]()
        made: list[Entry] = []
        while numbers:
            numbers = list(numbers)
            in_service = self._disks.roots_in_service()
            usable = [root for root in in_service if root not in full]
            if not usable:
                for entry in made:
                    self._unmake([entry])
                raise full[in_service[0]]
            roots = spread(len(numbers), usable, counts, cordoned=cordoned)
            by_root: dict[str, list[Entry]] = {}
            for number, root in zip(numbers, roots, strict=True):
                by_root.setdefault(root, []).append(Entry(topic, number, root))
            numbers = []
            for root, entries in by_root.items():
                try:
                    self._make_in(self._disks.directories[root], entries, topic_id)
                except StorageError as error:
                    self._unmake(entries)
                    if isinstance(error, fs.FullDiskError):
                        full[root] = error
                    elif error.is_of_the_disk:
                        self._disks.take_offline(self._disks.directories[root], error)
                    else:
                        raise
                    numbers += [entry.partition for entry in entries]
                else:
                    counts[root] += len(entries)
                    made += entries
        return made

    def refuse_files_in_the_way(self, topic: str, numbers: Iterable[int]) -> None:
        """Raise `StorageError` if a file has the name of a partition's directory; the disk remains in service."""
        for root in self._disks.roots_in_service():
            for number in numbers:
                path = f"{root}/{topic}-{number}"
                with suppress(fs.MissingFileError):
                    if not stat.S_ISDIR(mode := fs.stat(path, follow=False).st_mode):
                        what = "a symbolic link" if stat.S_ISLNK(mode) else "a file"
                        raise StorageError(EEXIST, f"{what} has the name of the partition's directory", path)

    @staticmethod
    def _make_in(directory: LogDirectory, entries: Sequence[Entry], topic_id: uuid.UUID) -> None:
        directory.forget([entry.key for entry in entries])
        for entry in entries:
            fs.make_directory(entry.path)
        fs.sync_directory(directory.path)
        for entry in entries:
            checkpoint.ensure_partition_metadata(entry.path, topic_id)

    @staticmethod
    def _unmake(entries: Iterable[Entry]) -> None:
        """Remove new partitions' directories, as far as the disk allows: each partition must be in one place only."""
        for entry in entries:
            with suppress(StorageError):
                fs.remove_tree(entry.path)

    def delete(self, entries: Iterable[Entry], at_once: Container[str]) -> bool:
        """Rename the directories of partitions durably, remove them later, and return whether all were renamed.

        Directories in a root in `at_once` are removed now. If a log directory is offline or fails, an opening that can
        use it deletes its partitions (SEMANTICS 6.16).
        """
        by_root: dict[str, list[Entry]] = {}
        for entry in entries:
            by_root.setdefault(entry.root, []).append(entry)
        for root, group in by_root.items():
            directory = self._disks.directories[root]
            if directory.offline is None:
                try:
                    self._rename_deleted(directory, group, at_once=root in at_once)
                except fs.FullDiskError:  # the state is known, and the call may be repeated
                    raise
                except StorageError as error:
                    self._disks.take_offline(directory, error)
        return not self._disks.any_offline

    def forget(self, topic: str, partitions: int) -> None:
        """Remove the lines of a topic's partitions from the checkpoint files of all log directories.

        A process that dies while it deletes a topic leaves the lines of directories that it has renamed; these lines
        must not apply to the next topic of that name.
        """
        keys = [(topic, number) for number in range(partitions)]
        for directory in self._disks.directories.values():
            if directory.offline is None:
                try:
                    with suppress(fs.FullDiskError):  # the next pass writes the files
                        directory.forget(keys)
                except StorageError as error:
                    self._disks.take_offline(directory, error)

    def _rename_deleted(self, directory: LogDirectory, entries: Sequence[Entry], *, at_once: bool) -> None:
        for entry in entries:
            path = f"{directory.path}/{names.delete_directory_name(entry.topic, entry.partition)}"
            with suppress(fs.MissingFileError):  # an earlier call has renamed it
                try:
                    fs.rename(entry.path, path)
                except fs.FullDiskError:  # a longer name may need a block
                    self._remove(self._removals_in(directory))
                    fs.rename(entry.path, path)
                self.schedule_removal(path)
        fs.sync_directory(directory.path)
        if at_once:
            self._remove(self._removals_in(directory))
        try:
            directory.forget([entry.key for entry in entries])
        except fs.FullDiskError:
            self._remove(self._removals_in(directory))
            with suppress(fs.FullDiskError):  # the next pass writes the files; a line without a directory is harmless
                directory.forget([])

    def _removals_in(self, directory: LogDirectory) -> list[str]:
        return [path for path in list(self._removals) if os.path.dirname(path) == directory.path]

    def schedule_removal(self, path: str) -> None:
        """Remove a renamed partition directory when `file.delete.delay.ms` has passed."""
        self._removals[path] = self._now() + self._delay_ms
        self._scheduler.hurry(DELETION, self._delay_ms)

    def remove_due(self) -> int | None:
        now = self._now()
        self._remove([path for path, due_ms in list(self._removals.items()) if due_ms <= now])
        return min((due_ms - now for due_ms in list(self._removals.values())), default=None)

    def _remove(self, paths: Iterable[str]) -> None:
        first: StorageError | None = None
        for path in paths:
            try:
                fs.remove_tree(path)
                fs.sync_directory(os.path.dirname(path))
            except StorageError as error:  # the other directories are still removed
                first = first or error
            else:
                self._removals.pop(path, None)  # another thread may have removed it
        if first is not None:
            raise first
