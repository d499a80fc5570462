"""Turns fetched files into a store: truncates logs, writes the small files, and opens the store once.

Opening builds missing indexes, completes decided transactions, and refuses a damaged log. Invariant: after an
interruption at any step, all steps can be repeated from the first.
"""

from __future__ import annotations

import os

from kstore.disk import fs
from kstore.errors import BackupError, KStoreError, StorageError
from kstore.files import _log_search, checkpoint, gap_files, names, restore_mark
from kstore.files.epochs import LeaderEpochCache
from kstore.files.load_files import LOADS_FILE, read_done
from kstore.files.log_file import open_log
from kstore.files.topic_files import TOPICS_FILE, TopicRecord, TopicTable
from kstore.objects import backup_rounds
from kstore.objects.backup_contents import BackupState, PartitionKey
from kstore.objects.restore_plan import PartitionPlan, Plan
from kstore.store.store import Store

STATE_FILE = "kstore-restore.catalog"
"""The restored state, in a catalog's format. Written when all files are fetched, so the last steps need no backup."""

ROOT_FILES = (
    fs.LOCK_FILE,
    restore_mark.RESTORE_FILE,
    STATE_FILE,
    TOPICS_FILE,
    LOADS_FILE,
    *checkpoint.OFFSET_CHECKPOINTS,
)
PARTITION_FILES = (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, gap_files.GAPS_FILE)
"""With `ROOT_FILES`, the files that a restore writes itself. An interrupted write leaves a `.tmp` file."""


def write_small_files(root: str, plan: Plan) -> dict[PartitionKey, tuple[int, int]]:
    """Truncate the logs and write all other files, durably; return the offsets `[start, end)` of each partition."""
    spans = {partition.key: _finish_partition(root, partition) for partition in plan.partitions}
    empty = table = TopicTable()
    topics = {partition.key[0] for partition in plan.partitions}
    for topic, record in plan.state.topics.items():
        if topic in topics:
            topic_id = checkpoint.parse_topic_id(record.topic_id)
            table = table.put(topic, TopicRecord(topic_id, record.partitions, record.config))
    if table is not empty:
        table.write([root])
    if plan.state.loads:
        _write_loads(root, plan.state.loads)
    marks: dict[str, dict[PartitionKey, int]] = {
        checkpoint.RECOVERY_POINTS: {key: end for key, (_, end) in spans.items()},
        checkpoint.LOG_STARTS: {key: start for key, (start, _) in spans.items() if start > 0},
        checkpoint.HIGH_WATERMARKS: {},
        checkpoint.CLEANER_OFFSETS: {},
    }
    for partition in plan.partitions:
        (start, end), state = spans[partition.key], partition.state
        marks[checkpoint.HIGH_WATERMARKS][partition.key] = min(max(state.high_watermark, start), end)
        if state.cleaned_offset >= 0:
            marks[checkpoint.CLEANER_OFFSETS][partition.key] = min(state.cleaned_offset, end)
    for name, offsets in marks.items():
        checkpoint.write_offsets(root, name, offsets)
    fs.sync_directory(root)
    return spans


def _finish_partition(root: str, plan: PartitionPlan) -> tuple[int, int]:
    directory = f"{root}/{plan.directory}"
    start = plan.state.log_start_offset
    end = _cut(f"{root}/{plan.last_log.path}", plan)
    if end < start:
        # The batch at the cut starts below the log start offset: the log is empty.
        for base in plan.bases:
            for kind in (*names.SEGMENT_KINDS, names.SNAPSHOT):
                fs.unlink(f"{directory}/{names.file_name(base, kind)}")
        fs.close(fs.open(f"{directory}/{names.log_name(start)}", create=True))
        end = start
    below = [(first, min(after, end)) for first, after in plan.gaps if first < end]
    if below:
        gap_files.write_gaps(directory, below)
    last = end if plan.cut is None else end - 1
    kept = [entry for entry in plan.state.epochs if entry.offset <= last]
    epochs = LeaderEpochCache(f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}", kept)
    epochs.dirty = True
    epochs.flush()
    if plan.state.topic_id:
        checkpoint.ensure_partition_metadata(directory, checkpoint.parse_topic_id(plan.state.topic_id))
    fs.sync_directory(directory)
    return max(start, plan.bases[0]) if end > start else start, end


def _cut(path: str, plan: PartitionPlan) -> int:
    """Truncate the last log file before the batch that holds the cut; return the log end offset."""
    with fs.closing(open_log(path, write=True)) as fd:
        size = fs.size(fd)
        if plan.cut is not None:
            place = _log_search.find_batch(fd, 0, size, plan.cut, path=path)
            if place is not None:
                size = place.position
                fs.truncate(fd, size)
                fs.fsync(fd)
        last = _log_search.last_offset(fd, 0, size, least=plan.bases[-1], path=path)
        torn = size - (0 if last is None else last.position)
    end = plan.bases[-1] if last is None else last.last_offset + 1
    if torn or (plan.cut is None and end != plan.end_offset):
        raise BackupError(
            f"{path} ends at offset {end} with {torn} bytes behind; the backup says {plan.end_offset} and whole batches"
        )
    return end


def _write_loads(root: str, text: str) -> None:
    """Record the finished bulk loads, so that a restored store does not repeat them."""
    path = f"{root}/{LOADS_FILE}"
    fs.write_atomically(path, text.encode())
    try:
        read_done([root])
    except StorageError as error:
        raise BackupError(f"the backup's list of bulk loads: {error}") from error


def write_state(root: str, state: BackupState) -> None:
    fs.write_atomically(f"{root}/{STATE_FILE}", backup_rounds.encode_catalog(state))


def read_state(root: str) -> BackupState | None:
    """Read the file of `write_state`; None if it does not exist. Raises `BackupError` if it is damaged."""
    path = f"{root}/{STATE_FILE}"
    try:
        return backup_rounds.decode_catalog(fs.read_file(path), path)
    except fs.MissingFileError:
        return None


def remove_state(root: str) -> None:
    if fs.unlink(f"{root}/{STATE_FILE}"):
        fs.sync_directory(root)


def open_once(root: str, plan: Plan) -> dict[PartitionKey, tuple[int, int]]:
    """Open and close the store, which recovers it, and return the partitions' offsets `[start, end)`.

    Groups' committed offsets above the end of a log are lowered to that end.
    """
    spans = {}
    is_whole = plan.state.caught_up and plan.state.together
    cut = {partition.key for partition in plan.partitions if partition.cut is not None or not is_whole}
    try:
        with restore_mark.finishing(root), Store.open(root, background=False) as store:
            for partition in plan.partitions:
                log = store.log(*partition.key)
                spans[partition.key] = log.log_start_offset, log.log_end_offset
            for group in store.groups if cut else ():
                for place, position in store.committed_offsets(group).items():
                    if place in cut and position > spans[place][1]:
                        store.commit_offsets(group, {place: spans[place][1]}, position.metadata)
    except KStoreError as error:
        raise BackupError(f"what was restored into {root} cannot be opened: {error}") from error
    return spans


def refuse_others(root: str, plan: Plan, complete: bool) -> None:
    """Raise `BackupError` for a file or directory that this restore cannot have written."""
    files: dict[str, set[str]] = {partition.directory: set() for partition in plan.partitions}
    for file in plan.files:
        directory, _, name = file.path.partition("/")
        files[directory].add(name)
    allowed = {*ROOT_FILES, *(f"{name}.tmp" for name in ROOT_FILES)}
    for entry in fs.scandir(root):
        if entry.is_symlink() or (entry.name not in allowed and entry.name not in files):
            if not complete or entry.is_symlink():
                raise _other(root, entry.name)
        elif entry.name in files:
            fs.refuse_links(entry.path, below=root)
            known = files[entry.name] | {*PARTITION_FILES, *(f"{name}.tmp" for name in PARTITION_FILES)}
            for name in () if complete else fs.listdir(entry.path):
                if name not in known and names.parse_file_name(name) is None:
                    raise _other(root, f"{entry.name}/{name}")


def _other(root: str, name: str) -> BackupError:
    return BackupError(f"{root} holds {name!r}, which is not of this restore; nothing was written into it")


def make_directories(root: str, plan: Plan) -> None:
    """Create the partitions' directories without syncing them."""
    for partition in plan.partitions:
        fs.make_directory(os.path.join(root, partition.directory))
