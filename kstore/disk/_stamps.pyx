"""`Stamps`: finds which of many files and directories have changed, with one system call for each unchanged path.

`is_at` looks at one file, for readers that do so for each piece.

Compiled, since a follower checks thousands of partitions many times a second. Opens nothing. Invariant: a path that
changed very recently is reported again, since another change may leave its modification time the same.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc

from kstore.disk._look cimport UNSETTLED_NS, Look, look_at, look_behind, same_file

import os
import time

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    #include "look.h"

    typedef struct { int64_t inode, size, changed_ns; } ks_stamp;

    /* For a symbolic link, the link's own stamp; -1 if lstat fails. */
    static ks_stamp ks_stamp_of(const char *path, int64_t sure_ns) {
        struct stat found;
        ks_file_state now = ks_looked(lstat(path, &found), &found);
        ks_stamp stamp = {now.inode, now.size, now.changed_ns};
        if (stamp.changed_ns > sure_ns)
            stamp.inode = -2; /* no file has this inode, so the next check finds a change */
        return stamp;
    }

    static int ks_stamp_stands(const char *path, const ks_stamp *before, int64_t sure_ns) {
        ks_stamp now = ks_stamp_of(path, sure_ns);
        return before->inode != -2 && now.inode == before->inode && now.size == before->size
            && now.changed_ns == before->changed_ns;
    }
    """
    ctypedef struct ks_stamp:
        int64_t inode
        int64_t size
        int64_t changed_ns
    ks_stamp ks_stamp_of(const char *path, int64_t sure_ns) nogil
    bint ks_stamp_stands(const char *path, const ks_stamp *before, int64_t sure_ns) nogil


cdef struct _Pair:
    const char *paths[2]
    ks_stamp stamps[2]
    bint stands


# stub: _K = TypeVar("_K", bound=Hashable)


cdef class Stamps:  # type: Generic[_K]
    """Pairs of paths, each pair with a key. For one thread at a time; otherwise a call may raise `RuntimeError`."""

    cdef _Pair *pairs
    cdef Py_ssize_t room
    cdef list keys, held  # by number; `held` keeps the paths' bytes
    cdef dict numbers
    cdef bint looking

    def __cinit__(self):
        self.keys = []
        self.held = []
        self.numbers = {}

    def __dealloc__(self):
        free(self.pairs)

    def __len__(self):
        return len(self.keys)

    def add(self, key: _K, str first, str second) -> None:
        """Watch two paths from now on, in place of the key's earlier paths."""
        cdef tuple held = (_encoded(first), _encoded(second))
        cdef Py_ssize_t number
        cdef _Pair *pairs
        cdef int64_t sure_ns = time.time_ns() - UNSETTLED_NS
        self._refuse_looking()
        self.remove(key)
        number = len(self.keys)
        if number == self.room:
            pairs = <_Pair *>realloc(self.pairs, (2 * number + 16) * sizeof(_Pair))
            if pairs is NULL:
                raise MemoryError
            self.pairs, self.room = pairs, 2 * number + 16
        for i in range(2):
            self.pairs[number].paths[i] = PyBytes_AS_STRING(held[i])
            self.pairs[number].stamps[i] = ks_stamp_of(self.pairs[number].paths[i], sure_ns)
        self.keys.append(key)
        self.held.append(held)
        self.numbers[key] = number

    def remove(self, key: _K) -> None:
        """Stop watching the paths of a key, if it has any."""
        cdef Py_ssize_t number, last
        self._refuse_looking()
        if key not in self.numbers:
            return
        number, last = self.numbers.pop(key), len(self.keys) - 1
        if number != last:
            self.pairs[number] = self.pairs[last]
            self.keys[number], self.held[number] = self.keys[last], self.held[last]
            self.numbers[self.keys[number]] = number
        self.keys.pop()
        self.held.pop()

    def take_changed(self) -> list[_K]:
        """Return the keys with a changed path, and stop watching them.

        A path counts as changed if its inode, size or modification time has changed, or if the time is too recent.
        """
        cdef Py_ssize_t i, count = len(self.keys)
        cdef _Pair *pair
        cdef int64_t sure_ns = time.time_ns() - UNSETTLED_NS
        self._refuse_looking()
        self.looking = True
        try:
            with nogil:
                for i in range(count):
                    pair = &self.pairs[i]
                    pair.stands = (ks_stamp_stands(pair.paths[0], &pair.stamps[0], sure_ns)
                                   and ks_stamp_stands(pair.paths[1], &pair.stamps[1], sure_ns))
        finally:
            self.looking = False
        changed = [self.keys[i] for i in range(count) if not self.pairs[i].stands]
        for key in changed:
            self.remove(key)
        return changed

    cdef int _refuse_looking(self) except -1:
        if self.looking:
            raise RuntimeError("another thread is looking at the files")
        return 0


def is_at(int fd, str path) -> bool | None:
    """Return whether the path names the file that the descriptor has open; None if one of the calls fails."""
    held = _held(path)
    cdef Look behind = look_behind(fd)
    cdef Look found = look_at(_name(held))
    if behind.changed_ns < 0 or found.changed_ns < 0:
        return None
    return same_file(&behind, &found)


cdef const char *_name(object held) except NULL:
    """Return the bytes of what `_held` returned, which the caller keeps."""
    if type(held) is bytes:
        return PyBytes_AS_STRING(held)
    return PyUnicode_AsUTF8AndSize(held, NULL)


cdef object _held(str path):
    """Return the path itself if its bytes can be had from it, else its bytes."""
    return path if path.isascii() and "\0" not in path else _encoded(path)


cdef bytes _encoded(str path):
    cdef bytes name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"a path has a null character: {path!r}")
    return name
