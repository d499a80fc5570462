# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Checks whole batches in memory: their ends, the order of their offsets, and their records as a leader does.

Invariant: the bytes are not trusted, so each size and each count is checked before it is used.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kstore._core cimport KS_TRAILING_BYTES, Buffer, fault_text, ks_parse_record, ks_record, ks_too_far, record_section
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_TIMESTAMP_AT, CODEC_MASK, CRC_AT, HEADER_UP_TO_MAGIC, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT,
    LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT, batch_size, load16, load32, load64,
)

from kstore.codec import compression, refusals
from kstore.errors import InvalidRecordError


cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept


cdef int64_t NO_LIMIT = 0x7fffffffffffffff


@cython.final
cdef class BatchCheck:
    """The result of `check_batch`: `count`, the true `max_timestamp`, whether deltas are `consecutive`, `errors`.

    `outside` is the offset delta of the first record outside the batch, or None. `errors` lists (index, reason, whether
    it is about the timestamp) for up to MOST_ERRORS records, and always the first error about a timestamp. Immutable.
    """

    cdef readonly int32_t count
    cdef readonly int64_t max_timestamp
    cdef readonly bint consecutive
    cdef readonly object outside  # type: int | None
    cdef readonly list errors  # type: list[tuple[int, str, bool]]


cdef enum:
    MOST_ERRORS = 65536            # a few bytes may decompress to tens of millions of invalid records


def check_batch(data not None: ReadableBuffer, *, Py_ssize_t position=0, bint create_time=True, int64_t now_ms=0,
                int64_t before_max_ms=0x7fffffffffffffff, int64_t after_max_ms=0x7fffffffffffffff,
                bint require_key=False, max_decompressed_bytes: int | None = None) -> BatchCheck:
    """Check every record of the v2 batch at `position` of `data` as a leader does (SEMANTICS 1.15 to 1.17).

    `create_time` says whether the topic's timestamp type is CreateTime. The batch's size and CRC have been checked.
    Raises `InvalidRecordError` for a broken structure, `CorruptRecordError` for data that does not decompress.
    """
    cdef BatchCheck check = BatchCheck.__new__(BatchCheck)
    cdef Buffer view = Buffer(data)
    cdef const uint8_t *head
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int64_t size, base, stamp, limit
    cdef int32_t i, last_delta
    cdef int16_t attributes
    cdef bytes section
    cdef bint about_time = False
    cdef ks_record r
    if position < 0 or view.size - position < RECORDS_AT:
        raise InvalidRecordError(f"no batch of {RECORDS_AT} bytes or more at position {position}")
    head = view.p + position
    size = batch_size(head)
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
    last_delta = load32(head + LAST_OFFSET_DELTA_AT)
    for i in range(check.count):
        p = ks_parse_record(p, end, &r)
        if p == NULL:
            raise InvalidRecordError(f"record {i} of {check.count}: {fault_text(r.fault)}")
        if r.offset_delta != i:
            check.consecutive = False
            if check.outside is None and not 0 <= r.offset_delta <= last_delta:
                check.outside = r.offset_delta
        if attributes & TIMESTAMP_TYPE_BIT:
            stamp = load64(head + MAX_TIMESTAMP_AT)
        else:
            stamp = <int64_t> (<uint64_t> base + <uint64_t> r.timestamp_delta)
        if stamp > check.max_timestamp:
            check.max_timestamp = stamp
        if require_key and r.key_size < 0:
            if len(check.errors) < MOST_ERRORS:
                check.errors.append((i, refusals.NO_KEY, False))
        elif create_time and stamp != -1:
            if ks_too_far(stamp, now_ms, before_max_ms, after_max_ms) and (
                    len(check.errors) < MOST_ERRORS or not about_time):
                about_time = True
                check.errors.append((i, refusals.too_far(stamp, now_ms, before_max_ms, after_max_ms), True))
        elif attributes & TIMESTAMP_TYPE_BIT:
            if len(check.errors) < MOST_ERRORS or not about_time:
                about_time = True
                check.errors.append((i, refusals.CLAIMS_APPEND_TIME, True))
    if p != end:
        raise InvalidRecordError(fault_text(KS_TRAILING_BYTES))
    return check


cdef bint is_ready(const uint8_t *p, Py_ssize_t n, int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms,
                   bint require_key) noexcept nogil:
    """Return whether these bytes are one sound v2 batch of which a leader changes only the offset and the leader epoch.

    Such a batch is not compressed, has base offset 0, create time and no producer id; its offset deltas are consecutive
    from 0, and its max timestamp is the greatest of its records. If this returns False, the caller must make Kafka's
    checks in their order.
    """
    cdef const uint8_t *at = p + RECORDS_AT
    cdef const uint8_t *end = p + n
    cdef int64_t base, stamp, greatest = -1
    cdef int32_t i, count
    cdef ks_record r
    if n < RECORDS_AT or batch_size(p) != n or p[MAGIC_AT] != 2 or load64(p) != 0:
        return False
    count = load32(p + RECORDS_COUNT_AT)
    if count < 1 or load32(p + LAST_OFFSET_DELTA_AT) != count - 1:
        return False
    if load16(p + ATTRIBUTES_AT) != 0 or load64(p + PRODUCER_ID_AT) >= 0:
        return False
    if ks_crc32c(0, p + ATTRIBUTES_AT, <size_t> (n - ATTRIBUTES_AT)) != <uint32_t> load32(p + CRC_AT):
        return False
    base = load64(p + BASE_TIMESTAMP_AT)
    for i in range(count):
        at = ks_parse_record(at, end, &r)
        if at == NULL or r.offset_delta != i or (require_key and r.key_size < 0):
            return False
        stamp = <int64_t> (<uint64_t> base + <uint64_t> r.timestamp_delta)
        if stamp != -1 and ks_too_far(stamp, now_ms, before_max_ms, after_max_ms):
            return False
        greatest = max(greatest, stamp)
    return at == end and greatest == load64(p + MAX_TIMESTAMP_AT)


def whole_batches(buffer: ReadableBuffer) -> tuple[int, int]:
    """Return (bytes of the whole batches at the start of `buffer`, size of the cut-off batch after them or 0).

    Returns (n, -1) if the bytes at n are not a batch: they declare a size below the smallest possible (FORMAT 2.7).
    """
    cdef Buffer held = Buffer(buffer)
    cdef Py_ssize_t at = 0
    cdef int64_t size
    while held.size - at >= LOG_OVERHEAD:
        size = batch_size(held.p + at)
        if size < LOG_OVERHEAD + MIN_V0_MESSAGE:
            return at, -1
        if size > held.size - at:
            return at, size
        at += size
    return at, 0 if at == held.size else LOG_OVERHEAD


def chained(buffer: ReadableBuffer, int64_t least, int64_t most, int64_t following=NO_LIMIT) -> tuple[int, int, int]:
    """Check that the offsets of whole batches are in order; return (bytes that pass, last position, next offset).

    The first base offset must be at least `least`, and all offsets must be below `most`. The last offset of a batch
    after a gap must be below the base offset of the next batch, or below `following` if there is no next batch. This
    finds every wrong base offset; no CRC covers base offsets. The last position is that of the last batch that passes
    (0 if there is none), and the next offset is the least base offset that the next batch may have. Bytes that are not
    framed as a batch pass: readers report them.
    """
    cdef Buffer held = Buffer(buffer)
    cdef Py_ssize_t at = 0, last = 0, left
    cdef const uint8_t *p
    cdef int64_t size, base, end, next_base
    while held.size - at > HEADER_UP_TO_MAGIC:
        p = held.p + at
        size = batch_size(p)
        left = held.size - at
        if size < LOG_OVERHEAD + MIN_V0_MESSAGE or size > left or (p[MAGIC_AT] == 2 and size < RECORDS_AT):
            return held.size, last, least
        base = end = load64(p)
        if p[MAGIC_AT] == 2:
            end = <int64_t> (<uint64_t> base + <uint64_t> <int64_t> load32(p + LAST_OFFSET_DELTA_AT))
        if base < least or end < base or end >= most:
            return at, last, least
        if base > least:
            next_base = following
            if size < left:
                next_base = load64(p + size) if left - size >= LOG_OVERHEAD else NO_LIMIT
            if least <= next_base <= end:
                return at, last, least
        last = at
        least = end + 1
        at += <Py_ssize_t> size
    return held.size, last, least


cdef Py_ssize_t _run(const uint8_t *p, Py_ssize_t n, int64_t *last_offset, int64_t *max_timestamp, Py_ssize_t *last,
                     int *codec) noexcept nogil:
    """Check the batches of `plain_run`; return their number, or 0 if one of them does not qualify."""
    cdef Py_ssize_t at = 0, count = 0
    cdef int64_t size, base, end = -1
    while at < n:
        if n - at < RECORDS_AT:
            return 0
        size = batch_size(p + at)
        if size < RECORDS_AT or size > n - at or p[at + MAGIC_AT] != 2 or load64(p + at + PRODUCER_ID_AT) >= 0:
            return 0
        if load32(p + at + LEADER_EPOCH_AT) < 0 or load32(p + at + LEADER_EPOCH_AT) != load32(p + LEADER_EPOCH_AT):
            return 0
        base = load64(p + at)
        if base <= end or load32(p + at + LAST_OFFSET_DELTA_AT) < 0:
            return 0
        if base >= NO_LIMIT - load32(p + at + LAST_OFFSET_DELTA_AT):
            return 0
        end = base + load32(p + at + LAST_OFFSET_DELTA_AT)
        if load16(p + at + ATTRIBUTES_AT) & CODEC_MASK > 4:
            return 0
        if load16(p + at + ATTRIBUTES_AT) & CODEC_MASK:
            codec[0] = load16(p + at + ATTRIBUTES_AT) & CODEC_MASK
        if ks_crc32c(0, p + at + ATTRIBUTES_AT, <size_t> (size - ATTRIBUTES_AT)) != <uint32_t> load32(p + at + CRC_AT):
            return 0
        if count == 0 or load64(p + at + MAX_TIMESTAMP_AT) > max_timestamp[0]:
            max_timestamp[0] = load64(p + at + MAX_TIMESTAMP_AT)
        last[0] = at
        count += 1
        at += <Py_ssize_t> size
    last_offset[0] = end
    return count


def plain_run(buffer: ReadableBuffer) -> tuple[int, int, int, int, int] | None:
    """Check a follower's append in bulk; return (count, last position, last offset, greatest timestamp, codec) or None.

    Returns None unless all batches are whole and sound, of format 2, of one leader epoch and without a producer id, and
    their offsets rise. After None the caller must check the batches one by one. Releases the GIL.
    """
    cdef Buffer held = Buffer(buffer)
    cdef int64_t last_offset = -1, max_timestamp = -1
    cdef Py_ssize_t last = 0, count
    cdef int codec = 0
    with nogil:
        count = _run(held.p, held.size, &last_offset, &max_timestamp, &last, &codec)
    return None if count == 0 else (count, last, last_offset, max_timestamp, codec)
