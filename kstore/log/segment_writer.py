"""Writes batches into segments for a bulk load, outside of any log; each segment has three files.

A `Log` with the same configuration would have byte for byte the same files after a clean close. Files that only an open
log needs are not written: producer snapshots, epochs, checkpoints, locks.
"""

from __future__ import annotations

import threading
from errno import EIO
from itertools import pairwise
from typing import NamedTuple

from kstore.config.log_config import LogConfig
from kstore.disk import fs, openfiles
from kstore.errors import LogClosedError, StorageError
from kstore.log.segments.segment import Segment, create_files, new_segment
from kstore.log.writing import active_segment
from kstore.log.writing._appender import Appender, Code
from kstore.log.writing._log_gate import Gate

WRITE_BACK_BYTES = 1 << 20  # after this many appended bytes, tell the system to start writing the file to the disk


class WrittenSegment(NamedTuple):
    """A sealed segment: its offsets `[base_offset, next_offset)`, size of the `.log` file, and greatest timestamp."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int


class SegmentWriter:
    """Appends batches without a producer id to new segments in a directory, starting at offset 0, and seals them.

    Rolls when a log with this configuration would roll. The first batch creates the first files. Not thread-safe,
    except that another thread may call the methods of `openfiles.Holder`: `let_go` releases the active segment's
    descriptors until the next append.
    """

    listed = False

    def __init__(self, directory: str, config: LogConfig) -> None:
        config.check_for_writing()
        self.directory = directory
        self.config = config
        self._segments: list[Segment] = []
        self._appender = Appender()
        active_segment.configure(self._appender, config)
        self._gate = Gate(threading.Lock(), self._appender, check=self._make_ready, stopped=lambda: self._closed)
        self._closed = False
        self._unwritten = 0  # bytes appended since the last write-back was started
        self._seen_end = 0
        fs.register(self)

    def append(self, batches: bytearray | memoryview) -> None:
        """Append whole v2 batches and assign their offsets; after an error the files are unusable."""
        with self._gate:
            taken = 0
            rolled = False
            while taken < len(batches):
                code, size = self._appender.commit(batches, taken, False, rolled)
                taken += size
                rolled = code != Code.DONE
                if code == Code.BUSY:
                    raise StorageError(EIO, "a failed write could not be taken back", self.directory)
                if rolled:
                    self._roll()
            self._unwritten += taken
            if self._unwritten >= WRITE_BACK_BYTES:
                self._unwritten = 0
                fs.start_writing(self._segments[-1].file.fd)

    def seal(self) -> list[WrittenSegment]:
        """Seal the last segment, refuse further appends, and return the segments. `flush` must still sync them."""
        if self._segments:
            with self._gate:
                self._seal_active()
        self._closed = True
        borders = [*(segment.base_offset for segment in self._segments), self._appender.next_offset]
        return [
            WrittenSegment(base_offset, next_offset, segment.size_bytes, segment.maximum[0])
            for segment, (base_offset, next_offset) in zip(self._segments, pairwise(borders), strict=True)
        ]

    def flush(self) -> None:
        """Sync the sealed files and the directory."""
        for segment in self._segments:
            segment.flush()
        fs.sync_directory(self.directory)

    def close(self) -> None:
        """Close the files, sealed or not. Idempotent."""
        self._closed = True
        self._appender.busy = True
        self._appender.detach()
        for segment in self._segments:
            segment.close()

    def _make_ready(self) -> None:
        """Create or resume the active segment; called when the gate is entered."""
        if self._closed:
            raise LogClosedError(f"{self.directory}: the segments are sealed or closed")
        if not self._segments:
            self._begin(0)
        elif self._appender.parked:
            active_segment.resume(self._appender, self._segments[-1])
            self._pin()

    def _begin(self, base_offset: int) -> None:
        segment = new_segment(self.directory, base_offset, self.config)
        create_files(segment, self.config, self._appender.now())
        self._segments.append(segment)
        active_segment.attach(self._appender, segment, base_offset)
        active_segment.limit(self._appender, segment, self.config)
        self._pin()

    def _roll(self) -> None:
        self._seal_active()
        self._begin(self._appender.next_offset)

    def _seal_active(self) -> None:
        segment = self._segments[-1]
        active_segment.settle(self._appender, segment)
        self._appender.detach()  # no append may write to descriptors that sealing closes: other files may get them
        segment.seal()

    def _pin(self) -> None:
        self._segments[-1].pinned = True
        self._seen_end = self._appender.next_offset
        openfiles.opened(self, active_segment.DESCRIPTORS)

    # `openfiles.Holder`

    def holds(self) -> int:
        return active_segment.DESCRIPTORS if self._appender.attached else 0

    def was_used(self) -> bool:
        end, seen = self._appender.next_offset, self._seen_end
        self._seen_end = end
        return end > seen

    def let_go(self) -> None:
        self._gate.attempt(self._park_locked)

    def _park_locked(self) -> None:
        if self._appender.attached:
            active_segment.park(self._appender, self._segments[-1], unsynced=True)

    def _after_fork(self) -> None:
        """Mark the writer as closed in a forked child, in which its descriptors' numbers may belong to other files."""
        self._closed = True
        self._appender.busy = True
        self._appender.detach()
