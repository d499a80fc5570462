# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Reading columns: the batches of files, or of a buffer, become `Columns`.

The C code of c/columns decodes; this module tells it where to read. Invariant: bytes that are not a sound v2 batch are
read by `_core`'s record reader, so that columns and records always accept and reject the same bytes.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject, Py_CLEAR, Py_XINCREF
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kstore.columns._columns cimport BinaryColumn, Columns, HeadersColumn, Memory, new_memory, share
from kstore.columns._native cimport (
    KS_AT_END, KS_FAILED_READ, KS_FIRST_LOOK, KS_FULL, KS_LEFT_ALONE, KS_MAX_BORDERS, KS_OFFSET, KS_OFFSETS32,
    KS_OUT_OF_MEMORY, KS_PAST, KS_SEQUENCE, KS_VIEWS, ks_append_header, ks_append_row, ks_batch, ks_block,
    ks_block_drop, ks_block_new, ks_chunks, ks_chunks_drop, ks_chunks_forget, ks_decompressed_room, ks_describe,
    ks_kept_between, ks_look, ks_mark, ks_read_chunks, ks_read_threaded, ks_reader, ks_rows, ks_rows_back,
    ks_rows_clear, ks_rows_finish, ks_rows_like, ks_rows_mark, ks_sample, ks_take_chunk, ks_used_up, ks_var, ks_vec,
    ks_view, ks_wants_borders, ks_window_close,
)
from kstore._core cimport Buffer, Record, record_section_slowly
from kstore.codec._aborted cimport AbortedFilter
from kstore.codec._compression cimport ks_unpack
from kstore.codec._wire cimport CODEC_MASK, LEGACY_ATTRIBUTES_AT, MAGIC_AT, RECORDS_AT, TIMESTAMP_TYPE_BIT, batch_size
from kstore.disk._held cimport hold, take_back

import os

from kstore.base.optional import Late
from kstore.columns import _columns
from kstore.columns.keyed_rows import checked_columns, checked_layout
from kstore.codec import compression
from kstore._core import RecordIterator, decode_batches
from kstore.disk import mounts

np = Late("numpy")

cdef int64_t NO_LIMIT = 0x7fffffffffffffff
MAX_HEADER_BYTES = 0x7fffffff // 3  # type: int  # each byte of a name may become three

DEFAULT_THREADS = min(4, os.cpu_count() or 1)  # type: int
MAX_THREADS = 16
MAX_BORDERS = KS_MAX_BORDERS  # type: int

cdef enum:
    FEW_BYTES = 262144      # at most this many bytes of a file, or
    FEW_ROWS = 1000         # at most this many rows, are read with the GIL held (held.h)

cdef dict STOPS = {KS_AT_END: "end", KS_FULL: "full", KS_PAST: "past", KS_LEFT_ALONE: "alone"}
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
    if v.layout == KS_VIEWS:
        column.places = _vec_memory(&v.places, n * <Py_ssize_t> sizeof(ks_view))
        column.buffers = buffers
    else:
        column.places = _vec_memory(&v.places, (n + 1) * (4 if v.layout == KS_OFFSETS32 else 8))
        column.bytes_ = _vec_memory(&v.data, v.used)
    if v.nulls:
        column.valid = _vec_memory(&v.valid, (n + 7) // 8)
    return column


cdef int64_t _unpack_slowly(void *context, ks_reader *r, const uint8_t *p, int64_t size) noexcept nogil:
    """Decompress the batch at `p` and return its size, or -1: the `unpack_slowly` of a reader, called by any thread."""
    return _unpack_with_gil(context, r, p, size)


cdef int64_t _unpack_with_gil(void *context, ks_reader *r, const uint8_t *p, int64_t size) noexcept with gil:
    cdef Reader reader = <Reader> context
    cdef bytes decompressed
    cdef uint8_t *to
    try:
        decompressed = record_section_slowly(p, size, reader._max_decompressed, None, 0)
    except BaseException:
        return -1          # the reader encounters the same error, and raises it
    to = ks_decompressed_room(r, 0, <size_t> len(decompressed))
    if to == NULL:
        return -1
    memcpy(to, PyBytes_AS_STRING(decompressed), <size_t> len(decompressed))
    return len(decompressed)


@cython.final
@cython.no_gc_clear                   # helper threads may use its members until __dealloc__ has waited for them
cdef class Reader:
    """Builds a series of `Columns` from batches of files.

    `columns` are names of COLUMN_NAMES, `layout` is one of LAYOUTS. `seek` sets the range of offsets, `begin` starts a
    `Columns`, `open` moves to a batch of a file, `read` reads batches with `threads` threads, `finish` returns the
    `Columns`. Not thread-safe.
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
    cdef Record _slow_record           # taken from _slow, and not yet used
    cdef Buffer _memory                # the buffer that is read instead of a file
    cdef int64_t _memory_at            # the position of its first byte in errors
    cdef ks_chunks *_ahead             # chunks that helper threads read ahead; NULL if chunks are not used
    cdef AbortedFilter _aborted        # owns the memory of _r.aborted
    cdef Buffer _kept                  # owns the memory of _r.kept
    cdef PyObject *_held               # keeps the descriptor open; a raw pointer, so no garbage collection clears it
    cdef readonly object path  # type: Any

    def __init__(self, columns: Sequence[str], layout: str, *, bint check_crc=True,
                 max_decompressed_bytes: int | None = None, int threads=1, bint in_chunks=False):
        self._names = tuple(columns)
        self._layout = LAYOUTS[layout]
        self._max_decompressed = min(
            compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes, 0x7fffffff)
        self._r.check_crc = check_crc
        self._r.max_decompressed = self._max_decompressed
        self._r.out = &self._out
        self._r.last_position = self._r.last_base = -1
        self._r.min_base = self._r.first_base = INT64_MIN
        self._r.offset_limit = NO_LIMIT
        self._r.fd = -1
        self._r.keeps_decompressed = self._layout == KS_VIEWS
        self._r.unpack = ks_unpack
        self._r.unpack_slowly = _unpack_slowly
        self._r.context = <void *> self
        self.threads = threads
        self._r.whole_batches = in_chunks
        if in_chunks and threads > 1:
            self._ahead = <ks_chunks *> calloc(1, sizeof(ks_chunks))
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
        if self._ahead != NULL:
            with nogil:                    # helper threads may be running
                ks_chunks_drop(self._ahead)
            free(self._ahead)
        ks_rows_clear(&self._out, False)
        ks_rows_clear(&self._r.staged, False)
        ks_block_drop(self._r.decompressed_block)
        ks_window_close(&self._r)
        Py_CLEAR(self._held)

    @property
    def rows(self) -> int:
        """The number of rows built since `begin`."""
        return self._out.n

    @property
    def next_offset(self) -> int:
        """The offset at which to continue: one past the last record that was built or left out."""
        return self._r.next_offset

    @property
    def position(self) -> int:
        """The position of the next batch in the file."""
        return self._r.position

    @property
    def is_amid(self) -> bool:
        """Whether some rows of the current batch are not built yet."""
        return self._slow is not None or self._r.staged_from < self._r.staged_to

    @property
    def is_estimating(self) -> bool:
        """Whether `bytes_ahead` is still used to estimate the space for further rows."""
        return not self._r.expected

    def sample(self, int64_t pause, int64_t end, int64_t most=NO_LIMIT) -> None:
        """Estimate from the next batch how far apart chunks should start, if there are chunks and no estimate yet.

        Builds no row. Takes the arguments of `read`; errors of that batch are raised by `read`, not here.
        """
        cdef ks_reader *r = &self._r
        if self._ahead == NULL or r.seen_rows or self._out.n or self.is_amid:
            return
        r.end = end
        r.pause = pause
        r.offset_limit = most
        with nogil:
            ks_sample(r)

    @property
    def chunk_spacing(self) -> int:
        """The distance in the file between the starts of chunks, for `divide`; 0 if the file should not be divided."""
        if self._ahead == NULL or self._out.n or self._slow is not None or not ks_wants_borders(&self._r, self._ahead):
            return 0
        # Nine tenths of the bytes of the file that fit, if further rows resemble those read so far.
        return max(1, <int64_t> (0.9 * self._r.max_bytes * self._r.seen_bytes / max(self._r.seen_decompressed, 1)))

    def divide(self, borders: Sequence[int]) -> None:
        """Let further chunks be read in parallel from these rising positions, at each of which a batch may start."""
        cdef int n = 0
        if self._ahead == NULL:
            return
        self._forget_ahead()
        for border in borders[:KS_MAX_BORDERS]:
            self._ahead.borders[n] = border
            n += 1
        self._ahead.borders_n = n

    @property
    def last_batch(self) -> tuple[int, bytes, int, int]:
        """(position, first 21 bytes, base offset, CRC) of the last batch read since `seek`; position -1 if none."""
        return (self._r.last_position, PyBytes_FromStringAndSize(<const char *> self._r.last_header, 21),
                self._r.last_base, self._r.last_crc)

    def seek(self, int64_t start_offset, int64_t end_offset) -> None:
        """Read `[start_offset, end_offset)` from now on, and discard all chunks that were read ahead."""
        self._r.start_offset = self._r.next_offset = start_offset
        self._r.last_wanted = end_offset if end_offset == NO_LIMIT else end_offset - 1
        self._forget()

    cdef int _forget(self) except -1:
        self._r.staged_from = self._r.staged_to = 0
        self._r.decompressed = NULL
        self._slow = self._slow_record = self._slow_data = None
        self._r.last_position = -1
        self._forget_ahead()
        ks_window_close(&self._r)
        self._r.ahead = KS_FIRST_LOOK
        return 0

    cdef int _forget_ahead(self) except -1:
        """Wait until no helper thread reads ahead, and discard the chunks that were read."""
        if self._ahead != NULL:
            with nogil:
                ks_chunks_forget(self._ahead)
        return 0

    def begin(self, int64_t max_rows, int64_t max_bytes) -> None:
        """Start the next `Columns`, with at most `max_rows` rows and `max_bytes` of records; one row may be larger."""
        ks_rows_clear(&self._out, False)
        self._r.expected = False
        self._r.max_rows = max_rows
        self._r.max_bytes = max_bytes

    @property
    def least(self) -> int:
        """The lowest base offset that the next batch may have: one past the batch before it."""
        return self._r.min_base

    def open(self, int fd, int64_t position, object path: StrPath | None, int64_t base_offset=0,
             least: int | None = None, held: object = None) -> None:
        """Move to a batch of a file; the segment's base offset is not used here.

        The batch's base offset is at least `least`, and offsets rise in the file; `least` is None if it is not known.
        `held` keeps the descriptor open: helper threads may use it until the reader is freed or opens another file.
        """
        self._forget_ahead()
        Py_CLEAR(self._held)
        self._held = <PyObject *> held
        Py_XINCREF(self._held)
        self._r.fd = fd
        self._r.position = position
        self._r.chained = least is not None
        self._r.min_base = INT64_MIN if least is None else least
        self._r.last_position = -1
        self.path = path
        ks_window_close(&self._r)

    def leave_out(self, AbortedFilter aborted: AbortedFilter | None) -> None:
        """Leave out the batches of these transactions from now on; None leaves out none."""
        self._forget_ahead()
        self._aborted = aborted
        self._r.aborted = NULL if aborted is None else aborted._spans
        self._r.aborted_n = 0 if aborted is None else aborted._count

    def keep_only(self, offsets: npt.NDArray[np.int64]) -> None:
        """Build only the rows at these offsets from now on; they rise, and the array must not change."""
        self._kept = Buffer(np.ascontiguousarray(offsets, np.int64))
        self._r.kept = <const int64_t *> self._kept.p
        self._r.kept_n = self._kept.size // 8
        self._r.kept_at = 0

    cdef int _open_memory(self, data, object path, int64_t position) except -1:
        """Move to the start of a buffer; errors add `position` to the positions in it."""
        cdef ks_block *block
        self._memory = Buffer(data)
        self._memory_at = position
        self._r.memory = self._memory.p
        if self._layout == KS_VIEWS:        # views point into this memory: it must live as long as they do
            block = ks_block_new(<size_t> self._memory.size)
            if block == NULL:
                raise MemoryError(f"{self._memory.size} bytes of batches")
            self._r.memory = <const uint8_t *> memcpy(block.data, self._memory.p, <size_t> self._memory.size)
            ks_window_close(&self._r)
            self._r.window = block
        self._r.position = 0
        self.path = path
        return 0

    def mark(self) -> None:
        """Remember the current rows and next offset, for `back`."""
        self._mark = ks_rows_mark(&self._out)
        self._marked_offset = self._r.next_offset

    def back(self) -> None:
        """Drop the rows since `mark`; a `seek` to `next_offset` must follow."""
        ks_rows_back(&self._out, &self._mark)
        self._r.next_offset = self._marked_offset

    def read(self, int64_t pause, int64_t end, int64_t bytes_ahead, int64_t most=NO_LIMIT) -> str:
        """Read the batches of `[position, end)` up to the first one that starts at or after `pause`.

        All offsets in the file are below `most`. Returns "end" at `pause` or `end`; "full" when the columns are full;
        "past" when the next record is beyond the last one to read; "alone" before a batch that `read_slowly` must read,
        such as one whose base offset is out of order. `bytes_ahead` estimates the bytes to read, also after `end`.
        """
        cdef int stop
        cdef ks_reader *r = &self._r
        if self._slow is not None:
            return "alone"
        r.end = end
        r.pause = pause
        r.offset_limit = most
        r.bytes_ahead = bytes_ahead
        cdef bint few = self._ahead == NULL and (end - r.position <= FEW_BYTES or r.max_rows - self._out.n <= FEW_ROWS)
        if self._ahead != NULL and self._out.n == 0 and not self.is_amid:
            with nogil:
                stop = ks_take_chunk(r, self._ahead) or ks_read_chunks(r, self._ahead, self.threads)
            if stop:
                return "full"
        while True:
            if few:
                hold(&r.held)
                stop = ks_read_threaded(r, 1)
                take_back(&r.held)
            else:
                with nogil:
                    stop = ks_read_threaded(r, self.threads)
            if stop in STOPS:
                return STOPS[stop]
            if stop == KS_FAILED_READ:
                raise mounts.read_error(r.error, self.path)
            if stop == KS_OUT_OF_MEMORY:
                raise MemoryError(f"columns of {self._out.n} rows and {self._out.bytes} bytes cannot grow")
            self._complain()

    cdef int _complain(self) except -1:
        """Raise the error of the batch at `position`, which cannot be decompressed although its CRC is correct."""
        cdef ks_reader *r = &self._r
        cdef const uint8_t *p = ks_look(r, r.position, RECORDS_AT)
        cdef Py_ssize_t size = <Py_ssize_t> batch_size(p)
        p = ks_look(r, r.position, <size_t> size)
        record_section_slowly(p, size, self._max_decompressed, self.path, self._memory_at + r.position)
        raise MemoryError(f"the records of a batch of {size} bytes")

    def read_slowly(self, data: ReadableBuffer | None = None) -> str:
        """Build rows from whole batches at `position` with the record reader; returns the results of `read`.

        `data` is a buffer of these batches, needed unless the last call returned "full". Reads all batches of formats 0
        and 1 at its start, or one v2 batch. Raises the errors of the record reader.
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
            if self._r.kept != NULL and not ks_kept_between(&self._r, self._slow_record.offset, self._slow_record.offset):
                self._r.next_offset = max(self._r.next_offset, <int64_t> self._slow.next_offset)
                self._slow_record = None
                continue
            size = self._size_of(self._slow_record)
            if self._out.n >= self._r.max_rows or (self._out.n and self._out.bytes + size > self._r.max_bytes):
                return "full"
            self._append(&b, self._slow_record, size)
            self._r.next_offset = max(self._r.next_offset, <int64_t> self._slow.next_offset)
            self._slow_record = None
        self._close_slowly()
        return "end"

    cdef int _open_slowly(self, bytes data) except -1:
        """Open the first batch of `data`, or all messages of formats 0 and 1 at its start."""
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), at = 0
        while at + MAGIC_AT < n:
            at += <Py_ssize_t> batch_size(p + at)
            if p[MAGIC_AT] == 2 or self._out.wanted >> 2 or (at + MAGIC_AT < n and p[at + MAGIC_AT] == 2):
                break
        self._slow_data = data[:at]
        place = (self._slow_data, self.path, self._memory_at + self._r.position)
        self._slow = RecordIterator(
            ((*place, self._r.min_base) if self._r.chained else place,), self._r.start_offset, check_crc=self._r.check_crc,
            max_decompressed_bytes=self._max_decompressed,
        )
        return 0

    cdef int _describe_slowly(self, ks_batch *b) except -1:
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(self._slow_data)
        memset(b, 0, sizeof(ks_batch))
        if not self._out.wanted >> 2:
            return 0
        if p[MAGIC_AT] == 2 and len(self._slow_data) >= RECORDS_AT:
            ks_describe(p, b)
            return 0
        b.leader_epoch = b.base_sequence = -1
        b.producer_id = b.producer_epoch = -1
        b.timestamp_type = -1 if p[MAGIC_AT] == 0 else p[LEGACY_ATTRIBUTES_AT] & TIMESTAMP_TYPE_BIT != 0
        b.compression = p[LEGACY_ATTRIBUTES_AT] & CODEC_MASK
        [batch] = decode_batches(self._slow_data, False, max_decompressed_bytes=self._max_decompressed)
        b.base_offset = batch.base_offset
        return 0

    cdef int _close_slowly(self) except -1:
        """Finish slow reading: record the last batch, and move past it."""
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(self._slow_data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(self._slow_data), at = 0, size
        self._r.next_offset = max(self._r.next_offset, <int64_t> self._slow.next_offset)
        while at < n:
            size = <Py_ssize_t> batch_size(p + at)
            ks_used_up(&self._r, p + at, size)
            at += size
        self._slow = self._slow_data = None
        return 0

    cdef int64_t _size_of(self, Record record) except -1:
        """Return the approximate size of a record in a v2 batch."""
        cdef int64_t size = 20 + len(record.key or b"") + len(record.value or b"")
        for name, data in record.headers:
            size += len(name) + len(data or b"") + 10
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
        if self._layout == KS_VIEWS and (key_size > 12 or value_size > 12):
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

    def finish(self, next_offset: int | None = None) -> Columns:
        """Return the rows since `begin` as `Columns`, with the given `next_offset` if there is one."""
        cdef Columns columns = Columns.__new__(Columns)
        cdef ks_rows *out = &self._out
        cdef int number
        cdef Memory memory
        cdef HeadersColumn headers
        if out.n:
            self._r.previous = ks_rows_mark(out)
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


def decode_columns(buffer: ReadableBuffer, *, columns: Sequence[str] | None = None, layout: str = "binary",
                   bint check_crc=True, path: StrPath | None = None, int64_t position=0,
                   max_decompressed_bytes: int | None = None, threads: int | None = None) -> Columns:
    """Decode the records of the batches in `buffer`, of any format, into columns.

    Control records are left out, and so is a batch that the end of the buffer cuts off, as in `decode_batches`.

    Args:
        buffer: The encoded batches.
        columns: The columns to build, from those that `Log.read_columns` lists; by default offset, timestamp, key and
            value.
        layout: How keys and values lie in memory, as in `Log.read_columns`: "binary", "large_binary" or "view".
        check_crc: Whether to check the CRC of each batch.
        path: The file that errors name.
        position: The position of `buffer` in that file; errors add it to the positions of batches.
        max_decompressed_bytes: The most bytes that the records of one batch may decompress to; by default 256 MiB.
        threads: The most threads that share the work of a buffer of several megabytes; at most 16, by default one per
            core and at most 4.

    Returns:
        The columns of all records. Its `next_offset` is one past the last record that was read or left out.

    Raises:
        CorruptRecordError: If the length, magic, size, CRC or records of a batch are wrong.
        ValueError: If a column or the layout is unknown; if the layout is "binary" and there are 2 GiB or more of
            records; or if headers are requested and the records are too large for one column of headers (about 683
            MiB in the other layouts).

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples"), (b"bob", None)])
        >>> columns = kstore.decode_columns(batch, columns=["offset", "value"])
        >>> columns.offsets.tolist(), columns.values.to_pylist()
        ([0, 1], [b'3 apples', None])
    """
    names = _columns.DEFAULT_COLUMNS if columns is None else checked_columns(columns, _columns.COLUMN_NAMES, "known")
    cdef Reader reader = Reader(names, checked_layout(layout), check_crc=check_crc,
                                max_decompressed_bytes=max_decompressed_bytes,
                                threads=DEFAULT_THREADS if threads is None else min(threads, MAX_THREADS))
    cdef ks_reader *r = &reader._r
    cdef Py_ssize_t size
    max_bytes = _columns.MAX_BINARY_BYTES if layout == "binary" else MAX_HEADER_BYTES if "headers" in reader._names else NO_LIMIT
    reader.seek(-NO_LIMIT - 1, NO_LIMIT)
    reader._open_memory(buffer, path, position)
    reader.begin(NO_LIMIT, max_bytes)
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
            raise ValueError(f"more than {max_bytes} bytes of records: use layout='large_binary', or fewer batches")
    return reader.finish()
