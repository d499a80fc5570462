"""The writable log: the active segment, rolls, truncation, marks, and what is due later.

A `Writer` is the log's state behind one mutex (SEMANTICS.md 0.8). The compiled appender works without the mutex as
long as it says `busy` is false; everything else that changes the log goes through `Writer.gate`. Readers use it as
their `View` and take no lock. The hardest rule: readers see a batch only after its bytes are in the file, and a step
that fails half-way leaves a segment that can be appended to.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EIO
from typing import TYPE_CHECKING

from kstore import _core, checkpoint, fs
from kstore._writer import Appender, Code
from kstore.config import LogConfig
from kstore.errors import KStoreError, LogClosedError, StorageError
from kstore.reading import SegmentList
from kstore.recovery import Loaded, any_producers
from kstore.roll import REASONS, draw_jitter, limits
from kstore.segment import Segment

if TYPE_CHECKING:
    from kstore.validation import Analysis, Batch

logger = logging.getLogger("kstore")

NEVER = 2**63 - 1
CHECKPOINT_INTERVAL_MS = 60_000  # log.flush.offset.checkpoint.interval.ms (12.7)


class _IndexFullError(Exception):
    """An append of several batches needs more index entries than the segment has room for."""


class Writer:
    """The state of a log that is open for writing. Methods that end in `_locked` want the gate; the rest take it."""

    def __init__(
        self,
        directory: str,
        partition: tuple[str, int],
        config: LogConfig,
        loaded: Loaded,
        clock: Callable[[], int] | None,
    ) -> None:
        self.directory = directory
        self.root = os.path.dirname(directory) or "."
        self.partition = partition
        self.config = config
        self.guard = _core.Guard()
        self.segments = SegmentList(loaded.segments)
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.recovery_point = loaded.recovery_point
        self.closed = False
        self.failure: KStoreError | None = None
        self.appender = Appender(clock)
        self.appender.on_publish = self._published
        self.mutex = threading.Lock()
        self._grown = threading.Condition(threading.Lock())
        self._cuts: list[tuple[int, int]] = []
        self._sound_end: tuple[int, int] | None = None
        self._due: list[tuple[int, list[str]]] = []
        self._checkpointed: tuple[int, int | None] = (-1, -1)
        self._checkpointing = threading.Lock()
        self._checkpoint_ms = self.now()
        self._flushed_ms = self.now()
        self._flush_state = threading.Condition(threading.Lock())
        self._flushing = False
        self._unsynced_names = True
        self._roll_flush: threading.Thread | None = None
        self._roll_flush_wanted = False
        self._real_time = clock is None
        self.configure(config)
        self._attach(loaded.next_offset)
        latest = self.epochs.latest_epoch
        self.appender.leader_epoch = 0 if latest is None else latest
        self.appender.epoch_assigned = latest is not None
        self.delete_later(loaded.deleted_paths)
        self.appender.busy = False

    # What readers see (`reading.View`).

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments.items[-1]

    @property
    def log_end_offset(self) -> int:
        """The next offset to be given out."""
        return self.appender.next_offset

    def readable_bytes(self, segment: Segment) -> int:
        """Bytes of whole, published batches in the segment's file."""
        if segment is self.active:
            # Size before identity: a roll in between leaves the sealed size, which is the same or more.
            size = self.appender.size
            if segment is self.active and self.appender.base_offset == segment.base_offset:
                segment.offset_index.entries = self.appender.offset_entries
                segment.time_index.entries = self.appender.time_entries
                return size
        return segment.size_bytes

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """The segment's greatest timestamp and the offset that goes with it."""
        if segment is self.active:
            self.readable_bytes(segment)
            return self.appender.max_timestamp, self.appender.max_timestamp_offset
        return segment.maximum

    def refresh(self) -> None:
        """Refuse to read a closed log; nobody else changes this directory."""
        if self.closed:
            raise LogClosedError(f"{self.directory}: the log is closed")

    def check_end(self) -> None:
        """Nothing: a writer's log ends where its sound batches end."""

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Wait until the log ends above `offset`; False when `timeout` seconds have passed."""
        self.refresh()
        with self._grown:
            self.appender.waiters += 1
            try:
                version = self.guard.version
                return self._grown.wait_for(
                    lambda: self.log_end_offset > offset or self.guard.version != version or self.closed, timeout
                )
            finally:
                self.appender.waiters -= 1

    def overtaken(self, next_offset: int, seen_version: int, base_offset: int, crc: int) -> bool:
        """Whether a truncation since `seen_version` took records that a reader at `next_offset` had been given."""
        self.refresh()
        return any(version > seen_version and cut < next_offset for version, cut in self._cuts)

    # The gate.

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Hold the log against every other change; refuses a closed or failed log."""
        with self.mutex:
            self.appender.busy = True
            try:
                self.refuse_if_unusable()
                yield
            finally:
                self.appender.busy = self.closed or self.failure is not None

    def refuse_if_unusable(self) -> None:
        """Raise when the log is closed, or refuses writes since a sync failed."""
        if self.closed:
            raise LogClosedError(f"{self.directory}: the log is closed")
        if self.failure is not None:
            raise StorageError(
                getattr(self.failure, "errno", None) or 5,
                f"the log refuses writes until it is reopened, because {self.failure}",
                self.directory,
            )

    def fail(self, failure: KStoreError) -> None:
        """Refuse every later write: what is on the disk is no longer known."""
        self.failure = failure
        self.appender.busy = True

    def now(self) -> int:
        """Milliseconds since the epoch by the log's clock."""
        return self.appender.now()

    def configure(self, config: LogConfig) -> None:
        """Take a configuration; what belongs to an open segment stays as it is until the next one (13.13)."""
        self.config = config
        self.appender.configure(
            max_message_bytes=config.max_message_bytes,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            log_append_time=config.message_timestamp_type == "LogAppendTime",
            key_required="compact" in config.cleanup_policy,
            plain=config.compression_type in ("producer", "uncompressed"),
        )

    # Appending.

    def append_locked(self, batches: bytearray | memoryview) -> None:
        """Append whole v2 batches as a leader, each an append of its own, rolling where the rules say so.

        When it raises, the batches up to the last roll may be in the log, and `log_end_offset` says which.
        """
        taken = 0
        while taken < len(batches):
            code, bytes_taken = self.appender.commit(batches, taken, False)
            taken += bytes_taken
            self._roll_for(code, self.log_end_offset)
        self._published()

    def _roll_for(self, code: int, base_offset: int) -> None:
        if code == Code.DONE:
            return
        if code == Code.BUSY:
            self.fail(StorageError(EIO, "a failed write could not be taken back", self.directory))
            self.refuse_if_unusable()
        self.roll_locked(REASONS[Code.ROLL_SIZE - code], base_offset)

    def _append_follower_bytes(self, data: memoryview, batches: Sequence[Batch]) -> None:
        # The base of a segment that this append may start (2.7).
        first = batches[0].base_offset if batches[0].magic >= 2 else batches[-1].last_offset - (2**31 - 1)
        base_offset = max(first, self.log_end_offset)
        while True:
            code, _ = self.appender.commit(data, 0, True)
            if code == Code.SPLIT:
                raise _IndexFullError
            if code == Code.DONE:
                break
            self._roll_for(code, base_offset)
        self._published()

    def append_as_follower_locked(self, analysis: Analysis) -> None:
        """Append a follower's batches: as one append, or one by one where they would fill an index half-way (3.7a)."""
        for batch in analysis.batches:
            if batch.magic < 2:
                if self.epochs.entries:
                    self.epochs.clear_and_flush()
            else:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        data = memoryview(analysis.data)[: analysis.valid_bytes]
        try:
            self._append_follower_bytes(data, analysis.batches)
        except _IndexFullError:
            position = 0
            for batch in analysis.batches:
                self._append_follower_bytes(data[position : position + batch.size_bytes], (batch,))
                position += batch.size_bytes
        finally:
            latest = self.epochs.latest_epoch
            self.appender.leader_epoch = 0 if latest is None else latest
            self.appender.epoch_assigned = latest is not None

    def assign_epoch_locked(self, leader_epoch: int | None) -> None:
        """Enter the leader epoch of the next append into the cache and its file, when it is new there (1.26, 10.3)."""
        epoch = self.appender.leader_epoch if leader_epoch is None else leader_epoch
        if epoch != self.epochs.latest_epoch:
            self.epochs.assign(epoch, self.log_end_offset)
        self.appender.leader_epoch = epoch
        self.appender.epoch_assigned = True

    def _epochs_changed(self) -> None:
        latest = self.epochs.latest_epoch
        self.appender.epoch_assigned = latest is not None and latest == self.appender.leader_epoch

    def note_producers(self, analysis: Analysis) -> None:
        """Remember that a producer numbered its batches: the state is no longer the empty one."""
        if any(batch.producer_id >= 0 for batch in analysis.batches):
            self.producers.numbered = True

    def _published(self) -> None:
        if self.appender.waiters:
            with self._grown:
                self._grown.notify_all()
        if self.log_end_offset >= self.appender.flush_at:
            self.flush()

    def wake(self) -> None:
        """Let everybody who waits or iterates look again."""
        self.guard.version += 1
        with self._grown:
            self._grown.notify_all()

    # Rolling.

    def roll_locked(self, reason: str, base_offset: int) -> Segment:
        """Leave the active segment for a new one at `base_offset` (2.7 to 2.12)."""
        old = self.active
        self.settle()
        if base_offset < old.base_offset or (base_offset == old.base_offset and old.size_bytes > 0):
            raise KStoreError(
                f"{self.directory}: a segment cannot start at {base_offset}, the active one starts at {old.base_offset}"
            )
        replaces = base_offset == old.base_offset
        new = self._new_segment(base_offset)
        try:
            if replaces:
                self.delete_later(old.mark_deleted())
            else:
                for path in (new.path, new.offset_index.path, new.time_index.path):
                    if fs.exists(path):
                        logger.warning("%s: removed, it stood where a new segment starts", path)
                        fs.unlink(path)
                old.seal()
            self._create(new)
        except BaseException:
            if not replaces:
                old.activate()
                self._attach(self.log_end_offset)
            raise
        new.roll_reason = reason
        next_offset = self.log_end_offset
        kept = self.segments.items[:-1] if replaces else self.segments.items
        self.segments = SegmentList([*kept, new])
        self._attach(next_offset)
        self.producers.end_offset = base_offset
        self.producers.take_snapshot(sync=False)
        self._unsynced_names = True
        logger.info("%s: new segment at %d (%s)", self.directory, base_offset, reason)
        self._flush_after_roll()
        return new

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment(self.directory, base_offset, max_index_bytes=self.config.segment_index_bytes)

    def _create(self, segment: Segment) -> None:
        config = self.config
        segment.create(
            preallocate_bytes=config.effective_segment_bytes if config.preallocate else 0,
            now_ms=self.now(),
            jitter_ms=draw_jitter(config),
        )

    def settle(self) -> None:
        """Copy what the appender counts into the active segment's own objects."""
        segment, appender = self.active, self.appender
        segment.size_bytes = appender.size
        segment.offset_index.entries = appender.offset_entries
        segment.time_index.entries = appender.time_entries
        segment.maximum = (appender.max_timestamp, appender.max_timestamp_offset)

    def _attach(self, next_offset: int) -> None:
        """Point the appender at the active segment."""
        segment = self.active
        timestamp, offset = segment.maximum
        first_timestamp = segment.first_timestamp()
        self.appender.attach(
            log_fd=segment.file.fd,
            offset_fd=segment.offset_index.fd,
            time_fd=segment.time_index.fd,
            base_offset=segment.base_offset,
            size=segment.size_bytes,
            next_offset=next_offset,
            offset_entries=segment.offset_index.entries,
            time_entries=segment.time_index.entries,
            last_time_entry=segment.time_index.last[0],
            max_timestamp=timestamp,
            max_timestamp_offset=offset,
            first_timestamp=-1 if first_timestamp is None else first_timestamp,
            created_ms=segment.created_ms,
        )
        self.limit()

    def limit(self) -> None:
        """Give the appender the limits of the active segment."""
        segment = self.active
        found = limits(
            self.config,
            jitter_ms=segment.jitter_ms,
            max_offset_entries=segment.offset_index.max_entries,
            max_time_entries=segment.time_index.max_entries,
        )
        self.appender.limit(
            segment_bytes=found.segment_bytes,
            wait_ms=found.wait_ms,
            offset_entries=found.offset_entries,
            time_entries=found.time_entries,
            index_interval_bytes=self.config.index_interval_bytes,
        )
        self._set_flush_at()

    # Truncation.

    def truncate_to(self, offset: int) -> bool:
        """Drop the records at and above `offset`, batch by batch (11.1 to 11.5)."""
        if offset < 0:
            raise ValueError(f"an offset to truncate to must not be negative, and this is {offset}")
        with self.gate():
            if offset >= self.log_end_offset:
                self.epochs.truncate_from_end(self.log_end_offset)
                self.epochs.flush()
                return False
            if self.segments.bases[0] > offset:
                self._restart_locked(offset, offset)
                return True
            self.settle()
            dropped = [segment for segment in self.segments.items if segment.base_offset > offset]
            kept = [segment for segment in self.segments.items if segment.base_offset <= offset]
            # The checkpoint first: a crash in the middle must not find the log below its recovery point.
            sound_end = self._end_after_cut(kept[-1], offset)
            self.recovery_point = min(self.recovery_point, sound_end)
            self.write_checkpoints()
            for segment in reversed(dropped):
                self._delete_locked(segment)
            self.appender.detach()
            kept[-1].truncate_to(offset, self.now())
            kept[-1].activate()
            self.segments = SegmentList(kept)
            self._attach(offset)
            self._sound_end = (sound_end, offset)
            self.epochs.truncate_from_end(offset)
            self.epochs.flush()
            self._epochs_changed()
            self.log_start_offset = min(offset, self.log_start_offset)
            self._rebuild_producers_locked(offset)
            self._cut_at(offset)
            self.write_checkpoints()
            return True

    def _end_after_cut(self, segment: Segment, offset: int) -> int:
        """Where the data ends once `segment` is cut at `offset`: the base of a batch that holds it (11.4)."""
        place = segment.find_batch(offset, segment.size_bytes)
        return offset if place is None else min(offset, place.base_offset)

    def restart(self, offset: int, log_start_offset: int) -> None:
        """Empty the log and let it go on at an unrelated `offset` (11.7, 11.8)."""
        with self.gate():
            self._restart_locked(offset, log_start_offset)

    def _restart_locked(self, offset: int, log_start_offset: int) -> None:
        self.settle()
        self.recovery_point = min(self.recovery_point, offset)
        old = list(self.segments.items)
        # The line of the new start first: a crash on the way must find a log that may start there.
        self.log_start_offset = log_start_offset
        self.write_checkpoints()
        for segment in old:
            self._delete_locked(segment)
        new = self._new_segment(offset)
        self._create(new)
        self.segments = SegmentList([new])
        self._attach(offset)
        self.epochs.clear_and_flush()
        self._epochs_changed()
        self.producers.reset(offset)
        self.recovery_point = offset
        self._sound_end = None
        self._unsynced_names = True
        self._cut_at(-1)
        self.write_checkpoints()

    def _rebuild_producers_locked(self, offset: int) -> None:
        items = list(self.segments.items)
        self.producers.rebuild(
            self.log_start_offset,
            offset,
            self.segments.bases,
            clean=False,
            has_producers=lambda start, end: any_producers(items, start, end),
        )

    def _delete_locked(self, segment: Segment) -> None:
        paths = segment.mark_deleted()
        if self.producers.forget(segment.base_offset):
            path = self.producers.path(segment.base_offset)
            fs.rename(path, path + ".deleted")
            paths.append(path + ".deleted")
        self.delete_later(paths)

    def _cut_at(self, offset: int) -> None:
        """Tell every iterator that records at and above `offset` are gone."""
        self._cuts.append((self.guard.version + 1, offset))
        self.wake()

    def raise_log_start(self, offset: int) -> None:
        """Make everything below `offset` unreadable; on the disk before this returns (11.10 to 11.12)."""
        self.flush(offset)
        with self.gate():
            if offset <= self.log_start_offset:
                return
            self.log_start_offset = offset
            self.recovery_point = max(self.recovery_point, offset)
            self.epochs.truncate_from_start(offset)
            self.epochs.flush()
            self.producers.raise_start(offset)
            self.wake()
            self.write_checkpoints()

    # Durability.

    def flush(self, offset: int | None = None) -> None:
        """Put everything below `offset` (None: the log end) on the disk, the directory's names included (12.2).

        Concurrent callers share one sync. When a sync fails the log refuses writes from then on.
        """
        target = self.log_end_offset if offset is None else offset
        with self._flush_state:
            while True:
                self.refuse_if_unusable()
                if self.recovery_point >= min(target, self.log_end_offset) and not self._unsynced_names:
                    return
                if not self._flushing:
                    self._flushing = True
                    break
                self._flush_state.wait()
        try:
            self._sync(max(target, self.log_end_offset) if offset is None else target)
        except StorageError as error:
            self.fail(error)
            raise
        finally:
            with self._flush_state:
                self._flushing = False
                self._flush_state.notify_all()

    def _sync(self, target: int) -> None:
        """Sync the segments from the recovery point's to that of `target`; one thread at a time."""
        cuts = len(self._cuts)
        segments = self.segments
        names_unsynced, self._unsynced_names = self._unsynced_names, False
        try:
            first = max(segments.floor(min(self.recovery_point, target)), 0)
            for segment in segments.items[first:]:
                if segment.base_offset < target or segment is segments.items[-1]:
                    self.readable_bytes(segment)
                    segment.flush()
            if names_unsynced:
                self.producers.sync()
                fs.sync_directory(self.directory)
                fs.sync_directory(self.root)
        except BaseException:
            self._unsynced_names = True
            raise
        if len(self._cuts) == cuts:
            self.recovery_point = max(self.recovery_point, min(target, self.log_end_offset))
        self._flushed_ms = self.now()
        self._set_flush_at()

    def _data_end(self, offset: int) -> int:
        """`offset`, or where the data ends when a truncation inside a batch left a gap up to `offset` (11.4)."""
        if self._sound_end is not None and offset >= self._sound_end[1] and self.log_end_offset == self._sound_end[1]:
            return self._sound_end[0]
        return offset

    def _set_flush_at(self) -> None:
        every = self.config.flush_messages
        self.appender.flush_at = NEVER if every >= NEVER else self.recovery_point + every

    def write_checkpoints(self) -> None:
        """Write this partition's lines of the recovery-point and log-start checkpoints, where they changed (12.7).

        The values are read under the lock that orders the writes, so that the last write has the last values.
        """
        with self._checkpointing:
            first = self.segments.bases[0]
            recovery_point = min(self.recovery_point, self._data_end(self.log_end_offset))
            log_start = self.log_start_offset if self.log_start_offset > first else None
            if recovery_point != self._checkpointed[0]:
                checkpoint.update_offsets(self.root, checkpoint.RECOVERY_POINTS, {self.partition: recovery_point})
                self._checkpointed = (recovery_point, self._checkpointed[1])
            if log_start != self._checkpointed[1]:
                checkpoint.update_offsets(self.root, checkpoint.LOG_STARTS, {self.partition: log_start})
                self._checkpointed = (recovery_point, log_start)
            self._checkpoint_ms = self.now()

    # Later.

    def delete_later(self, paths: list[str]) -> None:
        """Unlink renamed files when `file.delete.delay.ms` has passed (6.13)."""
        if paths:
            self._due.append((self.now() + self.config.file_delete_delay_ms, paths))
            self._set_due()

    def _set_due(self) -> None:
        due = min((at for at, _ in self._due), default=NEVER)
        if self.config.flush_ms < NEVER:
            due = min(due, self._flushed_ms + self.config.flush_ms)
        self.appender.due_ms = due

    def run_due(self) -> None:
        """Do what is due by the clock: delayed unlinks, flushes, checkpoints."""
        now = self.now()
        due = [paths for at, paths in self._due if at <= now]
        self._due = [(at, paths) for at, paths in self._due if at > now]
        for paths in due:
            for path in paths:
                fs.unlink(path)
        if self.config.flush_ms < NEVER and now - self._flushed_ms >= self.config.flush_ms:
            if self.log_end_offset > self.recovery_point:
                self.flush()
            self._flushed_ms = now
        self._finish_roll_flush()
        if now - self._checkpoint_ms >= CHECKPOINT_INTERVAL_MS:
            self.write_checkpoints()
        self._set_due()

    def _flush_after_roll(self) -> None:
        """Have everything below the new segment flushed and the recovery point written (2.12), off the append's path.

        By the system's clock a thread does it at once; with a clock passed in, the next housekeeping does.
        """
        self._roll_flush_wanted = True
        if self._real_time and (self._roll_flush is None or not self._roll_flush.is_alive()):
            self._roll_flush = threading.Thread(target=self._finish_roll_flush, name="kstore-flush", daemon=True)
            self._roll_flush.start()

    def _finish_roll_flush(self) -> None:
        while self._roll_flush_wanted and not self.closed and self.failure is None:
            self._roll_flush_wanted = False
            try:
                base = self.segments.bases[-1]
                self.flush(base)
                self.write_checkpoints()
            except LogClosedError:
                return
            except StorageError:
                logger.exception("%s: the flush after a roll failed", self.directory)
                return

    def close(self) -> None:
        """Leave the files as a clean shutdown does (8.22), then the checkpoints."""
        thread = self._roll_flush
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self.mutex:
            if self.closed:
                return
            self.appender.busy = True
        try:
            if self.failure is None:
                self._close_cleanly()
        finally:
            self.closed = True
            self.appender.detach()
            for segment in self.segments.items:
                segment.close()
            self.wake()

    def _close_cleanly(self) -> None:
        with self.mutex:
            self.settle()
            end = self._data_end(self.log_end_offset)
            self.producers.end_offset = self.log_end_offset
            self.producers.take_snapshot(sync=True)
            self.active.seal()
        self._sync(self.log_end_offset)
        fs.sync_directory(self.directory)
        self.recovery_point = end
        self.write_checkpoints()
