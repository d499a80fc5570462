"""The rows of the page of a directory: one for each partition that the page shows, whose log is opened for it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from kstore.disk import fs
from kstore.errors import CorruptRecordError, KStoreError
from kstore.log.log import Log
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.view import steadily
from kstore.store.coordinator.group_lag import offsets_behind
from kstore.ui.viewed_store import Groups, Place, ViewedStore

__all__ = [
    "Asked",
    "DirectoryRows",
    "Paged",
    "PartitionRow",
    "directory_rows",
    "lags_of",
    "look_at",
    "row_of",
    "version_of",
]

PAGE_ROWS = 50


class Paged(NamedTuple):
    """A part `[first, end)` of a list of `rows` rows that one page shows: page `number` of `last`."""

    rows: int
    number: int
    last: int
    first: int
    end: int

    @classmethod
    def of(cls, rows: int, number: int, page_rows: int = PAGE_ROWS) -> Paged:
        """Choose page `number`, the first being 1; the last page stands for those after it."""
        last = max((rows + page_rows - 1) // page_rows, 1)
        number = min(number, last)
        first = (number - 1) * page_rows
        return cls(rows, number, last, first, min(first + page_rows, rows))


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """What one line shows of a partition. Immutable, so threads may share it."""

    place: Place
    start: int = 0
    end: int = 0
    size_bytes: int = 0
    segments: int = 0
    newest_ms: int | None = None
    """The greatest timestamp of the newest records; None if there is none."""
    rate: float | None = None
    """Records for each second, by the timestamps of the newest segment that has two of them; None if none has."""
    fault: str | None = None
    """Why the log ends before what was flushed; None if it does not."""
    error: str | None = None
    """Why the log cannot be read; the other values are not known then."""

    @property
    def records(self) -> int:
        """The offsets from the log start to the log end."""
        return self.end - self.start


class Asked(NamedTuple):
    """Which rows of a directory are asked for."""

    topic: str
    """A part of the topic's name."""
    order: str
    """"name" or "size"."""
    page: int


class DirectoryRows(NamedTuple):
    """One page of the rows of a directory."""

    paged: Paged
    rows: list[tuple[PartitionRow, list[tuple[str, int]] | None]]
    """Each partition, and the lags of groups in it; None if the lags are not known yet."""
    topics: int
    total_bytes: int | None
    """The bytes of all partitions whose topics match; None if they are not known yet."""

    @property
    def version(self) -> str:
        """A text that changes if other rows belong on the page."""
        names = ",".join(f"{row.place}{'!' if row.error or row.fault else ''}" for row, _ in self.rows)
        return blake2b(f"{self.paged.rows} {names}".encode(), digest_size=8).hexdigest()


def directory_rows(viewed: ViewedStore, asked: Asked) -> DirectoryRows:
    """Return one page of rows. Opens the logs of these rows only."""
    places = viewed.places(asked.topic)
    sizes = viewed.sizes()
    total = None
    if sizes is not None:
        total = sum(sizes.by_place.get(place, 0) for place in places)
        if asked.order == "size":
            places.sort(key=lambda place: (-sizes.by_place.get(place, 0), place))
    paged = Paged.of(len(places), asked.page)
    groups = viewed.groups()
    rows = [row_of(viewed, place) for place in places[paged.first : paged.end]]
    topics = len({place.topic for place in places})
    return DirectoryRows(paged, [(row, lags_of(groups, row)) for row in rows], topics, total)


def row_of(viewed: ViewedStore, place: Place) -> PartitionRow:
    """Return the row of a partition; one that cannot be read has an error in its row."""
    try:
        return look_at(viewed.log(place), viewed.view(place), place)
    except KStoreError as error:
        return PartitionRow(place, error=str(error))


def version_of(row: PartitionRow) -> str:
    """Return a text that changes if the log does."""
    return version_text(row.start, row.end, row.segments, row.size_bytes)


def version_text(start: int, end: int, segments: int, size_bytes: int) -> str:
    """Return `version_of` a log with these values."""
    return f"{start}-{end}-{segments}-{size_bytes}"


def look_at(log: Log, view: ReadOnlyView, place: Place) -> PartitionRow:
    """Return the row of an open log. Raises the errors of a read."""

    def look() -> PartitionRow:
        items = view.segments.items
        return PartitionRow(
            place,
            view.log_start_offset,
            view.log_end_offset,
            sum(map(view.readable_bytes, items)),
            len(items),
            next((newest for each in items[:-3:-1] if (newest := view.maximum(each)[0]) >= 0), None),
            None if fs.is_mounted(log.path) else rate_of(view),
            fault_of(view),
        )

    return steadily(look, view=view)


def fault_of(view: ReadOnlyView) -> str | None:
    """Return why a log ends before what was flushed; None if it does not."""
    try:
        view.check_end()
    except CorruptRecordError as error:
        return f"{type(error).__name__}: {error}"
    return None


def rate_of(view: ReadOnlyView) -> float | None:
    """Return records for each second, by the timestamps of one of the two newest segments."""
    ends = (view.log_end_offset, *view.segments.bases[:-3:-1])
    for segment, end in zip(view.segments.items[:-3:-1], ends, strict=False):
        first, (last, _) = segment.first_timestamp(view.readable_bytes(segment)), view.maximum(segment)
        if first is not None and 0 <= first < last:
            return (end - segment.base_offset - 1) * 1000 / (last - first)
    return None


def lags_of(groups: Groups | None, row: PartitionRow) -> list[tuple[str, int]] | None:
    """Return the lag of each group in a partition, the greatest first; None if positions are not known yet.

    A consumer group without a position in this partition counts if it has one in another partition of the topic.
    """
    if groups is None:
        return None
    here = groups.of(row.place)
    lags = [(each.group, offsets_behind(row.end, each.offset, row.start)) for each in here]
    missing = groups.without_position(row.place)
    lags += [(group, offsets_behind(row.end, None, row.start)) for group in missing]
    return sorted(lags, key=lambda lag: (-lag[1], lag[0]))
