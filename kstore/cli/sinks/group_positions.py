"""The positions of a group of exports: where each run goes on, in the group's file beside the directory of logs.

A position moves right after the exported file gets its name. If the process is killed between the two, the next file
has the same records again, and none is left out: at least once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

from kstore.disk import fs
from kstore.errors import ConfigError
from kstore.files import checkpoint, stream_positions
from kstore.files.stream_positions import POSITIONS, StreamPositions
from kstore.log.log import Log
from kstore.store.catalog import Entry

__all__ = ["GroupPositions"]


class _Step(NamedTuple):
    """The topic id of a partition, and its position before a run and after it."""

    topic_id: str | None
    before: int | None
    after: int


class GroupPositions:
    """The positions of one group, read now and moved once. Not thread-safe.

    Raises `ConfigError` for a name that no group can have, and if a streaming query has the group; `StorageError` if
    the file cannot be read.
    """

    def __init__(self, root: str, group: str) -> None:
        stream_positions.check_group(group, "--group")
        self._root, self._group = root, group
        self._path = stream_positions.positions_path(root, group)
        fs.make_directories(f"{root}{POSITIONS}")
        self._found = self._read()
        self._steps: dict[tuple[str, int], _Step] = {}

    def start(self, entry: Entry, log: Log) -> int:
        """Return the offset at which this run starts in a partition: the log start for a new or recreated topic."""
        topic_id = _topic_id(entry)
        position = _known(self._found, entry.key, topic_id)
        first, end = log.log_start_offset, log.log_end_offset
        self._steps[entry.key] = _Step(topic_id, position, first if position is None else position)
        if position is None:
            return first
        if not first <= position <= end:
            raise ConfigError(
                f"{entry.topic}-{entry.partition}: group {self._group} goes on at offset {position}, and the log has "
                f"{first} to {end}, so records were deleted before they were exported, or the log is another one; put "
                f"an offset of the log into {self._path}, or remove that file to start anew"
            )
        return position

    def reach(self, entry: Entry, offset: int) -> None:
        """Note that everything below an offset is exported when the file is complete."""
        self._steps[entry.key] = self._steps[entry.key]._replace(after=offset)

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Move the positions after the block, and hold the lock of the directory for that time.

        Raises `ConfigError` before the block if another export of the group has moved them meanwhile.
        """
        with fs.checkpoint_lock(f"{self._root}{POSITIONS}"):
            now = self._read()
            for (topic, number), step in self._steps.items():
                if _known(now, (topic, number), step.topic_id) != step.before:
                    raise ConfigError(
                        f"another export has moved group {self._group} in {topic}-{number} meanwhile: run this again"
                    )
            yield
            stream_positions.write_positions(self._root, self._moved(now))

    def _read(self) -> StreamPositions:
        found = stream_positions.read_group(self._root, self._group)
        if found is None:
            return StreamPositions(self._group, 0, {}, {})
        if found.topic_ids is None:
            raise ConfigError(f"{self._path} is of a streaming query: give the export another --group")
        return found

    def _moved(self, now: StreamPositions) -> StreamPositions:
        ids = dict(now.topic_ids or {})
        offsets = dict(now.offsets)
        for (topic, number), step in self._steps.items():
            if step.topic_id is not None:
                if ids.get(topic, step.topic_id) != step.topic_id:
                    offsets = {key: offset for key, offset in offsets.items() if key[0] != topic}
                ids[topic] = step.topic_id
            offsets[topic, number] = step.after
        return StreamPositions(self._group, time.time_ns() // 1_000_000, offsets, ids)


def _topic_id(entry: Entry) -> str | None:
    metadata = checkpoint.read_partition_metadata(entry.path)
    return None if metadata is None else checkpoint.format_topic_id(metadata.topic_id)


def _known(positions: StreamPositions, partition: tuple[str, int], topic_id: str | None) -> int | None:
    """Return a partition's position; None if there is none, or if it is of an earlier topic of the same name."""
    before = (positions.topic_ids or {}).get(partition[0])
    is_other = topic_id is not None and before is not None and before != topic_id
    return None if is_other else positions.offsets.get(partition)
