"""`restore`: writes a directory of logs from a backup, as of a time, or up to given offsets.

Its steps, each durable before the next: write a mark that a restore is under way; write the segments' files, then all
others; mark them complete; open and close the store; remove the mark. Until the mark is removed no store opens the
directory, and a repeated call continues an interrupted restore.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kstore.base import arguments
from kstore.copies.backups import finish_restore
from kstore.copies.backups.fetch_parts import Fetcher, find_cut
from kstore.disk import fs
from kstore.errors import BackupError
from kstore.files import restore_mark
from kstore.files.restore_mark import Progress
from kstore.objects.backup_contents import BackupState, PartitionKey
from kstore.objects.backup_state import History
from kstore.objects.local_objects import LocalObjects
from kstore.objects.object_store import Objects
from kstore.objects.open_objects import open_objects, url_of
from kstore.objects.restore_plan import Plan, plan
from kstore.types import Restored, RestoredPartition

THREADS = 8

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def restore(
    url: str,
    directory: str | os.PathLike[str],
    *,
    until: datetime | int | None = None,
    offsets: Mapping[tuple[str, int], int] | None = None,
    topics: str | Iterable[str] | None = None,
    dry_run: bool = False,
    options: Mapping[str, Any] | None = None,
    threads: int = THREADS,
    progress: Callable[[int, int], object] | None = None,
) -> Restored:
    """Restore a backup into an empty or missing directory.

    By default everything that the backup has is restored. Decided transactions are completed, and open ones are aborted
    when their timeout expires, as after a crash. Groups' offsets above the end of a restored log are lowered to it.

    A call with the same arguments continues an interrupted restore: complete files are not fetched again. Until the
    restore is complete, `Store.open` and `Log.open` refuse the directory.

    Args:
        url: The URL of the backup, as in `backup`.
        directory: The directory to restore into. It is created if it is missing.
        until: Restore the last round that had been backed up by this time: an aware `datetime`, or milliseconds since
            the epoch. The timestamps of the records do not matter.
        offsets: Offsets at which to truncate partitions. With `{("orders", 0): 1000}` that log ends before the batch
            that holds offset 1000. Without `until` the other partitions are restored as of the first round that has
            these offsets and is still kept.
        topics: The topics to restore; all by default. The internal topics are always restored, since they hold groups
            and transactions.
        dry_run: Write nothing, and return what a restore would write.
        options: Options of the object store, as in `backup`.
        threads: How many files are fetched at the same time, each in parts of 8 MiB.
        progress: Called as `progress(done, total)` with numbers of bytes, from any of the threads.

    Returns:
        The restored round, partitions, files and sizes.

    Raises:
        BackupError: If there is no backup at `url`; if the directory is not empty, or holds another restore that is not
            complete; if the backup does not have the time or an offset; or if objects are missing or altered.
        ConfigError: If obstore is not installed (`pip install 'kstore[backup]'`), or refuses an option.
        UnknownTopicOrPartitionError: If the backup does not have one of `topics`, or a partition of `offsets`.
        LogLockedError: If the directory is in use.
        StorageError: If a file cannot be written.
        ValueError: If `until` is a `datetime` without a time zone.

    Example:
        >>> from datetime import UTC, datetime
        >>> with kstore.Store.open("data") as store, kstore.backup(store, "backups/data") as backup:
        ...     topic_id = store.create_topic("orders")
        ...     place = store.append("orders", b"3 apples", key=b"alice")
        >>> restored = kstore.restore("backups/data", "restored", until=datetime.now(UTC))
        >>> with kstore.Store.open("restored") as store:
        ...     print([record.value for record in store.read("orders")])
        [b'3 apples']
    """
    started = time.monotonic()
    root = arguments.real_path("directory", directory)
    threads = arguments.integer("threads", threads, 1, 256)
    until_ms = None if until is None else _milliseconds(until)
    cuts = _offsets(offsets)
    chosen = None if topics is None else tuple(sorted({topics} if isinstance(topics, str) else set(topics)))
    choices = _digest(until_ms, sorted((*key, offset) for key, offset in cuts.items()), chosen)
    marked = restore_mark.read_progress(root) if fs.exists(root) else None
    source = _digest(url_of(url))
    if marked is not None and marked.complete and (marked.choices, marked.source) == (choices, source) and not dry_run:
        state = finish_restore.read_state(root)
        if state is not None:  # all files are complete, so the backup is not read
            found = plan(state, cuts, chosen)
            finish_restore.refuse_others(root, found, complete=True)
            return _restored(url_of(url), marked.backup, found, _opened(root, found), 0, started, dry_run=False)
    with open_objects(url, options) as objects:
        if isinstance(objects, LocalObjects) and os.path.commonpath([objects.path, root]) in (objects.path, root):
            raise BackupError(f"{root} and the backup {objects.path} lie in one another; another directory is needed")
        history = History.read(objects)
        backup = history.manifest.backup
        _refuse_contents(root)
        found = plan(_state(history, until_ms, cuts, root, choices, marked), cuts, chosen)
        if dry_run:
            return _restored(objects.url, backup, found, _foreseen(objects, found), 0, started, dry_run=True)
        fs.make_directories(root)
        with fs.lock_root(root, shared=False):
            _refuse_contents(root)
            if restore_mark.read_progress(root) != marked:
                raise BackupError(f"another restore into {root} has begun in the meantime")
            complete = marked is not None and marked.complete
            finish_restore.refuse_others(root, found, complete)
            mark = Progress(backup, found.state.number, choices, False, source)
            try:
                fetched = 0 if complete else _write(objects, root, found, mark, threads, progress)
            except BackupError:
                history.refuse_outdated(found.state)
                raise
        return _restored(objects.url, backup, found, _opened(root, found), fetched, started, dry_run=False)


def _opened(root: str, found: Plan) -> dict[PartitionKey, tuple[int, int]]:
    """Do the last steps: open the store once and remove the marks. Return each partition's `[start, end)`."""
    spans = finish_restore.open_once(root, found)
    finish_restore.remove_state(root)
    restore_mark.remove_progress(root)
    return spans


def _write(
    objects: Objects,
    root: str,
    found: Plan,
    mark: Progress,
    threads: int,
    progress: Callable[[int, int], object] | None,
) -> int:
    """Write all files of the directory, durably; return the number of bytes fetched."""
    restore_mark.write_progress(root, mark)
    finish_restore.make_directories(root, found)
    fetcher = Fetcher(objects, root, found.files, progress)
    fetcher.fetch(threads)
    finish_restore.write_small_files(root, found)
    finish_restore.write_state(root, found.state)
    restore_mark.write_progress(root, mark._replace(complete=True))
    return fetcher.fetched_bytes


def _state(
    history: History,
    until_ms: int | None,
    cuts: Mapping[PartitionKey, int],
    root: str,
    choices: str,
    marked: Progress | None,
) -> BackupState:
    """Return the state to restore; if `marked` is set, the state of the interrupted restore."""
    backup = history.manifest.backup
    if marked is not None:
        if (marked.backup, marked.choices) != (backup, choices):
            what = "with other choices" if marked.backup == backup else f"of another backup, {marked.backup}"
            raise BackupError(
                f"a restore {what} into {root} is not finished; continue that one, or remove the directory"
            )
        return history.at_round(marked.round)
    if until_ms is not None:
        return history.at_time(until_ms)
    return history.reaching(cuts) if cuts else history.newest()


def _refuse_contents(root: str) -> None:
    """Raise `BackupError` unless the directory is empty or contains an interrupted restore."""
    if not fs.exists(root):
        return
    found = [name for name in fs.listdir(root) if name not in (fs.LOCK_FILE, f"{restore_mark.RESTORE_FILE}.tmp")]
    if found and restore_mark.RESTORE_FILE not in found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise BackupError(f"{root} is not empty: it holds {found[0]!r}{more}; a restore needs an empty directory")


def _foreseen(objects: Objects, found: Plan) -> dict[PartitionKey, tuple[int, int]]:
    """Return each partition's future `[start, end)`; reads batch headers if a partition ends inside a file."""
    spans = {}
    for partition in found.partitions:
        start, end = partition.state.log_start_offset, partition.end_offset
        if partition.cut is not None:
            end = find_cut(objects, partition.last_log.parts, partition.cut, partition.bases[-1])[1]
        spans[partition.key] = max(start, partition.bases[0]) if end > start else start, max(start, end)
    return spans


def _restored(
    url: str,
    backup: str,
    found: Plan,
    spans: Mapping[PartitionKey, tuple[int, int]],
    fetched: int,
    started: float,
    *,
    dry_run: bool,
) -> Restored:
    partitions = {}
    for partition in found.partitions:
        files = tuple((file.path.partition("/")[2], file.bytes) for file in partition.files)
        partitions[partition.key] = RestoredPartition(*spans[partition.key], sum(size for _, size in files), files)
    return Restored(
        url=url,
        backup=backup,
        round=found.state.number,
        time_ms=found.state.time_ms,
        caught_up=found.state.caught_up,
        together=found.state.together,
        partitions=partitions,
        files=sum(len(partition.files) for partition in partitions.values()),
        bytes=sum(partition.bytes for partition in partitions.values()),
        fetched_bytes=fetched,
        dry_run=dry_run,
        seconds=time.monotonic() - started,
    )


def _milliseconds(until: datetime | int) -> int:
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError(f"until is {until}, without a time zone; datetime.astimezone() gives it one")
        return (until - _EPOCH) // timedelta(milliseconds=1)
    return arguments.integer("until", until, 0)


def _offsets(offsets: Mapping[tuple[str, int], int] | None) -> dict[PartitionKey, int]:
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping of (topic, partition) to an offset, not {type(offsets).__name__}")
    cuts = {}
    for key, offset in offsets.items():
        if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[0], str):
            raise TypeError(f"offsets has the key {key!r}; a (topic, partition) is needed")
        cuts[key[0], arguments.integer("offsets' partition", key[1], 0)] = arguments.integer("offsets", offset, 0)
    return cuts


def _digest(*chosen: object) -> str:
    """Return a digest of arguments: an interrupted restore continues only if called with the same arguments."""
    return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:32]
