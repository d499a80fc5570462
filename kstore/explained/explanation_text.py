"""The text of an `Explanation`: a headline, the marks, the record, a line for each segment, and reasons in words.

Text from the log is escaped, so it may be printed on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.base.numbers import size
from kstore.base.terminal import escaped
from kstore.base.text_table import table_lines
from kstore.explained.segment_words import check_words, fate, hold_words, roll_words
from kstore.explained.time_scale import clock_of

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedRecord, ExplainedSegment, Explanation

__all__ = ["explanation_text"]

_FIRST, _LAST = 8, 4  # of a long log: the segments that go next, and the newest ones
_SENTENCES = 6  # reasons in words, each for the first segment that it keeps
_HEADER = ("segment", "size", "first timestamp", "greatest timestamp", "rolled by", "why it stays", "goes")


def explanation_text(found: Explanation, *, everything: bool = False) -> str:
    """Return the explanation as text. Of a long log only the first and the last segments, unless `everything` is set.

    The lines do not end with a line feed at the end of the text.
    """
    return "\n".join(map(escaped, _lines(found, everything=everything)))


def _lines(found: Explanation, *, everything: bool) -> Iterator[str]:
    yield f"{found.topic}-{found.partition} at {found.path}, at {times.show(found.at_ms)}"
    yield from (f"  {line}" for line in _marks(found))
    yield ""
    if found.record is not None:
        yield from _record(found.record)
        yield ""
    yield from _table(found.segments, found.at_ms, everything=everything)
    yield ""
    yield from _reasons(found.segments)
    if any(segment.compaction is not None for segment in found.segments):
        yield f"compaction: {found.compaction.explanation}"


def _marks(found: Explanation) -> Iterator[str]:
    count = len(found.segments)
    total = size(sum(segment.size_bytes for segment in found.segments))
    yield (
        f"offsets {found.log_start_offset} to {found.log_end_offset} (the next one), "
        f"{total} in {count} segment{'s' if count != 1 else ''}"
    )
    yield (
        f"high watermark {found.high_watermark}, last stable offset {found.last_stable_offset}, "
        f"recovery point {found.recovery_point}"
    )
    given = {name: found.settings[name] for name in sorted(found.given) if name in found.settings}
    shown = " ".join(f"{name}={_value(value)}" for name, value in given.items())
    yield f"settings: {shown or 'none are given, so these are defaults'}"
    yield check_words(found.checks)
    if found.deleted:
        yield _deleted(found)
    if found.note is not None:
        yield f"note: {found.note}"


def _value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _deleted(found: Explanation) -> str:
    count, known = len(found.deleted), [file.gone_ms for file in found.deleted if file.gone_ms is not None]
    total = size(sum(file.size_bytes for file in found.deleted))
    when = f"unlinked by {times.show(max(known))}" if known else "unlinked by the process that deleted them"
    return f"{count} deleted file{'s' if count != 1 else ''}, {total}: {when}"


# --- segments ---------------------------------------------------------------------------------------------------------


def _table(segments: Sequence[ExplainedSegment], at_ms: int, *, everything: bool) -> Iterator[str]:
    hidden: Sequence[ExplainedSegment] = ()
    if not everything and len(segments) > _FIRST + _LAST + 1:
        hidden = segments[_FIRST:-_LAST]
        segments = (*segments[:_FIRST], *segments[-_LAST:])
    moments = (
        time_ms
        for segment in segments
        for time_ms in (segment.first_timestamp, segment.max_timestamp, segment.earliest_ms, segment.latest_ms)
    )
    clock = clock_of((at_ms, *moments))
    lines = table_lines(_HEADER, (_row(segment, clock, at_ms) for segment in segments))
    if hidden:
        total = size(sum(segment.size_bytes for segment in hidden))
        why = "; ".join(dict.fromkeys(map(_kept, hidden)))
        lines.insert(1 + _FIRST, f"  ... {len(hidden)} segments, {total} ({why}); --all shows them")
    yield from lines


def _row(segment: ExplainedSegment, clock: Callable[[int | None], str], at_ms: int) -> tuple[object, ...]:
    rolled = roll_words(segment) or "not known"
    return (
        segment.base_offset,
        size(segment.size_bytes),
        clock(segment.first_timestamp),
        clock(segment.max_timestamp),
        rolled.removeprefix("rolled by ").removeprefix("rolled: "),
        _kept(segment),
        _when(segment, clock, at_ms),
    )


def _when(segment: ExplainedSegment, clock: Callable[[int | None], str], at_ms: int) -> str:
    words = fate(segment, clock, at_ms)
    return "never" if words == "is not deleted" else words.removeprefix("goes ")


def _kept(segment: ExplainedSegment) -> str:
    return hold_words(segment.holds).removeprefix("kept by ").removeprefix("kept: ")


def _reasons(segments: Sequence[ExplainedSegment]) -> Iterator[str]:
    """Return the sentences of the first segment that each combination of reasons keeps, and of the active one."""
    first: dict[tuple[str, ...], ExplainedSegment] = {}
    for segment in segments:
        first.setdefault(segment.holds, segment)
    told = list(first.values())[:_SENTENCES]
    told += [segment for segment in segments[-1:] if segment not in told]
    rolls = set()
    for segment in told:
        yield f"segment {segment.base_offset}{' (active)' if segment.is_active else ''}: {segment.explanation}"
        if segment.roll_explanation and segment.roll_explanation not in rolls:
            rolls.add(segment.roll_explanation)
            inferred = " (inferred)" if segment.is_roll_inferred else ""
            yield f"  {'roll' if segment.is_active else 'rolled'}{inferred}: {segment.roll_explanation}"


# --- a record ---------------------------------------------------------------------------------------------------------


def _record(record: ExplainedRecord) -> Iterator[str]:
    first, last = record.batch_offsets
    yield f"record at offset {record.offset}, timestamp {times.show(record.timestamp)}"
    yield (
        f"  in segment {record.segment_base_offset}: batch of offsets {first} to {last} at byte "
        f"{record.batch_position}, {record.batch_bytes} bytes, compression {record.compression}"
    )
    yield f"how a lookup finds it, with {record.bytes_scanned} bytes read before its batch:"
    for number, step in enumerate(record.steps, 1):
        yield f"  {number}. {step.what.replace('_', ' ')}: {step.explanation}"
    yield "what happens to it:"
    for sentence in record.future:
        yield f"  - {sentence}"
