"""Draws what takes the space of a store: its topics as bars, coloured by what holds their bytes.

`picture` turns facts into SVG and does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kstore.base.numbers import size
from kstore.base.times import show
from kstore.explained import svg

if TYPE_CHECKING:
    from kstore.explained.explained_disk import DiskExplanation

__all__ = ["CAUSES", "picture"]

_WIDTH, _MARGIN = 960, 24
_LEFT, _RIGHT = 250, 846
_TOP, _ROW, _BAR = 108, 34, 22
_TOPICS = 14
_REMEDIES = 3

CAUSES: Mapping[str, tuple[str, str]] = {
    "check": ("going", "the next check deletes it"),
    "deleted": ("before", "deleted, waits for file.delete.delay.ms"),
    "retention.ms": ("sealed", "younger than retention.ms"),
    "retention.bytes": ("bounded", "within retention.bytes"),
    "no_limit": ("found", "no limit is set"),
    "policy": ("clean", "cleanup.policy has no delete"),
    "future_record": ("future", "a record of the future"),
    "earlier_segment": ("active", "an earlier segment stays"),
    "log_start": ("dirty", "partly below the log start"),
    "high_watermark": ("uncommitted", "above the high watermark"),
    "only_segment": ("kept", "empty and active"),
    "other": ("panel", "indexes and other files"),
}
"""For each cause that holds bytes: the colour, and the words."""


def picture(disk: DiskExplanation, *, styled: bool = True, prefix: str = "disk") -> str:
    """Return the SVG of a disk's topics as text.

    Args:
        disk: The facts.
        styled: Whether the picture holds its rules of CSS; see `svg.document`.
        prefix: The beginning of the identifiers in the picture, which differ on a page with several pictures.
    """
    held = _held(disk)
    topics = dict(sorted(disk.topics.items(), key=lambda item: -item[1]))
    shown = dict(list(topics.items())[:_TOPICS])
    rest = len(topics) - len(shown)
    rows = [(name, total, held.get(name, Counter())) for name, total in shown.items()]
    if rest:
        others = [name for name in topics if name not in shown]
        causes: Counter[str] = sum((held.get(name, Counter()) for name in others), Counter())
        named = f"{rest:,} other topic{'s' if rest > 1 else ''}"
        rows.append((named, sum(topics[name] for name in others), causes))
    if disk.other_bytes:
        rows.append(("outside of partitions", disk.other_bytes, Counter(other=disk.other_bytes)))
    bottom = _TOP + _ROW * len(rows)
    used = sum((causes for _, _, causes in rows), Counter[str]())
    legend = list(_legend(used, bottom + 24))
    remedies = list(_remedies(disk, bottom + 24 + 22 * len(legend) + 34))
    free = "" if disk.free_bytes is None else f"; {size(disk.free_bytes)} are free"
    title = f"{size(disk.disk_bytes)} on the disk{free}"
    at = show(disk.at_ms)
    count = len(disk.partitions)
    about = f"{len(topics):,} topic{'s' if len(topics) != 1 else ''}, {count:,} partition{'s' if count != 1 else ''}"
    about += f", at {at[:10]} {at[11:19]} UTC: {', '.join(disk.paths)}"
    most = max((total for _, total, _ in rows), default=1) or 1
    height = bottom + 24 + 22 * len(legend) + (34 + 22 * len(remedies) if remedies else 0) + 12
    return svg.document(
        (
            svg.text(_MARGIN, 40, title, size=22, bold=True),
            svg.text(_MARGIN, 64, svg.fitted(about, _WIDTH - 2 * _MARGIN), "soft"),
            svg.text(_MARGIN, 92, "What holds the bytes of each topic:", "soft"),
            *(part for number, row in enumerate(rows) for part in _draw(*row, _TOP + _ROW * number, most)),
            *(part for line in legend for part in line),
            *remedies,
        ),
        svg.Sheet(_WIDTH, height, prefix),
        title=title,
        description=" ".join(f"{name}: {size(total)}." for name, total, _ in rows),
        styled=styled,
    )


def _held(disk: DiskExplanation) -> dict[str, Counter[str]]:
    """Return for each topic how many bytes each cause holds; what no cause explains is "other"."""
    topics: dict[str, Counter[str]] = {}
    for partition in disk.partitions:
        causes = topics.setdefault(partition.topic, Counter())
        for each in partition.held:
            causes[each.cause] += each.size_bytes
        causes["check"] += max(
            partition.expired_bytes - sum(e.size_bytes for e in partition.held if e.cause == "check"), 0
        )
    for name, causes in topics.items():
        causes["other"] = max(disk.topics.get(name, 0) - sum(causes.values()), 0)
    return topics


def _draw(name: str, total: int, causes: Counter[str], y: float, most: int) -> Iterator[str]:
    """Draw a topic: its name, a bar of its causes, its size."""
    room = _LEFT - _MARGIN - 12
    yield svg.text(_MARGIN, y + 16, svg.fitted(name, room, bold=True), bold=True)
    x: float = _LEFT
    scale = (_RIGHT - _LEFT) / max(most, sum(causes.values()), 1)
    order = [*CAUSES, *sorted(set(causes) - set(CAUSES))]
    for cause in order:
        wide = causes.get(cause, 0) * scale
        if wide > 0.3:
            yield svg.box(x, y, wide, _BAR, f"{_kind(cause)} edge")
            x += wide
    yield svg.text(max(x, _LEFT) + 8, y + 16, size(total), size=13)


def _legend(used: Counter[str], y: float) -> Iterator[list[str]]:
    """Explain the colours that occur, each with its sum, in two columns."""
    causes = [cause for cause, total in used.most_common() if total > 0]
    for row in range(0, len(causes), 2):
        line = []
        for column, cause in enumerate(causes[row : row + 2]):
            x, at = _MARGIN + column * 456, y + 11 * row
            words = CAUSES.get(cause, ("", cause))[1]
            line.append(svg.box(x, at, 18, 14, f"{_kind(cause)} edge"))
            line.append(svg.text(x + 26, at + 11, svg.fitted(f"{size(used[cause])}: {words}", 420, 13), "soft"))
        yield line


def _remedies(disk: DiskExplanation, y: float) -> Iterator[str]:
    """Say which settings would free most."""
    for number, each in enumerate(disk.remedies[:_REMEDIES]):
        words = f"{each.setting} for {each.topic} would free {size(each.freed_bytes)}"
        yield svg.text(
            _MARGIN, y + 22 * number, svg.fitted(words, _WIDTH - 2 * _MARGIN, 14, bold=True), size=14, bold=True
        )


def _kind(cause: str) -> str:
    return CAUSES.get(cause, ("panel", ""))[0]
