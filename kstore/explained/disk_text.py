"""The text of a `DiskExplanation`: the space by topic and partition, what holds it, and what would free it.

Text from the logs is escaped, so it may be printed on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.base.numbers import size
from kstore.base.terminal import escaped
from kstore.base.text_table import table_lines
from kstore.explained.disk_picture import CAUSES

if TYPE_CHECKING:
    from kstore.explained.explained_disk import DiskExplanation, ExplainedPartition, HeldBytes

__all__ = ["disk_text"]

_ROWS = 12  # of each table, unless everything is asked for


def disk_text(found: DiskExplanation, *, everything: bool = False) -> str:
    """Return the explanation as text. Of many topics and partitions only the largest, unless `everything` is set."""
    most = None if everything else _ROWS
    return "\n".join(map(escaped, _lines(found, most)))


def _lines(found: DiskExplanation, most: int | None) -> Iterator[str]:
    free = "" if found.free_bytes is None else f", {size(found.free_bytes)} free"
    yield f"{', '.join(found.paths)}: {size(found.disk_bytes)} on disk{free}, at {times.show(found.at_ms)}"
    if found.note is not None:
        yield f"note: {found.note}"
    yield ""
    if 1 < len(found.topics) < len(found.partitions):
        yield from _topics(found, most)
        yield ""
    yield from _partitions(found.partitions, most)
    for held in found.others:
        yield f"outside of partitions: {size(held.size_bytes)} {held.explanation}"
    yield ""
    yield from _held(found, most)
    yield ""
    yield from _remedies(found, most)
    for partition in found.partitions:
        if partition.error is not None:
            yield f"{partition.topic}-{partition.partition} cannot be read: {partition.error}"


def _topics(found: DiskExplanation, most: int | None) -> Iterator[str]:
    by_topic: dict[str, list[ExplainedPartition]] = {}
    for partition in found.partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    rows = [
        (
            topic,
            len(by_topic[topic]),
            size(on_disk),
            f"{100 * on_disk // max(found.disk_bytes, 1)} %",
            size(sum(each.log_bytes for each in by_topic[topic])),
            size(sum(each.expired_bytes for each in by_topic[topic])),
        )
        for topic, on_disk in list(found.topics.items())[:most]
    ]
    yield from table_lines(("topic", "partitions", "on disk", "share", "logs", "goes next"), rows)
    yield from _left_out(len(found.topics) - len(rows), "topic")


def _partitions(partitions: Sequence[ExplainedPartition], most: int | None) -> Iterator[str]:
    if not partitions:
        yield "no partition is here"
        return
    rows = [
        (
            f"{each.topic}-{each.partition}",
            size(each.disk_bytes),
            size(each.log_bytes),
            each.segments,
            size(each.expired_bytes),
            ", ".join(f"{_cause(held.cause)}: {size(held.size_bytes)}" for held in each.held) or "-",
        )
        for each in partitions[:most]
    ]
    yield from table_lines(("partition", "on disk", "log", "segments", "goes next", "what holds it"), rows)
    yield from _left_out(len(partitions) - len(rows), "partition")


def _cause(cause: str) -> str:
    return CAUSES[cause][1] if cause in CAUSES else cause


def _held(found: DiskExplanation, most: int | None) -> Iterator[str]:
    """Return what holds the space: for each topic and cause the bytes of all partitions, and the words of the first."""
    groups: dict[tuple[str, str], list[tuple[ExplainedPartition, HeldBytes]]] = {}
    expired = sum(partition.expired_bytes for partition in found.partitions)
    for partition in found.partitions:
        for held in partition.held:
            groups.setdefault((partition.topic, held.cause), []).append((partition, held))
    if expired:
        yield f"the next check deletes {size(expired)}"
    if not groups:
        return
    yield "what holds the rest:" if expired else "what holds it:"
    totals = {key: sum(held.size_bytes for _, held in group) for key, group in groups.items()}
    shown = sorted(groups, key=lambda key: -totals[key])[:most]
    for key in shown:
        partition, held = groups[key][0]
        others = len(groups[key]) - 1
        where = f"{partition.topic}-{partition.partition}" + (f" and {others} more partitions" if others > 1 else "")
        where += " and 1 more partition" if others == 1 else ""
        yield f"  {size(totals[key])} in {where}: {held.explanation}"
    yield from _left_out(len(groups) - len(shown), "reason")


def _remedies(found: DiskExplanation, most: int | None) -> Iterator[str]:
    if not found.remedies:
        yield "no setting of those that were tried would free space"
        return
    yield "what would free space:"
    shown = found.remedies[:most]
    rows = [
        (
            f"{'at most ' if remedy.is_at_most else ''}{size(remedy.freed_bytes)}",
            remedy.topic,
            remedy.setting,
            "next check" if remedy.from_ms is None else times.show(remedy.from_ms),
            remedy.explanation,
        )
        for remedy in shown
    ]
    yield from (f"  {line}" for line in table_lines(("frees", "topic", "setting", "when", "how"), rows))
    yield from _left_out(len(found.remedies) - len(shown), "setting")


def _left_out(count: int, noun: str) -> Iterator[str]:
    if count > 0:
        yield f"  ... and {count} more {noun}{'s' if count != 1 else ''}; --all shows them"
