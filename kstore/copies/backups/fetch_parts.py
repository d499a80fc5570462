"""Fetches parts of objects into files, several files at the same time, and checks each part.

Invariant: a file counts as fetched only if the length and CRC-32C of each part match; otherwise it is written again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from kstore._core import crc32c
from kstore.base.threads import Workers
from kstore.codec import header
from kstore.disk import fs
from kstore.errors import BackupError
from kstore.objects.object_store import Objects
from kstore.objects.restore_plan import Part, PlannedFile

_READ_BYTES = 1 << 20
_WRITE_BYTES = 8 << 20  # whenever this much is written, the system is asked to write it to the disk

Progress = Callable[[int, int], object]


class Fetcher:
    """Fetches the files of one restore, and counts their bytes. `fetch` is for one thread."""

    def __init__(self, objects: Objects, root: str, files: Iterable[PlannedFile], progress: Progress | None) -> None:
        self.objects = objects
        self.root = root
        self.files = sorted(files, key=lambda file: -file.bytes)  # largest first, so that the threads end together
        self.bytes = sum(file.bytes for file in self.files)
        self.fetched_bytes = 0
        """Bytes read from objects; the other bytes were already in the files."""
        self._done = 0
        self._progress = progress
        self._counting = threading.Lock()
        self._stopped = False

    def fetch(self, threads: int) -> None:
        """Fetch the missing files. If one fails, the others stop and its error is raised."""
        with Workers(threads, "kstore-restore") as workers:
            waiting = [workers.submit(partial(self._fetch_one, file)) for file in self.files]
            try:
                for future in waiting:
                    future.wait()
            finally:
                self._stopped = True
                for future in waiting:
                    future.cancel()

    def _fetch_one(self, file: PlannedFile) -> None:
        if self._stopped:
            return
        path = f"{self.root}/{file.path}"
        try:
            if is_whole(path, file.parts):
                self._count(file.bytes, fetched=False)
            else:
                self._write(path, file.parts)
            if file.modified_ns >= 0:
                fs.set_modified(path, file.modified_ns)
        except BaseException:
            self._stopped = True
            raise

    def _write(self, path: str, parts: Iterable[Part]) -> None:
        with fs.closing(fs.open(path, create=True, empty=True)) as fd:
            end = 0
            for part in parts:
                crc, got = 0, 0
                for piece in self.objects.stream(part.key, part.position, part.length) if part.length else ():
                    if self._stopped:
                        return
                    if got + len(piece) > part.length:
                        break
                    crc = crc32c(piece, crc)
                    fs.pwrite(fd, piece, end + got)
                    got += len(piece)
                    self._count(len(piece))
                    if (end + got) // _WRITE_BYTES > (end + got - len(piece)) // _WRITE_BYTES:
                        fs.start_writing(fd)
                self._check(part, got, crc)
                end += got
            fs.fsync(fd)

    def _check(self, part: Part, got: int, crc: int) -> None:
        has = f"{part.key} in {self.objects.url} has {got} bytes"
        if got != part.length:
            raise BackupError(f"{has} from byte {part.position} on; {part.length} are needed: it was altered")
        if crc != part.crc:
            where = f"of CRC {crc:#010x} from byte {part.position} on"
            raise BackupError(f"{has} {where}; the backup says {part.crc:#010x}: it was altered")

    def _count(self, count: int, *, fetched: bool = True) -> None:
        with self._counting:
            self._done += count
            self.fetched_bytes += count if fetched else 0
            if self._progress is not None:
                self._progress(self._done, self.bytes)


def is_whole(path: str, parts: Iterable[Part]) -> bool:
    """Whether a file has exactly the bytes of its parts. If so, sync it: an interrupted call may not have done so."""
    with suppress(fs.MissingFileError), fs.closing(fs.open(path)) as fd:
        end = 0
        for part in parts:
            crc, at, end = 0, end, end + part.length
            while at < end and (piece := fs.pread(fd, min(_READ_BYTES, end - at), at)):
                crc = crc32c(piece, crc)
                at += len(piece)
            if at < end or crc != part.crc:
                return False
        if fs.size(fd) == end:
            fs.fsync(fd)
            return True
    return False


def find_cut(objects: Objects, parts: Iterable[Part], cut: int, base_offset: int) -> tuple[int, int]:
    """Find where to truncate a `.log` file to remove offset `cut`. Return the position and the new end offset."""
    position, end_offset = 0, base_offset
    for part in parts:
        pending = bytearray()
        skip = 0
        for piece in objects.stream(part.key, part.position, part.length):
            at = min(skip, len(piece))
            skip -= at
            pending += piece[at:]
            at = 0
            while len(pending) - at >= header.UP_TO_MAGIC_BYTES:
                if header.MAGIC.of(pending, at) >= 2 and len(pending) - at < header.HEADER_BYTES:
                    break
                last, size = header.last_offset_of(pending, at), header.size_of(pending, at)
                if last >= cut or size < header.LOG_OVERHEAD + header.MIN_V0_MESSAGE:
                    return position, end_offset
                position += size
                end_offset = last + 1
                at += size
            skip += max(at - len(pending), 0)
            del pending[:at]
    return position, end_offset
