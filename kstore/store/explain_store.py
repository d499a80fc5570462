"""`Store.explain`: what takes the space of a store's directories, what holds it, and which settings would free it.

Changes nothing. Partitions whose logs are not open are opened for reading, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.disk import fs
from kstore.errors import KStoreError, StorageError
from kstore.explained.explained_disk import DiskExplanation, ExplainedPartition, HeldBytes
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.disk_usage import Meter, Usage
from kstore.store.remedies import Case, case_of, find_remedies

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedSegment, Explanation
    from kstore.store.catalog import Entry
    from kstore.store.metadata import Metadata

_CAUSES = (
    "policy",
    "no_limit",
    "high_watermark",
    "future_record",
    "earlier_segment",
    "retention.ms",
    "retention.bytes",
    "log_start",
    "only_segment",
)
"""The reasons that keep a segment; its bytes count for the first that applies."""


def explain(
    metadata: Metadata, topic: str | None, at_ms: int, progress: Callable[[int, int], object] = lambda *_: None
) -> DiskExplanation:
    """Return what takes the space of a store's directories, or of one topic; see `Store.explain`."""
    current = metadata.current()
    entries = current.entries() if topic is None else list(current.partitions(topic).values())
    meter = Meter()
    partitions: list[ExplainedPartition] = []
    cases: dict[str, list[Case]] = {}
    note: str | None = None
    for done, entry in enumerate(entries):
        progress(done, len(entries))
        usage = meter.partition(entry.path)
        try:
            if entry.failure is not None:
                raise entry.failure
            with _opened(entry, metadata) as log:
                explanation = log.explain(at=at_ms)
                case = _case(log, explanation)
            cases.setdefault(entry.topic, []).append(case)
            note = note or explanation.note
            partitions.append(_partition(entry, usage, explanation))
        except KStoreError as error:
            metadata.refuse_if_closed()
            if entry.failure is None and not fs.exists(entry.path):
                continue  # deleted since the call started
            partitions.append(
                ExplainedPartition(entry.topic, entry.partition, entry.path, 0, usage.total_bytes, 0, 0, (), str(error))
            )
    partitions.sort(key=lambda each: (-each.disk_bytes, each.topic, each.partition))
    others = _others(meter, metadata.paths, entries) if topic is None else ()
    other_bytes = sum(held.size_bytes for held in others)
    remedies = [remedy for name, of_topic in cases.items() for remedy in find_remedies(name, of_topic, at_ms)]
    return DiskExplanation(
        paths=tuple(metadata.paths),
        at_ms=at_ms,
        partitions=tuple(partitions),
        topics=_by_topic(partitions),
        disk_bytes=sum(partition.disk_bytes for partition in partitions) + other_bytes,
        other_bytes=other_bytes,
        free_bytes=_free_bytes(metadata.paths),
        remedies=tuple(sorted(remedies, key=lambda remedy: -remedy.freed_bytes)),
        note=note,
        others=others,
    )


@contextmanager
def _opened(entry: Entry, metadata: Metadata) -> Iterator[Log]:
    """Yield the log of a partition: the store's, or one that is opened for reading meanwhile."""
    log = entry.log
    if log is not None and not log.closed:
        yield log
        return
    with Log.open(entry.path, "r", config=metadata.config_of(entry.topic)) as opened:
        yield opened


def _case(log: Log, explanation: Explanation) -> Case:
    last = explanation.segments[-1:]
    first_timestamp = last[0].first_timestamp if last else None
    return case_of(HostedLog(log).view, log.partition, log.config, first_timestamp, explanation.compaction)


def _by_topic(partitions: Iterable[ExplainedPartition]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for partition in partitions:
        totals[partition.topic] = totals.get(partition.topic, 0) + partition.disk_bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _free_bytes(paths: Iterable[str]) -> int | None:
    """Return the free space of the paths' file systems; None if a path is in an object store or cannot be asked."""
    free: dict[int, int] = {}
    for path in paths:
        if fs.is_mounted(path):
            return None
        try:
            free[fs.stat(path).st_dev] = fs.free_bytes(path)
        except StorageError:
            return None
    return sum(free.values())


def _others(meter: Meter, paths: Iterable[str], entries: Iterable[Entry]) -> tuple[HeldBytes, ...]:
    """Return what lies outside of partitions."""
    rest = Usage()
    measured = [entry.path for entry in entries]
    for path in paths:
        rest.add(meter.rest(path, measured))
    found = (
        HeldBytes("staged", rest.staged_bytes, "are staged by bulk loads, until they are committed or discarded"),
        HeldBytes(
            "deleted", rest.deleted_bytes, "are partitions that were deleted, until file.delete.delay.ms is over"
        ),
        HeldBytes("files", rest.other_bytes, "are checkpoints and other files beside the partitions"),
    )
    return tuple(sorted((held for held in found if held.size_bytes), key=lambda held: -held.size_bytes))


# One partition.


def _partition(entry: Entry, usage: Usage, explanation: Explanation) -> ExplainedPartition:
    groups: dict[str, list[ExplainedSegment]] = {}
    for segment in explanation.segments:
        groups.setdefault(_cause(segment), []).append(segment)
    expired = groups.pop("check", [])
    held = [
        HeldBytes(cause, _size_of(segments), f"{_segments(segments)}: {segments[0].explanation}")
        for cause, segments in groups.items()
    ]
    if usage.deleted_bytes:
        held.append(HeldBytes("deleted", usage.deleted_bytes, _of_deleted(explanation)))
    return ExplainedPartition(
        topic=entry.topic,
        partition=entry.partition,
        path=entry.path,
        log_bytes=_size_of(explanation.segments),
        disk_bytes=usage.total_bytes,
        segments=len(explanation.segments),
        expired_bytes=_size_of(expired),
        held=tuple(sorted((each for each in held if each.size_bytes), key=lambda each: -each.size_bytes)),
        error=None,
    )


def _cause(segment: ExplainedSegment) -> str:
    if "check" in segment.holds:
        return "check"
    return next((cause for cause in _CAUSES if cause in segment.holds), segment.holds[0])


def _size_of(segments: Iterable[ExplainedSegment]) -> int:
    return sum(segment.size_bytes for segment in segments)


def _segments(segments: Sequence[ExplainedSegment]) -> str:
    """Name the first of some segments, and say how many more there are."""
    first, more = segments[0], len(segments) - 1
    name = f"{'the active ' if first.is_active else ''}segment {first.base_offset}"
    return f"{name} and {more} more" if more else name


def _of_deleted(explanation: Explanation) -> str:
    known = [file.gone_ms for file in explanation.deleted if file.gone_ms is not None]
    if not known:
        return "deleted files, until the process that deleted them unlinks them (file.delete.delay.ms)"
    return f"deleted files, until {times.show(max(known))} (file.delete.delay.ms)"
