"""What stands behind `fs`: the system's errors as kstore's, and owners of descriptors that know the fork rule.

A forked child shares its parent's open files and locks: whatever owns a descriptor registers here, and is told in the
child, before any Python code of the child's own runs there, to close its copies. Use these through `fs`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from kstore.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import StrPath


class MissingFileError(StorageError, FileNotFoundError):
    """Nothing is at the path; to a caller also a `FileNotFoundError`."""


class ExistingFileError(StorageError, FileExistsError):
    """Something is at the path already; to a caller also a `FileExistsError`."""


def storage_error(error: OSError, path: StrPath | int | None = None) -> StorageError:
    """Make the `StorageError` that stands for `error`, with its errno and the path (or the descriptor's path)."""
    kind = {errno.ENOENT: MissingFileError, errno.EEXIST: ExistingFileError}.get(error.errno or 0, StorageError)
    if isinstance(path, int):
        path = path_of(path)
    name = os.fspath(path) if path is not None else error.filename
    number = errno.EIO if error.errno is None else error.errno
    return kind(number, error.strerror or os.strerror(number), name)


def path_of(fd: int) -> str | None:
    """Tell the path that a descriptor was opened at, as far as the system knows it."""
    try:
        if sys.platform == "darwin":
            return fcntl.fcntl(fd, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0").decode(errors="replace")
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


# Descriptors with an owner


class _Forked(Protocol):
    def _after_fork(self) -> None: ...  # may take no lock: the thread that held it does not exist in the child


_live: dict[int, weakref.ref[_Forked]] = {}  # a dict, whose single operations are atomic: a fork may come at any time


def register(owner: _Forked) -> None:
    """Have `owner._after_fork()` called in every child that is forked while the owner lives."""
    key = id(owner)
    _live[key] = weakref.ref(owner, lambda reference: _forget(key, reference))


def _forget(key: int, reference: weakref.ref[_Forked]) -> None:
    if _live.get(key) is reference:  # else the number of a dead object has gone to a new one already
        del _live[key]


def _close_in_child() -> None:
    for reference in list(_live.values()):
        owner = reference()
        if owner is not None:
            owner._after_fork()
    _live.clear()


os.register_at_fork(after_in_child=_close_in_child)


class Handles:
    """The descriptors of one log: closed by `close`, when nobody holds the object any more, or at interpreter exit.

    In a forked child they are closed at once and `closed` is true. `on_fork` is called there too, before the numbers
    can be given out anew, so that whoever keeps a number in C forgets it; pass no method of an object that holds
    this one, or only the cycle collector will end both. A descriptor that a reader may be using in another thread is
    given up with `drop`, and every use in another thread happens within `use`: the numbers are then closed when the
    last use ends, so that a number never means another file in the middle of a read.
    Thread-safe.
    """

    def __init__(self, on_fork: Callable[[], None] | None = None) -> None:
        self.closed = False
        self._on_fork = on_fork
        self._owned: set[int] = set()
        self._dropped: set[int] = set()
        self._uses = 0
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _close_all, os.getpid(), self._owned, self._dropped)
        register(self)

    def add(self, fd: int) -> int:
        """Take over a descriptor and give its number back; one that comes after `close` is closed on the spot."""
        with self._lock:
            if not self.closed:
                self._owned.add(fd)
                return fd
        _close_each((fd,))
        raise StorageError(errno.EBADF, "the handles are closed")

    def drop(self, fd: int) -> None:
        """Close one descriptor, now or as soon as no `use` is left; one that is not owned is no error."""
        with self._lock:
            if fd not in self._owned:
                return
            self._owned.discard(fd)
            self._dropped.add(fd)
            over = self._take_dropped()
        _close_each(over)

    def use(self) -> _Use:
        """Keep every descriptor that is owned now open until the `with` block ends, whoever drops or closes it."""
        return _Use(self)

    def close(self) -> None:
        """Close all, now or as soon as no `use` is left. Again is no error."""
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
    """One use of handles, from entering its `with` block to leaving it."""

    __slots__ = ("_handles",)

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def __enter__(self) -> None:
        self._handles._begin_use()

    def __exit__(self, *_: object) -> None:
        self._handles._end_use()


def _close_each(fds: Iterable[int]) -> None:
    """Close all of them, then raise the first error there was (a write that the system had put off, and lost)."""
    first: OSError | None = None
    for fd in fds:
        try:
            os.close(fd)
        except OSError as error:
            first = first or error
    if first is not None:
        raise storage_error(first) from first


def _close_all(pid: int, *owned: set[int]) -> None:
    if os.getpid() != pid:  # a child that was forked behind Python's back
        return
    for fds in owned:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        fds.clear()
