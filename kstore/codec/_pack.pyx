# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The encoder: packs records, in any form that users write, into v2 record batches.

A batch has base offset 0 and leader epoch -1 until a log assigns others; its CRC covers neither. Invariant: a packer
in use refuses to be entered again, since packing a record can run the user's code (iterators, buffers).
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from kstore._core cimport MAX_HEADERS, Record, as_bytes, ks_parse_record, ks_record, ks_too_far
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BatchHead, CONTROL_BIT, CRC_AT, LEADER_EPOCH_AT, RECORDS_AT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
    batch_size, put_header, put_uvarint, store32, store64, uvarint_size,
)

import time

from kstore.base import arguments, numbers, times
from kstore.codec import compression as codecs, refusals
from kstore.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept
    uint32_t ks_crc32c_joined(uint32_t first, uint32_t second, uint64_t n) noexcept

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    FIRST_CAPACITY = 65536
    SHRUNK_CAPACITY = 4096             # the least capacity after `shrink`, which is for packers of which many exist
    MAX_GROWTH = 14                    # bytes by which a record may grow when its base offset and timestamp change
    KEPT_BUFFERS = 64
    KEPT_BYTES = 33554432

cdef int64_t INT32_LIMIT = 0x7fffffff
cdef const char *NO_HEADERS = b"\x00"

# Buffers of freed packers, for reuse, the newest last: the first access to fresh memory costs more than the encoding.
# The GIL guards them.
cdef uint8_t *kept[KEPT_BUFFERS]
cdef Py_ssize_t kept_sizes[KEPT_BUFFERS]
cdef int kept_count = 0
cdef Py_ssize_t kept_bytes = 0


cdef void drop_oldest() noexcept:
    global kept_count, kept_bytes
    PyMem_RawFree(kept[0])
    kept_count -= 1
    kept_bytes -= kept_sizes[0]
    memmove(kept, kept + 1, kept_count * sizeof(kept[0]))
    memmove(kept_sizes, kept_sizes + 1, kept_count * sizeof(kept_sizes[0]))


cdef void keep(uint8_t *data, Py_ssize_t size) noexcept:
    """Keep a buffer for a later packer, and free the oldest kept ones if there are too many."""
    global kept_count, kept_bytes
    if not FIRST_CAPACITY <= size <= KEPT_BYTES:
        PyMem_RawFree(data)
        return
    while kept_count == KEPT_BUFFERS or kept_bytes + size > KEPT_BYTES:
        drop_oldest()
    kept[kept_count] = data
    kept_sizes[kept_count] = size
    kept_count += 1
    kept_bytes += size


# stub: _Data: TypeAlias = ReadableBuffer | None
# stub: _Item: TypeAlias = ReadableBuffer | Record | tuple[_Data, _Data] | tuple[_Data, _Data, int | None, Headers | None]


def give_back_memory() -> None:
    """Return the kept buffers to the system."""
    while kept_count:
        drop_oldest()


cdef uint8_t *take_kept(Py_ssize_t size, Py_ssize_t most, Py_ssize_t *capacity) noexcept:
    """Take the newest kept buffer of `size` to `most` bytes; return NULL if there is none."""
    global kept_count, kept_bytes
    cdef uint8_t *data
    cdef int i
    for i in range(kept_count - 1, -1, -1):
        if size <= kept_sizes[i] <= most:
            data = kept[i]
            capacity[0] = kept_sizes[i]
            kept_count -= 1
            kept_bytes -= capacity[0]
            memmove(kept + i, kept + i + 1, (kept_count - i) * sizeof(kept[0]))
            memmove(kept_sizes + i, kept_sizes + i + 1, (kept_count - i) * sizeof(kept_sizes[0]))
            return data
    return NULL


cdef bytes common_headers(object headers):
    """Encode headers of the common form, with their count first; return None for any other form.

    The common form is a list or tuple of tuples (name, value): a str that UTF-8 can encode, and bytes or None. Runs no
    Python code.
    """
    cdef Py_ssize_t count, n, i, size
    cdef const char *name
    cdef bytes out
    cdef uint8_t *p
    cdef tuple pair
    if type(headers) is not list and type(headers) is not tuple:
        return None
    count = len(headers)
    if count > MAX_HEADERS:
        return None
    size = uvarint_size(<uint64_t> count << 1)
    for i in range(count):
        if type(headers[i]) is not tuple:
            return None
        pair = headers[i]
        if len(pair) != 2 or type(pair[0]) is not str or not (pair[1] is None or type(pair[1]) is bytes):
            return None
        try:
            PyUnicode_AsUTF8AndSize(pair[0], &n)
        except UnicodeEncodeError:
            return None
        size += uvarint_size(<uint64_t> n << 1) + n
        n = 0 if pair[1] is None else PyBytes_GET_SIZE(pair[1])
        size += uvarint_size(<uint64_t> n << 1) + n
    out = PyBytes_FromStringAndSize(NULL, size)
    p = put_uvarint(<uint8_t *> PyBytes_AS_STRING(out), <uint64_t> count << 1)
    for i in range(count):
        pair = headers[i]
        name = PyUnicode_AsUTF8AndSize(pair[0], &n)
        p = put_uvarint(p, <uint64_t> n << 1)
        memcpy(p, name, <size_t> n)
        p += n
        if pair[1] is None:
            p[0] = 1
            p += 1
            continue
        n = PyBytes_GET_SIZE(pair[1])
        p = put_uvarint(p, <uint64_t> n << 1)
        memcpy(p, PyBytes_AS_STRING(pair[1]), <size_t> n)
        p += n
    return out


def encode_headers(headers: Headers | None) -> bytes:
    """Encode the headers of a single record, in any form that `Packer.pack` accepts.

    Raises `TypeError` or `InvalidRecordError`.
    """
    return common_headers(headers) or Packer(1, 1, now_ms=0)._encode_headers(headers)


@cython.final
cdef class Packer:
    """Packs records into consecutive v2 batches in one growing, reused buffer.

    A batch closes when its header and records, before compression, would exceed `batch_bytes`; a larger record gets its
    own batch. A batch that exceeds `max_batch_bytes` as written, or would decompress to more than readers accept
    (`compression.MAX_DECOMPRESSED_BYTES`), is split; if it has one record, `RecordTooLargeError` is raised. With
    `single=True` all records go into one batch, or `RecordTooLargeError` is raised. With `draft=True` batches get no
    checksum. Sequence numbers continue from batch to batch. If a record is refused, the open batch is dropped and
    `buffer` keeps the finished ones. Not thread-safe: a call during another call, even by the user's code that this
    other call runs, raises `RuntimeError`.
    """

    def __init__(self, int64_t batch_bytes, int64_t max_batch_bytes, int compression=0, level: int | None = None, *,
                 int64_t now_ms, str timestamp_type="CreateTime", int64_t producer_id=-1, int16_t producer_epoch=-1,
                 int32_t base_sequence=-1, bint transactional=False, bint control=False,
                 int64_t before_max_ms=0x7fffffffffffffff, int64_t after_max_ms=0x7fffffffffffffff,
                 bint require_key=False, bint single=False, bint draft=False):
        codecs.type_name(compression)
        codecs.check_level(compression, level)
        if timestamp_type not in ("CreateTime", "LogAppendTime"):
            raise ValueError(f"timestamp type {timestamp_type!r}: CreateTime and LogAppendTime are known")
        if transactional and producer_id < 0:
            raise InvalidRecordError("a transactional batch needs a producer id")
        if producer_id >= 0 and producer_epoch < 0:
            raise InvalidRecordError(f"producer id {producer_id} with producer epoch {producer_epoch}")
        if producer_id >= 0 and base_sequence < 0 and not control:
            raise InvalidRecordError(f"producer id {producer_id} with base sequence {base_sequence}")
        self._batch_bytes = min(batch_bytes, max_batch_bytes, INT32_LIMIT)
        self._max_batch_bytes = min(max_batch_bytes, INT32_LIMIT)
        self._codec = compression
        self._level = level
        self._attributes = <int16_t> (compression | (TIMESTAMP_TYPE_BIT if timestamp_type == "LogAppendTime" else 0)
                                      | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0))
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._before_max_ms = before_max_ms
        self._after_max_ms = after_max_ms
        self._require_key = require_key
        self._single = single
        self._draft = draft
        self._least = FIRST_CAPACITY
        self.now_ms = now_ms
        self.max_timestamp = -1

    def __dealloc__(self):
        keep(self.data, self._capacity)

    # ---- For callers.

    def pack(self, iterator: Iterator[_Item], Py_ssize_t limit_bytes=0x7fffffff) -> bool:
        """Pack records until `limit_bytes` of finished batches are in `buffer`; return False once `iterator` has ended.

        Items are buffers (values), `(key, value)`, `(key, value, timestamp, headers)` or `Record`, whose offset is
        ignored. Exceptions of the iterator propagate. Raises `InvalidRecordError`, `InvalidTimestampError`,
        `RecordTooLargeError` or `TypeError` with the index of a refused record.
        """
        if iter(iterator) is not iterator:
            raise TypeError(f"{type(iterator).__name__} is no iterator: wrap it in iter(...)")
        self.enter()
        try:
            if self.finished >= limit_bytes:
                return True
            for item in iterator:
                self._take(item)
                if self.finished >= limit_bytes:
                    return True
            self.close_batch()
            return False
        except BaseException:
            self.drop_open()
            raise
        finally:
            self.leave()

    @property
    def buffer(self) -> memoryview:
        """A writable view of the finished batches; while it exists, `pack` and `clear` raise `BufferError`."""
        return memoryview(self)

    def __len__(self):
        return self.finished

    def clear(self) -> None:
        """Drop the finished batches; an open batch remains open."""
        self.enter()
        self._clear()
        self.leave()

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data if self.finished else <void *> NO_HEADERS, self.finished, 0, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    # ---- For callers in C.

    cdef int enter(self) except -1:
        if self._busy:
            raise RuntimeError("this packer is at work: it was called from another thread, or from a record's own code")
        if self._exports:
            raise BufferError("a view of this packer's buffer is alive")
        self._busy = True
        return 0

    cdef void leave(self) noexcept:
        self._busy = False

    cdef void drop_open(self) noexcept:
        self._used = self.finished
        self._count = 0
        self._summed = 0

    cdef int shrink(self) except -1:
        cdef void *data
        self._least = SHRUNK_CAPACITY
        if self._used == 0:
            PyMem_RawFree(self.data)
            self.data = NULL
            self._capacity = 0
        elif self._used < self._capacity:
            data = PyMem_RawRealloc(self.data, <size_t> self._used)
            if data != NULL:
                self.data = <uint8_t *> data
                self._capacity = self._used
        return 0

    cdef void sum_up(self) noexcept nogil:
        if self._draft:
            return
        cdef const uint8_t *p = self.data + self.finished + RECORDS_AT + self._summed
        cdef Py_ssize_t size = self.data + self._used - p
        self._crc = ks_crc32c(self._crc if self._summed else 0, p, <size_t> size)
        self._summed += size

    cdef int _clear(self) except -1:
        if self._used > self.finished:
            memmove(self.data, self.data + self.finished, self._used - self.finished)
        self._used -= self.finished
        self.finished = 0
        self.batches = 0
        self.max_timestamp = -1
        return 0

    cdef int add(self, object value, object key, object timestamp, object headers) except -1:
        """Add one record to the open batch; a timestamp of None means now."""
        cdef int64_t stamp = self.now_ms if timestamp is None else self._check_timestamp(timestamp)
        cdef const void *key_data = NULL
        cdef const void *value_data = NULL
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef bytes held_key, held_value, encoded
        if key is not None:
            held_key = as_bytes(key, f"key of record {self.records}") if type(key) is not bytes else key
            key_data = PyBytes_AS_STRING(held_key)
            key_size = PyBytes_GET_SIZE(held_key)
        if value is not None:
            held_value = as_bytes(value, f"value of record {self.records}") if type(value) is not bytes else value
            value_data = PyBytes_AS_STRING(held_value)
            value_size = PyBytes_GET_SIZE(held_value)
        if headers is None or (type(headers) is tuple and len(<tuple> headers) == 0):
            return self._append(key_data, key_size, value_data, value_size, stamp, NO_HEADERS, 1)
        encoded = common_headers(headers) or self._encode_headers(headers)
        return self._append(key_data, key_size, value_data, value_size, stamp, PyBytes_AS_STRING(encoded),
                            PyBytes_GET_SIZE(encoded))

    cdef int close_batch(self) except -1:
        """Finish the open batch, if there is one."""
        cdef Py_ssize_t size = self._used - self.finished
        if self._count == 0:
            return 0
        if self._codec != 0:
            return self._close_compressed()
        self._write_header(self.finished, size, self._count, self._base_timestamp, self._open_max)
        self._count = 0
        return 0

    # ---- One record.

    cdef int _take(self, object item) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Record record
        if type(item) is tuple:
            if len(<tuple> item) == 2:
                key = <PyObject *> (<tuple> item)[0]
                value = <PyObject *> (<tuple> item)[1]
                if type(<object> value) is bytes:
                    if type(<object> key) is bytes:
                        return self._put(PyBytes_AS_STRING(<object> key), PyBytes_GET_SIZE(<object> key),
                                         PyBytes_AS_STRING(<object> value), PyBytes_GET_SIZE(<object> value))
                    if <object> key is None:
                        return self._put(NULL, -1, PyBytes_AS_STRING(<object> value), PyBytes_GET_SIZE(<object> value))
                return self.add(<object> value, <object> key, None, None)
            if len(<tuple> item) == 4:
                return self.add((<tuple> item)[1], (<tuple> item)[0], (<tuple> item)[2], (<tuple> item)[3])
        elif type(item) is bytes:
            return self._put(NULL, -1, PyBytes_AS_STRING(item), PyBytes_GET_SIZE(item))
        elif type(item) is Record:
            record = <Record> item
            return self.add(record.value, record.key, record.timestamp, record.headers)
        elif isinstance(item, tuple):
            return self._take(tuple(item))
        elif item is not None:
            return self.add(item, None, None, None)
        shape = f"tuple of {len(item)}" if isinstance(item, tuple) else type(item).__name__
        raise TypeError(
            f"record {self.records} is {shape}: bytes, (key, value), (key, value, timestamp, headers) or Record is wanted")

    cdef inline int _put(self, const char *key, Py_ssize_t key_size, const char *value, Py_ssize_t value_size) except -1:
        if put_plain(self, key, key_size, value, value_size):
            return 0
        return self._append(key, key_size, value, value_size, self.now_ms, NO_HEADERS, 1)

    cdef int64_t _check_timestamp(self, object timestamp) except? -2:
        cdef int overflow = 0
        cdef int64_t stamp
        if type(timestamp) is not int:
            timestamp = times.milliseconds(f"timestamp of record {self.records}", timestamp)
        stamp = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
        if overflow or stamp < -1:
            self._refuse(InvalidTimestampError, refusals.no_timestamp(timestamp))
        return stamp

    cdef int _check(self, Py_ssize_t key_size, int64_t stamp) except -1:
        """Check the rules for one record, in Kafka's order (SEMANTICS 1.16, 1.17)."""
        if self._require_key and key_size < 0:
            self._refuse(InvalidRecordError, refusals.NO_KEY)
        if stamp != -1 and not self._attributes & TIMESTAMP_TYPE_BIT:
            if ks_too_far(stamp, self.now_ms, self._before_max_ms, self._after_max_ms):
                self._refuse(InvalidTimestampError,
                             refusals.too_far(stamp, self.now_ms, self._before_max_ms, self._after_max_ms))
        return 0

    cdef bytes _encode_headers(self, object headers):
        """Encode the number of headers and the headers as in a record."""
        cdef list flat = []
        cdef Py_ssize_t size
        cdef bytes out, name_bytes
        cdef object value_bytes
        cdef uint8_t *p
        for pair in headers if isinstance(headers, (list, tuple)) else arguments.header_pairs(headers):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"header of record {self.records} is no (name, value) pair")
            name, value = pair
            if not isinstance(name, str):
                raise TypeError(f"header name in record {self.records} is {type(name).__name__}: str is wanted")
            try:
                name_bytes = name.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                self._refuse(InvalidRecordError, f"header name {name!r}: {error}")
            flat.append(name_bytes)
            flat.append(None if value is None else as_bytes(value, f"header value of record {self.records}"))
        if len(flat) > 2 * MAX_HEADERS:
            self._refuse(InvalidRecordError, f"{len(flat) // 2} headers; at most {MAX_HEADERS} are read as objects")
        size = uvarint_size(<uint64_t> len(flat))          # twice the count is its zigzag form
        for part in flat:
            size += 1 if part is None else uvarint_size(<uint64_t> len(<bytes> part) << 1) + len(<bytes> part)
        out = PyBytes_FromStringAndSize(NULL, size)
        p = put_uvarint(<uint8_t *> PyBytes_AS_STRING(out), <uint64_t> len(flat))
        for part in flat:
            if part is None:
                p[0] = 1
                p += 1
            else:
                p = put_uvarint(p, <uint64_t> len(<bytes> part) << 1)
                memcpy(p, PyBytes_AS_STRING(part), <size_t> PyBytes_GET_SIZE(part))
                p += PyBytes_GET_SIZE(part)
        return out

    cdef int _append(self, const void *key, Py_ssize_t key_size, const void *value, Py_ssize_t value_size,
                     int64_t timestamp, const void *headers, Py_ssize_t headers_size) except -1:
        cdef uint64_t body, total
        if self._count == 0:
            self._open(timestamp)
        while True:
            body = ks_body_size(timestamp - self._base_timestamp, self._count, key_size, value_size, headers_size)
            total = body + <uint64_t> uvarint_size(body << 1)
            if <uint64_t> (self._used - self.finished) + total <= <uint64_t> self._batch_bytes:
                break
            if self._count == 0:                    # too large for `_batch_bytes`: the record gets its own batch
                if RECORDS_AT + total > <uint64_t> (INT32_LIMIT if self._codec else self._max_batch_bytes):
                    self._refuse(RecordTooLargeError, f"a batch of {RECORDS_AT + total} bytes, where at most "
                                                      f"{self._max_batch_bytes} are allowed")
                break
            if self._single:
                if self._codec and <uint64_t> (self._used - self.finished) + total <= <uint64_t> INT32_LIMIT:
                    break
                self._refuse(RecordTooLargeError, f"one batch of all records would exceed the {self._max_batch_bytes} "
                                                  f"bytes allowed")
            self.close_batch()
            self._open(timestamp)
        self._check(key_size, timestamp)
        if self._used + <Py_ssize_t> total > self._capacity:
            self._reserve(<Py_ssize_t> total)
        ks_put_record(self.data + self._used, body, timestamp - self._base_timestamp, self._count, key, key_size,
                      value, value_size, headers, headers_size)
        self._used += <Py_ssize_t> total
        self._count += 1
        self.records += 1
        if timestamp > self._open_max:
            self._open_max = timestamp
        return 0

    cdef int _open(self, int64_t timestamp) except -1:
        if self._used + RECORDS_AT > self._capacity:
            self._reserve(RECORDS_AT)
        self._used += RECORDS_AT
        self._base_timestamp = timestamp
        self._open_max = -1
        return 0

    cdef int _reserve(self, Py_ssize_t extra) except -1:
        cdef Py_ssize_t wanted = max(self._least, self._used + extra, 2 * self._capacity)
        # A growing buffer usually grows again, with a copy each time: take a much larger one, except after `shrink`.
        cdef bint may_be_large = self._capacity > 0 and self._least == FIRST_CAPACITY
        cdef uint8_t *data = take_kept(wanted, (8 if may_be_large else 2) * wanted, &wanted)
        if data != NULL:
            if self._used:
                memcpy(data, self.data, <size_t> self._used)
            keep(self.data, self._capacity)
        else:
            data = <uint8_t *> PyMem_RawRealloc(self.data, <size_t> wanted)
            if data == NULL:
                raise MemoryError
        self.data = data
        self._capacity = wanted
        return 0

    cdef int _refuse(self, object kind, object reason) except -1:
        return self._refuse_at(self.records, kind, reason)

    cdef int _refuse_at(self, int64_t index, object kind, object reason) except -1:
        if issubclass(kind, InvalidRecordError):
            raise kind(f"record {index}: {reason}", record_errors=((index, reason),))
        raise kind(f"record {index}: {reason}")

    # ---- One batch.

    cdef void _write_header(self, Py_ssize_t start, Py_ssize_t size, int32_t count, int64_t base_timestamp,
                            int64_t max_timestamp) noexcept nogil:
        """Write the header of the batch of `size` bytes at `start`, and count the batch as finished."""
        cdef uint8_t *p = self.data + start
        cdef BatchHead head
        if self._attributes & TIMESTAMP_TYPE_BIT:
            max_timestamp = self.now_ms
        head.base_timestamp = base_timestamp
        head.max_timestamp = max_timestamp
        head.producer_id = self._producer_id
        head.count = count
        head.base_sequence = self._base_sequence
        head.attributes = self._attributes
        head.producer_epoch = self._producer_epoch
        put_header(p, size, &head)
        if self._draft:
            self._crc = 0
        elif self._summed:
            self.sum_up()
            self._crc = ks_crc32c_joined(ks_crc32c(0, p + ATTRIBUTES_AT, RECORDS_AT - ATTRIBUTES_AT), self._crc,
                                         <uint64_t> (size - RECORDS_AT))
            self._summed = 0
        else:
            self._crc = ks_crc32c(0, p + ATTRIBUTES_AT, <size_t> (size - ATTRIBUTES_AT))
        store32(p + CRC_AT, <int32_t> self._crc)
        if self._producer_id >= 0 and self._base_sequence >= 0:
            self._base_sequence = <int32_t> ((<int64_t> self._base_sequence + count) & 0x7fffffff)
        self.finished = start + size
        self._used = self.finished
        self.batches += 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    cdef int _close_compressed(self) except -1:
        cdef Py_ssize_t start = self.finished + RECORDS_AT
        cdef bytes section = PyBytes_FromStringAndSize(<const char *> self.data + start, self._used - start)
        cdef int32_t count = self._count
        self._closing = self.records - count
        self.drop_open()
        return self._pack_section(section, count, self._base_timestamp, self._open_max)

    cdef int _pack_section(self, bytes section, int32_t count, int64_t base_timestamp, int64_t max_timestamp) except -1:
        """Compress and write a batch of these records; if it would be too large, write two with half of them each."""
        cdef bytes packed = codecs.compress(self._codec, section, self._level)
        return self._put_section(<const uint8_t *> PyBytes_AS_STRING(section), PyBytes_GET_SIZE(section),
                                 <const uint8_t *> PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), count,
                                 base_timestamp, max_timestamp)

    cdef int _put_section(self, const uint8_t *section, Py_ssize_t size, const uint8_t *packed, Py_ssize_t packed_size,
                          int32_t count, int64_t base_timestamp, int64_t max_timestamp) except -1:
        cdef Py_ssize_t batch_size = RECORDS_AT + packed_size
        cdef int64_t most = codecs.MAX_DECOMPRESSED_BYTES
        if batch_size > self._max_batch_bytes or size > most:
            if count == 1 or self._single:
                self._refuse_at(self._closing, RecordTooLargeError,
                                f"a batch of {batch_size} bytes, where at most {self._max_batch_bytes} are allowed"
                                if batch_size > self._max_batch_bytes else
                                f"a batch that decompresses to {size} bytes, where at most {most} are allowed")
            return self._split_section(section, size, count, base_timestamp)
        if self.finished + batch_size > self._capacity:
            self._reserve(batch_size)
        memcpy(self.data + self.finished + RECORDS_AT, packed, <size_t> packed_size)
        self._write_header(self.finished, batch_size, count, base_timestamp, max_timestamp)
        self._closing += count
        return 0

    cdef int _split_section(self, const uint8_t *p, Py_ssize_t size, int32_t count, int64_t base_timestamp) except -1:
        cdef const uint8_t *end = p + size
        cdef int32_t left, i
        cdef int64_t base, greatest, timestamp
        cdef uint64_t body
        cdef bytes half
        cdef uint8_t *out
        cdef ks_record r
        for left in (count // 2, count - count // 2):
            half = PyBytes_FromStringAndSize(NULL, end - p + <Py_ssize_t> left * MAX_GROWTH)
            out = <uint8_t *> PyBytes_AS_STRING(half)
            base = greatest = -1
            for i in range(left):
                p = ks_parse_record(p, end, &r)
                if p == NULL:
                    raise SystemError("a section that this packer wrote does not parse")
                timestamp = base_timestamp + r.timestamp_delta
                if i == 0:
                    base = timestamp
                greatest = max(greatest, timestamp)
                # The header section extends from the count, just before the first header, to the record's end.
                body = ks_body_size(timestamp - base, i, r.key_size, r.value_size,
                                    uvarint_size(<uint64_t> r.headers_count << 1) + (r.end - r.headers))
                out = ks_put_record(out, body, timestamp - base, i, r.key, r.key_size, r.value, r.value_size,
                                    r.headers - uvarint_size(<uint64_t> r.headers_count << 1),
                                    uvarint_size(<uint64_t> r.headers_count << 1) + (r.end - r.headers))
            self._pack_section(half[: out - <uint8_t *> PyBytes_AS_STRING(half)], left, base, greatest)
        return 0


def encode_batch(records: Iterable[_Item], *, base_offset: int = 0, compression: str = "none", level: int | None = None,
                 str timestamp_type="CreateTime", partition_leader_epoch: int = -1, producer_id: int = -1,
                 producer_epoch: int = -1, base_sequence: int = -1, bint transactional=False, bint control=False,
                 now_ms: int | None = None) -> bytes:
    """Encode all `records` as one v2 batch.

    Args:
        records: An iterable of buffers (values), `(key, value)`, `(key, value, timestamp, headers)` or `Record`, whose
            offset is ignored.
        base_offset: The offset of the first record; the others follow without gaps.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
        level: The compression level, as in Kafka's settings; by default Kafka's default for the type.
        timestamp_type: "CreateTime" or "LogAppendTime"; with the latter, `now_ms` is the timestamp of all records.
        partition_leader_epoch: The leader epoch of the batch; -1 means unknown.
        producer_id: The id of an idempotent producer, which needs an epoch and a base sequence; -1 means none.
        producer_epoch: The epoch of that producer.
        base_sequence: The sequence number of the first record.
        transactional: Whether the batch belongs to a transaction, which needs a producer id.
        control: Whether the records are control records.
        now_ms: The timestamp of records that have none, in milliseconds since the epoch; now if omitted.

    Returns:
        The bytes of the batch; no bytes if there are no records, as in Kafka.

    Raises:
        InvalidRecordError: If a record, `base_offset` or a field of the producer is not valid.
        InvalidTimestampError: If a timestamp is out of range.
        RecordTooLargeError: If the batch exceeds 2 GiB, or its records 256 MiB before compression.
        UnsupportedCompressionError: If the compression type is not known.
        ConfigError: If the compression type does not have this level.
        TypeError: If a record has another type, or a number is not an integer.
        ValueError: If a number is out of range, or the timestamp type is not known.

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples"), b"1 pear"], base_offset=7, compression="zstd")
        >>> [(record.offset, record.value) for decoded in kstore.decode_batches(batch) for record in decoded]
        [(7, b'3 apples'), (8, b'1 pear')]
    """
    cdef Packer packer
    cdef int64_t base = arguments.integer("base_offset", base_offset)
    cdef int32_t epoch = arguments.integer("partition_leader_epoch", partition_leader_epoch, -1, numbers.INT_MAX)
    if isinstance(records, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"records is {type(records).__name__}: an iterable of records is wanted, as in [value]")
    packer = Packer(
        INT32_LIMIT, INT32_LIMIT, codecs.type_id(compression), level, now_ms=_now() if now_ms is None else now_ms,
        timestamp_type=timestamp_type, producer_id=arguments.integer("producer_id", producer_id, -1),
        producer_epoch=arguments.integer("producer_epoch", producer_epoch, -1, numbers.SHORT_MAX),
        base_sequence=arguments.integer("base_sequence", base_sequence, -1, numbers.INT_MAX),
        transactional=transactional, control=control, single=True)
    packer.pack(iter(records), INT32_LIMIT)
    if packer.finished == 0:
        return b""
    if base < 0 or base + packer.records - 1 < base:
        raise InvalidRecordError(f"base offset {base} for {packer.records} records")
    store64(packer.data, base)
    store32(packer.data + LEADER_EPOCH_AT, epoch)
    return PyBytes_FromStringAndSize(<const char *> packer.data, packer.finished)


def _now():
    return time.time_ns() // 1_000_000
