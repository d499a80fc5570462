"""Files, directories and small whole files; also the public names of this package.

Callers write `fs.pwrite(...)`, never `from kstore.disk.fs import pwrite`, since tests replace these functions with ones
that inject faults. Each system error is raised as a `StorageError` with its errno and path. Invariant: a name is
durable only once its directory is synced; after a function that says "not yet durable" the caller must sync it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import sys
from typing import TYPE_CHECKING

from kstore.disk import _cached, _copy_range, _stamps, mounts
from kstore.disk._lock import Lock as Lock
from kstore.disk._map import Map as Map
from kstore.disk.handles import LINK_REASON as LINK_REASON
from kstore.disk.handles import ExistingFileError as ExistingFileError
from kstore.disk.handles import FullDiskError as FullDiskError
from kstore.disk.handles import Handles as Handles
from kstore.disk.handles import MissingFileError as MissingFileError
from kstore.disk.handles import make_room_or_raise
from kstore.disk.handles import open_regular as open_regular
from kstore.disk.handles import opener as opener
from kstore.disk.handles import path_of as path_of
from kstore.disk.handles import register as register
from kstore.disk.handles import storage_error as storage_error
from kstore.disk.locks import LOCK_FILE as LOCK_FILE
from kstore.disk.locks import checkpoint_lock as checkpoint_lock
from kstore.disk.locks import is_locked as is_locked
from kstore.disk.locks import lock_partition as lock_partition
from kstore.disk.locks import lock_root as lock_root
from kstore.disk.mounts import is_mounted as is_mounted
from kstore.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer, StrPath, WriteableBuffer

MAX_SMALL_FILE_BYTES = 256 << 20
"""The largest file that `read_file` reads by default: checkpoints and snapshots have at most a few megabytes."""

MAX_DEPTH = 32
"""The depth of the deepest directory tree that `remove_tree` removes; trees that kstore makes are much flatter."""

_MAX_CALL_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call, macOS refuses 2 GiB
_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
_LEAST_ROOM = 4095  # files in /proc and /sys report a size of 0


# Files


def open(
    path: StrPath,
    *,
    write: bool = False,
    create: bool = False,
    new: bool = False,
    empty: bool = False,
    follow: bool = False,
) -> int:
    """Open a regular file and return its descriptor, which child processes do not inherit through exec.

    `write` opens it for reading and writing at any position (never O_APPEND: callers use pwrite). `create` makes a
    missing file, `new` makes a file and fails if it exists, `empty` cuts an existing file to 0 bytes; each implies
    `write`. A symbolic link is refused unless `follow` is true, which is for paths that the user has named. A device,
    a named pipe or a socket is refused without waiting. A file of a mount can only be read.
    """
    if (found := mounts.find(path)) is not None:
        if write or create or new or empty:
            raise storage_error(OSError(errno.EROFS, os.strerror(errno.EROFS)), path)
        _mounted_status(found, path)
        return mounts.open_file(*found, path)
    flags = os.O_RDWR if write or create or new or empty else os.O_RDONLY
    flags |= (os.O_CREAT if create or new else 0) | (os.O_EXCL if new else 0) | (os.O_TRUNC if empty else 0)
    return open_regular(path, flags, follow=follow)


def _mounted_status(found: tuple[mounts.Tree, str], path: StrPath) -> os.stat_result:
    status = found[0].status(found[1])
    if status is None:
        raise MissingFileError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    return status


class closing:  # lower case, like `contextlib.closing`
    """Closes a descriptor at the end of its `with` block, or on collection if an interrupt came before the block."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *exception: object) -> None:
        fd, self._fd = self._fd, -1
        close(fd)

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", -1)) >= 0:
            close(fd)


def close(fd: int) -> None:
    """Close a descriptor; on some file systems this raises the error of an earlier, delayed write."""
    if fd >= mounts.FIRST_DESCRIPTOR:
        mounts.close(fd)
        return
    try:
        os.close(fd)
    except OSError as error:
        raise storage_error(error, of_sync=True) from error


def pread(fd: int, size: int, position: int) -> bytes:
    """Return the `size` bytes at `position`, or fewer if the file ends before."""
    if fd >= mounts.FIRST_DESCRIPTOR:
        size = min(size, max(mounts.file_of(fd).status.st_size - position, 0))
        taken = bytearray(size)
        return bytes(taken[: mounts.read_into(fd, memoryview(taken), position)])
    if (cached := _cached.read(fd, size, position)) is not None:
        return cached
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
    """Fill `buffer` with the bytes from `position` on; return their number, which is less only if the file ends."""
    view = memoryview(buffer).cast("B")
    if fd >= mounts.FIRST_DESCRIPTOR:
        return mounts.read_into(fd, view, position)
    got = _cached.read_into(fd, view, position)
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
    """Write all of `data` at `position`. If this raises, any prefix of the data may have been written."""
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


def copy(source: int, position: int, length: int, target: int, at: int) -> tuple[int, int]:
    """Copy `length` bytes at `position` to `at` of another file; return the bytes copied and their CRC-32C.

    Copies fewer bytes only if the source ends. If this raises, any prefix may have been written. Releases the GIL.
    """
    copied, crc, error, in_target = _copy_range.copy(source, position, length, target, at)
    if error:
        raise storage_error(OSError(error, os.strerror(error)), target if in_target else source)
    return copied, crc


def truncate(fd: int, size: int) -> None:
    """Set the file's length to `size` bytes: cut it, or extend it by a hole of zeros."""
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        raise storage_error(error, fd) from error


def fstat(fd: int) -> os.stat_result:
    """Return the metadata of an open file."""
    return mounts.file_of(fd).status if fd >= mounts.FIRST_DESCRIPTOR else os.fstat(fd)


def size(fd: int) -> int:
    """Return the file's length in bytes."""
    try:
        return fstat(fd).st_size
    except OSError as error:
        raise storage_error(error, fd) from error


def hole_behind(fd: int, position: int) -> int | None:
    """Return the end of the page at `position` if the file has only a hole after that page, otherwise None.

    Returns None if any bytes, even zeros, were written after the page, and on file systems that do not report holes.
    """
    if fd >= mounts.FIRST_DESCRIPTOR:
        return None
    page_end = (position // _PAGE_BYTES + 1) * _PAGE_BYTES
    try:
        os.lseek(fd, page_end, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no data from `page_end` on
            return page_end
        raise storage_error(error, fd) from error
    return None


def inode(fd: int) -> int:
    try:
        return fstat(fd).st_ino
    except OSError as error:
        raise storage_error(error, fd) from error


def identity(fd: int) -> tuple[int, int]:
    """Return the device and inode numbers, which no other file has while this one exists."""
    try:
        status = fstat(fd)
    except OSError as error:
        raise storage_error(error, fd) from error
    return status.st_dev, status.st_ino


def fsync(fd: int) -> None:
    """Return once the file's bytes and all its metadata are on the disk itself, not only in the drive's cache."""
    try:
        _full_sync(fd)
    except OSError as error:
        raise storage_error(error, fd, of_sync=True) from error


def fdatasync(fd: int) -> None:
    """Return once the file's bytes, and its length if that changed, are on the disk itself, as after `fsync`."""
    try:
        if sys.platform == "darwin":
            _full_sync(fd)
        else:
            os.fdatasync(fd)
    except OSError as error:
        raise storage_error(error, fd, of_sync=True) from error


def start_writing(fd: int) -> None:
    """Start writing the file to the disk without waiting, so that a later `fdatasync` waits less.

    The `fdatasync` raises the errors of the writes. Does nothing except on Linux.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


_SYNC_FILE_RANGE_WRITE = 2  # from <fcntl.h>; Python has neither this nor the call
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _full_sync(fd: int) -> None:
    if sys.platform == "darwin":  # fsync there stops at the drive's cache
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def map(fd: int, size: int) -> Map:
    """Map the first `size` bytes (at least 1) for reading; only for files that no other process may truncate."""
    while True:
        try:
            return Map(fd, size)
        except OSError as error:
            make_room_or_raise(error, fd)
        except ValueError as error:
            raise storage_error(OSError(errno.EINVAL, f"cannot map {size} bytes: {error}"), fd) from error


def sendfile(out_fd: int, in_fd: int, position: int, count: int) -> int:
    """Send up to `count` bytes of a file to a socket, pipe or file; return the number sent, 0 at the end of the file.

    Raises a plain `OSError`, since most errors belong to the receiver (a closed connection, a socket that would block).
    Copies through memory if the system cannot send between the two.
    """
    if count <= 0:
        return 0
    if in_fd >= mounts.FIRST_DESCRIPTOR:
        return os.write(out_fd, pread(in_fd, min(count, _CHUNK_BYTES), position))
    try:
        return os.sendfile(out_fd, in_fd, position, min(count, _MAX_CALL_BYTES))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
    data = os.pread(in_fd, min(count, _CHUNK_BYTES), position)
    return os.write(out_fd, data) if data else 0


def stat(path: StrPath, *, follow: bool = True) -> os.stat_result:
    """Return the file's metadata; for a link, the link's own metadata unless `follow` is true."""
    if (found := mounts.find(path)) is not None:
        return _mounted_status(found, path)
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError as error:
        raise storage_error(error, path) from error


def free_bytes(path: StrPath) -> int:
    """Return how many bytes an unprivileged process can still write to the file system of a path."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise storage_error(error, path) from error
    return found.f_bavail * found.f_frsize


def set_modified(path: StrPath, modified_ns: int) -> None:
    """Set a file's modification time in nanoseconds since the epoch. Durable after the next `fsync`."""
    try:
        os.utime(path, ns=(modified_ns, modified_ns))
    except OSError as error:
        raise storage_error(error, path) from error


def absolute(path: StrPath) -> str:
    """Return the absolute path without `.`, `..` and a slash at its end; a path of a mount has no other form."""
    given = os.fspath(path)
    return os.path.abspath(given) if mounts.find(given) is None else given.rstrip("/")


def exists(path: StrPath) -> bool:
    """Return whether anything is at the path; any error except a missing file is raised."""
    if (found := mounts.find(path)) is not None:
        return found[0].status(found[1]) is not None
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def is_omitted(path: StrPath) -> bool:
    """Return whether a mounted tree leaves out a file by design, so that its absence is no damage."""
    found = mounts.find(path)
    return found is not None and found[0].omits(found[1])


def is_at(fd: int, path: StrPath) -> bool:
    """Return whether the path still names the file that the descriptor has open."""
    found = mounts.find(path)
    if found is None and (answer := _stamps.is_at(fd, os.fspath(path))) is not None:
        return answer
    try:
        return os.path.samestat(fstat(fd), os.stat(path) if found is None else _mounted_status(found, path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path) from error


# Whole small files


def read_file(path: StrPath, *, most_bytes: int | None = None, follow: bool = False) -> bytes:
    """Return the bytes of a small file; raise `StorageError` (EFBIG) if it is larger than `most_bytes`.

    `most_bytes` is `MAX_SMALL_FILE_BYTES` by default. `follow` is that of `open`.
    """
    most_bytes = MAX_SMALL_FILE_BYTES if most_bytes is None else most_bytes
    fd = open(path, follow=True) if follow else open(path)
    try:
        data = _read_all(fd, most_bytes) if size(fd) <= most_bytes else None
    finally:
        close(fd)
    if data is None or len(data) > most_bytes:
        raise StorageError(errno.EFBIG, f"the file is larger than the {most_bytes} bytes that are allowed", path)
    return data


def _read_all(fd: int, most_bytes: int) -> bytes:
    """Read at most `most_bytes` + 1 bytes; try first with memory for the size that the file reports."""
    room = min(max(size(fd), _LEAST_ROOM), most_bytes) + 1
    data = pread(fd, room, 0)
    return data if len(data) < room or room > most_bytes else pread(fd, most_bytes + 1, 0)


def write_file(path: StrPath, data: ReadableBuffer, *, sync: bool = True, new: bool = False) -> None:
    """Create or replace a whole file in place, and sync its data but not its name; a crash may leave it short.

    With `new` the file must not exist.
    """
    fd = open(path, new=True) if new else open(path, create=True, empty=True)
    try:
        pwrite(fd, data, 0)
        if sync:
            fsync(fd)
    finally:
        close(fd)


def write_atomically(path: StrPath, data: ReadableBuffer) -> None:
    """Create or replace a whole file, durably: a crash at any point leaves the old content or the new (FORMAT 1.9).

    Writes `<path>.tmp` first; two callers must exclude each other (see `checkpoint_lock`). If this fails, the old file
    is unchanged. If the disk is full, the `.tmp` is removed immediately. A `.tmp` that is left by another failure is
    removed by the next call, and never written to, since it may be a link.
    """
    path = os.fspath(path)
    temporary = path + ".tmp"
    try:
        try:
            write_file(temporary, data, new=True)
        except ExistingFileError:
            unlink(temporary)
            write_file(temporary, data, new=True)
    except StorageError as error:
        if not error.is_full:
            raise
        with contextlib.suppress(StorageError):
            unlink(temporary)
        # Raised even if the sync of the new file failed: the old file is unchanged, so nothing is lost.
        raise FullDiskError(error.errno, error.strerror, path) from error
    rename(temporary, path)
    sync_directory(os.path.dirname(path) or ".")


# Names


def rename(source: StrPath, target: StrPath) -> None:
    """Rename a file or directory atomically; a file at the target is replaced. Not yet durable."""
    try:
        os.replace(source, target)
    except OSError as error:
        raise storage_error(error, source) from error


def unlink(path: StrPath, *, dir_fd: int | None = None) -> bool:
    """Delete a file; return False if there is none. Not yet durable.

    With `dir_fd`, delete the file of this name in that open directory, even if the path now leads elsewhere.
    """
    return _remove(os.unlink, path, dir_fd)


def _remove(call: Callable[..., None], path: StrPath, dir_fd: int | None) -> bool:
    try:
        call(path if dir_fd is None else os.path.basename(path), dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def mkdir(path: StrPath) -> bool:
    """Make one directory, durably: sync its parent; return False if it exists."""
    if not make_directory(path):
        return False
    sync_directory(os.path.dirname(os.path.abspath(path)))
    return True


def make_directory(path: StrPath) -> bool:
    """Make one directory; return False if it exists. Not yet durable. Raises `StorageError` for a file or a link."""
    try:
        os.mkdir(path)
    except FileExistsError as error:
        if os.path.islink(path):
            raise storage_error(OSError(errno.EEXIST, LINK_REASON), path) from error
        if not os.path.isdir(path):
            raise storage_error(error, path) from error
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def make_directories(path: StrPath) -> None:
    """Make a directory and its missing parents, each durable before the next; raise `StorageError` if one is a file."""
    missing = []
    at = os.path.abspath(path)
    while not os.path.isdir(at):
        if os.path.exists(at):
            raise storage_error(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), at)
        missing.append(at)
        at = os.path.dirname(at)
    for directory in reversed(missing):
        mkdir(directory)


def rmdir(path: StrPath, *, dir_fd: int | None = None) -> bool:
    """Remove an empty directory; return False if there is none. Not yet durable. `dir_fd` is that of `unlink`."""
    return _remove(os.rmdir, path, dir_fd)


def refuse_links(path: StrPath, *, below: StrPath) -> None:
    """Raise `StorageError` (ELOOP) if `below`, or any part of the path after it, is a symbolic link."""
    path, at = os.path.abspath(path), os.path.abspath(below)
    for part in ["", *os.path.relpath(path, at).split("/")]:
        at = f"{at}/{part}" if part else at
        if os.path.islink(at):
            raise storage_error(OSError(errno.ELOOP, LINK_REASON), at)


def remove_tree(path: StrPath, *, below: StrPath | None = None) -> None:
    """Remove a directory with its contents; remove links and do not follow them; a missing entry is no error.

    Each directory is opened once, without following a link, and its entries are removed through that descriptor.
    Therefore a link that replaces a directory during the removal does no harm. With `below`, neither `below` nor any
    part of the path after it may be a link. If directories are nested more than `MAX_DEPTH` deep, raises `StorageError`
    (ELOOP) and keeps the deeper ones.
    """
    path = os.path.abspath(path)
    base = os.path.dirname(path) if below is None else os.path.abspath(below)
    parts = os.path.relpath(path, base).split("/")
    if parts[0] in ("", ".", ".."):
        raise StorageError(errno.EINVAL, f"not inside of {base}, so nothing there is removed", path)
    with contextlib.ExitStack() as stack, contextlib.suppress(MissingFileError):

        def enter(shown: str, dir_fd: int | None, *, follow: bool = False) -> int:
            fd = _open_directory(shown, dir_fd, follow=follow)
            stack.callback(os.close, fd)
            return fd

        at, parent = base, enter(base, None, follow=below is None)
        for part in parts[:-1]:
            at = f"{at}/{part}"
            parent = enter(at, parent)
        _empty(enter(path, parent), path, 1)
        rmdir(path, dir_fd=parent)


def _open_directory(path: str, dir_fd: int | None, *, follow: bool = False) -> int:
    """Open a directory, not a link; with `dir_fd`, open the path's last component in that open directory."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    while True:
        try:
            return os.open(path if dir_fd is None else os.path.basename(path), flags, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(path):
                raise storage_error(OSError(errno.ELOOP, LINK_REASON), path) from error
            make_room_or_raise(error, path)


def _empty(fd: int, path: str, depth: int) -> None:
    """Remove the contents of the open directory `fd`."""
    if depth > MAX_DEPTH:
        raise StorageError(errno.ELOOP, f"more than {MAX_DEPTH} directories in one another; they are left alone", path)
    for name, is_directory in _names_in(fd, path):
        below = f"{path}/{name}"
        if not is_directory:
            unlink(below, dir_fd=fd)
            continue
        try:
            inner = _open_directory(below, fd)
        except MissingFileError:
            continue
        try:
            _empty(inner, below, depth + 1)
        finally:
            os.close(inner)
        rmdir(below, dir_fd=fd)


def _names_in(fd: int, path: str) -> list[tuple[str, bool]]:
    """Return the names in the open directory `fd`, and for each whether it is a directory."""
    while True:
        try:
            with os.scandir(fd) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError as error:
            make_room_or_raise(error, path)


def listdir(path: StrPath) -> list[str]:
    """Return the names in a directory, sorted."""
    if mounts.find(path) is not None:
        return [entry.name for entry in scandir(path)]
    while True:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            make_room_or_raise(error, path)


def is_directory(path: StrPath) -> bool:
    """Return whether a directory, or a link to one, is at the path."""
    if (found := mounts.find(path)) is None:
        return os.path.isdir(path)
    return found[0].entries(found[1]) is not None


def scandir(path: StrPath) -> list[os.DirEntry[str]]:
    """Return a directory's entries, sorted by name; reading an entry's size takes a system call."""
    if (found := mounts.find(path)) is not None:
        _mounted_status(found, path)
        mounted = found[0].entries(found[1])
        if mounted is None:
            raise storage_error(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), path)
        return sorted(mounted, key=lambda entry: entry.name)  # type: ignore[arg-type]
    while True:
        try:
            with os.scandir(os.fspath(path)) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            make_room_or_raise(error, path)


def sync_directory(path: StrPath, *, missing_ok: bool = False) -> None:
    """Return once all creations, renames and removals in the directory are on the disk.

    EINVAL, the error of a file system without such a sync, is ignored.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _full_sync(fd)
            finally:
                os.close(fd)
            return
        except OSError as error:
            if error.errno == errno.EINVAL or (missing_ok and error.errno == errno.ENOENT):
                return
            make_room_or_raise(error, path, of_sync=True)
