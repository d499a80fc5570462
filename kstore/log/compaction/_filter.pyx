# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The second pass of a cleaning, batch by batch: what is kept, dropped or rebuilt.

`c/cleaned.c` decides which records of a v2 batch are kept. `_newest_records` knows which records are superseded,
`_cleaned_transactions` which batches are aborted. Invariant: a rebuilt batch keeps its offsets, its producer's fields
and its records' contents, and was sound before.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from kstore._core cimport Buffer, Record, outside, record_section_slowly
from kstore.codec._compression cimport ks_compress, ks_compress_bound, ks_output, ks_unpack
from kstore.codec._wire cimport (
    BatchHead, CODEC_MASK, DELETE_HORIZON_BIT, LAST_OFFSET_DELTA_AT, LEGACY_ATTRIBUTES_AT, MAGIC_AT, RECORDS_AT,
    TIMESTAMP_TYPE_BIT, batch_size, load64, put_header, store32, store64,
)
from kstore.files._window cimport read_at
from kstore.log.compaction._newest_records cimport NewestRecords, ks_bits_has, ks_newest, ks_newest_has
from kstore.log.compaction._cleaned_transactions cimport (
    KS_CLEANED, KS_CLEAN_BAD_ORDER, KS_CLEAN_LEGACY, KS_CLEAN_NOT_SCANNED, KS_CLEAN_OUT_OF_MEMORY, KS_CLEAN_PACKED,
    KS_CLEAN_PACKED_CONTROL, KS_CLEAN_TOO_LARGE, KS_CLEAN_TO_PACK, CleanedTransactions, advised, bad_batch,
    compressed_control_type, ks_step, ks_transactions,
)

import os
from typing import NamedTuple

from kstore._core import decode_batches
from kstore.codec import compression
from kstore.errors import CorruptRecordError, RecordTooLargeError, StorageError

cdef extern from "record.h" nogil:
    uint64_t ks_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size,
                          int64_t headers_size) noexcept
    uint8_t *ks_put_record(uint8_t *p, uint64_t body, int64_t timestamp_delta, int64_t offset_delta, const void *key,
                           int64_t key_size, const void *value, int64_t value_size, const void *headers,
                           int64_t headers_size) noexcept

cdef extern from "cleaned.h" nogil:
    enum:
        KS_NO_CONTROL_TYPE

    ctypedef struct ks_last_record:
        int64_t producer_id
        int64_t last_offset
        int16_t epoch

    ctypedef struct ks_pile:
        uint8_t *p
        size_t used
        size_t capacity

    ctypedef struct ks_cleaned_batch:
        int64_t size
        int64_t base
        int64_t last
        int64_t kept
        int64_t greatest_kept
        int16_t attributes

    ctypedef struct ks_cleaner:
        const ks_newest *newest
        ks_transactions *transactions
        int64_t (*unpack)(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept nogil
        int64_t now
        int64_t new_horizon
        int64_t first_uncleanable
        int64_t limit
        int64_t next_base
        int64_t ordinal
        ks_last_record *last_records
        size_t last_records_count
        const uint8_t *begin
        const uint8_t *p
        const uint8_t *end
        const uint8_t *run
        const uint8_t *run_end
        ks_pile out
        int64_t max_offset
        int scanned
        int changed
        int fault
        int stage
        int control_type
        ks_cleaned_batch b
        const uint8_t *section
        const uint8_t *section_end
        ks_pile rebuilt
        int64_t batches_read
        int64_t batches_kept
        int64_t batches_rebuilt
        int64_t batches_emptied
        int64_t records_read
        int64_t records_kept
        int64_t keyless_dropped
        int64_t tombstones_kept
        int64_t tombstones_removed

    int ks_clean(ks_cleaner *c) noexcept
    int ks_pile_room(ks_pile *pile, size_t n) noexcept
    int ks_flush_run(ks_cleaner *c) noexcept
    int ks_put_packed(ks_cleaner *c, const uint8_t *payload, size_t n) noexcept
    int ks_packed_in_place(ks_cleaner *c, size_t n) noexcept
    int ks_drop(ks_cleaner *c) noexcept
    bint ks_drop_unread(ks_cleaner *c, int64_t records, int64_t batches, int64_t last) noexcept
    bint ks_keeps_empty(const ks_cleaner *c, int64_t last, int64_t producer_id, int16_t epoch, bint is_control) noexcept
    void ks_cleaner_free(ks_cleaner *c) noexcept

cdef int64_t INT32_LIMIT = 0x7fffffff

cdef int[8] LIBRARY_LEVELS         # by codec: Kafka's default level, as the library numbers it
for _codec in (compression.LZ4, compression.ZSTD):
    LIBRARY_LEVELS[<int> _codec] = compression.library_level(_codec, None)

cdef struct Reading:
    int fd
    int error                      # errno of a read that failed
    uint8_t *buffer
    Py_ssize_t room
    int64_t position               # of the piece in the buffer; of the end of the data if nothing is read
    int64_t end                    # nothing is read from here on,
    int64_t enough                 # nor once there is this much output; 0: nothing is read

cdef enum:
    MOST_OF_A_RECORD = 40              # the most bytes of a record without headers, besides its key and value


class CleanedChunk(NamedTuple):
    """The result of filtering a chunk of batches.

    `taken` bytes of it were whole batches. `output` is the whole batches that they became; it is valid until the next
    call, and may be a part of the input. `changed` says whether it differs from the input. `max_offset` is the greatest
    offset of the output as Kafka counts it (SEMANTICS 7.23): of a rebuilt batch its last kept record's, of any other
    its last offset; -1 without output.
    """

    taken: int
    output: memoryview
    changed: bool
    max_offset: int


@cython.final
cdef class _Output:
    """Memory for the batches of one call; reused when no view of it is alive."""

    cdef ks_pile pile
    cdef Py_ssize_t exports

    def __dealloc__(self):
        free(self.pile.p)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> (self.pile.p if self.pile.used else <uint8_t *> &self.exports),
                          <Py_ssize_t> self.pile.used, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


@cython.final
cdef class BatchFilter:
    """The second pass of a cleaning (SEMANTICS 7.16 to 7.22): batches in, cleaned batches out.

    `newest` has seen the whole dirty part, `transactions` is new for this pass, and batches come in offset order from
    the start of the log. `first_uncleanable_offset` is where the round ends: the batch before it is kept, emptied if
    necessary. After an error the object is unusable. Not thread-safe: a second call at the same time is a `ValueError`.
    """

    cdef ks_cleaner _c
    cdef NewestRecords _newest
    cdef CleanedTransactions _transactions
    cdef _Output _output
    cdef bint _busy, _failed

    def __init__(self, NewestRecords newest not None, CleanedTransactions transactions not None, *, int64_t now_ms,
                 int64_t delete_retention_ms, int64_t first_uncleanable_offset,
                 max_decompressed_bytes: int | None = None):
        cdef ks_cleaner *c = &self._c
        if self._newest is not None:
            raise ValueError("a pass begins once")
        self._newest = newest
        self._transactions = transactions
        c.newest = &newest.state
        c.transactions = &transactions._state
        c.unpack = ks_unpack
        c.now = now_ms
        # Kafka's sum wraps around, and then no horizon is set.
        c.new_horizon = -1
        if delete_retention_ms <= INT64_MAX - max(now_ms, 0):
            c.new_horizon = max(now_ms + delete_retention_ms, -1)
        c.first_uncleanable = first_uncleanable_offset
        c.limit = min(compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes,
                      INT32_LIMIT)
        c.control_type = KS_NO_CONTROL_TYPE

    def __dealloc__(self):
        ks_cleaner_free(&self._c)

    @property
    def batches_read(self) -> int:
        return self._c.batches_read

    @property
    def batches_kept(self) -> int:
        return self._c.batches_kept

    @property
    def batches_rebuilt(self) -> int:
        """Number of batches that were rebuilt with the records that are kept."""
        return self._c.batches_rebuilt

    @property
    def batches_emptied(self) -> int:
        """Number of batches that keep only their header."""
        return self._c.batches_emptied

    @property
    def records_read(self) -> int:
        """Records of the batches read, as their headers declare them."""
        return self._c.records_read

    @property
    def records_kept(self) -> int:
        return self._c.records_kept

    @property
    def keyless_dropped(self) -> int:
        """Records dropped because they have no key, including those that the first pass found."""
        return self._c.keyless_dropped + self._newest.state.keyless

    @property
    def tombstones_kept(self) -> int:
        return self._c.tombstones_kept

    @property
    def tombstones_removed(self) -> int:
        """Tombstones dropped because their retention is over, although they were their keys' newest records."""
        return self._c.tombstones_removed

    def set_last_records(self, last: Mapping[int, tuple[int, int]]) -> None:
        """Set the active producers' last records, once a group: producer id to (last data offset or -1, epoch)."""
        cdef ks_last_record *records
        cdef size_t i = 0
        cdef list ordered = sorted(last.items())
        self._enter()
        try:
            records = <ks_last_record *> malloc(max(len(ordered), 1) * sizeof(ks_last_record))
            if records == NULL:
                raise MemoryError
            try:
                for producer_id, (last_offset, epoch) in ordered:
                    records[i] = ks_last_record(producer_id, last_offset, epoch)
                    i += 1
            except BaseException:
                free(records)
                raise
            free(self._c.last_records)
            self._c.last_records = records
            self._c.last_records_count = i
        finally:
            self._busy = False

    def clean(self, data not None: ReadableBuffer, *, bint scanned, path: str, int64_t position,
              bint keeps_old_tombstones) -> CleanedChunk:
        """Filter the whole batches at the start of `data`, which is at `position` of the file `path`.

        `scanned` says that the first pass has seen these batches; they start at the next ordinal.
        `keeps_old_tombstones` says whether tombstones of formats 0 and 1 are kept (SEMANTICS 7.19). Raises
        `CorruptRecordError`, which names `kstore repair`, for bytes that are no batches and for a damaged batch that
        would not be kept as it is; `RecordTooLargeError` for a batch that would have more than 2^31 - 1 bytes;
        `ValueError` for batches that the first pass should have seen and has not. The GIL is released.
        """
        cdef Buffer held = Buffer(data)
        cdef Reading r
        memset(&r, 0, sizeof(r))
        r.position = r.end = position + held.size
        r.enough = 0
        return self._clean(data, held.p, held.size, &r, position, scanned, path, keeps_old_tombstones)

    def clean_file(self, int fd, int64_t position, int64_t end, buffer not None: ReadableBuffer, *,
                   int64_t enough_bytes, bint scanned, path: str, bint keeps_old_tombstones) -> CleanedChunk:
        """Filter the batches of `[position, end)` of a file as `clean` does, reading them in pieces into `buffer`.

        A piece is as many whole batches as fit into the buffer. The call stops after the piece that brings the output
        to `enough_bytes`, after a piece that is kept as it is while there is no other output, and before a batch that
        does not fit into the buffer or that the end of the file cuts. Raises as `clean` does, and `StorageError`.
        """
        cdef Reading r
        cdef Py_buffer view
        if enough_bytes < 1:
            raise ValueError(f"{enough_bytes} bytes are enough: 1 is the least")
        memset(&r, 0, sizeof(r))
        r.fd = fd
        r.position = position
        r.end = end
        r.enough = enough_bytes
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            r.buffer = <uint8_t *> view.buf
            r.room = view.len
            return self._clean(buffer, r.buffer, 0, &r, position, scanned, path, keeps_old_tombstones)
        finally:
            PyBuffer_Release(&view)

    def drop(self, *, int64_t records, int64_t batches, int64_t last_offset) -> bool:
        """Drop the next whole batches unread if each of their records is superseded. Return whether they were.

        The first pass has seen these batches, up to the one that ends with `last_offset`, and none was special to it.
        If one must be kept without its records, as the last one of a producer, none is dropped: `clean` takes them all.
        """
        self._enter()
        try:
            if self._failed:
                raise ValueError("this pass has ended with an error: begin another")
            self._newest.enter()
            try:
                return ks_drop_unread(&self._c, records, batches, last_offset)
            finally:
                self._newest.leave()
        finally:
            self._busy = False

    cdef int _enter(self) except -1:
        if self._newest is None:
            raise ValueError("a pass that has not begun")
        if self._busy:
            raise ValueError("this pass is executing already")
        self._busy = True
        if self._output is None or self._output.exports:
            self._output = _Output.__new__(_Output)
        return 0

    cdef object _clean(self, data, const uint8_t *p, Py_ssize_t n, Reading *r, int64_t position, bint scanned,
                       object path, bint keeps_old_tombstones):
        """Clean the `n` bytes at `p`, which are the first of `data`, and those read into it after that."""
        cdef ks_cleaner *c = &self._c
        self._enter()
        try:
            if self._failed:
                raise ValueError("this pass has ended with an error: begin another")
            self._newest.enter()
            self._failed = True
            try:
                c.out = self._output.pile
                c.out.used = 0
                c.begin = c.p = p
                c.end = p + n
                c.run = c.run_end = NULL
                c.max_offset = -1
                c.scanned = scanned
                c.changed = False
                self._clean_pieces(r, path, keeps_old_tombstones)
                if r.error:
                    raise StorageError(r.error, os.strerror(r.error), path)
                return self._chunk(data, p, (c.p - p if r.enough == 0 else r.position - position))
            finally:
                self._newest.leave()
                self._output.pile = c.out
                memset(&c.out, 0, sizeof(ks_pile))
        except CorruptRecordError as error:
            raise advised(error) from error
        finally:
            self._busy = False

    cdef int _clean_pieces(self, Reading *r, object path, bint keeps_old_tombstones) except -1:
        """Clean and read until there is enough, or the data ends; do what C leaves to Python."""
        cdef ks_cleaner *c = &self._c
        cdef bytes section = None
        cdef int64_t at
        cdef int step
        while True:
            with nogil:
                step = _go_on(c, r)
            if step == KS_CLEANED:
                return 0
            at = _position(c, r)
            if step == KS_CLEAN_LEGACY:
                step = self._clean_legacy(path, at, keeps_old_tombstones)
            elif step == KS_CLEAN_PACKED:
                section = record_section_slowly(c.p, <Py_ssize_t> c.b.size, c.limit, path, at)
                c.section = <const uint8_t *> PyBytes_AS_STRING(section)
                c.section_end = c.section + PyBytes_GET_SIZE(section)
                step = KS_CLEANED
            elif step == KS_CLEAN_PACKED_CONTROL:
                c.control_type = compressed_control_type(c.p, <Py_ssize_t> c.b.size, c.limit, path, at)
                step = KS_CLEANED
            elif step == KS_CLEAN_TO_PACK:
                step = self._pack(c.b.attributes & CODEC_MASK)
            if step != KS_CLEANED:
                _fail(step, c, path, at)

    cdef object _chunk(self, data, const uint8_t *p, int64_t taken):
        """Return the call's result: a part of `data`, which starts at `p`, if the output is one, else the output."""
        cdef ks_cleaner *c = &self._c
        cdef object output
        if c.out.used == 0 and c.run != NULL:
            output = memoryview(data)[c.run - p:c.run_end - p].toreadonly()
        else:
            if ks_flush_run(c):
                raise MemoryError
            self._output.pile = c.out
            output = memoryview(self._output)
        self._failed = False
        return CleanedChunk(taken, output, c.changed != 0, c.max_offset)

    cdef int _pack(self, int codec) except -1:
        """Compress the records of the rebuilt batch, at the codec's default level, and add the batch to the output."""
        cdef ks_cleaner *c = &self._c
        cdef int step
        cdef bytes payload
        with nogil:
            step = _pack_natively(c, codec)
        if step != KS_CLEAN_TO_PACK:
            return step
        payload = compression.compress(codec, PyBytes_FromStringAndSize(
            <const char *> c.rebuilt.p + RECORDS_AT, <Py_ssize_t> c.rebuilt.used - RECORDS_AT))
        return ks_put_packed(c, <const uint8_t *> PyBytes_AS_STRING(payload), <size_t> PyBytes_GET_SIZE(payload))

    # ---- Formats 0 and 1, which become format 2 (SEMANTICS 7.21a).

    cdef int _clean_legacy(self, object path, int64_t position, bint keeps_old_tombstones) except -1:
        cdef ks_cleaner *c = &self._c
        cdef const ks_newest *s = c.newest
        cdef int64_t ordinal = c.ordinal
        cdef Record record
        cdef list records, kept = []
        cdef bint is_bound, keeps, no_value = False
        batch, = decode_batches(<bytes> c.p[:batch_size(c.p)], path=path, position=position,
                                max_decompressed_bytes=c.limit)
        records = list(batch)
        last = batch.last_offset
        previous = c.next_base - 1
        for each in records:
            if not previous < each.offset <= last or last == INT64_MAX:
                return KS_CLEAN_BAD_ORDER
            previous = each.offset
        if self._transactions.on_data(c.p) < 0:
            return KS_CLEAN_OUT_OF_MEMORY
        c.b.size = batch_size(c.p)
        c.b.base = batch.base_offset
        c.b.last = last
        c.batches_read += 1
        c.records_read += len(records)
        if c.scanned and c.b.base <= s.latest:
            if len(records) > s.records - c.ordinal:
                return KS_CLEAN_NOT_SCANNED
            c.ordinal += len(records)
        elif c.b.base <= s.latest and c.b.last >= s.first_dirty:
            return KS_CLEAN_NOT_SCANNED
        for each in records:
            record = <Record> each
            is_bound = record.offset <= s.latest
            if not is_bound:
                keeps = True
            elif c.scanned and record.offset >= s.first_dirty:
                keeps = not ks_bits_has(&s.superseded, ordinal)
            elif record.key is None:
                keeps = False
                c.keyless_dropped += 1
            else:
                keeps = not ks_newest_has(s, <const uint8_t *> PyBytes_AS_STRING(record.key),
                                          <size_t> PyBytes_GET_SIZE(record.key))
            if keeps and is_bound and record.value is None and not keeps_old_tombstones:
                keeps = False
                c.tombstones_removed += 1
            if keeps:
                kept.append(record)
                if record.value is None:
                    no_value = True
                    c.tombstones_kept += 1
            ordinal += 1
        if not kept and not ks_keeps_empty(c, last, -1, -1, False):
            return ks_drop(c)
        return self._put_converted(batch, kept, c.new_horizon if no_value else -1, path, position)

    cdef int _put_converted(self, object batch, list kept, int64_t horizon, object path, int64_t position) except -1:
        """Write the records as a batch of format 2, or only its header if none is kept."""
        cdef ks_cleaner *c = &self._c
        cdef ks_pile *pile = &c.rebuilt
        cdef BatchHead head
        cdef Record record
        cdef const uint8_t *key
        cdef const uint8_t *value
        cdef int64_t key_size, value_size, delta, offset_delta
        cdef size_t room = RECORDS_AT
        cdef uint8_t *p
        cdef int magic = c.p[MAGIC_AT], codec = 0, step
        cdef bytes payload
        memset(&head, 0, sizeof(head))
        head.producer_id = head.producer_epoch = head.base_sequence = -1
        head.count = len(kept)
        head.base_timestamp = horizon
        head.max_timestamp = -1
        if magic:
            head.attributes = c.p[LEGACY_ATTRIBUTES_AT] & TIMESTAMP_TYPE_BIT
            if head.attributes or not kept:
                head.max_timestamp = batch.max_timestamp
        c.b.greatest_kept = c.b.last
        if kept:
            c.b.base = (<Record> kept[0]).offset
            c.b.greatest_kept = (<Record> kept[len(kept) - 1]).offset
            codec = c.p[LEGACY_ATTRIBUTES_AT] & CODEC_MASK
            if horizon < 0:
                head.base_timestamp = (<Record> kept[0]).timestamp
        if c.b.greatest_kept - c.b.base > INT32_LIMIT:
            raise CorruptRecordError(outside(c.b.greatest_kept, c.b.base, c.b.base + INT32_LIMIT), path=path,
                                     position=position)
        head.attributes |= codec | (DELETE_HORIZON_BIT if horizon >= 0 else 0)
        for each in kept:
            record = <Record> each
            room += (MOST_OF_A_RECORD + (0 if record.key is None else PyBytes_GET_SIZE(record.key))
                     + (0 if record.value is None else PyBytes_GET_SIZE(record.value)))
        pile.used = 0
        if ks_flush_run(c) or ks_pile_room(pile, room):
            return KS_CLEAN_OUT_OF_MEMORY
        p = pile.p + RECORDS_AT
        for each in kept:
            record = <Record> each
            key = value = NULL
            key_size = value_size = -1
            if record.key is not None:
                key = <const uint8_t *> PyBytes_AS_STRING(record.key)
                key_size = PyBytes_GET_SIZE(record.key)
            if record.value is not None:
                value = <const uint8_t *> PyBytes_AS_STRING(record.value)
                value_size = PyBytes_GET_SIZE(record.value)
            delta = <int64_t> (<uint64_t> record.timestamp - <uint64_t> head.base_timestamp)
            offset_delta = record.offset - c.b.base
            p = ks_put_record(p, ks_body_size(delta, offset_delta, key_size, value_size, 1), delta, offset_delta, key,
                              key_size, value, value_size, b"\x00", 1)
            if not head.attributes & TIMESTAMP_TYPE_BIT:
                head.max_timestamp = max(head.max_timestamp, record.timestamp)
        pile.used = p - pile.p
        put_header(pile.p, RECORDS_AT, &head)
        store64(pile.p, c.b.base)
        store32(pile.p + LAST_OFFSET_DELTA_AT, <int32_t> (c.b.greatest_kept - c.b.base))
        c.b.kept = len(kept)
        if codec:
            return self._pack(codec)
        step = ks_put_packed(c, pile.p + RECORDS_AT, pile.used - RECORDS_AT)
        if step == KS_CLEANED and not kept:
            c.batches_rebuilt -= 1
            c.batches_emptied += 1
        return step


cdef int _go_on(ks_cleaner *c, Reading *r) noexcept nogil:
    """Clean the rest of the piece, and read and clean the next ones, until there is enough or Python is needed."""
    cdef Py_ssize_t got
    cdef int step
    while True:
        step = ks_clean(c)
        if step == KS_CLEAN_TO_PACK:
            step = _pack_natively(c, c.b.attributes & CODEC_MASK)
            if step == KS_CLEANED:
                continue
        if step != KS_CLEANED or r.enough == 0:
            return step
        r.position += c.p - c.begin
        if c.p == c.begin < c.end or (c.out.used == 0 and c.run != NULL):
            return KS_CLEANED
        if ks_flush_run(c):
            return KS_CLEAN_OUT_OF_MEMORY
        if <int64_t> c.out.used >= r.enough or r.position >= r.end:
            return KS_CLEANED
        got = read_at(r.fd, r.buffer, <size_t> min(<int64_t> r.room, r.end - r.position), r.position)
        c.begin = c.p = r.buffer
        c.end = r.buffer + max(got, 0)
        if got <= 0:
            r.error = errno if got < 0 else 0
            return KS_CLEANED


cdef int _pack_natively(ks_cleaner *c, int codec) noexcept nogil:
    """Compress the rebuilt batch's records in their final place; KS_CLEAN_TO_PACK if a Python package has to do it."""
    cdef size_t n = c.rebuilt.used - RECORDS_AT, bound = ks_compress_bound(codec, n)
    cdef int64_t made
    if bound == 0:
        return KS_CLEAN_TO_PACK
    if ks_pile_room(&c.out, RECORDS_AT + bound):
        return KS_CLEAN_OUT_OF_MEMORY
    made = ks_compress(codec, LIBRARY_LEVELS[codec], c.rebuilt.p + RECORDS_AT, n, c.out.p + c.out.used + RECORDS_AT, bound)
    return KS_CLEAN_TO_PACK if made < 0 else ks_packed_in_place(c, <size_t> made)


cdef int64_t _position(const ks_cleaner *c, const Reading *r) noexcept:
    """Return the position in the file of the batch at `c.p`."""
    return r.position + (c.p - (c.begin if r.enough else c.end))


cdef int _fail(int step, const ks_cleaner *c, object path, int64_t position) except -1:
    cdef const uint8_t *p = c.p
    if step == KS_CLEAN_OUT_OF_MEMORY:
        raise MemoryError
    if step == KS_CLEAN_NOT_SCANNED:
        raise ValueError(f"{path} at position {position}: the first pass has not seen the batch at offset {load64(p)}")
    if step == KS_CLEAN_TOO_LARGE:
        raise RecordTooLargeError(f"{path} at position {position}: a cleaned batch would have more than 2^31 - 1 bytes")
    raise bad_batch(<ks_step> step, p, c.next_base, c.fault, path, position)
