"""`copy` copies bytes from one open file to another and computes their CRC-32C, in one call without the GIL.

Compiled, since a thread that returns to Python between each read, checksum and write would wait for the GIL each time,
and would make a thread that appends wait. The bytes go through a buffer that fits into the CPU's cache.
"""

from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *data, size_t n, int64_t position) noexcept
    ssize_t pwrite(int fd, const void *data, size_t n, int64_t position) noexcept

cdef enum:
    PIECE_BYTES = 256 << 10


def copy(int source, int64_t position, int64_t length, int target, int64_t at) -> tuple[int, int, int, bool]:
    """Copy `length` bytes at `position` to `at`; return (bytes copied, CRC-32C, errno or 0, whether the target failed).

    Without an error, fewer bytes are copied only if the source ends. After an error, more bytes than the returned
    number may have been written. Thread-safe.
    """
    cdef uint8_t *piece = <uint8_t *>malloc(PIECE_BYTES)
    cdef int64_t copied = 0
    cdef ssize_t got, put, written
    cdef uint32_t crc = 0
    cdef int error = 0
    cdef bint in_target = False
    if piece is NULL:
        raise MemoryError
    with nogil:
        while copied < length and not error:
            got = pread(source, piece, <size_t>min(<int64_t>PIECE_BYTES, length - copied), position + copied)
            if got < 0 and errno == EINTR:
                continue
            if got <= 0:
                error = errno if got < 0 else 0
                break
            crc = ks_crc32c(crc, piece, <size_t>got)
            written = 0
            while written < got:
                put = pwrite(target, piece + written, <size_t>(got - written), at + copied + written)
                if put > 0:
                    written += put
                elif put == 0 or errno != EINTR:
                    error, in_target = errno if put < 0 else EIO, True
                    break
            copied += written
        free(piece)
    return copied, crc, error, in_target
