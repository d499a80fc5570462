"""One log takes in what was staged for it: files by renaming them, or their batches by appending them.

`Share` is what one partition gets of a load, with the offsets that it was given. Owns the steps on one log, each of
which may be done again after a crash; when they may be taken is adopt.py's. The hardest rule: nobody else's record is
ever written over: what stands where a staged file is to go is empty, or is that very file.
"""

from __future__ import annotations

import errno
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kstore import fs, names
from kstore._writer import rebase
from kstore.errors import CorruptRecordError, StorageError
from kstore.logfile import LogFile

if TYPE_CHECKING:
    from kstore.log import Log
    from kstore.segment import Segment
    from kstore.writer import Writer

_HEADER_BYTES = 61
_PROBE = f"kstore-probe{names.DELETED}"


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A staged segment: its directory, the base offset in its files' names, what it holds, where its records go.

    `first_crc` is that of its first batch, by which it is known again.
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
        base = self.staged_base
        log, index, times = names.log_name(base), names.index_name(base), names.time_index_name(base)
        return f"{self.directory}/{log}", f"{self.directory}/{index}", f"{self.directory}/{times}"

    def targets(self, directory: str) -> tuple[str, str, str]:
        """Where the files go in a partition's directory."""
        base = self.base_offset
        log, index, times = names.log_name(base), names.index_name(base), names.time_index_name(base)
        return f"{directory}/{log}", f"{directory}/{index}", f"{directory}/{times}"


@dataclass(frozen=True, slots=True)
class Share:
    """What one partition gets of a load. With `renames` files become segments, else their batches are appended."""

    root: str
    topic: str
    partition: int
    renames: bool
    leader_epoch: int
    segments: tuple[StagedSegment, ...]

    @property
    def key(self) -> tuple[str, int]:
        """Topic and number."""
        return self.topic, self.partition

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return f"{self.root}/{self.topic}-{self.partition}"

    @property
    def offsets(self) -> tuple[int, int]:
        """The first offset, and one past the last."""
        return self.segments[0].base_offset, self.segments[-1].next_offset

    def to_json(self) -> dict[str, Any]:
        """The share as a COMMIT record has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any) -> Share:
        """Read it back; `TypeError`, `KeyError` or `ValueError` where it is none."""
        segments = tuple(StagedSegment(**each) for each in found["segments"])
        if not segments or not all(0 <= each.base_offset <= each.next_offset for each in segments):
            raise ValueError("a share without segments, or with offsets that fall")
        return cls(**{**found, "segments": segments})


def look_at(directory: str, staged_base: int, size_bytes: int) -> StagedSegment:
    """Look through a staged file for its batches; its records count from 0.

    Raises `StorageError` if it is not there or of another size, and `CorruptRecordError`.
    """
    path = f"{directory}/{names.log_name(staged_base)}"
    file = LogFile(path)
    try:
        found = file.size()
        if found != size_bytes:
            raise StorageError(errno.EIO, f"the staged file has {found} bytes and was given {size_bytes}", path)
        next_offset, _, crc = rebase(file.fd, size_bytes, 0, 0, write=False, path=path)
    finally:
        file.close()
    return StagedSegment(directory, staged_base, size_bytes, 0, next_offset, crc)


def make_ready_locked(writer: Writer, *, renames: bool) -> int:
    """Have all that is in the log on the disk, and for renaming its active segment empty; the log end offset."""
    end = writer.log_end_offset
    if renames and (writer.appender.size > 0 or end > writer.active.base_offset):
        writer.roll_locked("explicit", end)
    writer.upkeep.flush(indexes=True)
    return end


def take_in_locked(writer: Writer, share: Share) -> None:
    """Make a share part of the log, durably; the log ends where the share begins.

    When it raises, the log refuses writes, or holds the first batches of the share; `finish_files` and `finish_appends`
    do the rest.
    """
    writer.assign_epoch_locked(share.leader_epoch)
    if not share.renames:
        _append_locked(writer, share, share.offsets[0])
        return
    writer.take_in_locked([(partial(_place, staged), staged.next_offset) for staged in share.segments])
    writer.upkeep.took_in(share.offsets[1])


def _place(staged: StagedSegment, segment: Segment) -> int:
    _rename(staged, segment.directory)
    return staged.bytes


def _append_locked(writer: Writer, share: Share, start_offset: int) -> None:
    """Append the share's batches from `start_offset` on, where the log ends, and flush."""
    for staged in share.segments:
        file = LogFile(staged.paths[0])
        try:
            at = staged.base_offset
            for piece, _ in file.pieces(0, staged.bytes, piece_bytes=1 << 20):
                batches = bytearray(piece)
                position = 0
                while position < len(batches) and at < start_offset:
                    at += _records_of(batches, position)
                    position += _size_of(batches, position)
                if position < len(batches):
                    writer.append_locked(batches[position:] if position else batches)
        finally:
            file.close()
    writer.upkeep.flush()


def finish_appends(log: Log, share: Share) -> None:
    """Append what a crash has left out of a share's batches, and flush.

    A power cut may have kept later ones and lost earlier ones: then what there is of the share is appended anew. Raises
    `StorageError`, with nothing cut, if anything else stands there, or the log does not reach so far.
    """
    writer = log._writable()
    first, last = share.offsets
    if writer.log_start_offset >= last:
        return  # they were all there, and have gone since
    if writer.log_end_offset < first:
        raise StorageError(errno.EIO, f"the log ends at {writer.log_end_offset}, the load begins at {first}", log.path)
    start = _find_missing(log, share)
    if start < last:
        writer.truncate_to(start)
        with writer.gate():
            writer.assign_epoch_locked(share.leader_epoch)
            _append_locked(writer, share, start)
    else:
        writer.upkeep.flush()


def _find_missing(log: Log, share: Share) -> int:
    """The first offset of a share that the log has not got; `StorageError` if it has others' records behind it."""
    ours = {}
    for staged in share.segments:
        if not fs.exists(staged.paths[0]):
            raise gone(staged)
        file = LogFile(staged.paths[0])
        try:
            at = staged.base_offset
            for piece, _ in file.pieces(0, staged.bytes):
                position = 0
                while position < len(piece):
                    ours[at] = int.from_bytes(piece[position + 17 : position + 21], "big")
                    at += _records_of(piece, position)
                    position += _size_of(piece, position)
        finally:
            file.close()
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


def _size_of(batches: bytearray | memoryview, position: int) -> int:
    return 12 + int.from_bytes(batches[position + 8 : position + 12], "big")


def _records_of(batches: bytearray | memoryview, position: int) -> int:
    return 1 + int.from_bytes(batches[position + 23 : position + 27], "big")


def foreign(offset: int, path: str) -> StorageError:
    """Make the error for records that somebody else wrote where a load is to go."""
    return StorageError(
        errno.EEXIST, f"records that are not the load's stand at offset {offset}, where a pending load goes", path
    )


def patch(share: Share) -> None:
    """Give the staged batches their offsets and epoch, durably; may be done again with others."""
    for staged in share.segments:
        _patch(staged, share.leader_epoch)


def finish_files(share: Share) -> bool:
    """Rename what a crash has left of a share's files, before anybody opens the log; whether there was anything.

    Raises `StorageError` where a file is neither staged nor in its place, and where the log does not end at the file's
    first offset: nothing is written over, nothing overlaps, and no gap is left.
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
    """Make the error for a staged file that is no more where it was, and not in the log either."""
    first, last = staged.base_offset, staged.next_offset - 1
    where = f"the log cannot be seen to have its records, which go to offsets {first} to {last}"
    return StorageError(errno.ENOENT, f"a staged file is missing, and {where}", staged.paths[0])


def _patch(staged: StagedSegment, leader_epoch: int) -> None:
    """Give a staged file's batches their offsets, durably; its indexes count from its base, and stay as they are."""
    path = staged.paths[0]
    file = LogFile(path, write=True)
    try:
        rebase(file.fd, staged.bytes, staged.base_offset, leader_epoch, path=path)
        fs.fdatasync(file.fd)  # no size changes
    finally:
        file.close()


def can_be_renamed(staged: StagedSegment, directory: str) -> bool:
    """Whether the staged files can be renamed into a partition's directory, found out by renaming an empty one.

    Bind mounts and quotas refuse it on one and the same device. What a crash leaves of this is removed as what its name
    says: a deleted file.
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
        error._reported = True  # nothing of the log was changed
        raise
    return True


def _rename(staged: StagedSegment, directory: str) -> None:
    """Put the staged files at their places, the log last: until then nobody reads by the indexes."""
    sources, targets = staged.paths, staged.targets(directory)
    for source, target in zip(sources[1:], targets[1:], strict=True):
        if fs.exists(source):
            _move(source, target)
    _move(sources[0], targets[0])


def _move(source: str, target: str) -> None:
    """Rename a file; where the system cannot, copy it under a name that counts for nothing, and rename that."""
    try:
        fs.rename(source, target)
    except StorageError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target + names.DELETED
        file = LogFile(source)
        try:
            fd = fs.open(copy, create=True, empty=True)
            try:
                position = 0
                while data := file.read(position, 1 << 20):
                    fs.pwrite(fd, data, position)
                    position += len(data)
                fs.fsync(fd)
            finally:
                fs.close(fd)
        finally:
            file.close()
        fs.rename(copy, target)


def _is_the_same(staged: StagedSegment, target: str, least_bytes: int = _HEADER_BYTES) -> bool:
    """Whether the staged log stands at its place already: a power cut may have kept the new name and the old one.

    It may have been appended to since.
    """
    if not fs.exists(target):
        return False
    file = LogFile(target)
    try:
        header = file.read(0, _HEADER_BYTES)
        return (
            len(header) == _HEADER_BYTES
            and file.size() >= least_bytes
            and int.from_bytes(header[:8], "big") == staged.base_offset
            and int.from_bytes(header[17:21], "big") == staged.first_crc
        )
    finally:
        file.close()


def _refuse_unless_next(share: Share, staged: StagedSegment) -> None:
    """Raise unless the log, which nobody has opened yet, ends where the staged file's records begin.

    Behind it there may be files of the same share that are in their places already, and the empty one after them.
    """
    base, directory = staged.base_offset, share.directory
    bases = _bases(directory)
    ours = {each.base_offset: each for each in share.segments}
    for each in bases:
        path = f"{directory}/{names.log_name(each)}"
        if each < base or (each > base and each in ours and _is_the_same(ours[each], path)):
            continue
        if not _is_blank(path) or (each not in ours and each != share.offsets[1]):
            raise foreign(each, path)
    last = max((each for each in bases if each < base), default=None)
    end = 0 if last is None else _end_of(directory, last)
    if end > base:
        raise foreign(base, f"{directory}/{names.log_name(last or 0)}")
    if end < base and base not in bases:  # else the empty segment says where the log ends, however little is before it
        raise StorageError(errno.EIO, f"the log ends at {end}, and the load goes to {base}", directory)


def _bases(directory: str) -> list[int]:
    """The base offsets of the segments in a partition's directory."""
    found = map(names.parse_file_name, fs.listdir(directory))
    return sorted(file.offset for file in found if file is not None and file.kind == names.LOG and not file.state)


def _is_blank(path: str) -> bool:
    """Whether a log has no batch; zeros are a file that was made in advance."""
    file = LogFile(path)
    try:
        return not any(file.read(0, _HEADER_BYTES))
    finally:
        file.close()


def _end_of(directory: str, base: int) -> int:
    """The next offset of a segment, whose base it is where there is no batch; `CorruptRecordError`.

    Only the batches from the last one that the index names are looked at.
    """
    file = LogFile(f"{directory}/{names.log_name(base)}")
    try:
        size, end = file.size(), base
        position = _last_indexed(file, f"{directory}/{names.index_name(base)}", base)
        try:
            for piece, at in file.pieces(position, size):
                here = 0
                while here < len(piece):
                    first = int.from_bytes(piece[here : here + 8], "big")
                    legacy = piece[here + 16] < 2  # it has its last offset there, and no count
                    end = first + (1 if legacy else _records_of(piece, here))
                    here += _size_of(piece, here)
                position = at + here
        except CorruptRecordError:
            if any(file.read(position, _HEADER_BYTES)):
                raise
        return end
    finally:
        file.close()


def _last_indexed(file: LogFile, index: str, base: int) -> int:
    """A position near the end of a log at which a batch begins; 0 if the index does not help."""
    if not fs.exists(index):
        return 0
    entries = LogFile(index)
    try:
        entry = entries.read(max(entries.size() // 8 * 8 - 8, 0), 8)
    finally:
        entries.close()
    position = int.from_bytes(entry[4:], "big")
    header = file.read(position, _HEADER_BYTES)
    if len(entry) < 8 or len(header) < _HEADER_BYTES or header[16] != 2:
        return 0
    first = int.from_bytes(header[:8], "big")
    indexed = base + int.from_bytes(entry[:4], "big")
    return position if base <= first <= indexed else 0
