# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Searches in a `.log` file that start at an index entry: for an offset, for a time, or to check the entry.

They read with `pread` into their own memory. A search holds the GIL while it is short and reads from the page cache
(held.h). Invariant: whatever the file holds, and even if it is cut during the search, every walk ends, reads only
`[position, end)` and uses a fixed buffer.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from kstore._core cimport fault_text, ks_find_timestamp, ks_stamped, outside, record_section
from kstore.codec._wire cimport (
    BASE_TIMESTAMP_AT, CODEC_MASK, RECORDS_AT, RECORDS_COUNT_AT, TIMESTAMP_TYPE_BIT, load32, load64,
)
from kstore.disk._held cimport hold, take_back
from kstore.disk._mounted_read cimport mounted_read, set_mounted_read
from kstore.files._framing cimport (
    BAD_ORDER, BAD_READ, END, GOES_ON, TORN, Header, Stop, check_crc_at, check_place, raise_read, read_header, reason,
)
from kstore.files._index_search cimport Neighbours, OffsetEntries, TimeEntries
from kstore.files._window cimport Window, window_at, window_free, window_new, window_on

from typing import NamedTuple

from kstore._core import decode_batches
from kstore.codec import compression
from kstore.errors import CorruptRecordError, InvalidRecordError

set_mounted_read(mounted_read)


cdef enum:
    HEADER_WINDOW = 4096           # the default of `index.interval.bytes`
    SEARCH_WINDOW = 65536
    BEHIND_WINDOW = 32768          # on the stack
    FAR_BEHIND = 262144            # beyond this, reading only headers is cheaper
    FIRST_LOOK = 256               # small: far from the last read every cache line waits for memory


class BatchPlace(NamedTuple):
    """Where a batch lies in its file, the offsets it spans, and its greatest timestamp."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    magic: int


class LogEnd(NamedTuple):
    """The last offset of the last whole batch of a log file, and the position where that batch ends."""

    last_offset: int
    position: int


class GreatestTimestamp(NamedTuple):
    """The greatest timestamp of some batches, and the last offset of the first batch that has it; -1 for none."""

    timestamp: int
    offset: int


class FoundRecord(NamedTuple):
    """A record found by timestamp; the leader epoch is -1 if it is unknown."""

    timestamp: int
    offset: int
    leader_epoch: int


cdef object NEW_TUPLE = tuple.__new__      # a BatchPlace is made for each read, a FoundRecord for each search
cdef int64_t NO_LIMIT = 0x7fffffffffffffff
cdef int64_t UNKNOWN = INT64_MIN       # `Chain.least` if the end of the batch before is not known


cdef struct Chain:                 # the offsets around a batch, as far as they are known
    int64_t least                  # the end of the batch before
    int64_t most                   # the end of the segment's offsets
    bint follow                    # whether the walk checks offsets at all


cdef Stop _next(Window *w, int64_t position, Header *h) noexcept nogil:
    """Frame the batch at `position` with a small read: 4 KiB after a small batch, a header after a large one."""
    cdef const uint8_t *p
    w.ahead = HEADER_WINDOW if 0 < h.size <= HEADER_WINDOW // 2 else FIRST_LOOK
    return read_header(w, position, h, &p)


cdef Stop _step(Window *w, int64_t position, Header *h, Chain *chain) noexcept nogil:
    """Frame the batch at `position` as `_next` does, and check its offsets if `chain.follow`."""
    cdef Stop stop = _next(w, position, h)
    if stop == GOES_ON and chain.follow:
        if h.base_offset != chain.least or h.last_offset < h.base_offset or h.last_offset >= chain.most:
            stop = check_place(w, h, chain.least, chain.most)
        chain.least = h.last_offset + 1
    return stop


cdef Stop _walk_to(Window *w, int64_t position, Header *h, Chain *chain, int64_t offset, int64_t after,
                   int64_t timestamp) noexcept nogil:
    """Frame batches from `position` on, up to the first that ends at or above `offset`.

    Stop earlier at a batch that ends above `after` and has this timestamp or a later one.
    """
    cdef Stop stop
    while True:
        stop = _step(w, position, h, chain)
        if stop != GOES_ON or h.last_offset >= offset or (h.last_offset > after and h.max_timestamp >= timestamp):
            return stop
        position += h.size


cdef Chain _chain(object least, int64_t most) except *:
    cdef Chain chain
    chain.follow = least is not None
    chain.least = least if least is not None else UNKNOWN
    chain.most = most
    return chain


cdef int _raise_stop(Stop stop, Window *w, const Header *h, const Chain *chain, object path) except -1:
    """Raise the error of a stop; do nothing at the end, or at a torn batch unless `chain.follow`."""
    if stop == BAD_READ:
        raise_read(w.error, path)
    if stop != GOES_ON and stop != END and (stop != TORN or chain.follow):
        raise CorruptRecordError(reason(stop, h, w.end), path=path, position=h.position)
    return 0


cdef bytes _read_batch(int fd, const Header *h, bint check_crc, object path):
    """Return the whole batch that `h` frames, or None if the file was cut after the header was read."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> h.size)
    cdef Window w
    cdef const uint8_t *p
    cdef Stop stop = GOES_ON
    window_on(&w, fd, h.position + h.size, <uint8_t *> PyBytes_AS_STRING(data), <Py_ssize_t> h.size)
    hold(&w.held)
    p = window_at(&w, h.position, w.capacity)
    take_back(&w.held)
    if p == NULL:
        if w.error:
            raise_read(w.error, path)
        return None
    if check_crc:
        stop = check_crc_at(&w, h)
        if stop != GOES_ON:
            raise CorruptRecordError(reason(stop, h, w.end), path=path, position=h.position)
    return data


cdef object _place(const Header *h):
    return NEW_TUPLE(BatchPlace, (h.position, h.size, h.base_offset, h.last_offset, h.max_timestamp, h.magic))


def find_batch(int fd, int64_t position, int64_t end, int64_t offset, *, least: int | None = None,
               int64_t most=NO_LIMIT, path: StrPath | None = None) -> BatchPlace | None:
    """Return the `BatchPlace` of the batch that holds `offset`, or of the next one after a gap (SEMANTICS 3.18a).

    The search starts at `position`. Returns None if every batch below `end` ends before `offset`. Reads only headers,
    and holds the GIL while they are in the page cache (held.h); checks no CRC. In formats 0 and 1 the base offset is
    the entry's own offset (a wrapper has its last). Raises `CorruptRecordError` at an invalid length or magic.

    `least` is the least base offset that the first batch may have. If it is given, `CorruptRecordError` is also raised
    unless `end` is the end of a batch, every offset is below `most` and the batches' offsets rise.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    cdef Chain chain = _chain(least, most)
    window_on(&w, fd, end, data, HEADER_WINDOW)
    memset(&h, 0, sizeof(Header))
    hold(&w.held)
    stop = _walk_to(&w, position, &h, &chain, offset, NO_LIMIT, NO_LIMIT)
    take_back(&w.held)
    if stop == GOES_ON:
        return _place(&h)
    _raise_stop(stop, &w, &h, &chain, path)
    return None


def last_offset(int fd, int64_t position, int64_t end, *, least: int | None = None, int64_t most=NO_LIMIT,
                path: StrPath | None = None) -> LogEnd | None:
    """Walk the headers of `[position, end)` and return the `LogEnd` of the last whole batch (SEMANTICS 8.10), or None.

    A torn batch at the end is ignored. Raises `CorruptRecordError` at an invalid length or magic, and with `least` also
    as `find_batch` does.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    cdef int64_t last = 0
    cdef int64_t at = position
    cdef Chain chain = _chain(least, most)
    window_on(&w, fd, end, data, HEADER_WINDOW)
    memset(&h, 0, sizeof(Header))
    with nogil:
        while True:
            stop = _step(&w, at, &h, &chain)
            if stop != GOES_ON:
                break
            last = h.last_offset
            at += h.size
    _raise_stop(stop, &w, &h, &chain, path)
    return None if at == position else LogEnd(last, at)


def leads_to(int fd, int64_t position, int64_t end, int64_t base_offset, int64_t offset, *,
             path: StrPath | None = None) -> int:
    """Check an entry of an offset index, `offset` at `position`, against the log; return a base offset, -1 or -2.

    The result is the base offset of the batch at `position` if that batch ends at `offset`, as in entries since 4.1, or
    if a later batch ends there and no gap lies between (SEMANTICS 3.18). In formats 0 and 1, whose wrappers have only
    their last offset, it is `base_offset` instead. The result is -1 if the batch at `position` ends below `offset` and
    no more is known: older brokers wrote such entries. It is -2 if a segment that starts at `base_offset` cannot have
    the batch at `position`. Reads only headers, and holds the GIL as `find_batch` does.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop
    cdef int64_t base = -2
    window_on(&w, fd, end, data, HEADER_WINDOW)
    memset(&h, 0, sizeof(Header))
    hold(&w.held)
    stop = _follow(&w, position, &h, base_offset, offset, &base)
    take_back(&w.held)
    if stop == BAD_READ:
        raise_read(w.error, path)
    if base >= 0 and (stop != GOES_ON or h.last_offset != offset):
        return -1
    return base


cdef Stop _follow(Window *w, int64_t position, Header *h, int64_t least, int64_t offset, int64_t *base) noexcept nogil:
    """Frame batches from `position` on, up to one that ends at `offset` or does not follow the batch before."""
    cdef Stop stop = END
    cdef int64_t at = position
    while 0 <= at < w.end:
        stop = _next(w, at, h)
        if stop != GOES_ON or h.base_offset < least or h.last_offset < h.base_offset or h.last_offset > offset:
            break
        if at == position:
            base[0] = h.base_offset if h.magic == 2 else least   # a wrapper has only its last offset
        elif h.magic == 2 and h.base_offset != least:
            break
        if h.last_offset == offset:
            break
        least = h.last_offset + 1
        at += h.size
    return stop


def is_first_with(int fd, int64_t position, int64_t end, int64_t after, int64_t offset, int64_t timestamp, *,
                  least: int, path: StrPath | None = None) -> bool | None:
    """Return whether the batch with `offset` has this greatest timestamp, and no earlier one above `after` does.

    Two entries of a time index claim this; the first of them names `after` (SEMANTICS 3.6, 3.10). Returns None if all
    batches end before `offset`. Reads headers from `position` on. Holds the GIL and raises as `find_batch` does.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    cdef Chain chain = _chain(least, NO_LIMIT)
    window_on(&w, fd, end, data, HEADER_WINDOW)
    memset(&h, 0, sizeof(Header))
    hold(&w.held)
    stop = _walk_to(&w, position, &h, &chain, offset, after, timestamp)
    take_back(&w.held)
    _raise_stop(stop, &w, &h, &chain, path)
    if stop != GOES_ON:
        return None
    return (h.last_offset >= offset and h.max_timestamp == timestamp
            and (h.magic < 2 or h.base_offset <= offset))


def greatest_timestamp(int fd, int64_t position, int64_t end, *, least: int, bint with_records=False,
                       path: StrPath | None = None) -> GreatestTimestamp:
    """Return the `GreatestTimestamp` of the batches of `[position, end)`, or only of those that have records.

    Reads only headers. Holds the GIL and raises as `find_batch` does with `least`.
    """
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    cdef int64_t most = -1, offset = -1
    cdef Chain chain = _chain(least, NO_LIMIT)
    window_on(&w, fd, end, data, HEADER_WINDOW)
    memset(&h, 0, sizeof(Header))
    hold(&w.held)
    stop = _walk_all(&w, position, &h, &chain, with_records, &most, &offset)
    take_back(&w.held)
    _raise_stop(stop, &w, &h, &chain, path)
    return GreatestTimestamp(most, offset)


cdef inline bint _is_emptied(const Header *h) noexcept nogil:
    """Return whether the batch has no records, as a producer's last batch may after a compaction (SEMANTICS 7.20)."""
    return h.magic == 2 and h.size == RECORDS_AT


cdef Stop _walk_all(Window *w, int64_t position, Header *h, Chain *chain, bint with_records, int64_t *most,
                    int64_t *offset) noexcept nogil:
    """Frame all batches from `position` on; store the greatest timestamp and the last offset of its first batch."""
    cdef Stop stop
    while True:
        stop = _step(w, position, h, chain)
        if stop != GOES_ON:
            return stop
        if h.max_timestamp > most[0] and not (with_records and _is_emptied(h)):
            most[0], offset[0] = h.max_timestamp, h.last_offset
        position += h.size


def find_timestamp(int fd, int64_t position, int64_t end, int64_t timestamp, int64_t min_offset=0, *,
                   bint exactly=False, least: int | None = None, int64_t most=NO_LIMIT, int64_t older_below=INT64_MIN,
                   bint check_crc=True, max_decompressed_bytes: int | None = None,
                   path: StrPath | None = None) -> FoundRecord | None:
    """Return the first record of `[position, end)` from `min_offset` on with this timestamp or a later one, or None.

    With `exactly` the record has exactly this timestamp and is in the first batch with records whose maxTimestamp
    reaches it (SEMANTICS 5.4).

    Only batches whose maxTimestamp reaches `timestamp` are decoded and have their CRC checked (SEMANTICS 5.5, step 3).
    With `least` (as in `find_batch`), the CRCs of the batches before them are checked, too, except batches that end
    below `older_below`, which are known to be older. Raises `CorruptRecordError` and `StorageError`.
    """
    cdef Window w
    cdef Header h
    cdef Stop stop = END
    cdef int64_t limit = compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes
    cdef Chain chain = _chain(least, most)
    cdef bint every = chain.follow and check_crc, has_one
    cdef int64_t latest
    cdef Found found
    cdef bytes batch
    if window_new(&w, fd, end, SEARCH_WINDOW):
        raise MemoryError
    memset(&h, 0, sizeof(Header))
    try:
        while True:
            hold(&w.held)
            stop = _step_to(&w, &position, &h, &chain, timestamp, every, max(min_offset, older_below))
            take_back(&w.held)
            if stop != GOES_ON:
                _raise_stop(stop, &w, &h, &chain, path)
                return None
            if h.last_offset >= min_offset and not (exactly and _is_emptied(&h)):
                batch = _read_batch(fd, &h, check_crc, path)
                if batch is None:
                    return None
                latest = timestamp if exactly else INT64_MAX
                if h.magic == 2:
                    has_one = _first_at(<const uint8_t *> PyBytes_AS_STRING(batch), &h, timestamp, latest, min_offset,
                                        limit, path, &found)
                else:
                    has_one = _first_old(batch, &h, timestamp, latest, min_offset, limit, path, &found)
                if has_one or exactly:
                    return _record(&found) if has_one else None
            position += h.size
    finally:
        window_free(&w)


cdef Stop _step_to(Window *w, int64_t *position, Header *h, Chain *chain, int64_t timestamp, bint check,
                   int64_t checked_from) noexcept nogil:
    """Frame batches up to one that has this timestamp or a later one.

    With `check`, check the CRC of each batch before it that ends at or above `checked_from`.
    """
    cdef Stop stop
    while True:
        stop = _step(w, position[0], h, chain)
        if stop != GOES_ON or h.max_timestamp >= timestamp:
            return stop
        if check and h.last_offset >= checked_from:
            stop = check_crc_at(w, h)
            if stop != GOES_ON:
                return stop
        position[0] += h.size


def find_behind(int fd, int64_t end, int64_t timestamp, int64_t min_offset, TimeEntries times, OffsetEntries offsets,
                max_decompressed_bytes: int | None) -> FoundRecord | None:
    """Find what `find_timestamp` finds, starting after the batch that both indexes name.

    Reads the header of the named batch first, to check the entries against the log. If the log has confirmed them
    before and the next entries name the next batch, reads only the next batch. Returns None if the log contradicts the
    entries, if no record is near them, or if bytes are damaged, which `find_timestamp` then reports. Checks the CRC of
    each batch after the named one.
    """
    cdef Found found
    if look_behind(fd, end, timestamp, min_offset, times, offsets, max_decompressed_bytes, False, &found):
        return _record(&found)
    return None


cdef bint look_behind(int fd, int64_t end, int64_t timestamp, int64_t min_offset, TimeEntries times,
                      OffsetEntries offsets, object max_decompressed_bytes, bint between, Found *found) except? True:
    """Do what `find_behind` does; return whether a record was found. With `between` a later entry must exist."""
    cdef Neighbours named
    cdef uint8_t data[BEHIND_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop
    cdef bint is_proved
    cdef int64_t limit = compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes
    cdef const uint8_t *p = NULL
    if times.has_unsound or offsets.has_unsound or not times.lookup_batches(timestamp - 1, offsets, &named):
        return False
    if between and not named.has_next:
        return False
    is_proved = named.has_next and times.is_proved(&named)
    window_on(&w, fd, end, data, BEHIND_WINDOW)
    memset(&h, 0, sizeof(Header))
    hold(&w.held)
    stop = _frame_behind(&w, &h, &named, times.base_offset, timestamp, min_offset, &is_proved)
    if stop == GOES_ON:
        p = window_at(&w, h.position, <Py_ssize_t> h.size)
    take_back(&w.held)
    if stop != GOES_ON:
        return False
    if is_proved and h.position == named.next_position and h.last_offset == named.next_offset:
        times.prove(&named)
    if p == NULL:
        return False
    try:
        return _first_at(p, &h, timestamp, INT64_MAX, min_offset, limit, None, found)
    except (CorruptRecordError, InvalidRecordError):
        return False


cdef Stop _frame_behind(Window *w, Header *h, const Neighbours *named, int64_t base_offset, int64_t timestamp,
                        int64_t min_offset, bint *is_proved) noexcept nogil:
    """Frame the batch after the named one; `is_proved` says whether the log confirms, or confirmed, the named one."""
    cdef Stop stop = BAD_ORDER
    cdef int64_t position, far, least
    cdef const uint8_t *p = NULL
    if is_proved[0]:
        w.ahead = named.next_end - named.next_position
        if w.ahead <= 0:
            w.ahead = named.next_position - named.position + FIRST_LOOK
        w.ahead = min(max(w.ahead, RECORDS_AT), w.capacity)
        stop = read_header(w, named.next_position, h, &p)
        least = named.offset + 1
        if stop == GOES_ON:
            stop = _check_behind(w, h, least)
        if h.last_offset != named.next_offset or min_offset > least:
            stop = BAD_ORDER
    if stop != GOES_ON or h.max_timestamp < timestamp or h.last_offset < min_offset:
        position = named.position
        far = position + FAR_BEHIND
        least = named.offset + 1
        h.size = 0
        stop = _next(w, position, h)
        if stop == GOES_ON and (h.magic != 2 or h.base_offset != named.after + 1
                                or h.base_offset < base_offset or h.last_offset != named.offset
                                or h.max_timestamp != named.timestamp or h.size > w.capacity or min_offset > least):
            stop = BAD_ORDER
        is_proved[0] = stop == GOES_ON and named.has_next
        while stop == GOES_ON:
            position += h.size
            # The next batch is likely to be about as large: read its header and its records together.
            w.ahead = min(max(h.size + FIRST_LOOK, HEADER_WINDOW), w.capacity)
            stop = read_header(w, position, h, &p)
            if stop == GOES_ON:
                stop = _check_behind(w, h, least)
            if position > far:
                stop = BAD_ORDER
            if stop != GOES_ON or (h.max_timestamp >= timestamp and h.last_offset >= min_offset):
                break
            least = h.last_offset + 1
    return stop


cdef Stop _check_behind(Window *w, const Header *h, int64_t least) noexcept nogil:
    """Check that a framed batch starts at `least` and fits into the window, and check its CRC."""
    if h.magic != 2 or h.base_offset != least or h.last_offset < h.base_offset or h.size > w.capacity:
        return BAD_ORDER
    return check_crc_at(w, h)


cdef object _record(const Found *found):
    return NEW_TUPLE(FoundRecord, (found.timestamp, found.offset, found.leader_epoch))


cdef bint _first_old(bytes batch, const Header *h, int64_t timestamp, int64_t most, int64_t min_offset,
                     int64_t limit, object path, Found *found) except? True:
    """Do what `_first_at` does, for a batch in format 0 or 1."""
    for one in decode_batches(batch, False, path=path, position=h.position, max_decompressed_bytes=limit):
        for record in one:
            if timestamp <= record.timestamp <= most and record.offset >= min_offset:
                found.timestamp, found.offset, found.leader_epoch = record.timestamp, record.offset, -1
                return True
    return False


cdef bint _first_at(const uint8_t *head, const Header *h, int64_t timestamp, int64_t most, int64_t min_offset,
                    int64_t limit, object path, Found *found) except? True:
    """Find the first record of the batch at `head` with a timestamp in `[timestamp, most]`; False if none."""
    cdef const uint8_t *p = head + RECORDS_AT
    cdef const uint8_t *end = head + h.size
    cdef int32_t left = load32(head + RECORDS_COUNT_AT)
    cdef int64_t base = load64(head + BASE_TIMESTAMP_AT), offset
    cdef uint64_t mask = ~<uint64_t> 0
    cdef bytes section
    cdef ks_stamped stamped
    if h.attributes & CODEC_MASK:
        section = record_section(head, <Py_ssize_t> h.size, limit, path, h.position)
        p = <const uint8_t *> PyBytes_AS_STRING(section)
        end = p + len(section)
    if h.attributes & TIMESTAMP_TYPE_BIT:
        base, mask = h.max_timestamp, 0
    while True:
        p = ks_find_timestamp(p, end, &left, base, mask, timestamp, most, &stamped)
        if p == NULL:
            if stamped.fault:
                raise CorruptRecordError(fault_text(stamped.fault), path=path, position=h.position)
            return False
        offset = <int64_t> (<uint64_t> h.base_offset + <uint64_t> stamped.offset_delta)
        if not h.base_offset <= offset <= h.last_offset:
            raise CorruptRecordError(outside(offset, h.base_offset, h.last_offset), path=path, position=h.position)
        if offset >= min_offset:
            found.timestamp, found.offset, found.leader_epoch = stamped.timestamp, offset, h.leader_epoch
            return True


def header_at(int fd, int64_t position, int64_t end, *, path: StrPath | None = None) -> BatchPlace | None:
    """Return the `BatchPlace` of the batch at `position`, None if none is there."""
    cdef uint8_t data[HEADER_WINDOW]
    cdef Window w
    cdef Header h
    cdef Stop stop
    window_on(&w, fd, end, data, HEADER_WINDOW)
    memset(&h, 0, sizeof(Header))
    stop = _next(&w, position, &h)
    if stop == BAD_READ:
        raise_read(w.error, path)
    return _place(&h) if stop == GOES_ON else None
