"""Locks on a log directory (its `.lock` file) and on partition directories. Used through `fs`.

The directory's writer locks byte 0 of `.lock`; byte 1 is locked while checkpoint files are rewritten; a broker locks
the whole file. A `_lock.Lock` holds each lock. Invariant: kstore never deletes `.lock`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from kstore.disk import mounts
from kstore.disk._lock import Lock
from kstore.disk.handles import open_regular, register
from kstore.errors import LogLockedError, StorageError

if TYPE_CHECKING:
    from _typeshed import StrPath

LOCK_FILE = ".lock"


WAIT_SECONDS = 60.0
"""How long `checkpoint_lock` waits; a holder writes and syncs a file of a few kilobytes."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01


def lock_root(root: StrPath, *, shared: bool) -> Lock:
    """Lock a log directory against brokers and stores: `shared` for a log without a store, exclusively for a `Store`.

    Takes a record lock on byte 0 of `.lock`, and creates a missing `.lock`. The lock and a broker's lock on the whole
    file exclude each other. Raises `LogLockedError` immediately if this process or another holds the lock.
    """
    return _lock_byte(os.path.join(root, LOCK_FILE), 0, shared=shared, wait=False)


def checkpoint_lock(root: StrPath) -> Lock:
    """Lock byte 1 of `.lock` for a rewrite of a root's checkpoint files; the caller releases it right afterwards.

    Waits up to `WAIT_SECONDS`, then raises `LogLockedError`, which names the process that holds the lock.
    """
    return _lock_byte(os.path.join(root, LOCK_FILE), 1, shared=False, wait=True)


def lock_partition(path: StrPath) -> Lock:
    """Lock a partition's directory for its only writer; raise `LogLockedError` immediately if another holds it."""

    def lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    return _lock_what_is_there(os.fspath(path), os.O_RDONLY | os.O_DIRECTORY, -1, lock, wait=False)


def is_locked(root: StrPath) -> bool:
    """Return whether a log, a store or a broker has locked the log directory for writing; True if that is not known.

    Takes no lock, and creates no file. A mounted tree has no writer.
    """
    if mounts.is_mounted(root):
        return False
    try:
        fd = open_regular(os.path.join(root, LOCK_FILE), os.O_RDONLY)
    except OSError:
        return False
    try:
        if not _HAS_OFD_LOCKS:
            return True
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted))[0] != fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(fd)


def _lock_what_is_there(path: str, flags: int, byte: int, lock: Callable[[int], None], *, wait: bool) -> Lock:
    """Open and lock the path, and repeat both until the locked file is the one at the path.

    A broker that stops deletes its `.lock`, and a lock on the deleted file would exclude no other process. A `Lock`
    owns the descriptor before it is locked, so that the lock is released if an interrupt comes.
    """
    patience = _Patience(wait)
    while True:
        held = Lock(path, flags, byte)
        try:
            while not _is_locked(held.fd, lock, patience):
                patience.pause()
            if _is_at(held.fd, path):
                return held
        except OSError as error:
            pid = _find_holder(held.fd, byte) if error.errno in _TAKEN else None
            held.release()
            _refuse(path, error, pid, patience)
        except BaseException:
            held.release()
            raise
        held.release()


def _is_locked(fd: int, lock: Callable[[int], None], patience: _Patience) -> bool:
    """Take the lock; return False if another process holds it and there is time to retry."""
    try:
        lock(fd)
    except OSError as error:
        if error.errno in _TAKEN and not patience.is_over:
            return False
        raise
    return True


_TAKEN = (errno.EAGAIN, errno.EACCES)


class _Patience:
    """How long to retry a lock. A blocking system call would wait forever for a holder that is stopped."""

    def __init__(self, wait: bool) -> None:
        self.seconds = WAIT_SECONDS if wait else 0.0
        self._deadline = time.monotonic() + self.seconds
        self._pause = _FIRST_PAUSE

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _refuse(path: str, error: OSError, pid: int | None, patience: _Patience) -> NoReturn:
    if error.errno in _TAKEN:
        who = "another process" if pid is None else "this process" if pid == os.getpid() else "process"
        number = "" if pid is None else f" {pid}" if pid != os.getpid() else f" ({pid})"
        waited = f", after a wait of {patience.seconds:g} s" if patience.seconds else ""
        locked = LogLockedError(errno.EAGAIN, f"locked by {who}{number}{waited}", path)
        locked.pid = pid
        raise locked from error
    reason = f"the file system cannot lock files here, so writing would not be safe ({error.strerror})"
    raise StorageError(error.errno or errno.ENOLCK, reason, path) from error


def _close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


# Linux has open file description locks, which end only with their own descriptor. Other systems, such as macOS, have
# only POSIX locks, which belong to the process.

_FLOCK = struct.Struct("@hhqqi4x")  # type, whence, start, length, pid
_HAS_OFD_LOCKS = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


def _lock_byte(path: str, byte: int, *, shared: bool, wait: bool) -> Lock:
    if not _HAS_OFD_LOCKS:
        return _process_locks.acquire(path, byte, shared=shared, wait=wait)
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK

    def lock(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))

    return _lock_what_is_there(path, os.O_RDWR | os.O_CREAT, byte, lock, wait=wait)


class _Holder:
    """One holder of a byte in this process; compared by identity."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared


class _ProcessLocks:
    """Record locks for macOS and other systems that have only POSIX locks, which belong to the whole process.

    The process loses them when it closes any descriptor of the file. Therefore each file is opened once in the process,
    and this table makes holders within the process exclude each other. A forked child does not inherit the locks, and
    its table is empty. Thread-safe.
    """

    def __init__(self) -> None:
        # Always write `with self._lock`, not `with self._changed`: an interrupt in the condition's code would leave the
        # lock taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._fds: dict[str, int] = {}
        self._holders: dict[tuple[int, int], list[_Holder]] = {}  # by descriptor and byte
        register(self)

    def acquire(self, path: str, byte: int, *, shared: bool, wait: bool) -> Lock:
        path = os.path.realpath(path)
        holder = _Holder(shared)
        held = Lock(path, give_back=partial(self._release, path, holder))
        try:
            with self._lock:
                self._wait_for(path, byte, holder, _Patience(wait))
            return held
        except BaseException:
            held.release()
            raise

    def _wait_for(self, path: str, byte: int, holder: _Holder, patience: _Patience) -> None:
        while True:
            fd = self._fds.get(path, -1)
            if fd < 0 or not _is_at(fd, path):
                fd = self._open(path)
            holders = self._holders.setdefault((fd, byte), [])
            if not holders or (holder.shared and all(other.shared for other in holders)):
                try:
                    if not holders:
                        how = fcntl.LOCK_SH if holder.shared else fcntl.LOCK_EX
                        fcntl.lockf(fd, how | fcntl.LOCK_NB, 1, byte, os.SEEK_SET)
                    if _is_at(fd, path):
                        holders.append(holder)
                        return
                    self._close_unused(path, fd)
                    continue
                except OSError as error:
                    if error.errno not in _TAKEN or patience.is_over:
                        pid = _find_holder(fd, byte)
                        _refuse(path, error, pid, patience)
            elif patience.is_over:
                _refuse(path, BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), os.getpid(), patience)
            self._changed.wait(0.02)  # another process that unlocks the byte does not notify this one

    def _open(self, path: str) -> int:
        self._fds[path] = open_regular(path, os.O_RDWR | os.O_CREAT)
        return self._fds[path]

    def _release(self, path: str, holder: _Holder) -> None:
        with self._lock:
            for (fd, byte), holders in list(self._holders.items()):
                is_its = holder in holders
                if is_its:
                    holders.remove(holder)
                # Without `is_its`, an interrupt came after `lockf` and before the holder was added.
                if not holders and (is_its or self._fds.get(path) == fd):
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
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
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


def _find_holder(fd: int, byte: int) -> int | None:
    """Return the id of the process that has locked the byte (-1: the whole file), or None if it cannot be determined.

    For a POSIX lock, such as a broker's, the system reports the owner's id; for an open file description lock it does
    not. Then /proc is searched for a process with such a lock; /proc does not show other users' processes.
    """
    if byte >= 0 and _HAS_OFD_LOCKS:
        with contextlib.suppress(OSError):
            wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            pid: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted))[4]
            if pid > 0:
                return pid
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
                        if any(_is_lock_on(line, inode, max(byte, 0)) for line in info):
                            return pid
    return None


def _is_lock_on(line: str, inode: int, byte: int) -> bool:
    """Return whether a line of fdinfo, as `lock: 1: OFDLCK ADVISORY WRITE -1 08:01:77 0 0`, is a lock on the byte."""
    words = line.split()
    if words[:1] != ["lock:"] or not words[-3].endswith(f":{inode}"):
        return False
    return int(words[-2]) <= byte and (words[-1] == "EOF" or byte <= int(words[-1]))
