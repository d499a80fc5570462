# cython: language_level=3
"""Frames a batch in a window on a `.log` file: parses its header, checks its CRC and offsets, and names the fault.

The scan and the searches use it. The functions are inline because a search by time takes 3 us and frames a few batches.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BATCH_LENGTH_AT, HEADER_UP_TO_MAGIC, LEADER_EPOCH_AT, LEGACY_ATTRIBUTES_AT, LOG_OVERHEAD, MAGIC_AT,
    MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, MIN_V1_MESSAGE, RECORDS_AT, batch_last_offset, batch_max_timestamp, load16,
    load32, load64,
)
from kstore.files._window cimport Window, window_at, window_crc_holds


cdef struct Header:
    int64_t position
    int64_t size                   # includes the 12 bytes that the length field does not count
    int64_t base_offset            # in formats 0 and 1 the entry's own offset
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
    BAD_OVERLAP
    BAD_GAP


cdef inline str stop_name(Stop stop):
    """Return the word for a stop in the result of a scan."""
    return ("", "end", "torn", "size", "magic", "crc", "order", "range", "read", "order", "gap")[<int> stop]


cdef inline Stop read_header(Window *w, int64_t position, Header *h, const uint8_t **header) noexcept nogil:
    """Frame the batch at `position` (FORMAT 2.7, the walker of files); point `header` to its header in the window."""
    # The size is checked before the magic, as in Kafka's walker: a batch that is cut off is "torn" whatever its magic.
    # `frame` of tools/check/_verify.pyx, which searches for damage, checks the magic first: bytes with an impossible
    # magic are no batch, and their length means nothing. The texts of errors and findings depend on this order.
    cdef const uint8_t *p
    cdef int32_t length
    cdef int64_t left = w.end - position
    h.position = position
    if left <= HEADER_UP_TO_MAGIC:
        return END if left <= 0 else TORN
    p = window_at(w, position, RECORDS_AT if left >= RECORDS_AT else <Py_ssize_t> left)
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
        h.last_offset = batch_last_offset(p)
        h.attributes = load16(p + ATTRIBUTES_AT)
        h.max_timestamp = load64(p + MAX_TIMESTAMP_AT)
        h.leader_epoch = load32(p + LEADER_EPOCH_AT)
    elif h.magic == 0 or h.magic == 1:
        if h.magic == 1 and length < MIN_V1_MESSAGE:
            return BAD_SIZE
        h.last_offset = h.base_offset
        h.attributes = p[LEGACY_ATTRIBUTES_AT]
        h.max_timestamp = batch_max_timestamp(p)
        h.leader_epoch = -1
    else:
        return BAD_MAGIC
    header[0] = p
    return GOES_ON


cdef inline Stop check_crc_at(Window *w, const Header *h) noexcept nogil:
    """Check the CRC of a framed batch, piece by piece if the batch is larger than the window."""
    cdef int holds = window_crc_holds(w, h.position, h.size, h.magic, w.capacity)
    if holds < 0:
        return BAD_READ if w.error else TORN
    return GOES_ON if holds else BAD_CRC


cdef inline Stop check_place(Window *w, const Header *h, int64_t least, int64_t most) noexcept nogil:
    """Check the offsets of a framed batch against its neighbours', since no CRC covers its base offset.

    The batch must start at or above `least`, the end of the batch before it, and end below `most`. If it starts above
    `least`, after a gap, it must also end before the next batch starts; otherwise damage has raised its base offset.
    """
    cdef Header following
    cdef const uint8_t *p
    if h.base_offset < least or h.last_offset < h.base_offset or h.last_offset >= most:
        return BAD_ORDER
    if h.base_offset > least:
        if read_header(w, h.position + h.size, &following, &p) == GOES_ON:
            # A next batch that starts below `least` is wrong itself.
            if least <= following.base_offset <= h.last_offset and following.base_offset <= following.last_offset:
                return BAD_OVERLAP
        elif w.error:
            return BAD_READ
    return GOES_ON


cdef inline object reason(Stop stop, const Header *h, int64_t end):
    """Describe what is wrong with the batch at which a walk up to `end` stopped; return None if nothing is."""
    if stop == TORN:
        return f"the file ends at {end}, inside a batch"
    if stop == BAD_SIZE:
        return f"batch of {h.size} bytes in format {h.magic}, which is less than its header has"
    if stop == BAD_MAGIC:
        return f"magic {h.magic}: 0, 1 and 2 are known"
    if stop == BAD_CRC:
        return f"the CRC of a batch of {h.size} bytes does not match"
    if stop == BAD_ORDER:
        return f"offsets {h.base_offset} to {h.last_offset}, which do not lie between those of the batches around them"
    if stop == BAD_OVERLAP:
        return f"offsets {h.base_offset} to {h.last_offset}, and the next batch begins below their end"
    if stop == BAD_GAP:
        return f"offsets {h.base_offset} to {h.last_offset} behind a gap in what was flushed"
    if stop == BAD_RANGE:
        return f"last offset {h.last_offset} is not within 2^31 of the segment's base offset"
    return None


cdef inline int raise_read(int error, object path) except -1:
    """Raise the `StorageError` of a failed read."""
    from kstore.disk import mounts  # imported here, since a .pxd has no module-level imports
    raise mounts.read_error(error, path)
