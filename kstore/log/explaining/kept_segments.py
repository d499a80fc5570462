"""Says of each segment why retention keeps it and which check deletes it, from the rules of `writing/retention.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kstore.base import times
from kstore.log.explaining.check_times import NEVER, Deadline, deadline, told
from kstore.log.writing.retention import Marks, decide, outlooks

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.explained.explanation import CheckTimes
    from kstore.log.writing.retention import Facts


class Kept(NamedTuple):
    """What keeps a segment and when it goes, as the fields of `ExplainedSegment` say it."""

    holds: tuple[str, ...]
    explanation: str
    due_ms: int | None
    bytes_left: int | None
    when: Deadline


class Moment(NamedTuple):
    """The moment that is explained, and the clock's now."""

    at_ms: int
    now_ms: int


def keep(facts: Sequence[Facts], config: LogConfig, marks: Marks, checks: CheckTimes, moment: Moment) -> list[Kept]:
    """Return what keeps each segment at a moment, oldest first, if nothing more is appended."""
    gone = decide(facts, config, marks, moment.at_ms)
    delay_ms = config.file_delete_delay_ms
    now = deadline(checks, moment.at_ms, moment.now_ms, delay_ms)
    kept = [
        Kept(("check",), f"{each.explanation}; {told(checks, now)} deletes it", moment.at_ms, 0, now) for each in gone
    ]
    is_blocked = False
    for each in outlooks(facts[len(gone) :], config, marks, moment.at_ms):
        is_blocked = is_blocked or "high_watermark" in each.holds
        when, explanation = NEVER, each.explanation
        if each.due_ms is not None and not is_blocked:
            when = deadline(checks, max(each.due_ms, moment.at_ms), moment.now_ms, delay_ms)
            explanation += f"; it is old enough from {times.show(each.due_ms)} on, and {told(checks, when)} deletes it"
        kept.append(Kept(each.holds, explanation, each.due_ms, each.bytes_left, when))
    return kept
