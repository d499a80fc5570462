# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Walking the batches of a `.log` file by descriptor: recovery's scan, and the searches that start at an index entry.

Reads with `pread` into memory of its own, without the GIL; opens nothing, maps nothing. Hardest rule: the file may hold
anything and may be cut meanwhile, and still every walk ends, within `[position, end)` and a fixed buffer.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.errno cimport EINTR, errno
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memmove, memset

from kstore._core cimport KS_TRAILING_BYTES, Buffer, fault_text, ks_parse_record, ks_record, record_section
from kstore._wire cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, CODEC_MASK, CRC_AT, HEADER_UP_TO_MAGIC,
    LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, MIN_V1_MESSAGE,
    PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT, TIMESTAMP_TYPE_BIT, load16, load32, load64,
    store32, store64,
)

import os

from kstore import compression
from kstore._core import decode_batches
from kstore.errors import CorruptRecordError, InvalidRecordError, StorageError

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "crc32.h" nogil:
    void ks_crc32_setup() noexcept
    uint32_t ks_crc32(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int fd, void *data, size_t n, int64_t position) noexcept

ks_crc32_setup()

cdef enum:
    SCAN_WINDOW = 262144           # stays in the second-level cache between the copy in and the checksum
    HEADER_WINDOW = 4096           # as much log as an index entry stands for, by default
    FIRST_LOOK = 256               # far from the last one every cache line is a wait for memory
    LEGACY_TIMESTAMP_AT = LOG_OVERHEAD + 6

cdef int64_t INT32_LIMIT = 0x7fffffff
cdef int64_t NO_LIMIT = 0x7fffffffffffffff


# ---- A window on a file.


cdef struct Window:
    int fd
    int error                      # errno of a failed read, 0 if the file just ended
    int64_t start                  # file position of data[0]
    int64_t end                    # of what may be read
    Py_ssize_t size                # bytes in data
    Py_ssize_t capacity
    Py_ssize_t ahead               # how much to read at once; between 1 and capacity
    uint8_t *data


cdef const uint8_t *look(Window *w, int64_t position, Py_ssize_t n) noexcept nogil:
    """The `n` bytes at `position`, n up to the capacity; NULL if they cannot be had. The last pointer dies."""
    cdef int64_t at = position - w.start
    cdef Py_ssize_t kept, wanted, got
    if 0 <= at and at + n <= w.size:
        return w.data + at
    kept = 0
    if 0 <= at < w.size:
        kept = <Py_ssize_t> (w.size - at)
        memmove(w.data, w.data + at, <size_t> kept)
    w.start = position
    w.size = kept
    wanted = n if n > w.ahead else w.ahead
    if wanted > w.end - position:
        wanted = <Py_ssize_t> (w.end - position)
    while w.size < wanted:
        got = pread(w.fd, w.data + w.size, <size_t> (wanted - w.size), position + w.size)
        if got < 0:
            if errno == EINTR:
                continue
            w.error = errno
            return NULL
        if got == 0:
            break
        w.size += got
    return w.data if w.size >= n else NULL


cdef struct Header:
    int64_t position
    int64_t size                   # with the 12 bytes before what the length counts
    int64_t base_offset            # of formats 0 and 1: the entry's own offset
    int64_t last_offset
    int64_t max_timestamp
    int32_t leader_epoch           # -1 in formats 0 and 1
    int16_t attributes
    int8_t magic


cdef enum Stop:
    GOES_ON
    END
    TORN
    BAD_SIZE
    BAD_MAGIC
    BAD_CRC
    BAD_ORDER
    BAD_RANGE
    BAD_READ


cdef tuple STOP_NAMES = ("", "end", "torn", "size", "magic", "crc", "order", "range", "read")


cdef Stop read_header(Window *w, int64_t position, Header *h, const uint8_t **found) noexcept nogil:
    """Frame the batch at `position` (FORMAT.md 2.7, the walker of files); `found` is its header in the window."""
    cdef const uint8_t *p
    cdef int32_t length
    cdef int64_t left = w.end - position
    h.position = position
    if left <= HEADER_UP_TO_MAGIC:
        return END if left <= 0 else TORN
    p = look(w, position, RECORDS_AT if left >= RECORDS_AT else <Py_ssize_t> left)
    if p == NULL:
        return BAD_READ if w.error else TORN
    length = load32(p + BATCH_LENGTH_AT)
    h.size = <int64_t> length + LOG_OVERHEAD
    h.magic = <int8_t> p[MAGIC_AT]
    if length < MIN_V0_MESSAGE:
        return BAD_SIZE
    if h.size > left:
        return TORN
    h.base_offset = load64(p)
    if h.magic == 2:
        if h.size < RECORDS_AT:
            return BAD_SIZE
        h.last_offset = <int64_t> (<uint64_t> h.base_offset + <uint64_t> <int64_t> load32(p + LAST_OFFSET_DELTA_AT))
        h.attributes = load16(p + ATTRIBUTES_AT)
        h.max_timestamp = load64(p + MAX_TIMESTAMP_AT)
        h.leader_epoch = load32(p + LEADER_EPOCH_AT)
    elif h.magic == 0 or h.magic == 1:
        if h.magic == 1 and length < MIN_V1_MESSAGE:
            return BAD_SIZE
        h.last_offset = h.base_offset
        h.attributes = p[MAGIC_AT + 1]
        h.max_timestamp = load64(p + LEGACY_TIMESTAMP_AT) if h.magic == 1 else -1
        h.leader_epoch = -1
    else:
        return BAD_MAGIC
    found[0] = p
    return GOES_ON


cdef Stop check_crc_at(Window *w, const Header *h) noexcept nogil:
    """Compare the CRC of a framed batch, piece by piece where it is larger than the window."""
    cdef Py_ssize_t skip = ATTRIBUTES_AT if h.magic == 2 else MAGIC_AT
    cdef int64_t at = h.position
    cdef int64_t end = h.position + h.size
    cdef uint32_t crc = 0
    cdef uint32_t wanted = 0
    cdef Py_ssize_t n
    cdef const uint8_t *p
    while at < end:
        n = <Py_ssize_t> (end - at) if end - at < w.capacity else w.capacity
        p = look(w, at, n)
        if p == NULL:
            return BAD_READ if w.error else TORN
        if at == h.position:
            wanted = <uint32_t> load32(p + (CRC_AT if h.magic == 2 else LOG_OVERHEAD))
        else:
            skip = 0
        if h.magic == 2:
            crc = ks_crc32c(crc, p + skip, <size_t> (n - skip))
        else:
            crc = ks_crc32(crc, p + skip, <size_t> (n - skip))
        at += n
    return GOES_ON if crc == wanted else BAD_CRC


cdef object _reason(Stop stop, const Header *h, int64_t end):
    if stop == TORN:
        return f"the file ends at {end}, inside a batch"
    if stop == BAD_SIZE:
        return f"batch of {h.size} bytes in format {h.magic}, which is less than its header has"
    if stop == BAD_MAGIC:
        return f"magic {h.magic}: 0, 1 and 2 are known"
    if stop == BAD_CRC:
        return f"the CRC of a batch of {h.size} bytes does not match"
    if stop == BAD_ORDER:
        return f"offsets {h.base_offset} to {h.last_offset} after higher ones"
    if stop == BAD_RANGE:
        return f"last offset {h.last_offset} is not within 2^31 of the segment's base offset"
    return None


cdef int _raise_read(int error, object path) except -1:
    raise StorageError(error, os.strerror(error), None if path is None else os.fspath(path))


# ---- Recovery's scan.


cdef struct Pile:                  # a growing array of bytes
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity


cdef uint8_t *pile(Pile *a, Py_ssize_t n) noexcept nogil:
    """Room for `n` more bytes at the end, or NULL."""
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
    """What a scan found in the sound batches of `[position, end_position)`, and why it stopped there.

    `stop` is "end" (all is sound), "torn" (the file ends inside a batch), "size", "magic", "crc" (corrupt), "order"
    (offsets do not rise) or "range" (an offset that the segment's indexes cannot hold); `reason` says it in words, or
    is None at the end. `next_offset` is None without a batch. Index entries are as SEMANTICS.md 8.16 has them, the
    closing time entry left out. Immutable.
    """

    cdef readonly int64_t position
    cdef readonly int64_t end_position
    cdef readonly str stop
    cdef readonly object reason
    cdef readonly int64_t batches
    cdef readonly int64_t last_position
    cdef readonly object next_offset
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t first_timestamp
    cdef readonly bytes index_entries
    cdef readonly bytes time_entries
    cdef readonly list epochs
    cdef readonly list producer_batches


def scan(int fd, int64_t position, int64_t end, int64_t base_offset, *, int64_t index_interval_bytes=4096,
         int64_t latest_epoch=-1, bint check_crc=True, path=None):
    """Check every batch of `[position, end)` and gather what recovery needs (SEMANTICS.md 8.16), without the GIL.

    `base_offset` is the segment's. Epochs above `latest_epoch` are gathered as (epoch, base offset); batches with a
    producer id as (position, size_bytes, base_offset, last_offset, producer_id, producer_epoch, base_sequence,
    max_timestamp, attributes). Memory: one window, and what is gathered. Raises `StorageError` when a read fails;
    what is wrong with the bytes is in the `ScanResult`.
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
    if not _open_window(&w, fd, end, SCAN_WINDOW):
        raise MemoryError
    try:
        with nogil:
            stop = _scan(&w, &f, &valid, base_offset, index_interval_bytes, latest_epoch, check_crc, &no_memory)
        if no_memory:
            raise MemoryError
        if stop == BAD_READ:
            _raise_read(w.error, path)
        result = ScanResult.__new__(ScanResult)
        result.position = position
        result.end_position = valid
        result.stop = STOP_NAMES[<int> stop]
        result.reason = _reason(stop, &f.bad, end)
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
            result.producer_batches.append((
                batch.position, batch.size, batch.base_offset, batch.last_offset, batch.producer_id,
                batch.producer_epoch, batch.base_sequence, batch.max_timestamp, batch.attributes))
        return result
    finally:
        PyMem_RawFree(w.data)
        PyMem_RawFree(f.index.data)
        PyMem_RawFree(f.times.data)
        PyMem_RawFree(f.epochs.data)
        PyMem_RawFree(f.producers.data)


cdef bint _open_window(Window *w, int fd, int64_t end, Py_ssize_t capacity) noexcept:
    memset(w, 0, sizeof(Window))
    w.fd = fd
    w.end = end
    w.capacity = w.ahead = capacity
    w.data = <uint8_t *> PyMem_RawMalloc(<size_t> capacity)
    return w.data != NULL


cdef Stop _scan(Window *w, Findings *f, int64_t *valid, int64_t base_offset, int64_t interval, int64_t latest_epoch,
                bint check_crc, bint *no_memory) noexcept nogil:
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
            if stop == GOES_ON and h.magic == 2 and h.size <= w.capacity:
                p = look(w, h.position, RECORDS_AT)
        if stop == GOES_ON:
            if h.last_offset < h.base_offset or h.last_offset <= f.last_offset:
                stop = BAD_ORDER if h.last_offset >= base_offset else BAD_RANGE
            elif h.last_offset - base_offset > INT32_LIMIT:
                stop = BAD_RANGE
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
            entry = pile(&f.index, 8)
            if entry == NULL:
                no_memory[0] = True
                return END
            store32(entry, <int32_t> (h.last_offset - base_offset))
            store32(entry + 4, <int32_t> valid[0])
            last_indexed = valid[0]
            if f.max_timestamp > last_time:
                last_time = f.max_timestamp
                entry = pile(&f.times, 12)
                if entry == NULL:
                    no_memory[0] = True
                    return END
                store64(entry, f.max_timestamp)
                store32(entry + 8, <int32_t> (f.max_timestamp_offset - base_offset))
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
                p = look(w, h.position, RECORDS_AT)
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


# ---- Searches by header.


cdef Stop _next(Window *w, int64_t position, Header *h) noexcept nogil:
    """Frame the batch at `position`, reading a little: 4 KiB among small batches, a header among large ones."""
    cdef const uint8_t *p
    w.ahead = HEADER_WINDOW if 0 < h.size <= HEADER_WINDOW // 2 else FIRST_LOOK
    return read_header(w, position, h, &p)


cdef int _raise_stop(Stop stop, Window *w, const Header *h, object path) except -1:
    """For walks that end in silence at the end, and at a torn batch, but not at a corrupt one."""
    if stop == BAD_READ:
        _raise_read(w.error, path)
    if stop not in (END, TORN):
        raise CorruptRecordError(_reason(stop, h, w.end), path=path, position=h.position)
    return 0


cdef bint _small_window(Window *w, uint8_t *data, int fd, int64_t end) noexcept nogil:
    memset(w, 0, sizeof(Window))
    w.fd = fd
    w.end = end
    w.capacity = w.ahead = HEADER_WINDOW
    w.data = data
    return True


cdef bytes _read_batch(int fd, const Header *h, bint check_crc, object path):
    """The whole batch that `h` frames, or None if the file has been cut meanwhile."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> h.size)
    cdef Window w
    cdef const uint8_t *p
    cdef Stop stop = GOES_ON
    memset(&w, 0, sizeof(Window))
    w.fd = fd
    w.end = h.position + h.size
    w.capacity = w.ahead = <Py_ssize_t> h.size
    w.data = <uint8_t *> PyBytes_AS_STRING(data)
    p = look(&w, h.position, w.capacity)
    if p == NULL:
        if w.error:
            _raise_read(w.error, path)
        return None
    if check_crc:
        stop = check_crc_at(&w, h)
        if stop != GOES_ON:
            raise CorruptRecordError(_reason(stop, h, w.end), path=path, position=h.position)
    return data


def find_batch(int fd, int64_t position, int64_t end, int64_t offset, *, path=None):
    """The batch that holds `offset`, or the next after a gap, looked for from `position` on (SEMANTICS.md 3.18a).

    (position, size_bytes, base_offset, last_offset, max_timestamp, magic), or None if every batch below `end` ends
    before `offset`. Only headers are read, without the GIL; no CRC is checked. Of formats 0 and 1 the base offset is
    the entry's own, which for a wrapper is its last. Raises `CorruptRecordError` at a length or magic that cannot be.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    _small_window(&w, data, fd, end)
    memset(&h, 0, sizeof(Header))
    with nogil:
        while True:
            stop = _next(&w, position, &h)
            if stop != GOES_ON or h.last_offset >= offset:
                break
            position += h.size
    if stop == GOES_ON:
        return h.position, h.size, h.base_offset, h.last_offset, h.max_timestamp, h.magic
    _raise_stop(stop, &w, &h, path)
    return None


def last_offset(int fd, int64_t position, int64_t end, *, path=None):
    """Walk the headers of `[position, end)` to the last whole batch (SEMANTICS.md 8.10).

    (last_offset, end_position) of that batch, or None if there is none. A torn batch at the end is passed over in
    silence. Raises `CorruptRecordError` at a length or magic that cannot be.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    cdef int64_t last = 0
    cdef int64_t at = position
    _small_window(&w, data, fd, end)
    memset(&h, 0, sizeof(Header))
    with nogil:
        while True:
            stop = _next(&w, at, &h)
            if stop != GOES_ON:
                break
            last = h.last_offset
            at += h.size
    _raise_stop(stop, &w, &h, path)
    return None if at == position else (last, at)


def find_timestamp(int fd, int64_t position, int64_t end, int64_t timestamp, int64_t min_offset=0, *,
                   bint check_crc=True, max_decompressed_bytes=None, path=None):
    """The first record of `[position, end)` with this timestamp or a later one, at `min_offset` or above.

    (timestamp, offset, leader_epoch), or None; leader epoch -1 if unknown. SEMANTICS.md 5.5, step 3: only batches
    whose maxTimestamp reaches it are opened, and their CRC checked. Raises `CorruptRecordError` and `StorageError`.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    cdef int64_t limit = compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes
    _small_window(&w, data, fd, end)
    memset(&h, 0, sizeof(Header))
    while True:
        with nogil:
            while True:
                stop = _next(&w, position, &h)
                if stop != GOES_ON or h.max_timestamp >= timestamp:
                    break
                position += h.size
        if stop != GOES_ON:
            _raise_stop(stop, &w, &h, path)
            return None
        if h.last_offset >= min_offset:
            batch = _read_batch(fd, &h, check_crc, path)
            if batch is None:
                return None
            found = _first_at(batch, &h, timestamp, min_offset, limit, path)
            if found is not None:
                return found
        position += h.size


cdef object _first_at(bytes batch, const Header *h, int64_t timestamp, int64_t min_offset, int64_t limit, object path):
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const uint8_t *head = <const uint8_t *> PyBytes_AS_STRING(batch)
    cdef int32_t left
    cdef int64_t base, stamp, offset
    cdef bytes section
    cdef ks_record r
    if h.magic != 2:
        for one in decode_batches(batch, False, path=path, position=h.position, max_decompressed_bytes=limit):
            for record in one:
                if record.timestamp >= timestamp and record.offset >= min_offset:
                    return record.timestamp, record.offset, -1
        return None
    if h.attributes & CODEC_MASK:
        section = record_section(head, len(batch), limit, path, h.position)
        p = <const uint8_t *> PyBytes_AS_STRING(section)
        end = p + len(section)
    else:
        p = head + RECORDS_AT
        end = head + len(batch)
    base = load64(head + BASE_TIMESTAMP_AT)
    for left in range(load32(head + RECORDS_COUNT_AT)):
        p = ks_parse_record(p, end, &r)
        if p == NULL:
            raise CorruptRecordError(fault_text(r.fault), path=path, position=h.position)
        stamp = h.max_timestamp
        if not h.attributes & TIMESTAMP_TYPE_BIT:
            stamp = <int64_t> (<uint64_t> base + <uint64_t> r.timestamp_delta)
        if stamp >= timestamp:
            offset = <int64_t> (<uint64_t> h.base_offset + <uint64_t> <int64_t> r.offset_delta)
            if offset >= min_offset:
                return stamp, offset, h.leader_epoch
    return None


# ---- What a leader checks inside a batch.


@cython.final
cdef class BatchCheck:
    """What `check_batch` found: `count`, the true `max_timestamp`, whether offset deltas are `consecutive`, `errors`.

    `errors` lists (index, reason, whether it is the timestamp), at most one of a record, and of tens of thousands only
    the first and the first that is about the timestamp. Immutable.
    """

    cdef readonly int32_t count
    cdef readonly int64_t max_timestamp
    cdef readonly bint consecutive
    cdef readonly list errors


cdef enum:
    MOST_ERRORS = 65536            # a few bytes may decompress to tens of millions of bad records


cdef inline bint _too_far(int64_t stamp, int64_t now, int64_t before_max, int64_t after_max) noexcept nogil:
    """Whether `stamp` is outside [now - before_max, now + after_max]; the limits are 0 or more."""
    if stamp < now:
        return <uint64_t> now - <uint64_t> stamp > <uint64_t> before_max
    return <uint64_t> stamp - <uint64_t> now > <uint64_t> after_max


def check_batch(data not None, *, Py_ssize_t position=0, bint create_time=True, int64_t now_ms=0,
                int64_t before_max_ms=0x7fffffffffffffff, int64_t after_max_ms=0x7fffffffffffffff,
                bint require_key=False, max_decompressed_bytes=None):
    """Look at every record of the v2 batch at `position` of `data` as a leader does (SEMANTICS.md 1.15 to 1.17).

    `create_time` is the topic's timestamp type. The batch's size and CRC have been checked. A broken structure is an
    `InvalidRecordError`, data that does not decompress a `CorruptRecordError`.
    """
    cdef BatchCheck check = BatchCheck.__new__(BatchCheck)
    cdef Buffer view = Buffer(data)
    cdef const uint8_t *head
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int64_t size, base, stamp, limit
    cdef int32_t i
    cdef int16_t attributes
    cdef bytes section
    cdef bint about_time = False
    cdef ks_record r
    if position < 0 or view.size - position < RECORDS_AT:
        raise InvalidRecordError(f"no batch of {RECORDS_AT} bytes or more at position {position}")
    head = view.p + position
    size = load32(head + BATCH_LENGTH_AT) + <int64_t> LOG_OVERHEAD
    if size < RECORDS_AT or size > view.size - position or head[MAGIC_AT] != 2:
        raise InvalidRecordError(f"no whole batch of format 2 at position {position}")
    attributes = load16(head + ATTRIBUTES_AT)
    check.count = load32(head + RECORDS_COUNT_AT)
    check.max_timestamp = -1
    check.consecutive = True
    check.errors = []
    if check.count < 0:
        raise InvalidRecordError(f"batch that declares {check.count} records")
    if check.count == 0:
        return check
    if attributes & CODEC_MASK:
        limit = compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes
        section = record_section(head, <Py_ssize_t> size, limit, None, position)
        p = <const uint8_t *> PyBytes_AS_STRING(section)
        end = p + len(section)
    else:
        p = head + RECORDS_AT
        end = head + size
    base = load64(head + BASE_TIMESTAMP_AT)
    for i in range(check.count):
        p = ks_parse_record(p, end, &r)
        if p == NULL:
            raise InvalidRecordError(f"record {i} of {check.count}: {fault_text(r.fault)}")
        if r.offset_delta != i:
            check.consecutive = False
        if attributes & TIMESTAMP_TYPE_BIT:
            stamp = load64(head + MAX_TIMESTAMP_AT)
        else:
            stamp = <int64_t> (<uint64_t> base + <uint64_t> r.timestamp_delta)
        if stamp > check.max_timestamp:
            check.max_timestamp = stamp
        if require_key and r.key_size < 0:
            if len(check.errors) < MOST_ERRORS:
                check.errors.append((i, "a compacted topic takes no record without a key", False))
        elif create_time and stamp != -1:
            if _too_far(stamp, now_ms, before_max_ms, after_max_ms) and (
                    len(check.errors) < MOST_ERRORS or not about_time):
                about_time = True
                check.errors.append((
                    i, f"timestamp {stamp} is not within {before_max_ms} ms before and {after_max_ms} ms after {now_ms}",
                    True))
        elif attributes & TIMESTAMP_TYPE_BIT:
            if len(check.errors) < MOST_ERRORS or not about_time:
                about_time = True
                check.errors.append((i, "the producer claims the log's append time as its own", True))
    if p != end:
        raise InvalidRecordError(fault_text(KS_TRAILING_BYTES))
    return check


def whole_batches(buffer):
    """(bytes of the whole batches at the start of `buffer`, size of the batch that is cut off or 0).

    Answers (n, -1) when what stands at n is no batch: a declared size below the smallest there is (FORMAT.md 2.7).
    """
    cdef Buffer held = Buffer(buffer)
    cdef Py_ssize_t at = 0
    cdef int64_t size
    while held.size - at >= LOG_OVERHEAD:
        size = <int64_t> load32(held.p + at + BATCH_LENGTH_AT) + LOG_OVERHEAD
        if size < LOG_OVERHEAD + MIN_V0_MESSAGE:
            return at, -1
        if size > held.size - at:
            return at, size
        at += size
    return at, 0 if at == held.size else LOG_OVERHEAD


def last_batch(buffer):
    """Where the last of the whole batches in `buffer` begins; 0 when there is none."""
    cdef Buffer held = Buffer(buffer)
    cdef Py_ssize_t at = 0, last = 0
    cdef int64_t size
    while held.size - at >= LOG_OVERHEAD:
        size = <int64_t> load32(held.p + at + BATCH_LENGTH_AT) + LOG_OVERHEAD
        if size < LOG_OVERHEAD + MIN_V0_MESSAGE or size > held.size - at:
            break
        last = at
        at += size
    return last
