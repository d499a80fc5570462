"""The page of plans: a form with settings and a load, and what they do, alone or beside other settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from kstore.base import optional
from kstore.errors import KStoreError
from kstore.explained.explained_plan import Plan
from kstore.explained.explanation import Explanation
from kstore.explained.plan_html import plan_parts
from kstore.planning.plan import plan
from kstore.ui import query_values
from kstore.ui.directory_facts import PartitionRow
from kstore.ui.page_templates import USER, Templates
from kstore.ui.query_values import BadRequestError
from kstore.ui.viewed_store import ViewedStore

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["PlanPage", "plan_address"]

DAY_MS = 86_400_000
MOST_DAYS = 3650
_DEFAULTS = {"retention.ms": "7d"}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}


@dataclass(frozen=True)
class _Field:
    """A setting in the form. Immutable, so threads may share it."""

    name: str
    hint: str


SETTINGS = (
    _Field("segment.bytes", "1073741824"),
    _Field("segment.ms", "7d"),
    _Field("retention.ms", "-1"),
    _Field("retention.bytes", "-1"),
    _Field("cleanup.policy", "delete"),
    _Field("index.interval.bytes", "4096"),
    _Field("segment.index.bytes", "10485760"),
    _Field("file.delete.delay.ms", "1m"),
    _Field("log.retention.check.interval.ms", "5m"),
)
"""The settings that can be given; no other name is taken from a request."""

_OTHER = "other."
"""Begins the names of the parameters of the settings to compare with."""


class PlanPage:
    """The endpoint of this page. Thread-safe."""

    def __init__(self, viewed: ViewedStore, templates: Templates) -> None:
        self._viewed = viewed
        self._templates = templates
        self._response = optional.starlette(USER, "starlette.responses").HTMLResponse

    def show(self, request: Request) -> Response:
        """Show the form, and the plan of what it says."""
        given = {field.name: query_values.text(request, field.name).strip() for field in SETTINGS}
        other = {field.name: query_values.text(request, _OTHER + field.name).strip() for field in SETTINGS}
        if not request.query_params:
            given |= _DEFAULTS
        parts: list[str] = []
        problem, status = None, 200
        try:
            parts = plan_parts(*_plans(given, other, _load(request)))
        except (KStoreError, ValueError) as error:
            problem, status = str(error), 400
        asked = {name: query_values.text(request, name) for name in _LOAD}
        body = self._templates.render(
            "plan",
            here="plan",
            settings=SETTINGS,
            given=given,
            other=other,
            asked={**{name: default for name, default in _LOAD.items() if not asked[name]}, **_filled(asked)},
            parts=[self._templates.svg(part) for part in parts],
            problem=problem,
        )
        return self._response(body, status)  # type: ignore[no-any-return]


_LOAD = {"rate": "10", "record_bytes": "1000", "batch_records": "1", "days": "30", "idle": "", "keys": ""}
"""The load in the form: the parameters, with their defaults."""


def _filled(asked: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in asked.items() if value}


def _load(request: Request) -> dict[str, Any]:
    """Return the arguments of `plan` about the load."""
    idle = query_values.text(request, "idle").strip()
    return {
        "rate": query_values.number(request, "rate", float(_LOAD["rate"]), 0, 1e9),
        "record_bytes": query_values.number(request, "record_bytes", float(_LOAD["record_bytes"]), 0, 1e9),
        "batch_records": query_values.whole(request, "batch_records", int(_LOAD["batch_records"]), 1, 10**6),
        "duration": int(DAY_MS * query_values.number(request, "days", float(_LOAD["days"]), 0.001, MOST_DAYS)),
        "keys": query_values.maybe_whole(request, "keys", 1, 10**9),
        "idle": [idle] if idle else (),
    }


def _plans(given: dict[str, str], other: dict[str, str], load: dict[str, Any]) -> tuple[Plan, Plan | None]:
    """Return the plan, and the one to compare with: the settings are the given ones, but for those that differ."""
    differing = _filled(other)
    first = plan(_settings(_filled(given)), **load)
    return first, plan(_settings(_filled(given) | differing), **load) if differing else None


def _settings(given: dict[str, str]) -> dict[str, str]:
    """Return settings with durations in milliseconds."""
    return {name: _in_milliseconds(name, value) for name, value in given.items()}


def _in_milliseconds(name: str, value: str) -> str:
    match = _DURATION.fullmatch(value) if name.endswith(".ms") else None
    if match is None:
        return value
    found = int(match[1]) * _UNITS[match[2]]
    if found >= 1 << 63:
        raise BadRequestError(f"{name} is {value}, which is too long")
    return str(found)


def plan_address(explanation: Explanation, row: PartitionRow) -> str | None:
    """Return the address of a plan with a partition's settings and its load; None if its load is not known."""
    if not row.rate or not row.records:
        return None
    size_bytes = sum(segment.size_bytes for segment in explanation.segments)
    records = explanation.log_end_offset - explanation.segments[0].base_offset
    known = {field.name for field in SETTINGS}
    settings = {
        name: ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in explanation.settings.items()
        if name in known
    }
    load = {"rate": f"{row.rate:.9f}", "record_bytes": f"{max(size_bytes / records, 68):.1f}"}
    return f"/plan?{urlencode({**load, **settings})}"
