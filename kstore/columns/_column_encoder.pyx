# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The encoder for columns: packs their rows into batches, without the GIL and without an object for each row.

Invariant: the batches are byte for byte the same as if the `Packer` had written the records one by one.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from kstore.codec._compression cimport ks_compress, ks_compress_bound
from kstore.columns._arrow cimport Column, ks_bytes, ks_column
from kstore.columns._native cimport KS_POINTERS
from kstore.codec._pack cimport Packer, common_headers
from kstore.codec._wire cimport (
    BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, LOG_OVERHEAD, MAX_TIMESTAMP_AT, RECORDS_AT, RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT, load32, load64, store32,
)

from kstore.codec import compression
from kstore.columns._arrow import pointers
from kstore.errors import InvalidColumnError, InvalidTimestampError, RecordTooLargeError

cdef extern from "columns/gather.h" nogil:
    enum:
        KS_OFFSETS_FALL
        KS_VIEW_SIZE
        KS_VIEW_BUFFER
        KS_VIEW_BOUNDS
        KS_NO_SUCH_INDEX
        KS_NULL_NAME
        KS_HEADERS_TOO_LARGE
        KS_TOO_LARGE
        KS_TIME_RANGE
    int64_t ks_gather(const ks_column *c, int64_t row, int64_t n, ks_bytes *out, int *slack, int *fault) noexcept
    int64_t ks_gather_times(const ks_column *c, int64_t row, int64_t n, int64_t now, int64_t *out, int *fault) noexcept
    int ks_list_row(const ks_column *c, int64_t row, int64_t *start, int64_t *end) noexcept
    int64_t ks_gather_no_headers(const ks_column *c, int64_t row, int64_t n, ks_bytes none, ks_bytes *out) noexcept
    int64_t ks_headers_size(const ks_column *c, int64_t start, int64_t end) noexcept
    int64_t ks_put_headers(const ks_column *c, int64_t start, int64_t end, uint8_t *out, int64_t room) noexcept

cdef extern from "columns/encode.h" nogil:
    enum:
        KS_STOP_FULL
        KS_STOP_ROOM
        KS_STOP_ODD
        KS_STOP_ENOUGH
    ks_widths ks_widths_of(const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers, int64_t n) noexcept
    int64_t ks_encode(ks_open_batch *batch, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers,
                      const int64_t *times, int64_t n) noexcept
    int ks_why(const ks_open_batch *batch, const ks_bytes *key, const ks_bytes *value, const ks_bytes *headers,
               int64_t time, int64_t *total) noexcept

cdef enum:
    SCRATCH_BYTES = 65536              # for the headers encoded at a time; one row may need more
    SUMMED_BYTES = 32768               # checksummed at a time, while they are still in the first-level cache

cdef int64_t LONG_MAX = 0x7fffffffffffffff
cdef const uint8_t *NO_HEADERS = b"\x00"

cdef dict FAULTS = {
    KS_OFFSETS_FALL: "its Arrow offsets fall, or leave the range of the first and the last one",
    KS_VIEW_SIZE: "its Arrow view has a negative size",
    KS_VIEW_BUFFER: "its Arrow view points into a missing buffer",
    KS_VIEW_BOUNDS: "its Arrow view leaves the buffer that it points into",
    KS_NO_SUCH_INDEX: "its dictionary has no such index",
    KS_NULL_NAME: "a header has no key",
}


@cython.final
cdef class Rows:
    """The next `count` rows of each column, which are packed together.

    Takes the columns, each with the number of its first row. No record has `keys` or `headers` if these are None; all
    get `time` if `times` is None. `at` rows have been packed; errors number the rows from `first` on. Not thread-safe.
    """

    def __init__(self, Column values not None, int64_t value_at, Column keys: Column | None, int64_t key_at,
                 Column times: Column | None, int64_t time_at, Column headers: Column | None, int64_t header_at, *,
                 int64_t count, int64_t first, int64_t time):
        for column, at in ((values, value_at), (keys, key_at), (times, time_at), (headers, header_at)):
            if column is not None and not 0 <= at <= at + count <= len(column):
                raise ValueError(f"rows {at} to {at + count} of {len(column)} in {column.what}")
        self._values, self._keys, self._times, self._headers = values, keys, times, headers
        self._value_at, self._key_at, self._time_at, self._header_at = value_at, key_at, time_at, header_at
        self.count = count
        self.first = first
        self._time = time

    def __dealloc__(self):
        PyMem_RawFree(self._scratch)

    cdef int _failed(self, int fault, int column) noexcept nogil:
        self._fault = fault
        self._faulty = column
        return FAULTY

    cdef void step(self, int64_t count) noexcept nogil:
        """Count the next `count` rows of the block as packed."""
        self._taken += count
        self.at += count

    cdef int gather(self) noexcept nogil:
        """Gather the next block; return 0, or a code if its first row is faulty or there is no memory."""
        cdef int64_t n = min(<int64_t> BLOCK, self.count - self.at), i
        cdef int fault = 0, slack = 0
        self._taken = self._block = 0
        n = ks_gather(&self._values.c, self._value_at + self.at, n, self._value, &self._slack, &fault)
        if n == 0:
            return self._failed(fault, 0)
        if self._keys is not None:
            n = ks_gather(&self._keys.c, self._key_at + self.at, n, self._key, &slack, &fault)
            self._slack = self._slack and slack
            if n == 0:
                return self._failed(fault, 1)
        if self._times is None:
            for i in range(n):
                self._stamp[i] = self._time
        else:
            n = ks_gather_times(&self._times.c, self._time_at + self.at, n, self._time, self._stamp, &fault)
            if n == 0:
                return self._failed(fault, 2)
        if self._headers is not None:
            n = self._gather_headers(n, &fault)
            if n == 0:
                return NO_MEMORY if fault == 0 else self._failed(fault, 3)
        self._block = n
        return 0

    cdef int64_t _gather_headers(self, int64_t n, int *fault) noexcept nogil:
        cdef const ks_column *c = &self._headers.c
        cdef int64_t row = self._header_at + self.at, i, start = 0, end = 0, size, used = 0
        cdef ks_bytes none = ks_bytes(NO_HEADERS, 1)
        cdef int slack
        cdef void *grown
        if c.layout == KS_POINTERS:                 # encoded header sections, as in a record
            n = ks_gather(c, row, n, self._header, &slack, fault)
            for i in range(n):
                if self._header[i].n < 0:
                    self._header[i] = none
            return n
        i = 0
        while True:
            i += ks_gather_no_headers(c, row + i, n - i, none, &self._header[i])
            if i == n:
                return n
            fault[0] = ks_list_row(c, row + i, &start, &end)
            if fault[0]:
                return i
            size = ks_headers_size(c, start, end)
            if size < 0:
                fault[0] = <int> -size
                return i
            if used + size + 16 > self._scratch_bytes:
                if used:                            # rows point to the bytes written so far, which must not move
                    return i
                grown = PyMem_RawRealloc(self._scratch, <size_t> max(<int64_t> SCRATCH_BYTES, size + 16))
                if grown == NULL:
                    return 0
                self._scratch = <uint8_t *> grown
                self._scratch_bytes = max(<int64_t> SCRATCH_BYTES, size + 16)
            size = ks_put_headers(c, start, end, self._scratch + used, self._scratch_bytes - used)
            if size == 0:
                fault[0] = KS_HEADERS_TOO_LARGE
                return i
            self._header[i] = ks_bytes(self._scratch + used, size)
            used += size
            i += 1

    cdef int fail(self, Packer packer, int code) except -1:
        """Raise the error for the row that `gather` stopped at."""
        cdef Column column = (self._values, self._keys, self._times, self._headers)[self._faulty]
        cdef int64_t row = self.first + self.at
        if code == NO_MEMORY:
            raise MemoryError
        if self._fault == KS_TIME_RANGE:
            packer._refuse_at(row, InvalidTimestampError,
                              f"{column.what} gives a time before the epoch, or beyond 64 bits of milliseconds; -1 "
                              f"alone means none")
        if self._fault in (KS_TOO_LARGE, KS_HEADERS_TOO_LARGE):
            packer._refuse_at(row, RecordTooLargeError, f"{column.what} gives more than the 2 GiB that a batch can hold")
        raise InvalidColumnError(f"{column.what}, row {row}: {FAULTS[self._fault]}")


def pack(Packer packer not None, Rows rows not None, Py_ssize_t limit_bytes) -> bool:
    """Pack rows until the packer has `limit_bytes` of finished batches; return False once all rows are packed.

    The last batch remains open until `close`; errors drop it. Raises `InvalidRecordError`, `InvalidTimestampError` or
    `RecordTooLargeError` with the number of a refused row, `InvalidColumnError` for an unsound row.
    """
    cdef int code
    cdef int64_t total = 0
    packer.enter()
    try:
        while True:
            with nogil:
                code = _fill(packer, rows, limit_bytes, &total)
            if code == EXHAUSTED:
                return False
            if code == ENOUGH:
                return True
            if code == MORE_ROOM:
                packer._reserve(<Py_ssize_t> total)
            elif code == FULL_BATCH:
                if packer._single:
                    packer._refuse_at(rows.first + rows.at, RecordTooLargeError,
                                      f"one batch of all rows would exceed {packer._batch_bytes} bytes")
                packer.close_batch()
            elif code == ODD_ROW:
                put_odd(packer, rows, rows._taken)
                rows.step(1)
            else:
                rows.fail(packer, code)
    except BaseException:
        packer.drop_open()
        raise
    finally:
        packer.leave()


cdef int put_odd(Packer packer, Rows rows, int64_t i) except -1:
    """Append row `i` of the block with the packer itself: a large row gets its own batch, an invalid one is refused."""
    cdef ks_bytes key = rows._key[i] if rows._keys is not None else ks_bytes(NULL, -1)
    cdef ks_bytes headers = rows._header[i] if rows._headers is not None else ks_bytes(NO_HEADERS, 1)
    packer.records = rows.first + rows.at + i - rows._taken
    packer._append(key.p, key.n, rows._value[i].p, rows._value[i].n, rows._stamp[i], headers.p, headers.n)
    return 0


cdef int _fill(Packer packer, Rows rows, Py_ssize_t limit_bytes, int64_t *total) noexcept nogil:
    cdef int64_t added = 0, i
    cdef int code
    while True:
        if packer.finished >= limit_bytes:
            return ENOUGH
        if rows.at == rows.count:
            return EXHAUSTED
        if rows._taken == rows._block:
            code = rows.gather()
            if code:
                return code
        i = rows._taken
        rows.step(put_rows(packer, &rows._key[i] if rows._keys is not None else NULL, &rows._value[i],
                           &rows._header[i] if rows._headers is not None else NULL, &rows._stamp[i], rows._slack,
                           rows._block - i, limit_bytes, &added, LONG_MAX, &code, total))
        if code != EXHAUSTED:
            return code


cdef int64_t put_rows(Packer packer, const ks_bytes *keys, const ks_bytes *values, const ks_bytes *headers,
                      const int64_t *times, int slack, int64_t n, Py_ssize_t limit_bytes, int64_t *added,
                      int64_t enough, int *code, int64_t *total) noexcept nogil:
    """Put rows into a packer that the caller has entered; return how many; `code` gets the reason why it stopped.

    `code` is EXHAUSTED once all rows are packed, ENOUGH at `limit_bytes` of finished batches or once `added` reaches
    `enough`. `added` grows by the bytes of the records and of new batches' headers. With MORE_ROOM, `total` is the size
    of the next record. If `slack` is set, KS_SLACK bytes are readable from the start of each key and value.
    """
    cdef ks_open_batch batch
    cdef const ks_bytes *key = NULL
    cdef const ks_bytes *header = NULL
    cdef int64_t done = 0, taken
    cdef int why
    batch.key_required = packer._require_key
    batch.slack = slack
    if slack:
        batch.widths = ks_widths_of(keys, values, headers, n)
    batch.earliest = 0
    batch.latest = LONG_MAX
    if not packer._attributes & TIMESTAMP_TYPE_BIT:
        if packer.now_ms > packer._before_max_ms:
            batch.earliest = packer.now_ms - packer._before_max_ms
        if packer._after_max_ms < LONG_MAX - max(packer.now_ms, 0):
            batch.latest = packer.now_ms + packer._after_max_ms
    while done < n:
        if packer.finished >= limit_bytes:
            code[0] = ENOUGH
            return done
        if packer._count == 0:
            if packer.finished + RECORDS_AT > packer._capacity:
                total[0] = RECORDS_AT
                packer._used = packer.finished
                code[0] = MORE_ROOM
                return done
            packer._used = packer.finished + RECORDS_AT
            packer._base_timestamp = times[done]
            packer._open_max = -1
            added[0] += RECORDS_AT
        batch.p = packer.data + packer._used
        batch.full = packer.data + packer.finished + packer._batch_bytes
        batch.room = packer.data + packer._capacity
        batch.enough = <uint8_t *> <uintptr_t> -1
        if enough - added[0] < batch.room - batch.p:
            # A new batch always gets its first record, even if its header alone reaches `enough`.
            batch.enough = batch.p + max(enough - added[0], <int64_t> (1 if packer._count == 0 else 0))
        batch.count = packer._count
        batch.base_timestamp = packer._base_timestamp
        batch.max_timestamp = packer._open_max
        taken = ks_encode(&batch, keys + done if keys != NULL else NULL, values + done,
                          headers + done if headers != NULL else NULL, times + done, n - done)
        added[0] += batch.p - packer.data - packer._used
        packer._used = batch.p - packer.data
        packer._count = <int32_t> batch.count
        packer._open_max = batch.max_timestamp
        packer.records += taken
        done += taken
        if packer._used - packer.finished - packer._summed > SUMMED_BYTES:
            packer.sum_up()
        if done == n:
            break
        if keys != NULL:
            key = keys + done
        if headers != NULL:
            header = headers + done
        why = ks_why(&batch, key, values + done, header, times[done], total)
        if packer._count == 0:
            packer._used = packer.finished
            added[0] -= RECORDS_AT
        if why == KS_STOP_ENOUGH:
            code[0] = ENOUGH
        elif why == KS_STOP_ROOM:
            total[0] += RECORDS_AT if packer._count == 0 else 0
            code[0] = MORE_ROOM
        elif why == KS_STOP_ODD or packer._count == 0:
            code[0] = ODD_ROW
        elif packer._codec or packer._single:
            code[0] = FULL_BATCH
        else:
            packer._write_header(packer.finished, packer._used - packer.finished, packer._count, packer._base_timestamp,
                                 packer._open_max)
            packer._count = 0
            continue
        return done
    code[0] = EXHAUSTED
    return done


def close(Packer packer not None) -> None:
    """Finish the open batch, if there is one."""
    packer.enter()
    try:
        packer.close_batch()
    except BaseException:
        packer.drop_open()
        raise
    finally:
        packer.leave()


# ---- Compression: of the finished batches of one packer, into another one whose batches are written to the log.

def memory(Packer packer not None) -> int:
    """Return the bytes of memory that the packer has for batches, in use or not."""
    return packer._capacity


def shrink(Packer packer not None) -> int:
    """Release the memory that the packer does not use; return the number of bytes that it keeps."""
    packer.enter()
    try:
        packer.shrink()
    finally:
        packer.leave()
    return packer._capacity


def hand_over(Packer packer not None, Packer spare not None) -> None:
    """Move the finished batches to the empty `spare`, and take its memory for the next batches.

    The packer keeps its open batch. Different threads may then use the two packers.
    """
    cdef Py_ssize_t rest
    packer.enter()
    try:
        spare.enter()
        try:
            if spare._used:
                raise ValueError(f"the spare packer holds {spare._used} bytes")
            rest = packer._used - packer.finished
            if rest > spare._capacity:
                spare._reserve(rest)
            if rest:
                memcpy(spare.data, packer.data + packer.finished, <size_t> rest)
            packer.data, spare.data = spare.data, packer.data
            packer._capacity, spare._capacity = spare._capacity, packer._capacity
            spare._used = spare.finished = packer.finished
            spare.batches, spare.max_timestamp = packer.batches, packer.max_timestamp
            packer._used = rest
            packer.finished = packer.batches = 0
            packer.max_timestamp = -1
        finally:
            spare.leave()
    finally:
        packer.leave()


def compress(Packer plain not None, Packer packed not None, int codec, level: int | None) -> None:
    """Compress the record sections of `plain`'s finished batches into the empty `packed`; any thread may call it.

    Space for a batch header precedes each section; only the header's length field is written.
    """
    plain.enter()
    try:
        packed.enter()
        try:
            if packed._used:
                raise ValueError(f"the packer of compressed sections holds {packed._used} bytes")
            try:
                if not (natively and _compress_natively(plain, packed, codec, level)):
                    _compress_by_package(plain, packed, codec, level)
            except BaseException:
                _empty(packed)
                raise
        finally:
            packed.leave()
    finally:
        plain.leave()


natively = True  # type: bool  # for tests: False has the packages compress everything


cdef void _empty(Packer packed) noexcept nogil:
    packed._used = packed.finished = packed.batches = 0


cdef Py_ssize_t _packed_size(const uint8_t *p) noexcept nogil:
    """Return the size of a compressed section with its header; if it did not shrink, it may exceed a batch's limit."""
    return <Py_ssize_t> <uint32_t> load32(p + BATCH_LENGTH_AT) + LOG_OVERHEAD


cdef void _end_section(Packer packed, Py_ssize_t size) noexcept nogil:
    """Count a section of `size` bytes and the space for its header as written."""
    store32(packed.data + packed._used + BATCH_LENGTH_AT, <int32_t> <uint32_t> (RECORDS_AT + size - LOG_OVERHEAD))
    packed._used += RECORDS_AT + size
    packed.finished = packed._used
    packed.batches += 1


cdef bint _compress_natively(Packer plain, Packer packed, int codec, level) except -1:
    """Compress without the GIL; return False, with nothing written, if that is not possible."""
    cdef Py_ssize_t at = 0, size, room = 0
    cdef size_t bound
    cdef int64_t made = 0
    cdef int library_level
    while at < plain.finished:
        size = load32(plain.data + at + BATCH_LENGTH_AT) + LOG_OVERHEAD
        bound = ks_compress_bound(codec, <size_t> (size - RECORDS_AT))
        if bound == 0:
            return False
        room += RECORDS_AT + <Py_ssize_t> bound
        at += size
    library_level = compression.library_level(codec, level)
    if room > packed._capacity:
        packed._reserve(room)
    with nogil:
        at = 0
        while at < plain.finished:
            size = load32(plain.data + at + BATCH_LENGTH_AT) + LOG_OVERHEAD
            made = ks_compress(codec, library_level, plain.data + at + RECORDS_AT, <size_t> (size - RECORDS_AT),
                               packed.data + packed._used + RECORDS_AT,
                               <size_t> (packed._capacity - packed._used - RECORDS_AT))
            if made < 0:
                _empty(packed)
                break
            _end_section(packed, made)
            at += size
    return made >= 0


cdef int _compress_by_package(Packer plain, Packer packed, int codec, level) except -1:
    cdef Py_ssize_t at = 0, size
    cdef bytes section, made
    while at < plain.finished:
        size = load32(plain.data + at + BATCH_LENGTH_AT) + LOG_OVERHEAD
        section = PyBytes_FromStringAndSize(<const char *> plain.data + at + RECORDS_AT, size - RECORDS_AT)
        made = compression.compress(codec, section, level)
        if packed._used + RECORDS_AT + len(made) > packed._capacity:
            packed._reserve(RECORDS_AT + len(made))
        memcpy(packed.data + packed._used + RECORDS_AT, PyBytes_AS_STRING(made), <size_t> len(made))
        _end_section(packed, len(made))
        at += size
    return 0


def put_compressed(Packer packer not None, Packer plain not None, Packer packed not None) -> None:
    """Write the batches of `plain` into the empty `packer`, with the sections that `compress` made; empties `packed`.

    Splits a batch that is too large. Raises `RecordTooLargeError` for a record that exceeds a batch even when
    compressed; the packer then has the batches before it.
    """
    packer.enter()
    try:
        plain.enter()
        try:
            packed.enter()
            try:
                if packer._used or packed.batches != plain.batches:
                    raise ValueError(
                        f"{packed.batches} sections for {plain.batches} batches, {packer._used} bytes before")
                try:
                    if _all_fit(packer, plain, packed):
                        _put_headers(packer, plain, packed)
                    else:
                        _put_sections(packer, plain, packed)
                except BaseException:
                    packer.drop_open()
                    raise
                finally:
                    _empty(packed)
            finally:
                packed.leave()
        finally:
            plain.leave()
    finally:
        packer.leave()


cdef bint _all_fit(Packer packer, Packer plain, Packer packed) except -1:
    """Return whether no batch has to be split."""
    cdef Py_ssize_t at = 0, size, plain_at = 0, plain_size
    cdef int64_t most = compression.MAX_DECOMPRESSED_BYTES
    while at < packed.finished:
        size = _packed_size(packed.data + at)
        plain_size = load32(plain.data + plain_at + BATCH_LENGTH_AT) + LOG_OVERHEAD
        if size > packer._max_batch_bytes or plain_size - RECORDS_AT > most:
            return False
        at += size
        plain_at += plain_size
    return True


cdef void _put_headers(Packer packer, Packer plain, Packer packed) noexcept:
    """Take over the memory of `packed`, and write the header of each section into it."""
    cdef Py_ssize_t at = 0, size
    cdef const uint8_t *p = plain.data
    packer.data, packed.data = packed.data, packer.data
    packer._capacity, packed._capacity = packed._capacity, packer._capacity
    while p < plain.data + plain.finished:
        size = _packed_size(packer.data + at)
        packer._write_header(at, size, load32(p + RECORDS_COUNT_AT), load64(p + BASE_TIMESTAMP_AT),
                             load64(p + MAX_TIMESTAMP_AT))
        packer._closing += load32(p + RECORDS_COUNT_AT)
        at += size
        p += load32(p + BATCH_LENGTH_AT) + LOG_OVERHEAD


cdef int _put_sections(Packer packer, Packer plain, Packer packed) except -1:
    """Copy the sections one by one; split a section that is too large, either compressed or decompressed."""
    cdef Py_ssize_t at = 0, size, plain_size
    cdef const uint8_t *p = plain.data
    while p < plain.data + plain.finished:
        size = _packed_size(packed.data + at)
        plain_size = load32(p + BATCH_LENGTH_AT) + LOG_OVERHEAD
        packer._put_section(p + RECORDS_AT, plain_size - RECORDS_AT, packed.data + at + RECORDS_AT, size - RECORDS_AT,
                            load32(p + RECORDS_COUNT_AT), load64(p + BASE_TIMESTAMP_AT), load64(p + MAX_TIMESTAMP_AT))
        at += size
        p += plain_size
    return 0


def header_sections(str what, rows: Iterable[Any], int64_t first) -> Column:
    """Return a column of headers; each row is pairs, a dict, or None, as in `append_many`."""
    cdef Packer packer = Packer(1, 1, now_ms=0)
    cdef list sections = []
    for headers in rows:
        packer.records = first + len(sections)      # the record's number in errors
        sections.append(None if headers is None else common_headers(headers) or packer._encode_headers(headers))
    return pointers(what, sections, first)
