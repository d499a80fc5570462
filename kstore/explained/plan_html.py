"""Plans as HTML: the page of `kstore plan --html`, and what notebooks show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.explained import html_page, plan_picture
from kstore.explained.segment_words import roll_name, value_words
from kstore.explained.time_scale import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kstore.explained.explained_plan import Plan, PlannedRange

__all__ = ["plan_fragment", "plan_page", "plan_parts"]


def plan_page(
    plan: Plan, other: Plan | None = None, *, title: str = "A plan of a log", known: Sequence[str] = ()
) -> str:
    """Return the page of a plan, or of two plans side by side; `known` has sentences about where the load is from."""
    first = [html_page.paragraph(each, "note") for each in known]
    return html_page.page(title, [*first, *plan_parts(plan, other)], made_by="kstore plan")


def plan_parts(plan: Plan, other: Plan | None = None) -> list[str]:
    """Return what a page shows of a plan, or of two plans: pieces of HTML, with a picture that is not styled."""
    plans = [plan] if other is None else [plan, other]
    names = ["Value"] if other is None else list(plan_picture.differences(plan, other))
    drawn = plan_picture.picture(plan, other, styled=False)
    parts = [html_page.figure(drawn, "Disk, segments and lifetimes")]
    for each, name in zip(plans, names, strict=True):
        if each.advice:
            heading = "What to change" if other is None else f"What to change: {name}"
            parts.append(html_page.section(heading, [html_page.paragraph(sentence) for sentence in each.advice]))
    figures = html_page.table("In numbers", ("What", *names), _figures(plans))
    parts.append(html_page.section("In numbers", [figures]))
    settings = html_page.table("Settings", ("Setting", *names), _settings(plans))
    parts.append(html_page.section("Settings", [settings]))
    notes = dict.fromkeys(note for each in plans for note in each.notes)
    if notes:
        parts.append(html_page.section("Notes", map(html_page.paragraph, notes)))
    return parts


def plan_fragment(plan: Plan) -> str:
    """Return what a notebook shows of a plan."""
    prefix = f"plan-{plan.duration_ms}-{plan.segment_count}-{plan.disk_bytes.most}"
    drawn = plan_picture.picture(plan, styled=False, prefix=prefix)
    return html_page.fragment([html_page.figure(drawn, "Disk, segments and lifetimes")])


def _figures(plans: Sequence[Plan]) -> list[list[str]]:
    rows = {
        "Planned time": [duration(plan.duration_ms) for plan in plans],
        "First files gone after": ["-" if plan.steady_ms is None else duration(plan.steady_ms) for plan in plans],
        "Records a second": [f"{plan.load.rate:g}" for plan in plans],
        "Bytes of a record": [f"{plan.load.record_bytes:g}" for plan in plans],
        "On the disk: least, typical, most": [_sizes(plan.disk_bytes) for plan in plans],
        "Of that indexes": [_sizes(plan.index_bytes) for plan in plans],
        "A record is readable for": [_spans(plan.life_ms) for plan in plans],
        "Its bytes are on the disk for": [_spans(plan.freed_ms) for plan in plans],
        "Segments at the same time": [" \u2013 ".join(f"{each:,}" for each in plan.live_segments) for plan in plans],
        "Segments in all": [f"{plan.segment_count:,}" for plan in plans],
        "Why the log rolls": [_reasons(plan) for plan in plans],
        "Most files": [f"{plan.files:,}" for plan in plans],
        "Most descriptors": [f"{plan.descriptors:,}" for plan in plans],
        "Acts first": [plan.first_acting or "-" for plan in plans],
    }
    return [[name, *values] for name, values in rows.items()]


def _settings(plans: Sequence[Plan]) -> list[list[str]]:
    names = list(dict.fromkeys(name for plan in plans for name in plan.settings))
    return [
        [
            name,
            *(
                value_words(name, plan.settings.get(name)) + (" (given)" if name in plan.given else "")
                for plan in plans
            ),
        ]
        for name in names
    ]


def _reasons(plan: Plan) -> str:
    return "; ".join(f"{roll_name(reason)}: {count:,}" for reason, count in plan.roll_reasons.items()) or "-"


def _sizes(found: PlannedRange) -> str:
    return " \u2013 ".join(size(each) for each in found)


def _spans(found: PlannedRange | None) -> str:
    return "no record is deleted" if found is None else " \u2013 ".join(duration(each, is_short=True) for each in found)
