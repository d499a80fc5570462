"""The writable log: its state behind one mutex (SEMANTICS 0.8), its gate, a leader's appends, rolls, closing.

The compiled appender works without the mutex while `busy` is false; every other change of the log goes through
`Writer.gate`. Readers use the writer as their `View` and take no lock. Invariant: readers see a batch only after its
bytes are in the file, and a step that fails half-way leaves a segment that can be appended to.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EIO
from typing import TYPE_CHECKING

from kstore import _core
from kstore._core import ReaderPosition
from kstore.config.log_config import LogConfig
from kstore.disk import fs, openfiles
from kstore.errors import CorruptRecordError, KStoreError, StorageError, closed, first_report, refusal
from kstore.files import gap_files
from kstore.files.txnindex import AbortedTxn
from kstore.log.reading._point_reads import PointReads
from kstore.log.reading.transaction_replay import aborted_between, open_transactions
from kstore.log.reading.view import FreshPiece, ReadPiece, SegmentList, View
from kstore.log.segments.recovery import Loaded
from kstore.log.segments.segment import Segment, create_files, new_segment
from kstore.log.writing import active_segment
from kstore.log.writing._appender import Appender, Code
from kstore.log.writing._log_gate import Gate
from kstore.log.writing.append_epochs import AppendEpochs
from kstore.log.writing.append_waiters import Waiters
from kstore.log.writing.cleaning_guard import Cleaning
from kstore.log.writing.housekeeping import Gap, Housekeeper, Housekeeping

if TYPE_CHECKING:
    from kstore.log.segments.producer_state import ProducerInfo

logger = logging.getLogger("kstore")


class Writer:
    """The state of a log that is open for writing. Methods that end in `_locked` are called inside the gate.

    An `openfiles.Holder` of the active segment's descriptors: a parked log has none, and entering the gate opens them
    again. `on_storage_error` is called once for each disk error in a change of the log (an append, a flush, a roll, a
    checkpoint), never for an error of a reader. It is called in the thread that got the error, with locks of this log
    held: it may note the error and wake other threads, and must not use the log.
    """

    listed = False
    is_own = True
    has_fresh = False

    def __init__(
        self,
        directory: str,
        partition: tuple[str, int],
        config: LogConfig,
        loaded: Loaded,
        clock: Callable[[], int] | None,
        housekeeper: Housekeeper,
    ) -> None:
        self.directory = directory
        self.root = os.path.dirname(directory) or "."
        self.partition = partition
        self.config = config
        self.guard = _core.Guard()
        self.points = PointReads(directory, self.root, is_own=True)
        self.max_decompressed_bytes: int | None = None
        self.segments = SegmentList(loaded.segments)
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.closed = False
        self.opened_in = 0  # in a forked child: the process that the log belongs to
        self.failure: BaseException | None = None
        self._full: tuple[StorageError, int] | None = None  # the last error of a full disk, and the log end then
        self.cut_by = 0  # the thread that cuts records, until the open transactions are known again
        self.is_unsettled = False  # segments and log end do not match at present
        self.appender = Appender(clock)
        self.on_storage_error: Callable[[StorageError], object] | None = None
        self.appender.on_publish = self.published
        self.appender.on_error = self.report
        self.mutex = threading.Lock()
        self._gate = Gate(self.mutex, self.appender, check=self._enter, stopped=self._stopped, failed=self._failed)
        self.append_epochs = AppendEpochs(self.epochs, self.appender, directory)
        self.waiters = Waiters(self.appender)
        self.cleaning = Cleaning(self.refuse_if_unusable)
        self._seen_end = 0
        self._cuts: list[tuple[int, int]] = []
        self.housekeeping = Housekeeping(self, loaded.recovery_point, housekeeper)
        self.configure(config)
        self.attach_locked(loaded.next_offset)
        self.housekeeping.unlink_later(loaded.deleted_paths)
        if self.producers.waits:
            self._park_locked()
        self.appender.busy = False

    # What readers see (`View`).

    @property
    def active(self) -> Segment:
        return self.segments.items[-1]

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record; never below the log start, even while a log is restarted."""
        return max(self.appender.next_offset, self.log_start_offset)

    @property
    def stable_end_offset(self) -> int:
        """The last stable offset: the first offset of the earliest open transaction, else the log end (SEMANTICS 0.2).

        While records are cut, the log start.
        """
        end = self._known_stable_end()
        return self.log_start_offset if end is None else end

    def decided_end_offset(self, timeout: float | None = None) -> int:
        """Wait for a truncation by another thread to end; return the last stable offset.

        Return the log start after `timeout` seconds, or if the truncation failed, the log is closed, or this thread
        truncates.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (end := self._known_stable_end()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            is_cutting = self.cut_by == threading.get_ident()
            if is_cutting or self.failure is not None or self.closed or (left is not None and left <= 0):
                return self.log_start_offset
            self._gate.wait(left)
        return end

    def _known_stable_end(self) -> int | None:
        while True:
            version = self.guard.version
            if self.cut_by:
                return None
            end = self.log_end_offset  # read first: a transaction that begins later begins at or above it
            stable_end = self.producers.table.open.last_stable_offset(self.log_start_offset, end)
            if self.guard.version == version:  # otherwise a truncation may have made the end newer than the table
                return stable_end

    @property
    def data_end_offset(self) -> int:
        """The log end; after a truncation inside a batch, one past the last batch, which is below it (SEMANTICS 11.4).

        0 while segments and log end do not match (`is_unsettled`): readers may then see fewer batches than the log end
        says, and afterwards the last one may lie below the log start (SEMANTICS 11.4).
        """
        while True:
            version = self.guard.version
            if self.is_unsettled:
                return 0
            gap, end = self.housekeeping.gap, self.appender.next_offset
            if self.guard.version == version and not self.is_unsettled:
                return gap.start if gap is not None and end <= gap.end else end

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap `[start_offset, end_offset)`, by their ends (SEMANTICS 4.11)."""
        segments = self.segments
        return aborted_between(segments.items[max(segments.floor(start_offset), 0) :], start_offset, end_offset)

    def open_transactions(self) -> list[tuple[int, int]]:
        with self.gate():
            return open_transactions(self.producers.table)

    @property
    def durable_end_offset(self) -> int:
        """The offset below which everything has been flushed."""
        return min(self.housekeeping.recovery_point, self.log_end_offset)

    def readable_bytes(self, segment: Segment) -> int:
        """Return the bytes of whole, published batches in the segment's file."""
        size = self.appender.published_bytes(segment.base_offset)
        return segment.size_bytes if size < 0 else size

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """Return the segment's greatest timestamp and the offset that belongs to it."""
        return self.appender.published_maximum(segment.base_offset) or segment.maximum

    def refresh(self) -> None:
        """Raise if the log is closed. There is nothing to refresh: no other process changes this directory."""
        if self.closed:
            raise closed(f"{self.directory}: the log", self.opened_in)

    def check_end(self) -> None:
        """Do nothing: a writer's log ends at its last sound batch."""

    def is_end_of_log(self, error: CorruptRecordError) -> bool:
        """Return False: in a writer's log a fault is never a write in progress."""
        return False

    def check_piece(self, previous: ReadPiece | None, piece: ReadPiece) -> None:
        """Do nothing: the guard's version changes before records are cut."""

    def take_fresh(self, previous: ReadPiece) -> FreshPiece | None:
        """Return None: an append to this log wakes its readers, which then read the file."""
        return None

    def will_read(self, start_offset: int, end_offset: int) -> None:
        """Do nothing: the system reads ahead."""

    def check_durable(self, offset: int) -> None:
        """Do nothing: the guard's version changes before records are cut."""

    def wait(self, offset: int, timeout: float | None, *, durable: bool = False) -> bool:
        """Wait until the log end, or with `durable` the flushed end, is above `offset`. Return False on timeout."""
        self.refresh()
        version = self.guard.version

        def has_grown() -> bool:
            end = self.durable_end_offset if durable else self.log_end_offset
            return end > offset or self.guard.version != version or self.closed

        return self.waiters.wait(has_grown, timeout)

    def has_overtaken(self, position: ReaderPosition) -> bool:
        """Return whether a truncation since `position.seen_version` has cut records that the reader was given."""
        return self.may_have_cut(position.next_offset, position.seen_version)

    def may_have_cut(self, offset: int, seen_version: int) -> bool:
        self.refresh()
        return any(version > seen_version and cut < offset for version, cut in self._cuts)

    # The gate.

    def gate(self) -> Gate:
        """Return the gate, inside which no other thread changes the log. Entering raises for a closed or failed log."""
        return self._gate

    def _enter(self) -> None:
        self.refuse_if_unusable()
        self.append_epochs.before = None  # the epochs of earlier appends are kept
        if self.appender.parked:
            self._resume()

    def _stopped(self) -> bool:
        if self.appender.waiters:
            self.waiters.notify()  # an interrupt may have come between an append and its `published`
        return self.closed or self.failure is not None

    def _failed(self, error: BaseException) -> None:
        """Called with the error of a block inside the gate, before other threads may enter."""
        if not self.closed:
            self.append_epochs.take_back()
        self.report(error)

    def producer_states(self) -> list[ProducerInfo]:
        self.refuse_if_unusable()
        if not len(self.producers.table):  # a store calls this for each log after a crash: a parked log stays parked
            return []
        with self.gate():
            return self.producers.infos()

    def producer_info(self, producer_id: int) -> ProducerInfo | None:
        """Return the state of one producer id, in a time that does not depend on the number of producers."""
        with self.gate():
            return self.producers.info(producer_id)

    def refuse_if_unusable(self) -> None:
        """Raise if the log is closed, or refuses writes since a sync failed."""
        if self.closed:
            raise closed(f"{self.directory}: the log", self.opened_in)
        if self.failure is not None:
            raise refusal(
                self.failure, self.directory, "the log refuses writes until it is reopened, and can still be read"
            )

    def fail(self, failure: BaseException) -> None:
        """Refuse every later write: the state of the disk is unknown."""
        self.failure = failure
        self.appender.busy = True

    def report(self, error: BaseException) -> None:
        """Call `on_storage_error` for a disk error in a change of the log, once for each error."""
        if not isinstance(error, StorageError) or not first_report(error):
            return
        if isinstance(error, fs.FullDiskError):
            self._full = (error, self.log_end_offset)
        if self.on_storage_error is not None and error.is_of_the_disk:
            self.on_storage_error(error)

    @property
    def full(self) -> StorageError | None:
        """The error of the last write, if the disk was full and nothing was appended since; otherwise None."""
        full = self._full
        if full is not None and full[1] != self.log_end_offset:
            full = self._full = None
        return None if full is None else full[0]

    def found_room(self) -> None:
        """Note that a write has succeeded, so the disk is not full."""
        self._full = None

    def now(self) -> int:
        return self.appender.now()

    def configure(self, config: LogConfig) -> None:
        """Use a configuration; the settings of an open segment stay until the next segment (SEMANTICS 13.13)."""
        self.config = config
        active_segment.configure(self.appender, config)

    # Appending.

    def append_locked(self, batches: bytearray | memoryview) -> None:
        """Append whole v2 batches as a leader, each as its own append; roll when a limit is reached.

        If it raises, the batches up to the last roll may be in the log; `log_end_offset` says which batches are.
        """
        taken = 0
        rolled = False
        while taken < len(batches):
            code, bytes_taken = self.appender.commit(batches, taken, False, rolled)
            taken += bytes_taken
            self.roll_for(code, self.log_end_offset)
            rolled = code != Code.DONE
        self.published()

    def assign_epoch_locked(self, leader_epoch: int | None) -> None:
        """Enter the leader epoch of the next append (None: the latest) if it is new (SEMANTICS 1.26, 10.3)."""
        if leader_epoch is None and self.appender.epoch_assigned:
            return
        self.append_epochs.assign(leader_epoch, self.log_end_offset)

    def roll_for(self, code: int, base_offset: int) -> None:
        """Do what the appender's code requires before the next batch: nothing, or a roll at `base_offset`."""
        if code == Code.DONE:
            return
        if code == Code.BUSY:
            self.fail(StorageError(EIO, "a failed write could not be taken back", self.directory))
            self.refuse_if_unusable()
        self.roll_locked(active_segment.ROLL_REASONS[code], base_offset)

    def published(self) -> None:
        """Wake waiting readers after an append, and flush if `flush.messages` requires it."""
        if self.appender.waiters:
            self.waiters.notify()
        if self.log_end_offset >= self.appender.flush_at:
            self.housekeeping.flush()

    def wake(self) -> None:
        """Make every waiting thread and every iterator check the log again."""
        self.guard.version += 1
        self.waiters.notify()

    def flushed(self) -> None:
        """Wake the threads that wait for records to be flushed."""
        if self.appender.waiters:
            self.waiters.notify()

    # Rolling.

    def roll_locked(self, reason: str, base_offset: int, *, before_deletion: bool = False) -> Segment:
        """Start a new segment at `base_offset` (SEMANTICS 2.7 to 2.12).

        Seal the active segment, or replace it if it is empty and has the same base. With `before_deletion` it is
        deleted next, and does without its closing time entry on a full disk.
        """
        old = self.active
        self.settle()
        if base_offset < old.base_offset or (base_offset == old.base_offset and old.size_bytes > 0):
            raise KStoreError(
                f"{self.directory}: a segment cannot start at {base_offset}, the active one starts at {old.base_offset}"
            )
        replaces = base_offset == old.base_offset
        before, next_offset = self.segments, self.log_end_offset
        data_end = self.housekeeping.data_end
        if data_end < base_offset:
            gap_files.add_gap(self.directory, data_end, base_offset, first_base=before.bases[0])
        new = self.new_segment(base_offset)
        try:
            # Sealing closes descriptors: if it fails, no append may write to their numbers.
            self.appender.detach()
            if replaces:
                if len(self.segments.items) == 1:
                    self.housekeeping.write_checkpoints(keep_start=True)
                self.housekeeping.unlink_later(old.mark_deleted())
            else:
                for path in new.paths:
                    if fs.exists(path):
                        logger.warning("%s: removed, because a new segment gets this name", path)
                        fs.unlink(path)
                old.seal(before_deletion=before_deletion)
            self.create(new)
            new.roll_reason = reason
            self.segments = before.ending_in(new, replaces=replaces)
            self.attach_locked(next_offset)
            self.housekeeping.owe_names()
            if replaces:
                fs.sync_directory(self.directory)  # the file's name may be all that says where the log starts
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
            self.housekeeping.flush_after_roll()
        return new

    def renew_locked(self) -> None:
        """Reset the age of the empty active segment, as a roll does (SEMANTICS 2.8); its files stay."""
        active_segment.renew(self.appender, self.active, self.config, self.now())
        self.housekeeping.set_due()

    def take_in_locked(self, places: Sequence[tuple[Callable[[Segment], int], int]]) -> None:
        """Add whole segments at the log end; the first replaces the empty active segment.

        Each item of `places` is (`place`, next offset): `place(segment)` moves the files of one segment to its paths
        and returns the size of its log; the next offset is one past the segment's last. The first segment stays the
        object that readers hold, and all become visible at the same time. Nothing is synced here. If it raises, the log
        refuses writes, as its files are in an unknown state.
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
                segment = self.new_segment(next_offset)
                segment.roll_reason = "explicit"
            self.create(segment)
            # The end first: a reader that starts at the old end in between must not mistake new bytes for old ones.
            self.is_unsettled = True
            self.attach_locked(segment.base_offset, segment)
            self.segments = SegmentList([*before, *taken[1:], segment])
            self.is_unsettled = False
            self._pin(segment)
            self.limit()
            for _, next_offset in places:
                self.producers.end_offset = next_offset
                self.producers.take_snapshot()
            self.housekeeping.owe_names()
        except BaseException as error:
            self.fail(error)
            raise
        self.wake()

    def _undo_roll(self, before: SegmentList, new: Segment, next_offset: int) -> None:
        """Make the old segment the active one again, and delete the files of the new one.

        The new files must not stay: appends to the old segment will pass the base offset in their names.
        """
        try:
            self.segments = before
            new.close()
            for path in new.paths:
                fs.unlink(path)
            self.active.activate()
            self.attach_locked(next_offset)
        except BaseException as error:
            self.fail(error)
            raise

    def undo_done_roll_locked(self, before: SegmentList, next_offset: int, gap: Gap | None) -> None:
        """Undo a roll above the log end whose append stored nothing: no record could be appended below the new base."""
        new = self.active
        try:
            self.housekeeping.gap = gap
            if gap is not None:
                # A flush may have raised the recovery point to the new segment's base.
                self.housekeeping.write_checkpoints()
            self.appender.detach()
        except BaseException as error:
            self.fail(error)
            raise
        self._undo_roll(before, new, next_offset)
        with suppress(StorageError):  # one gap too many in the file is harmless; the next truncation removes it
            gap_files.cut_gaps(self.directory, next_offset if gap is None else gap[0])
        self.producers.go_back(next_offset, self.log_start_offset)
        self.housekeeping.owe_names()

    def new_segment(self, base_offset: int) -> Segment:
        return new_segment(self.directory, base_offset, self.config)

    def create(self, segment: Segment) -> None:
        create_files(segment, self.config, self.now())

    def settle(self) -> None:
        active_segment.settle(self.appender, self.active)

    def attach_locked(self, next_offset: int, segment: Segment | None = None) -> None:
        """Attach the appender to the active segment, or to one that is about to become it."""
        is_listed, segment = segment is None, segment or self.active
        active_segment.attach(self.appender, segment, next_offset)
        if is_listed:
            self._pin(segment)
            self.limit()

    def _pin(self, segment: Segment) -> None:
        segment.pinned = True
        self._seen_end = self.appender.next_offset
        openfiles.opened(self, active_segment.DESCRIPTORS)

    def limit(self) -> None:
        active_segment.limit(self.appender, self.active, self.config)
        self.housekeeping.set_due()

    # Parking.

    def park(self) -> bool:
        """Close the active segment's descriptors, maps and buffers, or return False if a thread is inside the gate.

        Nothing changes on the disk or for readers, and the next append, flush, roll or truncation opens them again. The
        `.log` file may stay open for a while; it is synced before it is closed (`Segment.let_go`).
        """
        return self._gate.attempt(self._park_locked)

    def _park_locked(self) -> None:
        if self.appender.attached:
            unsynced = self.housekeeping.recovery_point < self.log_end_offset
            active_segment.park(self.appender, self.active, unsynced=unsynced)

    def _resume(self) -> None:
        """Give the appender new descriptors of the files that it had when it was parked."""
        try:
            if self.producers.waits:
                self.producers.write_waiting()
                self.housekeeping.owe_names()
            active_segment.resume(self.appender, self.active)
        except BaseException as error:
            self.report(error)
            raise
        self._pin(self.active)

    # `openfiles.Holder`

    def holds(self) -> int:
        """Return the number of descriptors that the appender holds."""
        return active_segment.DESCRIPTORS if self.appender.attached else 0

    def was_used(self) -> bool:
        """Return whether more than one record was appended since the last call; one append may only end the parking."""
        end, seen = self.appender.next_offset, self._seen_end
        self._seen_end = end
        return end > seen + 1

    def let_go(self) -> None:
        """Park, unless a thread is inside the gate."""
        self.park()

    # Truncation.

    def delete_locked(self, segment: Segment) -> None:
        """Rename the files of a segment that is no longer in the list, and unlink them later (SEMANTICS 6.11, 6.12)."""
        self.housekeeping.unlink_later(segment.mark_deleted() + self.producers.mark_deleted(segment.base_offset))

    def announce_cut(self, offset: int) -> None:
        """Notify every iterator that records at and above `offset` are cut."""
        # This cut covers the earlier ones at or above it. A new list, since readers take no lock.
        self._cuts = [*(cut for cut in self._cuts if cut[1] < offset), (self.guard.version + 1, offset)]
        self.wake()

    # Closing.

    def close(self) -> None:
        """Finish the files as in a clean shutdown (SEMANTICS 8.22), then write the checkpoints."""
        with self.cleaning.paused(), self.mutex:
            if self.closed:
                return
            self.appender.busy = True
            try:
                self.housekeeping.stop()
                if self.failure is None:
                    self._close_cleanly()
            except fs.FullDiskError as error:
                outcome = "the log is closed with its records on the disk, and the next opening recovers it"
                raise fs.FullDiskError(error.errno, f"{error.strerror}; {outcome}", error.filename) from None
            except StorageError as error:
                self.report(error)
                raise
            finally:
                self.abandon()
                for segment in self.segments.items:
                    segment.close()
                self.housekeeping.release()

    def _close_cleanly(self) -> None:
        """Write the files that a close writes, or as many as a full disk has space for; always sync the records."""
        full: fs.FullDiskError | None = None
        self.settle()
        self.producers.end_offset = self.log_end_offset
        try:
            self.producers.take_snapshot(sync=True)
            # If it fails, the indexes keep their full size, and the next opening sees that it must recover.
            self.active.seal()
        except fs.FullDiskError as error:
            full = error
        self.housekeeping.owe_names()
        self.housekeeping.sync(self.log_end_offset)
        try:
            self.epochs.flush()
            self.housekeeping.write_checkpoints()
        except fs.FullDiskError as error:
            full = full or error
        if full is not None:
            raise full

    def abandon(self) -> None:
        """Allow no more appends, and leave the files as a crash of the process would."""
        self.closed = True
        self.appender.busy = True
        self.appender.detach()
        self.wake()


@contextmanager
def watching(views: Sequence[View], ring: Callable[[], None]) -> Iterator[None]:
    """Run a block in which `ring` is called when a writer among the views has grown or changed otherwise."""
    watched: list[Writer] = []
    try:
        for view in views:
            if isinstance(view, Writer):
                watched.append(view)
                view.waiters.watch(ring)
        yield
    finally:
        for view in watched:
            view.waiters.unwatch(ring)
