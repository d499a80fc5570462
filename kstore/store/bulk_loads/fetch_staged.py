"""Fetches what tasks have staged in an object store into a staging directory, where a load finds it.

Lengths and checksums are compared with the manifest, and the indexes are built from the batches. Invariant: a file is
written only below the staging directory, at a path that is built from checked names; memory is bounded.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from kstore._core import crc32c
from kstore.base.threads import Workers
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import BackupError, CorruptRecordError, StorageError
from kstore.files import names
from kstore.log.segments.segment import Segment
from kstore.objects import staged_objects
from kstore.objects.object_store import Objects
from kstore.objects.staged_objects import StagedKey
from kstore.store.bulk_loads.load_manifest import TASK_PREFIX, Staged
from kstore.store.bulk_loads.staged_files import remove_job, remove_staged

THREADS = 4  # each holds a part of an object


class _File(NamedTuple):
    """A staged `.log` file, and where it is in its object."""

    directory: str
    base_offset: int
    topic: str
    position: int
    length: int
    crc: int

    @property
    def path(self) -> str:
        return f"{self.directory}/{names.log_name(self.base_offset)}"


def local_rows(rows: Sequence[Staged], area: str) -> list[Staged]:
    """Return the rows as they are after `fetch`, with directories in a staging directory."""
    return [replace(row, directory=f"{area}/{row.job}/{os.path.basename(row.directory)}", objects=None) for row in rows]


def fetch(
    objects: Objects,
    rows: Sequence[Staged],
    area: str,
    config_of: Callable[[str], LogConfig],
    check: Callable[[], None],
) -> None:
    """Fetch the segments of one job durably. `check` raises if the caller was interrupted.

    Raises `BackupError` if an object is missing, or has other bytes than the manifest says, and `StorageError` if the
    disk has not enough space; files may be left then.
    """
    wanted = _by_object(rows, area)
    _check_sizes(objects, wanted)
    local = local_rows(rows, area)
    directories = list(dict.fromkeys(row.directory for row in local))
    for job in {row.job for row in local}:
        clear(area, job)  # a killed adoption may have left files, also of attempts that are not in this manifest
    fs.make_directories(area)
    _refuse_full(area, sum(file.length for files in wanted.values() for file in files))
    for directory in directories:
        fs.make_directory(os.path.dirname(directory))
        fs.make_directory(directory)
    for path in dict.fromkeys(row.path for row in local):
        fs.make_directory(path)
    with Workers(THREADS, "kstore-adopt") as pool:
        done = pool.map(lambda key: _fetch_object(objects, key, wanted[key], config_of, check), wanted)
        for _ in done:
            pass
    for path in (*dict.fromkeys(row.path for row in local), *directories):
        fs.sync_directory(path)
    for path in dict.fromkeys(os.path.dirname(directory) for directory in directories):
        fs.sync_directory(path)
    fs.sync_directory(area)


def clear(area: str, job: str) -> None:
    """Remove what was fetched of a job; log failures. The job must not be decided."""
    path = f"{area}/{job}"
    fs.refuse_links(path, below=area)
    if fs.exists(path):
        attempts = [entry.path for entry in fs.scandir(path) if entry.name.startswith(TASK_PREFIX)]
        remove_staged(attempts, [area])
        remove_job(path, area)


def _by_object(rows: Sequence[Staged], area: str) -> dict[StagedKey, list[_File]]:
    """Return the files of each object in their order; raises `BackupError` unless they fill it from its beginning."""
    wanted: dict[StagedKey, list[_File]] = {}
    for row, local in zip(rows, local_rows(rows, area), strict=True):
        for (base, _, size), (number, at, crc) in zip(row.parts, row.places, strict=True):
            key = StagedKey(os.path.basename(row.directory), number)
            wanted.setdefault(key, []).append(_File(local.path, base, row.topic, at, size, crc))
    for key, files in wanted.items():
        files.sort(key=lambda file: file.position)
        position = 0
        for file in files:
            if file.position != position:
                what = f"a segment at {file.position} in {key}, and the one before it ends at {position}"
                raise BackupError(f"the manifest of {rows[0].job} has {what}")
            position += file.length
    return wanted


def _check_sizes(objects: Objects, wanted: Mapping[StagedKey, Sequence[_File]]) -> None:
    sizes = staged_objects.list_job(objects)
    for key, files in wanted.items():
        length = sum(file.length for file in files)
        size = sizes.get(str(key))
        if size != length:
            found = "is missing" if size is None else f"has {size} bytes"
            raise BackupError(f"{key} in {objects.url} {found}; the manifest says {length} bytes. Nothing was adopted")


def _refuse_full(area: str, length: int) -> None:
    free = fs.free_bytes(area)
    if length > free:
        what = f"the staged files have {length} bytes, and {free} are free"
        raise fs.FullDiskError(errno.ENOSPC, what, area)


def _fetch_object(
    objects: Objects,
    key: StagedKey,
    files: Sequence[_File],
    config_of: Callable[[str], LogConfig],
    check: Callable[[], None],
) -> None:
    """Write the files of an object, and their indexes."""
    length = sum(file.length for file in files)
    parts = _pieces(objects.stream(str(key), 0, length), files)
    for file in files:
        with fs.closing(fs.open(file.path, new=True)) as fd:
            position = crc = 0
            while position < file.length:
                check()
                piece = next(parts, None)
                if piece is None:
                    raise BackupError(f"{key} in {objects.url} ends before the {length} bytes of the manifest")
                fs.pwrite(fd, piece, position)
                crc = crc32c(piece, crc)
                position += len(piece)
            if crc != file.crc:
                raise BackupError(
                    f"{key} in {objects.url} has other bytes than the manifest says: CRC {crc:#010x} at "
                    f"{file.position}, not {file.crc:#010x}. Nothing was adopted"
                )
            fs.fdatasync(fd)
        _build_indexes(file, config_of(file.topic), f"{key} in {objects.url}")


def _pieces(parts: Iterator[memoryview], files: Sequence[_File]) -> Iterator[memoryview]:
    """Cut the parts of an object where its files end."""
    borders = iter([file.position + file.length for file in files])
    border = next(borders)
    position = 0
    for part in parts:
        while part:
            piece = part[: border - position]
            yield piece
            position += len(piece)
            part = part[len(piece) :]
            if position == border:
                border = next(borders, position)
                if border == position:
                    return


def _build_indexes(file: _File, config: LogConfig, where: str) -> None:
    """Build the indexes of a staged segment from its batches, whose checksums are compared; raises `BackupError`."""
    segment = Segment(
        file.directory,
        file.base_offset,
        max_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
    )
    with closing(segment):
        try:
            checked = segment.check(
                index_interval_bytes=config.index_interval_bytes,
                latest_epoch=-1,
                flushed_below=0,
                flushed_end=0,
                is_last=False,
            )
        except (CorruptRecordError, StorageError) as error:
            raise BackupError(f"{where}: {error}") from error
        if checked.scan.reason or checked.scan.end_position < file.length:
            position = file.position + checked.scan.end_position
            raise BackupError(f"{where} has no sound batch at {position}: {checked.scan.reason}")
        segment.recover(checked, is_last=False, before_cut=lambda: None)
        segment.flush()
