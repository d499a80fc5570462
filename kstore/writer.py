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
from collections.abc import Callable, Sequence
from errno import EIO, EMFILE, ENFILE, ENOMEM
from typing import TYPE_CHECKING

from kstore import _core, fs, openfiles
from kstore._producers import Origin
from kstore._writer import Appender, Code, Gate
from kstore.config import LogConfig
from kstore.errors import CorruptRecordError, KStoreError, LogClosedError, StorageError
from kstore.reading import Piece, SegmentList
from kstore.recovery import Loaded
from kstore.roll import INT_MAX, REASONS, draw_jitter, limits
from kstore.segment import Segment
from kstore.stability import aborted_between
from kstore.txnindex import AbortedTxn
from kstore.upkeep import Host, Upkeep

if TYPE_CHECKING:
    from kstore.validation import Analysis, Batch

logger = logging.getLogger("kstore")

DESCRIPTORS = 3  # what an active segment is written through
NOT_THE_DISK = (EMFILE, ENFILE, ENOMEM)  # errors of the system that say nothing about it


class _SplitError(Exception):
    """An append of several batches needs more index entries, or spans more offsets, than a segment has room for."""


class Writer:
    """The state of a log that is open for writing. Methods that end in `_locked` want the gate; the rest take it.

    An `openfiles.Holder` of the active segment's descriptors: while it is parked it has none, and whoever takes the
    gate brings them back. `on_storage_error` hears, once, of each error that the disk gave to a change of the log, be
    it an append, a flush, a roll or a checkpoint; never of one that a reader met. It is called in the thread that met
    the error, with locks of this log held: it may note the error and wake others, and not use the log.
    """

    listed = False

    def __init__(
        self,
        directory: str,
        partition: tuple[str, int],
        config: LogConfig,
        loaded: Loaded,
        clock: Callable[[], int] | None,
        host: Host,
    ) -> None:
        self.directory = directory
        self.root = os.path.dirname(directory) or "."
        self.partition = partition
        self.config = config
        self.guard = _core.Guard()
        self.max_decompressed_bytes: int | None = None
        self.segments = SegmentList(loaded.segments)
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.closed = False
        self.failure: BaseException | None = None
        self._cutting = False  # records go, and what the producers had open then is not known yet
        self.appender = Appender(clock)
        self.on_storage_error: Callable[[StorageError], object] | None = None
        self.appender.on_publish = self._published
        self.appender.on_error = self.report
        self.mutex = threading.Lock()
        self._gate = Gate(self.mutex, self.appender, check=self._enter, stopped=self._stopped, failed=self.report)
        self._seen_end = 0
        # The lock is entered itself, not by way of its condition: an interrupt in there would leave it taken.
        self._growing = threading.Lock()
        self._grown = threading.Condition(self._growing)
        self._watchers: list[Callable[[], object]] = []
        self._cuts: list[tuple[int, int]] = []
        self.upkeep = Upkeep(self, loaded.recovery_point, host)
        self.configure(config)
        self._attach(loaded.next_offset)
        latest = self.epochs.latest_epoch
        self.appender.leader_epoch = 0 if latest is None else latest
        self.appender.epoch_assigned = latest is not None
        self.upkeep.unlink_later(loaded.deleted_paths)
        self.appender.busy = False

    # What readers see (`reading.View`).

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments.items[-1]

    @property
    def log_end_offset(self) -> int:
        """The next offset to be given out; never below the start, also while a log is being started anew."""
        return max(self.appender.next_offset, self.log_start_offset)

    @property
    def stable_end_offset(self) -> int:
        """The last stable offset: where the earliest open transaction begins, else the log end (0.2)."""
        while True:
            version = self.guard.version
            if self._cutting:
                return self.log_start_offset
            end = self.log_end_offset  # first: a transaction that begins after this look begins at or above it
            first = self.producers.table.first_unstable_offset
            if self.guard.version == version:  # else the end may be that of a truncation, and the table older
                return end if first is None else max(min(first, end), self.log_start_offset)

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that reach into `[start_offset, end_offset)`, in the order of their ends (4.11)."""
        segments = self.segments
        return aborted_between(segments.items[max(segments.floor(start_offset), 0) :], start_offset, end_offset)

    @property
    def durable_end_offset(self) -> int:
        """The offset below which everything has been flushed."""
        return min(self.upkeep.recovery_point, self.log_end_offset)

    def readable_bytes(self, segment: Segment) -> int:
        """Bytes of whole, published batches in the segment's file."""
        size = self.appender.published_bytes(segment.base_offset)
        return segment.size_bytes if size < 0 else size

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """The segment's greatest timestamp and the offset that goes with it."""
        return self.appender.published_maximum(segment.base_offset) or segment.maximum

    def refresh(self) -> None:
        """Refuse to read a closed log; nobody else changes this directory."""
        if self.closed:
            raise LogClosedError(f"{self.directory}: the log is closed")

    def check_end(self) -> None:
        """Nothing: a writer's log ends where its sound batches end."""

    def doubt(self, error: CorruptRecordError) -> bool:
        """False: a fault in a writer's log is one."""
        return False

    def check_piece(self, given: Piece | None, piece: Piece) -> None:
        """Nothing: the guard tells readers of this process before anything is cut."""

    def check_durable(self, offset: int) -> None:
        """Nothing: the guard tells readers of this process before anything is cut."""

    def wait(self, offset: int, timeout: float | None, *, durable: bool = False) -> bool:
        """Wait until the log, or with `durable` what is flushed of it, ends above `offset`; False when time is up."""
        self.refresh()
        with self._growing:
            self.appender.waiters += 1
            try:
                version = self.guard.version

                def grown() -> bool:
                    end = self.durable_end_offset if durable else self.log_end_offset
                    return end > offset or self.guard.version != version or self.closed

                return self._grown.wait_for(grown, timeout)
            finally:
                self.appender.waiters -= 1

    def watch(self, wake: Callable[[], object]) -> None:
        """Have `wake` called whenever `wait` would look again, until `unwatch`: for who waits for several logs."""
        with self._growing:
            self._watchers.append(wake)
            self.appender.waiters += 1

    def unwatch(self, wake: Callable[[], object]) -> None:
        """Take back a `watch`; nothing where there is none."""
        with self._growing:
            if wake in self._watchers:
                self._watchers.remove(wake)
                self.appender.waiters -= 1

    def overtaken(self, next_offset: int, seen_version: int, base_offset: int, crc: int) -> bool:
        """Whether a truncation since `seen_version` took records that a reader at `next_offset` had been given."""
        self.refresh()
        return any(version > seen_version and cut < next_offset for version, cut in self._cuts)

    # The gate.

    def gate(self) -> Gate:
        """Hold the log against every other change; refuses a closed or failed log."""
        return self._gate

    def _enter(self) -> None:
        self.refuse_if_unusable()
        if self.appender.parked:
            self._resume()

    def _stopped(self) -> bool:
        if self.appender.waiters:
            self._notify()  # an interrupt may have come between an append and its announcement
        return self.closed or self.failure is not None

    def refuse_if_unusable(self) -> None:
        """Raise when the log is closed, or refuses writes since a sync failed."""
        if self.closed:
            raise LogClosedError(f"{self.directory}: the log is closed")
        if self.failure is not None:
            reason = str(self.failure) or type(self.failure).__name__
            refusal = StorageError(
                getattr(self.failure, "errno", None) or EIO,
                f"the log refuses writes until it is reopened, because {reason}",
                self.directory,
            )
            refusal._reported = True  # the failure was
            raise refusal

    def fail(self, failure: BaseException) -> None:
        """Refuse every later write: what is on the disk is no longer known."""
        self.failure = failure
        self.appender.busy = True

    def report(self, error: BaseException) -> None:
        """Let `on_storage_error` hear of an error that a change of the log met, unless it has, or the disk is sound."""
        if not isinstance(error, StorageError) or error._reported:
            return
        error._reported = True
        if self.on_storage_error is not None and error.errno not in NOT_THE_DISK:
            self.on_storage_error(error)

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
        rolled = False
        while taken < len(batches):
            code, bytes_taken = self.appender.commit(batches, taken, False, rolled)
            taken += bytes_taken
            self._roll_for(code, self.log_end_offset)
            rolled = code != Code.DONE
        self._published()

    def append_produced_locked(
        self, batches: bytearray | memoryview, origin: int, transaction_version: int | None = None
    ) -> tuple[int, int, int]:
        """Append whole v2 batches that carry a producer id, each an append of its own (1.28 to 1.32).

        Answers with the first and last offset, and the timestamp of the last batch that the log already had, else -1:
        such a batch is not stored again. Raises what `ProducerTable.stage` does; then the batches before are in the
        log, and so is a new segment that the refused one would have begun (1.30).
        """
        view = memoryview(batches)
        first = last = timestamp = -1
        taken = 0
        try:
            while taken < len(view):
                size = 12 + int.from_bytes(view[taken + 8 : taken + 12], "big")
                done = self._append_first_produced(view[taken:]) if size < len(view) - taken else 0
                if done:
                    begin, last, timestamp = self._first_of(view, taken), self.appender.next_offset - 1, -1
                else:
                    done = size
                    begin, last, timestamp = self._append_one_produced(
                        view[taken : taken + size], origin, transaction_version
                    )
                first = begin if first < 0 else first
                taken += done
        finally:
            view.release()
        self._published()
        return first, last, timestamp

    @staticmethod
    def _first_of(view: memoryview, position: int) -> int:
        return int.from_bytes(view[position : position + 8], "big")

    def _append_first_produced(self, batches: memoryview) -> int:
        """Append the first of several batches of a client in one write, as many as can be; the bytes taken."""
        appender, table = self.appender, self.producers.table
        if len(table) == 0:
            self.upkeep.watch_producers()
        self._roll_for(appender.should_roll(batches, False), self.log_end_offset)
        _, done = table.write_all(appender.commit, batches, appender.next_offset, Origin.CLIENT)
        return done

    def _append_one_produced(
        self, batch: memoryview, origin: int, transaction_version: int | None
    ) -> tuple[int, int, int]:
        appender, table = self.appender, self.producers.table
        self._roll_for(appender.should_roll(batch, False), self.log_end_offset)
        first = appender.next_offset
        try:
            known = table.stage(batch, 0, first, origin, transaction_version)
            if known is not None:
                return known
            code = self._write_staged(batch, follower=False)
        except BaseException:
            table.drop()  # also for an interrupt between the two: the next write would let it count
            raise
        self._roll_for(code, first)  # done, or nothing can be written any more
        return first, appender.next_offset - 1, -1

    def _write_staged(self, data: memoryview, *, follower: bool) -> int:
        """Write batches that were staged, and what they say of aborted transactions before them; the code."""
        table = self.producers.table
        if len(table) == 0:
            self.upkeep.watch_producers()
        aborted = table.aborted()
        if not aborted:
            return table.write(self.appender.commit, data, follower)
        index, appender = self.active.txn_index, self.appender
        before, end = len(index.entries), appender.next_offset
        try:
            for each in aborted:
                index.append(AbortedTxn(0, *each))
            return table.write(appender.commit, data, follower)
        finally:
            if before == 0:
                self.upkeep.owe_names()
            if appender.next_offset == end:  # else the marker is in, whatever came after
                table.drop()
                index.cut(before)

    def _roll_for(self, code: int, base_offset: int) -> None:
        if code == Code.DONE:
            return
        if code == Code.BUSY:
            self.fail(StorageError(EIO, "a failed write could not be taken back", self.directory))
            self.refuse_if_unusable()
        self.roll_locked(REASONS[Code.ROLL_SIZE - code], base_offset)

    def _append_follower_bytes(self, data: memoryview, batches: Sequence[Batch]) -> None:
        # The base of a segment that this append may start (2.7).
        first = batches[0].base_offset if batches[0].magic >= 2 else batches[-1].last_offset - INT_MAX
        base_offset = max(first, self.log_end_offset)
        if len(batches) > 1 and batches[-1].last_offset - base_offset > INT_MAX:
            raise _SplitError
        if any(batch.producer_id >= 0 for batch in batches):
            self._roll_for(self.appender.should_roll(data, True), base_offset)
            table = self.producers.table
            try:
                for batch in batches:
                    if batch.producer_id >= 0:
                        at = batch.position - batches[0].position
                        table.stage(data, at, batch.base_offset, Origin.FOLLOWER)
                code = self._write_staged(data, follower=True)
            except BaseException:
                table.drop()
                raise
        else:
            code, _ = self.appender.commit(data, 0, True)
            if code not in (Code.DONE, Code.SPLIT):
                self._roll_for(code, base_offset)
                code, _ = self.appender.commit(data, 0, True, True)
        if code == Code.SPLIT:
            raise _SplitError
        self._roll_for(code, base_offset)  # nothing to roll for: done, or nothing can be written any more
        self._published()

    def append_as_follower_locked(self, analysis: Analysis) -> None:
        """Append a follower's batches: as one append, or one by one where a segment cannot hold them (1.35, 3.7a)."""
        for batch in analysis.batches:
            if batch.magic < 2:
                if self.epochs.entries:
                    self.epochs.clear_and_flush()
            else:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        data = memoryview(analysis.data)[: analysis.valid_bytes]
        try:
            self._append_follower_bytes(data, analysis.batches)
        except _SplitError:
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

    def _published(self) -> None:
        if self.appender.waiters:
            self._notify()
        if self.log_end_offset >= self.appender.flush_at:
            self.upkeep.flush()

    def wake(self) -> None:
        """Let everybody who waits or iterates look again."""
        self.guard.version += 1
        self._notify()

    def flushed(self) -> None:
        """Let those look again who wait for what a flush has put on the disk."""
        if self.appender.waiters:
            self._notify()

    def _notify(self) -> None:
        with self._growing:
            self._grown.notify_all()
            for wake in self._watchers:
                wake()

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
        before, next_offset = self.segments, self.log_end_offset
        new = self._new_segment(base_offset)
        try:
            # Sealing closes descriptors: should it break off, nobody may write to their numbers.
            self.appender.detach()
            if replaces:
                if len(self.segments.items) == 1:
                    self.upkeep.write_checkpoints(keep_start=True)
                self.upkeep.unlink_later(old.mark_deleted())
            else:
                for path in new.paths:
                    if fs.exists(path):
                        logger.warning("%s: removed, it stood where a new segment starts", path)
                        fs.unlink(path)
                old.seal()
            self._create(new)
            new.roll_reason = reason
            self.segments = SegmentList([*(before.items[:-1] if replaces else before.items), new])
            self._attach(next_offset)
            self.upkeep.owe_names()
            if replaces:
                fs.sync_directory(self.directory)  # its name may be all that says where the log starts
        except BaseException as error:
            if replaces:
                self.fail(error)
            else:
                self._undo_roll(before, new, next_offset)
            raise
        logger.info("%s: new segment at %d (%s)", self.directory, base_offset, reason)
        self.producers.end_offset = base_offset
        try:
            self.producers.take_snapshot()
        finally:
            self.upkeep.flush_after_roll()
        return new

    def take_in_locked(self, places: Sequence[tuple[Callable[[Segment], int], int]]) -> None:
        """Have each `place` put the files of a whole segment where the log ends, the first over the empty active one's.

        A `place` gets the segment and answers with the bytes of its new log; beside it is the offset that follows. The
        first segment stays the object that readers hold, and all become visible at once. Nothing is synced here. When
        it raises, the log refuses writes: what stands there is not known.
        """
        first = segment = self.active
        before = self.segments.items
        self.settle()
        try:
            self.appender.detach()
            first.close()
            taken = []
            for place, next_offset in places:
                segment.renew(place(segment))
                taken.append(segment)
                segment = self._new_segment(next_offset)
                segment.roll_reason = "explicit"
            self._create(segment)
            # The end first: a reader that starts there meanwhile must not take the new bytes for old ones.
            self._attach(segment.base_offset, segment)
            self.segments = SegmentList([*before, *taken[1:], segment])
            self._pin(segment)
            self.limit()
            for _, next_offset in places:
                self.producers.end_offset = next_offset
                self.producers.take_snapshot()
            self.upkeep.owe_names()
        except BaseException as error:
            self.fail(error)
            raise
        self.wake()

    def _undo_roll(self, before: SegmentList, new: Segment, next_offset: int) -> None:
        """Make the segment that was to be left the active one again; whatever stands of the new one goes.

        Its files must: appends go on in the old segment, past the base that their names say.
        """
        try:
            self.segments = before
            new.close()
            for path in new.paths:
                fs.unlink(path)
            self.active.activate()
            self._attach(next_offset)
        except BaseException as error:
            self.fail(error)
            raise

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment(
            self.directory,
            base_offset,
            max_index_bytes=self.config.segment_index_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
        )

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
        segment.maximum = (appender.max_timestamp, appender.max_timestamp_offset)

    def _attach(self, next_offset: int, segment: Segment | None = None) -> None:
        """Point the appender at the active segment, or at the one that is about to be."""
        is_listed, segment = segment is None, segment or self.active
        timestamp, offset = segment.maximum
        first_timestamp = segment.first_timestamp()
        file = segment.file
        self.appender.attach(
            log_fd=file.fd,
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
            offset_index=segment.offset_index,
            time_index=segment.time_index,
            log=file,
        )
        if is_listed:
            self._pin(segment)
            self.limit()

    def _pin(self, segment: Segment) -> None:
        segment.pinned = True
        self._seen_end = self.appender.next_offset
        openfiles.opened(self, DESCRIPTORS)

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
            index_interval_bytes=segment.index_interval_bytes,
        )
        self.upkeep.set_due()

    # Parking.

    def park(self) -> bool:
        """Give up the active segment's descriptors, maps and buffers, if nobody is changing the log; whether it did.

        Nothing changes on the disk or for readers, and the next append, flush, roll or truncation brings them back. The
        `.log` file may stay open for a while: what it owes the disk goes with it (`Segment.let_go`).
        """
        return self._gate.attempt(self._park_locked)

    def _park_locked(self) -> None:
        if not self.appender.attached:
            return
        segment = self.active
        assert segment.file is not None  # the segment has it too, also where it let go as the log was coming back
        segment.unsynced = self.upkeep.recovery_point < self.log_end_offset
        self.appender.park()
        segment.pinned = False
        openfiles.opened(segment)
        segment.offset_index.park()
        segment.time_index.park()

    def _resume(self) -> None:
        """Give the appender new descriptors of the files that it had when it was parked."""
        segment = self.active
        try:
            file = segment.file
            self.appender.resume(
                log_fd=file.fd, offset_fd=segment.offset_index.fd, time_fd=segment.time_index.fd, log=file
            )
        except BaseException as error:
            segment.offset_index.park()
            segment.time_index.park()
            self.report(error)
            raise
        self._pin(segment)

    # `openfiles.Holder`

    def holds(self) -> int:
        """The descriptors that the active segment is written through."""
        return DESCRIPTORS if self.appender.attached else 0

    def was_used(self) -> bool:
        """Whether more than one record was appended since this was last asked: the one that brought the log back."""
        end, seen = self.appender.next_offset, self._seen_end
        self._seen_end = end
        return end > seen + 1

    def let_go(self) -> None:
        """Park; not while somebody changes the log."""
        self.park()

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
            position, data_end = kept[-1].find_cut(offset)
            self.producers.end_offset = self.log_end_offset
            with self.upkeep.cutting(data_end):
                self._cut_locked(offset, position, data_end, dropped, kept)
            self.wake()
            return True

    def _cut_locked(
        self, offset: int, position: int, data_end: int, dropped: list[Segment], kept: list[Segment]
    ) -> None:
        # The readers first: whatever they stumble over from here on, they see that the log has changed.
        self._cutting = True
        self.appender.detach()
        kept[-1].size_bytes = position
        self.segments = SegmentList(kept)
        self.log_start_offset = min(offset, self.log_start_offset)
        self._cut_at(offset)
        try:
            for segment in reversed(dropped):
                self.delete_locked(segment)
            if dropped:
                fs.sync_directory(self.directory)  # else they may come back behind what is appended here
            kept[-1].truncate_to(offset, position, self.now())
            self._attach(offset)
            self.upkeep.gap = (data_end, offset)
            self.epochs.truncate_from_end(offset)
            self.epochs.flush()
            self._epochs_changed()
            self._rebuild_producers_locked(offset)
            self._cutting = False
            self.upkeep.write_checkpoints()
        except BaseException as error:
            self.fail(error)
            raise

    def restart(self, offset: int, log_start_offset: int) -> None:
        """Empty the log and let it go on at an unrelated `offset` (11.7, 11.8)."""
        with self.gate():
            self._restart_locked(offset, log_start_offset)

    def _restart_locked(self, offset: int, log_start_offset: int) -> None:
        self.settle()
        # A higher start is on the disk before the old records go, a lower one after them: a crash on the way finds a
        # log that may start there, and none of the records that had been deleted.
        start, self.log_start_offset = self.log_start_offset, max(self.log_start_offset, log_start_offset)
        begun = False
        try:
            with self.upkeep.cutting(offset, keep_start=True):
                begun = True
                self._replace_all_locked(offset, log_start_offset)
        except BaseException as error:
            if begun:
                self.fail(error)
            else:
                self.log_start_offset = start
            raise
        self.wake()

    def _replace_all_locked(self, offset: int, log_start_offset: int) -> None:
        # The readers first, before their files go.
        old = self.segments.items
        self.appender.detach()
        self.segments = SegmentList([])
        self._cut_at(-1)
        for segment in reversed(old):
            self.upkeep.unlink_later(segment.mark_deleted())
        fs.sync_directory(self.directory)
        new = self._new_segment(offset)
        self._create(new)
        fs.sync_directory(self.directory)  # the name may be all that says where the log starts
        self.log_start_offset = log_start_offset
        self.segments = SegmentList([new])
        self._attach(offset)
        self.epochs.clear_and_flush()
        self._epochs_changed()
        self.producers.reset(offset, log_start_offset)
        self.upkeep.gap = None
        self.upkeep.owe_names()
        self.upkeep.write_checkpoints()

    def _rebuild_producers_locked(self, offset: int) -> None:
        self.producers.rebuild(self.log_start_offset, offset, self.segments.items, clean=False, now_ms=self.now())

    def delete_locked(self, segment: Segment) -> None:
        """Rename the files of a segment that is no longer in the list, to be unlinked later (6.11, 6.12)."""
        self.upkeep.unlink_later(segment.mark_deleted() + self.producers.mark_deleted(segment.base_offset))

    def _cut_at(self, offset: int) -> None:
        """Tell every iterator that records at and above `offset` are gone."""
        self._cuts.append((self.guard.version + 1, offset))
        self.wake()

    def raise_log_start(self, offset: int) -> None:
        """Make everything below `offset` unreadable; on the disk before this returns (11.10 to 11.12)."""
        self.upkeep.flush(offset, indexes=True)
        with self.gate():
            if offset <= self.log_start_offset:
                return
            self.raise_start_locked(offset)
            self.upkeep.start_at(offset)
            self.epochs.flush()
            self.upkeep.write_checkpoints()

    def raise_start_locked(self, offset: int) -> None:
        """Raise the log start in memory, and what follows it there (11.11); readers below it are told."""
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.producers.raise_start(offset)
        self.wake()

    # Closing.

    def close(self) -> None:
        """Leave the files as a clean shutdown does (8.22), then the checkpoints."""
        with self.mutex:
            if self.closed:
                return
            self.appender.busy = True
            try:
                self.upkeep.stop()
                if self.failure is None:
                    self._close_cleanly()
            except StorageError as error:
                self.report(error)
                raise
            finally:
                self.abandon()
                for segment in self.segments.items:
                    segment.close()
                self.upkeep.release()

    def _close_cleanly(self) -> None:
        self.settle()
        self.producers.end_offset = self.log_end_offset
        self.producers.take_snapshot(sync=True)
        self.active.seal()
        self.upkeep.owe_names()
        self.upkeep.sync(self.log_end_offset)
        self.epochs.flush()
        self.upkeep.write_checkpoints()

    def abandon(self) -> None:
        """Take no more appends and leave the files as they are, as the death of the process would."""
        self.closed = True
        self.appender.busy = True
        self.appender.detach()
        self.wake()
