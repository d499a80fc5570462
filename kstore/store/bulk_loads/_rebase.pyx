"""Writes into a staged file the offsets that its batches get in the log."""

from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_OFFSET_AT, CONTROL_BIT, CRC_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, MAGIC_AT,
    PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT, TRANSACTIONAL_BIT, batch_size, load32, load64, store32, store64,
)
from kstore.files._window cimport read_at
from kstore.log.writing._appender cimport write_all

import os

from kstore.errors import CorruptRecordError, StorageError


cdef enum Walked:
    WHOLE
    CUT                        # the file ends inside a batch
    NO_BATCH                   # magic, length or counts are impossible
    OF_PRODUCER                # a numbered, transactional or control batch: its producer's state would not be checked
    FAILED_READ
    FAILED_WRITE


cdef struct Rebase:
    int64_t position           # of the next batch; after a failure, of the bad batch
    int64_t next_offset
    int64_t batches
    uint32_t first_crc
    int error


cdef Walked _rebase(int fd, int64_t end, int32_t leader_epoch, bint write, Rebase *r) noexcept nogil:
    cdef uint8_t header[RECORDS_AT]
    cdef int64_t size, last
    cdef Py_ssize_t got
    while r.position < end:
        got = read_at(fd, header, RECORDS_AT, r.position)
        if got < 0:
            r.error = errno
            return FAILED_READ
        if got < RECORDS_AT:
            return CUT
        size = batch_size(header)
        last = load32(header + LAST_OFFSET_DELTA_AT)
        if header[MAGIC_AT] != 2 or size < RECORDS_AT or last < 0 or <int64_t>load32(header + RECORDS_COUNT_AT) != last + 1:
            return NO_BATCH
        if size > end - r.position:
            return CUT
        if load64(header + PRODUCER_ID_AT) >= 0 or header[ATTRIBUTES_AT + 1] & (TRANSACTIONAL_BIT | CONTROL_BIT):
            return OF_PRODUCER
        if r.batches == 0:
            r.first_crc = <uint32_t>load32(header + CRC_AT)
        if write:
            store64(header + BASE_OFFSET_AT, r.next_offset)
            store32(header + LEADER_EPOCH_AT, leader_epoch)
            r.error = write_all(fd, header, MAGIC_AT, r.position)
            if r.error:
                return FAILED_WRITE
        r.next_offset += last + 1
        r.batches += 1
        r.position += size
    return WHOLE


def rebase(int fd, int64_t end, int64_t base_offset, int32_t leader_epoch, *, bint write=True,
           path: StrPath | None = None) -> tuple[int, int, int]:
    """Write offsets from `base_offset` on and a leader epoch into the v2 batches of `[0, end)` of a file, in place.

    Returns (next offset, number of batches, CRC of the first batch). Writes only the 16 bytes of each batch that no CRC
    covers, without the GIL. Ignores the present offsets, so a call may be repeated. If `write` is false, only checks
    the batches. Raises `StorageError`; raises `CorruptRecordError` if the bytes are not whole batches without a
    producer.
    """
    cdef Rebase r
    cdef Walked walked
    memset(&r, 0, sizeof(Rebase))
    r.next_offset = base_offset
    with nogil:
        walked = _rebase(fd, end, leader_epoch, write, &r)
    if walked == FAILED_READ or walked == FAILED_WRITE:
        raise StorageError(r.error, os.strerror(r.error), None if path is None else os.fspath(path))
    if walked == CUT:
        raise CorruptRecordError(f"the file ends at {end}, inside a batch", path=path, position=r.position)
    if walked == NO_BATCH:
        raise CorruptRecordError("no whole batch of format 2", path=path, position=r.position)
    if walked == OF_PRODUCER:
        raise CorruptRecordError("a batch with a producer or a control batch, which no task stages", path=path,
                                 position=r.position)
    return r.next_offset, r.batches, r.first_crc
