"""`load`, for a writer: turn a directory as a crash may have left it into a sound list of segments (SEMANTICS 8).

Invariant: data below the recovery point was flushed, so a fault there is an error and never cut.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import CorruptRecordError
from kstore.files import _log_scan, names
from kstore.files._index_search import OFFSET_ENTRY_BYTES, OffsetEntries
from kstore.files.epochs import LeaderEpochCache
from kstore.files.log_file import open_log
from kstore.files.txnindex import AbortedTxn
from kstore.log.segments import swap, time_search
from kstore.log.segments._producer_state import ProducerTable
from kstore.log.segments.producer_state import DEFAULT_EXPIRY, Expiry, ProducerState, replay_segment
from kstore.log.segments.roll import draw_jitter
from kstore.log.segments.segment import (
    NO_ENTRIES,
    Checked,
    Recovered,
    Segment,
    below_recovery_point,
    create_files,
    new_segment,
)

logger = logging.getLogger("kstore")

_base = attrgetter("base_offset")


@dataclass(slots=True)
class Recovery:
    """The result of opening a log for writing: what was repaired.

    Nothing changes it after the opening, so any thread may read it.
    """

    clean: bool = True
    """True if no segment had to be scanned."""

    cut_bytes: int = 0
    """Bytes cut from the end."""

    cut_from_offset: int | None = None
    """The offset from which records were cut; None if nothing was cut."""

    cut_reason: str | None = None
    """Why the first batch that was cut was invalid, in words; None if nothing was cut."""

    segments_dropped: list[int] = field(default_factory=list)
    """Base offsets of the segments that were removed, because they followed a cut or ended below the log start."""

    indexes_rebuilt: list[int] = field(default_factory=list)
    """Base offsets of the segments whose indexes were rebuilt."""

    leftovers_removed: list[str] = field(default_factory=list)
    """Names of the removed files: remains of an interrupted deletion, swap or recovery, and indexes without a log."""


@dataclass(slots=True)
class Loaded:
    """A sound log: its segments, offsets, caches, and the files that are still to be unlinked."""

    segments: list[Segment]
    next_offset: int
    log_start_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    producers: ProducerState
    recovery: Recovery
    deleted_paths: list[str]


def start_above_end(log_start_offset: int, end_offset: int, path: str) -> CorruptRecordError:
    """Return the error for a log with flushed records that ends below its log start: appends would be unreadable."""
    return CorruptRecordError(
        f"the log ends at offset {end_offset}, below its log start {log_start_offset}, and what is in it was flushed; "
        f"nothing was dropped; see `kstore repair`",
        path=path,
    )


def load(
    directory: str,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    marked_clean: bool,
    now_ms: int,
    expiry: Expiry = DEFAULT_EXPIRY,
    seen: Seen | None = None,
) -> Loaded:
    """Bring a partition directory into a sound state. Return its segments, the last one active.

    `recovery_point` and `log_start_offset` come from the checkpoint files; `seen` is the result of a `look` since the
    directory was locked. Raises `CorruptRecordError`, with nothing cut, for a fault below the recovery point and for a
    log that ends below it, even if the shutdown is marked as clean. Raises `StorageError`.
    """
    recovery = Recovery()
    files, swapped = None if seen is None else seen.files, set[int]()
    if files is None:
        entries = fs.listdir(directory)
        unfinished = swap.clear_leftovers(directory, entries)
        recovery.leftovers_removed += unfinished.remove
        swapped = set(names.offsets_by_kind(final for _, final in unfinished.rename)[names.LOG])
        files = names.offsets_by_kind(fs.listdir(directory) if any(unfinished) else entries)
    bases = sorted(files[names.LOG])
    with_log = set(bases)
    index_kinds = names.OFFSET_INDEX, names.TIME_INDEX, names.TXN_INDEX
    indexed = {kind: with_log.intersection(files[kind]) for kind in index_kinds}
    orphans = [names.file_name(base, kind) for kind in index_kinds for base in files[kind] if base not in with_log]
    segments = [new_segment(directory, base, config) for base in bases]
    for segment in segments:
        segment.created_ms = now_ms
        segment.jitter_ms = draw_jitter(config)
    epochs = LeaderEpochCache.open(os.path.join(directory, names.LEADER_EPOCH_CHECKPOINT))
    producers = ProducerState(directory, files[names.SNAPSHOT], expiry)
    loader = _Loader(
        directory,
        config,
        segments=segments,
        epochs=epochs,
        producers=producers,
        recovery=recovery,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        now_ms=now_ms,
        with_txn_index=indexed[names.TXN_INDEX],
    )
    unindexed = with_log - indexed[names.OFFSET_INDEX]
    if not segments:
        loader.refuse_end(log_start_offset, directory)
    is_indexed = bool(segments) and segments[-1].base_offset not in unindexed
    if marked_clean:
        clean = not is_indexed or loader.ends_whole()
    else:
        is_known_open = seen is not None and seen.is_open
        clean = bool(segments) and not unindexed and not is_known_open and loader.looks_closed()
    for number, segment in enumerate(segments):
        if segment.base_offset in unindexed:
            if segment.base_offset in swapped and loader.index_swapped(number):
                continue
            # If the log is scanned anyway, no segment is kept after a gap (unlike SEMANTICS 8.19).
            doubtful = not clean and number >= loader.first_to_recover()
            loader.recover(number, loaded=number, drop_later=doubtful)
            continue
        if segment.base_offset not in indexed[names.TIME_INDEX]:
            segment.time_index.create_empty()
        if segment.base_offset in indexed[names.TXN_INDEX] and not segment.txn_index.looks_sound(segment.base_offset):
            loader.recover(number, loaded=number, drop_later=not clean and number >= loader.first_to_recover())
    if not clean and segments:
        loader.recover_from_recovery_point(now_ms)
    elif loader.doubts_last:
        # The mark covers the log but not its indexes, and appends continue from the indexes' last entries.
        loader.recover(len(segments) - 1, loaded=len(segments))
    return loader.finish(orphans, clean=clean, marked_clean=marked_clean, now_ms=now_ms)


class Seen(NamedTuple):
    """The result of `look`, which saves `load` the same work."""

    needs_nothing: bool
    """True if `load` would find the log as a close leaves it, or a directory without a log."""

    is_open: bool
    """True if the last segments were examined and are not as a close leaves them."""

    files: dict[str, list[int]] | None
    """The offsets of the segments' files and snapshots by kind; None if interrupted work has to be finished first."""


def look(directory: str, recovery_point: int, log_start_offset: int) -> Seen:
    """Examine a log that has no mark of a clean shutdown. Changes nothing. Raises `StorageError`."""
    entries = fs.listdir(directory)
    if swap.has_leftovers(entries):
        return Seen(False, False, None)
    files = names.offsets_by_kind(entries)
    bases = files[names.LOG]
    if not bases:
        return Seen(not any(files.values()) and recovery_point <= log_start_offset, False, files)
    if recovery_point < log_start_offset or not set(files[names.OFFSET_INDEX]).issuperset(bases):
        return Seen(False, False, files)
    segments = [Segment(directory, base, max_index_bytes=0) for base in sorted(bases)[-2:]]
    try:
        is_closed = _ends_closed(segments, recovery_point, files[names.TXN_INDEX])
    finally:
        for segment in segments:
            segment.close()
    return Seen(is_closed, not is_closed, files)


def reaches_its_end(directory: str, recovery_point: int, log_start_offset: int) -> bool:
    """Return whether a cleanly closed log has the length that its checkpoints say, and ends with sound batches.

    A store calls this for all its logs, so it reads little: the last entry of the last offset index, and the batches
    after it. Return False if more has to be read, as `load` does. Raises `StorageError`.
    """
    entries = fs.listdir(directory)
    logs = [name for name in entries if name.endswith(names.LOG)]
    if not logs:
        return recovery_point <= log_start_offset
    last = max(logs)
    base = names.parse_offset(last)
    if base is None or any(name.endswith((names.SWAP, names.CLEANED)) for name in entries):
        return False
    path = f"{directory}/{last}"
    try:
        position = _last_indexed(f"{directory}/{names.index_name(base)}")
    except fs.MissingFileError:
        return False
    with fs.closing(open_log(path)) as log:
        size = fs.size(log)
        if position is None or position > size:
            return False
        flushed_end = recovery_point if recovery_point > log_start_offset else -1
        scan = _log_scan.scan(
            log, position, size, base, index_interval_bytes=NO_ENTRIES, flushed_end=flushed_end, path=path
        )
    end_offset = base if scan.next_offset is None else scan.next_offset
    return scan.reason is None and end_offset >= max(recovery_point, log_start_offset)


def _last_indexed(path: str) -> int | None:
    """Return the position in the last entry of an offset index: 0 if it is empty, None if not as a close leaves it."""
    with fs.closing(fs.open(path)) as index:
        size = fs.size(index)
        entry = fs.pread(index, OFFSET_ENTRY_BYTES, max(size - OFFSET_ENTRY_BYTES, 0))
    if not size:
        return 0
    is_whole = size % OFFSET_ENTRY_BYTES == 0 and len(entry) == OFFSET_ENTRY_BYTES and any(entry)
    return OffsetEntries(entry, 0).last[1] if is_whole else None


def _whole_end(last: Segment, flushed_end: int) -> int | None:
    """Return one past a segment's last offset; None if its indexes do not fit it or its last batches are unsound."""
    if not last.indexes_look_trimmed():
        return None
    end_offset = _sound_end(last, flushed_end)
    return None if end_offset is None or not _fits_time_index(last, end_offset) else end_offset


def _sound_end(last: Segment, flushed_end: int) -> int | None:
    """Return one past the last offset, scanned from the last index entry; None if a batch there is unsound."""
    position, least = last.start(last.offset_index.last[0], last.size_bytes)
    scan = last.scan_flushed(position, last.size_bytes, flushed_end, after=least)
    if scan.reason is not None:
        return None
    return last.base_offset if scan.next_offset is None else scan.next_offset


def _fits_time_index(last: Segment, next_offset: int) -> bool:
    """Return whether the time index has its closing entry (SEMANTICS 2.9), and none beyond the end."""
    if last.time_index.entries and last.time_index.last[1] >= next_offset:
        return False
    try:
        return time_search.has_closing_entry(last, last.size_bytes)
    except CorruptRecordError:
        return False


def _ends_closed(segments: Sequence[Segment], recovery_point: int, with_txn_index: Container[int]) -> bool:
    """Return whether a log's last segment is as a close leaves it, and ends at the recovery point.

    `with_txn_index` are the bases of the segments that have an index of aborted transactions. If the last segment is
    empty, the one before it must be as a close leaves it, too: a crash may have come before the sync of the roll.
    """
    last = segments[-1]
    if last.base_offset == recovery_point and last.size_bytes:
        return False
    if last.base_offset == recovery_point and not all(each.indexes_look_trimmed() for each in segments[-2:-1]):
        return False
    if last.base_offset in with_txn_index and not last.txn_index.looks_sound(last.base_offset, recovery_point):
        return False  # the index has an entry for a marker that was lost
    return _whole_end(last, recovery_point) == recovery_point


@dataclass(slots=True)
class _Loader:
    directory: str
    config: LogConfig
    segments: list[Segment]
    epochs: LeaderEpochCache
    producers: ProducerState
    recovery: Recovery
    recovery_point: int
    log_start_offset: int
    now_ms: int
    with_txn_index: set[int]
    deleted_paths: list[str] = field(default_factory=list)
    next_offset: int | None = None
    doubts_last: bool = False
    _rebuilt: set[int] = field(default_factory=set)

    @property
    def flushed_end(self) -> int:
        """The recovery point, which lies in no gap; -1 if it is the log start, which may lie in one."""
        return self.recovery_point if self.recovery_point > self.log_start_offset else -1

    def looks_closed(self) -> bool:
        """Return whether the last segment's files are as a close leaves them and end at the recovery point.

        If the log start is above the log's end, no flush is due, and the recovery point says nothing (SEMANTICS 8.11).
        """
        last = self.segments[-1]
        if self.recovery_point <= self.segments[0].base_offset and last.base_offset < self.log_start_offset:
            end_offset = _whole_end(last, -1)
            if end_offset is not None and end_offset < self.log_start_offset:
                self.next_offset = end_offset
                return True
        if not _ends_closed(self.segments, self.recovery_point, self.with_txn_index):
            return False
        self.next_offset = self.recovery_point
        return True

    def ends_whole(self) -> bool:
        """Return whether the last segment of a cleanly closed log ends with a whole batch.

        Raises `CorruptRecordError` if it ends too early. Sets `doubts_last` if the segment's indexes do not fit it.
        """
        last = self.segments[-1]
        self.doubts_last = not last.indexes_look_trimmed()
        if not self.doubts_last:
            end_offset = _sound_end(last, self.flushed_end)
            if end_offset is None:
                return False
            self.refuse_end(end_offset, last.path, last.size_bytes)
            self.doubts_last = not _fits_time_index(last, end_offset)
            self.next_offset = None if self.doubts_last else end_offset
        return True

    def refuse_end(self, end_offset: int, path: str, position: int = 0) -> None:
        if end_offset < self.recovery_point:
            reason = "the file ends" if self.segments else "no segment is here"
            raise below_recovery_point(reason, end_offset, self.recovery_point, path, position)

    def recover(self, number: int, *, loaded: int, drop_later: bool = False) -> int:
        """Recover one segment, its epochs and its producers (SEMANTICS 8.14). Return the number of bytes cut.

        `loaded` is the number of segments that Kafka would know by then; the last two of them get snapshots. With
        `drop_later`, if the segment loses bytes, the later segments are dropped before the cut (SEMANTICS 8.9): a crash
        after the cut would otherwise leave them after a gap that looks like a sound one.
        """
        segment = self.segments[number]
        checked = self._check(number)
        self._rebuild_producers(segment.base_offset, known=loaded, clean=False)
        recovered = self._recover_files(number, checked, drop_later=drop_later)
        self.epochs.enter(recovered.epochs)
        aborted: list[tuple[int, int, int, int]] = []
        if recovered.has_producers:  # otherwise a second read of the file would find nothing
            aborted = replay_segment(self.producers.table, segment, segment.base_offset, segment.size_bytes)
        if aborted or segment.base_offset in self.with_txn_index:
            self.with_txn_index.add(segment.base_offset)
            segment.txn_index.replace(AbortedTxn(0, *transaction) for transaction in aborted)
        self.producers.recovered(recovered.next_offset, is_last=number == len(self.segments) - 1)
        return recovered.cut_bytes

    def index_swapped(self, number: int) -> bool:
        """Build the indexes of a segment whose swap was finished without them. Return False if it must be recovered.

        No snapshot is written or removed: Kafka makes a missing `.index.swap` as it reads the `.log.swap` (SEMANTICS
        8.5), and does not recover the segment.
        """
        segment, checked = self.segments[number], self._check(number)
        has_txn_index = segment.base_offset in self.with_txn_index
        is_sound = not has_txn_index or segment.txn_index.looks_sound(segment.base_offset)
        if number == len(self.segments) - 1 or not is_sound or checked.scan.end_position < checked.size_bytes:
            return False
        recovered = self._recover_files(number, checked, drop_later=False)
        if recovered.has_producers and not has_txn_index:
            table = self._producers_before(number)
            aborted = replay_segment(table, segment, segment.base_offset, segment.size_bytes)
            if aborted:
                self.with_txn_index.add(segment.base_offset)
                segment.txn_index.replace(AbortedTxn(0, *transaction) for transaction in aborted)
        return True

    def _producers_before(self, number: int) -> ProducerTable:
        """Return the producers at a segment's base: the newest sound snapshot up to it, plus the batches in between."""
        table, base = ProducerTable(), self.segments[number].base_offset
        start = self.log_start_offset
        for offset in reversed(self.producers.offsets):
            if self.log_start_offset < offset <= base and table.load(
                fs.read_file(self.producers.path(offset)), self.now_ms, self.producers.expiry.after_ms
            ):
                start = offset
                break
        for segment in self.segments[max(bisect_right(self.segments, start, key=_base) - 1, 0) : number]:
            replay_segment(table, segment, max(start, segment.base_offset), segment.size_bytes)
        return table

    def _check(self, number: int) -> Checked:
        is_last = number == len(self.segments) - 1
        following = self.recovery_point if is_last else self.segments[number + 1].base_offset
        return self.segments[number].check(
            index_interval_bytes=self.config.index_interval_bytes,
            latest_epoch=-1 if self.epochs.latest_epoch is None else self.epochs.latest_epoch,
            flushed_below=min(self.recovery_point, following),
            flushed_end=self.flushed_end if is_last else -1,
            is_last=is_last,
        )

    def _recover_files(self, number: int, checked: Checked, *, drop_later: bool) -> Recovered:
        """Cut a segment's log at the first unsound batch, rebuild its two indexes, and note both in `recovery`."""
        segment, is_last = self.segments[number], number == len(self.segments) - 1
        recovered = segment.recover(
            checked, is_last=is_last, before_cut=lambda: self._drop_after(number) if drop_later else None
        )
        if segment.base_offset not in self._rebuilt:
            self._rebuilt.add(segment.base_offset)
            self.recovery.indexes_rebuilt.append(segment.base_offset)
        if recovered.cut_bytes:
            self.recovery.clean = False
            self.recovery.cut_bytes += recovered.cut_bytes
            self.recovery.cut_from_offset = recovered.next_offset
            self.recovery.cut_reason = recovered.reason
            cut = recovered.cut_bytes, recovered.next_offset, recovered.reason
            logger.warning("%s: cut %d bytes from offset %d on: %s", segment.path, *cut)
        return recovered

    def first_to_recover(self) -> int:
        """Return the number of the segment that holds the recovery point."""
        return max(bisect_right(self.segments, self.recovery_point, key=_base) - 1, 0)

    def recover_from_recovery_point(self, now_ms: int) -> None:
        """Recover the segment that holds the recovery point and all after it, until one loses bytes (SEMANTICS 8.9).

        Also recover the files of the segment that ends at the recovery point, if a crash came before the sync of its
        roll. (Kafka leaves its indexes as they are.) Its records were flushed, so its snapshot stays, as in Kafka.
        """
        self.recovery.clean = False
        first = self.first_to_recover()
        if (
            first > 0
            and self.segments[first].base_offset == self.recovery_point
            and not self.segments[first - 1].indexes_look_trimmed()
        ):
            self._recover_files(first - 1, self._check(first - 1), drop_later=False)
        for number in range(first, len(self.segments)):
            if self.recover(number, loaded=len(self.segments), drop_later=True):
                break

    def _drop_after(self, number: int) -> None:
        """Drop the segments after this one, the last first, so that a crash in between leaves no gap."""
        later = self.segments[number + 1 :]
        for segment in reversed(later):
            self._drop(segment)
            logger.warning("%s: dropped, the log ends before it", segment.path)
        self.recovery.segments_dropped += [segment.base_offset for segment in later]
        del self.segments[number + 1 :]
        if later:
            fs.sync_directory(self.directory)

    def finish(self, orphans: Sequence[str], *, clean: bool, marked_clean: bool, now_ms: int) -> Loaded:
        """Determine the log's offsets in the order of SEMANTICS 8.10 to 8.13, and return the log.

        `orphans` are names of index files without a log (SEMANTICS 8.8). Records without a snapshot are assumed to have
        no producers only if the shutdown is marked as clean (SEMANTICS 9.26): a recovery that dies between two
        snapshots leaves sound indexes, too.
        """
        had_segments = bool(self.segments)
        next_offset = self.next_offset
        if next_offset is None:
            next_offset = self.segments[-1].read_next_offset() if self.segments else self.log_start_offset
        if self.segments:
            self._refuse_start_above(next_offset)
        for name in orphans:
            fs.unlink(os.path.join(self.directory, name))
            self.recovery.leftovers_removed.append(name)
        if next_offset < self.log_start_offset and self.segments:
            logger.warning("%s: ends at %d, below its log start %d: starting anew there", self.directory, next_offset,
                           self.log_start_offset)  # fmt: skip
            for segment in self.segments:
                for index in (segment.offset_index, segment.time_index):  # at full size after a recovery
                    with suppress(fs.MissingFileError):
                        index.trim()
                self._drop(segment)
                self.recovery.segments_dropped.append(segment.base_offset)
            self.segments.clear()
            self.epochs.clear_and_flush()
            self.producers.reset(self.log_start_offset, self.log_start_offset)
            had_segments = False
        if not self.segments:
            segment = new_segment(self.directory, self.log_start_offset, self.config)
            create_files(segment, self.config, now_ms)
            if self.log_start_offset > 0:  # later only the file's name may say where the log starts
                fs.sync_directory(self.directory)
            self.segments.append(segment)
            next_offset = self.log_start_offset
        else:
            self.segments[-1].activate()
        recovery_point = next_offset if clean and had_segments else min(self.recovery_point, next_offset)
        self.epochs.truncate_from_end(next_offset)
        log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        self._warn_of_missing_start()
        with suppress(fs.FullDiskError):  # a later write stores them; until then the stored recovery point stays
            self.epochs.flush()
        self.producers.remove_stray([segment.base_offset for segment in self.segments])
        believed = clean and (marked_clean or log_start_offset >= next_offset)
        self._rebuild_producers(next_offset, clean=believed, log_start_offset=log_start_offset)
        return Loaded(
            segments=self.segments,
            next_offset=next_offset,
            log_start_offset=log_start_offset,
            recovery_point=max(recovery_point, log_start_offset),
            epochs=self.epochs,
            producers=self.producers,
            recovery=self.recovery,
            deleted_paths=self.deleted_paths,
        )

    def _refuse_start_above(self, end_offset: int) -> None:
        """Refuse a log whose start is above its end, unless none of its data was flushed (SEMANTICS 8.11).

        A writer lowers the recovery point before it raises a log start above the data, as for a log that starts over.
        """
        first = self.segments[0].base_offset
        if end_offset < self.log_start_offset and self.recovery_point > first:
            raise start_above_end(self.log_start_offset, end_offset, self.segments[-1].path)

    def _warn_of_missing_start(self) -> None:
        """Warn if the log once started below its first segment; it starts there now, as in Kafka (SEMANTICS 8.13).

        Retention writes the log start first, so the epochs usually start there, too. They may start lower after a full
        disk, and if a broker has died in the minute of the deletion.
        """
        first = self.segments[0].base_offset
        entries = self.epochs.entries
        if entries and entries[0].offset < first:
            logger.warning("%s: begins at offset %d, and its leader epochs at %d: a first segment is missing, or a "
                           "crash came at its deletion", self.directory, first, entries[0].offset)  # fmt: skip

    def _rebuild_producers(
        self, end_offset: int, *, known: int | None = None, clean: bool, log_start_offset: int | None = None
    ) -> None:
        if log_start_offset is None:
            log_start_offset = self.log_start_offset
        if self.producers.is_empty_at(end_offset, log_start_offset):
            return
        self.producers = self.producers.anew()
        self.producers.rebuild(
            log_start_offset,
            end_offset,
            self.segments,
            known=known,
            clean=clean,
            now_ms=self.now_ms,
        )

    def _drop(self, segment: Segment) -> None:
        self.deleted_paths += segment.mark_deleted() + self.producers.mark_deleted(segment.base_offset)
