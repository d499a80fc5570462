"""From a directory of leftovers to a sound list of segments (SEMANTICS.md section 8).

`leftovers` decides what interrupted deletions and swaps mean, without touching anything: a writer carries it out, a
read-only log applies it in memory. `load` is the writer's way in. The hardest rule (API.md 1): what lies below the
recovery point was flushed, so a fault there is an error and never a cut.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kstore import _scan, fs, names
from kstore.config import LogConfig
from kstore.epochs import LeaderEpochCache
from kstore.producer import DEFAULT_EXPIRY, Expiry, ProducerState, replay_segment
from kstore.roll import draw_jitter
from kstore.segment import Segment
from kstore.txnindex import AbortedTxn

logger = logging.getLogger("kstore")


@dataclass(slots=True)
class Recovery:
    """What opening a log found and did.

    `clean` says that nothing had to be scanned. `cut_bytes` were cut from the end at `cut_from_offset` (None: nothing
    was cut) for `cut_reason`; `segments_dropped`, `indexes_rebuilt` are base offsets, `leftovers_removed` file names.
    """

    clean: bool = True
    cut_bytes: int = 0
    cut_from_offset: int | None = None
    cut_reason: str | None = None
    segments_dropped: list[int] = field(default_factory=list)
    indexes_rebuilt: list[int] = field(default_factory=list)
    leftovers_removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What to do with interrupted work: names to remove, then (name, final name) to rename."""

    remove: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Loaded:
    """A sound log: its segments, its marks, its caches, and the files whose deletion is still due."""

    segments: list[Segment]
    next_offset: int
    log_start_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    producers: ProducerState
    recovery: Recovery
    deleted_paths: list[str]


def leftovers(entries: Iterable[str], swap_next_offset: Callable[[str], int]) -> Leftovers:
    """Decide about `.deleted`, `.cleaned` and `.swap` files (8.4 to 8.7); `swap_next_offset` reads a `.log.swap`."""
    entries = sorted(entries)
    remove = [name for name in entries if name.endswith(".deleted") and not name.endswith(".checkpoint.deleted")]
    cleaned = [name for name in entries if name.endswith(".cleaned") and names.parse_offset(name) is not None]
    swaps = [name for name in entries if name.endswith(".swap") and names.parse_offset(name) is not None]
    if cleaned:
        least = min(_offset(name) for name in cleaned)
        remove += [name for name in swaps if _offset(name) >= least]
        swaps = [name for name in swaps if _offset(name) < least]
    remove += cleaned
    logs = [name for name in swaps if name.endswith(names.LOG + ".swap")]
    if logs:
        low = min(_offset(name) for name in logs)
        high = max(swap_next_offset(name) for name in logs)
        gone = set(remove) | set(swaps)
        remove += [
            name
            for name in entries
            if name not in gone and (offset := names.parse_offset(name)) is not None and low <= offset < high
        ]
    return Leftovers(tuple(remove), tuple((name, name.removesuffix(".swap")) for name in swaps))


def _offset(name: str) -> int:
    offset = names.parse_offset(name)
    assert offset is not None
    return offset


def next_offset_of_file(path: str, base_offset: int) -> int:
    """Read one past the last offset of a `.log` file; its base offset when it holds nothing."""
    fd = fs.open(path)
    try:
        found = _scan.last_offset(fd, 0, fs.size(fd), path=path)
    finally:
        fs.close(fd)
    return base_offset if found is None else found[0] + 1


def load(
    directory: str,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    marked_clean: bool,
    now_ms: int,
    expiry: Expiry = DEFAULT_EXPIRY,
) -> Loaded:
    """Bring a partition directory into a sound state and hand back its segments, the last one active.

    `recovery_point` and `log_start_offset` are those of the checkpoint files. Raises `CorruptRecordError` for a fault
    below the recovery point, with nothing cut, and `StorageError`.
    """
    recovery = Recovery()
    files = _clear_leftovers(directory, recovery)
    bases = sorted(file.offset for file in files if file.kind == names.LOG)
    with_log = set(bases)
    indexed: dict[str, set[int]] = {names.OFFSET_INDEX: set(), names.TIME_INDEX: set(), names.TXN_INDEX: set()}
    for file in files:
        if file.kind in indexed:
            if file.offset in with_log:
                indexed[file.kind].add(file.offset)
            else:
                fs.unlink(os.path.join(directory, str(file)))
                recovery.leftovers_removed.append(str(file))
    room, interval = config.segment_index_bytes, config.index_interval_bytes
    segments = [Segment(directory, base, max_index_bytes=room, index_interval_bytes=interval) for base in bases]
    for segment in segments:
        segment.created_ms = now_ms
        segment.jitter_ms = draw_jitter(config)
    epochs = LeaderEpochCache.open(os.path.join(directory, names.LEADER_EPOCH_CHECKPOINT))
    snapshots = [file.offset for file in files if file.kind == names.SNAPSHOT]
    producers = ProducerState(directory, snapshots, expiry)
    loader = _Loader(directory, config, segments, epochs, producers, recovery, recovery_point, log_start_offset, now_ms)
    unindexed = with_log - indexed[names.OFFSET_INDEX]
    clean = marked_clean or (bool(segments) and not unindexed and loader.looks_closed())
    for number, segment in enumerate(segments):
        if segment.base_offset in unindexed:
            # Where the log is scanned anyhow, no segment is kept behind a gap (unlike 8.19).
            doubtful = not clean and number >= loader.first_to_recover()
            loader.recover(number, loaded=number, drop_later=doubtful)
            continue
        if segment.base_offset not in indexed[names.TIME_INDEX]:
            segment.time_index.create_empty()
        if segment.base_offset in indexed[names.TXN_INDEX] and not segment.txn_index.looks_sound(segment.base_offset):
            loader.recover(number, loaded=number, drop_later=not clean and number >= loader.first_to_recover())
    if not clean and segments:
        loader.recover_from_recovery_point(now_ms)
    elif segments and segments[-1].base_offset not in unindexed and not segments[-1].indexes_look_trimmed():
        # The mark speaks of the log, and appends go on from its indexes' last entries.
        loader.recover(len(segments) - 1, loaded=len(segments))
    return loader.finish(clean=clean, now_ms=now_ms)


def needs_nothing(directory: str, recovery_point: int) -> bool:
    """Whether `load` would find the log as a close leaves it, or a directory in which no log was begun.

    Changes nothing. Raises `StorageError`.
    """
    found = [(name, names.parse_file_name(name)) for name in fs.listdir(directory)]
    files = [file for _, file in found if file is not None]
    bases = [file.offset for file in files if file.kind == names.LOG]
    if any(file.state for file in files):
        return False
    if not bases:
        return not files
    indexed = {file.offset for file in files if file.kind == names.OFFSET_INDEX}
    segments = [Segment(directory, base, max_index_bytes=0) for base in sorted(bases)[-2:]]
    try:
        return indexed.issuperset(bases) and _ends_closed(segments, recovery_point)
    finally:
        for segment in segments:
            segment.close()


def _ends_closed(segments: Sequence[Segment], recovery_point: int) -> bool:
    """Whether a log's last segment is as a close leaves it, and ends at the recovery point.

    If nothing is in it, the one before it has to be so, too: the sync of the roll may never have come.
    """
    last = segments[-1]
    if not last.indexes_look_trimmed():
        return False
    if last.base_offset == recovery_point and not all(each.indexes_look_trimmed() for each in segments[-2:-1]):
        return False
    if not last.txn_index.looks_sound(last.base_offset, recovery_point):
        return False  # a marker was lost, and its entry was not
    position = last.position_of(last.offset_index.last[0])
    scan = last.scan(position, last.size_bytes)
    next_offset = last.base_offset if scan.next_offset is None else scan.next_offset
    if scan.reason is not None or next_offset != recovery_point:
        return False
    timestamp, offset = last.time_index.last
    return not (scan.max_timestamp > timestamp or (last.time_index.entries and offset >= next_offset))


def _clear_leftovers(directory: str, recovery: Recovery) -> list[names.FileName]:
    """Carry out what `leftovers` decides; the files of segments and snapshots that are there then."""
    entries = fs.listdir(directory)
    found = leftovers(entries, lambda name: next_offset_of_file(os.path.join(directory, name), _offset(name)))
    for name in found.remove:
        fs.unlink(os.path.join(directory, name))
    for name, final in found.rename:
        fs.rename(os.path.join(directory, name), os.path.join(directory, final))
    recovery.leftovers_removed += found.remove
    if found.remove or found.rename:
        fs.sync_directory(directory)
        entries = fs.listdir(directory)
    parsed = map(names.parse_file_name, entries)
    return [file for file in parsed if file is not None and not file.state]


class _Loader:
    """The state of one `load`."""

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        epochs: LeaderEpochCache,
        producers: ProducerState,
        recovery: Recovery,
        recovery_point: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        self.directory = directory
        self.config = config
        self.segments = segments
        self.epochs = epochs
        self.recovery = recovery
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.producers = producers
        self.now_ms = now_ms
        self.deleted_paths: list[str] = []
        self.next_offset: int | None = None

    def looks_closed(self) -> bool:
        """Whether the last segment's files are as a close leaves them and end at the recovery point (API.md 1)."""
        if not _ends_closed(self.segments, self.recovery_point):
            return False
        self.next_offset = self.recovery_point
        return True

    def recover(self, number: int, *, loaded: int, drop_later: bool = False) -> int:
        """Recover one segment and what goes with it (8.14); the bytes that were cut.

        The last two of the `loaded` segments that Kafka knows by then are those that get snapshots. With `drop_later`
        the segments after one that loses bytes go (8.9), and before it does: a crash in between must not leave them
        behind a gap that nobody could tell from a sound one.
        """
        segment = self.segments[number]
        is_last = number == len(self.segments) - 1
        self._rebuild_producers(segment.base_offset, self.segments[:loaded], clean=False)
        following = self.recovery_point if is_last else self.segments[number + 1].base_offset
        found = segment.recover(
            index_interval_bytes=self.config.index_interval_bytes,
            latest_epoch=-1 if self.epochs.latest_epoch is None else self.epochs.latest_epoch,
            flushed_below=min(self.recovery_point, following),
            log_start_offset=self.log_start_offset,
            is_last=is_last,
            before_cut=lambda: self._drop_after(number) if drop_later else None,
        )
        self.epochs.assign_all(found.epochs)
        aborted: list[tuple[int, int, int, int]] = []
        if found.has_producers:  # else reading the file a second time would bring nothing
            aborted = replay_segment(self.producers.table, segment, segment.base_offset, segment.size_bytes)
        segment.txn_index.replace(AbortedTxn(0, *each) for each in aborted)
        self.producers.end_offset = found.next_offset
        self.producers.take_snapshot()
        if segment.base_offset not in self.recovery.indexes_rebuilt:
            self.recovery.indexes_rebuilt.append(segment.base_offset)
        if found.cut_bytes:
            self.recovery.cut_bytes += found.cut_bytes
            self.recovery.cut_from_offset = found.next_offset
            self.recovery.cut_reason = found.reason
            logger.warning(
                "%s: cut %d bytes from offset %d on: %s", segment.path, found.cut_bytes, found.next_offset, found.reason
            )
        return found.cut_bytes

    def first_to_recover(self) -> int:
        """The number of the segment that holds the recovery point."""
        return max(bisect_right([s.base_offset for s in self.segments], self.recovery_point) - 1, 0)

    def recover_from_recovery_point(self, now_ms: int) -> None:
        """Recover the segment that holds the recovery point and all after it, until one loses bytes (8.9).

        The segment that ends there too, when the sync of its roll never came: Kafka leaves its indexes as they are.
        """
        self.recovery.clean = False
        first = self.first_to_recover()
        if (
            first > 0
            and self.segments[first].base_offset == self.recovery_point
            and not self.segments[first - 1].indexes_look_trimmed()
        ):
            first -= 1
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

    def finish(self, *, clean: bool, now_ms: int) -> Loaded:
        """Settle the marks in the order of 8.10 to 8.13."""
        had_segments = bool(self.segments)
        next_offset = self.next_offset
        if next_offset is None:
            next_offset = self.segments[-1].read_next_offset() if self.segments else self.log_start_offset
        if next_offset < self.log_start_offset and self.segments:
            logger.warning("%s: ends at %d, below its log start %d: starting anew there", self.directory, next_offset,
                           self.log_start_offset)  # fmt: skip
            for segment in self.segments:
                self._drop(segment)
                self.recovery.segments_dropped.append(segment.base_offset)
            self.segments.clear()
            self.epochs.clear_and_flush()
            self.producers.reset(self.log_start_offset, self.log_start_offset)
            had_segments = False
        if not self.segments:
            segment = Segment(
                self.directory,
                self.log_start_offset,
                max_index_bytes=self.config.segment_index_bytes,
                index_interval_bytes=self.config.index_interval_bytes,
            )
            segment.create(
                preallocate_bytes=self.config.effective_segment_bytes if self.config.preallocate else 0,
                now_ms=now_ms,
                jitter_ms=draw_jitter(self.config),
            )
            if self.log_start_offset > 0:  # its name may soon be all that says where the log starts
                fs.sync_directory(self.directory)
            self.segments.append(segment)
            next_offset = self.log_start_offset
        else:
            self.segments[-1].activate()
        recovery_point = next_offset if clean and had_segments else min(self.recovery_point, next_offset)
        self.epochs.truncate_from_end(next_offset)
        log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        self.epochs.flush()
        self.producers.remove_stray([segment.base_offset for segment in self.segments])
        self._rebuild_producers(next_offset, self.segments, clean=clean, log_start_offset=log_start_offset)
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

    def _rebuild_producers(
        self, end_offset: int, segments: list[Segment], *, clean: bool, log_start_offset: int | None = None
    ) -> None:
        self.producers = self.producers.anew()
        self.producers.rebuild(
            self.log_start_offset if log_start_offset is None else log_start_offset,
            end_offset,
            segments,
            clean=clean,
            now_ms=self.now_ms,
        )

    def _drop(self, segment: Segment) -> None:
        self.deleted_paths += segment.mark_deleted() + self.producers.mark_deleted(segment.base_offset)
