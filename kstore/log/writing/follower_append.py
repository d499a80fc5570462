"""Appending batches as a follower, with the offsets and leader epochs that they carry.

The caller holds the writer's gate. Invariant: a refused append changes nothing. It leaves no batch, no producer, no
leader epoch, and no segment that was started for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kstore.base.numbers import INT_MAX
from kstore.codec import validation
from kstore.log.segments._producer_state import Origin
from kstore.log.writing import producer_append
from kstore.log.writing._appender import Code

if TYPE_CHECKING:
    from kstore.codec.validation import Analysis, Batch
    from kstore.log.writing.writer import Writer


class _SplitError(Exception):
    """The batches need more index entries, or span more offsets, than one segment can hold."""


def append_locked(writer: Writer, analysis: Analysis) -> None:
    """Append a follower's batches in one append, or one by one if a segment cannot hold all (SEMANTICS 1.35, 3.7a).

    The producers are checked first, so a refused append leaves neither epochs nor a segment (unlike SEMANTICS 1.30).
    """
    batches, data = analysis.batches, memoryview(analysis.data)[: analysis.valid_bytes]
    _stage(writer, data, batches)
    try:
        writer.append_epochs.assign_of(batches)
        _append_staged(writer, data, batches)
    except _SplitError:
        position = 0
        if analysis.batches_count > len(batches):
            batches = validation.analyze(data, origin="follower").batches
        for batch in batches:
            part = data[position : position + batch.size_bytes]
            _stage(writer, part, (batch,))
            _append_staged(writer, part, (batch,))
            position += batch.size_bytes
    finally:
        writer.producers.table.drop()
        writer.append_epochs.take_latest()


def _stage(writer: Writer, data: memoryview, batches: Sequence[Batch]) -> None:
    """Check and stage the batches that carry a producer id. If it raises, nothing has changed."""
    table = writer.producers.table
    try:
        for batch in batches:
            if batch.producer_id >= 0:
                table.stage(data, batch.position - batches[0].position, batch.base_offset, Origin.FOLLOWER)
    except BaseException:
        table.drop()
        raise


def _append_staged(writer: Writer, data: memoryview, batches: Sequence[Batch]) -> None:
    """Append bytes whose batches are staged. If it raises, no batch and no new segment remains."""
    before, end, gap = writer.segments, writer.appender.next_offset, writer.housekeeping.gap
    try:
        _write(writer, data, batches)
    except BaseException:
        writer.producers.table.drop()
        if writer.segments is not before and writer.active.base_offset > writer.appender.next_offset == end:
            writer.undo_done_roll_locked(before, end, gap)
        raise
    writer.published()


def _write(writer: Writer, data: memoryview, batches: Sequence[Batch]) -> None:
    # The base of a segment that this append may start (SEMANTICS 2.7).
    first = batches[0].base_offset if batches[0].magic >= 2 else batches[-1].last_offset - INT_MAX
    base_offset = max(first, writer.log_end_offset)
    if len(batches) > 1 and batches[-1].last_offset - base_offset > INT_MAX:
        raise _SplitError
    if any(batch.producer_id >= 0 for batch in batches):
        writer.roll_for(writer.appender.should_roll(data, True), base_offset)
        code = producer_append.write_staged_locked(writer, data, follower=True)
    else:
        code, _ = writer.appender.commit(data, 0, True)
        if code not in (Code.DONE, Code.SPLIT):
            writer.roll_for(code, base_offset)
            code, _ = writer.appender.commit(data, 0, True, True)
    if code == Code.SPLIT:
        raise _SplitError
    writer.roll_for(code, base_offset)  # the code is DONE or BUSY; for BUSY `roll_for` raises
