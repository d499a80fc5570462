"""Converts system errors to kstore's, and makes owners of descriptors close their copies in a forked child.

A forked child shares its parent's open files and locks. Therefore each owner of descriptors registers here and is
called in the child, before the child's own Python code runs. Used through `fs`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from kstore.disk import openfiles
from kstore.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import StrPath


class MissingFileError(StorageError, FileNotFoundError):
    """Nothing is at the path; also a `FileNotFoundError`."""


class ExistingFileError(StorageError, FileExistsError):
    """Something is at the path already; also a `FileExistsError`."""


class FullDiskError(StorageError):
    """The disk or a quota has no space for the bytes to be written; bytes that were written before are safe.

    A sync that fails for lack of space raises a plain `StorageError`, since bytes written before may then be lost.
    """

    advice = "; reading and deleting still work, and writing works again once there is room"


_ERRORS = {
    errno.ENOENT: MissingFileError,
    errno.EEXIST: ExistingFileError,
    errno.ENOSPC: FullDiskError,
    errno.EDQUOT: FullDiskError,
}


def storage_error(error: OSError, path: StrPath | int | None = None, *, of_sync: bool = False) -> StorageError:
    """Return the `StorageError` for a system error, with its errno and the path (or the descriptor's path).

    With `of_sync` the result is never a `FullDiskError`, since bytes written before may be lost.
    """
    kind = _ERRORS.get(error.errno or 0, StorageError)
    if of_sync and kind is FullDiskError:
        kind = StorageError
    if isinstance(path, int):
        path = path_of(path)
    name = os.fspath(path) if path is not None else error.filename
    number = errno.EIO if error.errno is None else error.errno
    reason = error.strerror or os.strerror(number)
    if number in NO_DESCRIPTOR:
        reason = f"{reason}: {_descriptors_held()}"
    return kind(number, reason, name)


NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def make_room_or_raise(error: OSError, path: StrPath | int | None = None, *, of_sync: bool = False) -> None:
    """Return if the failed call should be retried; raise the `StorageError` otherwise.

    The call should be retried if no descriptor was left, and this function could close files that are not in use.
    """
    if error.errno not in NO_DESCRIPTOR or not openfiles.make_room():
        raise storage_error(error, path, of_sync=of_sync) from error


def path_of(fd: int) -> str | None:
    """Return the path of a descriptor's file; None if the system does not know it."""
    try:
        if sys.platform == "darwin":
            return fcntl.fcntl(fd, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0").decode(errors="replace")
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


LINK_REASON = "a symbolic link is here, and links inside of a data directory are not followed"

_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "a directory"),
    (stat.S_ISFIFO, errno.EINVAL, "a named pipe"),
    (stat.S_ISSOCK, errno.ENXIO, "a socket"),
    (stat.S_ISCHR, errno.EINVAL, "a device"),
    (stat.S_ISBLK, errno.EINVAL, "a device"),
)


def open_regular(path: StrPath, flags: int, *, follow: bool = False) -> int:
    """Open a regular file, and refuse anything else; never wait for a named pipe or a device.

    A link is refused unless `follow` is true. A new file has mode 0666 less the process's umask.
    """
    flags |= REGULAR | (0 if follow else os.O_NOFOLLOW)
    while True:
        try:
            fd = os.open(path, flags, 0o666)
            break
        except OSError as error:
            explain_or_make_room(error, path, follow=follow)
    try:
        refuse_irregular(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


REGULAR = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""The flags for opening a regular file; with them `open` does not wait if something else is at the path."""


def explain_or_make_room(error: OSError, path: StrPath, *, follow: bool = False) -> None:
    """Do what `make_room_or_raise` does; the error says what is at the path if it is not a regular file."""
    if error.errno == errno.ELOOP and os.path.islink(path):
        error = OSError(errno.ELOOP, "a link that leads to itself" if follow else LINK_REASON)
    elif error.errno in (errno.ENXIO, errno.EISDIR):
        what = "a socket" if error.errno == errno.ENXIO else "a directory"
        error = OSError(error.errno, f"{what} is here, and a regular file is needed")
    make_room_or_raise(error, path)


def refuse_irregular(fd: int, path: StrPath) -> None:
    """Raise `StorageError` unless the descriptor belongs to a regular file."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError as error:
        raise storage_error(error, path) from error
    if not stat.S_ISREG(mode):
        number, what = next(((number, what) for test, number, what in _KINDS if test(mode)), (errno.EINVAL, "no file"))
        raise StorageError(number, f"{what} is here, and a regular file is needed", os.fspath(path))


# Descriptors with an owner


def _descriptors_held() -> str:
    """Return how many descriptors kstore holds, for the error of a process that has none left."""
    locks = sum(getattr(owner, "fd", -1) >= 0 for reference in list(_live.values()) if (owner := reference()))
    may_have = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = "any number" if may_have < 0 else str(may_have)
    return f"kstore holds {openfiles.held()} for logs and {locks} for locks, the process may have {allowed}"


class _Forked(Protocol):
    def _after_fork(self) -> None: ...  # must take no lock: the thread that holds it does not exist in the child


_live: dict[
    int, weakref.ref[_Forked]
] = {}  # a dict, since its operations are atomic and a fork may come between any two


def register(owner: _Forked) -> None:
    """Call `owner._after_fork()` in every child that is forked while the owner exists."""
    key = id(owner)
    _live[key] = weakref.ref(owner, lambda reference: _forget(key, reference))


def _forget(key: int, reference: weakref.ref[_Forked]) -> None:
    if _live.get(key) is reference:  # otherwise a new object has the id of the collected one
        del _live[key]


_process = [os.getpid()]


def opener() -> int:
    """Return the id of the process that opened the descriptors of registered owners."""
    return _process[0]


def _close_in_child() -> None:
    for reference in list(_live.values()):
        owner = reference()
        if owner is not None:
            owner._after_fork()
    _live.clear()
    _process[0] = os.getpid()


os.register_at_fork(after_in_child=_close_in_child)


class Handles:
    """The descriptors of one log, closed by `close` or when the object is collected.

    They are not closed at interpreter exit, since the program's own exit function may still close the log.

    In a forked child they are closed immediately and `closed` is true. Before that `on_fork` is called, so that
    compiled code forgets the numbers before another file can get them. `on_fork` must not be a method of an object that
    holds this one: that would be a reference cycle. Other threads read within `use`. If `drop` or `close` is called
    during a use, the descriptors are closed when the last use ends, so that a number never means another file during a
    read. Thread-safe.
    """

    def __init__(self, on_fork: Callable[[], None] | None = None) -> None:
        self.closed = False
        self._on_fork = on_fork
        self._owned: set[int] = set()
        self._dropped: set[int] = set()
        self._uses = 0
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _close_all, os.getpid(), self._owned, self._dropped)
        self._finalizer.atexit = False
        register(self)

    def add(self, fd: int) -> int:
        """Take over a descriptor and return it; after `close`, close the descriptor and raise `StorageError`."""
        with self._lock:
            if not self.closed:
                self._owned.add(fd)
                return fd
        _close_each((fd,))
        raise StorageError(errno.EBADF, "the handles are closed")

    def drop(self, fd: int) -> None:
        """Close one descriptor, now or when the last `use` has ended; ignore a descriptor that is not owned."""
        with self._lock:
            if fd not in self._owned:
                return
            self._owned.discard(fd)
            self._dropped.add(fd)
            over = self._take_dropped()
        _close_each(over)

    def use(self) -> _Use:
        """Keep every descriptor open until the `with` block ends, even if another thread calls `drop` or `close`."""
        return _Use(self)

    def close(self) -> None:
        """Close all descriptors, now or when the last `use` has ended. Idempotent."""
        with self._lock:
            self.closed = True
            self._dropped |= self._owned
            self._owned.clear()
            over = self._take_dropped()
        _close_each(over)

    def _begin_use(self) -> None:
        with self._lock:
            self._uses += 1

    def _end_use(self) -> None:
        with self._lock:
            self._uses -= 1
            over = self._take_dropped()
        _close_each(over)

    def _take_dropped(self) -> tuple[int, ...]:
        if self._uses or not self._dropped:
            return ()
        over = tuple(self._dropped)
        self._dropped.clear()
        return over

    def _after_fork(self) -> None:
        self.closed = True
        self._finalizer.detach()
        if self._on_fork is not None:
            self._on_fork()
        for fd in (*self._owned, *self._dropped):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._owned.clear()
        self._dropped.clear()


class _Use:
    __slots__ = ("_handles",)

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def __enter__(self) -> None:
        self._handles._begin_use()

    def __exit__(self, *_: object) -> None:
        self._handles._end_use()


def _close_each(fds: Iterable[int]) -> None:
    """Close all descriptors, then raise the first error, which is that of an earlier, delayed write."""
    first: OSError | None = None
    for fd in fds:
        try:
            os.close(fd)
        except OSError as error:
            first = first or error
    if first is not None:
        raise storage_error(first) from first


def _close_all(pid: int, *owned: set[int]) -> None:
    if os.getpid() != pid:  # in a child that os.fork did not make: the descriptors are the parent's
        return
    for fds in owned:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        fds.clear()
