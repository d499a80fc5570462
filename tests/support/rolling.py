"""The rule by which a log starts a new segment, said in Python: what the compiled appender is compared with."""

from __future__ import annotations

from kstore.base.numbers import INT_MAX
from kstore.log.segments.roll import RollLimits


def reason(
    limits: RollLimits,
    *,
    base_offset: int,
    size_bytes: int,
    waited_ms: int,
    offset_entries: int,
    time_entries: int,
    append_bytes: int,
    append_last_offset: int,
) -> str | None:
    """Say why an append of `append_bytes` starts a new segment, or None when it does not.

    `waited_ms` is the append's greatest timestamp minus that of the segment's first batch, or the age by the clock
    where the first batch has no timestamp (SEMANTICS 2.4).
    """
    if size_bytes > limits.segment_bytes - append_bytes:
        return "size"
    if size_bytes > 0 and waited_ms > limits.wait_ms:
        return "time"
    if offset_entries >= limits.offset_entries:
        return "offset_index_full"
    if time_entries >= limits.time_entries:
        return "time_index_full"
    if not 0 <= append_last_offset - base_offset <= INT_MAX:
        return "offset_range"
    return None
