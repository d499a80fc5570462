"""Reads the leader's logs, which another process may append to, truncate, compact and delete from at the same time.

Opens them in mode "r". Invariant: the bytes of a read are used only if the leader's last batch from before the read is
still there afterwards. A truncation removes the end of a log first, so no read mixes bytes from before and after it.
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

LEAST_GENERATION = 3  # creating the first topic writes the file of topics twice; a third write means that it existed

Presence = Literal["followed", "no writer", "gone"]


class LeaderTopic(NamedTuple):
    """A topic of the leader. `topic_id` is None if an old version of Kafka created the topic."""

    topic_id: uuid.UUID | None
    partitions: int
    numbers: tuple[int, ...]  # of the partitions in these directories
    config: Mapping[str, str]


class LeaderStore:
    """The directories of a leader. Not thread-safe, except for `presence`."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.store = Store.open(paths, "r")
        self.paths = self.store.paths
        self.unreadable: dict[str, StorageError] = {}
        """By topic, the error that prevented reading its id in the last call of `topics`."""

    def close(self) -> None:
        self.store.close()

    def presence(self) -> Presence:
        """Return whether a process writes the leader's directories, no process does, or a directory is gone."""
        if self.is_gone():
            return "gone"
        return "followed" if any(fs.is_locked(path) for path in self.paths) else "no writer"

    def is_gone(self) -> bool:
        """Whether a directory is missing, or is empty, as when its disk is not mounted."""
        return not all(_is_a_log_directory(path) for path in self.paths)

    def topics(self) -> dict[str, LeaderTopic]:
        """Return the current topics, without those that are being deleted or `unreadable`."""
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
                topic_id = record.topic_id  # the topic's directories are being created
            if topic_id is None and is_written and any(is_half_made(entry) for entry in partitions.values()):
                continue  # a broker creates the directory before it writes the id; the next look finds the id
            if record is None or record.state != "deleting":
                count = max(metadata.partition_count(topic), max(partitions) + 1)
                config = dict(metadata.overrides(topic))
                found[topic] = LeaderTopic(topic_id, count, tuple(partitions), config)
        self.unreadable = unreadable
        return found

    def has_deleted(self, topic: str) -> bool:
        """Whether the leader has deleted a topic. False if a directory is not mounted, or if no topic ever existed."""
        metadata = metadata_of(self.store)
        catalog = metadata.current()
        had_topics = catalog.topics or metadata.table.generation >= LEAST_GENERATION
        if topic in catalog or not had_topics or self.is_gone():
            return False
        record = metadata.table.topics.get(topic)
        return record is None or record.state == "deleting"

    def partition(self, topic: str, number: int) -> LeaderLog:
        return LeaderLog(self.store.log(topic, number))


def _is_a_log_directory(path: str) -> bool:
    """Whether a directory has a file that a log, store or broker creates first, or a partition copied before."""
    known = (".lock", checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS, "meta.properties", "kstore-topics.json")
    if any(fs.exists(os.path.join(path, name)) for name in known):
        return True
    try:
        return any(names.is_partition_name(name) for name in fs.listdir(path))
    except StorageError:
        return False


class Piece(NamedTuple):
    """Whole batches of the leader's log, and their position."""

    data: memoryview
    path: str
    position: int
    base_offset: int  # of the segment


class LeaderLog:
    """The leader's log of one partition. Each change except an append raises `version`. For one thread at a time."""

    def __init__(self, log: Log) -> None:
        self.path = log.path
        self.log = log
        view = HostedLog(log).view
        assert isinstance(view, ReadOnlyView)
        self.view = view
        """The log as a reader saw it at the last `look`."""
        self.newest_epoch: int | None = None
        """The newest leader epoch that the leader is known to have had. A truncation removes it from the file."""
        self._next: tuple[int, int, int, int] | None = None  # version, offset, base offset of its segment, position

    @property
    def files(self) -> tuple[str, str]:
        """The paths of the directory and of the last segment's file: each change of the log changes one of them."""
        segments = self.view.segments.items
        return self.path, segments[-1].path if segments else self.path

    @property
    def version(self) -> int:
        """The version at the last `look`."""
        return self.view.guard.version

    @property
    def log_start_offset(self) -> int:
        """The log start offset at the last `look`."""
        return self.view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last whole batch at the last `look`."""
        return self.view.log_end_offset

    def look(self) -> bool:
        """Read the leader's changes since the last `look`; return whether its log has grown or `version` has risen."""
        view = self.view
        before = view.log_end_offset, view.guard.version
        if not view.catch_up():
            view.refresh()
        return (view.log_end_offset, view.guard.version) != before

    def ends(self) -> Ends:
        """Return the current leader epochs, start, end and high watermark."""
        # Epochs are read after the log end: an epoch is written to its file before its first batch to the log.
        view = self.view
        start, end = view.log_start_offset, view.log_end_offset
        epochs = LeaderEpochCache.open(os.path.join(self.path, names.LEADER_EPOCH_CHECKPOINT), create=False)
        self.has_had(epochs.latest_epoch)
        self.has_had(checkpoint.read_offset(view.root, checkpoint.LEADER_EPOCHS, view.partition))
        epochs.truncate_from_end(end + 1)
        epochs.truncate_from_start(start)
        return Ends(epochs, start, end, self.high_watermark(end))

    def has_had(self, epoch: int | None) -> None:
        """Note that the leader has had a leader epoch."""
        if epoch is not None and (self.newest_epoch is None or epoch > self.newest_epoch):
            self.newest_epoch = epoch

    def high_watermark(self, log_end_offset: int) -> int:
        """Return the high watermark from the leader's checkpoint; the log end offset if there is none."""
        try:
            mark = checkpoint.read_offset(self.view.root, checkpoint.HIGH_WATERMARKS, self.view.partition)
        except StorageError:
            return log_end_offset
        return log_end_offset if mark is None else min(mark, log_end_offset)

    def read(self, offset: int, most_bytes: int, buffer: memoryview) -> Piece | None:
        """Read one or more whole batches of one segment, from the batch that holds `offset`; None at the end."""
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
        """Remember that `offset` is the first offset after a piece that was read in this version."""
        self._next = (version, offset, piece.base_offset, piece.position + len(piece.data))

    def bytes_behind(self, offset: int) -> int:
        """Return the size of the batch that holds `offset` and all later batches."""
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
