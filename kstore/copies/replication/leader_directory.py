"""The leader's side: logs that another process may write, truncate, compact and delete from meanwhile.

It is read in mode "r". Invariant: bytes count as read only if, after the read, the last batch that the leader had
before it still stands. A cut takes the end of a log first, so no piece mixes bytes from before and after one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from kstore.codec._batches import whole_batches
from kstore.copies.replication.divergence import Ends
from kstore.disk import fs
from kstore.errors import CorruptRecordError, KStoreError, StorageError
from kstore.files import checkpoint, names
from kstore.files.epochs import LeaderEpochCache
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.segments.segment import Segment
from kstore.store.catalog import is_half_made
from kstore.store.metadata import id_on_disk
from kstore.store.store import Store, metadata_of

LEAST_GENERATION = 3  # of a file of topics that has had a topic: one writing makes it, one says that it is there

Presence = Literal["followed", "no writer", "gone"]


class LeaderTopic(NamedTuple):
    """A topic as the leader has it. `topic_id` is None for one from before there were ids."""

    topic_id: uuid.UUID | None
    partitions: int
    numbers: tuple[int, ...]  # of the partitions that are here
    config: Mapping[str, str]


class LeaderStore:
    """The directories of a leader. Not thread-safe, except for `presence`."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.store = Store.open(paths, "r")
        self.paths = self.store.paths
        self.unreadable: dict[str, StorageError] = {}
        """By topic, what keeps its id from being read, as of the last call of `topics`."""

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def presence(self) -> Presence:
        """Whether a process writes the leader's directories, or none does, or one of them is gone."""
        if self.is_gone():
            return "gone"
        return "followed" if any(fs.is_locked(path) for path in self.paths) else "no writer"

    def is_gone(self) -> bool:
        """Whether one of the directories is not there, or empty as where a disk is not mounted."""
        return not all(_is_a_log_directory(path) for path in self.paths)

    def topics(self) -> dict[str, LeaderTopic]:
        """The topics that are there now, without those that are being deleted, and those that are `unreadable`."""
        metadata = metadata_of(self.store)
        catalog = metadata.current()
        is_written = self.presence() == "followed"
        found = {}
        unreadable = {}
        for topic in catalog.topics:
            partitions = catalog.partitions(topic)
            try:
                topic_id = id_on_disk(partitions)
            except StorageError as error:
                unreadable[topic] = error
                continue
            record = metadata.table.find(topic, topic_id)
            if topic_id is None and record is not None:
                topic_id = record.topic_id  # its directories are being made
            if topic_id is None and is_written and any(is_half_made(entry) for entry in partitions.values()):
                continue  # a broker writes the id after it has made the directory; the next look finds it
            if record is None or record.state != "deleting":
                count = max(metadata.partition_count(topic), max(partitions) + 1)
                config = dict(metadata.overrides(topic))
                found[topic] = LeaderTopic(topic_id, count, tuple(partitions), config)
        self.unreadable = unreadable
        return found

    def has_deleted(self, topic: str) -> bool:
        """Whether the leader has deleted a topic; a directory that is not mounted, or had no topic yet, has not."""
        metadata = metadata_of(self.store)
        catalog = metadata.current()
        had_topics = catalog.topics or metadata.table.generation >= LEAST_GENERATION
        if topic in catalog or not had_topics or self.is_gone():
            return False
        record = metadata.table.topics.get(topic)
        return record is None or record.state == "deleting"

    def partition(self, topic: str, number: int) -> LeaderLog:
        """The leader's log of one partition; raises what keeps it from being read."""
        return LeaderLog(self.store.log(topic, number))


def _is_a_log_directory(path: str) -> bool:
    """Whether a directory has a file that a log, a store or a broker makes first, or a partition that was copied."""
    known = (".lock", checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS, "meta.properties", "kstore-topics.json")
    if any(fs.exists(os.path.join(path, name)) for name in known):
        return True
    try:
        return any(names.is_partition_name(name) for name in fs.listdir(path))
    except StorageError:
        return False


class Piece(NamedTuple):
    """Whole batches of the leader's log, and where they lie."""

    data: memoryview
    path: str
    position: int
    base_offset: int  # of the segment


class LeaderLog:
    """The leader's log of one partition; `version` moves with each change but an append. For one thread at a time."""

    def __init__(self, log: Log) -> None:
        self.path = log.path
        self.log = log
        view = HostedLog(log).view
        assert isinstance(view, ReadOnlyView)
        self.view = view
        """The log as a reader sees it, as of the last look."""
        self.newest_epoch: int | None = None
        """The newest leader epoch that the leader is known to have had: a truncation takes it out of its file."""
        self._next: tuple[int, int, int, int] | None = None  # version, offset, base offset of its segment, position

    @property
    def files(self) -> tuple[str, str]:
        """Two paths, one of which changes with every change of the log: its directory, and the last segment's file."""
        segments = self.view.segments.items
        return self.path, segments[-1].path if segments else self.path

    @property
    def version(self) -> int:
        """The version of the last look."""
        return self.view.guard.version

    @property
    def log_start_offset(self) -> int:
        """The log start of the last look."""
        return self.view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last whole batch of the last look."""
        return self.view.log_end_offset

    def look(self) -> bool:
        """See what the leader has done since the last look; whether its log has grown or `version` has moved."""
        view = self.view
        before = view.log_end_offset, view.guard.version
        if not view.catch_up():
            view.refresh()
        return (view.log_end_offset, view.guard.version) != before

    def ends(self) -> Ends:
        """Marks and leader epochs as of now."""
        # The epochs are read after the log's end: an epoch is in the file before its first batch is in the log.
        view = self.view
        start, end = view.log_start_offset, view.log_end_offset
        epochs = LeaderEpochCache.open(os.path.join(self.path, names.LEADER_EPOCH_CHECKPOINT), create=False)
        self.has_had(epochs.latest_epoch)
        self.has_had(checkpoint.read_offset(view.root, checkpoint.LEADER_EPOCHS, view.partition))
        epochs.truncate_from_end(end + 1)
        epochs.truncate_from_start(start)
        return Ends(epochs, start, end, self.high_watermark(end))

    def has_had(self, epoch: int | None) -> None:
        """Note that a leader epoch was the leader's."""
        if epoch is not None and (self.newest_epoch is None or epoch > self.newest_epoch):
            self.newest_epoch = epoch

    def high_watermark(self, log_end_offset: int) -> int:
        """What the leader has written down as its high watermark; the log end where it has written none."""
        try:
            mark = checkpoint.read_offset(self.view.root, checkpoint.HIGH_WATERMARKS, self.view.partition)
        except StorageError:
            return log_end_offset
        return log_end_offset if mark is None else min(mark, log_end_offset)

    def read(self, offset: int, most_bytes: int, buffer: memoryview) -> Piece | None:
        """Read whole batches of one segment from the one that holds `offset` on, a large one whole; None at the end."""
        view = self.view
        version, segments = view.guard.version, view.segments
        known = self._next
        for segment in segments.items[max(segments.floor(offset), 0) :]:
            end = view.readable_bytes(segment)
            if known is not None and known[:3] == (version, offset, segment.base_offset):
                position = known[3]
                if position >= end:
                    known = None
                    continue
                size = 0
            else:
                place = segment.find_batch(offset, end)
                if place is None:
                    continue
                position, size = place.position, place.size_bytes
            return self._read_at(segment, position, end, max(size, most_bytes), buffer)
        view.check_end()
        return None

    def _read_at(self, segment: Segment, position: int, end: int, most_bytes: int, buffer: memoryview) -> Piece:
        wanted = min(end - position, most_bytes)
        into = buffer[:wanted] if wanted <= len(buffer) else memoryview(bytearray(wanted))
        got = fs.pread_into(segment.file.fd, into, position)
        whole, cut = whole_batches(into[:got])
        if whole == 0 and 0 < cut <= end - position:
            return self._read_at(segment, position, end, cut, buffer)  # the next batch is larger than a piece
        if whole == 0:
            raise CorruptRecordError("no whole batch could be read", path=segment.path, position=position)
        return Piece(into[:whole].toreadonly(), segment.path, position, segment.base_offset)

    def passed(self, version: int, piece: Piece, offset: int) -> None:
        """Remember that `offset` is the first behind a piece that was read in this version."""
        self._next = (version, offset, piece.base_offset, piece.position + len(piece.data))

    def bytes_behind(self, offset: int) -> int:
        """The bytes of all batches at or above `offset`, without those of the segment where none is indexed."""
        view = self.view
        if not view.segments.items or offset >= view.log_end_offset:
            return 0
        segments = view.segments.items[max(view.segments.floor(offset), 0) :]
        sizes = [view.readable_bytes(segment) for segment in segments]
        try:
            place = segments[0].find_batch(offset, sizes[0])
        except KStoreError:
            return sum(sizes)
        return sum(sizes) - (sizes[0] if place is None else place.position)
