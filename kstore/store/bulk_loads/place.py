"""Adds staged files to one log: renames them into its directory, or appends their batches.

Each step on a log can be repeated after a crash. Invariant: no other record is overwritten: a file that already has the
target's name is empty, or is the staged file itself.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kstore.codec import header
from kstore.disk import fs
from kstore.errors import CorruptRecordError, StorageError, first_report
from kstore.files import _log_scan, names
from kstore.files.log_file import LogFile
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.segments.segment import Segment
from kstore.log.writing import truncation
from kstore.store.bulk_loads._rebase import rebase

if TYPE_CHECKING:
    from kstore.log.writing.writer import Writer

PIECE_BYTES = 1 << 20  # of a staged file that are appended at a time

_PROBE = f"kstore-probe{names.DELETED}"


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A staged segment: its directory, the base offset in its files' names, its size, and its offsets in the log.

    `first_crc` is the CRC of its first batch, which identifies the segment after it was renamed.
    """

    directory: str
    staged_base: int
    bytes: int
    base_offset: int
    next_offset: int
    first_crc: int

    @property
    def paths(self) -> tuple[str, str, str]:
        """The staged files: the log, the offset index, the time index."""
        return _files(self.directory, self.staged_base)

    def targets(self, directory: str) -> tuple[str, str, str]:
        """Return the names of the files in a partition's directory."""
        return _files(directory, self.base_offset)


def _files(directory: str, base: int) -> tuple[str, str, str]:
    log, index, times = names.log_name(base), names.index_name(base), names.time_index_name(base)
    return f"{directory}/{log}", f"{directory}/{index}", f"{directory}/{times}"


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """The part of a load for one partition. If `renames`, files become segments; else their batches are appended."""

    root: str
    topic: str
    partition: int
    renames: bool
    leader_epoch: int
    segments: tuple[StagedSegment, ...]

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def directory(self) -> str:
        return f"{self.root}/{self.topic}-{self.partition}"

    @property
    def offsets(self) -> tuple[int, int]:
        """The first offset, and the offset after the last record."""
        return self.segments[0].base_offset, self.segments[-1].next_offset

    def to_json(self) -> dict[str, Any]:
        """Return the share in the form of a COMMIT record."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PartitionShare:
        """Make a share from a COMMIT record, whose fields were checked when it was read."""
        return cls(**{**content, "segments": tuple(StagedSegment(**segment) for segment in content["segments"])})


def look_at(directory: str, staged_base: int, size_bytes: int) -> StagedSegment:
    """Check the batches of a staged file and return its segment, with offsets from 0.

    Raises `StorageError` if the file does not exist or has another size, and `CorruptRecordError`.
    """
    path = f"{directory}/{names.log_name(staged_base)}"
    with closing(LogFile(path)) as file:
        size = file.size()
        if size != size_bytes:
            raise StorageError(errno.EIO, f"the staged file has {size} bytes, and its manifest says {size_bytes}", path)
        next_offset, _, crc = rebase(file.fd, size_bytes, 0, 0, write=False, path=path)
    return StagedSegment(directory, staged_base, size_bytes, 0, next_offset, crc)


def make_ready_locked(writer: Writer, *, renames: bool) -> int:
    """Flush the log, and for a rename roll to an empty active segment; return the log end offset.

    A rename raises the recovery point past the indexes, so these are flushed for it; appended batches leave it behind.
    """
    end = writer.log_end_offset
    if renames and (writer.appender.size > 0 or end > writer.active.base_offset):
        writer.roll_locked("explicit", end)
    if end > writer.segments.bases[0]:
        writer.housekeeping.flush(indexes=renames)
    else:
        writer.housekeeping.sync_names()  # a log without a record has only names to lose
    return end


def take_in_locked(writer: Writer, share: PartitionShare) -> None:
    """Add a share to the log, durably. The log must end at the first offset of the share.

    If this raises, the log refuses writes or contains only the first batches of the share; `finish_files` and
    `finish_appends` complete it.
    """
    writer.assign_epoch_locked(share.leader_epoch)
    if not share.renames:
        _append_locked(writer, share, share.offsets[0])
        return
    writer.take_in_locked([(partial(_place, staged), staged.next_offset) for staged in share.segments])
    writer.housekeeping.took_in(share.offsets[1])


def _place(staged: StagedSegment, segment: Segment) -> int:
    _rename(staged, segment.directory)
    return staged.bytes


def _append_locked(writer: Writer, share: PartitionShare, start_offset: int) -> None:
    """Append the share's batches from `start_offset` on, which is the log end offset, and flush."""
    # An opening restarts the count of bytes since the last index entry. If each load opens the log and appends one
    # batch, no batch would ever get an entry, and reads and openings would scan the whole segment.
    writer.appender.count_from(writer.active.offset_index.last[1])
    buffer = bytearray(min(PIECE_BYTES, max(staged.bytes for staged in share.segments)))
    for staged in share.segments:
        with closing(LogFile(staged.paths[0])) as file:
            at = staged.base_offset
            for batches, _ in file.pieces(0, staged.bytes, buffer=buffer):
                position = 0
                while position < len(batches) and at < start_offset:
                    at += header.records_of(batches, position)
                    position += header.size_of(batches, position)
                if position < len(batches):
                    writer.append_locked(batches[position:])
                    fs.start_writing(writer.active.file.fd)  # so that the flush waits less
    writer.housekeeping.flush()


def finish_appends(log: Log, share: PartitionShare) -> None:
    """Append the batches of a share that are missing after a crash, and flush.

    A power cut may have kept later batches and lost earlier ones; then the log is truncated at the first missing batch
    and the rest of the share is appended again. Raises `StorageError`, without truncating, if the log has other records
    at the offsets of the share or after missing batches, or if the log ends before the share.
    """
    writer = HostedLog(log).writer
    first, last = share.offsets
    if writer.log_start_offset >= last:
        return  # all batches were appended and have been deleted since
    if writer.log_end_offset < first:
        raise StorageError(errno.EIO, f"the log ends at {writer.log_end_offset}, the load begins at {first}", log.path)
    start = _find_missing(log, share)
    if start < last:
        truncation.truncate_to(writer, start)
        with writer.gate():
            writer.assign_epoch_locked(share.leader_epoch)
            _append_locked(writer, share, start)
    else:
        writer.housekeeping.flush()


def _find_missing(log: Log, share: PartitionShare) -> int:
    """Return the share's first offset that the log lacks; raise `StorageError` for other records from there on."""
    ours = {}
    for staged in share.segments:
        if not fs.exists(staged.paths[0]):
            raise gone(staged)
        with closing(LogFile(staged.paths[0])) as file:
            at = staged.base_offset
            for piece, _ in file.pieces(0, staged.bytes):
                position = 0
                while position < len(piece):
                    ours[at] = header.CRC.of(piece, position)
                    at += header.records_of(piece, position)
                    position += header.size_of(piece, position)
    first, last = share.offsets
    next_offset = max(first, log.log_start_offset)
    for batch in log.read_batches(next_offset):
        if batch.base_offset >= last:
            if next_offset < last:
                raise foreign(batch.base_offset, log.path)
            break
        if ours.get(batch.base_offset) != batch.crc:
            raise foreign(batch.base_offset, log.path)
        if batch.base_offset == next_offset:
            next_offset = batch.next_offset
    return next_offset


def foreign(offset: int, path: str) -> StorageError:
    """Make the error for records of another writer at the offsets of a load."""
    return StorageError(
        errno.EEXIST, f"records that are not the load's stand at offset {offset}, where a pending load goes", path
    )


def patch(share: PartitionShare) -> None:
    """Write offsets and the leader epoch into the staged batches, durably; a repetition may write other values."""
    for staged in share.segments:
        _patch(staged, share.leader_epoch)


def finish_files(share: PartitionShare) -> bool:
    """Before the log is opened, rename the files of a share that a crash has left; return whether any were left.

    Raises `StorageError` if a file is neither staged nor in the log, or if the log does not end at the file's first
    offset: no record is overwritten, offsets do not overlap, and there is no gap.
    """
    changed = False
    for staged in share.segments:
        target = staged.targets(share.directory)[0]
        if fs.exists(staged.paths[0]):
            if not _is_the_same(staged, target, staged.bytes):
                _refuse_unless_next(share, staged)
                _patch(staged, share.leader_epoch)
                _rename(staged, share.directory)
            changed = True
        elif not _is_the_same(staged, target) and min(_bases(share.directory), default=0) < staged.next_offset:
            raise gone(staged)
    fs.sync_directory(share.directory)
    return changed


def gone(staged: StagedSegment) -> StorageError:
    """Make the error for a staged file that is neither in its staging directory nor in the log."""
    first, last = staged.base_offset, staged.next_offset - 1
    where = f"the log cannot be seen to have its records, which go to offsets {first} to {last}"
    return StorageError(errno.ENOENT, f"a staged file is missing, and {where}", staged.paths[0])


def _patch(staged: StagedSegment, leader_epoch: int) -> None:
    """Write the offsets into a staged file's batches, durably; its indexes, relative to its base, do not change."""
    path = staged.paths[0]
    with closing(LogFile(path, write=True)) as file:
        rebase(file.fd, staged.bytes, staged.base_offset, leader_epoch, path=path)
        fs.fdatasync(file.fd)  # no size changes


def can_be_renamed(staged: StagedSegment, directory: str) -> bool:
    """Return whether staged files can be renamed into a partition's directory, by a test with an empty file.

    Bind mounts and quotas may refuse a rename even on the same device. The empty file has the name of a deleted file,
    so that an opening after a crash removes it.
    """
    source, target = f"{staged.directory}/{_PROBE}", f"{directory}/{_PROBE}"
    try:
        fs.close(fs.open(source, create=True))
        try:
            fs.rename(source, target)
        except StorageError as error:
            if error.errno != errno.EXDEV:
                raise
            fs.unlink(source)
            return False
        fs.unlink(target)
    except StorageError as error:
        first_report(error)  # mark the error as reported: the log was not changed
        raise
    return True


def _rename(staged: StagedSegment, directory: str) -> None:
    """Rename the staged files into the partition, the log file last: readers use no index without its log file."""
    sources, targets = staged.paths, staged.targets(directory)
    for source, target in zip(sources[1:], targets[1:], strict=True):
        if fs.exists(source):
            _move(source, target)
    _move(sources[0], targets[0])


def _move(source: str, target: str) -> None:
    """Rename a file; if the system cannot, copy it under the name of a deleted file and rename the copy."""
    try:
        fs.rename(source, target)
    except StorageError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target + names.DELETED
        with closing(LogFile(source)) as file:
            fs.unlink(copy)
            fd = fs.open(copy, new=True)
            try:
                position = 0
                while data := file.read(position, 1 << 20):
                    fs.pwrite(fd, data, position)
                    position += len(data)
                fs.fsync(fd)
            finally:
                fs.close(fd)
        fs.rename(copy, target)


def _is_the_same(staged: StagedSegment, target: str, least_bytes: int = header.HEADER_BYTES) -> bool:
    """Return whether `target` is the staged log file: after a power cut during the rename it may have both names.

    Records may have been appended to `target` since.
    """
    if not fs.exists(target):
        return False
    with closing(LogFile(target)) as file:
        first = file.read(0, header.HEADER_BYTES)
        return (
            len(first) == header.HEADER_BYTES
            and file.size() >= least_bytes
            and header.BASE_OFFSET.of(first) == staged.base_offset
            and header.CRC.of(first) == staged.first_crc
        )


def _refuse_unless_next(share: PartitionShare, staged: StagedSegment) -> None:
    """Raise unless the log, which is not open yet, ends at the first offset of the staged file.

    In the directory, files of the share that were renamed already, and the empty segment, may follow.
    """
    base, directory = staged.base_offset, share.directory
    bases = _bases(directory)
    ours = {segment.base_offset: segment for segment in share.segments}
    for other in bases:
        path = f"{directory}/{names.log_name(other)}"
        if other < base or (other > base and other in ours and _is_the_same(ours[other], path)):
            continue
        if not _is_blank(path) or (other not in ours and other != share.offsets[1]):
            raise foreign(other, path)
    last = max((other for other in bases if other < base), default=None)
    end = 0 if last is None else _end_of(directory, last)
    if end > base:
        raise foreign(base, f"{directory}/{names.log_name(last or 0)}")
    if end < base and base not in bases:  # otherwise the empty segment's base offset is the log end offset
        raise StorageError(errno.EIO, f"the log ends at {end}, and the load goes to {base}", directory)


def _bases(directory: str) -> list[int]:
    """Return the base offsets of the segments in a partition's directory."""
    files = map(names.parse_file_name, fs.listdir(directory))
    return sorted(file.offset for file in files if file is not None and file.kind == names.LOG and not file.state)


def _is_blank(path: str) -> bool:
    """Return whether a log file has no batch; a preallocated file contains zeros."""
    with closing(LogFile(path)) as file:
        return not any(file.read(0, header.HEADER_BYTES))


def _end_of(directory: str, base: int) -> int:
    """Return the next offset of a segment, or its base offset if it has no batch; raise `CorruptRecordError`.

    Reads from the last batch in the offset index. Zeros at the end are ignored: the file was preallocated.
    """
    with closing(Segment(directory, base, max_index_bytes=0, writable=False)) as segment:
        file = segment.file
        size = file.size()
        position, least = segment.start(segment.offset_index.last[0], size)
        batches = _log_scan.scan(file.fd, position, size, least, check_crc=False, path=segment.path)
        if any(file.read(batches.end_position, header.HEADER_BYTES)):
            raise CorruptRecordError(batches.reason, path=segment.path, position=batches.end_position)
        return base if batches.next_offset is None else int(batches.next_offset)
