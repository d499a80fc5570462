"""Writes the batches of one group into new segments, in files with the state `.cleaned`.

The appender writes the batches, so logs and indexes are byte for byte those of Kafka's cleaner (SEMANTICS 3.6, 7.23).
Invariant: before `finish` returns, the files are synced.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from kstore.base.numbers import INT_MAX
from kstore.codec import header
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import names
from kstore.files.txnindex import AbortedTxn, format_txn_index
from kstore.log.segments.segment import Segment
from kstore.log.writing import active_segment
from kstore.log.writing._appender import Appender, Code

if TYPE_CHECKING:
    from kstore.log.writing.writer import Writer

WRITE_BACK_BYTES = 1 << 20  # after this many bytes the system starts to write the file to the disk


class CleanedSegments:
    """Writes one group's new segment, or several if one file or index cannot hold all. Not thread-safe."""

    def __init__(self, writer: Writer, base_offset: int, now_ms: int) -> None:
        self.segments: list[Segment] = []
        self._writer = writer
        self._directory = writer.directory
        self._config = writer.config
        self._now_ms = now_ms
        self._appender = Appender(lambda: now_ms)
        self._aborted: list[AbortedTxn] = []
        self._unwritten = 0  # bytes since the last write-back started
        active_segment.configure(self._appender, self._config)
        try:
            self._begin(base_offset)
        except BaseException:
            self.discard()
            raise

    @property
    def size_bytes(self) -> int:
        sealed = sum(segment.size_bytes for segment in self.segments if not segment.is_active)
        return sealed + (self._appender.size if self.segments[-1].is_active else 0)

    def append(self, batches: memoryview) -> None:
        """Write whole v2 batches with the offsets that they carry."""
        if not batches or self._commit(batches):
            return
        if self._appender.size:
            self._begin_another(batches)
            if self._commit(batches):
                return
        at = 0  # an index cannot hold even this piece alone
        while at < len(batches):
            size = header.size_of(batches[at:])
            batch = batches[at : at + size]
            if not self._commit(batch):
                self._begin_another(batch)
                if not self._commit(batch):
                    raise StorageError(errno.EFBIG, "an empty segment has no room for a batch", self.segments[-1].path)
            at += size

    def _begin_another(self, batches: memoryview) -> None:
        """Seal the last segment, in which these batches do not fit, and start one with them."""
        self._seal_last()
        self._begin(header.BASE_OFFSET.of(batches))

    def _commit(self, batches: memoryview) -> bool:
        """Append all of the batches to the last segment. Return False if they do not fit."""
        if self._appender.size + len(batches) > INT_MAX:
            return False
        code, taken = self._appender.commit(batches, 0, True, True)
        if code != Code.DONE:
            return False
        assert taken == len(batches)
        self._unwritten += taken
        if self._unwritten >= WRITE_BACK_BYTES:
            self._unwritten = 0
            fs.start_writing(self.segments[-1].file.fd)
        return True

    def add_aborted(self, transactions: list[AbortedTxn]) -> None:
        self._aborted += transactions

    def finish(self, modified_ns: int) -> list[Segment]:
        """Seal the last segment, set the modification time of all files (SEMANTICS 7.24), and sync them."""
        self._seal_last()
        for segment in self.segments:
            for kind in names.SEGMENT_KINDS:
                path = _cleaned(self._directory, segment.base_offset, kind)
                if kind == names.TXN_INDEX and not fs.exists(path):
                    continue
                if kind != names.TXN_INDEX:
                    fs.set_modified(path, modified_ns)
                with fs.closing(fs.open(path, write=True)) as fd:
                    fs.fsync(fd)
            segment.flush()
        return self.segments

    def discard(self) -> None:
        """Remove the files, unless the log was closed: another opening of the log may own them by now."""
        self._appender.detach()
        for segment in self.segments:
            segment.pinned = False
            segment.close()
            if not self._writer.closed:
                remove_cleaned(self._directory, segment.base_offset)

    def _begin(self, base_offset: int) -> None:
        remove_cleaned(self._directory, base_offset)  # a stale file may be there (SEMANTICS 7.14)
        files = [names.file_name(base_offset, kind) for kind in names.SEGMENT_KINDS]
        segment = Segment(
            self._directory,
            base_offset,
            max_index_bytes=self._config.segment_index_bytes,
            index_interval_bytes=self._config.index_interval_bytes,
            actual={name: name + names.CLEANED for name in files},
        )
        self.segments.append(segment)
        segment.create(preallocate_bytes=0, now_ms=self._now_ms, jitter_ms=0)
        active_segment.attach(self._appender, segment, base_offset)
        active_segment.limit(self._appender, segment, self._config)
        segment.pinned = True

    def _seal_last(self) -> None:
        segment = self.segments[-1]
        active_segment.settle(self._appender, segment)
        self._appender.detach()  # sealing closes descriptors, and no append may write to their numbers
        segment.seal()
        if self._aborted:
            path = _cleaned(self._directory, segment.base_offset, names.TXN_INDEX)
            fs.write_file(path, format_txn_index(self._aborted), sync=False)
            self._aborted = []


def remove_cleaned(directory: str, base_offset: int) -> None:
    """Remove the `.cleaned` files of one base offset, if there are any."""
    for kind in names.SEGMENT_KINDS:
        fs.unlink(_cleaned(directory, base_offset, kind))


def _cleaned(directory: str, base_offset: int, kind: str) -> str:
    return f"{directory}/{names.file_name(base_offset, kind, names.CLEANED)}"
