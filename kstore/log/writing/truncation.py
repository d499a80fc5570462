"""Truncation: cutting records at the end, restarting the log at another offset, raising the log start.

Functions over a `Writer`. Invariant: before a record is cut, the recovery point in its file is at or below the cut, and
readers have been notified.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from kstore.disk import fs
from kstore.files import gap_files
from kstore.log.reading.view import SegmentList, out_of_range
from kstore.log.segments.segment import Segment
from kstore.log.writing.housekeeping import Gap

if TYPE_CHECKING:
    from kstore.log.writing.writer import Writer


def truncate_to(writer: Writer, offset: int) -> bool:
    """Drop the records at and above `offset`, batch by batch (SEMANTICS 11.1 to 11.5). Return whether any existed."""
    if offset < 0:
        raise ValueError(f"an offset to truncate to must not be negative, and this is {offset}")
    # The active segment is never cleaned.
    reaches_cleaned = writer.segments.bases[-1:] > (offset,)
    with writer.cleaning.paused() if reaches_cleaned else nullcontext(), writer.gate():
        if offset >= writer.log_end_offset:
            writer.epochs.truncate_from_end(writer.log_end_offset)
            with suppress(fs.FullDiskError):
                writer.epochs.flush()
            writer.append_epochs.were_cut()
            return False
        if writer.segments.bases[0] > offset:
            _restart_locked(writer, offset, offset)
            return True
        writer.settle()
        dropped = [segment for segment in writer.segments.items if segment.base_offset > offset]
        kept = [segment for segment in writer.segments.items if segment.base_offset <= offset]
        position, data_end = kept[-1].find_cut(offset)
        writer.producers.end_offset = writer.log_end_offset
        with writer.housekeeping.cutting(data_end):
            _cut_locked(writer, offset, position, data_end, dropped, kept)
        writer.wake()
        if reaches_cleaned:
            _lower_first_dirty_locked(writer)
        return True


def _lower_first_dirty_locked(writer: Writer) -> None:
    """Lower the first-dirty line to the active segment's base, after which all is dirty (SEMANTICS 11.6)."""
    if not writer.config.compacts:
        return
    housekeeper, active_base = writer.housekeeping.housekeeper, writer.segments.bases[-1]
    if (housekeeper.first_dirty(writer.partition) or 0) > active_base:
        with suppress(fs.FullDiskError):  # harmless: fewer records are cleaned if the line stays higher
            housekeeper.write_first_dirty(writer.partition, active_base)


def _cut_locked(
    writer: Writer, offset: int, position: int, data_end: int, dropped: list[Segment], kept: list[Segment]
) -> None:
    # Readers are notified first: whatever they find in the files from here on, they see that the log has changed.
    start = writer.log_start_offset
    try:
        writer.cut_by, writer.is_unsettled = threading.get_ident(), True
        writer.appender.detach()
        kept[-1].size_bytes = position
        writer.segments = SegmentList(kept)
        writer.log_start_offset = min(offset, writer.log_start_offset)
        writer.announce_cut(offset)
        for segment in reversed(dropped):
            writer.delete_locked(segment)
        if dropped:
            fs.sync_directory(writer.directory)  # otherwise a power cut may bring them back after new records
        kept[-1].truncate_to(offset, position, writer.now())
        writer.attach_locked(offset)
        writer.housekeeping.gap = Gap(data_end, offset)
        writer.epochs.truncate_from_end(offset)
        with suppress(fs.FullDiskError):  # both files then keep stale entries, which the next opening cuts
            gap_files.cut_gaps(writer.directory, data_end)
            writer.epochs.flush()
        writer.append_epochs.were_cut()
        writer.producers.rebuild(
            writer.log_start_offset, offset, writer.segments.items, clean=False, now_ms=writer.now()
        )
        writer.cut_by, writer.is_unsettled = 0, False
        try:
            writer.housekeeping.write_checkpoints()
        except fs.FullDiskError:
            if writer.log_start_offset < start:
                raise  # the written log start is above the log's end: the next opening would drop every record
    except BaseException as error:
        writer.fail(error)
        raise


def restart(writer: Writer, offset: int, log_start_offset: int) -> None:
    """Empty the log and restart it at an unrelated `offset` (SEMANTICS 11.7, 11.8)."""
    with writer.cleaning.paused(), writer.gate():
        _restart_locked(writer, offset, log_start_offset)


def _restart_locked(writer: Writer, offset: int, log_start_offset: int) -> None:
    writer.settle()
    # A higher log start is written before the old records are removed, a lower one afterwards. So a crash in between
    # leaves a log that may start at the written offset, and brings back no record that had been deleted.
    flushed, begun = min(writer.housekeeping.recovery_point, offset), False
    try:
        # The recovery point is 0 in this block: a crash may leave any prefix of the log, or no segment at all.
        with writer.housekeeping.cutting(0, log_start_offset=log_start_offset):
            begun = True
            try:
                _replace_all_locked(writer, offset, log_start_offset, flushed)
            except BaseException as error:
                writer.fail(error)  # before a waiting flush continues: there may be no segment
                raise
    except BaseException as error:
        if begun or not isinstance(error, fs.FullDiskError):
            writer.fail(error)
        else:
            _take_back_start(writer)
        raise
    writer.wake()
    _lower_first_dirty_locked(writer)


def _take_back_start(writer: Writer) -> None:
    """Write the old log start to its file again: a store would write the refused one as soon as there is space.

    With a log start above the data, the next opening drops every record (SEMANTICS 8.11).
    """
    try:
        writer.housekeeping.write_checkpoints()
    except fs.FullDiskError:
        pass  # a later write of the checkpoints writes it
    except BaseException as error:
        writer.fail(error)


def _replace_all_locked(writer: Writer, offset: int, log_start_offset: int, flushed: int) -> None:
    # Readers are notified before their files are renamed.
    old = writer.segments.items
    writer.is_unsettled = True
    writer.appender.detach()
    writer.segments = SegmentList([])
    writer.announce_cut(-1)
    for segment in reversed(old):
        writer.housekeeping.unlink_later(segment.mark_deleted())
    fs.sync_directory(writer.directory)
    writer.epochs.clear_and_flush()  # before the new segment: an empty log at 0 has no entries, and looks closed
    new = writer.new_segment(offset)
    writer.create(new)
    fs.sync_directory(writer.directory)  # the file's name may be all that says where the log starts
    writer.log_start_offset = log_start_offset
    writer.segments = SegmentList([new])
    writer.attach_locked(offset)
    writer.append_epochs.were_cut()
    writer.producers.reset(offset, log_start_offset)
    writer.housekeeping.gap = None
    writer.housekeeping.keeps_start = False
    writer.is_unsettled = False
    gap_files.cut_gaps(writer.directory, 0)
    writer.housekeeping.start_at(flushed)
    writer.housekeeping.owe_names()
    writer.housekeeping.write_checkpoints()


def delete_records(writer: Writer, before_offset: int) -> None:
    """Make everything below `before_offset` (-1: the log end) unreadable, on the disk too (SEMANTICS 11.9 to 11.12).

    Also write a log start that a full disk has kept from its file. Raises `OffsetOutOfRangeError` beyond the log end.
    The flush does not hold the gate, so a truncation may come in between: the offset is checked again under the gate.
    """
    offset = writer.log_end_offset
    if before_offset != -1:
        offset = before_offset
        _refuse_start(writer, offset)
    while offset > 0:
        # Flush to the log end: `offset` may lie in a gap, and a recovery point must not.
        is_flushed = writer.housekeeping.has_flushed(offset, indexes=True)
        writer.housekeeping.flush(offset if is_flushed else None, indexes=True)
        with writer.gate():
            if before_offset == -1:
                offset = min(offset, writer.log_end_offset)
            _refuse_start(writer, offset)
            if offset > writer.log_start_offset:
                if not writer.housekeeping.has_flushed(offset, indexes=True):
                    continue  # records were cut and others appended since
                raise_start_locked(writer, offset)
                writer.housekeeping.start_at(offset)
            with suppress(fs.FullDiskError):  # the file keeps stale entries until there is space
                writer.epochs.flush()
            writer.housekeeping.write_checkpoints()
            return


def _refuse_start(writer: Writer, offset: int) -> None:
    if not 0 <= offset <= writer.log_end_offset:
        raise out_of_range(offset, writer.log_start_offset, writer.log_end_offset)


def raise_start_locked(writer: Writer, offset: int) -> None:
    """Raise the log start in memory, adjust epochs and producers to it (SEMANTICS 11.11), and notify readers."""
    writer.log_start_offset = offset
    writer.epochs.truncate_from_start(offset)
    writer.producers.raise_start(offset)
    writer.wake()
