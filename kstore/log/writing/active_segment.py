"""Transfers state between an appender and the segment that it appends to.

`Writer` and `SegmentWriter` call these functions with their gate held.
"""

from __future__ import annotations

from kstore.config.log_config import LogConfig
from kstore.disk import openfiles
from kstore.log.segments.roll import draw_jitter, limits
from kstore.log.segments.segment import Segment
from kstore.log.writing._appender import Appender, Code

DESCRIPTORS = 3  # the log, the offset index, the time index

ROLL_REASONS: dict[int, str] = {
    Code.ROLL_SIZE: "size",
    Code.ROLL_TIME: "time",
    Code.ROLL_OFFSET_INDEX_FULL: "offset_index_full",
    Code.ROLL_TIME_INDEX_FULL: "time_index_full",
    Code.ROLL_OFFSET_RANGE: "offset_range",
}


def renew(appender: Appender, segment: Segment, config: LogConfig, now_ms: int) -> None:
    """Give an empty segment the age and the jitter of a new one."""
    segment.created_ms = appender.created_ms = now_ms
    segment.jitter_ms = draw_jitter(config)
    limit(appender, segment, config)


def configure(appender: Appender, config: LogConfig) -> None:
    appender.configure(
        max_message_bytes=config.max_message_bytes,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
        log_append_time=config.message_timestamp_type == "LogAppendTime",
        key_required="compact" in config.cleanup_policy,
        plain=config.compression_type in ("producer", "uncompressed"),
    )


def limit(appender: Appender, segment: Segment, config: LogConfig) -> None:
    """Give the appender the limits above which the segment is rolled."""
    of_segment = limits(
        config,
        jitter_ms=segment.jitter_ms,
        max_offset_entries=segment.offset_index.max_entries,
        max_time_entries=segment.time_index.max_entries,
    )
    appender.limit(
        segment_bytes=of_segment.segment_bytes,
        wait_ms=of_segment.wait_ms,
        offset_entries=of_segment.offset_entries,
        time_entries=of_segment.time_entries,
        index_interval_bytes=segment.index_interval_bytes,
    )


def attach(appender: Appender, segment: Segment, next_offset: int) -> None:
    """Make the appender write to a segment, from `next_offset` on."""
    timestamp, offset = segment.maximum
    first_timestamp = segment.first_timestamp()
    file = segment.file
    appender.attach(
        log_fd=file.fd,
        offset_fd=segment.offset_index.fd,
        time_fd=segment.time_index.fd,
        base_offset=segment.base_offset,
        size=segment.size_bytes,
        next_offset=next_offset,
        offset_entries=segment.offset_index.entries,
        time_entries=segment.time_index.entries,
        last_time_entry=segment.time_index.last[0],
        max_timestamp=timestamp,
        max_timestamp_offset=offset,
        first_timestamp=-1 if first_timestamp is None else first_timestamp,
        created_ms=segment.created_ms,
        offset_index=segment.offset_index,
        time_index=segment.time_index,
        log=file,
    )


def settle(appender: Appender, segment: Segment) -> None:
    """Copy the appender's counters into the segment."""
    segment.size_bytes = appender.size
    segment.maximum = (appender.max_timestamp, appender.max_timestamp_offset)


def park(appender: Appender, segment: Segment, *, unsynced: bool) -> None:
    """Release the descriptors, maps and buffers of both; `unsynced` says whether the log has unsynced bytes.

    The segment keeps the `.log` file, and syncs it before it closes it (`Segment.let_go`).
    """
    assert segment.file is not None  # opens it if the segment has closed it while the appender was resuming
    segment.unsynced = unsynced
    appender.park()
    segment.pinned = False
    openfiles.opened(segment)
    segment.offset_index.park()
    segment.time_index.park()


def resume(appender: Appender, segment: Segment) -> None:
    """Give a parked appender new descriptors of the segment's files."""
    try:
        file = segment.file
        appender.resume(log_fd=file.fd, offset_fd=segment.offset_index.fd, time_fd=segment.time_index.fd, log=file)
    except BaseException:
        segment.offset_index.park()
        segment.time_index.park()
        raise
