"""How a log is read: by offset, by timestamp, raw, and while it grows.

Everything here works on a `View`: an ordered list of segments with a start and an end, as the log's writer keeps it
(writer.py) or as another process pieces it together (readonly.py). Reading takes no lock. An iterator looks at its
view's guard before each record, so that it notices at once when its position is gone (API.md 1).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from errno import EIO
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, TypeVarTuple

from kstore import _core, fs
from kstore._producers import AbortedFilter
from kstore._scan import last_batch
from kstore.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from kstore.logfile import LogFile
from kstore.segment import Segment, SegmentInfo

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

    from kstore.txnindex import AbortedTxn

MAX_OFFSET = 2**63 - 1
HEADER_BYTES = 21  # of a batch of any format: offset, size, epoch or CRC, magic, CRC
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SegmentList:
    """The segments of a log in order, never changed once made: a reader takes it and need not lock."""

    __slots__ = ("bases", "items")

    def __init__(self, items: list[Segment]) -> None:
        self.items = tuple(items)
        self.bases = tuple(segment.base_offset for segment in items)

    def floor(self, offset: int) -> int:
        """Return the number of the segment with the greatest base offset at or below `offset`, -1 for none."""
        return bisect_right(self.bases, offset) - 1

    def after(self, base_offset: int) -> Segment | None:
        """Return the first segment with a greater base offset."""
        number = bisect_right(self.bases, base_offset)
        return self.items[number] if number < len(self.items) else None


class Piece(NamedTuple):
    """Whole batches of a segment's file, up to the position `end`; `position` and `header` are the last one's.

    `file` is the one that they came from: the segment may have closed it since, and opened what is at the path now.
    None where the reader has waited since, which keeps no file open.
    """

    segment: Segment
    position: int
    header: bytes
    end: int
    file: LogFile | None


class View(Protocol):
    """A log as its readers see it."""

    guard: _core.Guard
    max_decompressed_bytes: int | None  # what a batch may become; None: compression.MAX_DECOMPRESSED_BYTES

    @property
    def segments(self) -> SegmentList: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def stable_end_offset(self) -> int:
        """The last stable offset: nothing below it is undecided (SEMANTICS.md 0.2)."""

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that reach into `[start_offset, end_offset)`, in the order of their ends (4.11)."""

    @property
    def durable_end_offset(self) -> int:
        """The end of what survives the machine: the recovery point, which never lies beyond the log's end."""

    def readable_bytes(self, segment: Segment) -> int:
        """Bytes of whole, published batches in the segment's file."""

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """The segment's greatest timestamp and the offset that goes with it."""

    def refresh(self) -> None:
        """Look at what has changed on the disk, if anybody else may change it."""

    def check_end(self) -> None:
        """Raise the fault that ends the log, if it is one."""

    def doubt(self, error: CorruptRecordError) -> bool:
        """Whether the log ends before this fault, now that it has been looked at again."""

    def check_piece(self, given: Piece | None, piece: Piece) -> None:
        """Raise `CorruptRecordError` unless `piece` follows `given` in one state of the log."""

    def check_durable(self, offset: int) -> None:
        """Raise `CorruptRecordError` if the recovery point has sunk below `offset`: then records have been cut."""

    def wait(self, offset: int, timeout: float | None, *, durable: bool = False) -> bool:
        """Wait until the log, or with `durable` its durable part, ends above `offset`; False when the time is up."""

    def overtaken(self, next_offset: int, seen_version: int, base_offset: int, crc: int) -> bool:
        """Whether what a reader has been given no longer stands; raises `LogClosedError` when the log is closed."""


class FetchResult:
    """Raw batches as a broker would send them (SEMANTICS.md 4.5).

    `records` holds whole batches, the last one perhaps cut off by `max_bytes`; `offset` is the base offset of the
    first, `segment_base_offset` and `position` say where it stands. The bytes are a copy and stay as they are.
    """

    __slots__ = ("_file", "aborted_transactions", "offset", "position", "records", "segment_base_offset")

    def __init__(
        self,
        records: memoryview,
        offset: int,
        segment_base_offset: int,
        position: int,
        aborted_transactions: tuple[tuple[int, int], ...] | None,
        file: LogFile | None = None,
    ) -> None:
        self.records = records
        self.offset = offset
        self.segment_base_offset = segment_base_offset
        self.position = position
        self.aborted_transactions = aborted_transactions
        self._file = file

    def send_to(self, target: FileDescriptorLike) -> int:
        """Hand the same bytes to a socket or descriptor with sendfile(2); the number of bytes sent.

        Blocks until all is sent. Raises `StorageError`, also when the file has been cut in the meantime.
        """
        if self._file is None:
            return 0
        if not isinstance(target, int) and not hasattr(target, "fileno"):
            raise TypeError(f"target must be a descriptor or have one, not {type(target).__name__}")
        fd = target if isinstance(target, int) else target.fileno()
        sent = 0
        while sent < len(self.records):
            count = fs.sendfile(fd, self._file.fd, self.position + sent, len(self.records) - sent)
            if count == 0:
                raise StorageError(EIO, f"the file ends {len(self.records) - sent} bytes early", self._file.path)
            sent += count
        return sent


def check_offset(view: View, offset: int) -> None:
    """Refuse an offset outside of `[log start, log end]` (4.3)."""
    while True:
        start, end = view.log_start_offset, view.log_end_offset
        if start <= offset <= end:
            return
        if start <= end:  # else a truncation came between the two looks
            raise out_of_range(offset, start, end)


def out_of_range(offset: int, start: int, end: int) -> OffsetOutOfRangeError:
    """Make the error that names what was asked and what there is."""
    return OffsetOutOfRangeError(
        f"offset {offset} is not in the log, which starts at {start} and ends at {end}",
        log_start_offset=start,
        log_end_offset=end,
    )


class Stretch:
    """A part of a log that is being read: what feeds the compiled iterators.

    Iterating gives (bytes, path, position) with whole batches, from the batch that holds `offset` on. `recheck` is
    what an iterator calls when the guard has moved: it raises, or answers with a stretch to go on with.
    """

    def __init__(
        self,
        view: View,
        offset: int,
        end_offset: int | None,
        follow: bool,
        timeout: float | None,
        durable: bool = False,
        skip: bool = False,
        committed: bool = False,
    ) -> None:
        self.view = view
        self.offset = offset
        self.end_offset = end_offset
        self.follow = follow
        self.timeout = timeout
        self.durable = durable
        self.committed = committed  # give nothing that is undecided or was aborted
        self.skip = skip  # what has gone below the log start, and go on from there
        self.owner: object = None  # whoever must live as long as this is read
        self.after: tuple[int, int, int, int] | None = None  # what `recheck` was told of what a reader has had before

    def __iter__(self) -> Iterator[tuple[memoryview, str, int]]:
        try:
            yield from self._pieces()
        except fs.MissingFileError as error:
            # Renamed away while we looked: the iterator asks `recheck`, which knows.
            raise CorruptRecordError(f"the file has gone: {error}", path=error.filename) from error

    def _pieces(self) -> Iterator[tuple[memoryview, str, int]]:
        view = self.view
        # A directory without a segment: one that has none yet, or a log that is being started anew.
        while not (segments := view.segments).items:
            if not self.follow or not self._wait(None, 0):
                return
        segment = segments.items[max(segments.floor(self.offset), 0)]
        if segment.base_offset > self.offset and not self.skip:
            # There is a gap, or the segment went before the iterator had first looked at the guard.
            start = view.log_start_offset
            if start > self.offset:
                raise out_of_range(self.offset, start, view.log_end_offset)
        position = self._position_in(segment)
        given: Piece | None = None
        while True:
            # In this order: a segment that has one after it is sealed, and its size is its last.
            limit = self._limit()
            following = view.segments.after(segment.base_offset)
            if following is not None and following.base_offset > limit:
                following = None
            end = self._end_in(segment, limit, sealed=following is not None)
            if position < end:
                aborted = self.aborted_in(segment, self.offset, limit)
                for piece, data, at in self._pieces_of(segment, position, end, given):
                    if self.durable:
                        view.check_durable(limit)
                    if aborted is None:
                        yield data, segment.path, at
                    else:
                        for start, stop in aborted.kept(data):
                            yield data[start:stop], segment.path, at + start
                    given = piece
                position = end
                continue
            if following is not None:
                segment, position = following, 0
                continue
            if not self.follow:
                view.check_end()
                return
            if given is not None:
                given = piece = given._replace(file=None)
            if not self._wait(segment, position):
                return

    def _limit(self) -> int:
        """The offset that reading may not reach for now."""
        limit = self.view.durable_end_offset if self.durable else MAX_OFFSET
        return min(limit, self.view.stable_end_offset) if self.committed else limit

    def aborted_in(self, segment: Segment, start: int, limit: int) -> AbortedFilter | None:
        """What of a segment, in `[start, limit)`, was aborted and is to be left out; None where nothing is.

        Whoever reads everything leaves nothing out.
        """
        if not self.committed:
            return None
        following = self.view.segments.after(segment.base_offset)
        if following is not None:
            limit = min(limit, following.base_offset)
        found = self.view.aborted_between(max(start, segment.base_offset), limit)
        if not found:
            return None
        return AbortedFilter((each.producer_id, each.first_offset, each.last_offset) for each in found)

    def _pieces_of(
        self, segment: Segment, position: int, end: int, given: Piece | None
    ) -> Iterator[tuple[Piece, memoryview, int]]:
        """Read `[position, end)` of a segment in pieces, of which the first is to follow `given`."""
        file = segment.file
        for data, at in file.pieces(position, end):
            last = last_batch(data)
            piece = Piece(segment, at + last, bytes(data[last : last + HEADER_BYTES]), at + len(data), file)
            self.view.check_piece(given, piece)
            if given is None and self.after is not None and self.view.overtaken(*self.after):
                # Since `recheck` looked and before the piece was read; it will look again.
                self.view.guard.version += 1
                raise CorruptRecordError("the file was cut under its reader", path=segment.path, position=at)
            yield piece, data, at
            given = piece

    def _position_in(self, segment: Segment) -> int:
        """A batch border at or before the batch that holds the offset: the end, for the log end."""
        end = self.view.readable_bytes(segment)
        return end if self.offset >= self.view.log_end_offset else segment.border(self.offset, end)

    def _end_in(self, segment: Segment, limit: int, *, sealed: bool) -> int:
        """Where reading stops in a segment for now: behind its whole batches below `limit`.

        A batch that `limit` divides was synced as a whole; whoever follows has it when the recovery point has passed
        it, others have its records below `limit`. One of which the log start is what is stable is undecided as a whole.
        """
        end = self.view.readable_bytes(segment)
        if not (self.durable or self.committed) or sealed:
            return end
        if limit <= segment.base_offset:
            return 0
        place = segment.find_batch(limit, end)
        if place is None:
            return end
        undecided = self.committed and (not self.durable or self.view.stable_end_offset <= limit)
        divided = place.base_offset < limit and not self.follow and not undecided
        return place.position + place.size_bytes if divided else place.position

    def _wait(self, segment: Segment | None, position: int) -> bool:
        """Wait for bytes after `position` or for a next segment (None: any segment); False when the time is up."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        view = self.view
        while True:
            end_offset = view.durable_end_offset if self.durable else view.log_end_offset
            if segment is None:
                if view.segments.items:
                    return True
            else:
                limit = self._limit()
                following = view.segments.after(segment.base_offset)
                if following is not None and following.base_offset <= limit:
                    return True
                if self._end_in(segment, limit, sealed=False) > position:
                    return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            view.wait(end_offset, left, durable=self.durable)

    def recheck(
        self, next_offset: int, seen_version: int, base_offset: int, crc: int, error: CorruptRecordError | None
    ) -> Stretch | None:
        """Answer an iterator that is about to hand out `next_offset`: go on (None), or go on with this; or raise."""
        view = self.view
        if error is not None:
            view.refresh()
            if view.guard.version == seen_version and not view.doubt(error):
                raise error
        start, end, overtaken = steadily(
            _marks_and_overtaken, view, next_offset, seen_version, base_offset, crc, view=view
        )
        if self.skip and next_offset < start <= end:
            next_offset = start
        elif overtaken or not start <= next_offset <= end:
            raise out_of_range(next_offset, start, end)
        following = Stretch(
            view, next_offset, self.end_offset, self.follow, self.timeout, self.durable, self.skip, self.committed
        )
        following.owner = self.owner
        following.after = (next_offset, seen_version, base_offset, crc)
        return following


def steadily(look: Callable[[*Ts], T], *arguments: *Ts, view: View) -> T:
    """Look, and again as long as the log was changing under the look: a file may be cut or renamed at any moment."""
    while True:
        view.refresh()
        version = view.guard.version
        try:
            found = look(*arguments)
        except (CorruptRecordError, StorageError):
            view.refresh()
            if view.guard.version == version:
                raise
            continue
        view.refresh()
        if view.guard.version == version:
            return found


def _marks_and_overtaken(
    view: View, next_offset: int, seen_version: int, base_offset: int, crc: int
) -> tuple[int, int, bool]:
    start, end = view.log_start_offset, view.log_end_offset
    return start, end, view.overtaken(next_offset, seen_version, base_offset, crc)


def describe(view: View, segment: Segment, next_offset: int, *, is_active: bool) -> SegmentInfo:
    """Say what there is to say of a segment that ends before `next_offset`."""
    size_bytes = view.readable_bytes(segment)
    first_timestamp = segment.first_timestamp(size_bytes) if size_bytes else None
    return SegmentInfo(
        base_offset=segment.base_offset,
        next_offset=next_offset,
        size_bytes=size_bytes,
        offset_index_entries=segment.offset_index.entries,
        time_index_entries=segment.time_index.entries,
        max_timestamp=view.maximum(segment)[0],
        first_timestamp=-1 if first_timestamp is None else first_timestamp,
        is_active=is_active,
        path=segment.path,
        roll_reason=segment.roll_reason,
    )


def stretch(
    view: View,
    offset: int | None,
    end_offset: int | None,
    follow: bool,
    timeout: float | None,
    durable: bool = False,
    skip: bool = False,
    committed: bool = False,
) -> tuple[Stretch, int, int]:
    """Make the stretch `[offset, end_offset)`: (stretch, first offset, end offset), bounds checked.

    With `skip` a lower offset than the log start is the log start, now and when the log start overtakes it.
    Without `end_offset` it ends where the log, or with `durable` its durable part, or with `committed` what is decided
    of it, ends now, or never when following.
    """
    view.refresh()
    start = view.log_start_offset if offset is None or (skip and offset < view.log_start_offset) else offset
    check_offset(view, start)
    log_end = view.durable_end_offset if durable else view.log_end_offset
    if committed and not follow:
        log_end = min(log_end, view.stable_end_offset)
    if follow:
        end = MAX_OFFSET if end_offset is None else end_offset
    else:
        end = log_end if end_offset is None else min(end_offset, log_end)
    return Stretch(view, start, end, follow, timeout, durable, skip, committed), start, end


def fetch(view: View, offset: int, max_bytes: int, *, min_one_message: bool, committed: bool) -> FetchResult:
    """Read raw batches from the one that holds `offset` on, of one segment at the most (4.1 to 4.9)."""
    if max_bytes < 0:
        raise ValueError(f"max_bytes is {max_bytes}; it must not be negative")
    return steadily(_fetch, view, offset, max_bytes, min_one_message, committed, view=view)


def _fetch(view: View, offset: int, max_bytes: int, min_one_message: bool, committed: bool) -> FetchResult:
    check_offset(view, offset)
    aborted: tuple[tuple[int, int], ...] | None = () if committed else None
    stable = view.stable_end_offset if committed else MAX_OFFSET
    end_offset = view.log_end_offset
    segments = view.segments
    if segments.items and offset < segments.bases[0]:
        raise out_of_range(offset, view.log_start_offset, end_offset)  # no segment to begin with (4.3)
    if offset < end_offset:
        for segment in segments.items[max(segments.floor(offset), 0) :]:
            end = view.readable_bytes(segment)
            place = segment.find_batch(offset, end)
            if place is None:
                continue
            if place.base_offset >= stable or offset >= stable:  # nothing that is decided (4.4)
                none = memoryview(b"")
                return FetchResult(none, place.base_offset, segment.base_offset, place.position, aborted)
            undecided = segment.find_batch(stable, end) if stable < end_offset else None
            last = end if undecided is None else undecided.position
            most = max(max_bytes, place.size_bytes) if min_one_message else max_bytes
            file = segment.file
            data = file.read(place.position, min(last - place.position, most))
            if committed:
                aborted = _aborted_for(view, segments, segment, offset, place.position + len(data))
            return FetchResult(memoryview(data), place.base_offset, segment.base_offset, place.position, aborted, file)
    if not segments.items:
        return FetchResult(memoryview(b""), end_offset, end_offset, 0, aborted)
    newest = segments.items[-1]
    return FetchResult(memoryview(b""), end_offset, newest.base_offset, view.readable_bytes(newest), aborted)


def _aborted_for(
    view: View, segments: SegmentList, segment: Segment, offset: int, position: int
) -> tuple[tuple[int, int], ...]:
    """The aborted transactions that a reader of bytes up to `position` needs to know, perhaps more (4.11)."""
    upper = segment.offset_index.offset_from(position)
    if upper is None:
        following = segments.after(segment.base_offset)
        upper = view.log_end_offset if following is None else following.base_offset
    return tuple((each.producer_id, each.first_offset) for each in view.aborted_between(offset, upper))


def offset_for_timestamp(view: View, timestamp: int) -> tuple[int, int] | None:
    """Find the lowest offset at or above the log start whose timestamp is at or after `timestamp` (5.5).

    Answers (timestamp, offset). Unlike Kafka's, the search goes on behind the first candidate segment (5.6).
    """
    return steadily(_offset_for_timestamp, view, timestamp, view=view)


def _offset_for_timestamp(view: View, timestamp: int) -> tuple[int, int] | None:
    start = view.log_start_offset
    segments = view.segments
    for segment in segments.items[max(segments.floor(start), 0) :]:
        largest = view.maximum(segment)[0]
        if largest < 0 and view.readable_bytes(segment):
            largest = segment.largest_timestamp()
        if largest >= timestamp:
            found = segment.find_timestamp(timestamp, start, view.readable_bytes(segment), view.max_decompressed_bytes)
            if found is not None:
                return found[0], found[1]
    return None


def max_timestamp(view: View) -> tuple[int, int] | None:
    """Find the greatest timestamp and the first record that has it (5.4); None without timestamps."""
    return steadily(_max_timestamp, view, view=view)


def _max_timestamp(view: View) -> tuple[int, int] | None:
    best: Segment | None = None
    most = -1
    for segment in view.segments.items:
        if view.maximum(segment)[0] > most:
            best, most = segment, view.maximum(segment)[0]
    if best is None:
        return None
    found = best.find_timestamp(most, best.base_offset, view.readable_bytes(best), view.max_decompressed_bytes)
    return None if found is None else (found[0], found[1])
