# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The first pass of a cleaning: the offset map, and which dirty records are superseded by a later record.

Batches are walked without the GIL. Invariant: a key counts only if its batch is sound, since a record that supersedes
others replaces them.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.errno cimport errno
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from kstore._core cimport Buffer, record_section_slowly
from kstore.codec._compression cimport ks_output, ks_unpack
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BATCH_LENGTH_AT, CODEC_MASK, CONTROL_BIT, CRC_AT, HEADER_UP_TO_MAGIC, LAST_OFFSET_DELTA_AT,
    LOG_OVERHEAD, MAGIC_AT, MIN_V0_MESSAGE, RECORDS_AT, RECORDS_COUNT_AT, TRANSACTIONAL_BIT, batch_last_offset, load16,
    load32, load64,
)
from kstore.disk._mounted_read cimport mounted_read, set_mounted_read
from kstore.files._window cimport read_at
from kstore.log.compaction._cleaned_transactions cimport (
    KS_CLEANED, KS_CLEAN_BAD_COUNT, KS_CLEAN_BAD_CRC, KS_CLEAN_BAD_MAGIC, KS_CLEAN_BAD_MARKER, KS_CLEAN_BAD_OFFSETS,
    KS_CLEAN_BAD_ORDER, KS_CLEAN_BAD_PLACE, KS_CLEAN_BAD_RECORD, KS_CLEAN_BAD_RECORD_ORDER, KS_CLEAN_BAD_SIZE,
    KS_CLEAN_LEGACY, KS_CLEAN_OUT_OF_MEMORY, KS_CLEAN_PACKED, KS_CLEAN_PACKED_CONTROL, KS_CONTROL_BAD,
    KS_CONTROL_COMPRESSED, CleanedTransactions, advised, bad_batch, compressed_control_type, ks_control_type, ks_step,
)

import os

from kstore._core import decode_batches
from kstore.codec import compression
from kstore.disk import mounts
from kstore.errors import CorruptRecordError

set_mounted_read(mounted_read)

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "keyhash.h" nogil:
    ctypedef struct ks_secret:
        bint by_aes
    void ks_secret_start(ks_secret *s, const uint8_t *secret, bint by_aes) noexcept
    void ks_hash_keys(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n,
                      ks_key *hashes) noexcept

cdef extern from "siphash.h" nogil:
    void ks_siphash(const uint8_t *p, size_t n, const uint64_t *key, int rounds, int last_rounds, uint64_t *out) noexcept
    uint64_t ks_load_le64(const uint8_t *p) noexcept

cdef extern from "bits.h" nogil:
    void ks_bits_clear(ks_bits *b, int64_t i) noexcept
    int64_t ks_bits_memory(const ks_bits *b) noexcept

cdef extern from "newest.h" nogil:
    enum:
        KS_TAKEN
        KS_DAMAGED
        KS_OUT_OF_BATCH
        KS_UNORDERED
        KS_NO_ROOM
    void ks_newest_start(ks_newest *s, int64_t capacity, int64_t first_dirty, const uint8_t *secret, int bits,
                         int64_t most_records) noexcept
    void ks_newest_free(ks_newest *s) noexcept
    bint ks_newest_ends_at(ks_newest *s, int64_t count) noexcept
    void ks_newest_pass(ks_newest *s, const uint8_t *head) noexcept
    int ks_newest_note_aborted(ks_newest *s) noexcept
    int ks_newest_take(ks_newest *s, const uint8_t *head, const uint8_t *p, const uint8_t *end, bint stays,
                       int *fault) noexcept
    int ks_newest_settle(ks_newest *s) noexcept
    int ks_newest_take_one(ks_newest *s, int64_t offset, const uint8_t *key, int64_t key_size, bint tombstone) noexcept

cdef enum:
    SECRET_BYTES = 16
    MOST_HASH_BITS = 96


cdef struct Walk:
    const uint8_t *p               # the next batch
    const uint8_t *end
    int64_t limit                  # of a decompressed batch
    int fault

cdef struct Piece:                 # as scanned_segments.Piece, with its end in place of its size
    int64_t end
    int64_t records
    int64_t batches
    int64_t last_offset
    int64_t is_plain

cdef struct Reading:
    int fd
    int error                      # errno of a failed read
    uint8_t *buffer
    Py_ssize_t room
    int64_t position               # of the buffer's first byte
    int64_t end                    # nothing is read from here on
    Walk w
    int64_t records_before         # the piece
    int64_t batches_before
    int64_t special_before
    Piece *pieces
    Py_ssize_t count
    Py_ssize_t capacity


@cython.final
cdef class NewestRecords:
    """The result of the first pass: which dirty records are superseded by a later record of the same key.

    A record in [`first_dirty_offset`, `latest_offset`] is superseded if it has no key, or if a later record there has
    its key (SEMANTICS 7.11, 7.12); for records below that range, see `has`. Each record of each scanned batch has an
    ordinal, from 0 in the order of the file. `batches` counts the batches taken, `special_batches` those that the
    second pass must read in any case: of transactions, of control records and of formats 0 and 1. `capacity` is a
    number of keys; memory grows with the keys. After an error the object is unusable. Not thread-safe: a second call at
    the same time is a `ValueError`.
    """

    def __init__(self, int64_t capacity, int64_t first_dirty_offset, *, int _hash_bits=MOST_HASH_BITS,
                 int64_t _most_records=KS_MOST_ORDINALS):
        cdef bytes secret = os.urandom(SECRET_BYTES)
        _check_capacity(capacity)
        if first_dirty_offset < 0:
            raise ValueError(f"first dirty offset {first_dirty_offset}: 0 or more")
        if self.state.capacity:
            raise ValueError("a first pass begins once")
        ks_newest_start(&self.state, capacity, first_dirty_offset, <const uint8_t *> PyBytes_AS_STRING(secret),
                        _hash_bits, _most_records)

    def __dealloc__(self):
        ks_newest_free(&self.state)
        PyMem_RawFree(self._room)

    @property
    def capacity(self) -> int:
        """The number of keys at which the map is full."""
        return self.state.capacity

    @property
    def first_dirty_offset(self) -> int:
        """The first offset of the dirty part: records below it are looked up by key."""
        return self.state.first_dirty

    @property
    def latest_offset(self) -> int:
        """The last offset that the pass covers; -1 at first. The next first dirty offset is one past it."""
        return self.state.latest

    @property
    def is_full(self) -> bool:
        """Whether the pass ended before the end of the data because there was no space for another key or record."""
        return self.state.full != 0

    @property
    def keys(self) -> int:
        return self.state.map.size

    @property
    def records(self) -> int:
        """Number of records that have an ordinal: the next ordinal."""
        return self.state.records

    @property
    def next_offset(self) -> int:
        """One past the last offset of the last batch taken, or of the last segment that was ended."""
        return self._next_base

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of the map and of the bits by ordinal."""
        return (ks_keymap_memory(&self.state.map) + ks_bits_memory(&self.state.superseded)
                + ks_bits_memory(&self.state.tombstones))

    def add(self, data not None: ReadableBuffer, CleanedTransactions transactions not None, *, path: str,
            int64_t position, max_decompressed_bytes: int | None = None) -> int:
        """Take the whole batches at the start of `data`, in offset order. Return how many bytes were taken.

        A batch that is cut by the end of `data` is not taken. The call stops after the batch in which the map becomes
        full; this batch has ordinals like any other. More than 2^32 - 1 records count as a full map, too; then the
        batch with the next one is left. `data` is at `position` of the file `path`. Raises `CorruptRecordError`, which
        names `kstore repair`, also for a wrong CRC. The GIL is released.
        """
        cdef Buffer held = Buffer(data)
        cdef Walk w
        w.p = held.p
        w.end = held.p + held.size
        w.fault = 0
        w.limit = compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes
        self._begin()
        try:
            _walk_all(self, &w, held.p, transactions, path, position)
            self._failed = False
            return w.p - held.p
        except CorruptRecordError as error:
            raise advised(error) from error
        finally:
            self.leave()

    def scan(self, int fd, int64_t position, int64_t end, buffer not None: ReadableBuffer,
             CleanedTransactions transactions not None, *, path: str,
             max_decompressed_bytes: int | None = None) -> tuple[int, bytes]:
        """Read and take the batches of `[position, end)` of a file in pieces. Return (where it stopped, the pieces).

        A piece is as many whole batches as fit into `buffer`, which is overwritten. The call stops after the batch that
        fills the map, and before a batch that does not fit into the buffer or goes beyond `end` or the file. The pieces
        are `Piece`s of five 64-bit integers each, as `ScannedPart.extend` takes them. Raises as `add` does, and
        `StorageError`. The GIL is released.
        """
        cdef Reading r
        cdef Py_buffer view
        cdef ks_step step
        memset(&r, 0, sizeof(r))
        r.w.limit = compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes
        r.fd = fd
        r.position = position
        r.end = end
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            self._begin()
            try:
                r.buffer = <uint8_t *> view.buf
                r.room = view.len
                r.w.p = r.w.end = r.buffer
                with nogil:
                    step = _read_on(self, &r, transactions)
                while step != KS_CLEANED:
                    _walk_on(self, &r.w, step, r.buffer, transactions, path, r.position)
                    with nogil:
                        step = _read_on(self, &r, transactions)
                if r.error:
                    raise mounts.read_error(r.error, path)
                self._failed = False
                return r.position, PyBytes_FromStringAndSize(<const char *> r.pieces, r.count * sizeof(Piece))
            except CorruptRecordError as error:
                raise advised(error) from error
            finally:
                self.leave()
        finally:
            PyMem_RawFree(r.pieces)
            PyBuffer_Release(&view)

    def end_segment(self, int64_t next_base) -> None:
        """Note that a segment was scanned to its end, and the next starts at `next_base`, unless the map is full."""
        self.enter()
        if not self.state.full:
            self.state.latest = next_base - 1
            self._next_base = max(self._next_base, next_base)
        self.leave()

    def has(self, key not None: ReadableBuffer) -> bool:
        """Return whether a key has a dirty record, which supersedes all its records below the first dirty offset."""
        cdef Buffer held = Buffer(key)
        self.enter()
        found = ks_newest_has(&self.state, held.p, <size_t> held.size)
        self.leave()
        return found

    def is_superseded(self, int64_t ordinal) -> bool:
        """Return whether a scanned record is superseded."""
        return self.count_superseded(ordinal, 1) == 1

    def is_tombstone(self, int64_t ordinal) -> bool:
        """Return whether a scanned record has no value; unknown for control records and aborted ones."""
        _check_ordinals(self, ordinal, 1)
        return ks_bits_has(&self.state.tombstones, ordinal)

    def count_superseded(self, int64_t first, int64_t count) -> int:
        """Return the number of superseded records among the `count` records from the ordinal `first` on."""
        _check_ordinals(self, first, count)
        return ks_bits_count(&self.state.superseded, NULL, first, count)

    def count_tombstones(self, int64_t first, int64_t count) -> int:
        """Return how many of the `count` records from the ordinal `first` on have no value and are not superseded."""
        _check_ordinals(self, first, count)
        return ks_bits_count(&self.state.tombstones, &self.state.superseded, first, count)

    cdef int enter(self) except -1:
        if self._busy:
            raise ValueError("the first pass is being used already")
        self._busy = True
        return 0

    cdef int _begin(self) except -1:
        """Start to take batches. Until they are taken, the pass counts as failed."""
        self.enter()
        if self._failed:
            self.leave()
            raise ValueError("the first pass has ended with an error: begin another")
        self._failed = True
        return 0

    cdef void leave(self) noexcept:
        self._busy = False


cdef int _check_ordinals(NewestRecords newest, int64_t first, int64_t count) except -1:
    if newest._busy:
        raise ValueError("the first pass is being used already")
    if first < 0 or count < 0 or count > newest.state.records or first > newest.state.records - count:
        raise ValueError(f"{count} ordinals from {first} on: there are {newest.state.records}")
    return 0


cdef ks_step _read_on(NewestRecords newest, Reading *r, CleanedTransactions transactions) noexcept nogil:
    """Take the rest of the piece, note it, and read the next ones, until the end or until Python is needed."""
    cdef ks_newest *s = &newest.state
    cdef ks_step step
    cdef int64_t taken
    cdef Py_ssize_t got
    while True:
        step = _walk(newest, &r.w, transactions)
        if step != KS_CLEANED:
            return step
        taken = r.w.p - r.buffer
        if taken:
            r.position += taken
            if _note(newest, r):
                return KS_CLEAN_OUT_OF_MEMORY
        if s.full or r.position >= r.end or (r.w.end > r.buffer and taken == 0):
            return KS_CLEANED
        r.records_before = s.records
        r.batches_before = newest.batches
        r.special_before = newest.special_batches
        got = read_at(r.fd, r.buffer, <size_t> min(<int64_t> r.room, r.end - r.position), r.position)
        if got <= 0:
            r.error = errno if got < 0 else 0
            return KS_CLEANED
        r.w.p = r.buffer
        r.w.end = r.buffer + got


cdef int _note(NewestRecords newest, Reading *r) noexcept nogil:
    """Add a piece with the batches taken up to `position`. Return -1 if out of memory."""
    cdef Piece *grown
    if r.count == r.capacity:
        grown = <Piece *> PyMem_RawRealloc(r.pieces, (2 * r.capacity + 8) * sizeof(Piece))
        if grown == NULL:
            return -1
        r.pieces = grown
        r.capacity = 2 * r.capacity + 8
    r.pieces[r.count] = Piece(r.position, newest.state.records - r.records_before, newest.batches - r.batches_before,
                              newest._next_base - 1, newest.special_batches == r.special_before)
    r.count += 1
    r.w.p = r.w.end = r.buffer
    return 0


cdef int _walk_all(NewestRecords newest, Walk *w, const uint8_t *begin, CleanedTransactions transactions, object path,
                   int64_t position) except -1:
    """Take batches until the whole ones are used up; `begin` is at `position` of the file."""
    cdef ks_step step
    with nogil:
        step = _walk(newest, w, transactions)
    while step != KS_CLEANED:
        _walk_on(newest, w, step, begin, transactions, path, position)
        with nogil:
            step = _walk(newest, w, transactions)
    return 0


cdef int _walk_on(NewestRecords newest, Walk *w, ks_step step, const uint8_t *begin, CleanedTransactions transactions,
                  object path, int64_t position) except -1:
    """Take the batch at which the walk has stopped with `step`, or raise the error for it."""
    cdef int64_t at = position + (w.p - begin)
    if step == KS_CLEAN_LEGACY:
        step = _take_legacy(newest, w, transactions, path, at)
    elif step == KS_CLEAN_PACKED:
        step = _take_packed(newest, w, path, at)
    elif step == KS_CLEAN_PACKED_CONTROL:
        step = _take_marker(newest, w, transactions, compressed_control_type(
            w.p, <Py_ssize_t> _size_of(w.p), w.limit, path, at))
    if step != KS_CLEANED:
        _fail(step, w, newest._next_base, path, at)
    return 0


cdef ks_step _walk(NewestRecords newest, Walk *w, CleanedTransactions transactions) noexcept nogil:
    """Take batches until the whole ones are used up or Python is needed; `w.p` is then at the batch in question."""
    cdef ks_step step = _walk_batches(newest, w, transactions)
    return KS_CLEAN_OUT_OF_MEMORY if ks_newest_settle(&newest.state) else step


cdef ks_step _walk_batches(NewestRecords newest, Walk *w, CleanedTransactions transactions) noexcept nogil:
    """Do the work of `_walk`, except that keys may still wait to be put into the map."""
    cdef ks_newest *s = &newest.state
    cdef const uint8_t *p
    cdef int64_t left, size, base
    cdef int32_t count, last_delta
    cdef int16_t attributes
    cdef int answer
    cdef ks_step step
    while not s.full:
        p = w.p
        left = w.end - p
        if left < LOG_OVERHEAD:
            return KS_CLEANED
        size = <int64_t> load32(p + BATCH_LENGTH_AT) + LOG_OVERHEAD
        if size < LOG_OVERHEAD + MIN_V0_MESSAGE:
            return KS_CLEAN_BAD_SIZE
        if left < HEADER_UP_TO_MAGIC or size > left:
            return KS_CLEANED
        if p[MAGIC_AT] > 2:
            return KS_CLEAN_BAD_MAGIC
        if p[MAGIC_AT] < 2:
            return KS_CLEAN_LEGACY
        if size < RECORDS_AT:
            return KS_CLEAN_BAD_SIZE
        if <uint32_t> load32(p + CRC_AT) != ks_crc32c(0, p + ATTRIBUTES_AT, <size_t> (size - ATTRIBUTES_AT)):
            return KS_CLEAN_BAD_CRC
        base = load64(p)
        last_delta = load32(p + LAST_OFFSET_DELTA_AT)
        count = load32(p + RECORDS_COUNT_AT)
        if base < 0 or last_delta < 0 or base >= INT64_MAX - last_delta:
            return KS_CLEAN_BAD_OFFSETS
        if base < newest._next_base:
            return KS_CLEAN_BAD_ORDER
        if count < 0 or count > <int64_t> last_delta + 1:
            return KS_CLEAN_BAD_COUNT
        if ks_newest_ends_at(s, count):
            return KS_CLEANED
        attributes = load16(p + ATTRIBUTES_AT)
        if attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
            newest.special_batches += 1
        if attributes & CONTROL_BIT:
            answer = ks_control_type(p, size)
            if answer == KS_CONTROL_COMPRESSED:
                return KS_CLEAN_PACKED_CONTROL
            step = _take_marker(newest, w, transactions, answer)
        else:
            answer = transactions.on_data(p)
            if answer < 0:
                return KS_CLEAN_OUT_OF_MEMORY
            if answer and count and ks_newest_note_aborted(s):
                return KS_CLEAN_OUT_OF_MEMORY
            if answer or count == 0:
                ks_newest_pass(s, p)
                _move_on(newest, w)
                continue
            if attributes & CODEC_MASK:
                step = _unpack(newest, w, size, attributes & CODEC_MASK)
            else:
                step = _take(newest, w, p + RECORDS_AT, p + size, True)
        if step != KS_CLEANED:
            return step
    return KS_CLEANED


cdef void _move_on(NewestRecords newest, Walk *w) noexcept nogil:
    newest._next_base = batch_last_offset(w.p) + 1
    newest.batches += 1
    w.p += _size_of(w.p)


cdef ks_step _take(NewestRecords newest, Walk *w, const uint8_t *p, const uint8_t *end, bint stays) noexcept nogil:
    """Take the records [p, end) of the batch; `stays` says that these bytes stay in place while the walk continues."""
    cdef int taken = ks_newest_take(&newest.state, w.p, p, end, stays, &w.fault)
    if taken == KS_TAKEN:
        _move_on(newest, w)
        return KS_CLEANED
    if taken == KS_DAMAGED:
        return KS_CLEAN_BAD_RECORD
    if taken == KS_OUT_OF_BATCH:
        return KS_CLEAN_BAD_PLACE
    return KS_CLEAN_BAD_RECORD_ORDER if taken == KS_UNORDERED else KS_CLEAN_OUT_OF_MEMORY


cdef ks_step _take_marker(NewestRecords newest, Walk *w, CleanedTransactions transactions,
                          int control_type) noexcept nogil:
    if control_type == KS_CONTROL_BAD:
        return KS_CLEAN_BAD_MARKER
    if transactions.on_control(w.p, control_type) < 0:
        return KS_CLEAN_OUT_OF_MEMORY
    ks_newest_pass(&newest.state, w.p)
    _move_on(newest, w)
    return KS_CLEANED


cdef ks_step _unpack(NewestRecords newest, Walk *w, int64_t size, int codec) noexcept nogil:
    """Decompress the batch and take its records; KS_CLEAN_PACKED if a Python package has to do it."""
    cdef ks_output out
    cdef int64_t made
    out.p = newest._room
    out.capacity = newest._room_bytes
    out.room = _more_room
    out.context = NULL
    made = ks_unpack(codec, w.p + RECORDS_AT, <size_t> (size - RECORDS_AT), &out, w.limit)
    newest._room = out.p
    newest._room_bytes = out.capacity
    if made < 0:
        return KS_CLEAN_PACKED
    return _take(newest, w, out.p, out.p + made, False)


cdef ks_step _take_packed(NewestRecords newest, Walk *w, object path, int64_t position) except *:
    cdef bytes section = record_section_slowly(w.p, <Py_ssize_t> _size_of(w.p), w.limit, path, position)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(section)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(section)
    cdef ks_step step
    with nogil:
        step = _take(newest, w, p, end, False)
    return step


cdef ks_step _take_legacy(NewestRecords newest, Walk *w, CleanedTransactions transactions, object path,
                          int64_t position) except *:
    """Take a message of format 0 or 1, or a wrapper with its messages."""
    cdef ks_newest *s = &newest.state
    cdef int64_t offset, last, first = s.records
    cdef bytes key
    cdef list records
    batch, = decode_batches(<bytes> w.p[:_size_of(w.p)], path=path, position=position,
                            max_decompressed_bytes=w.limit)
    records = list(batch)
    last = batch.last_offset
    if ks_newest_ends_at(s, len(records)):
        return KS_CLEANED
    previous = newest._next_base - 1
    for record in records:
        if not previous < record.offset <= last:
            return KS_CLEAN_BAD_ORDER
        previous = record.offset
    if transactions.on_data(w.p) < 0:
        return KS_CLEAN_OUT_OF_MEMORY
    for record in records:
        key = record.key
        if ks_newest_take_one(
            s, record.offset, <const uint8_t *> PyBytes_AS_STRING(b"" if key is None else key),
            -1 if key is None else PyBytes_GET_SIZE(key), record.value is None,
        ):
            return KS_CLEAN_OUT_OF_MEMORY
    if s.full:
        for i, record in enumerate(records):
            offset = record.offset
            if record.key is None and offset > s.latest and ks_bits_has(&s.superseded, first + <int64_t> i):
                ks_bits_clear(&s.superseded, first + <int64_t> i)
                s.keyless -= 1
    elif last >= s.first_dirty:
        s.latest = last
    newest.special_batches += 1
    _move_on(newest, w)
    return KS_CLEANED


cdef int _more_room(ks_output *out, size_t used, size_t capacity) noexcept nogil:
    cdef uint8_t *p
    capacity += capacity // 2
    p = <uint8_t *> PyMem_RawRealloc(out.p, capacity)
    if p == NULL:
        return -1
    out.p = p
    out.capacity = capacity
    return 0


cdef inline int64_t _size_of(const uint8_t *p) noexcept nogil:
    return <int64_t> load32(p + BATCH_LENGTH_AT) + LOG_OVERHEAD


cdef int _fail(ks_step step, const Walk *w, int64_t next_base, object path, int64_t position) except -1:
    if step == KS_CLEAN_OUT_OF_MEMORY:
        raise MemoryError
    raise bad_batch(step, w.p, next_base, w.fault, path, position)


cdef int _check_capacity(int64_t capacity) except -1:
    if capacity < 1:
        raise ValueError(f"capacity of {capacity} keys: 1 is the least")
    return 0


cdef int32_t _key_size(Buffer held) except -1:
    if held.size > INT32_MAX:
        raise ValueError(f"a key of {held.size} bytes: {INT32_MAX} at most")
    return <int32_t> held.size


@cython.final
cdef class OffsetMap:
    """The map alone, for tests and measurements: keys, each with an ordinal. Not thread-safe."""

    cdef ks_keymap _map
    cdef readonly int64_t capacity
    """The number of keys at which it is full."""
    cdef bint _busy

    def __init__(self, int64_t capacity, *, int _hash_bits=MOST_HASH_BITS):
        cdef bytes secret = os.urandom(SECRET_BYTES)
        _check_capacity(capacity)
        if self.capacity:
            raise ValueError("a map begins once")
        self.capacity = capacity
        ks_keymap_start(&self._map, <const uint8_t *> PyBytes_AS_STRING(secret), _hash_bits)

    def __dealloc__(self):
        ks_keymap_clear(&self._map)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of the entries and of the space between them."""
        return ks_keymap_memory(&self._map)

    def __len__(self):
        return self._map.size

    cdef int _check_idle(self) except -1:
        if self._busy:
            raise ValueError("put_many is being used already")
        return 0

    def put(self, key not None: ReadableBuffer, uint32_t ordinal) -> int | None:
        """Set a key's ordinal. Return the old one, or None. Raises `ValueError` if full, even for a known key."""
        cdef Buffer held = Buffer(key)
        cdef int64_t previous
        self._check_idle()
        if self._map.size >= self.capacity:
            raise ValueError(f"the map is full: it has {self.capacity} keys")
        previous = ks_keymap_put(&self._map, ks_keymap_hash(&self._map, held.p, _key_size(held)), ordinal)
        if previous == KS_MAP_NO_MEMORY:
            raise MemoryError
        return None if previous == KS_NEW_KEY else previous

    def put_many(self, keys not None: ReadableBuffer, Py_ssize_t key_bytes, uint32_t first_ordinal) -> int:
        """Put the keys in `keys`, of `key_bytes` bytes each, with rising ordinals. Return how many were put.

        Stops when the map is full. The GIL is released.
        """
        cdef Buffer held = Buffer(keys)
        cdef Py_ssize_t done = 0, n, i, count
        cdef const uint8_t *places[KS_AT_ONCE]
        cdef int32_t[KS_AT_ONCE] sizes
        cdef uint32_t[KS_AT_ONCE] ordinals
        cdef int64_t[KS_AT_ONCE] previous
        cdef ks_key[KS_AT_ONCE] group
        cdef int put = 0
        if not 1 <= key_bytes <= INT32_MAX or held.size % key_bytes:
            raise ValueError(f"{held.size} bytes are not keys of {key_bytes} bytes each")
        count = held.size // key_bytes
        if count > KS_MOST_ORDINALS - first_ordinal:
            raise ValueError(f"{count} ordinals from {first_ordinal} on: {KS_MOST_ORDINALS} is the last")
        self._check_idle()
        self._busy = True
        with nogil:
            while done < count and put >= 0 and self._map.size < self.capacity:
                n = min(count - done, <Py_ssize_t> KS_AT_ONCE)
                for i in range(n):
                    places[i] = held.p + (done + i) * key_bytes
                    sizes[i] = <int32_t> key_bytes
                    ordinals[i] = <uint32_t> (first_ordinal + done + i)
                ks_keymap_hash_all(&self._map, places, sizes, <int> n, group)
                put = ks_keymap_put_all(&self._map, group, ordinals, <int> n, self.capacity, previous)
                done += max(put, 0)
        self._busy = False
        if put < 0:
            raise MemoryError
        return done

    def get(self, key not None: ReadableBuffer) -> int | None:
        """Return the ordinal of a key, or None."""
        cdef Buffer held = Buffer(key)
        cdef int64_t ordinal
        self._check_idle()
        ordinal = ks_keymap_get(&self._map, ks_keymap_hash(&self._map, held.p, _key_size(held)))
        return None if ordinal == KS_NEW_KEY else ordinal

    def clear(self) -> None:
        """Forget all keys, and free their memory."""
        self._check_idle()
        ks_keymap_clear(&self._map)


def _siphash(bytes data not None, bytes secret not None, int rounds, int last_rounds) -> bytes:
    """Return the hash alone, 16 bytes, for tests."""
    cdef uint64_t[2] key
    cdef uint64_t[2] out
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes: it has {SECRET_BYTES}")
    key[0] = ks_load_le64(<const uint8_t *> PyBytes_AS_STRING(secret))
    key[1] = ks_load_le64(<const uint8_t *> PyBytes_AS_STRING(secret) + 8)
    ks_siphash(<const uint8_t *> PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data), key, rounds, last_rounds, out)
    return (<object> out[0]).to_bytes(8, "little") + (<object> out[1]).to_bytes(8, "little")


def _hash_keys(list keys not None: list[bytes], bytes secret not None, *, bint by_aes) -> list[bytes] | None:
    """Return the hashes of keys that are put together, 12 bytes each, for tests; None if AES is wanted and missing."""
    cdef ks_secret s
    cdef const uint8_t *places[KS_AT_ONCE]
    cdef int32_t[KS_AT_ONCE] sizes
    cdef ks_key[KS_AT_ONCE] hashes
    cdef Py_ssize_t i, n = len(keys)
    if len(secret) != SECRET_BYTES or n > KS_AT_ONCE:
        raise ValueError(f"{n} keys and a secret of {len(secret)} bytes")
    for i in range(n):
        places[i] = <const uint8_t *> PyBytes_AS_STRING(<bytes?> keys[i])
        sizes[i] = <int32_t> PyBytes_GET_SIZE(keys[i])
    ks_secret_start(&s, <const uint8_t *> PyBytes_AS_STRING(secret), by_aes)
    if s.by_aes != by_aes:
        return None
    ks_hash_keys(&s, places, sizes, <int> n, hashes)
    return [(<object> hashes[i].hash).to_bytes(8, "little") + (<object> hashes[i].more).to_bytes(4, "little")
            for i in range(n)]
