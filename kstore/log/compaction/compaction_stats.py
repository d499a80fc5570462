"""The numbers and texts of `stats` about a log's compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from kstore.log.compaction.compaction_outlook import first_dirty_line
from kstore.log.compaction.dirtiness import survey
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.log.reading.read_only_view import ReadOnlyView


class Numbers(TypedDict):
    """The keys of `LogStats` that are about compaction."""

    first_dirty_offset: int
    dirty_ratio: float
    compacted_ms: int
    compacted_records_before: int
    compacted_records_after: int
    compaction_failure: str


def numbers(view: Writer | ReadOnlyView, config: LogConfig, now_ms: int) -> Numbers:
    """Return the first dirty offset, the dirty ratio, the last compaction, and why the last one failed.

    The first dirty offset is -1 if the policy lacks `compact`. The failure is "" unless the last compaction failed.
    """
    first_dirty, ratio, compacted_ms, kept, read, failure = -1, 0.0, -1, 0, 0, ""
    if config.compacts:
        dirtiness = survey(view, config, now_ms, first_dirty_line(view))
        first_dirty, ratio = dirtiness.first_dirty_offset, dirtiness.ratio or 0.0
    if isinstance(view, Writer):
        error, last = view.cleaning.failure, view.cleaning.last
        failure = "" if error is None else f"{type(error).__name__}: {error}"
        if last is not None:
            compacted_ms, stats = last
            kept, read = stats.records_after, stats.records_before
    return {
        "first_dirty_offset": first_dirty,
        "dirty_ratio": ratio,
        "compacted_ms": compacted_ms,
        "compacted_records_before": read,
        "compacted_records_after": kept,
        "compaction_failure": failure,
    }
