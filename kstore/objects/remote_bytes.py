"""Reads bytes of a `RemoteFile` from the ranges of objects that make it up.

Invariant: the bytes returned are as many as asked for; if an object has fewer, or a frame does not decompress to the
length that it should have, `BackupError` names the object.
"""

from __future__ import annotations

from kstore.codec import compression
from kstore.errors import BackupError, CorruptRecordError
from kstore.objects.object_store import Objects
from kstore.objects.remote_state import UNKNOWN, ObjectRange, RemoteFile


def read_object_range(objects: Objects, part: ObjectRange) -> bytes:
    """Return the bytes of the file that a range has, decompressed."""
    data = objects.read_range(part.key, part.position, part.stored_bytes)
    if len(data) != part.stored_bytes:
        where = f"{part.key} in {objects.url}"
        raise BackupError(f"{where} has {len(data)} bytes from {part.position} on; {part.stored_bytes} were expected")
    return decompressed(data, part, objects.url) if part.is_zstd else data


def decompressed(data: bytes, part: ObjectRange, url: str) -> bytes:
    """Return the bytes of the file that the zstd frame of a range has."""
    where, length = f"{part.key} in {url}", part.length
    try:
        found = compression.decompress(compression.ZSTD, data, limit=length)
    except CorruptRecordError as error:
        raise BackupError(f"{where} is no zstd frame of {length} bytes at {part.position}: {error}") from None
    if len(found) != length:
        raise BackupError(f"{where} has a zstd frame of {len(found)} bytes at {part.position}; {length} were expected")
    return found


def read_file(objects: Objects, file: RemoteFile, most_bytes: int) -> bytes:
    """Return the whole file; raises `BackupError` if it is larger than `most_bytes`."""
    if file.size > most_bytes:
        where = f"{file.ranges[0].key} in {objects.url}" if file.ranges else objects.url
        raise BackupError(f"{where} makes up a file of {file.size} bytes; at most {most_bytes} are read at once")
    if file.content is not None:
        return file.content
    return b"".join(read_object_range(objects, part) for part in file.ranges)[: file.size]


class RemoteWindow:
    """Reads a file from some position onward, with one request for many small reads. Not thread-safe."""

    def __init__(self, objects: Objects, file: RemoteFile, window_bytes: int, most_requests: int) -> None:
        self._objects, self._file = objects, file
        self._window_bytes = window_bytes
        self._left = most_requests
        self._from, self._held = 0, b""

    def read(self, position: int, length: int) -> bytes | None:
        """Return the bytes at `position`, fewer at the end of the file; None after `most_requests` requests."""
        end = min(position + length, self._file.size)
        found = b""
        while position < end:
            at = position - self._from
            if not 0 <= at < len(self._held):
                if self._left <= 0:
                    return None
                self._left -= 1
                self._load(position)
                continue
            piece = self._held[at : at + end - position]
            found += piece
            position += len(piece)
        return found

    def _load(self, position: int) -> None:
        start = 0
        for part in self._file.ranges:
            if position < start + part.length:
                break
            start += part.length
        if part.is_zstd:
            self._from, self._held = start, read_object_range(self._objects, part)
            return
        skipped = position - start
        length = min(self._window_bytes, part.length - skipped)
        window = part._replace(position=part.position + skipped, stored_bytes=length, length=length)
        self._from, self._held = position, read_object_range(self._objects, window)


def cut_file(file: RemoteFile, size: int) -> RemoteFile:
    """Return a file of ranges without the bytes from `size` on."""
    kept: list[ObjectRange] = []
    length = 0
    for part in file.ranges:
        if length >= size:
            break
        kept.append(part)
        length += part.length
    return file._replace(ranges=tuple(kept), length=size if size < length else UNKNOWN)
