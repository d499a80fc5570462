# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Recovery's scan: checks every batch of a `.log` file and collects what recovery needs.

It reads with `pread` into its own memory, without the GIL. Invariant: whatever the file holds, and even if it is cut
during the scan, the scan ends, reads only `[position, end)` and uses a fixed buffer.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from kstore.codec._wire cimport (
    BASE_SEQUENCE_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT, load16, load32, load64,
)
from kstore.disk._mounted_read cimport mounted_read, set_mounted_read
from kstore.files._framing cimport (
    BAD_GAP, BAD_RANGE, BAD_READ, END, GOES_ON, TORN, Header, Stop, check_crc_at, check_place, raise_read, read_header,
    reason, stop_name,
)
from kstore.files._index_search cimport OFFSET_ENTRY, TIME_ENTRY, put_offset_entry, put_time_entry
from kstore.files._window cimport Window, window_at, window_free, window_new

from typing import NamedTuple

set_mounted_read(mounted_read)


cdef enum:
    SCAN_WINDOW = 262144           # small enough to stay in the second-level cache until the checksum is computed


class ProducerSpan(NamedTuple):
    """The header of a batch with a producer id."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int
    attributes: int


cdef int64_t INT32_LIMIT = 0x7fffffff


cdef struct Pile:                  # a growing array of bytes
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity


cdef uint8_t *pile(Pile *a, Py_ssize_t n) noexcept nogil:
    """Return space for `n` more bytes at the end, or NULL if there is no memory."""
    cdef Py_ssize_t capacity = a.capacity
    cdef uint8_t *data
    if a.size + n > capacity:
        capacity = 2 * capacity + n + 256
        data = <uint8_t *> PyMem_RawRealloc(a.data, <size_t> capacity)
        if data == NULL:
            return NULL
        a.data = data
        a.capacity = capacity
    a.size += n
    return a.data + a.size - n


cdef struct EpochStart:
    int64_t epoch
    int64_t offset


cdef struct ProducerBatch:
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t last_offset
    int64_t producer_id
    int64_t max_timestamp
    int32_t base_sequence
    int16_t producer_epoch
    int16_t attributes


cdef struct Findings:
    int64_t batches
    int64_t last_position          # of the last sound batch, -1
    int64_t last_offset
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t first_timestamp
    Pile index
    Pile times
    Pile epochs
    Pile producers
    Header bad


@cython.final
cdef class ScanResult:
    """The result of a scan: what it collected from the sound batches of `[position, end_position)`, and why it stopped.

    `stop` is "end" (all is sound), "torn" (the file ends inside a batch), "size", "magic", "crc" (corrupt), "order"
    (offsets do not rise), "gap" (see `scan`) or "range" (an offset that the segment's indexes cannot hold). `reason`
    describes the stop, and is None for "end". `next_offset` is None if there is no batch. The index entries are those
    of SEMANTICS 8.16 without the closing time entry. Immutable.
    """

    cdef readonly int64_t position
    cdef readonly int64_t end_position
    cdef readonly str stop
    cdef readonly object reason  # type: Any
    cdef readonly int64_t batches
    cdef readonly int64_t last_position
    cdef readonly object next_offset  # type: Any
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t first_timestamp
    cdef readonly bytes index_entries
    cdef readonly bytes time_entries
    cdef readonly list epochs  # type: list[tuple[int, int]]
    cdef readonly list producer_batches  # type: list[ProducerSpan]


def scan(int fd, int64_t position, int64_t end, int64_t base_offset, *, int64_t index_interval_bytes=4096,
         int64_t latest_epoch=-1, int64_t flushed_end=-1, bint check_crc=True,
         path: StrPath | None = None) -> ScanResult:
    """Check every batch of `[position, end)` and collect what recovery needs (SEMANTICS 8.16), without the GIL.

    `base_offset` is the segment's, or the end offset of the batch before `position`. Data was flushed up to the offset
    `flushed_end` (-1: not known); the scan stops ("gap") before a gap that contains this offset or ends at it. Collects
    epochs above `latest_epoch` as (epoch, base offset), and batches with a producer id as `ProducerSpan`s. Memory: one
    window and the collected items. Raises `StorageError` if a read fails; the `ScanResult` describes bad bytes.
    """
    cdef Window w
    cdef Findings f
    cdef Stop stop = END
    cdef int64_t valid = position
    cdef bint no_memory = False
    cdef ScanResult result
    cdef Py_ssize_t i
    cdef EpochStart *epoch
    cdef ProducerBatch *batch
    memset(&f, 0, sizeof(Findings))
    f.last_position = f.max_timestamp = f.max_timestamp_offset = f.first_timestamp = -1
    f.last_offset = base_offset - 1
    if window_new(&w, fd, end, SCAN_WINDOW):
        raise MemoryError
    try:
        with nogil:
            stop = _scan(&w, &f, &valid, base_offset, index_interval_bytes, latest_epoch, flushed_end, check_crc,
                         &no_memory)
        if no_memory:
            raise MemoryError
        if stop == BAD_READ:
            raise_read(w.error, path)
        result = ScanResult.__new__(ScanResult)
        result.position = position
        result.end_position = valid
        result.stop = stop_name(stop)
        result.reason = reason(stop, &f.bad, end)
        result.batches = f.batches
        result.last_position = f.last_position
        result.next_offset = <object> f.last_offset + 1 if f.batches else None
        result.max_timestamp = f.max_timestamp
        result.max_timestamp_offset = f.max_timestamp_offset
        result.first_timestamp = f.first_timestamp
        result.index_entries = PyBytes_FromStringAndSize(<char *> f.index.data, f.index.size)
        result.time_entries = PyBytes_FromStringAndSize(<char *> f.times.data, f.times.size)
        result.epochs = []
        for i in range(f.epochs.size // <Py_ssize_t> sizeof(EpochStart)):
            epoch = <EpochStart *> f.epochs.data + i
            result.epochs.append((epoch.epoch, epoch.offset))
        result.producer_batches = []
        for i in range(f.producers.size // <Py_ssize_t> sizeof(ProducerBatch)):
            batch = <ProducerBatch *> f.producers.data + i
            result.producer_batches.append(ProducerSpan(
                batch.position, batch.size, batch.base_offset, batch.last_offset, batch.producer_id,
                batch.producer_epoch, batch.base_sequence, batch.max_timestamp, batch.attributes))
        return result
    finally:
        window_free(&w)
        PyMem_RawFree(f.index.data)
        PyMem_RawFree(f.times.data)
        PyMem_RawFree(f.epochs.data)
        PyMem_RawFree(f.producers.data)


cdef Stop _scan(Window *w, Findings *f, int64_t *valid, int64_t base_offset, int64_t interval, int64_t latest_epoch,
                int64_t flushed_end, bint check_crc, bint *no_memory) noexcept nogil:
    cdef Header h
    cdef const uint8_t *p = NULL
    cdef Stop stop
    cdef int64_t last_indexed = valid[0]
    cdef int64_t last_time = -1
    cdef int64_t producer_id
    cdef uint8_t *entry
    cdef ProducerBatch *batch
    memset(&h, 0, sizeof(Header))
    while True:
        stop = read_header(w, valid[0], &h, &p)
        if stop == GOES_ON and check_crc:
            stop = check_crc_at(w, &h)
        if stop == GOES_ON:
            if h.last_offset < base_offset:
                stop = BAD_RANGE
            elif h.base_offset != f.last_offset + 1 or h.last_offset < h.base_offset:
                stop = check_place(w, &h, f.last_offset + 1, INT64_MAX)
                if stop == GOES_ON and f.last_offset + 1 < flushed_end <= h.last_offset:
                    stop = BAD_GAP
            if stop == GOES_ON and h.last_offset - base_offset > INT32_LIMIT:
                stop = BAD_RANGE
        if stop == GOES_ON and h.magic == 2 and (h.size <= w.capacity or not check_crc):
            p = window_at(w, h.position, RECORDS_AT)
            if p == NULL:
                stop = BAD_READ if w.error else TORN
        if stop != GOES_ON:
            f.bad = h
            return stop
        f.batches += 1
        f.last_position = valid[0]
        f.last_offset = h.last_offset
        if f.batches == 1:
            f.first_timestamp = h.max_timestamp
        if h.max_timestamp > f.max_timestamp:
            f.max_timestamp = h.max_timestamp
            f.max_timestamp_offset = h.last_offset
        if valid[0] - last_indexed > interval:
            entry = pile(&f.index, OFFSET_ENTRY)
            if entry == NULL:
                no_memory[0] = True
                return END
            put_offset_entry(entry, <int32_t> (h.last_offset - base_offset), <int32_t> valid[0])
            last_indexed = valid[0]
            if f.max_timestamp > last_time:
                last_time = f.max_timestamp
                entry = pile(&f.times, TIME_ENTRY)
                if entry == NULL:
                    no_memory[0] = True
                    return END
                put_time_entry(entry, f.max_timestamp, <int32_t> (f.max_timestamp_offset - base_offset))
        if h.magic == 2:
            if h.leader_epoch > latest_epoch:
                latest_epoch = h.leader_epoch
                entry = pile(&f.epochs, sizeof(EpochStart))
                if entry == NULL:
                    no_memory[0] = True
                    return END
                (<EpochStart *> entry).epoch = h.leader_epoch
                (<EpochStart *> entry).offset = h.base_offset
            if h.size > w.capacity and check_crc:
                p = window_at(w, h.position, RECORDS_AT)
                if p == NULL:
                    f.bad = h
                    return BAD_READ if w.error else TORN
            producer_id = load64(p + PRODUCER_ID_AT)
            if producer_id >= 0:
                batch = <ProducerBatch *> pile(&f.producers, sizeof(ProducerBatch))
                if batch == NULL:
                    no_memory[0] = True
                    return END
                batch.position = h.position
                batch.size = h.size
                batch.base_offset = h.base_offset
                batch.last_offset = h.last_offset
                batch.producer_id = producer_id
                batch.max_timestamp = h.max_timestamp
                batch.base_sequence = load32(p + BASE_SEQUENCE_AT)
                batch.producer_epoch = load16(p + PRODUCER_EPOCH_AT)
                batch.attributes = h.attributes
        valid[0] += h.size
