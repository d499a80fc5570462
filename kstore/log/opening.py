"""Opens a partition for writing: takes the lock, reads the checkpoint files, recovers the log, and sets the role."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from errno import EBADMSG
from typing import NamedTuple

from kstore.base import arguments, times
from kstore.base.numbers import INT_MAX
from kstore.config.log_config import LogConfig
from kstore.disk import fs, mounts
from kstore.errors import InvalidTopicError, StorageError
from kstore.files import checkpoint, load_files, names, restore_mark
from kstore.files.follower_file import FollowerRole
from kstore.log.segments import recovery
from kstore.log.segments.producer_state import DEFAULT_EXPIRY, Expiry
from kstore.log.segments.recovery import Recovery, Seen
from kstore.log.writing.housekeeping import Housekeeper
from kstore.log.writing.writer import Writer


def check_place(path: str | os.PathLike[str], mode: str) -> tuple[str, str, int]:
    """Return the absolute path, topic and partition; raise if the directory may not be opened in this mode."""
    if mode not in ("a", "r"):
        raise ValueError(f"mode is {mode!r}; 'a' (create or append) and 'r' (read only) are allowed")
    directory = absolute(arguments.path("path", path))
    found = os.path.basename(directory)
    topic, partition = names.parse_partition_name(found)[:2]
    if mode == "a" and (live := names.partition_name(topic, partition)) != found:
        raise InvalidTopicError(f"{found!r} is not the name of a live partition; {live!r} would be (FORMAT 1.2)")
    names.check_topic(topic)
    restore_mark.refuse_unfinished(os.path.dirname(directory))
    return directory, topic, partition


def absolute(path: str) -> str:
    """Return the absolute path of a directory; a path in a mounted prefix is one."""
    return path if mounts.is_mounted(path) else os.path.abspath(path)


class Marks(NamedTuple):
    """A partition's entries in the files of its log directory, read before the partition is opened for writing."""

    recovery_point: int
    log_start_offset: int
    marked_clean: bool
    leader_epoch: int = -1


def lock_partition(path: str, partition: tuple[str, int]) -> fs.Lock:
    """Take the writer's lock of a partition directory; create the directory if it is missing."""
    root = os.path.dirname(path)
    load_files.refuse_pending(root, *partition)
    if not fs.exists(path):
        checkpoint.forget_partitions(root, [partition])
        fs.mkdir(path)
    return fs.lock_partition(path)


def take_marks(root: str, partition: tuple[str, int]) -> Marks:
    """Read a locked partition's entries in the checkpoint files, and remove the marker of a clean shutdown."""
    marked_clean = checkpoint.remove_clean_marker(root)
    if marked_clean and (higher := checkpoint.flushed_high_watermarks(root)):
        checkpoint.update_offsets(root, checkpoint.RECOVERY_POINTS, higher)
    return Marks(
        checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS).get(partition, 0),
        checkpoint.read_offsets(root, checkpoint.LOG_STARTS).get(partition, 0),
        marked_clean,
        checkpoint.read_offsets(root, checkpoint.LEADER_EPOCHS).get(partition, -1),
    )


def load_writer(
    path: str,
    partition: tuple[str, int],
    config: LogConfig,
    marks: Marks,
    clock: Callable[[], int] | None,
    housekeeper: Housekeeper,
    expiry: Expiry = DEFAULT_EXPIRY,
    seen: Seen | None = None,
) -> tuple[Writer, Recovery]:
    """Load a log for writing; return its writer and what the recovery found and did."""
    now_ms = time.time_ns() // 1_000_000 if clock is None else times.milliseconds("what the clock gives", clock())
    loaded = recovery.load(
        path,
        config,
        recovery_point=marks.recovery_point,
        log_start_offset=marks.log_start_offset,
        marked_clean=marks.marked_clean,
        now_ms=now_ms,
        expiry=expiry,
        seen=seen,
    )
    return Writer(path, partition, config, loaded, clock, housekeeper), loaded.recovery


def take_role(writer: Writer, follows: FollowerRole | None, leader_epoch: int) -> None:
    """Make the log a follower's or a leader's; restore a leader's epoch if recovery has cut the last epoch entry.

    In Kafka the controller sends the epoch to the broker at every start.
    """
    latest = writer.epochs.latest_epoch
    if leader_epoch > INT_MAX:
        what = (
            f"the leader epoch of {writer.partition[0]}-{writer.partition[1]} is {leader_epoch}; {INT_MAX} is allowed"
        )
        raise StorageError(EBADMSG, what, os.path.join(writer.root, checkpoint.LEADER_EPOCHS))
    if follows is not None:
        writer.append_epochs.follow(follows)
    elif leader_epoch > (-1 if latest is None else latest):
        with writer.gate():
            writer.append_epochs.begin(leader_epoch, writer.log_end_offset)
