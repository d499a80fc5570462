"""Fetches raw batches, and finds a log's greatest timestamp. If the log changes during the read, both read again."""

from __future__ import annotations

from errno import EIO
from operator import itemgetter
from typing import TYPE_CHECKING

from kstore.codec._batches import chained
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files.log_file import MAX_LOG_BYTES, LogFile
from kstore.log.reading.view import MAX_OFFSET, SegmentList, View, check_offset, offset_limit, out_of_range, steadily
from kstore.log.segments import time_search
from kstore.log.segments.segment import Segment
from kstore.types import TimestampOffset

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class FetchResult:
    """Raw batches as a broker would send them (SEMANTICS 4.5), returned by `Log.fetch`.

    Example:
        >>> log = kstore.Log.open("data/orders-0")
        >>> info = log.append_many([(b"alice", b"3 apples"), (b"bob", b"1 pear")])
        >>> fetched = log.fetch(0, max_bytes=1 << 20)
        >>> fetched.offset, fetched.position, len(fetched.records)
        (0, 0, 97)

    Immutable and thread-safe; the bytes are a copy.
    """

    __slots__ = ("_file", "aborted_transactions", "offset", "position", "records", "segment_base_offset")

    records: memoryview
    """Whole batches; the last one may be cut off by `max_bytes`."""

    offset: int
    """The base offset of the first batch."""

    segment_base_offset: int
    """The base offset of the segment that holds the batches."""

    position: int
    """The position in the segment's `.log` file at which the first batch starts."""

    aborted_transactions: tuple[tuple[int, int], ...] | None
    """(producer id, first offset) of aborted transactions in the range; None unless only committed records are read."""

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

    def __repr__(self) -> str:
        aborted = "" if self.aborted_transactions is None else f" aborted_transactions={len(self.aborted_transactions)}"
        return f"<kstore.FetchResult offset={self.offset} size_bytes={self.records.nbytes}{aborted}>"

    def send_to(self, target: FileDescriptorLike) -> int:
        """Send the same bytes to a socket or descriptor with sendfile(2).

        Blocks until all bytes are sent.

        Args:
            target: A descriptor, or an object with a method `fileno`, such as a socket.

        Returns:
            The number of bytes sent.

        Raises:
            StorageError: If the bytes cannot be sent, or the file has been cut since the fetch.
            TypeError: If the target is not a descriptor and has no `fileno`.

        Example:
            >>> with open("batches", "wb") as file:
            ...     print(fetched.send_to(file))
            97
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


def fetch(view: View, offset: int, max_bytes: int, *, min_one_message: bool, committed: bool) -> FetchResult:
    """Read raw batches of one segment, starting with the batch that holds `offset` (SEMANTICS 4.1 to 4.9)."""
    if max_bytes < 0:
        raise ValueError(f"max_bytes is {max_bytes}; it must not be negative")
    found = None
    if view.is_own and not committed and 0 <= offset <= MAX_OFFSET:
        found = view.points.fetch(view, offset, min(max_bytes, MAX_LOG_BYTES), min_one_message)
    if found is not None:
        data, segment, file, position, base_offset, size_bytes, most = found
        data = _following(data, size_bytes, most)[0]
        return FetchResult(memoryview(data), base_offset, segment.base_offset, position, None, file)
    return steadily(_fetch, view, offset, max_bytes, min_one_message, committed, view=view)


def _fetch(view: View, offset: int, max_bytes: int, min_one_message: bool, committed: bool) -> FetchResult:
    check_offset(view, offset)
    aborted: tuple[tuple[int, int], ...] | None = () if committed else None
    stable = view.decided_end_offset() if committed else MAX_OFFSET
    end_offset = view.log_end_offset
    segments = view.segments
    if segments.items and offset < segments.bases[0]:
        raise out_of_range(offset, view.log_start_offset, end_offset)  # no segment has the offset (SEMANTICS 4.3)
    if offset < end_offset:
        for segment in segments.items[max(segments.floor(offset), 0) :]:
            end = view.readable_bytes(segment)
            most = offset_limit(view, segment)
            place = segment.find_batch(offset, end, most=most)
            if place is None:
                continue
            if place.base_offset >= stable or offset >= stable:  # at or above the last stable offset (SEMANTICS 4.4)
                empty = memoryview(b"")
                return FetchResult(empty, place.base_offset, segment.base_offset, place.position, aborted)
            undecided = segment.find_batch(stable, end, most=most) if stable < end_offset else None
            last = end if undecided is None else undecided.position
            most_bytes = max(max_bytes, place.size_bytes) if min_one_message else max_bytes
            file = segment.file
            data = file.read(place.position, min(last - place.position, most_bytes))
            data, least = _following(data, place.size_bytes, most)
            if committed:
                aborted = _aborted_for(view, segments, segment, offset, place.position + len(data), least)
            return FetchResult(memoryview(data), place.base_offset, segment.base_offset, place.position, aborted, file)
    view.check_end()
    if not segments.items:
        return FetchResult(memoryview(b""), end_offset, end_offset, 0, aborted)
    newest = segments.items[-1]
    return FetchResult(memoryview(b""), end_offset, newest.base_offset, view.readable_bytes(newest), aborted)


def _following(data: bytes, first_bytes: int, most: int) -> tuple[bytes, int]:
    """Return the batches that follow one another from the first on, and one past their last offset.

    The first batch is known to be in its place. If a later one does not follow, the next fetch raises.
    """
    sound, _, least = chained(data, -MAX_OFFSET, most)
    return data[: max(sound, min(first_bytes, len(data)))], least


def _aborted_for(
    view: View, segments: SegmentList, segment: Segment, offset: int, position: int, next_offset: int
) -> tuple[tuple[int, int], ...]:
    """Return at least the aborted transactions with batches between `offset` and `position` (SEMANTICS 4.11).

    The last whole batch before `position` ends before `next_offset`; an index entry with a lower offset is wrong and
    not used.
    """
    upper = segment.offset_index.offset_from(position)
    if upper is not None and upper < next_offset:
        upper = None
    if upper is None:
        following = segments.after(segment.base_offset)
        upper = view.log_end_offset if following is None else following.base_offset
    return tuple((txn.producer_id, txn.first_offset) for txn in view.aborted_between(offset, upper))


def max_timestamp(view: View) -> TimestampOffset | None:
    """Find the greatest timestamp and the first record that has it (SEMANTICS 5.4); None if there is no timestamp."""
    return steadily(_max_timestamp, view, view=view)


def _max_timestamp(view: View) -> TimestampOffset | None:
    at_most = []
    for segment in view.segments.items:
        greatest = view.maximum(segment)[0]
        if segment.times_doubted:
            greatest = time_search.read_maximum(segment, view.readable_bytes(segment))[0]
        if greatest >= 0:
            at_most.append((greatest, segment))
    view.check_end()
    at_most.sort(key=itemgetter(0), reverse=True)
    latest: TimestampOffset | None = None
    for greatest, segment in at_most:
        if latest is not None and greatest < latest.timestamp:
            break
        if latest is not None and greatest == latest.timestamp and segment.base_offset > latest.offset:
            continue
        record = time_search.latest_record(segment, greatest, view.readable_bytes(segment), view.max_decompressed_bytes)
        if record is None:
            continue
        timestamp, offset, _ = record
        if latest is None or (timestamp, -offset) > (latest.timestamp, -latest.offset):
            latest = TimestampOffset(timestamp, offset)
    return latest
