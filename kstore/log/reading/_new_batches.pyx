# cython: language_level=3, auto_pickle=False, autotestdict=False, annotation_typing=False, nonecheck=True, embedsignature=False
"""One look at the end of a log that another process writes: finds the batches that were appended since the last look.

Compiled, since a reader that follows a log looks for each new record. Whatever else may have changed is left to
`ReadOnlyView.refresh`. Invariant: the bytes of an answer were read from the file that has the segment's name after the
read, behind the batch that was the last one at the look before.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from kstore.codec._wire cimport (
    ATTRIBUTES_AT, CRC_AT, LAST_OFFSET_DELTA_AT, MAGIC_AT, MAX_TIMESTAMP_AT, RECORDS_AT, batch_size, load32, load64,
)
from kstore.disk._held cimport Held, hold, take_back
from kstore.disk._look cimport Look, both_stand, look_at, look_behind, same_file

from typing import NamedTuple

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "window.h" nogil:
    Py_ssize_t read_held "ks_read_held"(Held *held, int fd, uint8_t *p, size_t n, int64_t position) noexcept

cdef enum:
    MOST_BYTES = 262144            # more are left to a scan, which reads piece by piece


class NewBatches(NamedTuple):
    """Sound batches at the end of a segment, preceded by the last batch that was known before."""

    data: bytes
    position: int
    last_position: int
    next_offset: int
    maximum: tuple[int, int]
    changed_ns: int


def new_batches(root: bytes, directory: bytes, path: bytes, int fd, int64_t marked_ns, int64_t listed_ns,
                state: DirectoryState, int64_t base_offset) -> NewBatches | bool:
    """Return the batches behind the end of `state`, True if there are none, False if a refresh must find out more.

    The directories must have the times of modification `marked_ns` and `listed_ns`, and `fd` must be the last segment's
    file. All new batches must have format 2, and each must start where the batch before ends.
    """
    cdef Look before = look_behind(fd)
    cdef Held held
    cdef int64_t end = state.end_position, position, size, n, got, last, at
    cdef int64_t least = state.sound_offset, maximum, maximum_offset
    cdef const uint8_t *p
    cdef bytes header, data
    device, inode = state.end_file
    if before.changed_ns < 0 or before.device != device or before.inode != inode:
        return False
    if before.size == end and before.changed_ns == state.end_ns:
        return _stands(root, directory, path, marked_ns, listed_ns, &before)
    if state.last_batch is None:
        return False
    position, header = state.last_batch
    n = before.size - position
    if before.size <= end or n > MOST_BYTES or not 0 <= position <= end - PyBytes_GET_SIZE(header):
        return False
    data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> n)
    p = <const uint8_t *> PyBytes_AS_STRING(data)
    hold(&held)
    got = read_held(&held, fd, <uint8_t *> p, <size_t> n, position)
    take_back(&held)
    if got != n or memcmp(p, PyBytes_AS_STRING(header), <size_t> PyBytes_GET_SIZE(header)) != 0:
        return False
    if not _stands(root, directory, path, marked_ns, listed_ns, &before):
        return False
    maximum, maximum_offset = state.maximum
    last, at = -1, end - position
    while at < n:
        if n - at < RECORDS_AT or p[at + MAGIC_AT] != 2:
            return False
        size = batch_size(p + at)
        if size < RECORDS_AT or size > n - at or load64(p + at) != least or load32(p + at + LAST_OFFSET_DELTA_AT) < 0:
            return False
        if least - base_offset > INT32_MAX - load32(p + at + LAST_OFFSET_DELTA_AT):
            return False
        if ks_crc32c(0, p + at + ATTRIBUTES_AT, <size_t> (size - ATTRIBUTES_AT)) != <uint32_t> load32(p + at + CRC_AT):
            return False
        least += <int64_t> load32(p + at + LAST_OFFSET_DELTA_AT) + 1
        if load64(p + at + MAX_TIMESTAMP_AT) > maximum:
            maximum, maximum_offset = load64(p + at + MAX_TIMESTAMP_AT), least - 1
        last = at
        at += size
    return NewBatches(data, position, position + last, least, (maximum, maximum_offset), before.changed_ns)


cdef bint _stands(bytes root, bytes directory, bytes path, int64_t marked_ns, int64_t listed_ns,
                  const Look *file) noexcept:
    """Return whether the directories are unchanged, and the file has the path."""
    cdef Look found = look_at(PyBytes_AS_STRING(path))
    return same_file(&found, file) and both_stand(root, marked_ns, directory, listed_ns)
