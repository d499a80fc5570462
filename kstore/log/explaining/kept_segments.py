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


# What decides about a segment comes first, if several things keep it.
_ORDER = (
    "high_watermark",
    "policy",
    "no_limit",
    "earlier_segment",
    "future_record",
    "retention.ms",
    "retention.bytes",
    "log_start",
    "only_segment",
    "check",
)


class Moment(NamedTuple):
    """The moment that is explained, and the clock's now."""

    at_ms: int
    now_ms: int


class Kept(NamedTuple):
    """What keeps a segment and when it goes, as the fields of `ExplainedSegment` say it."""

    reasons: dict[str, str]  # the names of `ExplainedSegment.holds`, each with its sentence
    explanation: str
    due_ms: int | None
    bytes_left: int | None
    when: Deadline

    @property
    def holds(self) -> tuple[str, ...]:
        return tuple(self.reasons)


def keep(facts: Sequence[Facts], config: LogConfig, marks: Marks, checks: CheckTimes, moment: Moment) -> list[Kept]:
    """Return what keeps each segment at a moment, oldest first, if nothing more is appended."""
    gone = decide(facts, config, marks, moment.at_ms)
    delay_ms, at_ms = config.file_delete_delay_ms, moment.at_ms
    soonest = deadline(checks, at_ms, moment.now_ms, delay_ms)
    kept = []
    is_blocked = False
    for number, each in enumerate(outlooks(facts, config, marks, at_ms, gone)):
        reasons: dict[str, str] = {}
        for name, sentence in sorted(each.reasons, key=lambda reason: _ORDER.index(reason[0])):
            reasons[name] = f"{reasons[name]}; {sentence}" if name in reasons else sentence
        sentences = list(reasons.values())
        is_blocked = is_blocked or "high_watermark" in reasons
        when = NEVER
        if number < len(gone):
            when = soonest
            sentences.append(f"{told(checks, when)} deletes it")
        elif each.due_ms is not None and not is_blocked:
            when = deadline(checks, each.due_ms, moment.now_ms, delay_ms)
            unless = ", unless more is appended" if number == len(facts) - 1 else ""
            from_ms = times.show(each.due_ms)
            sentences.append(f"it is old enough from {from_ms} on{unless}, and {told(checks, when)} deletes it")
        if each.bytes_left:
            rolled = " after its roll" if number == len(facts) - 1 else ""
            sentences.append(f"it goes when the log has grown by {each.bytes_left} bytes{rolled}")
        kept.append(Kept(reasons, "; ".join(sentences), each.due_ms, each.bytes_left, when))
    return kept
