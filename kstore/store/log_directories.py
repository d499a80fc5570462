"""`Disks`: the log directories of a store that writes, locked, in service or offline.

Keeps the `LogDirectory` objects; `partition_directories` and `manager` change the directories' contents. Invariant: if
a disk fails, only its directory goes out of service, and the others continue (SEMANTICS 13.9).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from kstore.disk import fs
from kstore.errors import LogLockedError, StorageError
from kstore.store.log_directory import LogDirectory

logger = logging.getLogger("kstore")

T = TypeVar("T")


class Disks:
    """The log directories of a store. Thread-safe."""

    def __init__(
        self,
        paths: Iterable[str],
        lock: Callable[[str], LogDirectory],
        on_offline: Callable[[LogDirectory, StorageError], object],
    ) -> None:
        """Lock the directories; those that cannot be used are offline.

        `on_offline` is called with a directory that was taken out of service, and the error.

        Raises `LogLockedError` if another process or log has locked a directory, and `StorageError` if no directory can
        be used.
        """
        self.directories: dict[str, LogDirectory] = {}
        self.offline: dict[str, StorageError] = {}
        self._on_offline = on_offline
        try:
            for root in paths:
                try:
                    self.directories[root] = lock(root)
                except LogLockedError:
                    raise
                except StorageError as error:
                    logger.error("%s: offline: %s", root, error)
                    self.offline[root] = error
            if not self.directories:
                raise next(iter(self.offline.values()))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the locks without writing a marker of a clean shutdown."""
        for directory in self.directories.values():
            directory.close(clean=False)

    @property
    def are_locked(self) -> bool:
        return any(directory.is_locked for directory in self.directories.values())

    def live(self) -> list[LogDirectory]:
        """Return the directories in service."""
        return [directory for directory in self.directories.values() if directory.offline is None]

    @property
    def roots(self) -> list[str]:
        """The paths of the directories in service."""
        return [directory.path for directory in self.live()]

    def roots_in_service(self) -> list[str]:
        """Return `roots`; if no directory is in service, raise the error of the first one."""
        roots = self.roots
        if not roots:
            for directory in self.directories.values():
                directory.refuse_if_offline()
        return roots

    @property
    def any_offline(self) -> bool:
        """Whether a directory is offline: its contents are unknown and cannot be changed."""
        return bool(self.offline) or any(directory.offline is not None for directory in self.directories.values())

    def failures(self) -> dict[str, str]:
        """Return the directories that are offline, and why."""
        told = {root: str(error) for root, error in self.offline.items()}
        return told | {d.path: str(d.offline) for d in self.directories.values() if d.offline is not None}

    def take_offline(self, directory: LogDirectory, error: StorageError) -> None:
        """Take a directory out of service (SEMANTICS 13.9): its logs refuse writes from now on."""
        directory.fail(error)
        assert directory.offline is not None
        self._on_offline(directory, directory.offline)

    def guarded(self, directory: LogDirectory, act: Callable[[], T]) -> T | None:
        """Call `act`, which changes a directory's own files; a failing disk takes only that directory offline.

        A full disk takes none offline: the write waits for space, and `LogDirectory.full` has the error.
        """
        try:
            return act()
        except fs.FullDiskError:
            return None
        except StorageError as error:
            if not error.is_of_the_disk:
                raise
            self.take_offline(directory, error)
            return None

    def on_each_root(self, act: Callable[[list[str]], T]) -> T:
        """Call `act` with all directories; if one fails, take it offline and call `act` again with the others.

        Raises `FullDiskError` if a disk is full.
        """
        while True:
            roots = self.roots_in_service()
            try:
                return act(roots)
            except fs.FullDiskError:
                raise
            except StorageError as error:
                failed = [root for root in roots if str(error.filename).startswith(root + os.sep)]
                if not failed or not error.is_of_the_disk:
                    raise
                self.take_offline(self.directories[max(failed, key=len)], error)
