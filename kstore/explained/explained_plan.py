"""The facts of `kstore.plan`: what settings do under a load. Times are milliseconds from the start of the plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.base import optional

if TYPE_CHECKING:
    from collections.abc import Mapping

_html = optional.Late("kstore.explained.plan_html")  # it imports this module

__all__ = ["Load", "Plan", "PlannedSegment", "Range"]


class Range(NamedTuple):
    """The least, the typical (median) and the greatest of some values."""

    least: int
    typical: int
    most: int


@dataclass(frozen=True, slots=True)
class Load:
    """What is appended to one partition.

    Immutable, so threads may share it.
    """

    rate: float
    """Records for each second, while the load is not idle."""
    record_bytes: float
    """Bytes that a record takes in its batch, after compression."""
    batch_records: int = 1
    """Records of one batch."""
    skew_ms: int = 0
    """Timestamps are up to this much behind the clock of the append, evenly spread."""
    idle: tuple[tuple[int, int], ...] = ()
    """The parts of each day without appends, as (first, end) in milliseconds of the day."""
    keys: int | None = None
    """How many different keys the records have, each as often; needed if `cleanup.policy` has compact."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment of a plan.

    Immutable, so threads may share it.
    """

    base_offset: int
    """Its first offset."""
    next_offset: int
    """One past its last offset."""
    size_bytes: int
    """Bytes of its `.log` file."""
    first_ms: int
    """When its first batch is appended."""
    last_ms: int
    """When its last batch is appended."""
    roll_reason: str | None
    """Why the log rolled to the next segment; None if it is active at the end."""
    deleted_ms: int | None
    """When a check deletes it; None if it is there at the end."""
    delete_reason: str | None
    """"time" or "size"; None if it is there at the end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What settings do under a load: segments, disk, lifetimes, and what to change.

    `str()` gives text, `to_dict()` what JSON can hold, `to_arrow()` a table of the segments; notebooks show a picture.
    Immutable, so threads may share it.
    """

    settings: Mapping[str, Any]
    """The settings that decide, under Kafka's names."""
    given: frozenset[str]
    """The names of those that were given."""
    load: Load
    """The load."""
    duration_ms: int
    """The time that was planned."""
    steady_ms: int | None
    """From when on everything repeats; later segments are counted, and not listed. None if it does not within the plan.
    """
    segments: tuple[PlannedSegment, ...]
    """The segments up to `steady_ms`, and some more."""
    segment_count: int
    """All segments of the planned time, as a count."""
    roll_reasons: Mapping[str, int]
    """How many rolls there were for each reason."""
    disk: tuple[tuple[int, int], ...]
    """The size of the log over time: (time, bytes on the disk)."""
    disk_bytes: Range
    """The space on the disk once the log is steady, or of the whole time: logs, indexes, deleted files."""
    index_bytes: Range
    """The part of it that indexes take."""
    life_ms: Range | None
    """How long a record stays readable; None if none is deleted."""
    freed_ms: Range | None
    """How long its bytes stay on the disk; None if none is deleted."""
    live_segments: Range
    """Segments that exist at the same time."""
    files: int
    """Most files at the same time."""
    descriptors: int
    """Most file descriptors that an open log holds for them at the same time."""
    first_acting: str | None
    """The setting that rolls or deletes first; None if none acts."""
    advice: tuple[str, ...]
    """What to change, as sentences with numbers."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dictionaries, lists, texts and numbers, as `json.dumps` takes them."""
        return {**asdict(self), "given": sorted(self.given), "settings": dict(self.settings)}

    def _repr_html_(self) -> str:
        """Return the picture that a notebook shows."""
        return str(_html.plan_fragment(self))
