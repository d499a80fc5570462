"""`Store.explain`: what takes the space of a store's directories, what holds it, and which settings would free it.

Changes nothing. Partitions whose logs are not open are opened for reading, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.base.numbers import size
from kstore.disk import fs
from kstore.errors import KStoreError, StorageError
from kstore.explained.explained_disk import DiskExplanation, ExplainedPartition, HeldBytes
from kstore.explained.time_scale import duration
from kstore.files.broker_directory import of_brokers
from kstore.log.explaining.unknown_settings import is_of_store, kafka_default, of_store, unchecked, would_delete
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.disk_usage import Meter, Usage
from kstore.store.remedies import Case, case_of, find_remedies

if TYPE_CHECKING:
    from kstore.explained.explanation import ExplainedSegment, Explanation
    from kstore.log.writing.retention import Deletion
    from kstore.store.catalog import Entry
    from kstore.store.metadata import Metadata
    from kstore.store.read_only_logs import Logs

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
    metadata: Metadata, logs: Logs, topic: str | None, at: int | None, progress: Callable[[int, int], None] | None
) -> DiskExplanation:
    """Return what takes the space of a store's directories, or of one topic; see `Store.explain`."""
    current = metadata.current()
    entries = current.entries() if topic is None else list(current.partitions(topic).values())
    at_ms = logs.now() if at is None else at
    meter = Meter()
    partitions: list[ExplainedPartition] = []
    cases: dict[str, list[Case]] = {}
    unknown = _Unknown(at_ms)
    for done, entry in enumerate(entries):
        if progress is not None:
            progress(done, len(entries))
        usage = meter.partition(entry.path)
        try:
            explanation, case = _look(entry, metadata, logs, at_ms)
        except KStoreError as error:
            metadata.refuse_if_closed()
            if entry.failure is not None or fs.exists(entry.path):  # else it was deleted since the call started
                partitions.append(_unreadable(entry, usage, error))
            continue
        partitions.append(_partition(entry, usage, explanation))
        cases.setdefault(entry.topic, []).append(case)
        unknown.look(entry.root, case, explanation)
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
        note=unknown.note(),
        others=others,
    )


def _look(entry: Entry, metadata: Metadata, logs: Logs, at_ms: int) -> tuple[Explanation, Case]:
    """Return the facts about a partition. A log that the store does not have open is opened for reading meanwhile."""
    if entry.failure is not None:
        raise entry.failure
    log = entry.log
    if log is not None and not log.closed:
        return _explained(log, at_ms)
    config = metadata.config_of(entry.topic)
    with HostedLog.open_to_read(entry.path, config, metadata.broker, logs.now).log as opened:
        return _explained(opened, at_ms)


def _explained(log: Log, at_ms: int) -> tuple[Explanation, Case]:
    view = HostedLog(log).view
    view.check_end()
    explanation = log.explain(at=at_ms)
    return explanation, case_of(view, log.config, explanation)


class _Unknown:
    """What is not known about the settings of partitions, and about who checks them. Not thread-safe."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms
        self._by_default: dict[str, list[list[Deletion]]] = {}  # by root: what Kafka's default would delete
        self._of_stores: dict[str, None] = {}
        self._locked: dict[str, bool] = {}

    def look(self, root: str, case: Case, explanation: Explanation) -> None:
        """Note what is not known about a partition in `root`."""
        other = kafka_default(root, case.config)
        if other is not None:
            self._by_default.setdefault(root, []).append(case.deletions(other, self._at_ms))
        elif explanation.checks.by == "broker" and is_of_store(root, case.config):
            self._of_stores[root] = None
        if explanation.checks.by != "caller" and root not in self._locked:
            self._locked[root] = fs.is_locked(root)

    def note(self) -> str | None:
        """Return all of it as sentences; None for nothing."""
        sentences = []
        if self._by_default:
            effect = would_delete(gone for of_root in self._by_default.values() for gone in of_root)
            sentences.append(of_brokers(self._by_default, f"{effect[0].upper()}{effect[1:]}."))
        sentences += map(of_store, self._of_stores)
        sentences += [unchecked(root) for root, is_locked in self._locked.items() if not is_locked]
        return " ".join(sentences) or None


def _unreadable(entry: Entry, usage: Usage, error: KStoreError) -> ExplainedPartition:
    return ExplainedPartition(entry.topic, entry.partition, entry.path, 0, usage.total_bytes, 0, 0, (), str(error))


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
    held = [HeldBytes(cause, _size_of(group), _why(cause, group, explanation)) for cause, group in groups.items()]
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


def _why(cause: str, segments: Sequence[ExplainedSegment], explanation: Explanation) -> str:
    """Return what holds some segments, and until when, as a sentence about the first of them."""
    first, settings = segments[0], explanation.settings
    name = f"{'the active ' if first.is_active else ''}segment {first.base_offset}"
    name += f" and {len(segments) - 1} more" if len(segments) > 1 else ""
    until = "" if first.due_ms is None else f" until {times.show(first.due_ms)}"
    if cause == "no_limit":
        given = "retention.ms" in explanation.given
        return f"{name}: neither retention.ms {'' if given else '(not given) '}nor retention.bytes sets a limit"
    if cause == "policy":
        policy = settings["cleanup.policy"] or "empty"
        cleaning = f"; {explanation.compaction.explanation}" if first.compaction is not None else ""
        return f"{name}: cleanup.policy is {policy}, so neither size nor age counts{cleaning}"
    if cause == "future_record":
        return f"{name}: a record is from {times.show(first.max_timestamp)}, ahead of the clock, and keeps it{until}"
    if cause == "earlier_segment":
        return f"{name}: an earlier segment has to go first, and stays{until}"
    if cause == "retention.ms":
        moves = "; each append moves that on" if first.is_active else ""
        return f"{name}: retention.ms keeps {duration(settings['retention.ms'])}, the first{until}{moves}"
    if cause == "retention.bytes":
        more = f"; the first goes after {size(first.bytes_left)} more" if first.bytes_left else ""
        return f"{name}: retention.bytes keeps {size(settings['retention.bytes'])}{more}"
    return f"{name}: {first.explanation}"


def _of_deleted(explanation: Explanation) -> str:
    known = [file.gone_ms for file in explanation.deleted if file.gone_ms is not None]
    until = times.show(max(known)) if known else "the process that deleted them unlinks them"
    return f"deleted files: file.delete.delay.ms keeps them until {until}"
