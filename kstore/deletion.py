"""Retention carried out: what `retention` decides, done to an open log (SEMANTICS.md 6.9 to 6.14).

Works on the state of a writable log (writer.py), or, for a plan, on any view of one. The hardest rule: the log start
is on the disk before the first segment below it is renamed, so that a crash in between, which may keep any of the
renames and lose the others, leaves no gap that anybody could read into. The disk is waited for without the gate.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from typing import TYPE_CHECKING

from kstore import fs
from kstore.errors import CorruptRecordError, StorageError
from kstore.reading import SegmentList, View, describe, steadily
from kstore.retention import Deletion, Marks, Outlook, decide, outlook
from kstore.segment import Segment, SegmentInfo

if TYPE_CHECKING:
    from kstore.config import LogConfig
    from kstore.writer import Writer

logger = logging.getLogger("kstore")
future_logger = logging.getLogger("kstore.future")  # of its own, as in Kafka: one such record may warn for weeks (6.6)


class _Seen:
    """A segment as a view shows it: `retention.Facts`."""

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
    """Say what goes now and why, and why the first segment behind that stays; changes nothing, takes no lock."""
    return steadily(_survey, view, config, now_ms, view=view)


def _survey(view: View, config: LogConfig, now_ms: int) -> tuple[list[Deletion], Outlook | None]:
    facts = [_Seen(view, segment) for segment in view.segments.items]
    end = view.log_end_offset
    marks = Marks(view.log_start_offset, end, end)
    deletions = decide(facts, config, marks, now_ms)
    return deletions, outlook(facts[len(deletions) :], config, marks, now_ms)


def apply(writer: Writer) -> list[SegmentInfo]:
    """Delete what may go by the log's clock; the segments that went, oldest first.

    When it raises, the log start may be raised already and some of the segments be gone; the next pass goes on there.
    """
    writer.refuse_if_unusable()
    now_ms = writer.now()
    deletions, stays = survey(writer, writer.config, now_ms)
    if stays is not None and stays.largest_timestamp is not None and stays.largest_timestamp > now_ms:
        future_logger.warning("%s: segment %d stays: %s", writer.directory, stays.base_offset, stays.explanation)
    if not deletions:
        return []
    with writer.gate():
        doomed = _doom_locked(writer, now_ms)
    if not doomed:
        return []
    infos = {segment: _info(writer, segment, found) for segment, found in doomed.items()}
    start = max(found.next_offset for found in doomed.values())
    start_is_written = _write_start(writer)
    with writer.gate():
        gone = _drop_locked(writer, doomed, start, start_is_written)
    for segment in gone:
        why = doomed[segment]
        logger.info("%s: segment %d goes (%s): %s", writer.directory, why.base_offset, why.reason, why.explanation)
    return [infos[segment] for segment in gone]


def _doom_locked(writer: Writer, now_ms: int) -> dict[Segment, Deletion]:
    """Decide once more, now that nothing changes; roll if nothing would be left (6.9); raise the log start (6.10)."""
    deletions = _survey(writer, writer.config, now_ms)[0]
    segments = writer.segments.items
    if deletions and len(deletions) == len(segments):
        try:
            writer.roll_locked("retention", writer.log_end_offset)
        except StorageError as error:
            if not _is_full(error) or writer.active is not segments[-1]:
                raise
            logger.warning("%s: no room for a new segment, so the active one stays: %s", writer.directory, error)
            deletions.pop()
            if not deletions:
                raise
    if deletions and deletions[-1].next_offset > writer.log_start_offset:
        writer.raise_start_locked(deletions[-1].next_offset)
    return dict(zip(segments, deletions, strict=False))


def _info(writer: Writer, segment: Segment, found: Deletion) -> SegmentInfo:
    """What there is to say of a segment that goes; of a damaged one only what the decision has seen."""
    with suppress(CorruptRecordError, StorageError):
        return describe(writer, segment, found.next_offset, is_active=False)
    return SegmentInfo(
        base_offset=segment.base_offset,
        next_offset=found.next_offset,
        size_bytes=found.size_bytes,
        offset_index_entries=0,
        time_index_entries=0,
        max_timestamp=-1,
        first_timestamp=-1,
        is_active=False,
        path=segment.path,
        roll_reason=segment.roll_reason,
    )


def _write_start(writer: Writer) -> bool:
    """Write the log start to its file; False on a full disk, where deleting is what makes room for it."""
    try:
        writer.upkeep.write_checkpoints(keep_start=True)
    except StorageError as error:
        if not _is_full(error):
            raise
        logger.warning("%s: no room to write the log start: %s", writer.directory, error)
        return False
    return True


def _drop_locked(
    writer: Writer, doomed: dict[Segment, Deletion], start: int, start_is_written: bool
) -> Sequence[Segment]:
    """Take the doomed segments that still lie below the log start out of the log, then rename their files."""
    segments = writer.segments
    bound = min(start, writer.log_start_offset)  # a truncation may have come in between
    count = 0
    while segments.items[count] in doomed and segments.bases[count + 1 : count + 2] <= (bound,):
        count += 1
    gone = segments.items[:count]
    if not gone:
        return gone
    if start_is_written:
        with writer.upkeep.dropping():
            _delete_locked(writer, gone, one_by_one=False)
    else:
        _delete_locked(writer, gone, one_by_one=True)
    writer.upkeep.start_at(bound)
    try:
        writer.epochs.flush()
    except StorageError as error:
        if not _is_full(error):
            raise
        logger.warning("%s: the leader epochs keep an entry too many for now: %s", writer.directory, error)
    return gone


def _delete_locked(writer: Writer, gone: Sequence[Segment], *, one_by_one: bool) -> None:
    """Rename the segments' files, oldest first; `one_by_one`, each durably before the next, so that no gap can be."""
    segments = writer.segments
    # The readers first, before their files go.
    writer.segments = SegmentList(list(segments.items[len(gone) :]))
    writer.wake()
    done = 0
    try:
        for done, segment in enumerate(gone):  # noqa: B007
            writer.delete_locked(segment)
            if one_by_one:
                fs.sync_directory(writer.directory)
    except BaseException:
        # What still has its name is still of the log, below its start; the next pass tries again.
        left = [segment for segment in gone[done:] if fs.exists(segment.path)]
        writer.segments = SegmentList([*left, *segments.items[len(gone) :]])
        writer.wake()
        raise


def _is_full(error: StorageError) -> bool:
    return error.errno in (ENOSPC, EDQUOT)
