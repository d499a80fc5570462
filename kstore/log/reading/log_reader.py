"""`LogReader`: feeds the iterators over a log with pieces of segment files, and waits for new records.

An iterator compares the version of its view's guard before each record. So it notices immediately if its position is
gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from kstore._core import BatchIterator, ReaderPosition, Record, RecordIterator
from kstore.codec._aborted import AbortedFilter
from kstore.disk import fs, watches
from kstore.errors import CorruptRecordError
from kstore.log.reading._timestamp_lookup import first_at
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.read_options import ReadOptions
from kstore.log.reading.view import (
    HEADER_BYTES,
    MAX_OFFSET,
    ReadPiece,
    View,
    chain,
    check_offset,
    misplaced,
    offset_limit,
    out_of_range,
    steadily,
)
from kstore.log.segments.segment import Segment

FIRST_BYTES = 32 << 10  # the size of the first piece: more than a batch of 16 KiB, which is what most producers make


FirstBatch = tuple[bytes, Segment, int, int, int]  # what `PointReads.first_batch` returns


class Place(NamedTuple):
    """A place between two batches: the segment, the position, the least offset behind it, the piece before it."""

    segment: Segment
    position: int
    least: int
    previous: ReadPiece


class LogReader:
    """Feeds a compiled iterator in one pass over a part of a log. For one thread at a time.

    Iterating yields (bytes, path, position, lowest possible base offset) of whole batches that follow one another,
    starting with the batch that holds `offset`. A batch whose offsets do not follow the last batch's raises
    `CorruptRecordError`. When the guard's version has changed, an iterator calls `recheck`, which raises or returns a
    reader to continue with.
    """

    def __init__(self, view: View, offset: int, end_offset: int, options: ReadOptions) -> None:
        self.view = view
        self.offset = offset
        self.end_offset = end_offset
        self.options = options
        self.owner: object = None  # an object that must live as long as this reader
        self._continues: ReaderPosition | None = None  # the position of the reader that this one replaces
        self._begins: Place | None = None  # where the reader that this one replaces has ended
        self._ended: Place | None = None

    def __iter__(self) -> Iterator[tuple[bytes | memoryview, str, int, int]]:
        try:
            first = self._first_batch()
            if first is not None:
                yield first[0], first[1].path, first[2], first[3]
            yield from self._pieces(first)
        except fs.MissingFileError as error:
            # The file was renamed; the iterator calls `recheck`, which finds out why.
            raise CorruptRecordError(f"the file has gone: {error}", path=error.filename) from error
        finally:
            if self.options.follow and isinstance(self.view, ReadOnlyView):
                watches.forget(self.view.directory)

    def _first_batch(self) -> FirstBatch | None:
        """Read the batch to start with in the short way; None if `_pieces` must find it."""
        options = self.options
        continues = self._continues is not None or self._begins is not None
        if options.committed or options.durable or continues or self.offset >= self.end_offset:
            return None
        return self.view.points.first_batch(self.view, self.offset)

    def _pieces(self, first: FirstBatch | None) -> Iterator[tuple[memoryview, str, int, int]]:
        view = self.view
        promised = 0 if self.options.follow else min(view.data_end_offset, self.end_offset)
        previous: ReadPiece | None = None
        early: ReadPiece | None = None
        if self._begins is not None:
            segment, position, least, previous = self._begins
        elif first is not None:
            batch, segment, start, _, last_offset = first
            position, least = start + len(batch), last_offset + 1
            previous = early = ReadPiece(segment, start, batch[:HEADER_BYTES], position, segment.file)
        else:
            # A new directory, or a log that is being truncated fully, has no segment.
            while not (segments := view.segments).items:
                if not self.options.follow:
                    view.check_end()
                    return
                if not self._wait(None, 0):
                    return
            segment = segments.items[max(segments.floor(self.offset), 0)]
            if segment.base_offset > self.offset and not self.options.skip_deleted:
                # There is a gap, or the segment was deleted before the iterator first checked the guard.
                start = view.log_start_offset
                if start > self.offset:
                    raise out_of_range(self.offset, start, view.log_end_offset)
            position, least = self._start_in(segment)
        waits = self.options.follow or self._begins is not None
        takes_fresh = waits and not self.options.committed and not self.options.durable
        while True:
            if takes_fresh and previous is not None and (fresh := view.take_fresh(previous)) is not None:
                yield fresh.data, segment.path, position, least
                position, least = fresh.end, fresh.next_offset
                previous = ReadPiece(segment, *fresh.last_batch, position, None)
                continue
            # The order matters: if another segment follows, this one is sealed, and the size read below is final.
            limit = self._limit(0 if self.options.follow else None)  # a follower waits in `_wait`
            following = view.segments.after(segment.base_offset)
            is_last = following is None
            if following is not None and following.base_offset > limit:
                following = None
            end = self._end_in(segment, limit, sealed=following is not None)
            if position < end:
                aborted = self.aborted_in(segment, self.offset, limit)
                pieces = self._pieces_of(segment, position, end, previous, least, is_early=previous is early)
                for piece, data, at, sound, after in pieces:
                    if self.options.durable:
                        view.check_durable(limit)
                    if aborted is None:
                        yield data[:sound], segment.path, at, least
                    else:
                        for start, stop in aborted.kept(data[:sound]):
                            yield data[start:stop], segment.path, at + start, least
                    if sound < len(data):
                        raise misplaced(view, piece, data[sound:], at + sound, after)
                    previous, least = piece, after
                position = end
                continue
            if following is not None:
                segment, position, least = following, 0, max(least, following.base_offset)
                continue
            if not self.options.follow:
                view.check_end()
                if is_last and least < promised and position == view.readable_bytes(segment):
                    raise CorruptRecordError(
                        f"the batches end at offset {least}, and those of the log at {promised}",
                        path=segment.path,
                        position=position,
                    )
            if previous is not None:
                previous = piece = ReadPiece(previous.segment, previous.position, previous.header, previous.end, None)
            if not self.options.follow:
                if previous is not None and previous.segment is segment:
                    self._ended = Place(segment, position, least, previous)
                return
            if not self._wait(segment, position, least if takes_fresh else -1):
                return

    def _limit(self, timeout: float | None) -> int:
        """Return the offset at which reading stops for now; wait at most `timeout` seconds for a truncation to end."""
        limit = self.view.durable_end_offset if self.options.durable else MAX_OFFSET
        return min(limit, self.view.decided_end_offset(timeout)) if self.options.committed else limit

    def aborted_in(self, segment: Segment, start: int, limit: int) -> AbortedFilter | None:
        """Return a filter for the aborted transactions in `[start, limit)` of a segment.

        Returns None if there are none, or if the reader reads uncommitted records.
        """
        if not self.options.committed:
            return None
        following = self.view.segments.after(segment.base_offset)
        if following is not None:
            limit = min(limit, following.base_offset)
        aborted = self.view.aborted_between(max(start, segment.base_offset), limit)
        if not aborted:
            return None
        return AbortedFilter((txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted)

    def _pieces_of(
        self, segment: Segment, position: int, end: int, previous: ReadPiece | None, least: int, *, is_early: bool
    ) -> Iterator[tuple[ReadPiece, memoryview, int, int, int]]:
        """Read `[position, end)` of a segment in pieces; the first must follow `previous` and not start below `least`.

        Yields each piece with its bytes, its position, the number of bytes in batches that follow one another, and the
        least offset after these batches.
        """
        file = segment.file
        first_bytes = FIRST_BYTES if is_early else None
        for data, at in file.pieces(position, end, first_bytes=first_bytes):
            piece = ReadPiece(segment, at, b"", at + len(data), file)
            sound, last, least = chain(self.view, piece, data, least)
            piece = ReadPiece(segment, at + last, bytes(data[last : last + HEADER_BYTES]), piece.end, file)
            self.view.check_piece(previous, piece)
            if previous is None and self._continues is not None and self.view.has_overtaken(self._continues):
                # Records were cut after `recheck` and before the piece was read: `recheck` must check again.
                self.view.guard.version += 1
                raise CorruptRecordError("the file was cut under its reader", path=segment.path, position=at)
            yield piece, data, at, sound, least
            previous = piece

    def _start_in(self, segment: Segment) -> tuple[int, int]:
        """Return the position and least offset of a batch at or before the reader's offset, or of the end."""
        view = self.view
        while True:
            log_end, data_end = view.log_end_offset, view.data_end_offset
            end = view.readable_bytes(segment)
            if self.offset < log_end:
                return segment.start(self.offset, end)
            if view.log_end_offset == log_end:  # nothing was appended in between
                return end, data_end

    def _end_in(self, segment: Segment, limit: int, *, sealed: bool) -> int:
        """Return the position at which reading stops in a segment for now: after its whole batches below `limit`.

        If the recovery point lies inside a batch, the whole batch was synced: a reader that follows gets the batch when
        the recovery point has passed it; any other reader gets its records below `limit`. If the last stable offset
        lies inside a batch, the batch is undecided, and reading stops before it.
        """
        end = self.view.readable_bytes(segment)
        if not (self.options.durable or self.options.committed) or sealed:
            return end
        if limit <= segment.base_offset:
            return 0
        place = segment.find_batch(limit, end, most=offset_limit(self.view, segment))
        if place is None:
            return end
        undecided = self.options.committed and (not self.options.durable or self.view.stable_end_offset <= limit)
        divided = place.base_offset < limit and not self.options.follow and not undecided
        return place.position + place.size_bytes if divided else place.position

    def _wait(self, segment: Segment | None, position: int, least: int = -1) -> bool:
        """Wait for bytes after `position` or the next segment (None: any segment); return False after the timeout.

        `least` is the least offset behind `position`, -1 if the reader may not be given all that a look finds.
        """
        deadline = None if self.options.timeout is None else time.monotonic() + self.options.timeout
        view = self.view
        while True:
            view.check_end()
            end_offset = view.durable_end_offset if self.options.durable else view.log_end_offset
            if segment is None:
                if view.segments.items:
                    return True
            elif least != end_offset:
                limit = self._limit(_left(deadline))
                following = view.segments.after(segment.base_offset)
                if following is not None and following.base_offset <= limit:
                    return True
                if self._end_in(segment, limit, sealed=False) > position:
                    return True
            left = _left(deadline)
            if left is not None and left <= 0:
                return False
            if view.wait(end_offset, left, durable=self.options.durable) and view.has_fresh:
                return True

    def recheck(self, position: ReaderPosition, error: CorruptRecordError | None) -> LogReader | None:
        """Return a reader with which an iterator continues at `position`; raise if it cannot continue.

        Called if the log has changed, or with the `error` that unsound bytes raised.
        """
        view = self.view
        if error is not None:
            view.refresh()
            if view.guard.version == position.seen_version and not view.is_end_of_log(error):
                if "kstore repair" not in error.reason:
                    error.advice = "; see `kstore repair`"
                raise error
        ended = self._ended
        is_same = error is None and view.guard.version == position.seen_version
        if is_same and ended is not None and ended.least == position.next_offset:
            following = LogReader(view, position.next_offset, self.end_offset, self.options)
            following.owner, following._begins = self.owner, ended
            return following
        start, end, is_overtaken = steadily(_marks_and_overtaken, view, position, view=view)
        next_offset = position.next_offset
        if self.options.skip_deleted and next_offset < start <= end:
            next_offset = start
        elif is_overtaken or not start <= next_offset <= end:
            raise out_of_range(next_offset, start, end)
        following = LogReader(view, next_offset, self.end_offset, self.options)
        following.owner = self.owner
        following._continues = position._replace(next_offset=next_offset)
        return following


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def _marks_and_overtaken(view: View, position: ReaderPosition) -> tuple[int, int, bool]:
    start, end = view.log_start_offset, view.log_end_offset
    return start, end, view.has_overtaken(position)


def open_reader(view: View, options: ReadOptions, owner: object = None) -> LogReader:
    """Make a reader that starts at the offset or time in `options`, or else at the log start; check the bounds.

    Unless it follows, the reader ends at most where the log, or its durable or committed part, ends now. With
    `skip_deleted` an offset below the log start becomes the log start. The reader keeps the `owner` alive.
    """
    offset = options.offset
    if options.start_timestamp is not None:
        first = first_at(view, options.start_timestamp)
        offset = view.log_end_offset if first is None else first.offset
    view.refresh()
    start = view.log_start_offset
    if offset is not None and (offset >= start or not options.skip_deleted):
        start = offset
    check_offset(view, start)
    log_end = view.durable_end_offset if options.durable else view.log_end_offset
    end_offset = options.end_offset
    if options.follow:
        end = MAX_OFFSET if end_offset is None else end_offset
    else:
        if options.committed:
            log_end = min(log_end, view.decided_end_offset())
        end = log_end if end_offset is None else min(end_offset, log_end)
        if options.end_timestamp is not None:
            end = end_before(view, options.end_timestamp, end)
    view.will_read(start, end)
    reader = LogReader(view, start, end, options)
    reader.owner = owner
    return reader


def end_before(view: View, timestamp: int, end_offset: int) -> int:
    """Return the offset of the first record at or after `timestamp`, at most `end_offset`."""
    first = first_at(view, timestamp)
    return end_offset if first is None else min(first.offset, end_offset)


def iterate_records(view: View, options: ReadOptions, owner: object) -> RecordIterator:
    """Iterate over records; see `Log.read`."""
    reader = open_reader(view, options, owner)
    return RecordIterator(
        reader,
        reader.offset,
        reader.end_offset,
        guard=view.guard,
        max_decompressed_bytes=view.max_decompressed_bytes,
    )


def read_one(view: View, offset: int, *, committed: bool, owner: object) -> Record | None:
    """Return the record at an offset, None if no record has it; see `Log.get`."""
    options = ReadOptions(offset=offset, end_offset=offset + 1, committed=committed)
    while True:
        version = view.guard.version
        records = iterate_records(view, options, owner)
        start, end = view.log_start_offset, view.log_end_offset
        if offset >= end >= start:
            raise out_of_range(offset, start, end)
        record = next(records, None)
        if record is not None or view.guard.version == version:
            return record


def iterate_batches(view: View, options: ReadOptions, owner: object) -> BatchIterator:
    """Iterate over batches; see `Log.read_batches`."""
    reader = open_reader(view, options, owner)
    return BatchIterator(
        reader,
        reader.offset,
        # If the range is empty, no batch is returned, even if one batch holds both offsets.
        reader.end_offset if reader.end_offset > reader.offset else 0,
        guard=view.guard,
        max_decompressed_bytes=view.max_decompressed_bytes,
    )
