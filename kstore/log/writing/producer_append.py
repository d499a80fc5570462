"""Appending batches that carry a producer id: each is first checked against the state of its producer.

Functions over a `Writer` whose gate is held. Invariant: the table of producers counts a batch if and only if the batch
is in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kstore.codec import header
from kstore.files.txnindex import AbortedTxn
from kstore.log.segments._producer_state import Origin

if TYPE_CHECKING:
    from kstore.log.writing.writer import Writer


def append_locked(
    writer: Writer, batches: bytearray | memoryview, origin: int, transaction_version: int | None = None
) -> tuple[int, int, int]:
    """Append whole v2 batches that carry a producer id, each as its own append (SEMANTICS 1.28 to 1.32).

    Return the first and last offset, and the timestamp of the last batch if the log already had it, else -1: such a
    batch is not stored again. Raises what `ProducerTable.stage` raises; the batches before are then in the log, and so
    is a new segment that was started for the refused one (SEMANTICS 1.30).
    """
    view = memoryview(batches)
    first = last = timestamp = -1
    taken = 0
    try:
        while taken < len(view):
            size = header.size_of(view, taken)
            done = _append_first(writer, view[taken:]) if size < len(view) - taken else 0
            if done:
                begin, last, timestamp = header.BASE_OFFSET.of(view, taken), writer.appender.next_offset - 1, -1
            else:
                done = size
                begin, last, timestamp = append_one_locked(
                    writer, view[taken : taken + size], origin, transaction_version
                )
            first = begin if first < 0 else first
            taken += done
    finally:
        view.release()
    writer.published()
    return first, last, timestamp


def _append_first(writer: Writer, batches: memoryview) -> int:
    """Append as many of a client's batches as one write can take. Return the number of bytes taken."""
    appender, table = writer.appender, writer.producers.table
    if len(table) == 0:
        writer.housekeeping.watch_producers()
    writer.roll_for(appender.should_roll(batches, False), writer.log_end_offset)
    _, done = table.write_all(appender.commit, batches, appender.next_offset, Origin.CLIENT)
    return done


def append_one_locked(
    writer: Writer, batch: memoryview, origin: int, transaction_version: int | None
) -> tuple[int, int, int]:
    """Append one batch, as `append_locked` does; the caller calls `published` afterwards."""
    appender, table = writer.appender, writer.producers.table
    writer.roll_for(appender.should_roll(batch, False), writer.log_end_offset)
    first = appender.next_offset
    try:
        known = table.stage(batch, 0, first, origin, transaction_version)
        if known is not None:
            return known
        code = write_staged_locked(writer, batch, follower=False)
    except BaseException:
        table.drop()  # also after an interrupt between the two calls: otherwise the next write would publish this batch
        raise
    writer.roll_for(code, first)  # the code is DONE or BUSY; for BUSY `roll_for` raises
    return first, appender.next_offset - 1, -1


def write_staged_locked(writer: Writer, data: memoryview, *, follower: bool) -> int:
    """Write staged batches, and before them the aborted transactions that they end. Return the appender's code."""
    table = writer.producers.table
    if len(table) == 0:
        writer.housekeeping.watch_producers()
    aborted = table.aborted()
    if not aborted:
        return table.write(writer.appender.commit, data, follower)
    index, appender = writer.active.txn_index, writer.appender
    entries_before, end = len(index.entries), appender.next_offset
    try:
        for transaction in aborted:
            index.append(AbortedTxn(0, *transaction))
        return table.write(appender.commit, data, follower)
    finally:
        if entries_before == 0:
            writer.housekeeping.owe_names()
        if appender.next_offset == end:  # otherwise the marker is in the log, whatever was raised after it
            table.drop()
            index.cut(entries_before)
