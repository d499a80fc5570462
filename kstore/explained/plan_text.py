"""The text of a plan, and of two plans side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.base.terminal import escaped
from kstore.base.text_table import table_lines
from kstore.explained.segment_words import roll_name, setting_words, value_words
from kstore.explained.time_scale import duration

if TYPE_CHECKING:
    from kstore.explained.explained_plan import Load, Plan, PlannedRange

__all__ = ["plan_text", "plans_text"]

_DAY_MS = 86_400_000


def plan_text(plan: Plan) -> str:
    """Return a plan as text. The lines do not end with a line feed at the end of the text."""
    return "\n".join(map(escaped, _lines(plan)))


def plans_text(plan: Plan, other: Plan, names: tuple[str, str] = ("today", "wished")) -> str:
    """Return two plans as one table, with what differs in their settings first."""
    return "\n".join(map(escaped, _side_by_side([plan, other], names)))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"{duration(plan.duration_ms)} of {_load(plan.load)}"
    given = [setting_words(name, plan.settings[name]) for name in plan.settings if name in plan.given]
    yield f"settings: {', '.join(given) or 'all at their defaults'}"
    yield ""
    rows = [
        _range("on the disk", plan.disk_bytes, size),
        _range("of that indexes", plan.index_bytes, size),
        _range("a record is readable for", plan.life_ms, _span),
        _range("its bytes stay for", plan.freed_ms, _span),
        _range("segments at a time", plan.live_segments, lambda count: f"{count:,}"),
    ]
    yield from table_lines(("", "least", "typical", "most"), rows)
    yield ""
    yield f"segments in all: {plan.segment_count:,}; why the log rolls: {_rolls(plan)}"
    if plan.cleanings:
        yield f"cleanings: {plan.cleanings:,}"
    yield f"at most {plan.files:,} files and {plan.descriptors:,} descriptors"
    yield f"acts first: {plan.first_acting or 'nothing'}; {_course(plan)}"
    yield from _sentences("what to change:", plan.advice)
    yield from _sentences("notes:", plan.notes)


def _sentences(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield ""
        yield title
        yield from (f"- {sentence}" for sentence in sentences)


def _side_by_side(plans: Sequence[Plan], names: tuple[str, str]) -> Iterator[str]:
    first, second = plans
    yield f"{duration(first.duration_ms)} of {_load(first.load)}"
    if second.load != first.load or second.duration_ms != first.duration_ms:
        yield f"{names[1]}: {duration(second.duration_ms)} of {_load(second.load)}"
    yield ""
    settings = [
        name
        for name in dict.fromkeys((*first.settings, *second.settings))
        if first.settings.get(name) != second.settings.get(name)
    ]
    rows = [(name, *(value_words(name, plan.settings.get(name)) for plan in plans)) for name in settings]
    rows += [(what, *map(show, plans)) for what, show in _ROWS.items() if what != "cleanings" or first.cleanings]
    yield from table_lines(("", *names), rows)
    yield "three numbers are the least, the typical and the most"
    for plan, name in zip(plans, names, strict=True):
        yield from _sentences(f"what to change, {name}:", plan.advice)
    yield from _sentences("notes:", list(dict.fromkeys((*first.notes, *second.notes))))


def _load(load: Load) -> str:
    batches = f" in batches of {load.batch_records:,}" if load.batch_records > 1 else ""
    often = f"{_number(load.rate)} records a second" if load.rate >= 1 else f"a record each {_each(load.rate)}"
    parts = [f"{often}, {_number(load.record_bytes)} bytes each{batches}"]
    busy_ms = _DAY_MS - sum(end - first for first, end in load.idle)
    parts.append(f"{size(int(load.rate * load.record_bytes * busy_ms / 1000))} a day")
    if load.idle:
        parts.append("idle " + " and ".join(f"{_clock(first)}-{_clock(end)}" for first, end in _nights(load.idle)))
    if load.skew_ms:
        parts.append(f"timestamps up to {duration(load.skew_ms)} behind")
    if load.keys is not None:
        parts.append(f"{load.keys:,} keys")
    return "; ".join(parts)


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _each(rate: float) -> str:
    return f"{1 / rate:.4g} seconds" if rate > 1 / 600 else duration(round(1000 / rate))


def _nights(idle: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return idle parts with those around midnight as one."""
    if len(idle) > 1 and idle[0][0] == 0 and idle[-1][1] == _DAY_MS:
        return [*idle[1:-1], (idle[-1][0], idle[0][1])]
    return list(idle)


def _clock(ms: int) -> str:
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}"


def _range(what: str, found: PlannedRange | None, show: Callable[[int], str]) -> tuple[str, str, str, str]:
    if found is None:
        return what, *("no end",) * 3
    return what, show(found.least), show(found.typical), show(found.most)


def _short(found: PlannedRange | None, show: Callable[[int], str]) -> str:
    if found is None:
        return "no end"
    words = [show(value) for value in found]
    return words[0] if len(set(words)) == 1 else " / ".join(words)


def _span(ms: int) -> str:
    return duration(ms, is_short=True)


def _rolls(plan: Plan) -> str:
    words = [f"{roll_name(reason)} {count:,}" for reason, count in plan.roll_reasons.items()]
    return ", ".join(words) or "it does not"


def _course(plan: Plan) -> str:
    """Return how the log goes on."""
    if plan.steady_ms is None:
        return "no file goes in this time"
    repeats = "" if plan.period_ms is None else f"; everything repeats each {duration(plan.period_ms)}"
    return f"the first deleted files are gone after {duration(plan.steady_ms)}{repeats}"


_ROWS: dict[str, Callable[[Plan], str]] = {
    "on the disk": lambda plan: _short(plan.disk_bytes, size),
    "of that indexes": lambda plan: _short(plan.index_bytes, size),
    "a record is readable for": lambda plan: _short(plan.life_ms, _span),
    "its bytes stay for": lambda plan: _short(plan.freed_ms, _span),
    "segments at a time": lambda plan: _short(plan.live_segments, lambda count: f"{count:,}"),
    "segments in all": lambda plan: f"{plan.segment_count:,}",
    "why the log rolls": _rolls,
    "cleanings": lambda plan: f"{plan.cleanings:,}",
    "most files": lambda plan: f"{plan.files:,}",
    "most descriptors": lambda plan: f"{plan.descriptors:,}",
    "acts first": lambda plan: plan.first_acting or "nothing",
    "first files gone after": lambda plan: "-" if plan.steady_ms is None else duration(plan.steady_ms),
}
"""The rows of two plans side by side: least, typical and most in one cell."""
