"""`View`: a log as its readers see it, and the functions that all readers need.

A `View` is an ordered list of segments with a start and an end: the log's `Writer`, or a `ReadOnlyView` in another
process. Reading takes no lock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, islice, takewhile
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, TypeVarTuple

from kstore import _core
from kstore._core import ReaderPosition
from kstore.base.numbers import LONG_MAX
from kstore.codec import header
from kstore.codec._batches import chained
from kstore.errors import CorruptRecordError, KStoreError, OffsetOutOfRangeError, StorageError
from kstore.files.log_file import LogFile
from kstore.log.segments.segment import Segment
from kstore.types import SegmentInfo

if TYPE_CHECKING:
    from kstore.files.txnindex import AbortedTxn
    from kstore.log.reading._point_reads import PointReads
    from kstore.log.segments.producer_state import ProducerInfo

MAX_OFFSET = LONG_MAX
OFFSET_BYTES = header.BASE_OFFSET.end
HEADER_BYTES = header.UP_TO_CRC_BYTES
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SegmentList:
    """The segments of a log in order. Immutable except for `maxima`, so a reader needs no lock.

    `maxima` holds the results of searches by time: the greatest timestamp of the first segment, of the first two, and
    so on. It never includes the last segment, to which records may be appended. It is replaced as a whole.
    """

    __slots__ = ("bases", "items", "maxima")

    def __init__(self, items: list[Segment]) -> None:
        self.items = tuple(items)
        self.bases = tuple(segment.base_offset for segment in items)
        self.maxima = array("q")

    def ending_in(self, segment: Segment, *, replaces: bool = False) -> SegmentList:
        """Return a list with one more segment; if `replaces`, with the segment in place of the last one.

        Copies the tuples instead of building them again, because a log may have very many segments.
        """
        made = SegmentList([])
        end = len(self.items) - replaces
        made.items = (*self.items[:end], segment)
        made.bases = (*self.bases[:end], segment.base_offset)
        made.maxima = self.maxima
        return made

    def note_maxima(self, noted: array[int], found: list[int]) -> None:
        """Set `maxima` to `noted`, its value at the start of a search, extended by the maxima of further segments."""
        so_far = accumulate(found, max, initial=noted[-1] if noted else found[0])
        self.maxima = noted + array("q", islice(so_far, 1, None))

    def keep_maxima(self, earlier: SegmentList) -> None:
        """Copy the maxima of the segments with which both lists start."""
        if earlier.maxima:
            pairs = zip(self.items[:-1], earlier.items, strict=False)
            self.maxima = earlier.maxima[: sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))]

    def floor(self, offset: int) -> int:
        """Return the number of the segment with the greatest base offset at or below `offset`, or -1."""
        return bisect_right(self.bases, offset) - 1

    def after(self, base_offset: int) -> Segment | None:
        """Return the first segment with a greater base offset, or None."""
        number = bisect_right(self.bases, base_offset)
        return self.items[number] if number < len(self.items) else None


class ReadPiece(NamedTuple):
    """Whole batches of a segment's file, up to the position `end`. `position` and `header` belong to the last batch.

    `file` is the open file that the batches were read from; the segment may have opened another file at the path since.
    `file` is None if the reader has waited since, because a waiting reader keeps no file open.
    """

    segment: Segment
    position: int
    header: bytes
    end: int
    file: LogFile | None


class FreshPiece(NamedTuple):
    """The batches that a look has found behind another one."""

    segment: Segment
    behind: tuple[int, bytes]  # position and header of the batch before
    data: memoryview
    last_batch: tuple[int, bytes]
    end: int
    next_offset: int
    read_at: float  # a time of `time.monotonic`


class View(Protocol):
    """A log as its readers see it."""

    is_own: bool  # no other process changes the log; each close and each removal of records changes the guard's version
    guard: _core.Guard
    points: PointReads
    max_decompressed_bytes: int | None  # the limit for one batch; None: compression.MAX_DECOMPRESSED_BYTES

    @property
    def segments(self) -> SegmentList: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def data_end_offset(self) -> int:
        """One past the last batch; below the log end after a truncation inside a batch (SEMANTICS 11.4)."""

    @property
    def stable_end_offset(self) -> int:
        """The last stable offset (SEMANTICS 0.2); the log start during a truncation."""

    def decided_end_offset(self, timeout: float | None = None) -> int:
        """Return the last stable offset; wait while another thread truncates the log.

        After `timeout` seconds, return the log start.
        """

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that reach into `[start_offset, end_offset)`, by ends (SEMANTICS 4.11)."""

    def open_transactions(self) -> list[tuple[int, int]]:
        """Return (first offset, producer id) of each open transaction."""

    def producer_states(self) -> list[ProducerInfo]:
        """Return the producers in the order of their ids (SEMANTICS 9)."""

    @property
    def durable_end_offset(self) -> int:
        """The end of the records that survive a crash of the machine: the recovery point, at most the log end."""

    def readable_bytes(self, segment: Segment) -> int:
        """Return the bytes of whole, published batches in the segment's file."""

    def maximum(self, segment: Segment) -> tuple[int, int]:
        """Return the segment's greatest timestamp and its offset."""

    def refresh(self) -> None:
        """Read changes from the disk, if another process may have made some."""

    def check_end(self) -> None:
        """Raise the fault at which the log ends, if there is one."""

    def is_end_of_log(self, error: CorruptRecordError) -> bool:
        """Read the bytes at a fault again and return whether the log now ends before the fault."""

    def check_piece(self, previous: ReadPiece | None, piece: ReadPiece) -> None:
        """Raise `CorruptRecordError` unless both pieces are of one state of the log."""

    @property
    def has_fresh(self) -> bool:
        """Whether `take_fresh` may return batches."""

    def take_fresh(self, previous: ReadPiece) -> FreshPiece | None:
        """Return the batches behind `previous` if a look has just read them, once; else None."""

    def will_read(self, start_offset: int, end_offset: int) -> None:
        """Prepare for a read of `[start_offset, end_offset)`."""

    def check_durable(self, offset: int) -> None:
        """Raise `CorruptRecordError` if a truncation has set the recovery point below `offset`."""

    def wait(self, offset: int, timeout: float | None, *, durable: bool = False) -> bool:
        """Wait until the log (its durable part if `durable`) ends above `offset`; return False after the timeout."""

    def has_overtaken(self, position: ReaderPosition) -> bool:
        """Return whether a reader's records were removed from the log; raise `LogClosedError` if the log is closed."""

    def may_have_cut(self, offset: int, seen_version: int) -> bool:
        """Return whether a truncation since a version of the guard may have cut records below `offset`."""


def check_offset(view: View, offset: int) -> None:
    """Raise `OffsetOutOfRangeError` for an offset below the log start or above the log end (SEMANTICS 4.3)."""
    while True:
        start, end = view.log_start_offset, view.log_end_offset
        if start <= offset <= end:
            return
        if start <= end:  # otherwise a truncation came between the two reads
            raise out_of_range(offset, start, end)


def out_of_range(offset: int, start: int, end: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"offset {offset} is not in the log, which starts at {start} and ends at {end}",
        log_start_offset=start,
        log_end_offset=end,
    )


def offset_limit(view: View, segment: Segment) -> int:
    """Return an offset above all offsets of a segment; the caller must have read the segment's size before."""
    following = view.segments.after(segment.base_offset)
    return view.log_end_offset if following is None else following.base_offset


def chain(view: View, piece: ReadPiece, data: memoryview, least: int) -> tuple[int, int, int]:
    """Return how far the batches of a piece follow one another, as `chained` does; none may start below `least`."""
    segment, behind = piece.segment, piece.end
    offset = b""
    if piece.file is not None and behind < view.readable_bytes(segment):
        offset = piece.file.read(behind, OFFSET_BYTES)  # a batch after a gap must end below the next batch
    following = header.BASE_OFFSET.of(offset) if len(offset) == OFFSET_BYTES else MAX_OFFSET
    return chained(data, least, offset_limit(view, segment), following)


def misplaced(view: View, piece: ReadPiece, data: memoryview, position: int, least: int) -> CorruptRecordError:
    """Return the error for a batch whose offsets do not lie between the offsets of its neighbours.

    If the CRC of the batch is wrong, too, raises the `CorruptRecordError` for that.
    """
    size = header.size_of(data)
    [batch] = _core.decode_batches(data[:size], path=piece.segment.path, position=position)
    reason = f"a batch with offsets {_own_base(batch)} to {batch.last_offset}"
    most = offset_limit(view, piece.segment) - 1
    if _own_base(batch) < least or batch.last_offset > most or batch.last_offset < _own_base(batch):
        reason += f", where offsets from {least} to {most} are possible"
    else:
        reason += f", behind a gap from {least} on, and the next batch begins below its end"
    return CorruptRecordError(reason, path=piece.segment.path, position=position)


def _own_base(batch: _core.RecordBatch) -> int:
    return batch.base_offset if batch.magic == 2 else batch.last_offset


_BY_CHANGES: tuple[type[KStoreError], ...] = (CorruptRecordError, StorageError)


def steadily(
    look: Callable[[*Ts], T], *arguments: *Ts, view: View, errors: tuple[type[KStoreError], ...] = _BY_CHANGES
) -> T:
    """Return `look(*arguments)`; call it again if the log changed during the call.

    A change can cut or rename files; `errors` are the errors that it can cause.
    """
    while True:
        view.refresh()
        version = view.guard.version
        try:
            answer = look(*arguments)
        except errors:
            view.refresh()
            if view.guard.version == version:
                raise
            continue
        view.refresh()
        if view.guard.version == version:
            return answer


def describe_all(view: View) -> tuple[SegmentInfo, ...]:
    segments = view.segments  # the same list for the whole call
    items = segments.items
    ends = [*segments.bases[1:], view.log_end_offset][: len(items)]  # a new directory has no segments
    return tuple(
        describe(view, segment, end, is_active=segment is items[-1]) for segment, end in zip(items, ends, strict=True)
    )


def describe(view: View, segment: Segment, next_offset: int, *, is_active: bool) -> SegmentInfo:
    """Describe a segment that ends before `next_offset`."""
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
