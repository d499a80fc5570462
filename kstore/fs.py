"""The one door to the disk: only this module opens, maps, syncs, renames, locks or deletes.

It owns descriptors, whole small files, locks and the fork rule; what the bytes mean is left to its callers. Callers
write `fs.pwrite(...)`, never `from kstore.fs import pwrite`, so that the tests can put a fault-injecting twin in its
place. Every refusal of the system leaves here as a `StorageError` with the system's errno and path.
Descriptors' owners and locks live in `descriptors` and `locks`, and are offered here.
The hardest rule: a name is durable only once its directory is synced; what says "not yet durable" leaves that debt.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import sys
from typing import TYPE_CHECKING

from kstore.descriptors import ExistingFileError as ExistingFileError
from kstore.descriptors import Handles as Handles
from kstore.descriptors import MissingFileError as MissingFileError
from kstore.descriptors import path_of as path_of
from kstore.descriptors import register as register
from kstore.descriptors import storage_error as storage_error
from kstore.errors import StorageError
from kstore.locks import LOCK_FILE as LOCK_FILE
from kstore.locks import Lock as Lock
from kstore.locks import checkpoint_lock as checkpoint_lock
from kstore.locks import lock_partition as lock_partition
from kstore.locks import lock_root as lock_root

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, StrPath, WriteableBuffer

MAX_SMALL_FILE_BYTES = 256 << 20
"""What `read_file` takes at most: checkpoints and snapshots are megabytes at worst, so more is another file's bytes."""

_MAX_CALL_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call, macOS refuses 2 GiB
_CHUNK_BYTES = 1 << 20


# Files


def open(path: StrPath, *, write: bool = False, create: bool = False, new: bool = False, empty: bool = False) -> int:
    """Open a file and give its descriptor, which no child process inherits through exec.

    `write` opens it for reading and writing at any position (never O_APPEND: callers pwrite). `create` makes a missing
    file, `new` insists that it be missing, `empty` cuts an existing one to nothing; each of these implies `write`.
    """
    flags = os.O_CLOEXEC | (os.O_RDWR if write or create or new or empty else os.O_RDONLY)
    flags |= (os.O_CREAT if create or new else 0) | (os.O_EXCL if new else 0) | (os.O_TRUNC if empty else 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        raise storage_error(error, path) from error


def close(fd: int) -> None:
    """Close a descriptor; an error of a write that the system had put off shows here on some file systems."""
    try:
        os.close(fd)
    except OSError as error:
        raise storage_error(error) from error


def pread(fd: int, size: int, position: int) -> bytes:
    """Read up to `size` bytes at `position`; fewer only at the end of the file."""
    try:
        data = os.pread(fd, min(size, _MAX_CALL_BYTES), position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(fd, min(size - got, _MAX_CALL_BYTES), position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)
    except OSError as error:
        raise storage_error(error, fd) from error


def pread_into(fd: int, buffer: WriteableBuffer, position: int) -> int:
    """Fill `buffer` from `position` on and tell how many bytes came; fewer than asked only at the end of the file."""
    view = memoryview(buffer).cast("B")
    got = 0
    try:
        while got < len(view):
            n = os.preadv(fd, [view[got : got + _MAX_CALL_BYTES]], position + got)
            if n == 0:
                break
            got += n
        return got
    except OSError as error:
        raise storage_error(error, fd) from error


def pwrite(fd: int, data: ReadableBuffer, position: int) -> None:
    """Write all of `data` at `position`. When it raises, any prefix of the data may have been written."""
    try:
        written = os.pwrite(fd, data, position)
        view = memoryview(data).cast("B")
        while written < len(view):
            n = os.pwrite(fd, view[written : written + _MAX_CALL_BYTES], position + written)
            if n == 0:
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            written += n
    except OSError as error:
        raise storage_error(error, fd) from error


def truncate(fd: int, size: int) -> None:
    """Make the file exactly `size` bytes long, cut or lengthened by a hole of zeros."""
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        raise storage_error(error, fd) from error


def size(fd: int) -> int:
    """Tell the file's length in bytes."""
    try:
        return os.fstat(fd).st_size
    except OSError as error:
        raise storage_error(error, fd) from error


def fsync(fd: int) -> None:
    """Return once the file's bytes and all its metadata are on the disk itself."""
    try:
        _full_sync(fd)
    except OSError as error:
        raise storage_error(error, fd) from error


def fdatasync(fd: int) -> None:
    """Return once the file's bytes, and its length where that changed, are on the disk itself."""
    try:
        if sys.platform == "darwin":
            _full_sync(fd)
        else:
            os.fdatasync(fd)
    except OSError as error:
        raise storage_error(error, fd) from error


def start_writing(fd: int) -> None:
    """Have the system begin to write what the file holds to the disk, and wait for nothing; promises nothing.

    A later `fdatasync` has less to wait for, and tells what went wrong. Does nothing but on Linux.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


_SYNC_FILE_RANGE_WRITE = 2  # from <fcntl.h>, where Python has neither this nor the call
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _full_sync(fd: int) -> None:
    if sys.platform == "darwin":  # fsync there stops at the drive's cache
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def map(fd: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes (at least 1) for reading; only for files that this process alone may cut."""
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise storage_error(error, fd) from error
    except ValueError as error:
        raise storage_error(OSError(errno.EINVAL, f"cannot map {size} bytes: {error}"), fd) from error


def sendfile(out_fd: int, in_fd: int, position: int, count: int) -> int:
    """Send up to `count` bytes of a file to a socket, pipe or file; the number sent, 0 at the end of the file.

    May send fewer. Errors come as the plain `OSError` they are: most belong to the receiving end (a peer that has
    gone, a socket that would block). Copies through memory where the system cannot send between the two.
    """
    if count <= 0:
        return 0
    try:
        return os.sendfile(out_fd, in_fd, position, min(count, _MAX_CALL_BYTES))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
    data = os.pread(in_fd, min(count, _CHUNK_BYTES), position)
    return os.write(out_fd, data) if data else 0


def stat(path: StrPath) -> os.stat_result:
    """Give the file's metadata."""
    try:
        return os.stat(path)
    except OSError as error:
        raise storage_error(error, path) from error


def exists(path: StrPath) -> bool:
    """Tell whether anything is at the path; an error other than its absence is raised, not taken for absence."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def is_at(fd: int, path: StrPath) -> bool:
    """Tell whether the path still names the very file that the descriptor has open."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path) from error


# Whole small files


def read_file(path: StrPath) -> bytes:
    """Read a whole small file; a `StorageError` (EFBIG) beyond `MAX_SMALL_FILE_BYTES`."""
    fd = open(path)
    try:
        data = pread(fd, MAX_SMALL_FILE_BYTES + 1, 0) if size(fd) <= MAX_SMALL_FILE_BYTES else None
    finally:
        close(fd)
    if data is None or len(data) > MAX_SMALL_FILE_BYTES:
        raise StorageError(errno.EFBIG, f"larger than the {MAX_SMALL_FILE_BYTES} bytes taken for a small file", path)
    return data


def write_file(path: StrPath, data: ReadableBuffer, *, sync: bool = True) -> None:
    """Create or replace a whole file in place, and sync it; a crash may leave it short. The name is not synced."""
    fd = open(path, create=True, empty=True)
    try:
        pwrite(fd, data, 0)
        if sync:
            fsync(fd)
    finally:
        close(fd)


def write_atomically(path: StrPath, data: ReadableBuffer) -> None:
    """Create or replace a whole file, durably: a crash at any point leaves the old content or the new (FORMAT 1.9).

    Goes through `<path>.tmp`; two callers at once must exclude each other (see `checkpoint_lock`). When it fails
    the old file stands, and a `.tmp` that may remain is overwritten next time.
    """
    path = os.fspath(path)
    temporary = path + ".tmp"
    write_file(temporary, data)
    rename(temporary, path)
    sync_directory(os.path.dirname(path) or ".")


# Names


def rename(source: StrPath, target: StrPath) -> None:
    """Give a file or directory another name, in one step; a file at the target is replaced. Not yet durable."""
    try:
        os.replace(source, target)
    except OSError as error:
        raise storage_error(error, source) from error


def unlink(path: StrPath) -> bool:
    """Delete a file; False when there was none. Not yet durable."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def mkdir(path: StrPath) -> bool:
    """Make one directory and sync its parent, so that it outlives a crash; False when it was there."""
    if not make_directory(path):
        return False
    sync_directory(os.path.dirname(os.path.abspath(path)))
    return True


def make_directory(path: StrPath) -> bool:
    """Make one directory; False when it was there. Not yet durable."""
    try:
        os.mkdir(path)
    except FileExistsError as error:
        if not os.path.isdir(path):
            raise storage_error(error, path) from error
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def make_directories(path: StrPath) -> None:
    """Make a directory and what is missing above it, each durable before the next."""
    missing = []
    at = os.path.abspath(path)
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    for directory in reversed(missing):
        mkdir(directory)


def rmdir(path: StrPath) -> bool:
    """Remove an empty directory; False when there was none. Not yet durable."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def remove_tree(path: StrPath) -> None:
    """Remove a directory with all it holds; links are removed, not followed, and what has gone already is no error."""
    with contextlib.suppress(MissingFileError):
        for entry in scandir(path):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                unlink(entry.path)
    rmdir(path)


def listdir(path: StrPath) -> list[str]:
    """List the names in a directory, sorted."""
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise storage_error(error, path) from error


def scandir(path: StrPath) -> list[os.DirEntry[str]]:
    """List a directory's entries, sorted by name; an entry's size costs a system call only when it is asked for."""
    try:
        with os.scandir(os.fspath(path)) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise storage_error(error, path) from error


def sync_directory(path: StrPath, *, missing_ok: bool = False) -> None:
    """Return once the names in the directory are on the disk: what was created, renamed or removed there.

    A file system that has no such sync (it answers EINVAL) is taken at its word.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _full_sync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno == errno.EINVAL or (missing_ok and error.errno == errno.ENOENT):
            return
        raise storage_error(error, path) from error
