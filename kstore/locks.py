"""Who may write where: locks on a root's `.lock` file and on partition directories. Use these through `fs`.

Byte 0 of `.lock` is the root's writer, byte 1 the rewriting of its checkpoint files; a broker locks the whole file.
`.lock` is never deleted here. The hardest rule: a forked child shares its parent's locks, so it closes its copies of
the descriptors and never unlocks them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from kstore.descriptors import register, storage_error
from kstore.errors import LogLockedError, StorageError

if TYPE_CHECKING:
    from _typeshed import StrPath

LOCK_FILE = ".lock"


class Lock:
    """A lock on a file or directory, held until `release`, the end of its `with` block, its collection or the process.

    In a forked child it is not held: the child's copy of the descriptor is closed without unlocking the parent's.
    Thread-safe.
    """

    def __init__(self, path: str, fd: int, unlock: Callable[[int], None]) -> None:
        self.path = path
        self.held = True
        self._fd = fd  # -1 once it is given up: the number may be another file's then
        self._unlock = unlock
        self._pid = os.getpid()
        self._guard = threading.Lock()
        register(self)

    def release(self) -> None:
        """Give the lock back; again is no error. The file stays: deleting it would split later holders in two."""
        with self._guard:
            if not self.held:
                return
            self.held = False
            fd, self._fd = self._fd, -1
        if os.getpid() == self._pid:
            self._unlock(fd)  # said aloud, since a process forked meanwhile may still have a copy open

    def _after_fork(self) -> None:
        self.held = False
        if self._fd >= 0:
            _close_quietly(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the end of the process unlocks by itself
            self.release()


def lock_root(root: StrPath, *, shared: bool) -> Lock:
    """Lock a directory of logs against brokers and stores: `shared` for a lone writing log, else for a `Store`.

    A record lock on byte 0 of `.lock`, which is made when missing; it conflicts with the lock that a broker takes on
    the whole file, both ways. Raises `LogLockedError` at once when somebody has it, in this process or another.
    """
    return _lock_byte(os.path.join(root, LOCK_FILE), 0, shared=shared, wait=False)


def checkpoint_lock(root: StrPath) -> Lock:
    """Wait for the right to rewrite the checkpoint files of a root, on byte 1 of `.lock`; hold it only that long."""
    return _lock_byte(os.path.join(root, LOCK_FILE), 1, shared=False, wait=True)


def lock_partition(path: StrPath) -> Lock:
    """Lock a partition's directory for its one writer; `LogLockedError` at once when somebody has it."""
    path = os.fspath(path)

    def lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(fd: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        _close_quietly(fd)

    return _lock_what_is_there(path, os.O_RDONLY | os.O_DIRECTORY, lock, lambda _: None, unlock)


def _lock_what_is_there(
    path: str,
    flags: int,
    lock: Callable[[int], None],
    find_holder: Callable[[int], int | None],
    unlock: Callable[[int], None],
) -> Lock:
    """Open and lock the path, and again until the locked file is the one at the path.

    A broker that stops deletes its `.lock`: a lock won on that file in the meantime excludes nobody. The descriptor
    has an owner before it is locked, and an interrupt gives it back at once: nobody else would ever.
    """
    while True:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise storage_error(error, path) from error
        held = Lock(path, fd, unlock)
        try:
            lock(fd)
            if _is_at(fd, path):
                return held
        except OSError as error:
            holder = None
            if error.errno in (errno.EAGAIN, errno.EACCES):
                holder = find_holder(fd) or _find_pid_in_proc(fd)
            held.release()
            _refuse(path, error, holder)
        except BaseException:
            held.release()
            raise
        held.release()


def _refuse(path: str, error: OSError, pid: int | None) -> NoReturn:
    if error.errno in (errno.EAGAIN, errno.EACCES):
        who = "another process" if pid is None else "this process" if pid == os.getpid() else "process"
        number = "" if pid is None else f" {pid}" if pid != os.getpid() else f" ({pid})"
        locked = LogLockedError(errno.EAGAIN, f"locked by {who}{number}", path)
        locked.pid = pid
        raise locked from error
    reason = f"the file system cannot lock files here, so writing would not be safe ({error.strerror})"
    raise StorageError(error.errno or errno.ENOLCK, reason, path) from error


def _close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


# Open-file-description locks, which are lost only with their own descriptor; else the process-wide POSIX locks

_FLOCK = struct.Struct("@hhqqi4x")  # type, whence, start, length, pid
_HAS_OFD_LOCKS = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


def _lock_byte(path: str, byte: int, *, shared: bool, wait: bool) -> Lock:
    if not _HAS_OFD_LOCKS:
        return _process_locks.acquire(path, byte, shared=shared, wait=wait)
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK

    def lock(fd: int) -> None:
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))

    def find_holder(fd: int) -> int | None:
        with contextlib.suppress(OSError):
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
            pid: int = _FLOCK.unpack(answer)[4]
            return pid if pid > 0 else None
        return None

    def unlock(fd: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
        _close_quietly(fd)

    return _lock_what_is_there(path, os.O_RDWR | os.O_CREAT, lock, find_holder, unlock)


class _ProcessLocks:
    """Record locks where the system has only POSIX's, which belong to the process and are lost with any descriptor.

    So each file is opened once in the process, and the process's own holders exclude each other in this table.
    In a forked child POSIX locks are not inherited: the table starts anew there.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._fds: dict[str, int] = {}
        self._holders: dict[tuple[int, int], list[bool]] = {}  # (descriptor, byte) -> who is shared
        register(self)

    def acquire(self, path: str, byte: int, *, shared: bool, wait: bool) -> Lock:
        path = os.path.realpath(path)
        with self._changed:
            while True:
                fd = self._fds.get(path, -1)
                if fd < 0 or not _is_at(fd, path):
                    fd = self._open(path)
                holders = self._holders.setdefault((fd, byte), [])
                if not holders or (shared and all(holders)):
                    try:
                        if not holders:
                            how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
                            fcntl.lockf(fd, how | fcntl.LOCK_NB, 1, byte, os.SEEK_SET)
                        if _is_at(fd, path):
                            holders.append(shared)
                            return Lock(path, -1, partial(self._release, path, fd, byte, shared))
                        self._close_unused(path, fd)
                        continue
                    except OSError as error:
                        if error.errno not in (errno.EAGAIN, errno.EACCES) or not wait:
                            holder = _find_pid_in_proc(fd)
                            self._close_unused(path, fd)
                            _refuse(path, error, holder)
                elif not wait:
                    _refuse(path, BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), os.getpid())
                self._changed.wait(0.02)  # another process's unlocking wakes nobody here

    def _open(self, path: str) -> int:
        try:
            self._fds[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise storage_error(error, path) from error
        return self._fds[path]

    def _release(self, path: str, fd: int, byte: int, shared: bool, _: int) -> None:
        with self._changed:
            holders = self._holders.get((fd, byte), [])
            if shared in holders:
                holders.remove(shared)
            if not holders:
                with contextlib.suppress(OSError):
                    fcntl.lockf(fd, fcntl.LOCK_UN, 1, byte, os.SEEK_SET)
            self._close_unused(path, fd)
            self._changed.notify_all()

    def _close_unused(self, path: str, fd: int) -> None:
        if not any(held for (of, _), held in self._holders.items() if of == fd):
            self._holders = {key: held for key, held in self._holders.items() if key[0] != fd}
            if self._fds.get(path) == fd:
                del self._fds[path]
            _close_quietly(fd)

    def _after_fork(self) -> None:
        self._changed = threading.Condition()
        for fd in {*self._fds.values(), *(fd for fd, _ in self._holders)}:
            _close_quietly(fd)
        self._fds.clear()
        self._holders.clear()


_process_locks = _ProcessLocks()


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _find_pid_in_proc(fd: int) -> int | None:
    """Find a process that has the file of `fd` open and locked, where the system shows such things.

    The kernel names no owner for locks that belong to an open file, so ask each process that may be asked.
    """
    try:
        name, inode = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_ino
        pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    except OSError:
        return None
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            for other in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{other}") != name:
                        continue
                    with open(f"/proc/{pid}/fdinfo/{other}") as info:
                        if any(line.startswith("lock:") and f":{inode} " in line for line in info):
                            return pid
    return None
