"""`Watch`: waits in the kernel until a directory or a file in it has changed, by inotify. Linux only.

The reader arms the watch and takes its events before it looks at the directory: a change after the look then ends the
wait. Invariant: a directory that counts as armed has a watch, or an event that says otherwise lies in the queue.
"""

from libc.errno cimport EINTR, EOPNOTSUPP
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals

import os

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <time.h>
    #include <unistd.h>

    #ifdef __linux__
    #include <poll.h>
    #include <sys/inotify.h>
    #include <sys/vfs.h>

    /* File systems that report changes by all processes of the machine. Others (network file systems, FUSE) do not
       report what another machine does; an overlay does not report changes made below it. */
    static const long ks_reporting[] = {
        0xEF53,     /* ext2, ext3, ext4 */
        0x58465342, /* XFS */
        0x9123683E, /* Btrfs */
        0x01021994, /* tmpfs */
        0xF2F52010, /* F2FS */
        0x2FC12FC1, /* ZFS */
        0xCA451A4E, /* bcachefs */
    };

    static int ks_is_reported(const char *path) {
        struct statfs found;
        if (statfs(path, &found) != 0)
            return -1;
        for (size_t i = 0; i < sizeof ks_reporting / sizeof *ks_reporting; i++)
            if ((uint32_t)found.f_type == (uint32_t)ks_reporting[i])
                return 1;
        return 0;
    }

    static int ks_watch_open(void) { return inotify_init1(IN_NONBLOCK | IN_CLOEXEC); }

    static int ks_watch_add(int fd, const char *path) {
        return inotify_add_watch(fd, path, IN_MODIFY | IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE
                                 | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR);
    }

    static void ks_watch_remove(int fd, int wd) { inotify_rm_watch(fd, wd); }

    static double ks_watch_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + t.tv_nsec * 1e-9;
    }

    /* Return 1 if the descriptor can be read, 0 after the time, -1 on an error. */
    static int ks_watch_poll(int fd, double seconds) {
        struct pollfd polled = {fd, POLLIN, 0};
        struct timespec t = {0, 0};
        if (seconds > 0) {
            t.tv_sec = (time_t)seconds;
            t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
        }
        return ppoll(&polled, 1, &t, NULL);
    }

    /* Read events. A directory that is at its path no more, or whose events were lost, becomes unarmed. Return the number
       of events of armed directories, -1 on an error. */
    static int ks_watch_drain(int fd, int *wds, Py_ssize_t count) {
        char events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
        int changed = 0;
        for (;;) {
            ssize_t got = read(fd, events, sizeof events);
            if (got < 0)
                return errno == EAGAIN || errno == EINTR ? changed : -1;
            for (char *at = events; at < events + got; at += sizeof(struct inotify_event) + ((struct inotify_event *)at)->len) {
                const struct inotify_event *event = (const struct inotify_event *)at;
                for (Py_ssize_t i = 0; i < count; i++)
                    if (wds[i] >= 0 && (wds[i] == event->wd || (event->mask & IN_Q_OVERFLOW))) {
                        changed++;
                        if (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_Q_OVERFLOW))
                            inotify_rm_watch(fd, wds[i]);
                        if (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_Q_OVERFLOW | IN_IGNORED))
                            wds[i] = -1;
                    }
            }
            if ((size_t)got < sizeof events / 2)
                return changed;
        }
    }
    #else
    static int ks_is_reported(const char *path) { (void)path; return 0; }
    static int ks_watch_open(void) { errno = ENOSYS; return -1; }
    static int ks_watch_add(int fd, const char *path) { (void)fd; (void)path; errno = ENOSYS; return -1; }
    static void ks_watch_remove(int fd, int wd) { (void)fd; (void)wd; }
    static double ks_watch_now(void) { return 0; }
    static int ks_watch_poll(int fd, double seconds) { (void)fd; (void)seconds; errno = ENOSYS; return -1; }
    static int ks_watch_drain(int fd, int *wds, Py_ssize_t count) { (void)fd; (void)wds; (void)count; return -1; }
    #endif
    """
    int errno
    int ks_is_reported(const char *path) nogil
    int ks_watch_open() nogil
    int ks_watch_add(int fd, const char *path) nogil
    void ks_watch_remove(int fd, int wd) nogil
    double ks_watch_now() nogil
    int ks_watch_poll(int fd, double seconds) nogil
    int ks_watch_drain(int fd, int *wds, Py_ssize_t count) nogil

cdef extern from "unistd.h":
    int close(int fd) nogil

cdef enum:
    MOST_EARLY = 3


cdef class Watch:
    """A descriptor that can be read when a directory has changed. `cancel` is for any thread, the rest for one."""

    cdef readonly int fd  # type: int
    cdef readonly tuple directories  # type: tuple[str, ...]
    cdef list held  # keeps the paths' bytes
    cdef int *wds
    cdef Py_ssize_t count
    cdef int early  # waits in a row that did not have to wait

    def __cinit__(self, tuple directories: tuple[str, ...]):
        """Open the descriptor; raise `OSError` if the system has none or a file system does not report changes."""
        cdef Py_ssize_t i
        self.fd = -1
        self.directories = directories
        self.held = [os.fsencode(directory) for directory in directories]
        for name in self.held:
            if ks_is_reported(PyBytes_AS_STRING(name)) != 1:
                raise OSError(EOPNOTSUPP, os.strerror(EOPNOTSUPP), os.fsdecode(name))
        self.count = len(directories)
        self.wds = <int *>malloc((self.count + 1) * sizeof(int))
        if self.wds is NULL:
            raise MemoryError
        for i in range(self.count):
            self.wds[i] = -1
        self.fd = ks_watch_open()
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        self._close()
        free(self.wds)

    @property
    def is_armed(self) -> bool:
        """Whether the directories were watched when the last events were taken."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.wds[i] < 0:
                return False
        return self.fd >= 0

    def arm(self) -> bool:
        """Watch the directories that are not watched, and take earlier events; return whether all are watched now."""
        cdef Py_ssize_t i
        if self.fd < 0:
            return False
        self._drain()
        for i in range(self.count):
            if self.wds[i] < 0:
                self.wds[i] = ks_watch_add(self.fd, PyBytes_AS_STRING(self.held[i]))
                if self.wds[i] < 0:
                    return False
        return True

    def ended_early(self) -> None:
        """Note that a wait found news at its first look; stop watching after some of these.

        A writer that is ahead of its reader then pays for no events.
        """
        self.early += 1
        if self.early >= MOST_EARLY and self.fd >= 0:
            self.cancel()
            self._drain()

    def wait(self, double seconds) -> bool:
        """Wait until a directory has changed since it was armed; return False after the time."""
        cdef double end = ks_watch_now() + seconds
        cdef int ready
        while True:
            PyErr_CheckSignals()
            with nogil:
                ready = ks_watch_poll(self.fd, min(end - ks_watch_now(), 86400.0))
            if ready == 0 and ks_watch_now() >= end:
                return False
            if ready < 0 and errno != EINTR:
                raise OSError(errno, os.strerror(errno))
            if ready > 0 and self.take():
                return True

    def take(self) -> bool:
        """Take what has happened in a wait that is over; return whether a directory has changed."""
        self.early = 0
        return self.fd >= 0 and self._drain() > 0  # a forked child has closed it

    cdef int _drain(self) except -1:
        cdef int changed = ks_watch_drain(self.fd, self.wds, self.count)
        if changed < 0:
            raise OSError(errno, os.strerror(errno))
        return changed

    def cancel(self) -> None:
        """Stop watching, which ends a `wait`, now or when it begins."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.wds[i] >= 0:
                ks_watch_remove(self.fd, self.wds[i])

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        self._close()

    cdef void _close(self) noexcept:
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1
