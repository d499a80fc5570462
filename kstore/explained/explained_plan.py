"""The facts of `kstore.plan`: what settings do under a load. Times are milliseconds from the start of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.base import optional

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

_html = optional.Late("kstore.explained.plan_html")  # it imports this module
_text = optional.Late("kstore.explained.plan_text")  # and so does this

__all__ = ["Load", "Plan", "PlannedRange", "PlannedSegment"]


class PlannedRange(NamedTuple):
    """The least, the typical (median) and the greatest of some values."""

    least: int
    """The least."""
    typical: int
    """The median."""
    most: int
    """The greatest."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is appended to one partition.

    Immutable, so threads may share it.
    """

    rate: float
    """Records for each second, while the load is not idle."""
    record_bytes: float
    """Bytes of the log for each record, after compression: its share of the batch's header included."""
    batch_records: int = 1
    """Records of one batch."""
    skew_ms: int = 0
    """The newest timestamp of a batch is up to this much behind the clock of its append, evenly spread."""
    idle: tuple[tuple[int, int], ...] = ()
    """The parts of each day without appends, as (first, end) in milliseconds of the day in UTC."""
    keys: int | None = None
    """How many different keys the records have, each as often; needed if `cleanup.policy` has compact."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment of a plan.

    Times are in milliseconds from the start of the plan. Immutable, so threads may share it.
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
    """When a check deletes it, or compaction replaces it; None if it is there at the end of what was simulated."""
    delete_reason: str | None
    """"time", "size" or "compaction"; None if it is there at the end of what was simulated."""
    offset_index_entries: int = 0
    """Entries of its `.index` file, 8 bytes each."""
    time_index_entries: int = 0
    """Entries of its `.timeindex` file, 12 bytes each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What settings do under a load: segments, disk, lifetimes, and what to change.

    Times are in milliseconds from the start of the plan. Sizes on the disk are those of whole blocks of 4 KiB, as `du`
    counts them.
    `str()` gives text, `to_dict()` what JSON can hold, `to_arrow()` a table of the segments, `to_html()` a page;
    notebooks show a picture. Immutable, so threads may share it.

    Example:
        >>> plan = kstore.plan(rate=10, record_bytes=1000, segment_bytes=1 << 20, retention_ms=3_600_000)
        >>> plan.first_acting, plan.live_segments.most
        ('segment.bytes', 39)
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
    """From when on the log does not only grow: its first deleted files are gone. None if none goes in this time."""
    segments: tuple[PlannedSegment, ...]
    """The first segments, at most 1,000."""
    segment_count: int
    """All segments of the planned time, as a count."""
    roll_reasons: Mapping[str, int]
    """How many rolls there were for each reason."""
    disk: tuple[tuple[int, int], ...]
    """The size of the log over time: (milliseconds since the start, bytes on the disk), up to `simulated_ms`.

    It changes evenly between two points; two points at one time are before and after a deletion.
    """
    disk_bytes: PlannedRange
    """The space on the disk from `steady_ms` on, or of the whole time: logs, indexes, snapshots, deleted files."""
    index_bytes: PlannedRange
    """The part of it that indexes take."""
    life_ms: PlannedRange | None
    """How long a record stays readable; None if none is deleted."""
    freed_ms: PlannedRange | None
    """How long its bytes stay on the disk; None if none is deleted."""
    live_segments: PlannedRange
    """Segments that exist at the same time."""
    files: int
    """Most files in the partition's directory at the same time."""
    descriptors: int
    """Most file descriptors that an open log holds for them at the same time."""
    first_acting: str | None
    """The setting that rolls or deletes first; None if none acts."""
    advice: tuple[str, ...]
    """What to change, as sentences with numbers."""
    simulated_ms: int | None = None
    """Up to when every event was simulated, if not to the end: what follows repeats, and was counted."""
    period_ms: int | None = None
    """After which time everything repeats, if that is known."""
    cleanings: int = 0
    """How often compaction cleans the log."""
    notes: tuple[str, ...] = ()
    """What the plan takes for granted, and how exact it is, as sentences."""

    def __str__(self) -> str:
        return str(_text.plan_text(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dictionaries, lists, texts and numbers.

        Returns:
            A dictionary that `json.dumps` takes.

        Example:
            >>> plan.to_dict()["load"]["rate"]
            10
        """
        facts = {**asdict(self), "given": sorted(self.given), "settings": dict(self.settings)}
        facts["roll_reasons"] = dict(self.roll_reasons)
        for name in ("disk_bytes", "index_bytes", "life_ms", "freed_ms", "live_segments"):
            found = getattr(self, name)
            facts[name] = None if found is None else found._asdict()
        return facts

    def to_arrow(self) -> pyarrow.Table:
        """Return the segments as an Arrow table.

        Returns:
            A row for each segment, a column for each attribute of `PlannedSegment`. Times are durations from the start
            of the plan in milliseconds.

        Raises:
            ConfigError: PyArrow is not installed.

        Example:
            >>> plan.to_arrow().num_rows == len(plan.segments)
            True
        """
        pa = optional.pyarrow("to_arrow()")
        kinds = {"int": pa.int64(), "str": pa.string()}
        columns = [
            pa.field(
                field.name,
                pa.duration("ms") if field.name.endswith("_ms") else kinds[str(field.type).removesuffix(" | None")],
                nullable=str(field.type).endswith("None"),
            )
            for field in fields(PlannedSegment)
        ]
        return pa.Table.from_pylist([asdict(segment) for segment in self.segments], schema=pa.schema(columns))

    def to_html(self) -> str:
        """Return a page that needs no other file, with pictures.

        Returns:
            The HTML of the page.

        Example:
            >>> plan.to_html().startswith("<!DOCTYPE html>")
            True
        """
        return str(_html.plan_page(self))

    def _repr_html_(self) -> str:
        """Return the picture that a notebook shows."""
        return str(_html.plan_fragment(self))
