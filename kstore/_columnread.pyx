# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Reading columns: from the batches of files, or of a buffer, to `Columns`.

The work is done in columns.h and columnread.h, without the GIL; here it is fed, and what it leaves alone is dealt with.
Hardest rule: bytes that are not a sound v2 batch are read by `_core`'s record reader, so that columns and records never
judge differently.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strerror
from posix.dlfcn cimport RTLD_LAZY, dlopen, dlsym

from kstore._columns cimport (
    KS_BINARY, KS_VIEW, BinaryColumn, Columns, HeadersColumn, Memory, ks_block, ks_block_drop, ks_block_new,
    ks_pool_adopt, ks_view, new_memory, pool, share,
)
from kstore._core cimport Buffer, Record, record_section
from kstore._producers cimport AbortedFilter

import os

import numpy as np
import zstandard

from kstore import _columns, compression
from kstore._core import RecordIterator, decode_batches
from kstore.errors import StorageError

ks_pool_adopt(pool())
ks_crew_setup()
ks_choose_decoders(True)


cdef bint _find_zstd() except -1:
    """Take zstd's functions from where they are shown, so that threads need no GIL for them: from the part of the
    package zstandard that it has for other Pythons, or from the system's library."""
    cdef void *library
    cdef bytes path
    folder = os.path.dirname(zstandard.__file__)
    for found in [*(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("_cffi.")), "libzstd.so.1"]:
        path = os.fsencode(found)
        library = dlopen(PyBytes_AS_STRING(path), RTLD_LAZY)     # never closed
        if library != NULL and ks_zstd_setup(
            dlsym(library, b"ZSTD_createDCtx"), dlsym(library, b"ZSTD_freeDCtx"),
            dlsym(library, b"ZSTD_decompressDCtx"), dlsym(library, b"ZSTD_isError"),
        ):
            return True
    return False


HAS_ZSTD = _find_zstd()

cdef int64_t NO_LIMIT = 0x7fffffffffffffff
MAX_HEADER_BYTES = 0x7fffffff // 3     # a name's bytes may each become three

DEFAULT_THREADS = min(4, os.cpu_count() or 1)
MOST_THREADS = 16
MOST_BORDERS = KS_MOST_BORDERS

cdef tuple FIXED = _columns.FIXED
cdef dict FIXED_NUMBERS = {name: number for number, (name, _, _) in enumerate(FIXED)}
cdef dict LAYOUTS = _columns.LAYOUTS


cdef Memory _vec_memory(const ks_vec *v, Py_ssize_t size):
    if v.p == NULL:
        if size == 0:
            return new_memory(0)
        raise MemoryError(f"{size} bytes for a column")
    return share(v.block, v.p, size)


cdef BinaryColumn _binary_column(const ks_var *v, Py_ssize_t n, list buffers):
    cdef BinaryColumn column = BinaryColumn.__new__(BinaryColumn)
    column.layout_number = v.layout
    column.n = n
    column.null_count = v.nulls
    if v.layout == KS_VIEW:
        column.places = _vec_memory(&v.places, n * <Py_ssize_t> sizeof(ks_view))
        column.buffers = buffers
    else:
        column.places = _vec_memory(&v.places, (n + 1) * (4 if v.layout == KS_BINARY else 8))
        column.bytes_ = _vec_memory(&v.data, v.used)
    if v.nulls:
        column.valid = _vec_memory(&v.valid, (n + 7) // 8)
    return column


cdef int64_t _unpack(void *context, ks_reader *r, const uint8_t *p, int64_t size) noexcept nogil:
    """The `unpack` of a reader, called by whatever thread: how many bytes were made of the batch at `p`, or -1."""
    return _unpack_with_gil(context, r, p, size)


cdef int64_t _unpack_with_gil(void *context, ks_reader *r, const uint8_t *p, int64_t size) noexcept with gil:
    cdef Reader reader = <Reader> context
    cdef bytes plain
    cdef uint8_t *to
    try:
        plain = record_section(p, size, reader._max_decompressed, None, 0)
    except BaseException:
        return -1          # the reader will see it, too
    to = ks_plain_room(r, 0, <size_t> len(plain))
    if to == NULL:
        return -1
    memcpy(to, PyBytes_AS_STRING(plain), <size_t> len(plain))
    return len(plain)


@cython.final
cdef class Reader:
    """Builds columns of the batches that it is pointed at, one `Columns` after the other.

    `columns` are names of COLUMN_NAMES, `layout` one of LAYOUTS. `seek` says which offsets are wanted, `begin` opens the
    next `Columns`, `read` goes over the batches of a stretch of a file with so many `threads`, `finish` hands over. Not
    thread-safe.
    """

    cdef ks_reader _r
    cdef ks_rows _out
    cdef ks_mark _mark
    cdef int64_t _marked_offset
    cdef int _layout
    cdef tuple _names
    cdef int64_t _max_decompressed
    cdef readonly int threads
    cdef object _slow                  # a RecordIterator over the batches in _slow_data
    cdef bytes _slow_data
    cdef int64_t _slow_position
    cdef Record _slow_record           # taken from it, and not yet used
    cdef Buffer _memory                # what is read instead of a file
    cdef int64_t _memory_at            # the position of its first byte, as errors say it
    cdef ks_ahead *_ahead              # chunks that were read together with the one before; NULL where none are
    cdef AbortedFilter _aborted        # what _r.aborted points into
    cdef readonly object path

    def __init__(self, columns, layout, *, bint check_crc=True, max_decompressed_bytes=None, int threads=1,
                 bint in_chunks=False):
        self._names = tuple(columns)
        self._layout = LAYOUTS[layout]
        self._max_decompressed = min(
            compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes, 0x7fffffff)
        self._r.check_crc = check_crc
        self._r.most_plain = self._max_decompressed
        self._r.out = &self._out
        self._r.last_position = self._r.last_base = -1
        self._r.fd = -1
        self._r.keeps_plain = self._layout == KS_VIEW
        self._r.unpack = _unpack
        self._r.unpack_context = <void *> self
        self.threads = threads
        self._r.whole_batches = in_chunks
        if in_chunks and threads > 1:
            self._ahead = <ks_ahead *> calloc(1, sizeof(ks_ahead))
            if self._ahead == NULL:
                raise MemoryError("chunks of columns")
        for name in self._names:
            if name in FIXED_NUMBERS:
                self._out.wanted |= <uint32_t> 1 << <int> FIXED_NUMBERS[name]
            elif name == "key":
                self._out.key.layout = self._layout
            elif name == "value":
                self._out.value.layout = self._layout
            else:
                self._out.headers = True
        if self._out.wanted >> KS_SEQUENCE & 1:
            self._out.wanted |= <uint32_t> 1 << KS_OFFSET
        ks_rows_like(&self._out, &self._out, False)
        ks_rows_like(&self._r.staged, &self._out, True)

    def __dealloc__(self):
        ks_rows_clear(&self._out, False)
        ks_rows_clear(&self._r.staged, False)
        ks_block_drop(self._r.plain_block)
        ks_window_close(&self._r)
        if self._ahead != NULL:
            ks_ahead_drop(self._ahead)
            free(self._ahead)

    @property
    def rows(self):
        """Rows built since `begin`."""
        return self._out.n

    @property
    def next_offset(self):
        """Where to go on: one past the last record that was built or passed over."""
        return self._r.next_offset

    @property
    def position(self):
        """Where the next batch begins in the file."""
        return self._r.position

    @property
    def is_amid(self):
        """Whether rows of a batch that was begun are left, wherever `position` is."""
        return self._slow is not None or self._r.staged_from < self._r.staged_to

    @property
    def is_estimating(self):
        """Whether `bytes_ahead` is still of use, to make room for the rows to come."""
        return not self._r.expected

    def sample(self, int64_t pause, int64_t end):
        """Find out from the next batch, of which no row is built here, how far apart chunks should begin, if they are
        wanted and nothing is known yet; `pause` and `end` are as with `read`. What is wrong with it, `read` says."""
        cdef ks_reader *r = &self._r
        if self._ahead == NULL or r.seen_rows or self._out.n or self.is_amid:
            return
        r.end = end
        r.pause = pause
        with nogil:
            ks_sample(r)

    @property
    def bytes_apart(self):
        """How far apart in the file several chunks should begin, for `divide`; 0 while that is not wanted."""
        if self._ahead == NULL or self._out.n or self._slow is not None or not ks_wants_borders(&self._r, self._ahead):
            return 0
        # A tenth less than what fits, by what the rows so far took of the file.
        return max(1, <int64_t> (0.9 * self._r.most_bytes * self._r.seen_bytes / max(self._r.seen_plain, 1)))

    def divide(self, borders):
        """Let further chunks be read at the same time: positions, rising, from one on where batches may begin."""
        cdef int n = 0
        if self._ahead == NULL:
            return
        for border in borders[:KS_MOST_BORDERS]:
            self._ahead.borders[n] = border
            n += 1
        self._ahead.borders_n = n

    @property
    def last_batch(self):
        """(position, first 21 bytes, base offset, CRC) of the batch read last since `seek`; position -1 for none."""
        return (self._r.last_position, PyBytes_FromStringAndSize(<const char *> self._r.last_header, 21),
                self._r.last_base, self._r.last_crc)

    def seek(self, int64_t start_offset, int64_t end_offset):
        """Want `[start_offset, end_offset)`; nothing that was read ahead is used."""
        self._r.start_offset = self._r.next_offset = start_offset
        self._r.last_wanted = end_offset if end_offset == NO_LIMIT else end_offset - 1
        self._forget()

    cdef int _forget(self) except -1:
        self._r.staged_from = self._r.staged_to = 0
        self._r.plain = NULL
        self._slow = self._slow_record = self._slow_data = None
        self._r.last_position = -1
        if self._ahead != NULL:
            ks_ahead_forget(self._ahead)
        ks_window_close(&self._r)
        self._r.ahead = KS_FIRST_LOOK
        return 0

    def begin(self, int64_t most_rows, int64_t most_bytes):
        """Open the next `Columns`, of so many rows and bytes of records at the most, but one row whatever its size."""
        ks_rows_clear(&self._out, False)
        self._r.expected = False
        self._r.most_rows = most_rows
        self._r.most_bytes = most_bytes

    def open(self, int fd, int64_t position, object path, int64_t base_offset=0):
        """Go to a batch of a file; whose segment's base offset does not matter here."""
        self._r.fd = fd
        self._r.position = position
        self._r.last_position = -1
        self.path = path
        if self._ahead != NULL:
            ks_ahead_forget(self._ahead)
        ks_window_close(&self._r)

    def leave_out(self, AbortedFilter aborted):
        """Pass over the batches of these transactions from now on; None for no such batches."""
        self._aborted = aborted
        self._r.aborted = NULL if aborted is None else aborted._spans
        self._r.aborted_n = 0 if aborted is None else aborted._count

    cdef int _open_memory(self, data, object path, int64_t position) except -1:
        """Go to the begin of a buffer, which is at `position` of who knows what."""
        cdef ks_block *block
        self._memory = Buffer(data)
        self._memory_at = position
        self._r.memory = self._memory.p
        if self._layout == KS_VIEW:        # what views point into must live as long as they
            block = ks_block_new(<size_t> self._memory.size)
            if block == NULL:
                raise MemoryError(f"{self._memory.size} bytes of batches")
            self._r.memory = <const uint8_t *> memcpy(block.data, self._memory.p, <size_t> self._memory.size)
            ks_window_close(&self._r)
            self._r.window = block
        self._r.position = 0
        self.path = path
        return 0

    def mark(self):
        """Remember where we are, for `back`."""
        self._mark = ks_rows_mark(&self._out)
        self._marked_offset = self._r.next_offset

    def back(self):
        """Forget the rows since `mark`; a `seek` to `next_offset` must follow."""
        ks_rows_back(&self._out, &self._mark)
        self._r.next_offset = self._marked_offset

    def read(self, int64_t pause, int64_t end, int64_t bytes_ahead):
        """Read batches up to one that begins at or behind `pause`, within `[position, end)` of the file.

        Answers "end" there, "full" when the columns are, "past" when the next record is behind the last one wanted,
        "alone" before a batch that `read_slowly` must look at. `bytes_ahead`: how much may follow, `end` or not.
        """
        cdef int stop
        cdef ks_reader *r = &self._r
        if self._slow is not None:
            return "alone"
        r.end = end
        r.pause = pause
        r.bytes_ahead = bytes_ahead
        if self._ahead != NULL and self._out.n == 0 and not self.is_amid:
            with nogil:
                stop = ks_take_chunk(r, self._ahead) or ks_read_chunks(r, self._ahead, self.threads)
            if stop:
                return "full"
        while True:
            with nogil:
                stop = ks_read_together(r, self.threads)
            if stop == KS_AT_END:
                return "end"
            if stop == KS_FULL:
                return "full"
            if stop == KS_PAST:
                return "past"
            if stop == KS_LEFT_ALONE:
                return "alone"
            if stop == KS_FAILED_READ:
                raise StorageError(r.error, (<bytes> strerror(r.error)).decode(errors="replace"), self.path)
            if stop == KS_OUT_OF_MEMORY:
                raise MemoryError(f"columns of {self._out.n} rows and {self._out.bytes} bytes cannot grow")
            self._complain()

    cdef int _complain(self) except -1:
        """Raise what keeps the batch at `position` from decompressing; its CRC holds."""
        cdef ks_reader *r = &self._r
        cdef const uint8_t *p = ks_look(r, r.position, KS_AT_RECORDS)
        cdef Py_ssize_t size = 12 + <Py_ssize_t> ks_size(p)
        p = ks_look(r, r.position, <size_t> size)
        record_section(p, size, self._max_decompressed, self.path, self._memory_at + r.position)
        raise MemoryError(f"the records of a batch of {size} bytes")

    def read_slowly(self, data=None):
        """Build rows from whole batches that begin at `position`, through the record reader; answers as `read` does.

        `data` is a buffer of them, needed unless a call before ended with "full". Of formats 0 and 1 as many are read as
        there are, of v2 one. Raises what the record reader raises.
        """
        if self._slow is None:
            self._open_slowly(bytes(data))
        cdef ks_batch b
        self._describe_slowly(&b)
        cdef int64_t size
        while True:
            if self._slow_record is None:
                self._slow_record = next(self._slow, None)
                if self._slow_record is None:
                    break
            if self._slow_record.offset > self._r.last_wanted:
                return "past"
            size = self._size_of(self._slow_record)
            if self._out.n >= self._r.most_rows or (self._out.n and self._out.bytes + size > self._r.most_bytes):
                return "full"
            self._append(&b, self._slow_record, size)
            self._r.next_offset = max(self._r.next_offset, <int64_t> self._slow.next_offset)
            self._slow_record = None
        self._close_slowly()
        return "end"

    cdef int _open_slowly(self, bytes data) except -1:
        """Take the first batch of `data`, or the messages of formats 0 and 1 that it begins with."""
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), at = 0
        while at + KS_AT_MAGIC < n:
            at += 12 + <Py_ssize_t> ks_size(p + at)
            if p[KS_AT_MAGIC] == 2 or self._out.wanted >> 2 or (at + KS_AT_MAGIC < n and p[at + KS_AT_MAGIC] == 2):
                break
        self._slow_data = data[:at]
        self._slow = RecordIterator(
            ((self._slow_data, self.path, self._memory_at + self._r.position),), self._r.start_offset, check_crc=self._r.check_crc,
            max_decompressed_bytes=self._max_decompressed,
        )
        return 0

    cdef int _describe_slowly(self, ks_batch *b) except -1:
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(self._slow_data)
        memset(b, 0, sizeof(ks_batch))
        if not self._out.wanted >> 2:
            return 0
        if p[KS_AT_MAGIC] == 2 and len(self._slow_data) >= KS_AT_RECORDS:
            ks_describe(p, b)
            return 0
        b.leader_epoch = b.base_sequence = -1
        b.producer_id = b.producer_epoch = -1
        b.timestamp_type = -1 if p[KS_AT_MAGIC] == 0 else p[KS_AT_MAGIC + 1] >> 3 & 1
        b.compression = p[KS_AT_MAGIC + 1] & 7
        [batch] = decode_batches(self._slow_data, False, max_decompressed_bytes=self._max_decompressed)
        b.base_offset = batch.base_offset
        return 0

    cdef int _close_slowly(self) except -1:
        """All of it has been used: note the last batch, go on behind it."""
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(self._slow_data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(self._slow_data), at = 0, size
        self._r.next_offset = max(self._r.next_offset, <int64_t> self._slow.next_offset)
        while at < n:
            size = 12 + <Py_ssize_t> ks_size(p + at)
            ks_used_up(&self._r, p + at, size)
            at += size
        self._slow = self._slow_data = None
        return 0

    cdef int64_t _size_of(self, Record record) except -1:
        """About the bytes that a record takes in a v2 batch."""
        cdef int64_t size = 20
        size += 0 if record.key is None else len(record.key)
        size += 0 if record.value is None else len(record.value)
        for name, data in record.headers:
            size += len(name) + (0 if data is None else len(data)) + 10
        return size

    cdef int _append(self, const ks_batch *b, Record record, int64_t encoded) except -1:
        cdef const uint8_t *key = NULL
        cdef const uint8_t *value = NULL
        cdef int32_t key_size = -1, value_size = -1
        cdef ks_block *block = NULL
        cdef int failed = 0
        cdef bytes name
        if record.key is not None:
            key = <const uint8_t *> PyBytes_AS_STRING(record.key)
            key_size = <int32_t> PyBytes_GET_SIZE(record.key)
        if record.value is not None:
            value = <const uint8_t *> PyBytes_AS_STRING(record.value)
            value_size = <int32_t> PyBytes_GET_SIZE(record.value)
        if self._layout == KS_VIEW and (key_size > 12 or value_size > 12):
            block = ks_block_new(<size_t> (max(key_size, 0) + max(value_size, 0)))
            failed = block == NULL
            if not failed and key_size > 0:
                key = <const uint8_t *> memcpy(block.data, key, <size_t> key_size)
            if not failed and value_size > 0:
                value = <const uint8_t *> memcpy(block.data + max(key_size, 0), value, <size_t> value_size)
        if self._out.headers and not failed:
            for header, data in record.headers:
                name = header.encode(errors="surrogateescape")
                failed |= ks_append_header(
                    &self._out, <const uint8_t *> PyBytes_AS_STRING(name), <int32_t> len(name),
                    NULL if data is None else <uint8_t *> PyBytes_AS_STRING(data),
                    -1 if data is None else <int32_t> len(data))
        if not failed:
            failed = ks_append_row(&self._out, b, record.offset, record.timestamp, key, key_size, value, value_size,
                                   block, encoded)
        ks_block_drop(block)
        if failed:
            raise MemoryError(f"columns of {self._out.n} rows and {self._out.bytes} bytes cannot grow")
        return 0

    def finish(self, next_offset=None):
        """Hand over the rows since `begin` as `Columns`; they go on at `next_offset`, if that is to be another."""
        cdef Columns columns = Columns.__new__(Columns)
        cdef ks_rows *out = &self._out
        cdef int number
        cdef Memory memory
        cdef HeadersColumn headers
        if out.n:
            self._r.given = ks_rows_mark(out)
        ks_rows_finish(out)
        columns.n = out.n
        columns.names = self._names
        columns.fields = _columns.fields_of(self._names, next(name for name in LAYOUTS if LAYOUTS[name] == self._layout))
        columns.next_offset = self._r.next_offset if next_offset is None else next_offset
        columns.columns, columns.memories = {}, {}
        buffers = [share(out.buffers[i], out.buffers[i].data, out.extents[i]) for i in range(out.buffers_n)]
        for name in self._names:
            if name == "key":
                column = _binary_column(&out.key, out.n, buffers)
            elif name == "value":
                column = _binary_column(&out.value, out.n, buffers)
            elif name == "headers":
                headers = HeadersColumn.__new__(HeadersColumn)
                headers.n = out.n
                headers.places = _vec_memory(&out.header_places, 4 * (out.n + 1))
                headers.keys = _binary_column(&out.header_key, out.headers_n, None)
                headers.values = _binary_column(&out.header_value, out.headers_n, None)
                column = headers
            else:
                number = FIXED_NUMBERS[name]
                dtype = np.dtype(FIXED[number][2])
                memory = _vec_memory(&out.fixed[number], out.n * <Py_ssize_t> dtype.itemsize)
                columns.memories[name] = memory
                column = np.frombuffer(memory, dtype)
            columns.columns[name] = column
        ks_rows_clear(out, False)
        return columns


cdef int _grow(ks_output *out, size_t used, size_t capacity) noexcept nogil:
    cdef ks_block *block = ks_block_new(capacity + (capacity >> 1))
    if block == NULL:
        return -1
    if used:
        memcpy(block.data, out.p, used)
    ks_block_drop(<ks_block *> out.context)
    out.context = block
    out.p = block.data
    out.capacity = block.capacity
    return 0


def unpack(int codec, bytes data, int64_t limit):
    """What our own decompressors make of a payload; None where they leave it to the libraries."""
    cdef ks_output out
    memset(&out, 0, sizeof(out))
    out.room = _grow
    cdef int64_t size = ks_unpack_natively(
        codec, <const uint8_t *> PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data), &out, limit)
    plain = None if size < 0 else PyBytes_FromStringAndSize(<const char *> out.p, size)
    ks_block_drop(<ks_block *> out.context)
    return plain


def decode_columns(buffer, *, columns=None, layout="binary", bint check_crc=True, path=None, int64_t position=0,
                   max_decompressed_bytes=None, threads=None):
    """The records of the batches in `buffer`, of any format, as `Columns`; control records are left out.

    `columns` and `layout` are as in `Log.read_columns`. A batch that is cut off by the end of the buffer is left out in
    silence, as `decode_batches` does it. Raises `CorruptRecordError`, and `ValueError` for 2 GiB and more of records in
    the layout "binary". `path` and `position` go into errors. Megabytes and more are divided among `threads`.
    """
    cdef Reader reader = Reader(_columns.DEFAULT_COLUMNS if columns is None else columns, layout, check_crc=check_crc,
                                max_decompressed_bytes=max_decompressed_bytes,
                                threads=DEFAULT_THREADS if threads is None else min(threads, MOST_THREADS))
    cdef ks_reader *r = &reader._r
    cdef Py_ssize_t size
    most_bytes = _columns.MAX_BINARY_BYTES if layout == "binary" else MAX_HEADER_BYTES if "headers" in reader._names else NO_LIMIT
    reader.seek(-NO_LIMIT - 1, NO_LIMIT)
    reader._open_memory(buffer, path, position)
    reader.begin(NO_LIMIT, most_bytes)
    size = reader._memory.size
    while r.position < size or reader.is_amid:
        stop = reader.read(size, size, size - r.position)
        if stop == "alone":
            rest = memoryview(buffer).cast("B")[r.position:]
            batch = next(decode_batches(rest, check_crc, path=path, position=position + r.position,
                                        max_decompressed_bytes=max_decompressed_bytes), None)
            if batch is None:
                break
            stop = reader.read_slowly(batch)
        if stop == "full":
            raise ValueError(f"more than {most_bytes} bytes of records: take layout='large_binary', or fewer batches")
    return reader.finish()
