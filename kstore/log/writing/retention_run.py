"""Deletes from an open log the segments that `retention` selects (SEMANTICS 6.9 to 6.14).

Works on a log's `Writer` or, for a plan, on any view of a log. Invariant: the log start is on the disk before the first
segment below it is renamed. A crash in between may keep any of the renames and lose the others, and readers still find
no gap. The gate is not held during a sync, except on a full disk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kstore.disk import fs
from kstore.errors import CorruptRecordError, InvalidTopicError, PolicyViolationError, StorageError
from kstore.files import names
from kstore.log.reading.view import SegmentList, View, describe, steadily
from kstore.log.segments.segment import Segment
from kstore.log.writing import truncation
from kstore.log.writing.retention import Deletion, Marks, Outlook, decide, outlook
from kstore.types import SegmentInfo

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.log.writing.writer import Writer

logger = logging.getLogger("kstore")
# A separate logger, as in Kafka: one record with a future timestamp may warn for weeks (SEMANTICS 6.6).
future_logger = logging.getLogger("kstore.future")


class SegmentFacts:
    __slots__ = ("_segment", "_view", "base_offset")

    def __init__(self, view: View, segment: Segment) -> None:
        self._view = view
        self._segment = segment
        self.base_offset = segment.base_offset

    @property
    def size_bytes(self) -> int:
        return self._view.readable_bytes(self._segment)

    def newest(self) -> tuple[int, bool]:
        timestamp = self._view.maximum(self._segment)[0]
        return (timestamp, False) if timestamp >= 0 else (self._segment.largest_timestamp(), True)


def survey(view: View, config: LogConfig, now_ms: int) -> tuple[list[Deletion], Outlook | None]:
    """Return the segments to delete now, and why the next segment is kept. Changes nothing and takes no lock."""
    return steadily(_survey, view, config, now_ms, view=view)


def _survey(view: View, config: LogConfig, now_ms: int) -> tuple[list[Deletion], Outlook | None]:
    facts = [SegmentFacts(view, segment) for segment in view.segments.items]
    end = view.log_end_offset
    marks = Marks(view.log_start_offset, end, end)
    deletions = decide(facts, config, marks, now_ms)
    return deletions, outlook(facts[len(deletions) :], config, marks, now_ms)


def apply(writer: Writer) -> list[SegmentInfo]:
    """Delete the segments that may be deleted by the log's clock. Return them, oldest first.

    If it raises, the log start may already be raised and some of the segments deleted; the next pass continues there.
    """
    writer.refuse_if_unusable()
    was_full = writer.full is not None
    now_ms = writer.now()
    deletions, stays = survey(writer, writer.config, now_ms)
    if stays is not None and stays.largest_timestamp is not None and stays.largest_timestamp > now_ms:
        future_logger.warning("%s: segment %d stays: %s", writer.directory, stays.base_offset, stays.explanation)
    if not deletions:
        return []
    with writer.cleaning.paused():
        return _apply_paused(writer, now_ms, was_full=was_full)


def _apply_paused(writer: Writer, now_ms: int, *, was_full: bool) -> list[SegmentInfo]:
    with writer.gate():
        to_delete = _decide_locked(writer, now_ms)
    if not to_delete:
        return []
    infos = {segment: _info(writer, segment, decision) for segment, decision in to_delete.items()}
    start = max(decision.next_offset for decision in to_delete.values())
    start_is_written = _write_start(writer)
    with writer.gate():
        gone = _drop_locked(writer, to_delete, start, start_is_written)
    if was_full or writer.full is not None:
        _make_room(writer)
    for segment in gone:
        decision = to_delete[segment]
        reason, explanation = decision.reason, decision.explanation
        logger.info("%s: segment %d is deleted (%s): %s", writer.directory, decision.base_offset, reason, explanation)
    return [infos[segment] for segment in gone]


def _decide_locked(writer: Writer, now_ms: int) -> dict[Segment, Deletion]:
    """Decide again under the gate, and raise the log start (SEMANTICS 6.10).

    Roll if no segment would be left (SEMANTICS 6.9).
    """
    deletions = _survey(writer, writer.config, now_ms)[0]
    segments = writer.segments.items
    if deletions and len(deletions) == len(segments):
        try:
            writer.roll_locked("retention", writer.log_end_offset, before_deletion=True)
        except fs.FullDiskError as error:
            deletions.pop()
            if not deletions:
                raise
            logger.info("%s: no room for a new segment, so the active one stays: %s", writer.directory, error)
    if deletions and deletions[-1].next_offset > writer.log_start_offset:
        truncation.raise_start_locked(writer, deletions[-1].next_offset)
    return dict(zip(segments, deletions, strict=False))


def _info(writer: Writer, segment: Segment, decision: Deletion) -> SegmentInfo:
    """Describe a segment that is deleted; if it is damaged, only by the facts that the decision has read."""
    with suppress(CorruptRecordError, StorageError):
        return describe(writer, segment, decision.next_offset, is_active=False)
    return SegmentInfo(
        base_offset=segment.base_offset,
        next_offset=decision.next_offset,
        size_bytes=decision.size_bytes,
        offset_index_entries=0,
        time_index_entries=0,
        max_timestamp=-1,
        first_timestamp=-1,
        is_active=False,
        path=segment.path,
        roll_reason=segment.roll_reason,
    )


def _write_start(writer: Writer) -> bool:
    """Write the log start to its file. Return False on a full disk, where the deletion frees space for it.

    The names of the segments that stay are synced first. Otherwise a power cut could keep the renames of deleted
    segments and lose the name of a new one, and the recovery point would promise records that no segment has.
    """
    try:
        writer.housekeeping.sync_names()
        writer.housekeeping.write_checkpoints(keep_start=True)
    except fs.FullDiskError as error:
        logger.warning("%s: no room to write the log start: %s", writer.directory, error)
        return False
    return True


def _make_room(writer: Writer) -> None:
    """Unlink deleted files immediately, as the disk is full, and write what could not be written before."""
    writer.housekeeping.unlink_now()
    writer.housekeeping.write_later()
    with suppress(fs.FullDiskError):  # the next checkpoint tries again
        writer.housekeeping.write_checkpoints()


def check_deletable(topic: str, config: LogConfig) -> None:
    """Raise if a client may not delete records of a topic, as in Kafka (SEMANTICS 11.9)."""
    policy = config.cleanup_policy
    if topic in names.INTERNAL_TOPICS:
        raise InvalidTopicError(f"records of the internal topic {topic} are deleted by its coordinator alone")
    if policy and "delete" not in policy:
        raise PolicyViolationError(
            f"cleanup.policy is {','.join(policy)}; records are deleted only where it has 'delete' or is empty"
        )


def raise_start(writer: Writer, before_offset: int) -> None:
    """Make everything below `before_offset` (-1: the log end) unreadable, durably (SEMANTICS 11.9 to 11.12).

    On a full disk, which may have no space for the log start either, the segments below it are deleted immediately.
    """
    was_full = writer.full is not None
    try:
        truncation.delete_records(writer, before_offset)
        if not was_full:
            return
    except fs.FullDiskError:
        pass
    with writer.cleaning.paused(), writer.gate():
        bound, bases = writer.log_start_offset, writer.segments.bases
        gone = [item for item, following in zip(writer.segments.items, bases[1:], strict=False) if following <= bound]
        if gone:
            _delete_locked(writer, gone, one_by_one=True)
    writer.housekeeping.unlink_now()
    truncation.delete_records(writer, before_offset)


def _drop_locked(
    writer: Writer, to_delete: dict[Segment, Deletion], start: int, start_is_written: bool
) -> Sequence[Segment]:
    """Remove from the log the segments that are still below the log start, then rename their files."""
    segments = writer.segments
    bound = min(start, writer.log_start_offset)  # a truncation may have come in between
    count = 0
    for segment, following in zip(segments.items, segments.bases[1:], strict=False):
        if segment not in to_delete or following > bound:
            break
        count += 1
    gone = segments.items[:count]
    if not gone:
        return gone
    if start_is_written:
        with writer.housekeeping.dropping():
            _delete_locked(writer, gone, one_by_one=False)
    else:
        _delete_locked(writer, gone, one_by_one=True)
    writer.housekeeping.start_at(bound)
    with suppress(fs.FullDiskError):  # the file keeps stale entries until there is space
        writer.epochs.flush()
    return gone


def _delete_locked(writer: Writer, gone: Sequence[Segment], *, one_by_one: bool) -> None:
    """Rename the segments' files, oldest first; with `one_by_one`, sync each rename before the next."""
    segments = writer.segments
    # Readers are notified before the files are renamed.
    writer.segments = SegmentList(list(segments.items[len(gone) :]))
    writer.wake()
    done = 0
    try:
        for done, segment in enumerate(gone):  # noqa: B007
            writer.delete_locked(segment)
            if one_by_one:
                fs.sync_directory(writer.directory)
    except BaseException:
        # A segment whose file still has its name stays in the log, below its start; the next pass tries again.
        left = [segment for segment in gone[done:] if fs.exists(segment.path)]
        writer.segments = SegmentList([*left, *segments.items[len(gone) :]])
        writer.wake()
        raise
