# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The decoder: reads record batches of any format as `Record`s and `RecordBatch`es.

Invariant: any bytes lead to records or to a `CorruptRecordError`, in bounded time and memory.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FULL_RO, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8

from kstore.codec._compression cimport unpacked
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, CODEC_MASK, CONTROL_BIT, CRC_AT,
    DELETE_HORIZON_BIT, HEADER_UP_TO_MAGIC, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LEGACY_ATTRIBUTES_AT,
    LEGACY_MAGIC_AT, LEGACY_TIMESTAMP_AT, LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, MIN_V1_MESSAGE,
    PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, load16,
    load32, load64, wrapping_add,
)

from typing import NamedTuple

from kstore.codec import compression
from kstore.errors import CorruptRecordError, InvalidRecordError

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "crc32.h" nogil:
    uint32_t ks_crc32(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "record.h" nogil:
    enum:
        KS_ENDS_EARLY
        KS_BAD_VARINT
        KS_NEGATIVE_LENGTH
        KS_LENGTH_TOO_LARGE
        KS_FIELD_TOO_LARGE
        KS_BAD_HEADER_COUNT
        KS_NULL_HEADER_KEY
        KS_LENGTH_MISMATCH

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o) noexcept

cdef extern from "refill.h":
    int ks_refill(PyObject **slot, Py_ssize_t *room, const uint8_t *p, Py_ssize_t n) except -1

cdef enum:
    RELEASE_GIL_BYTES = 65536      # below this, releasing the GIL costs more than the checksum
    REFILLED_BYTES = 4096          # an iterator reuses the memory of records of up to this size

cdef int64_t NO_LIMIT = 0x7fffffffffffffff

# stub: _Chunk: TypeAlias = tuple[ReadableBuffer, StrPath | None, int] | tuple[ReadableBuffer, StrPath | None, int, int]

cdef tuple CODEC_NAMES = tuple(compression.NAMES)

cdef dict FAULTS = {
    KS_ENDS_EARLY: "the data ends before the declared number of records",
    KS_BAD_VARINT: "a record field is cut off, or a varint goes on for too long",
    KS_NEGATIVE_LENGTH: "a record declares a negative length",
    KS_LENGTH_TOO_LARGE: "a record declares more bytes than are left",
    KS_FIELD_TOO_LARGE: "a key, value or header declares more bytes than its record has left",
    KS_BAD_HEADER_COUNT: "a record declares a negative number of headers, or more than it has bytes left",
    KS_NULL_HEADER_KEY: "a header key declares a negative length",
    KS_LENGTH_MISMATCH: "a record's fields end before its declared length",
    KS_TRAILING_BYTES: "bytes are left after the last record",
}


cdef object fault_text(int fault):
    return FAULTS[fault]


cdef object outside(int64_t offset, int64_t base_offset, int64_t last_offset):
    return f"a record at offset {offset}, outside of its batch, which has offsets {base_offset} to {last_offset}"


@cython.final
cdef class Buffer:
    def __cinit__(self, object data not None: ReadableBuffer):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.p = <const uint8_t *> self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef object not_bytes(object data, object what):
    """Return the error for `data` that cannot be read as bytes; `what` names it in the message."""
    if isinstance(data, str):
        return TypeError(f"{what} is a str: encode it first, as in text.encode()")
    from kstore.codec.refusals import way_to_bytes
    return TypeError(f"{what} must be bytes-like, not {type(data).__name__}{way_to_bytes(data)}")


cdef object as_bytes(object data, str what):
    """Return the bytes of any buffer, copied unless `data` is `bytes`; raise `TypeError` for `str` or no buffer."""
    cdef Py_buffer view
    if type(data) is bytes:
        return data
    if isinstance(data, str):
        raise not_bytes(data, what)
    try:
        PyObject_GetBuffer(data, &view, PyBUF_FULL_RO)
    except TypeError:
        raise not_bytes(data, what) from None
    try:
        if PyBuffer_IsContiguous(&view, b"C"):
            return PyBytes_FromStringAndSize(<const char *> view.buf, view.len)
        return memoryview(data).tobytes()
    finally:
        PyBuffer_Release(&view)


def crc32c(object data: ReadableBuffer, uint32_t value=0, /) -> int:
    """Return the CRC-32C (Castagnoli) of any contiguous buffer, continued from `value`; long input releases the GIL."""
    if type(data) is bytes and PyBytes_GET_SIZE(data) < RELEASE_GIL_BYTES:
        return ks_crc32c(value, <const uint8_t *> PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data))
    return _crc32c_of(data, value)      # a separate function, so that small `bytes` do not pay for the Py_buffer


cdef object _crc32c_of(object data, uint32_t value):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < RELEASE_GIL_BYTES:
        value = ks_crc32c(value, <const uint8_t *> view.buf, <size_t> view.len)
    else:
        with nogil:
            value = ks_crc32c(value, <const uint8_t *> view.buf, <size_t> view.len)
    PyBuffer_Release(&view)
    return value


# ---- Records.


cdef str shown(object data):
    """Return the `repr` of bytes or text; if there are more than 64, only of the first 64, followed by their number."""
    cdef str kind = "characters" if type(data) is str else "bytes"
    return repr(data) if data is None or len(data) <= 64 else f"{data[:64]!r}... ({len(data)} {kind})"


cdef str shown_headers(tuple headers):
    """Return a record's headers as text; if there are more than 4, the first 4, followed by the total number."""
    if headers is None:                  # the record was made by `__new__` alone
        return "None"
    cdef str pairs = ", ".join([f"({shown(name)}, {shown(data)})" for name, data in headers[:4]])
    if len(headers) > 4:
        return f"({pairs}, ... {len(headers)} headers)"
    return f"({pairs},)" if len(headers) == 1 else f"({pairs})"


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Record:
    """One record; it unpacks as `offset, timestamp, key, value, headers`.

    Keys and values are `bytes` or None. `headers` is a tuple of (str, bytes or None) pairs, `()` if there are none.
    Header names that are not UTF-8 keep their bytes as lone surrogates (`surrogateescape`). Reading a record with more
    than 1,048,576 headers raises `InvalidRecordError`; such a record can be read as columns. Records are immutable and
    compared by value. They hold no reference cycle, so the garbage collector does not track them. Thread-safe.

    Example:
        >>> record = kstore.Record(0, 1_764_000_000_000, b"alice", b"3 apples")
        >>> offset, timestamp, key, value, headers = record
        >>> record.key, value, headers
        (b'alice', b'3 apples', ())
    """

    __match_args__ = ("offset", "timestamp", "key", "value", "headers")

    def __init__(self, offset: int, timestamp: int, key: ReadableBuffer | None = None,
                 value: ReadableBuffer | None = None, headers: Iterable[tuple[str, ReadableBuffer | None]] = ()):
        cdef list pairs = []
        if self.headers is not None:     # a reader may refill the bytes of this record and relies on their size
            raise TypeError("a Record cannot be initialized again: it is immutable")
        self.offset = offset
        self.timestamp = timestamp
        self.key = None if key is None else as_bytes(key, "key")
        self.value = None if value is None else as_bytes(value, "value")
        for name, data in headers or ():
            if type(name) is not str:
                raise TypeError(f"header name is {type(name).__name__}: str is wanted")
            pairs.append((name, None if data is None else as_bytes(data, "header value")))
        self.headers = tuple(pairs)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.offset, self.timestamp, self.key, self.value, self.headers))

    def __len__(self):
        return 5

    def __eq__(self, other):
        cdef Record that
        if type(other) is not Record:
            return NotImplemented
        that = <Record> other
        return (
            self.offset == that.offset and self.timestamp == that.timestamp and self.key == that.key
            and self.value == that.value and self.headers == that.headers
        )

    def __hash__(self):
        return hash((self.offset, self.timestamp, self.key, self.value, self.headers))

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={shown(self.key)}, "
            f"value={shown(self.value)}, headers={shown_headers(self.headers)})"
        )

    def __reduce__(self):
        return Record, (self.offset, self.timestamp, self.key, self.value, self.headers)


cdef extern from "member.h":
    ctypedef struct PyMemberDef:
        pass
    int ks_add_member(object kind, PyMemberDef *definition, const char *name, Py_ssize_t offset) except -1

cdef extern from *:
    """
    #define ks_key_at(record) ((char *)&(record)->key - (char *)(record))
    #define ks_value_at(record) ((char *)&(record)->value - (char *)(record))
    #define ks_headers_at(record) ((char *)&(record)->headers - (char *)(record))
    #define ks_key_of(record) ((PyObject **)&(record)->key)
    #define ks_value_of(record) ((PyObject **)&(record)->value)
    """
    PyObject **ks_key_of(Record record) noexcept
    PyObject **ks_value_of(Record record) noexcept
    Py_ssize_t ks_key_at(Record record) noexcept
    Py_ssize_t ks_value_at(Record record) noexcept
    Py_ssize_t ks_headers_at(Record record) noexcept

cdef PyMemberDef[3] members


cdef int _add_members() except -1:
    cdef Record record = Record.__new__(Record)
    ks_add_member(Record, &members[0], b"key", ks_key_at(record))
    ks_add_member(Record, &members[1], b"value", ks_value_at(record))
    ks_add_member(Record, &members[2], b"headers", ks_headers_at(record))
    return 0


_add_members()


cpdef int check_headers(int64_t count, str what, int64_t number) except -1:  # type: None
    """Raise `InvalidRecordError` if there are more headers than `MAX_HEADERS`, too many for objects or text."""
    if count > MAX_HEADERS:
        raise InvalidRecordError(
            f"{what} {number} has {count} headers, and at most {MAX_HEADERS} are given as objects or text; as columns "
            "all are read (Log.iter_columns)"
        )
    return 0


cdef tuple _headers(const uint8_t *p, const uint8_t *end, int32_t count, int64_t offset):
    """Return the headers of a record that `ks_parse_record` has found valid."""
    check_headers(count, "the record at offset", offset)
    cdef tuple out = PyTuple_New(count)
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef int32_t key_size, value_size, i
    cdef int fault
    for i in range(count):
        p = ks_parse_header(p, end, &key, &key_size, &value, &value_size, &fault)
        if p == NULL:          # only if another thread has written into the buffer since `ks_parse_record`
            raise CorruptRecordError(fault_text(fault))
        pair = (
            PyUnicode_DecodeUTF8(<char *> key, key_size, b"surrogateescape"),
            None if value_size < 0 else PyBytes_FromStringAndSize(<const char *> value, value_size),
        )
        Py_INCREF(pair)
        PyTuple_SET_ITEM(out, i, pair)
    return out


cdef inline Record _record(int64_t offset, int64_t timestamp, const uint8_t *key, int32_t key_size,
                           const uint8_t *value, int32_t value_size, tuple headers):
    cdef Record record = Record.__new__(Record)
    record.offset = offset
    record.timestamp = timestamp
    if key_size >= 0:
        record.key = PyBytes_FromStringAndSize(<const char *> key, key_size)
    if value_size >= 0:
        record.value = PyBytes_FromStringAndSize(<const char *> value, value_size)
    record.headers = headers
    return record


cdef Record made_record(int64_t offset, int64_t timestamp, const ks_record *r):
    """Return a record that `ks_parse_record` has found; the caller holds its bytes. May run a garbage collection."""
    if r.headers_count == 0:
        return _record(offset, timestamp, r.key, r.key_size, r.value, r.value_size, ())
    return _record(offset, timestamp, r.key, r.key_size, r.value, r.value_size,
                   _headers(r.headers, r.end, r.headers_count, offset))


cdef struct Refilled:
    PyObject *record               # the second last record that the iterator returned, or NULL
    Py_ssize_t key_room
    Py_ssize_t value_room


cdef inline Record _record_again(Refilled *place, int64_t offset, int64_t timestamp, const uint8_t *key,
                                 int32_t key_size, const uint8_t *value, int32_t value_size, tuple headers):
    """Do as `_record`, but reuse the object in `place` if nobody else holds a reference to it."""
    cdef Record record
    if place.record == NULL or Py_REFCNT(place.record) != 1:
        record = Record.__new__(Record)
        Py_XDECREF(place.record)
        Py_INCREF(record)
        place.record = <PyObject *> record
        place.key_room = place.value_room = -1
    else:
        record = <Record> place.record
    record.offset = offset
    record.timestamp = timestamp
    if key_size >= 0 or place.key_room >= 0:
        ks_refill(ks_key_of(record), &place.key_room, key, key_size)
    ks_refill(ks_value_of(record), &place.value_room, value, value_size)
    record.headers = headers
    return record


# ---- Batches: framing, checksum, record section.


cdef object _check_frame(const uint8_t *p, Py_ssize_t size, bint check_crc):
    """Return what is wrong with the whole batch of `size` bytes at `p`, or None; its records are not parsed."""
    cdef int8_t magic = <int8_t> p[MAGIC_AT]
    cdef uint32_t crc, computed
    if magic == 2:
        if size < RECORDS_AT:
            return f"batch of {size} bytes: its header alone has {RECORDS_AT}"
        if not check_crc:
            return None
        crc = <uint32_t> load32(p + CRC_AT)
        computed = ks_crc32c(0, p + ATTRIBUTES_AT, <size_t> (size - ATTRIBUTES_AT))
    elif 0 <= magic < 2:
        if magic == 1 and size < LOG_OVERHEAD + MIN_V1_MESSAGE:
            return f"message of {size - LOG_OVERHEAD} bytes: format 1 has at least {MIN_V1_MESSAGE}"
        if not check_crc:
            return None
        crc = <uint32_t> load32(p + LOG_OVERHEAD)
        computed = ks_crc32(0, p + LEGACY_MAGIC_AT, <size_t> (size - LEGACY_MAGIC_AT))
    else:
        return f"magic {magic}: 0, 1 and 2 are known"
    if crc != computed:
        return f"CRC {computed:#010x} of the data, {crc:#010x} in the header"
    return None


cdef bytes record_section(const uint8_t *p, Py_ssize_t size, int64_t limit, object path, int64_t position):
    """Return the decompressed record section of the compressed v2 batch at `p`."""
    cdef int codec = load16(p + ATTRIBUTES_AT) & CODEC_MASK
    cdef bytes section = unpacked(codec, p + RECORDS_AT, <size_t> (size - RECORDS_AT), limit)
    return record_section_slowly(p, size, limit, path, position) if section is None else section


cdef bytes record_section_slowly(const uint8_t *p, Py_ssize_t size, int64_t limit, object path, int64_t position):
    """Do as `record_section`, with the codecs' Python packages; for a batch that `ks_unpack` does not decompress."""
    return _decompress(load16(p + ATTRIBUTES_AT) & CODEC_MASK,
                       PyBytes_FromStringAndSize(<const char *> p + RECORDS_AT, size - RECORDS_AT), limit, 2, path,
                       position)


cdef bytes _decompress(int codec, bytes data, int64_t limit, int magic, object path, int64_t position):
    try:
        return compression.decompress(codec, data, limit=limit, magic=magic)
    except CorruptRecordError as error:
        raise CorruptRecordError(error.reason, path=path, position=position) from error


# Header of an empty batch, so that `_p` is never NULL after `__new__`.
cdef bytes EMPTY_BATCH = (
    bytes(BATCH_LENGTH_AT) + (RECORDS_AT - LOG_OVERHEAD).to_bytes(4, "big") + bytes(MAGIC_AT - LOG_OVERHEAD) + b"\x02"
    + bytes(RECORDS_AT - HEADER_UP_TO_MAGIC)
)


@cython.final
cdef class RecordBatch:
    """One record batch: the fields of its header under Kafka's names, its records, and its bytes.

    Iterating yields the batch's `Record`s; it decodes them again each time and may raise `CorruptRecordError`.
    `bytes(batch)` and the buffer protocol return the batch as stored. In formats 0 and 1 a batch is one message, or a
    wrapper with the messages inside it; reading its `base_offset` or `count` may decompress it. Only `decode_batches`
    and reads make batches. `path` and `position` say where a batch was found. Immutable; thread-safe.

    Example:
        >>> records = [(b"alice", b"3 apples"), (b"bob", b"1 pear")]
        >>> data = kstore.encode_batch(records, base_offset=7, compression="zstd")
        >>> (batch,) = kstore.decode_batches(data)
        >>> batch.base_offset, batch.last_offset, batch.count, batch.compression
        (7, 8, 2, 'zstd')
        >>> [record.value for record in batch]
        [b'3 apples', b'1 pear']
    """

    def __cinit__(self):
        self._owner = EMPTY_BATCH
        self._p = <const uint8_t *> PyBytes_AS_STRING(EMPTY_BATCH)
        self._size = RECORDS_AT

    def __init__(self, *args, **kwargs):
        raise TypeError("a RecordBatch comes from decode_batches or from reading a log")

    @property
    def magic(self) -> int:
        """The format: 0, 1 or 2."""
        return <int8_t> self._p[MAGIC_AT]

    @property
    def base_offset(self) -> int:
        """The offset from which the records' offset deltas count."""
        if self._p[MAGIC_AT] == 2:
            return load64(self._p)
        self._scan_legacy()
        return self._first_and_count[0]

    @property
    def last_offset(self) -> int:
        """The last offset that the batch covers."""
        if self._p[MAGIC_AT] == 2:
            return wrapping_add(load64(self._p), load32(self._p + LAST_OFFSET_DELTA_AT))
        return load64(self._p)

    @property
    def next_offset(self) -> int:
        """One past the last offset: the lowest offset that the next batch may have."""
        return self.last_offset + 1

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, including its header."""
        return self._size

    @property
    def crc(self) -> int:
        """The checksum in the header."""
        return <uint32_t> load32(self._p + (CRC_AT if self._p[MAGIC_AT] == 2 else LOG_OVERHEAD))

    @property
    def attributes(self) -> int:
        """The attribute bits of the header."""
        if self._p[MAGIC_AT] == 2:
            return load16(self._p + ATTRIBUTES_AT)
        return <int8_t> self._p[LEGACY_ATTRIBUTES_AT]

    @property
    def compression(self) -> str:
        """Name of the compression type; `"unknown"` for the types 5 to 7, whose records cannot be read."""
        cdef int codec = self.attributes & CODEC_MASK
        return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else "unknown"

    @property
    def timestamp_type(self) -> str:
        """The type: "CreateTime", "LogAppendTime", or in format 0 "NoTimestampType"."""
        if self._p[MAGIC_AT] == 0:
            return "NoTimestampType"
        return "LogAppendTime" if self.attributes & TIMESTAMP_TYPE_BIT else "CreateTime"

    @property
    def base_timestamp(self) -> int:
        """The timestamp that the records' deltas count from; `max_timestamp` in formats 0 and 1 (without deltas)."""
        return load64(self._p + BASE_TIMESTAMP_AT) if self._p[MAGIC_AT] == 2 else self.max_timestamp

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp, in milliseconds; -1 if there is none."""
        cdef int magic = self._p[MAGIC_AT]
        if magic == 2:
            return load64(self._p + MAX_TIMESTAMP_AT)
        return load64(self._p + LEGACY_TIMESTAMP_AT) if magic == 1 else -1

    @property
    def producer_id(self) -> int:
        """The producer id; -1 if there is none."""
        return load64(self._p + PRODUCER_ID_AT) if self._p[MAGIC_AT] == 2 else -1

    @property
    def producer_epoch(self) -> int:
        """The producer epoch; -1 if there is none."""
        return load16(self._p + PRODUCER_EPOCH_AT) if self._p[MAGIC_AT] == 2 else -1

    @property
    def base_sequence(self) -> int:
        """The sequence number of the first record; -1 if there is none."""
        return load32(self._p + BASE_SEQUENCE_AT) if self._p[MAGIC_AT] == 2 else -1

    @property
    def partition_leader_epoch(self) -> int:
        """The leader epoch in which the batch was appended; -1 if it is not known."""
        return load32(self._p + LEADER_EPOCH_AT) if self._p[MAGIC_AT] == 2 else -1

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return self._p[MAGIC_AT] == 2 and self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether this is a control batch: it holds a transaction marker or another control record."""
        return self._p[MAGIC_AT] == 2 and self.attributes & CONTROL_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time in milliseconds at which the batch's tombstones may be removed; None until compaction sets it."""
        if self._p[MAGIC_AT] == 2 and self.attributes & DELETE_HORIZON_BIT:
            return load64(self._p + BASE_TIMESTAMP_AT)
        return None

    @property
    def count(self) -> int:
        """Number of records that the header declares; in formats 0 and 1, the number of messages found."""
        if self._p[MAGIC_AT] == 2:
            return load32(self._p + RECORDS_COUNT_AT)
        self._scan_legacy()
        return self._first_and_count[1]

    @property
    def is_valid(self) -> bool:
        """Whether the size and the CRC are right; the records are not parsed."""
        return _check_frame(self._p, self._size, True) is None

    cdef int _scan_legacy(self) except -1:
        if self._first_and_count is None:
            records = _legacy_records(self._p, self._size, self._max_decompressed, self.path, self.position)
            self._first_and_count = ((<Record> records[0]).offset, len(records))
        return 0

    def ensure_valid(self) -> None:
        """Check the size and the CRC; the records are not parsed.

        Raises:
            CorruptRecordError: If either is wrong.

        Example:
            >>> batch.ensure_valid()
            >>> (damaged,) = kstore.decode_batches(data[:-1] + b"?", check_crc=False)
            >>> damaged.ensure_valid()
            Traceback (most recent call last):
            ...
            kstore.errors.CorruptRecordError: ...
        """
        reason = _check_frame(self._p, self._size, True)
        if reason is not None:
            raise CorruptRecordError(reason, path=self.path, position=self.position)

    def __iter__(self) -> Iterator[Record]:
        return RecordIterator(
            iter(((self, self.path, self.position),)), -NO_LIMIT - 1, NO_LIMIT, check_crc=False, include_control=True,
            max_decompressed_bytes=self._max_decompressed,
        )

    def __bytes__(self):
        return PyBytes_FromStringAndSize(<const char *> self._p, self._size)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> self._p, self._size, 1, flags)

    def __eq__(self, other):
        if type(other) is not RecordBatch:
            return NotImplemented
        return bytes(self) == bytes(other)

    def __hash__(self):
        return hash(bytes(self))

    def __repr__(self):
        first = f"base_offset={self.base_offset} " if self.magic == 2 else ""  # an older batch must be decompressed
        return (
            f"<RecordBatch {first}last_offset={self.last_offset} magic={self.magic} size_bytes={self._size} "
            f"compression={self.compression}>"
        )

    def __reduce__(self):
        return _rebuild_batch, (bytes(self), self.path, self.position, self._max_decompressed)


def _rebuild_batch(bytes data, path, int64_t position, int max_decompressed):
    """Unpickle a batch; check its size and magic, since a pickle may contain any bytes."""
    if len(data) < HEADER_UP_TO_MAGIC or len(data) != LOG_OVERHEAD + <int64_t> load32(
            <const uint8_t *> PyBytes_AS_STRING(data) + BATCH_LENGTH_AT):
        raise CorruptRecordError("pickled batch whose size is not the declared one", path=path, position=position)
    reason = _check_frame(<const uint8_t *> PyBytes_AS_STRING(data), len(data), False)
    if reason is not None:
        raise CorruptRecordError(reason, path=path, position=position)
    return _batch(data, 0, len(data), max_decompressed, path, position)


cdef RecordBatch _batch(bytes owner, Py_ssize_t at, Py_ssize_t size, int max_decompressed, object path, int64_t position):
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    batch._owner = owner
    batch._p = <const uint8_t *> PyBytes_AS_STRING(owner) + at
    batch._size = size
    batch._max_decompressed = max_decompressed
    batch.path = path
    batch.position = position
    return batch


# ---- Formats 0 and 1 (FORMAT 5). Old data, read rarely: plain code, lists.


cdef list _legacy_records(const uint8_t *p, Py_ssize_t size, int64_t limit, object path, int64_t position):
    """Return the records of the message or wrapper of `size` bytes at `p`; at least one."""
    cdef int magic = p[MAGIC_AT]
    cdef int attributes = p[LEGACY_ATTRIBUTES_AT]
    cdef int codec = attributes & CODEC_MASK
    cdef int64_t outer_offset = load64(p)
    cdef int64_t outer_timestamp = load64(p + LEGACY_TIMESTAMP_AT) if magic == 1 else -1
    cdef int64_t shift = 0
    cdef Record record
    cdef bytes inner
    cdef list records
    if codec == 0:
        return [_legacy_message(p, size, path, position)]
    if codec > compression.LZ4:
        raise CorruptRecordError(f"compression type {codec} in format {magic}, which knows 0 to 3", path=path,
                                 position=position)
    record = _legacy_message(p, size, path, position)
    if record.value is None:
        raise CorruptRecordError("wrapper message with a null value", path=path, position=position)
    inner = _decompress(codec, record.value, limit, magic, path, position)
    records = _inner_messages(inner, path, position)
    if not records:
        raise CorruptRecordError("wrapper message with no message in it", path=path, position=position)
    if outer_offset != 0 and magic == 1:            # 0: written by clients that let the broker assign offsets
        shift = outer_offset - (<Record> records[len(records) - 1][1]).offset
        if shift < 0:
            raise CorruptRecordError(
                f"wrapper message at offset {outer_offset} whose last inner offset is {outer_offset - shift}",
                path=path, position=position)
    for inner_magic, record in records:
        record.offset = wrapping_add(record.offset, shift)
        if outer_offset != 0 and record.offset > outer_offset:
            raise CorruptRecordError(
                f"message at offset {record.offset} in a wrapper message that ends at offset {outer_offset}", path=path,
                position=position)
        if magic == 1 and inner_magic == 1 and attributes & TIMESTAMP_TYPE_BIT:
            record.timestamp = outer_timestamp
    return [record for _, record in records]


cdef list _inner_messages(bytes data, object path, int64_t position):
    """Return (magic, record) of each whole message inside a wrapper, without a torn one at the end, as Kafka does."""
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(data)
    cdef int32_t size
    cdef int magic
    cdef list out = []
    while end - p >= LOG_OVERHEAD:
        size = load32(p + BATCH_LENGTH_AT)
        if size < MIN_V0_MESSAGE:
            raise CorruptRecordError(f"inner message of {size} bytes: {MIN_V0_MESSAGE} is the least", path=path,
                                     position=position)
        if size > end - p - LOG_OVERHEAD:
            break
        magic = <int8_t> p[MAGIC_AT]
        if magic not in (0, 1) or (magic == 1 and size < MIN_V1_MESSAGE):
            raise CorruptRecordError(f"inner message of {size} bytes and magic {magic}", path=path, position=position)
        if p[LEGACY_ATTRIBUTES_AT] & CODEC_MASK:
            raise CorruptRecordError("compressed message inside a compressed message", path=path, position=position)
        out.append((magic, _legacy_message(p, size + LOG_OVERHEAD, path, position)))
        p += size + LOG_OVERHEAD
    return out


cdef Record _legacy_message(const uint8_t *p, Py_ssize_t size, object path, int64_t position):
    """Return one message with its offset and timestamp as stored; `size` must cover the fixed fields."""
    cdef const uint8_t *end = p + size
    cdef const uint8_t *field = p + (LEGACY_TIMESTAMP_AT + 8 if p[MAGIC_AT] == 1 else LEGACY_TIMESTAMP_AT)
    cdef Record record = Record.__new__(Record)
    cdef int32_t n
    record.offset = load64(p)
    record.timestamp = load64(p + LEGACY_TIMESTAMP_AT) if p[MAGIC_AT] == 1 else -1
    record.headers = ()
    n = load32(field)
    field += 4
    if n >= 0:
        if n > end - field - 4:
            raise CorruptRecordError(f"key of {n} bytes in a message of {size - LOG_OVERHEAD}", path=path,
                                     position=position)
        record.key = PyBytes_FromStringAndSize(<const char *> field, n)
        field += n
    n = load32(field)
    field += 4
    if n >= 0:
        if n > end - field:
            raise CorruptRecordError(f"value of {n} bytes in a message of {size - LOG_OVERHEAD}", path=path,
                                     position=position)
        record.value = PyBytes_FromStringAndSize(<const char *> field, n)
    return record


# ---- Iterators over chunks of whole batches.


@cython.final
cdef class Guard:
    """A version number that a writer changes if data that iterators have read ahead may have become invalid.

    An iterator that sees a new `version` calls `recheck` of its source of chunks before it returns another record.
    Any thread may change `version`.
    """


class ReaderPosition(NamedTuple):
    """The state of an iterator: its next offset, the guard's version that it saw, and the batch of its last record."""

    next_offset: int
    seen_version: int
    base_offset: int  # -1 before the first batch
    crc: int


cdef class _Walk:
    """Base of both iterators: walks over chunks and their batches. Not thread-safe: concurrent calls are refused."""

    cdef object _chunks
    cdef object _recheck               # called if the guard has a new version, and before an error is raised
    cdef int64_t _given_base           # of the batch that the last record came from
    cdef int64_t _given_crc
    cdef int64_t _opened_base          # of the batch that was opened last
    cdef int64_t _opened_crc
    cdef Buffer _chunk
    cdef object _path
    cdef const uint8_t *_begin         # of the chunk
    cdef int64_t _at                   # file position of the chunk
    cdef const uint8_t *_p             # the next batch
    cdef const uint8_t *_end
    cdef int64_t _start_offset
    cdef int64_t _last_wanted          # end_offset - 1
    cdef Guard _guard
    cdef int64_t _seen
    cdef int _max_decompressed
    cdef bint _chained                 # chunks come with the least offset of their first batch
    cdef int64_t _least                # the least offset that the next batch may have
    cdef bint _check_crc
    cdef bint _strict                  # a chunk that ends inside a batch is an error
    cdef bint _done
    cdef bint _busy
    cdef readonly int64_t next_offset
    """The offset at which reading continues: one past the last record or batch that was returned or skipped."""

    def __cinit__(self):
        self._guard = Guard()
        self._done = True

    cdef int _open(self, chunks, int64_t start_offset, int64_t end_offset, bint check_crc, Guard guard,
                   max_decompressed_bytes) except -1:
        self._recheck = getattr(chunks, "recheck", None)
        self._chunks = iter(chunks)
        self._given_base = self._opened_base = -1
        self._start_offset = start_offset
        self._last_wanted = end_offset if end_offset == NO_LIMIT else end_offset - 1
        self._check_crc = check_crc
        self._guard = Guard() if guard is None else guard
        self._seen = self._guard.version
        self._max_decompressed = min(
            compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes,
            0x7fffffff)
        self._strict = True
        self._done = False
        self._chained = False
        self.next_offset = start_offset
        return 0

    def __iter__(self) -> Self:
        return self

    cdef int64_t _position(self, const uint8_t *p) noexcept:
        return self._at + (p - self._begin)

    cdef int _fail(self, object reason, const uint8_t *p) except -1:
        self._done = True
        raise CorruptRecordError(reason, path=self._path, position=self._position(p))

    cdef int _fail_below(self, offset, const uint8_t *p) except -1:
        """Fail because the first offset of the batch at `p` is too low; its format, 0 or 1, has no base offset."""
        return self._fail(f"a message at offset {offset}, and the one before is at {self._least - 1}", p)

    cdef int _ask_guard(self, error=None) except -1:
        """Call `recheck(position, error)` of the source of chunks; user code runs in here.

        `recheck` gets the iterator's `ReaderPosition`, and the `CorruptRecordError` that is about to be raised. It
        returns None to continue, returns other chunks to continue with those, or raises to end the iteration.
        """
        cdef int64_t seen = self._seen
        self._seen = self._guard.version
        if self._recheck is None:
            return 0
        if self._opened_base < self.next_offset:
            self._given_base = self._opened_base
            self._given_crc = self._opened_crc
        try:
            chunks = self._recheck(ReaderPosition(self.next_offset, seen, self._given_base, self._given_crc), error)
            if chunks is not None:
                self._recheck = chunks.recheck
                self._chunks = iter(chunks)
        except BaseException:
            self._done = True
            self._forget_batch()
            raise
        if chunks is not None:
            offset = getattr(chunks, "offset", self.next_offset)
            if offset != self.next_offset:
                self.next_offset = offset
                self._given_base = self._opened_base = -1          # the next batch does not follow the last one
            self._start_offset = offset
            self._p = self._end = self._begin
            self._done = False
            self._forget_batch()
        return 0

    cdef int _outlive(self, error) except -1:
        """Raise the error unless `recheck` returns other chunks to continue with."""
        if self._recheck is None:
            raise error
        self._ask_guard(error)
        if self._done:
            raise error
        return 0

    cdef int _forget_batch(self) except -1:
        return 0

    cdef int _opened(self, const uint8_t *p) except -1:
        """Remember the batch at `p`: the next records come from it."""
        if self._opened_base < self.next_offset:
            self._given_base = self._opened_base
            self._given_crc = self._opened_crc
        self._opened_base = load64(p)
        self._opened_crc = <uint32_t> load32(p + (CRC_AT if p[MAGIC_AT] == 2 else LOG_OVERHEAD))
        return 0

    cdef Py_ssize_t _next_frame(self) except -1:
        """Move `_p` to the next whole, checked batch that reaches the wanted offsets; return its size, 0 at the end."""
        cdef Py_ssize_t left
        cdef int32_t size
        cdef int64_t last
        cdef int8_t magic
        while not self._done:
            left = self._end - self._p
            if left == 0:
                self._load_chunk()
                continue
            if left < LOG_OVERHEAD:
                self._partial(left)
                continue
            size = load32(self._p + BATCH_LENGTH_AT)
            if size < MIN_V0_MESSAGE:
                self._fail(f"batch length {size}: {MIN_V0_MESSAGE} is the least", self._p)
            if left < HEADER_UP_TO_MAGIC:
                self._partial(left)
                continue
            magic = <int8_t> self._p[MAGIC_AT]
            if magic < 0 or magic > 2:
                self._fail(f"magic {magic}: 0, 1 and 2 are known", self._p)
            if size > left - LOG_OVERHEAD:
                self._partial(left)
                continue
            left = size + <Py_ssize_t> LOG_OVERHEAD
            if magic == 2:
                if left < RECORDS_AT:
                    self._fail(f"batch of {left} bytes: its header alone has {RECORDS_AT}", self._p)
                last = wrapping_add(load64(self._p), load32(self._p + LAST_OFFSET_DELTA_AT))
                if load64(self._p) > self._last_wanted:
                    self._done = True
                    return 0
            else:
                last = load64(self._p)
            # Check before skipping: a corrupt header may claim that its batch ends below the start.
            reason = _check_frame(self._p, left, self._check_crc)
            if reason is not None:
                self._fail(reason, self._p)
            if last < self._start_offset:
                self._p += left
                self._least = wrapping_add(last, 1)
                continue
            return left
        return 0

    cdef int _partial(self, Py_ssize_t left) except -1:
        if self._strict:
            self._fail(f"the data ends inside a batch, of which {left} bytes are there", self._p)
        self._p = self._end
        return 0

    cdef int _load_chunk(self) except -1:
        """Take the next chunk; set `_done` at the end. User code may run in here."""
        cdef Buffer chunk
        try:
            item = next(self._chunks)
        except StopIteration:
            self._done = True
            return 0
        self._chained = len(item) == 4
        if self._chained:
            buffer, path, position, self._least = item
        else:
            buffer, path, position = item
        chunk = Buffer(buffer)
        self._at = position
        self._path = path
        self._chunk = chunk
        self._begin = self._p = chunk.p
        self._end = chunk.p + chunk.size
        return 0

    cdef int _enter(self) except -1:
        if self._busy:
            raise ValueError("iterator already executing")
        self._busy = True
        return 0


@cython.final
cdef class RecordIterator(_Walk):
    """Iterate over the `Record`s of `[start_offset, end_offset)` in chunks `(buffer, path, position)`.

    Each buffer contains whole batches, the first at `position` of `path`. The iterator holds a buffer until it needs
    the next one; records copy their bytes. A chunk may have a fourth item, the offset at which the batch before it
    ended: messages of formats 0 and 1 below it are an error. Batches below the start are checked and skipped; control
    records are skipped unless `include_control`. After a `CorruptRecordError` the iteration ends. Not thread-safe: a
    concurrent call raises `ValueError` and never returns a wrong record.
    """

    cdef object _section               # holds the bytes that records are read from
    cdef const uint8_t *_r
    cdef const uint8_t *_r_end
    cdef const uint8_t *_batch
    cdef int32_t _left
    cdef int64_t _base_offset
    cdef int64_t _base_timestamp
    cdef int64_t _next_batch_offset
    cdef uint32_t _last_delta          # greatest offset delta that a record may have
    cdef bint _append_time
    cdef bint _include_control
    cdef list _legacy                  # reversed
    cdef Refilled[2] _refilled         # used alternately: a loop drops a record only when it has the next one
    cdef int _turn

    def __dealloc__(self):
        Py_XDECREF(self._refilled[0].record)
        Py_XDECREF(self._refilled[1].record)

    def __init__(self,
                 chunks: Iterable[_Chunk], int64_t start_offset=0, int64_t end_offset=0x7fffffffffffffff, *, bint check_crc=True,
                 Guard guard=None, bint include_control=False, max_decompressed_bytes: int | None = None):
        self._open(chunks, start_offset, end_offset, check_crc, guard, max_decompressed_bytes)
        self._include_control = include_control
        self._next_batch_offset = start_offset

    def __next__(self) -> Record:
        cdef ks_record r
        cdef const uint8_t *q
        cdef int64_t offset, timestamp
        cdef object section
        while True:
            if self._guard.version != self._seen:
                self._ask_guard()
            if self._left > 0:
                q = ks_parse_record(self._r, self._r_end, &r)
                if q == NULL:
                    self._fail_inside(fault_text(r.fault))
                    continue
                self._r = q
                self._left -= 1
                offset = wrapping_add(self._base_offset, r.offset_delta)
                if <uint32_t> r.offset_delta > self._last_delta:
                    self._fail_inside(outside(offset, self._base_offset, self._next_batch_offset - 1))
                    continue
                if self._left == 0 and q != self._r_end:
                    self._fail_inside(fault_text(KS_TRAILING_BYTES))
                    continue
                if offset > self._last_wanted:
                    self._left = 0
                    self._done = True
                    raise StopIteration
                self.next_offset = self._next_batch_offset if self._left == 0 else wrapping_add(offset, 1)
                if offset < self._start_offset:
                    continue
                timestamp = self._base_timestamp
                if not self._append_time:
                    timestamp = wrapping_add(timestamp, r.timestamp_delta)
                if r.headers_count == 0:
                    if <int64_t> r.key_size + r.value_size <= REFILLED_BYTES:
                        self._turn ^= 1
                        return _record_again(&self._refilled[self._turn], offset, timestamp, r.key, r.key_size, r.value,
                                             r.value_size, ())
                    return _record(offset, timestamp, r.key, r.key_size, r.value, r.value_size, ())
                section = self._section        # making headers may start a garbage collection: hold the bytes
                headers = _headers(r.headers, r.end, r.headers_count, offset)
                return _record(offset, timestamp, r.key, r.key_size, r.value, r.value_size, headers)
            if self._legacy is not None and len(self._legacy):
                record = <Record> self._legacy.pop()
                if (<Record> record).offset > self._last_wanted:
                    self._legacy = None
                    self._done = True
                    raise StopIteration
                self.next_offset = wrapping_add((<Record> record).offset, 1)
                if (<Record> record).offset < self._start_offset:
                    continue
                return record
            if not self._open_batch() and self._guard.version == self._seen:
                raise StopIteration

    @property
    def needs_bytes(self) -> bool:
        """Whether the next record is not in memory, so that `next` reads from a file."""
        return self._left == 0 and self._p == self._end and not self._legacy

    @property
    def in_memory(self) -> int:
        """How many of the next records are in memory, as far as is known without looking at the next batch."""
        if self._left > 1 and self.next_offset >= self._start_offset:
            return self._left
        return not self.needs_bytes

    def resume(self, int64_t end_offset) -> None:
        """Continue to `end_offset`, also after the end was reached; for a caller that waits for new records itself.

        Calls `recheck` as for a new version of the guard; it raises if records returned before are no longer valid.
        """
        self._last_wanted = end_offset if end_offset == NO_LIMIT else end_offset - 1
        self._ask_guard()

    cdef int _forget_batch(self) except -1:
        self._left = 0
        self._legacy = None
        return 0

    cdef int _fail_inside(self, object reason) except -1:
        """Fail for a record of the opened batch unless `recheck` returns other chunks to continue with."""
        self._left = 0
        try:
            self._fail(reason, self._batch)
        except CorruptRecordError as error:
            self._outlive(error)
        return 0

    cdef bint _open_batch(self) except -1:
        """Prepare the records of the next batch; return False at the end."""
        try:
            return self._open_next_batch()
        except CorruptRecordError as error:
            self._outlive(error)
            return True

    cdef bint _open_next_batch(self) except -1:
        cdef Py_ssize_t size
        cdef const uint8_t *p
        cdef int16_t attributes
        cdef int32_t count, last_delta
        cdef bytes data
        self._enter()
        try:
            size = self._next_frame()
            if size == 0:
                return False
            p = self._batch = self._p
            self._opened(p)
            if p[MAGIC_AT] != 2:
                records = _legacy_records(p, size, self._max_decompressed, self._path, self._position(p))
                if self._chained and (<Record> records[0]).offset < self._least:
                    self._fail_below((<Record> records[0]).offset, p)
                self._least = wrapping_add(load64(p), 1)
                records.reverse()
                self._legacy = records
                self._p = p + size
                return True
            attributes = load16(p + ATTRIBUTES_AT)
            count = load32(p + RECORDS_COUNT_AT)
            last_delta = load32(p + LAST_OFFSET_DELTA_AT)
            self._base_offset = load64(p)
            self._last_delta = <uint32_t> last_delta
            self._least = self._next_batch_offset = wrapping_add(wrapping_add(self._base_offset, last_delta), 1)
            self._append_time = attributes & TIMESTAMP_TYPE_BIT != 0
            self._base_timestamp = load64(p + (MAX_TIMESTAMP_AT if self._append_time else BASE_TIMESTAMP_AT))
            if count < 0:
                self._fail(f"batch that declares {count} records", p)
            if count and (last_delta < 0 or self._base_offset > NO_LIMIT - last_delta):
                self._fail(f"batch with records and a last offset delta of {last_delta} from offset {self._base_offset}", p)
            if count == 0 or (attributes & CONTROL_BIT and not self._include_control):
                self._p = p + size
                self.next_offset = self._next_batch_offset
                return True
            if attributes & CODEC_MASK == 0:
                self._section = self._chunk
                self._r = p + RECORDS_AT
                self._r_end = p + size
            else:
                data = record_section(p, size, self._max_decompressed, self._path, self._position(p))
                self._section = data
                self._r = <const uint8_t *> PyBytes_AS_STRING(data)
                self._r_end = self._r + PyBytes_GET_SIZE(data)
            self._p = p + size
            self._left = count
            return True
        except BaseException:
            self._done = True
            raise
        finally:
            self._busy = False


@cython.final
cdef class BatchIterator(_Walk):
    """Iterate over the `RecordBatch`es that reach into `[start_offset, end_offset)`, in chunks as for `RecordIterator`.

    Each batch owns its bytes. After a `CorruptRecordError` the iteration ends. Not thread-safe: a concurrent call
    raises `ValueError`.
    """

    cdef bytes _shared                 # the only chunk, if batches may refer to it

    def __init__(self,
                 chunks: Iterable[_Chunk], int64_t start_offset=0, int64_t end_offset=0x7fffffffffffffff, *, bint check_crc=True,
                 Guard guard=None, max_decompressed_bytes: int | None = None):
        self._open(chunks, start_offset, end_offset, check_crc, guard, max_decompressed_bytes)

    def __next__(self) -> RecordBatch:
        cdef Py_ssize_t size
        cdef RecordBatch batch
        cdef const uint8_t *p
        self._enter()
        try:
            while True:
                if self._guard.version != self._seen:
                    self._ask_guard()
                try:
                    size = self._next_frame()
                except CorruptRecordError as error:
                    self._outlive(error)
                    continue
                if self._guard.version == self._seen:
                    break
            if size == 0:
                raise StopIteration
            p = self._p
            self._opened(p)
            if self._shared is not None:
                batch = _batch(self._shared, p - self._begin, size, self._max_decompressed, self._path, self._position(p))
            else:
                batch = _batch(PyBytes_FromStringAndSize(<const char *> p, size), 0, size, self._max_decompressed,
                               self._path, self._position(p))
            if p[MAGIC_AT] != 2 and self._last_wanted != NO_LIMIT and batch.base_offset > self._last_wanted:
                self._done = True
                raise StopIteration
            if p[MAGIC_AT] != 2 and self._chained and batch.base_offset < self._least:
                self._fail_below(batch.base_offset, p)
            self._p = p + size
            self._least = self.next_offset = wrapping_add(batch.last_offset, 1)
            return batch
        except BaseException:
            self._done = True
            raise
        finally:
            self._busy = False


def decode_batches(buffer: ReadableBuffer, check_crc: bool = True, *, path: StrPath | None = None, int64_t position=0,
                   max_decompressed_bytes: int | None = None) -> BatchIterator:
    """Iterate over the `RecordBatch`es in a buffer.

    A batch that is cut off by the end of the buffer is left out without an error, as Kafka's clients do with the
    bytes of a fetch (FORMAT 2.7).

    Args:
        buffer: Record batches of any format. The batches refer to it if it is `bytes`, otherwise to a copy.
        check_crc: Whether to compare each batch with its CRC.
        path: The file that errors and batches name; None for bytes in memory.
        position: The position of the buffer's first byte in that file.
        max_decompressed_bytes: The most that a batch may decompress to; `compression.MAX_DECOMPRESSED_BYTES` if None.

    Returns:
        An iterator. It is not thread-safe: a concurrent call of `next` raises `ValueError`.

    Raises:
        CorruptRecordError: If a batch has a wrong length, magic, size or CRC; the iterator raises it, and ends.

    Example:
        >>> first = kstore.encode_batch([(b"alice", b"3 apples")])
        >>> second = kstore.encode_batch([(b"bob", b"1 pear")], base_offset=1)
        >>> for batch in kstore.decode_batches(first + second):
        ...     print(batch.base_offset, [record.value for record in batch])
        0 [b'3 apples']
        1 [b'1 pear']
    """
    cdef BatchIterator walk
    data = as_bytes(buffer, "buffer")
    walk = BatchIterator(((data, path, position),), -NO_LIMIT - 1, check_crc=check_crc,
                         max_decompressed_bytes=max_decompressed_bytes)
    walk._strict = False
    walk._shared = data
    return walk
