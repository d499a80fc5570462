"""Decides which old segments are deleted, without I/O of its own (SEMANTICS 6.1 to 6.9).

`decide` returns the segments to delete, each with the reason; `outlooks` says why the others stay, and until when.
retention_run.py deletes them. Invariant: only a prefix of the log is deleted, so `decide` and `outlook` examine no
segment after the first that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from kstore.base import times

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig

Reason: TypeAlias = Literal["log_start", "size", "time"]


class Facts(Protocol):
    """The facts of a segment that the decision needs. Reading one may cost disk I/O, so it is read only if needed."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Bytes of batches in its `.log` file."""

    def newest(self) -> tuple[int, bool]:
        """Return its largest timestamp and False, or the time of the file's last write and True (SEMANTICS 6.6)."""


class Marks(NamedTuple):
    """The log start, the high watermark and the log end."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """A segment that retention deletes: the offsets `[base_offset, next_offset)`, and why.

    Immutable, so threads may share it.
    """

    base_offset: int
    """The segment's base offset."""

    next_offset: int
    """One past the segment's last offset."""

    size_bytes: int
    """Bytes of the segment's `.log` file."""

    largest_timestamp: int | None
    """The segment's greatest timestamp in milliseconds; None if no rule had to read it."""

    reason: Reason
    """The first rule that applies, tried in this order: "log_start" (the segment lies below the log start), "size" (the
    log is large enough without it), "time" (its newest record is too old).
    """

    explanation: str
    """The reason in words, with the value found and the value allowed."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Why retention keeps a segment, and when it will delete it.

    Immutable, so threads may share it.
    """

    base_offset: int
    """The segment's base offset."""

    explanation: str
    """Why the segment stays, in words."""

    due_ms: int | None
    """When the segment becomes old enough to be deleted, in milliseconds since the epoch; None if it never does."""

    bytes_left: int | None
    """How many bytes the log has to grow until the segment is deleted by size; None if it never is."""

    largest_timestamp: int | None
    """The segment's greatest timestamp in milliseconds; None if age does not count."""

    reasons: tuple[tuple[str, str], ...] = ()
    """What keeps the segment: names of `ExplainedSegment.holds`, each with its part of the explanation."""


# Why a segment is deleted, with its largest timestamp if that was read; None if it stays.
_Grounds: TypeAlias = tuple[str, int | None] | None
_Rule: TypeAlias = Callable[[Facts, int, bool], _Grounds]


def decide(segments: Sequence[Facts], config: LogConfig, marks: Marks, now_ms: int) -> list[Deletion]:
    """Return the oldest `segments` to delete now: those below the log start, by size, or by time (SEMANTICS 6.1).

    If all are, the log has to be rolled first (SEMANTICS 6.9). Raises what reading a segment raises.
    """
    deletions: list[Deletion] = []
    rules: list[tuple[Reason, _Rule]] = [("log_start", _below_log_start(marks))]
    if config.deletes:
        if config.retention_bytes >= 0:
            rules.append(("size", _BySize(segments, deletions, config.retention_bytes)))
        if config.retention_ms >= 0:
            rules.append(("time", _by_time(config.retention_ms, now_ms)))
    for reason, rule in rules:
        while len(deletions) < len(segments):
            segment = segments[len(deletions)]
            next_offset, is_last = _next_offset(segments, len(deletions), marks)
            if marks.high_watermark < next_offset:
                break
            grounds = rule(segment, next_offset, is_last)
            if grounds is None or (is_last and _is_empty(segment, marks)):
                break
            explanation, newest = grounds
            size_bytes = segment.size_bytes
            deletions.append(Deletion(segment.base_offset, next_offset, size_bytes, newest, reason, explanation))
    return deletions


def outlook(segments: Sequence[Facts], config: LogConfig, marks: Marks, now_ms: int) -> Outlook | None:
    """Return why the first of `segments`, the segments that stay, is not deleted; None without segments."""
    return next(outlooks(segments, config, marks, now_ms), None)


def outlooks(
    segments: Sequence[Facts], config: LogConfig, marks: Marks, now_ms: int, gone: Sequence[Deletion] = ()
) -> Iterator[Outlook]:
    """Yield for each segment why it is not deleted, and until when, oldest first; `gone` is what `decide` returned.

    A segment is due when it and all that stay before it are old enough, since only the oldest segments are deleted. The
    reason of a segment of `gone` is "check".
    """
    by_size = config.deletes and config.retention_bytes >= 0
    by_age = config.deletes and config.retention_ms >= 0
    behind = sum(segment.size_bytes for segment in segments) if by_size else 0
    latest: tuple[int, int] | None = None  # the last time at which one of the segments so far is old enough, its base
    for number, segment in enumerate(segments):
        next_offset, is_last = _next_offset(segments, number, marks)
        deletion = gone[number] if number < len(gone) else None
        if deletion is None and is_last and _is_empty(segment, marks):
            empty = "it is empty and the active one; a log keeps one segment"
            yield Outlook(segment.base_offset, empty, None, None, None, (("only_segment", empty),))
            return
        why = _Why()
        due_ms = bytes_left = newest = None
        _say_marks(why, segment, marks, next_offset, is_last)
        if not config.deletes:
            policy = ",".join(config.cleanup_policy)
            why.hold("policy", f"cleanup.policy is {policy or 'empty'}, so neither size nor age counts")
        if by_size:
            behind -= segment.size_bytes
            bytes_left = max(_missing(behind, config.retention_bytes), 0)
            left = f"without it the log would hold {behind} bytes; retention.bytes keeps {config.retention_bytes}"
            why.hold("retention.bytes" if bytes_left else None, left)
        elif config.deletes:
            why.hold(None if by_age else "no_limit", _no_limit("retention.bytes", config))
        if by_age:
            newest, of_file = segment.newest()
            own_ms = _due_ms(newest, config.retention_ms)
            age, keeps = _age(newest, of_file, now_ms), f"retention.ms keeps {times.span(config.retention_ms)}"
            if newest > now_ms:
                why.hold("future_record", age)
                why.hold("retention.ms", keeps)
            else:
                why.hold("retention.ms" if own_ms > now_ms else None, f"{age}; {keeps}")
            if latest is not None and latest[0] > max(own_ms, now_ms):
                why.hold(
                    "earlier_segment", f"segment {latest[1]}, which goes first, stays until {times.show(latest[0])}"
                )
            due_ms = own_ms if latest is None else max(own_ms, latest[0])
            if (deletion is None or deletion.reason == "time") and due_ms == own_ms:
                latest = own_ms, segment.base_offset
        elif config.deletes:
            why.hold(None if by_size else "no_limit", _no_limit("retention.ms", config))
        reasons = tuple(why.reasons) if deletion is None else (("check", deletion.explanation),)
        yield Outlook(segment.base_offset, "; ".join(why.sentences), due_ms, bytes_left, newest, reasons)


class _Why:
    """The sentences about a segment that stays, and those of them that say what keeps it."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.reasons: list[tuple[str, str]] = []

    def hold(self, name: str | None, sentence: str) -> None:
        """Add a sentence, which says what keeps the segment if it has a name."""
        self.sentences.append(sentence)
        if name is not None:
            self.reasons.append((name, sentence))


def _say_marks(why: _Why, segment: Facts, marks: Marks, next_offset: int, is_last: bool) -> None:
    """Say where the log's marks are; the log start keeps a segment if it has passed a part of it."""
    if marks.high_watermark < next_offset:
        sentence = f"the high watermark {marks.high_watermark} has not reached its end {next_offset}"
        why.hold("high_watermark", sentence)
    if not is_last:
        is_inside = segment.base_offset < marks.log_start_offset
        sentence = f"the log start {marks.log_start_offset} is below its end {next_offset}"
        why.hold("log_start" if is_inside else None, sentence)


def _next_offset(segments: Sequence[Facts], number: int, marks: Marks) -> tuple[int, bool]:
    """Return one past the offsets that a segment may hold (SEMANTICS 6.2), and whether it is the last."""
    is_last = number == len(segments) - 1
    return marks.log_end_offset if is_last else segments[number + 1].base_offset, is_last


def _is_empty(segment: Facts, marks: Marks) -> bool:
    """Return whether a roll would free nothing, as it starts a segment at the same base (SEMANTICS 6.2, 6.9)."""
    return segment.size_bytes == 0 or segment.base_offset >= marks.log_end_offset


def _below_log_start(marks: Marks) -> _Rule:
    """Return the rule of SEMANTICS 6.3: delete segments below the log start, but never the last one."""

    def rule(segment: Facts, next_offset: int, is_last: bool) -> _Grounds:
        if is_last or next_offset > marks.log_start_offset:
            return None
        return f"it ends at offset {next_offset}, and the log starts at {marks.log_start_offset}", None

    return rule


def _missing(behind: int, retention_bytes: int) -> int:
    """Return how many bytes the log lacks behind a segment until it is deleted by size; 0 or less: now."""
    return retention_bytes - behind


def _due_ms(newest: int, retention_ms: int) -> int:
    """Return the first time at which a segment whose newest record is from `newest` is old enough."""
    return newest + retention_ms + 1


class _BySize:
    """The rule of SEMANTICS 6.4: keep at least `retention.bytes`. Sizes are summed when the first segment is tried."""

    def __init__(self, segments: Sequence[Facts], gone: Sequence[Deletion], retention_bytes: int) -> None:
        self._segments = segments
        self._gone = gone
        self._retention_bytes = retention_bytes
        self._left: int | None = None

    def __call__(self, segment: Facts, next_offset: int, is_last: bool) -> _Grounds:
        if self._left is None:
            self._left = sum(segment.size_bytes for segment in self._segments[len(self._gone) :])
        left, keep = self._left, self._retention_bytes
        if _missing(left - segment.size_bytes, keep) > 0:
            return None
        self._left = left - segment.size_bytes
        return f"the log holds {left} bytes, {self._left} without it, and retention.bytes keeps {keep}", None


def _by_time(retention_ms: int, now_ms: int) -> _Rule:
    """Return the rule of SEMANTICS 6.5: delete segments whose newest record is older than `retention.ms`."""

    def rule(segment: Facts, next_offset: int, is_last: bool) -> _Grounds:
        newest, of_file = segment.newest()
        if now_ms < _due_ms(newest, retention_ms):
            return None
        return f"{_age(newest, of_file, now_ms)}, and retention.ms keeps {times.span(retention_ms)}", newest

    return rule


# Explanations as sentences.


def _no_limit(name: str, config: LogConfig) -> str:
    """Say that a setting which limits nothing does not; a value that was given counts as someone's will."""
    value = getattr(config, name.replace(".", "_"))
    if name.replace(".", "_") in config.explicit:
        return f"{name} = {value} sets no limit"
    whose = "kstore's" if name == "retention.ms" else "its"  # Kafka's default of retention.ms is seven days
    return f"{name} is not given, and {whose} default sets no limit"


def _age(newest: int, of_file: bool, now_ms: int) -> str:
    fact = "it has no timestamps, and its file was last written" if of_file else "its newest record is from"
    age = now_ms - newest
    when = f"{times.span(age)} ago" if age >= 0 else f"{times.span(-age)} ahead of the clock"
    return f"{fact} {times.show(newest)}, {when}"
