"""`Lock`: the owner of a locked descriptor, which unlocks and closes it.

Compiled, so that no interrupt (a signal handler that raises) comes between two steps: a held lock always has an owner
that releases it. Invariant: a forked child, which shares its parent's locks, closes its copies of the descriptors and
never unlocks them.
"""

import os

from kstore.disk.handles import REGULAR as _REGULAR, explain_or_make_room, refuse_irregular, register

cdef extern from "Python.h":
    int Py_IsInitialized()

cdef extern from "sys/types.h":
    ctypedef int pid_t

cdef extern from "unistd.h" nogil:
    int close(int fd)
    pid_t getpid()

cdef extern from *:
    """
    #include <fcntl.h>
    #include <string.h>
    #include <sys/file.h>
    #include <unistd.h>

    /* Called before the close, which unlocks nothing while a forked process has a copy of the descriptor. */
    static void ks_unlock(int fd, int byte) {
        if (byte < 0) {
            (void)flock(fd, LOCK_UN);
            return;
        }
    #ifdef F_OFD_SETLK
        struct flock lock;
        memset(&lock, 0, sizeof lock);
        lock.l_type = F_UNLCK;
        lock.l_whence = SEEK_SET;
        lock.l_start = byte;
        lock.l_len = 1;
        (void)fcntl(fd, F_OFD_SETLK, &lock);
    #endif
    }
    """
    void ks_unlock(int fd, int byte) nogil


cdef class Lock:
    """A lock on a file or directory; released by `release`, by its `with` block, on collection or at process exit.

    The constructor opens the descriptor and locks nothing: the caller locks the byte `byte` of `fd`, or all of it with
    flock if `byte` is -1. With `give_back` there is no descriptor: `release` calls `give_back`, perhaps twice. A forked
    child does not hold the lock: its copy of the descriptor is closed without unlocking the parent's. Thread-safe.
    """

    cdef readonly str path
    cdef readonly bint held
    cdef readonly int fd              # -1 once it is closed, since the number may then be another file's
    cdef int byte
    cdef pid_t pid
    cdef object give_back
    cdef object __weakref__

    def __cinit__(self):
        self.fd = -1

    def __init__(self, str path not None, int flags=0, int byte=-1, give_back: Callable[[], object] | None = None):
        self.path = path
        self.byte = byte
        self.pid = getpid()
        self.give_back = give_back
        register(self)
        flags |= os.O_CLOEXEC if flags & os.O_DIRECTORY else _REGULAR | os.O_NOFOLLOW
        while give_back is None and self.fd < 0:
            try:
                self.fd = os.open(path, flags, 0o666)
            except OSError as error:
                explain_or_make_room(error, path)
        if self.fd >= 0 and not flags & os.O_DIRECTORY:
            try:
                refuse_irregular(self.fd, path)
            except BaseException:
                self._close(False)
                raise
        self.held = True

    def release(self) -> None:
        """Release the lock. Idempotent. Keeps the file: if it were deleted, two processes could lock two files."""
        if not self.held:
            return
        if self.give_back is not None and getpid() == self.pid:
            try:
                self.give_back()
            except BaseException:  # an interrupt: it may not have released the lock
                self.give_back()
                self.held = False
                raise
        self._close(getpid() == self.pid)

    cdef void _close(self, bint unlock) noexcept:
        cdef int fd = self.fd
        self.held = False
        self.fd = -1
        if fd >= 0:
            with nogil:
                if unlock:
                    ks_unlock(fd, self.byte)
                close(fd)

    def _after_fork(self):
        self._close(False)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        if self.give_back is None:
            self._close(getpid() == self.pid)
        elif Py_IsInitialized():  # otherwise the process exits, which unlocks, and this module may be cleared already
            self.release()
