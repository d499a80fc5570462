"""Shows how far each partition of a copy is behind, while the copy runs.

Prints JSON lines; or on a terminal, with rich, a table that is updated in place; or a line for each partition that has
changed. Events (a truncation, a failure, a missing source) are printed as lines, except with JSON.
Invariant: an idle copy prints no line twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from kstore.base.terminal import escaped
from kstore.cli import output

__all__ = ["FOLLOWER_ENDS", "LINE_SECONDS", "TABLE_SECONDS", "Lag", "LagDisplay", "in_words", "lags_of", "total_of"]

TABLE_SECONDS = 0.5
LINE_SECONDS = 10.0
_MARGIN_LINES = 6  # lines of the terminal for the heading, the summary and a prompt
FOLLOWER_ENDS = ("log end", "leader's log end")


class Lag(NamedTuple):
    """How far one partition of a copy is behind. Unknown numbers are None."""

    name: str
    log_end_offset: int | None
    leader_log_end_offset: int | None
    records: int | None
    size_bytes: int | None
    milliseconds: int | None
    failure: str | None


def lags_of(partitions: Mapping[str, Mapping[str, Any]]) -> list[Lag]:
    """Return the lags from `partitions` of a copy's stats, sorted by topic and number."""
    lags = [
        Lag(
            name,
            facts.get("log_end_offset"),
            facts.get("leader_log_end_offset"),
            facts.get("lag_records"),
            facts.get("lag_bytes"),
            facts.get("lag_ms"),
            facts.get("failure") or None,
        )
        for name, facts in partitions.items()
    ]
    return sorted(lags, key=lambda lag: (lag.name.rpartition("-")[0], len(lag.name), lag.name))


def total_of(lags: Sequence[Lag]) -> str:
    records = sum(lag.records or 0 for lag in lags)
    size_bytes = sum(lag.size_bytes or 0 for lag in lags)
    slowest = max((lag.milliseconds or 0 for lag in lags), default=0)
    failed = sum(lag.failure is not None for lag in lags)
    amount = f" ({output.size(size_bytes)}, {slowest:,} ms)" if any(lag.size_bytes is not None for lag in lags) else ""
    behind = f"{records:,} records{amount} behind" if records else "caught up"
    stopped = f", {output.count(failed, 'partition')} failed" if failed else ""
    return f"{output.count(len(lags), 'partition')}, {behind}{stopped}"


def in_words(lag: Lag) -> str:
    if lag.failure is not None:
        return f"{lag.name}: failed at offset {_shown(lag.log_end_offset)}: {lag.failure}"
    if not lag.records:
        return f"{lag.name}: caught up at offset {_shown(lag.log_end_offset)}"
    amount = "" if lag.size_bytes is None else f" ({output.size(lag.size_bytes)}, {_shown(lag.milliseconds)} ms)"
    return (
        f"{lag.name}: at offset {_shown(lag.log_end_offset)} of {_shown(lag.leader_log_end_offset)}, "
        f"{lag.records:,} records{amount} behind"
    )


class LagDisplay:
    """Shows the lags repeatedly. A context manager, which leaves the last table on the terminal. Not thread-safe.

    `seconds` is the time between two calls of `show`; the default depends on the output. `ends` are the headings for
    the two offsets of a lag.
    """

    def __init__(self, *, as_json: bool, seconds: float | None = None, ends: tuple[str, str] = FOLLOWER_ENDS) -> None:
        self._ends = ends
        self._live: Any = None
        self._way: Literal["json", "table", "lines"] = "json" if as_json else "lines"
        if not as_json and _can_draw():
            self._live = _live_of_rich()
            self._way = "lines" if self._live is None else "table"
        if seconds is None:
            seconds = TABLE_SECONDS if self._way == "table" else 1.0 if as_json else LINE_SECONDS
        self.seconds = seconds
        self._shown: dict[str, Lag] = {}
        self._summary = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def show(self, facts: Mapping[str, Any], lags: Sequence[Lag], summary: str) -> None:
        """Show the current state: `facts` as JSON, or the lags and a summary line."""
        if self._way == "json":
            output.json_line(facts)
        elif self._way == "table":
            self._live.update(_table(lags, summary, self._ends, self._live.console.height), refresh=True)
        else:
            self._print_changes(lags, summary)
        sys.stdout.flush()

    def tell(self, line: str) -> None:
        """Print an event, above the table if there is one. With JSON prints nothing: the facts contain the event."""
        if self._way == "table":
            self._live.console.print(escaped(line), markup=False, highlight=False, soft_wrap=True)
        elif self._way == "lines":
            print(escaped(line), flush=True)

    def _print_changes(self, lags: Sequence[Lag], summary: str) -> None:
        for lag in lags:
            before = self._shown.get(lag.name)
            if before is None or before._replace(milliseconds=0) != lag._replace(milliseconds=0):
                self._shown[lag.name] = lag
                print(escaped(in_words(lag)))
        if summary != self._summary:
            self._summary = summary
            print(escaped(summary))

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def _shown(number: int | None) -> str:
    return "?" if number is None else str(number)


def _can_draw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _live_of_rich() -> Any:
    """Return a live display of rich on standard output; None if rich is not installed."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    console = Console(file=output.plain(sys.stdout), highlight=False)
    return Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def _table(lags: Sequence[Lag], summary: str, ends: tuple[str, str], height: int) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    has_amount = any(lag.size_bytes is not None for lag in lags)
    table.add_column("partition", no_wrap=True)
    for column in (*ends, "records behind", *(("bytes behind", "ms behind") if has_amount else ())):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    worst = sorted(lags, key=lambda lag: (lag.failure is None, -(lag.records or 0)))
    room = max(height - _MARGIN_LINES, 3)
    for lag in worst[:room]:
        cells = [_shown(number) for number in (lag.log_end_offset, lag.leader_log_end_offset, lag.records)]
        if has_amount:
            cells += ["?" if lag.size_bytes is None else output.size(lag.size_bytes), _shown(lag.milliseconds)]
        table.add_row(Text(escaped(lag.name)), *cells, Text(escaped(lag.failure or ""), style="red"))
    more = [Text(f"and {output.count(len(worst) - room, 'partition')} more")] if len(worst) > room else []
    return Group(table, *more, Text(escaped(summary)))
