"""The commits of consumers of stores that only read: sent by `SentCommits`, found by `WaitingCommits`.

`files.commit_file` has the file in between; `GroupCoordinator` takes the commits in, and until then shows them as if
they were. Invariant: of two commits of a position the one with the greater timestamp counts.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from kstore.base.times import is_settled
from kstore.codec.coordinator.group_records import OffsetKey, Position
from kstore.disk import fs
from kstore.errors import ReadOnlyError, StorageError
from kstore.files import broker_directory, commit_file
from kstore.files.commit_file import Commit, CommitFile
from kstore.store.metadata import Metadata

__all__ = ["INSTEAD", "SentCommits", "WaitingCommits", "is_later"]

INSTEAD = "or give positions=, a store for what the group commits"

Place = tuple[str, int]


def is_later(position: Position, known: Position | None) -> bool:
    """Return whether a reader's position replaces the known one; of the same millisecond it does."""
    return known is None or (position != known and position.commit_timestamp >= known.commit_timestamp)


class WaitingCommits:
    """The files of commits in some log directories. Thread-safe."""

    def __init__(self, metadata: Metadata) -> None:
        self._roots = [path for path in metadata.paths if not fs.is_mounted(path)]
        self._lock = threading.Lock()
        self._paths: dict[str, tuple[int, list[str]]] = {}  # by directory, with the time of its last change
        self._groups: dict[str, str] = {}  # the group of a file, by path
        fs.register(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def paths(self) -> list[str]:
        """Return the paths of the files; directories that cannot be read have none."""
        with self._lock:
            found: list[str] = []
            for root in self._roots:
                with suppress(StorageError):
                    found += self._paths_in(root)
            if len(self._groups) > len(found):
                self._groups = {path: self._groups[path] for path in found if path in self._groups}
            return found

    def _paths_in(self, root: str) -> list[str]:
        changed_ns = fs.stat(root).st_mtime_ns
        listed_ns, paths = self._paths.get(root, (-1, []))
        if listed_ns != changed_ns:
            paths = commit_file.find(root)
            self._paths[root] = changed_ns if is_settled(changed_ns) else -1, paths
        return paths

    def waiting(self, group: str | None = None) -> dict[str, dict[Place, Position]]:
        """Return the positions that are not taken in, by group: of one, or of all. Files that are damaged have none."""
        commits: list[tuple[int, str, Commit]] = []
        for path in self.paths():
            if group is None or self._groups.get(path, group) == group:
                with suppress(StorageError):
                    contents = commit_file.read(path)
                    if contents is not None and contents.commits:
                        with self._lock:
                            self._groups[path] = contents.commits[0].key.group
                        commits += [(each.position.commit_timestamp, path, each) for each in contents.waiting]
        found: dict[str, dict[Place, Position]] = {}
        for _, _, commit in sorted(commits, key=lambda each: each[:2]):
            key = commit.key
            if group is None or key.group == group:
                found.setdefault(key.group, {})[key.topic, key.partition] = commit.position
        return found


class SentCommits:
    """The commits of one store that only reads, with a file for each of its groups. Thread-safe."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._root = metadata.paths[0]
        self._lock = threading.Lock()
        self._senders: dict[str, _Sender] = {}
        fs.register(self)

    def _after_fork(self) -> None:
        """Forget the files, which belong to the parent; their descriptors are closed."""
        self._lock, self._senders = threading.Lock(), {}

    def refuse_elsewhere(self, refusal: Callable[[], ReadOnlyError]) -> None:
        """Raise `refusal()` if no store takes the commits in: in an object store, of a broker, of a follower."""
        roots = self._metadata.paths
        if (
            any(map(fs.is_mounted, roots))
            or any(map(broker_directory.is_of_broker, roots))
            or self._metadata.current_role() is not None
        ):
            raise refusal()

    def commit(
        self, group: str, positions: Mapping[Place, Position], refusal: Callable[[], ReadOnlyError], *, sync: bool
    ) -> None:
        """Write positions into the group's file; raise `refusal()` if there cannot be one."""
        with self._lock:
            sender = self._senders.setdefault(group, _Sender())
        with sender.lock:
            if sender.file is None or sender.file.is_gone:
                self.refuse_elsewhere(refusal)
                sender.begin(self._create(refusal))
            sender.send(group, positions, sync=sync)

    def flush(self, group: str) -> None:
        """Make the group's commits durable; what the store has taken in already is."""
        with self._lock:
            sender = self._senders.get(group)
        if sender is not None:
            with sender.lock:
                sender.flush()

    def _create(self, refusal: Callable[[], ReadOnlyError]) -> CommitFile:
        try:
            return CommitFile(self._root)
        except StorageError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise ReadOnlyError(f"{error.filename}: {error.strerror}: {refusal()}") from error

    def leave(self, group: str) -> None:
        """Unlock the group's file, which the store then takes in and removes."""
        with self._lock:
            sender = self._senders.get(group)
        if sender is not None:
            with sender.lock:
                sender.close()

    def close(self) -> None:
        """Unlock all files. Idempotent."""
        with self._lock:
            groups = list(self._senders)
        for group in groups:
            self.leave(group)


class _Sender:
    """The file of one group. Invariant: `sequence` rises with each attempt, so no number stands for two states."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file: CommitFile | None = None
        self._sequence = 0
        self._commits: dict[Place, Commit] = {}

    def begin(self, file: CommitFile) -> None:
        """Continue in a new file, without the commits of the former one, which the store takes in by itself."""
        self.file, self._commits = file, {}

    def send(self, group: str, positions: Mapping[Place, Position], *, sync: bool) -> None:
        file = self.file
        assert file is not None
        self._sequence += 1
        sequence, taken = self._sequence, file.taken()
        commits = {place: commit for place, commit in self._commits.items() if commit.sequence > taken}
        commits |= {place: Commit(sequence, OffsetKey(group, *place), each) for place, each in positions.items()}
        with self._closed_by_errors():
            file.write(sequence, commits.values(), sync=sync)
        self._commits = commits

    def flush(self) -> None:
        if self.file is not None and not self.file.is_gone:
            with self._closed_by_errors():
                self.file.flush()

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if error.is_of_the_disk and error.errno != errno.EFBIG:  # after a failed sync nothing is known of the file
                self.close()
            raise

    def close(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            file.close()
