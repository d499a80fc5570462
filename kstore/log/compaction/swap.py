"""The swap: new segments take the place of the old ones they were made from (SEMANTICS 7.25).

In this order, each step on the disk before the next: all `.cleaned` files are there; they become `.swap` files; readers
get the new list; the old files become `.deleted`; `.swap` goes from the names. Only the exchange of the list is made
inside of the gate. The hardest rule: a power cut may keep any of the renames that no sync has covered and lose the
others, and what is left opens without a loss, by kstore and by Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kstore.disk import fs
from kstore.files import names
from kstore.log.reading.view import SegmentList
from kstore.log.writing.cleaning_guard import CleaningAbortedError

if TYPE_CHECKING:
    from kstore.log.segments.segment import Segment
    from kstore.log.writing.writer import Writer


def swap(writer: Writer, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Put `new`, whose `.cleaned` files are on the disk, in the place of `old`, segments that follow one another.

    When it raises before the list is exchanged, the log is as it was, and no file of `new` is left. Afterwards an error
    has the log refuse writes: its next opening finishes the swap. Raises `CleaningAbortedError` where `old` is not in
    the log any more.
    """
    try:
        _make_swap_files(writer, new)
        with writer.gate():
            _exchange_locked(writer, old, new)
    except BaseException:
        if writer.segments.after(new[0].base_offset - 1) is not new[0] and not writer.closed:
            _take_back(writer, new)
        raise
    try:
        gone = []
        for segment in old:
            gone += segment.rename(names.DELETED)
        fs.sync_directory(writer.directory)
        for segment in new:
            # The lowest base first, each synced before the next: an opening deletes what lies between `.swap` files.
            segment.rename("")
            fs.sync_directory(writer.directory)
        with writer.gate():
            kept = {segment.base_offset for segment in new}
            for segment in old:
                if segment.base_offset not in kept:
                    gone += writer.producers.mark_deleted(segment.base_offset)
            writer.housekeeping.unlink_later(gone)
    except BaseException as error:
        if not writer.closed:
            writer.fail(error)
        raise


def _make_swap_files(writer: Writer, new: Sequence[Segment]) -> None:
    """Rename `.cleaned` to `.swap`, the highest base first, and sync.

    Among several new segments each is synced before the next. An opening takes the `.swap` files below the least
    `.cleaned` one, and then deletes the old segments that these cover: one that was divided among two new segments
    would go although the second is not there. The names that end in `.cleaned` are synced before all: a power cut that
    lost one of them could keep the `.swap` name of another.
    """
    fs.sync_directory(writer.directory)
    for segment in reversed(new):
        segment.rename(names.SWAP)
        fs.sync_directory(writer.directory)


def _exchange_locked(writer: Writer, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    items = writer.segments.items
    start = items.index(old[0]) if old[0] in items else 0
    end = start + len(old)
    if items[start:end] != tuple(old) or end >= len(items):
        raise CleaningAbortedError("the segments that were cleaned are not in the log any more")
    writer.segments = SegmentList([*items[:start], *new, *items[end:]])
    writer.wake()


def _take_back(writer: Writer, new: Sequence[Segment]) -> None:
    """Remove the files of `new`, some of which may be `.swap` files.

    First the lowest log is `.cleaned` again. As long as it is, an opening removes all of them. The old segments have
    their indexes, so that no `.swap` index may take their place.
    """
    first = f"{writer.directory}/{names.log_name(new[0].base_offset)}"
    try:
        if fs.exists(first + names.SWAP):
            fs.rename(first + names.SWAP, first + names.CLEANED)
            fs.sync_directory(writer.directory)
        for segment in reversed(new):
            segment.close()
            for kind in names.SEGMENT_KINDS:
                for state in (names.SWAP, names.CLEANED):
                    path = f"{writer.directory}/{names.file_name(segment.base_offset, kind, state)}"
                    if path != first + names.CLEANED:
                        fs.unlink(path)
        fs.sync_directory(writer.directory)
        fs.unlink(first + names.CLEANED)
    except BaseException as error:
        writer.fail(error)
        raise
