# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Checks old messages, and rewrites old messages and v2 records as new v2 batches, in bulk and without the GIL.

A wrapper of a few kilobytes may decompress to millions of messages, so no Python object is made for each.
Invariant: the checks keep Kafka's order, which decides which error a caller sees (SEMANTICS 1.16 to 1.18).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kstore._core cimport (
    Buffer, KS_FINE, KS_TRAILING_BYTES, fault_text, ks_parse_header, ks_parse_record, ks_record, ks_too_far,
    record_section,
)
from kstore.codec._pack cimport Packer
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, CODEC_MASK, LEGACY_ATTRIBUTES_AT, LEGACY_MAGIC_AT,
    LEGACY_TIMESTAMP_AT, LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, MIN_V1_MESSAGE, RECORDS_AT,
    RECORDS_COUNT_AT, TIMESTAMP_TYPE_BIT, V0_KEY_AT, V1_KEY_AT, load16, load32, load64, put_uvarint, uvarint_size,
)

from kstore.codec import compression, refusals
from kstore.errors import CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError

cdef extern from "crc32.h" nogil:
    uint32_t ks_crc32(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "record.h" nogil:
    uint64_t ks_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size,
                          int64_t headers_size) noexcept
    uint8_t *ks_put_record(uint8_t *p, uint64_t body, int64_t timestamp_delta, int64_t offset_delta, const void *key,
                           int64_t key_size, const void *value, int64_t value_size, const void *headers,
                           int64_t headers_size) noexcept
    uint8_t *ks_put_field(uint8_t *p, const void *data, int64_t size) noexcept

cdef extern from "text.h" nogil:
    size_t ks_utf8_size(const uint8_t *p, size_t n) noexcept
    uint8_t *ks_put_utf8(uint8_t *out, const uint8_t *p, size_t n) noexcept

cdef enum:
    MOST_ERRORS = 65536                # listed for a batch: a wrapper of a few kilobytes may hold millions of messages
    GROWTH = 14                        # bytes by which a record may exceed its original message or record
    NAME_GROWTH = 8                    # more bytes for the varints of a header name's size and of its record's size

    # Positions of a message's fields, counted from its CRC (FORMAT 5).
    MESSAGE_MAGIC_AT = LEGACY_MAGIC_AT - LOG_OVERHEAD
    MESSAGE_ATTRIBUTES_AT = LEGACY_ATTRIBUTES_AT - LOG_OVERHEAD
    MESSAGE_TIMESTAMP_AT = LEGACY_TIMESTAMP_AT - LOG_OVERHEAD
    MESSAGE_V0_KEY_AT = V0_KEY_AT - LOG_OVERHEAD
    MESSAGE_V1_KEY_AT = V1_KEY_AT - LOG_OVERHEAD

cdef int64_t INT32_LIMIT = 0x7fffffff
cdef const char *NO_HEADERS = b"\x00"

cdef enum Fault:
    FINE
    OTHER_FORMAT                       # an entry whose magic is not that of the first
    OTHER_MAGIC                        # a message whose magic is not that of its wrapper
    NESTED
    BAD_CRC
    NO_KEY
    TOO_FAR
    CLAIMS_TIME
    NO_LENGTH                          # the message ends before a field's length
    TOO_LONG                           # a field extends past the message
    NEGATIVE


cdef struct Rules:
    int magic
    bint create_time
    bint require_key
    int64_t now
    int64_t before_max
    int64_t after_max


cdef struct Walk:
    const uint8_t *p                   # the next entry
    const uint8_t *end
    bint wrapped                       # the messages of one wrapper are one batch; otherwise each message is a batch
    bint claims                        # the wrapper says LogAppendTime: its messages get `append_time`
    int64_t append_time
    int64_t index
    int64_t listed                     # faults of the batch so far
    # The last message, and the fault in it.
    const uint8_t *message
    int64_t size
    int64_t stamp
    int64_t at                         # position in the message of the faulty field
    int64_t value                      # size that the faulty field declares


cdef inline bint _next(Walk *w) noexcept nogil:
    """Move to the next whole entry, whose framing has been checked; return False at the end."""
    cdef int32_t size
    if w.end - w.p < LOG_OVERHEAD:
        return False
    size = load32(w.p + BATCH_LENGTH_AT)
    if size > w.end - w.p - LOG_OVERHEAD:
        return False                   # a torn message at the end is left out, as in Kafka
    w.message = w.p + LOG_OVERHEAD
    w.size = size
    w.stamp = -1
    if w.message[MESSAGE_MAGIC_AT]:
        w.stamp = load64(w.message + MESSAGE_TIMESTAMP_AT)
        if w.wrapped and w.claims and w.message[MESSAGE_MAGIC_AT] == 1:
            w.stamp = w.append_time
    w.p = w.message + size
    return True


cdef inline Fault _check(Walk *w, const Rules *r) noexcept nogil:
    """Return the fault of the message by SEMANTICS 1.14 to 1.17; `_write` checks the sizes of its fields."""
    cdef const uint8_t *m = w.message
    cdef int magic = m[MESSAGE_MAGIC_AT]
    cdef bint claims = w.claims if w.wrapped else m[MESSAGE_ATTRIBUTES_AT] & TIMESTAMP_TYPE_BIT
    if w.wrapped:
        if m[MESSAGE_ATTRIBUTES_AT] & CODEC_MASK:
            return NESTED
        if magic != r.magic:
            return OTHER_MAGIC
        if <uint32_t> load32(m) != ks_crc32(0, m + MESSAGE_MAGIC_AT, <size_t> (w.size - MESSAGE_MAGIC_AT)):
            return BAD_CRC
    elif magic != r.magic:
        return OTHER_FORMAT
    if r.require_key:
        w.at = MESSAGE_V1_KEY_AT if magic else MESSAGE_V0_KEY_AT
        if w.at + 4 > w.size:
            return NO_LENGTH
        if load32(m + w.at) < 0:
            return NO_KEY
    if r.create_time and w.stamp != -1:
        return TOO_FAR if ks_too_far(w.stamp, r.now, r.before_max, r.after_max) else FINE
    return CLAIMS_TIME if claims and r.magic > 0 else FINE


cdef inline bint _is_listed(Fault fault) noexcept nogil:
    return fault == OTHER_MAGIC or fault == NO_KEY or fault == TOO_FAR or fault == CLAIMS_TIME


cdef Fault _find_fault(Walk *w, const Rules *r) noexcept nogil:
    """Move to the next message whose fault must be listed or raised (SEMANTICS 1.18); return FINE at the end."""
    cdef Fault fault
    while _next(w):
        fault = _check(w, r)
        w.index += 1
        if fault == FINE:
            continue
        if _is_listed(fault) and w.listed >= MOST_ERRORS and (
                w.listed > MOST_ERRORS or (fault != TOO_FAR and fault != CLAIMS_TIME)):
            continue                   # enough faults are listed, but a later message may still change the error
        return fault
    return FINE


cdef inline const uint8_t *_field(Walk *w, const uint8_t **field, int32_t *size, Fault *fault) noexcept nogil:
    """Read the nullable field whose length is at `w.at`."""
    if w.at + 4 > w.size:
        fault[0] = NO_LENGTH
        return NULL
    size[0] = load32(w.message + w.at)
    w.at += 4
    field[0] = w.message + w.at
    if size[0] < 0:
        size[0] = -1
    elif size[0] > w.size - w.at:
        w.value = size[0]
        fault[0] = TOO_LONG
        return NULL
    else:
        w.at += size[0]
    return field[0]


cdef struct Written:
    uint8_t *p
    int64_t base
    int64_t greatest
    int64_t count
    int64_t room                       # bytes reserved for the records, counted from where `p` started


cdef Fault _write(Walk *w, const Rules *r, bint check, Written *out) noexcept nogil:
    """Write the messages as v2 records, up to the first that is refused; return its fault, or FINE."""
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef int32_t key_size = -1, value_size = -1
    cdef uint64_t body
    cdef int64_t delta
    cdef Fault fault
    while _next(w):
        w.index = out.count
        if check:
            fault = _check(w, r)
            if fault != FINE:
                return fault
        w.at = MESSAGE_V1_KEY_AT if w.message[MESSAGE_MAGIC_AT] else MESSAGE_V0_KEY_AT
        if _field(w, &key, &key_size, &fault) == NULL or _field(w, &value, &value_size, &fault) == NULL:
            return fault
        if w.stamp < -1:
            return NEGATIVE
        if out.count == 0:
            out.base = w.stamp
        delta = <int64_t> (<uint64_t> w.stamp - <uint64_t> out.base)
        body = ks_body_size(delta, out.count, key_size, value_size, 1)
        out.p = ks_put_record(out.p, body, delta, out.count, key, key_size, value, value_size, NO_HEADERS, 1)
        out.greatest = max(out.greatest, w.stamp)
        out.count += 1
    return FINE


cdef _text(Fault fault, const Walk *w, const Rules *r):
    if fault == OTHER_MAGIC:
        return f"magic {w.message[MESSAGE_MAGIC_AT]} inside a wrapper of magic {r.magic}"
    if fault == NO_KEY:
        return refusals.NO_KEY
    if fault == TOO_FAR:
        return refusals.too_far(w.stamp, r.now, r.before_max, r.after_max)
    return refusals.CLAIMS_APPEND_TIME


cdef int _raise(Fault fault, const Walk *w, const Rules *r, int64_t index, int64_t position) except -1:
    """Raise the error for a fault that refuses the whole append."""
    cdef int magic = w.message[MESSAGE_MAGIC_AT]
    if fault == NESTED:
        raise InvalidRecordError("compressed message inside a compressed message")
    if fault == OTHER_FORMAT:
        raise InvalidRecordError(f"batch of magic {magic} after one of magic {r.magic}: one format an append")
    if fault == BAD_CRC:
        raise CorruptRecordError(f"CRC of message {index} of the wrapper", position=position)
    if fault == NO_LENGTH:
        raise InvalidRecordError(f"message of {w.size} bytes ends before a field's length at {w.at}")
    if fault == TOO_LONG:
        raise InvalidRecordError(f"field of {w.value} bytes where the message has {w.size - w.at} left")
    reason = f"timestamp {w.stamp}: 0 or more, or -1 for none"
    raise InvalidTimestampError(f"record {index}: {reason}", record_errors=((index, reason),))


def survey(data not None: ReadableBuffer, int64_t most_bytes) -> tuple[int, int, int, int, bool] | None:
    """Check the heads and CRCs of uncompressed entries of formats 0 and 1 in bulk (SEMANTICS 1.4 to 1.8).

    Returns (entries, bytes, last offset, greatest timestamp, whether offsets increase). Returns None if there is no
    whole entry, or if an entry has a fault, a codec, another format or more than `most_bytes`; the caller must then
    check the entries one by one. Leaves out a torn entry at the end.
    """
    cdef Buffer view = Buffer(data)
    cdef const uint8_t *p = view.p
    cdef const uint8_t *m
    cdef const uint8_t *end = p + view.size
    cdef int64_t count = 0, last = -1, greatest = -1, offset
    cdef bint increasing = True, sound = True
    cdef int32_t size
    cdef int magic
    with nogil:
        while end - p > LOG_OVERHEAD + MESSAGE_ATTRIBUTES_AT:
            size = load32(p + BATCH_LENGTH_AT)
            m = p + LOG_OVERHEAD
            magic = m[MESSAGE_MAGIC_AT]
            sound = magic < 2 and size >= (MIN_V1_MESSAGE if magic else MIN_V0_MESSAGE)
            if not sound or size > end - m:
                break
            sound = (size <= most_bytes - LOG_OVERHEAD and not m[MESSAGE_ATTRIBUTES_AT] & CODEC_MASK
                     and <uint32_t> load32(m) == ks_crc32(0, m + MESSAGE_MAGIC_AT, <size_t> (size - MESSAGE_MAGIC_AT)))
            if not sound:
                break
            offset = load64(p)
            increasing = increasing and offset > last
            last = offset
            if magic:
                greatest = max(greatest, load64(m + MESSAGE_TIMESTAMP_AT))
            count += 1
            p = m + size
    if not sound or not count or LOG_OVERHEAD <= end - p <= LOG_OVERHEAD + MESSAGE_ATTRIBUTES_AT:
        return None
    return count, p - view.p, last, greatest, increasing


def frame(data not None: ReadableBuffer, *, int64_t position=0) -> tuple[int, int]:
    """Return the number of whole messages inside a wrapper, and the offset of the last one (-1 if there is none).

    Does not count a torn message at the end. Raises `CorruptRecordError`, with the wrapper's `position`, if a message
    declares a size of less than 14 bytes.
    """
    cdef Buffer view = Buffer(data)
    cdef const uint8_t *p = view.p
    cdef const uint8_t *end = p + view.size
    cdef int64_t count = 0, last = -1
    cdef int32_t size = MIN_V0_MESSAGE
    with nogil:
        while end - p >= LOG_OVERHEAD:
            size = load32(p + BATCH_LENGTH_AT)
            if size < MIN_V0_MESSAGE or size > end - p - LOG_OVERHEAD:
                break
            last = load64(p)
            count += 1
            p += LOG_OVERHEAD + size
    if size < MIN_V0_MESSAGE:
        raise CorruptRecordError(
            f"message of {size} bytes in a wrapper: the smallest has {MIN_V0_MESSAGE}", position=position)
    return count, last


@cython.final
cdef class Messages:
    """Messages of one append: those inside one wrapper, or uncompressed entries.

    The framing of `data` has been checked. `append_time` is the time of a wrapper that says LogAppendTime, else None.
    `rules` is (magic, create_time, now_ms, before_max_ms, after_max_ms, require_key). Immutable.
    """

    cdef Buffer _view
    cdef Walk _walk
    cdef Rules _rules
    cdef int64_t _position

    def __init__(self, data not None: ReadableBuffer, rules: tuple[int, bool, int, int, int, bool], *, bint wrapped,
                 append_time: int | None = None, int64_t position=0):
        self._view = Buffer(data)
        self._position = position
        self._walk.p = self._view.p
        self._walk.end = self._view.p + self._view.size
        self._walk.wrapped = wrapped
        self._walk.claims = append_time is not None
        self._walk.append_time = -1 if append_time is None else append_time
        magic, create_time, now_ms, before_max_ms, after_max_ms, require_key = rules
        self._rules = Rules(magic, create_time, require_key, now_ms, before_max_ms, after_max_ms)

    def check(self) -> list[tuple[int, str, bool]]:
        """Check every message (SEMANTICS 1.14 to 1.17); return the faults of the first batch that has any.

        A fault is (index, reason, whether it is about the timestamp). A wrapper is one batch; each entry outside a
        wrapper is one, too. Raises `InvalidRecordError` or `CorruptRecordError` if a fault refuses the whole append.
        """
        cdef Walk w = self._walk
        cdef Fault fault
        cdef list errors = []
        while True:
            with nogil:
                fault = _find_fault(&w, &self._rules)
            if fault == FINE:
                return errors
            if not _is_listed(fault):
                _raise(fault, &w, &self._rules, w.index - 1, self._position)
            errors.append((w.index - 1 if w.wrapped else 0, _text(fault, &w, &self._rules),
                           fault == TOO_FAR or fault == CLAIMS_TIME))
            if not w.wrapped:
                return errors
            w.listed += 1

    def pack(self, Packer packer not None, int64_t count, *, bint check) -> list[tuple[int, str, bool]]:
        """Write these `count` messages into one batch of `packer`; return a list with the first fault, if any.

        If `check` is true, checks each message before writing it, with the faults and errors of the method `check`.
        Also raises `InvalidRecordError` for a field that extends past its message, `InvalidTimestampError` for a
        timestamp below -1, and `RecordTooLargeError` if the batch would be too large.
        """
        cdef Walk w = self._walk
        cdef Fault fault
        cdef Written out
        _begin(packer, self._view.size, count, &out)
        try:
            with nogil:
                fault = _write(&w, &self._rules, check, &out)
            if fault != FINE:
                if not _is_listed(fault):
                    _raise(fault, &w, &self._rules, out.count, self._position)
                return [(0, _text(fault, &w, &self._rules), fault == TOO_FAR or fault == CLAIMS_TIME)]
            _end(packer, &out)
            return []
        finally:
            packer.drop_open()
            packer.leave()


cdef int _begin(Packer packer, int64_t size, int64_t count, Written *out) except -1:
    """Enter a packer (mark it as in use), and reserve space for `count` records that are made from `size` bytes."""
    cdef int64_t room = size + GROWTH * count + RECORDS_AT
    if room > INT32_LIMIT:
        raise RecordTooLargeError(f"one batch of {count} records in {size} bytes: {INT32_LIMIT} are the most")
    packer.enter()
    try:
        packer._open(-1)
        packer._reserve(<Py_ssize_t> room)
    except BaseException:
        packer.drop_open()
        packer.leave()
        raise
    out.p = packer.data + packer._used
    out.room = room
    out.count = 0
    out.base = out.greatest = -1
    return 0


cdef int _end(Packer packer, const Written *out) except -1:
    """Finish the batch of the written records."""
    packer._used = out.p - packer.data
    packer._count = <int32_t> out.count
    packer.records += out.count
    packer._base_timestamp = out.base
    packer._open_max = out.greatest
    packer.close_batch()
    return 0


def repack(Packer packer not None, data not None: ReadableBuffer) -> None:
    """Write the records of the v2 batch `data`, whose structure has been checked, into one batch of `packer`.

    New offsets start at 0, and bytes of a header's name that are not UTF-8 become U+FFFD, as in Kafka. Raises
    `CorruptRecordError` for data that does not decompress, `InvalidTimestampError` for a timestamp below -1,
    `InvalidRecordError` for an invalid record, and `RecordTooLargeError` if the new batch would be too large.
    """
    cdef Buffer view = Buffer(data)
    cdef const uint8_t *head = view.p
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef bytes section
    cdef int64_t base, stamp = -1, index = 0
    cdef int64_t headers_size, grown, used = 0
    cdef int32_t count
    cdef bint refused = False
    cdef Written out
    cdef ks_record r
    if view.size < RECORDS_AT or head[MAGIC_AT] != 2:
        raise InvalidRecordError(f"{view.size} bytes are no batch of format 2")
    count = load32(head + RECORDS_COUNT_AT)
    if load16(head + ATTRIBUTES_AT) & CODEC_MASK:
        section = record_section(head, view.size, compression.MAX_DECOMPRESSED_BYTES, None, 0)
        p = <const uint8_t *> PyBytes_AS_STRING(section)
        end = p + PyBytes_GET_SIZE(section)
    else:
        p = head + RECORDS_AT
        end = head + view.size
    base = load64(head + BASE_TIMESTAMP_AT)
    r.fault = KS_FINE
    _begin(packer, end - p, max(count, 0), &out)
    try:
        with nogil:
            while index < count:
                p = ks_parse_record(p, end, &r)
                if p == NULL:
                    break
                if load16(head + ATTRIBUTES_AT) & TIMESTAMP_TYPE_BIT:
                    stamp = load64(head + MAX_TIMESTAMP_AT)
                else:
                    stamp = <int64_t> (<uint64_t> base + <uint64_t> r.timestamp_delta)
                if stamp < -1:
                    refused = True
                    break
                headers_size = _headers_size(&r, &grown)
                if grown > 0:
                    with gil:
                        _make_room(packer, grown, &out)
                _copy(&r, stamp, headers_size, &out)
                index += 1
        if refused:
            reason = f"timestamp {stamp}: 0 or more, or -1 for none"
            raise InvalidTimestampError(f"record {index}: {reason}", record_errors=((index, reason),))
        if p != end:
            raise InvalidRecordError(f"record {index} of {count}: {fault_text(r.fault or KS_TRAILING_BYTES)}")
        _end(packer, &out)
    finally:
        packer.drop_open()
        packer.leave()


cdef int _make_room(Packer packer, int64_t grown, Written *out) except -1:
    """Reserve space for `grown` more bytes."""
    cdef Py_ssize_t written = out.p - packer.data - packer._used
    out.room += grown
    if out.room > INT32_LIMIT:
        raise RecordTooLargeError(f"one batch of {out.room} bytes: {INT32_LIMIT} are the most")
    if packer._used + out.room > packer._capacity:
        packer._reserve(<Py_ssize_t> out.room)
        out.p = packer.data + packer._used + written
    return 0


cdef int64_t _headers_size(const ks_record *r, int64_t *grown) noexcept nogil:
    """Return the bytes that `_copy` writes for the headers and their count; set `grown` to the bytes that names add."""
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef const uint8_t *p = r.headers
    cdef int32_t key_size = -1, value_size = -1
    cdef int fault = 0
    cdef int64_t name_size, size = uvarint_size(<uint64_t> r.headers_count << 1)
    cdef int32_t i
    grown[0] = 0
    for i in range(r.headers_count):
        p = ks_parse_header(p, r.end, &key, &key_size, &value, &value_size, &fault)
        name_size = <int64_t> ks_utf8_size(key, <size_t> key_size)
        if name_size > key_size:
            grown[0] += name_size - key_size + NAME_GROWTH
        size += uvarint_size(<uint64_t> name_size << 1) + name_size
        size += uvarint_size(<uint64_t> value_size << 1) + value_size if value_size >= 0 else 1
    return size


cdef void _copy(const ks_record *r, int64_t stamp, int64_t headers_size, Written *out) noexcept nogil:
    """Write a parsed record with the shortest varints; those of the original may be longer."""
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef const uint8_t *p = r.headers
    cdef int32_t key_size = -1, value_size = -1
    cdef int fault = 0
    cdef int64_t delta
    cdef int32_t i
    if out.count == 0:
        out.base = stamp
    delta = <int64_t> (<uint64_t> stamp - <uint64_t> out.base)
    out.p = ks_put_record(out.p, ks_body_size(delta, out.count, r.key_size, r.value_size, headers_size), delta,
                          out.count, r.key, r.key_size, r.value, r.value_size, NO_HEADERS, 0)
    out.p = put_uvarint(out.p, <uint64_t> r.headers_count << 1)
    p = r.headers
    for i in range(r.headers_count):
        p = ks_parse_header(p, r.end, &key, &key_size, &value, &value_size, &fault)
        out.p = put_uvarint(out.p, ks_utf8_size(key, <size_t> key_size) << 1)
        out.p = ks_put_utf8(out.p, key, <size_t> key_size)
        out.p = ks_put_field(out.p, value, value_size)
    out.greatest = max(out.greatest, stamp)
    out.count += 1
