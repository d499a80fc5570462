# cython: language_level=3, auto_pickle=False, autotestdict=False
"""One row for each batch, read from the headers only: `Log.batch_table`.

batchtable.h reads the headers, without the GIL. Invariant: the batch iterator decides about a frame that is not sound,
so that a table and the batches never differ.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kstore.columns._columns cimport Columns, Memory, new_memory
from kstore.columns._native cimport (
    KS_AT_END, KS_FAILED_READ, KS_LEFT_ALONE, KS_MAX_BORDERS, KS_OUT_OF_MEMORY, KS_PAST, ks_header,
    ks_headers_memory, ks_pick_field, ks_read_header, ks_read_headers_threaded, ks_reader, ks_take_header, ks_vec,
    ks_vec_drop,
)
from kstore.codec._aborted cimport AbortedFilter
from kstore.codec._wire cimport MAGIC_AT

from kstore.base.optional import Late
from kstore._core import decode_batches
from kstore.disk import mounts

np = Late("numpy")

cdef enum:
    PICKED_ROWS = 1024

cdef int64_t NO_LIMIT = 0x7fffffffffffffff
cdef ks_header _h


cdef size_t _at(const void *field) noexcept:
    return <size_t> (<const uint8_t *> field - <const uint8_t *> &_h)


# For each column its name, Arrow format, NumPy type, and place in ks_header.
cdef tuple _FIELDS = (
    ("base_offset", "l", "int64", _at(&_h.base_offset)),
    ("last_offset", "l", "int64", _at(&_h.last_offset)),
    ("count", "i", "int32", _at(&_h.count)),
    ("position", "l", "int64", _at(&_h.position)),
    ("size_bytes", "i", "int32", _at(&_h.size_bytes)),
    ("segment_base_offset", "l", "int64", _at(&_h.segment_base_offset)),
    ("base_timestamp", "l", "int64", _at(&_h.base_timestamp)),
    ("max_timestamp", "l", "int64", _at(&_h.max_timestamp)),
    ("partition_leader_epoch", "i", "int32", _at(&_h.partition_leader_epoch)),
    ("magic", "c", "int8", _at(&_h.magic)),
    ("compression", "c", "int8", _at(&_h.compression)),
    ("timestamp_type", "c", "int8", _at(&_h.timestamp_type)),
    ("is_transactional", "b", "bool", _at(&_h.is_transactional)),
    ("is_control", "b", "bool", _at(&_h.is_control)),
    ("producer_id", "l", "int64", _at(&_h.producer_id)),
    ("producer_epoch", "s", "int16", _at(&_h.producer_epoch)),
    ("base_sequence", "i", "int32", _at(&_h.base_sequence)),
    ("delete_horizon_ms", "l", "int64", _at(&_h.delete_horizon_ms)),
    ("crc", "I", "uint32", _at(&_h.crc)),
)
BATCH_COLUMNS = tuple([name for name, *_ in _FIELDS])  # type: tuple[str, ...]


@cython.final
cdef class BatchTable:
    """Builds a table of batches; its methods are those of `_column_reader.Reader`. Not thread-safe."""

    cdef ks_reader _r
    cdef ks_headers_memory _memory
    cdef ks_vec _rows
    cdef int64_t _n
    cdef int64_t _mark
    cdef int64_t _marked_offset
    cdef int64_t _segment
    cdef int _threads
    cdef list _borders
    cdef AbortedFilter _aborted        # owns the memory of _r.aborted
    cdef readonly object path  # type: Any

    def __init__(self, int threads=1):
        self._threads = threads

    def __dealloc__(self):
        ks_vec_drop(&self._rows)

    @property
    def rows(self) -> int:
        return self._n

    @property
    def next_offset(self) -> int:
        return self._r.next_offset

    @property
    def position(self) -> int:
        return self._r.position

    is_amid = False  # type: bool
    is_estimating = False  # type: bool

    @property
    def last_batch(self) -> tuple[int, bytes, int, int]:
        return (self._r.last_position, PyBytes_FromStringAndSize(<const char *> self._r.last_header, 21),
                self._r.last_base, self._r.last_crc)

    def seek(self, int64_t start_offset, int64_t end_offset) -> None:
        """Read the batches with offsets in `[start_offset, end_offset)` from now on."""
        self._r.start_offset = self._r.next_offset = start_offset
        self._r.last_wanted = end_offset if end_offset == NO_LIMIT else end_offset - 1
        if start_offset >= end_offset:
            self._r.last_wanted = -1  # an empty range inside a batch has no row either
        self._r.last_position = -1

    def begin(self, max_rows: int, max_bytes: int) -> None:
        """Drop all rows; the limits are not used."""
        self._n = 0

    @property
    def least(self) -> int:
        return self._r.min_base

    def open(self, int fd, int64_t position, object path: StrPath | None, int64_t base_offset, least: int | None = None,
             held: object = None) -> None:
        """Move to a batch of the segment with this base offset; `least` is as in `Reader.open`.

        `held` is not used: no thread reads the file after `read` has returned.
        """
        self._r.fd = fd
        self._r.chained = least is not None
        self._r.min_base = self._r.first_base = INT64_MIN if least is None else least
        self._r.magic = 2
        self._r.position = position
        self._r.last_position = -1
        self.path = path
        self._segment = base_offset

    def leave_out(self, AbortedFilter aborted: AbortedFilter | None) -> None:
        """Leave out the batches of these transactions from now on; None leaves out none."""
        self._aborted = aborted
        self._r.aborted = NULL if aborted is None else aborted._spans
        self._r.aborted_n = 0 if aborted is None else aborted._count

    def mark(self) -> None:
        """Remember the number of rows, for `back`."""
        self._mark = self._n
        self._marked_offset = self._r.next_offset

    def back(self) -> None:
        """Drop the rows since `mark`, and restore the `next_offset` of that time."""
        self._n = self._mark
        self._r.next_offset = self._marked_offset

    def divide(self, borders: Iterable[int]) -> None:
        """Let the next `read` start at these positions, in parallel: batches may start there. Any order is allowed."""
        self._borders = list(borders)

    def read(self, int64_t pause, int64_t end, int64_t bytes_ahead, int64_t most=NO_LIMIT) -> str:
        """Read headers up to a batch that starts at or after `pause`; returns "end", "past" or "alone"."""
        cdef int stop
        cdef int64_t borders[KS_MAX_BORDERS]
        cdef int64_t count = 1
        self._r.end = end
        self._r.pause = pause
        self._r.offset_limit = most
        borders[0] = self._r.position
        for border in sorted(self._borders or ()):
            if borders[count - 1] < border < pause and count < KS_MAX_BORDERS:
                borders[count] = border
                count += 1
        self._borders = None
        with nogil:
            stop = ks_read_headers_threaded(&self._r, &self._memory, &self._rows, &self._n, self._segment, borders,
                                            count, self._threads)
        return self._stop_name(stop)

    cdef object _stop_name(self, int stop):
        if stop == KS_FAILED_READ:
            raise mounts.read_error(self._r.error, self.path)
        if stop == KS_OUT_OF_MEMORY:
            raise MemoryError(f"a table of {self._n} batches cannot grow")
        return "past" if stop == KS_PAST else "alone" if stop == KS_LEFT_ALONE else "end"

    def read_slowly(self, data: ReadableBuffer | None) -> str:
        """Read the first batch of `data`, which is at `position`, with the batch iterator; raises its errors."""
        cdef ks_header h
        # If the format changes, check the CRC: that of format 2 does not cover the magic, but other formats use CRC-32.
        cdef bint changes = self._r.chained and memoryview(data)[MAGIC_AT] != self._r.magic
        cdef bytes batch = bytes(next(decode_batches(data, changes, path=self.path, position=self._r.position)))
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(batch)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(batch)
        if ks_read_header(p, n, n, &h):
            raise AssertionError("a batch that is sound has a sound header")
        self._r.magic = h.magic
        return self._stop_name(ks_take_header(&self._r, &self._rows, &self._n, &h, self._segment, p))

    def finish(self, next_offset: int | None = None) -> Columns:
        """Return the rows as `Columns`."""
        cdef Columns columns = Columns.__new__(Columns)
        cdef Memory memory
        cdef Py_ssize_t width
        cdef int64_t first = 0
        columns.n = self._n
        columns.names = BATCH_COLUMNS
        columns.fields = tuple([(name, format) for name, format, *_ in _FIELDS])
        columns.next_offset = self._r.next_offset if next_offset is None else next_offset
        columns.columns, columns.memories = {}, {}
        for name, _, kind, _ in _FIELDS:
            columns.memories[name] = new_memory(self._n * <Py_ssize_t> np.dtype(kind).itemsize)
            columns.columns[name] = np.frombuffer(columns.memories[name], kind)
        while first < self._n:             # all fields of as many rows as the first-level cache holds
            for name, _, kind, at in _FIELDS:
                memory = columns.memories[name]
                width = columns.columns[name].itemsize
                ks_pick_field(<uint8_t *> memory.p + first * width, &self._rows, first, min(self._n - first, PICKED_ROWS),
                              at, <size_t> width)
            first += PICKED_ROWS
        ks_vec_drop(&self._rows)
        self._n = 0
        return columns
