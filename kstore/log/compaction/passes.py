"""One round of cleaning: the first pass finds the superseded records, and the second writes all other records.

Works on a log's `Writer`, or for a dry run on any view of a log. Invariant: the new files are synced before they
replace the old ones, and only records below the recovery point are read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kstore.disk import fs
from kstore.errors import CorruptRecordError
from kstore.files.txnindex import AbortedTxn
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._filter import BatchFilter, CleanedChunk
from kstore.log.compaction._newest_records import NewestRecords
from kstore.log.compaction.cleaned_segments import CleanedSegments
from kstore.log.compaction.scanned_segments import Piece, ScannedPart
from kstore.log.compaction.segment_groups import Source, group
from kstore.log.reading.transaction_replay import aborted_between, last_records
from kstore.log.reading.view import SegmentList
from kstore.log.segments import swap
from kstore.log.writing.cleaning_guard import CleaningAbortedError
from kstore.types import CompactionStats

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.log.compaction.dirtiness import Dirtiness
    from kstore.log.reading.view import View
    from kstore.log.segments.segment import Segment
    from kstore.log.writing.writer import Writer

logger = logging.getLogger("kstore")

OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES = 8, 12
_WRITTEN_AT_ONCE = 1 << 20
"""How many bytes of output the second pass collects before they are written. After each read and write the pass waits
for the GIL: five milliseconds if another thread appends without pause."""


class CleanerLimits(NamedTuple):
    """The memory of one cleaner (SEMANTICS 7.9, 7.23)."""

    map_keys: int
    """The most keys that the offset map holds."""

    io_buffer_bytes: int
    """The size of the buffer for reading; rebuilt batches are collected separately, up to 1 MiB."""

    max_io_buffer_bytes: int
    """The size to which the buffer grows for a larger batch; a batch larger than this has a buffer of its own size."""

    buffers_at_once: int = 64
    """The number of buffers that a pass reads before it checks whether to stop or to sleep."""


DEFAULT_LIMITS = CleanerLimits(map_keys=5033164, io_buffer_bytes=256 << 10, max_io_buffer_bytes=1048588)
"""The limits of a broker with Kafka's defaults, for a log that is opened without a store."""


def compact(
    writer: Writer,
    dirtiness: Dirtiness,
    limits: CleanerLimits = DEFAULT_LIMITS,
    *,
    throttle: Callable[[int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CompactionStats:
    """Clean the dirty part of a log from `dirtiness.first_dirty_offset` to `first_uncleanable_offset`: one round.

    `throttle(bytes)` is called with the bytes of each read and write, `progress(done, total)` with the bytes done so
    far and in total; both count the reads of the two passes, skipped ones included. The first-dirty line is written at
    the end. Raises `CleaningAbortedError` if the log's cleaning is not idle or is aborted; `CorruptRecordError` and
    `StorageError`, with the log unchanged; the failure is kept in `writer.cleaning.failure`.
    """
    with writer.cleaning.running():
        return clean(writer, dirtiness, limits, throttle=throttle, progress=progress)


def clean(
    writer: Writer,
    dirtiness: Dirtiness,
    limits: CleanerLimits,
    *,
    throttle: Callable[[int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CompactionStats:
    """Do what `compact` does, in a block of `writer.cleaning.running()`."""
    if _has_nothing_dirty(writer, dirtiness):
        return nothing(dirtiness.first_dirty_offset, dry_run=False)
    # New segments are synced before they replace old ones; everything below their end must be on the disk by then, too.
    writer.housekeeping.flush(dirtiness.first_uncleanable_offset, indexes=True)
    housekeeper = writer.housekeeping.housekeeper
    if housekeeper.first_dirty(writer.partition) is None:
        # The line says that gaps are a cleaner's, even if the process is killed before this pass writes its own.
        housekeeper.write_first_dirty(writer.partition, dirtiness.first_dirty_offset)
    stats = _Round(
        writer,
        writer.config,
        dirtiness,
        limits,
        now_ms=writer.now(),
        last_records=lambda: last_records_of(writer),
        writer=writer,
        throttle=throttle,
        progress=progress,
    ).run()
    writer.housekeeping.housekeeper.write_first_dirty(writer.partition, stats.first_dirty_offset)
    writer.cleaning.last = writer.now(), stats
    return stats


def try_out(
    view: View,
    config: LogConfig,
    dirtiness: Dirtiness,
    limits: CleanerLimits,
    *,
    now_ms: int,
    last_records: Callable[[], Mapping[int, tuple[int, int]]],
    progress: Callable[[int, int], None] | None = None,
) -> CompactionStats:
    """Return what `compact` would do; writes nothing."""
    if _has_nothing_dirty(view, dirtiness):
        return nothing(dirtiness.first_dirty_offset, dry_run=True)
    return _Round(view, config, dirtiness, limits, now_ms=now_ms, last_records=last_records, progress=progress).run()


def last_records_of(writer: Writer) -> dict[int, tuple[int, int]]:
    """Return the last record of each active producer (SEMANTICS 7.18)."""
    with writer.gate():
        return last_records(writer.producers.table)


def _has_nothing_dirty(view: View, dirtiness: Dirtiness) -> bool:
    """Return whether there is nothing to clean, or the log has changed since the survey."""
    end = dirtiness.first_uncleanable_offset
    return end <= dirtiness.first_dirty_offset or end not in view.segments.bases[1:]


def nothing(first_dirty_offset: int, *, dry_run: bool) -> CompactionStats:
    """Return the statistics of a compaction that has nothing to do."""
    return CompactionStats(
        first_dirty_offset_before=first_dirty_offset,
        first_dirty_offset=first_dirty_offset,
        records_before=0,
        records_after=0,
        bytes_before=0,
        bytes_after=0,
        keys=0,
        tombstones_kept=0,
        tombstones_removed=0,
        keyless_dropped=0,
        segments_before=0,
        segments_after=0,
        rounds=0,
        map_full=False,
        dry_run=dry_run,
        seconds=0.0,
    )


class _Round:
    """The state of one round. Without a `writer` it is a dry run, which writes nothing."""

    def __init__(
        self,
        view: View,
        config: LogConfig,
        dirtiness: Dirtiness,
        limits: CleanerLimits,
        *,
        now_ms: int,
        last_records: Callable[[], Mapping[int, tuple[int, int]]],
        writer: Writer | None = None,
        throttle: Callable[[int], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._view = view
        self._config = config
        self._first_dirty = dirtiness.first_dirty_offset
        self._first_uncleanable = dirtiness.first_uncleanable_offset
        self._limits = limits
        self._now_ms = now_ms
        self._last_records = last_records
        self._writer = writer
        self._throttle = throttle
        self._progress = progress
        self._log_start = view.log_start_offset
        self._segments = self._view.segments
        self._scanned: dict[int, ScannedPart] = {}  # by base offset
        self._buffer = bytearray(limits.io_buffer_bytes)
        self._done = self._total = 0
        self._newest = NewestRecords(limits.map_keys, self._first_dirty)
        self._bytes_after = self._segments_after = 0
        self._legacy_ms = self._legacy_horizon()

    def run(self) -> CompactionStats:
        began = time.perf_counter()
        try:
            self._scan()
            end_offset = max(self._newest.latest_offset + 1, self._first_dirty)
            sources = self._sources(end_offset)
            self._total = self._done + sum(source.size_bytes for source in sources)
            kept = self._clean(sources)
        except CorruptRecordError as error:
            if "kstore repair" in error.reason:
                raise
            reason = f"{error.reason}; the log was not cleaned; see `kstore repair`"
            raise CorruptRecordError(reason, path=error.path, position=error.position) from error
        if kept.keyless_dropped:
            logger.warning(
                "%s: %d records without keys %s",
                sources[0].segment.directory,
                kept.keyless_dropped,
                "were dropped" if self._writer is not None else "would be dropped",
            )
        return CompactionStats(
            first_dirty_offset_before=self._first_dirty,
            first_dirty_offset=end_offset,
            records_before=kept.records_read,
            records_after=kept.records_kept,
            bytes_before=sum(source.size_bytes for source in sources),
            bytes_after=self._bytes_after,
            keys=self._newest.keys,
            tombstones_kept=kept.tombstones_kept,
            tombstones_removed=kept.tombstones_removed,
            keyless_dropped=kept.keyless_dropped,
            segments_before=len(sources),
            segments_after=self._segments_after,
            rounds=1,
            map_full=self._newest.is_full,
            dry_run=self._writer is None,
            seconds=time.perf_counter() - began,
        )

    def _check(self) -> None:
        """Raise if the cleaning was aborted; called before each read of at most `buffers_at_once` (SEMANTICS 7.8)."""
        if self._writer is not None:
            self._writer.cleaning.check()

    def _count(self, size: int, *, read: bool) -> None:
        if self._throttle is not None:
            self._throttle(size)
        if read:
            self._move_on(size)

    def _move_on(self, size: int) -> None:
        if self._progress is not None:
            self._done += size
            self._progress(self._done, max(self._total, self._done))

    def _legacy_horizon(self) -> int:
        """Return the file time up to which tombstones of formats 0 and 1 are removed (SEMANTICS 7.19)."""
        clean = [segment for segment in self._segments.items if segment.base_offset < self._first_dirty]
        return clean[-1].modified_ms - self._config.delete_retention_ms if clean else 0

    # The first pass.

    def _scan(self) -> None:
        """Run the first pass over the dirty records, segment by segment (SEMANTICS 7.11)."""
        segments = self._segments
        first = max(segments.floor(self._first_dirty), 0)
        dirty = [segment for segment in segments.items[first:] if segment.base_offset < self._first_uncleanable]
        sizes = [segment.size_bytes for segment in segments.items if segment.base_offset < self._first_uncleanable]
        self._total = sum(sizes) + sum(segment.size_bytes for segment in dirty)
        transactions = CleanedTransactions()
        transactions.add_aborted(self._aborted(self._first_dirty, self._first_uncleanable))
        for segment in dirty:
            following = segments.after(segment.base_offset)
            assert following is not None  # the active segment is never dirty in this sense
            if not self._scan_segment(segment, transactions):
                return
            self._newest.end_segment(min(following.base_offset, self._first_uncleanable))

    def _scan_segment(self, segment: Segment, transactions: CleanedTransactions) -> bool:
        """Scan one segment from the index entry at or before the first dirty offset. Return False for a full map."""
        size = segment.size_bytes
        position = segment.start(self._first_dirty, size)[0] if self._first_dirty > segment.base_offset else 0
        part = self._scanned[segment.base_offset] = ScannedPart(position, self._newest.records)
        file = segment.file
        while position < size:
            self._check()
            first = position
            position, pieces = self._newest.scan(
                file.fd,
                position,
                min(size, position + self._limits.buffers_at_once * len(self._buffer)),
                self._buffer,
                transactions,
                path=segment.path,
                max_decompressed_bytes=self._view.max_decompressed_bytes,
            )
            part.extend(pieces)
            self._count(position - first, read=True)
            if not pieces and not self._newest.is_full:
                position = self._scan_large(segment, position, size, transactions, part)
            if self._newest.is_full:
                return False
        return True

    def _scan_large(
        self, segment: Segment, position: int, size: int, transactions: CleanedTransactions, part: ScannedPart
    ) -> int:
        """Scan a batch that does not fit into the buffer. Return the position after it, or raise its error."""
        data, at = self._read_large(segment, position, size)
        part.begin(self._newest)
        taken = self._newest.add(
            data, transactions, path=segment.path, position=at, max_decompressed_bytes=self._view.max_decompressed_bytes
        )
        part.add(at + taken, self._newest)
        return at + taken

    def _read_large(self, segment: Segment, position: int, end: int) -> tuple[memoryview, int]:
        """Read a batch that does not fit into the buffer, which grows for the next ones (SEMANTICS 7.23)."""
        data, at = next(self._pieces(segment, position, end, self._buffer))
        if len(self._buffer) < len(data) <= self._limits.max_io_buffer_bytes:
            self._buffer = bytearray(len(data))
        return data, at

    def _pieces(
        self, segment: Segment, start: int, end: int, buffer: bytearray | None = None
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield whole batches of a part of a segment's file, in pieces of about the buffer's size (SEMANTICS 7.23)."""
        self._check()
        size = self._limits.io_buffer_bytes
        for data, at in segment.file.pieces(start, end, piece_bytes=size, buffer=buffer):
            self._count(len(data), read=True)
            yield data, at
            self._check()

    def _aborted(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions of the indexes from `start_offset`'s segment on (SEMANTICS 7.15)."""
        items = self._segments.items[max(self._segments.floor(start_offset), 0) :]
        return aborted_between(items, self._log_start, end_offset)

    # The second pass.

    def _sources(self, end_offset: int) -> list[Source]:
        segments = [segment for segment in self._segments.items[:-1] if segment.base_offset < end_offset]
        borders = [*(segment.base_offset for segment in segments[1:]), self._first_uncleanable]
        return [
            Source(
                segment,
                segment.base_offset,
                next_base,
                segment.size_bytes,
                segment.offset_index.entries * OFFSET_ENTRY_BYTES,
                segment.time_index.entries * TIME_ENTRY_BYTES,
            )
            for segment, next_base in zip(segments, borders, strict=bool(segments))
        ]

    def _clean(self, sources: Sequence[Source]) -> BatchFilter:
        """Write the records of these segments that are kept, group by group. Return the filter, for its counters."""
        config = self._config
        transactions = CleanedTransactions()
        kept = BatchFilter(
            self._newest,
            transactions,
            now_ms=self._now_ms,
            delete_retention_ms=config.delete_retention_ms,
            first_uncleanable_offset=self._first_uncleanable,
            max_decompressed_bytes=self._view.max_decompressed_bytes,
        )
        groups = group(sources, segment_bytes=config.effective_segment_bytes, index_bytes=config.segment_index_bytes)
        for members in groups:
            kept.set_last_records(self._last_records())
            self._clean_group(members, kept, transactions)
        return kept

    def _clean_group(self, members: Sequence[Source], kept: BatchFilter, transactions: CleanedTransactions) -> None:
        """Clean one group and swap in the result. A group of one segment that does not change is left as it is."""
        output: _Output | None = None if len(members) == 1 else self._begin(members)
        retained: list[AbortedTxn] = []  # for the new transaction index
        try:
            for number, source in enumerate(members):
                upper = (
                    members[number + 1].base_offset if number + 1 < len(members) else source.segment.read_next_offset()
                )
                transactions.add_aborted(self._aborted(source.base_offset, upper))
                for at, changed, batches in self._cleaned(source, kept):
                    retained += transactions.take_retained()
                    if output is None and changed:
                        output = self._begin(members)
                        self._copy(source.segment, at, output)
                    if output is not None:
                        output.append(batches)
                        self._count(len(batches), read=False)
                        output.add_aborted(retained)
                        retained = []
            if output is None and self._writer is not None and not self._is_as_written(members[0].segment, retained):
                output = self._begin(members)
                self._copy(members[0].segment, members[0].size_bytes, output)
                output.add_aborted(retained)
            if output is None:
                self._segments_after += 1
                self._bytes_after += members[0].size_bytes
                return
            new = output.finish(members[-1].segment.modified_ns)
        except BaseException:
            if output is not None:
                output.discard()
            raise
        self._bytes_after += output.size_bytes
        self._segments_after += max(len(new), 1)
        if self._writer is not None:
            swap_in(self._writer, [source.segment for source in members], new)

    def _begin(self, members: Sequence[Source]) -> _Output:
        if self._writer is None:
            return _Trial()
        return CleanedSegments(self._writer, members[0].base_offset, self._now_ms)

    def _cleaned(self, source: Source, kept: BatchFilter) -> Iterator[tuple[int, bool, memoryview]]:
        """Yield the cleaned pieces of a segment: the position, whether the piece changes, and the batches kept."""
        segment, size = source.segment, source.size_bytes
        file = segment.file
        keeps = segment.modified_ms > self._legacy_ms
        scanned = self._scanned.get(source.base_offset) or ScannedPart(size, 0)
        for first, last, is_scanned, piece in scanned.parts(size, self._newest):
            if piece is not None and self._drops(piece, kept):
                yield first, True, memoryview(b"")
                continue
            position = first
            while position < last:
                self._check()
                chunk = kept.clean_file(
                    file.fd,
                    position,
                    min(last, position + self._limits.buffers_at_once * len(self._buffer)),
                    self._buffer,
                    enough_bytes=_WRITTEN_AT_ONCE,
                    scanned=is_scanned,
                    path=segment.path,
                    keeps_old_tombstones=keeps,
                )
                self._count(chunk.taken, read=True)
                if not chunk.taken:
                    chunk = self._clean_large(segment, position, last, kept, scanned=is_scanned, keeps=keeps)
                yield position, chunk.changed, chunk.output
                position += chunk.taken

    def _clean_large(
        self, segment: Segment, position: int, last: int, kept: BatchFilter, *, scanned: bool, keeps: bool
    ) -> CleanedChunk:
        """Clean a batch that does not fit into the buffer, or raise its error."""
        data, at = self._read_large(segment, position, last)
        return kept.clean(data, scanned=scanned, path=segment.path, position=at, keeps_old_tombstones=keeps)

    def _drops(self, piece: Piece, kept: BatchFilter) -> bool:
        """Return whether a whole piece is dropped, so that it is not read a second time."""
        if not kept.drop(records=piece.records, batches=piece.batches, last_offset=piece.last_offset):
            return False
        self._check()
        self._move_on(piece.size_bytes)
        return True

    def _copy(self, segment: Segment, end: int, output: _Output) -> None:
        """Write the batches before the position `end` unchanged."""
        for data, _ in self._pieces(segment, 0, end):
            output.append(data)

    def _is_as_written(self, segment: Segment, retained: Sequence[AbortedTxn]) -> bool:
        """Return whether the index files are those that a cleaning would write for the segment's batches."""
        scan = segment.scan(0, segment.size_bytes, index_interval_bytes=self._config.index_interval_bytes)
        if scan.end_position < segment.size_bytes:
            return True  # damaged batches are no reason to rewrite the segment
        times = scan.time_entries
        if scan.max_timestamp >= 0:
            times += segment.time_index.closing_entry(times, scan.max_timestamp, scan.max_timestamp_offset)
        _, offset_index, time_index = segment.paths
        return (
            fs.read_file(offset_index) == scan.index_entries
            and fs.read_file(time_index) == times
            and list(segment.txn_index.entries) == list(retained)
        )


def swap_in(writer: Writer, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Replace `old`, consecutive segments, by `new`, whose `.cleaned` files are on the disk.

    If it raises before the list of segments is exchanged, the log is as it was, and no file of `new` is left. After a
    later error the log refuses writes: its next opening finishes the swap. Raises `CleaningAbortedError` if `old` is
    not in the log any more.
    """
    try:
        swap.make_swap_files(writer.directory, new)
        with writer.gate():
            _exchange_locked(writer, old, new)
    except BaseException:
        if new[0] not in writer.segments.items and not writer.closed:
            try:
                swap.take_back(writer.directory, new)
            except BaseException as error:
                writer.fail(error)
                raise
        raise
    try:
        gone = swap.take_new_names(writer.directory, old, new)
        with writer.gate():
            kept = {segment.base_offset for segment in new}
            for segment in old:
                if segment.base_offset not in kept:
                    gone += writer.producers.mark_deleted(segment.base_offset)
            writer.housekeeping.unlink_later(gone)
    except BaseException as error:
        if not writer.closed:
            writer.fail(error)
        raise


def _exchange_locked(writer: Writer, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    items = writer.segments.items
    start = items.index(old[0]) if old[0] in items else 0
    end = start + len(old)
    if items[start:end] != tuple(old) or end >= len(items):
        raise CleaningAbortedError("the segments that were cleaned are not in the log any more")
    writer.segments = SegmentList([*items[:start], *new, *items[end:]])
    writer.wake()


class _Output(Protocol):
    """Takes the batches of one group."""

    @property
    def size_bytes(self) -> int: ...
    def append(self, batches: memoryview) -> None: ...
    def add_aborted(self, transactions: list[AbortedTxn]) -> None: ...
    def finish(self, modified_ns: int) -> list[Segment]: ...
    def discard(self) -> None: ...


class _Trial:
    """Counts the bytes that would be written."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def append(self, batches: memoryview) -> None:
        self.size_bytes += len(batches)

    def add_aborted(self, transactions: list[AbortedTxn]) -> None:
        pass

    def finish(self, modified_ns: int) -> list[Segment]:
        return []

    def discard(self) -> None:
        pass
