# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Compares the batches of a `.log` file with their own headers, to check the whole file at the speed of memory.

`walk` returns a row for each batch, with the fields that a checker compares with other batches, and continues where
recovery's scan would stop; `find_next` finds the next sound batch after damage. Both read with `pread` into their own
memory, without the GIL. Invariant: whatever bytes the file holds, their running time is bounded by its length.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport ENOMEM
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memset

from kstore._core cimport KS_FINE, ks_parse_record, ks_record
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, CODEC_MASK, CONTROL_BIT, HEADER_UP_TO_MAGIC,
    LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LEGACY_ATTRIBUTES_AT, LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT,
    MIN_V0_MESSAGE, MIN_V1_MESSAGE, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT, V0_KEY_AT, V1_KEY_AT, batch_max_timestamp, load16, load32, load64,
)
from kstore.disk._mounted_read cimport mounted_read, set_mounted_read
from kstore.files._window cimport Window, window_at, window_crc_holds, window_free, window_new

from kstore.disk import mounts

set_mounted_read(mounted_read)


cdef enum:
    WINDOW = 262144                # small enough to stay in the second-level cache until the checksum is computed
    MAX_WHOLE = 67108864           # a larger batch has its CRC checked piece by piece, and its records not at all

# The faults of a batch whose CRC matches; bits of a row's `faults`.
cpdef enum Fault:  # type: IntFlag
    COUNT = 1                      # records_count is negative, or more than the batch has offsets
    DELTA = 2                      # last_offset_delta is negative, or the last offset is beyond 2^63
    CODEC = 4                      # compression types 5 to 7
    RECORDS = 8                    # the records do not parse, or do not end with the batch
    OFFSETS = 16                   # the records' offsets do not rise, or leave the batch's span
    TIMESTAMP = 32                 # the header's max_timestamp is not that of the records
    EPOCH = 64                     # leader epoch below -1


cdef struct Row:
    int64_t position
    int64_t size
    int64_t base_offset            # in formats 0 and 1 the entry's own offset
    int64_t last_offset
    int64_t max_timestamp
    int64_t producer_id
    int32_t leader_epoch
    int32_t base_sequence
    int32_t count
    int32_t faults
    int32_t control                # a control batch's type: 0 abort, 1 commit, ...; -1 if not one, or not read
    int16_t producer_epoch
    int16_t attributes
    int16_t magic
    int16_t unused_1
    int32_t unused_2

ROW = [  # type: list[tuple[str, str]]
       ("position", "i8"), ("size", "i8"), ("base_offset", "i8"), ("last_offset", "i8"), ("max_timestamp", "i8"),
       ("producer_id", "i8"), ("leader_epoch", "i4"), ("base_sequence", "i4"), ("count", "i4"), ("faults", "i4"),
       ("control", "i4"), ("producer_epoch", "i2"), ("attributes", "i2"), ("magic", "i2"), ("unused_1", "i2"),
       ("unused_2", "i4")]
"""The NumPy dtype of a row."""

cdef enum Stop:
    GOES_ON
    END
    MORE
    TORN
    BAD_SIZE
    BAD_MAGIC
    BAD_CRC
    BAD_READ

cdef tuple STOP_NAMES = ("", "end", "more", "torn", "size", "magic", "crc", "read")


cdef Stop missing(const Window *w) noexcept nogil:
    return BAD_READ if w.error else TORN


cdef Stop frame(Window *w, int64_t position, Row *row, const uint8_t **batch) noexcept nogil:
    """Frame the batch at `position` (FORMAT 2.7) and copy the fields of its header into `row`."""
    # The magic is checked before the size, unlike in `read_header` of files/_framing.pxd, which says why.
    cdef const uint8_t *p
    cdef int64_t length
    cdef int32_t delta
    cdef int64_t left = w.end - position
    if left <= 0:
        return END
    if left <= HEADER_UP_TO_MAGIC:
        return TORN
    p = window_at(w, position, RECORDS_AT if left >= RECORDS_AT else <Py_ssize_t> left)
    if p == NULL:
        return missing(w)
    memset(row, 0, sizeof(Row))
    length = load32(p + BATCH_LENGTH_AT)
    row.position = position
    row.size = length + LOG_OVERHEAD
    row.magic = <int8_t> p[MAGIC_AT]
    row.base_offset = row.last_offset = load64(p)
    row.max_timestamp = row.producer_id = row.leader_epoch = row.base_sequence = row.producer_epoch = row.control = -1
    if length < MIN_V0_MESSAGE:
        return BAD_SIZE
    if row.magic != 0 and row.magic != 1 and row.magic != 2:
        return BAD_MAGIC
    if row.size > left:
        return TORN
    if row.magic == 2:
        if row.size < RECORDS_AT:
            return BAD_SIZE
        row.attributes = load16(p + ATTRIBUTES_AT)
        row.max_timestamp = load64(p + MAX_TIMESTAMP_AT)
        row.producer_id = load64(p + PRODUCER_ID_AT)
        row.leader_epoch = load32(p + LEADER_EPOCH_AT)
        row.base_sequence = load32(p + BASE_SEQUENCE_AT)
        row.producer_epoch = load16(p + PRODUCER_EPOCH_AT)
        row.count = load32(p + RECORDS_COUNT_AT)
        delta = load32(p + LAST_OFFSET_DELTA_AT)
        if delta < 0 or row.base_offset < 0 or row.base_offset > <int64_t> 0x7fffffffffffffff - delta:
            row.faults |= DELTA
        else:
            row.last_offset = row.base_offset + delta
        if row.count < 0 or row.count > <int64_t> delta + 1:
            row.faults |= COUNT
        if row.attributes & CODEC_MASK > 4:
            row.faults |= CODEC
        if row.leader_epoch < -1:
            row.faults |= EPOCH
    else:
        if row.magic == 1 and length < MIN_V1_MESSAGE:
            return BAD_SIZE
        row.count = 1
        row.attributes = p[LEGACY_ATTRIBUTES_AT]
        row.max_timestamp = batch_max_timestamp(p)
        if row.base_offset < 0:
            row.faults |= DELTA
        if row.attributes & CODEC_MASK > 3:
            row.faults |= CODEC
    batch[0] = p
    return GOES_ON


cdef Stop check_crc(Window *w, const Row *row) noexcept nogil:
    """Check the CRC of a framed batch, piece by piece if the batch is very large."""
    cdef int holds = window_crc_holds(w, row.position, row.size, row.magic,
                                      <Py_ssize_t> row.size if row.size <= MAX_WHOLE else WINDOW)
    if holds < 0:
        return missing(w)
    return GOES_ON if holds else BAD_CRC


cdef void check_records(Row *row, const uint8_t *batch) noexcept nogil:
    """Compare the records of an uncompressed v2 batch with its header (FORMAT 2.3, 2.4, 3.2)."""
    cdef const uint8_t *p = batch + RECORDS_AT
    cdef const uint8_t *end = batch + row.size
    cdef ks_record r
    cdef int64_t last_delta = row.last_offset - row.base_offset
    cdef int64_t before = -1
    cdef int64_t base_timestamp = load64(batch + BASE_TIMESTAMP_AT)
    cdef int64_t timestamp
    cdef int64_t greatest = -0x7fffffffffffffff
    cdef int32_t i
    for i in range(row.count):
        p = ks_parse_record(p, end, &r)
        if p == NULL:
            row.faults |= RECORDS
            return
        if r.offset_delta <= before or r.offset_delta > last_delta:
            row.faults |= OFFSETS
        before = r.offset_delta
        p = r.end  # the same value, but known after the first field, so that the CPU can start the next record
        timestamp = <int64_t> (<unsigned long long> base_timestamp + <unsigned long long> r.timestamp_delta)
        if timestamp > greatest:
            greatest = timestamp
        if i == 0 and row.attributes & CONTROL_BIT and r.key_size >= 4:
            row.control = load16(r.key + 2)
    if p != end:
        row.faults |= RECORDS
    # For records before 1970, a leader's append writes -1 (none); a copied batch may have their greatest timestamp.
    if row.count > 0 and not row.attributes & TIMESTAMP_TYPE_BIT and greatest != row.max_timestamp:
        if row.max_timestamp != -1 or greatest > -1:
            row.faults |= TIMESTAMP


cdef void check_message(Row *row, const uint8_t *entry) noexcept nogil:
    """Compare the fields of a message of format 0 or 1 with its size (FORMAT 5)."""
    cdef const uint8_t *p = entry + (V1_KEY_AT if row.magic == 1 else V0_KEY_AT)
    cdef const uint8_t *end = entry + row.size
    cdef int32_t n
    cdef int field
    for field in range(2):
        if end - p < 4:
            row.faults |= RECORDS
            return
        n = load32(p)
        p += 4
        if n > 0:
            if n > end - p:
                row.faults |= RECORDS
                return
            p += n


cdef Stop _walk(Window *w, int64_t *at, Row *rows, Py_ssize_t room, Py_ssize_t *filled, bint records) noexcept nogil:
    cdef const uint8_t *p = NULL
    cdef Row *row
    cdef Stop stop
    while filled[0] < room:
        row = rows + filled[0]
        stop = frame(w, at[0], row, &p)
        if stop == GOES_ON:
            stop = check_crc(w, row)
        if stop != GOES_ON:
            return stop
        if records and row.size <= MAX_WHOLE:
            p = window_at(w, row.position, <Py_ssize_t> row.size)
            if p == NULL:
                return missing(w)
            if row.magic != 2:
                check_message(row, p)
            elif not row.attributes & CODEC_MASK and not row.faults & (COUNT | DELTA):
                check_records(row, p)
        filled[0] += 1
        at[0] += row.size
    return MORE


def walk(int fd, int64_t position, int64_t end, *, Py_ssize_t rows=16384, bint records=True,
         path: StrPath | None = None) -> tuple[bytes, int, str]:
    """Check the batches of `[position, end)` one by one, at most `rows` of them, without the GIL.

    Returns the rows of the sound batches (bytes of `ROW`s), the end position of the last one, and why the walk stopped
    there: "end", "more" (call again from there), "torn" (the file ends inside a batch), "size", "magic" or "crc". A
    batch is sound if its frame and CRC are right; a row's `faults` name its other faults. With `records`, the records
    of batches that are not compressed are parsed. Raises `StorageError` if a read fails.
    """
    cdef Window w
    cdef Stop stop = END
    cdef Py_ssize_t filled = 0
    cdef bytes made
    cdef Row *row
    if position < 0 or rows < 1:
        raise ValueError(f"position {position}, {rows} rows: the least are 0 and 1")
    if window_new(&w, fd, end, WINDOW):
        raise MemoryError
    try:
        made = PyBytes_FromStringAndSize(NULL, rows * <Py_ssize_t> sizeof(Row))
        row = <Row *> PyBytes_AS_STRING(made)
        with nogil:
            stop = _walk(&w, &position, row, rows, &filled, records)
        if stop == BAD_READ:
            _raise_read(&w, path)
        return made[:filled * <Py_ssize_t> sizeof(Row)], position, STOP_NAMES[<int> stop]
    finally:
        window_free(&w)


cdef int _raise_read(const Window *w, object path) except -1:
    if w.error == ENOMEM:
        raise MemoryError
    raise mounts.read_error(w.error, path)


cdef bint is_sound(Window *w, int64_t position, int64_t least, int64_t most, bint legacy, int64_t *budget) noexcept nogil:
    """Return whether a sound batch is at `position`; reduce the budget by the size of a batch whose CRC is computed."""
    cdef Row row
    cdef const uint8_t *p = NULL
    if frame(w, position, &row, &p) != GOES_ON or row.faults & (COUNT | DELTA | CODEC | EPOCH):
        return False
    if row.magic != 2 and not legacy:
        return False
    if row.base_offset < least or row.last_offset >= most:
        return False
    budget[0] -= row.size
    return check_crc(w, &row) == GOES_ON


cdef int64_t _find_next(Window *w, Window *checking, int64_t position, int64_t least, int64_t most, bint legacy,
                        int64_t *budget) noexcept nogil:
    cdef const uint8_t *p
    cdef const uint8_t *hit
    cdef Py_ssize_t n, i
    cdef int64_t offset
    while budget[0] > 0 and w.end - position > HEADER_UP_TO_MAGIC:
        n = WINDOW if w.end - position > WINDOW else <Py_ssize_t> (w.end - position)
        p = window_at(w, position, n)
        if p == NULL:
            return -1
        i = 0
        while i + HEADER_UP_TO_MAGIC <= n and budget[0] > 0:
            if not legacy:
                hit = <const uint8_t *> memchr(p + i + MAGIC_AT, 2, <size_t> (n - i - MAGIC_AT))
                if hit == NULL:
                    i = n - HEADER_UP_TO_MAGIC + 1
                    break
                i = hit - p - MAGIC_AT
            offset = load64(p + i)
            if least <= offset < most and is_sound(checking, position + i, least, most, legacy, budget):
                return position + i
            i += 1
        position += i
    return -1


def find_next(int fd, int64_t position, int64_t end, int64_t least, int64_t most, *, bint legacy=False,
              path: StrPath | None = None) -> int:
    """Return the position of the next sound batch from `position` on, with offsets in `[least, most)`; -1 if none.

    A batch is sound if its frame, offsets and CRC are right; formats 0 and 1 count only with `legacy`. Every byte is
    tried as a start. The search gives up after it has computed CRCs over a few times the file's length. Runs without
    the GIL. Raises `StorageError` if a read fails.
    """
    cdef Window w
    cdef Window checking
    cdef int64_t next_position = -1
    cdef int64_t budget = 8 * (end - position) + 1048576
    if position < 0:
        raise ValueError(f"position {position}: the least is 0")
    memset(&w, 0, sizeof(Window))
    memset(&checking, 0, sizeof(Window))
    try:
        if window_new(&w, fd, end, WINDOW) or window_new(&checking, fd, end, WINDOW):
            raise MemoryError
        with nogil:
            next_position = _find_next(&w, &checking, position, least, most, legacy, &budget)
        if w.error:
            _raise_read(&w, path)
        if checking.error:
            _raise_read(&checking, path)
        return next_position
    finally:
        window_free(&w)
        window_free(&checking)
