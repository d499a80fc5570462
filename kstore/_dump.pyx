# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The lines of the dump tool: from a log's batches to text, without a Python object for a record.

Owns the walk over the batches of a `.log` file's bytes and the text of v2 batches and their records (DUMP.md 3); who
reads the file, and what is written about formats 0 and 1, is for `dump`. Hardest rule: what Kafka's tool has printed
when it stops in the middle of a line is in the output here, too, when an error is raised.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kstore._core cimport Buffer, fault_text, ks_parse_header, ks_parse_record, ks_record, record_section
from kstore._wire cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, CODEC_MASK, CONTROL_BIT, CRC_AT,
    DELETE_HORIZON_BIT, HEADER_UP_TO_MAGIC, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LOG_OVERHEAD, MAGIC_AT,
    MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, load16, load32, load64,
)

from kstore import compression
from kstore.errors import CorruptRecordError

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "record.h" nogil:
    enum:
        KS_ENDS_EARLY

cdef extern from "text.h" nogil:
    uint8_t *ks_put_int(uint8_t *out, int64_t value) noexcept
    uint8_t *ks_put_utf8(uint8_t *out, const uint8_t *p, size_t n) noexcept

cdef enum:
    FLUSH_BYTES = 262144          # written before it leaves the second-level cache
    BATCH_LINE_BYTES = 1024       # more than the longest batch line
    RECORD_LINE_BYTES = 512       # more than a record line without its keys, values and header names

cdef list CODEC_NAMES = [name.encode() for name in compression.NAMES]


cdef inline uint8_t *put(uint8_t *out, const char *text, size_t n) noexcept nogil:
    memcpy(out, text, n)
    return out + n


cdef inline uint8_t *put_flag(uint8_t *out, bint flag) noexcept nogil:
    return put(out, b"true", 4) if flag else put(out, b"false", 5)


cdef inline int32_t sequence_at(int32_t base, int32_t delta) noexcept nogil:
    """The sequence `delta` records after `base`, from 2^31 - 1 on to 0; -1 where there is none."""
    if base == -1:
        return -1
    if base > <int32_t> (<uint32_t> 0x7fffffff - <uint32_t> delta):
        return <int32_t> (<uint32_t> delta - (<uint32_t> 0x7fffffff - <uint32_t> base) - 1)
    return <int32_t> (<uint32_t> base + <uint32_t> delta)


cdef inline int64_t wrapping_add(int64_t a, int64_t b) noexcept nogil:
    return <int64_t> (<uint64_t> a + <uint64_t> b)


@cython.final
cdef class LogText:
    """Text of the batches of one `.log` file, handed to `write` piece by piece.

    `deep` asks for record lines, `contents` for keys and values in them, `metadata` for what stands before those.
    `control(key, value)` gives the text of a control record, `decode(offset, key, value)` that of a record's key and
    value (None: they are text already); both answer in bytes.
    `gaps` maps an offset to the one after it where that is not the next. After an error, `flush` hands over what
    was printed before it. Not thread-safe.
    """

    cdef uint8_t *_out
    cdef Py_ssize_t _size
    cdef Py_ssize_t _capacity
    cdef object _write
    cdef object _path
    cdef object _control
    cdef object _decode
    cdef bint _deep
    cdef bint _contents
    cdef bint _metadata
    cdef int64_t _previous
    cdef readonly dict gaps
    cdef readonly str stop
    """Why `feed` came back: "more" (bytes needed), "end" (of the batches), "legacy" or "short" (what is next)."""
    cdef readonly Py_ssize_t needed
    """How many bytes the next batch has, when `stop` is not "end"."""

    def __cinit__(self):
        self._previous = -1
        self.gaps = {}
        self.stop = "more"
        self.needed = HEADER_UP_TO_MAGIC

    def __init__(self, write, *, path, control, decode=None, bint deep=False, bint contents=False,
                 bint metadata=True):
        self._write = write
        self._path = path
        self._control = control
        self._decode = decode
        self._deep = deep
        self._contents = contents
        self._metadata = metadata

    def __dealloc__(self):
        PyMem_RawFree(self._out)

    def feed(self, data, Py_ssize_t size, int64_t position, int64_t end):
        """Print the batches in the first `size` bytes of `data`, which stand at `position` of a file of `end` bytes.

        Answers how many bytes that were; `stop` says why no more. `CorruptRecordError` where Kafka's tool stops.
        """
        cdef Buffer buffer = Buffer(data)
        cdef const uint8_t *p = buffer.p
        cdef const uint8_t *limit
        cdef int64_t at, length
        if not 0 <= size <= buffer.size:
            raise ValueError(f"size {size} of a buffer of {buffer.size} bytes")
        limit = p + size
        while True:
            at = position + (p - buffer.p)
            self.needed = HEADER_UP_TO_MAGIC
            if at >= end - HEADER_UP_TO_MAGIC:
                self.stop = "end"
                break
            if limit - p < HEADER_UP_TO_MAGIC:
                self.stop = "more"
                break
            length = load32(p + BATCH_LENGTH_AT)
            if length < MIN_V0_MESSAGE:
                raise CorruptRecordError(f"size {length} in a batch's header: the smallest is {MIN_V0_MESSAGE}",
                                         path=self._path, position=at)
            if at > end - LOG_OVERHEAD - length:
                self.stop = "end"
                break
            length += LOG_OVERHEAD
            self.needed = length
            if limit - p < length:
                self.stop = "more"
                break
            if <int8_t> p[MAGIC_AT] in (0, 1) or <int8_t> p[MAGIC_AT] < 0:
                self.stop = "legacy"
                break
            if length < RECORDS_AT:
                self.stop = "short"
                break
            self._line(p, at, length, <uint32_t> load32(p + CRC_AT) == ks_crc32c(
                0, p + ATTRIBUTES_AT, <size_t> (length - ATTRIBUTES_AT)))
            if self._deep:
                self._records(p, length, at)
            p += length
            if self._size >= FLUSH_BYTES:
                self.flush()
        return p - buffer.p

    def short_batch(self, header, int64_t position, Py_ssize_t size):
        """Print the line of a batch too small for its header, from the 61 bytes that stand where it begins."""
        cdef Buffer buffer = Buffer(header)
        if buffer.size < RECORDS_AT:
            raise CorruptRecordError(f"the file ends within the header of a batch of {size} bytes", path=self._path,
                                     position=position)
        self._line(buffer.p, position, size, False)
        if self._deep:
            raise CorruptRecordError(f"batch of {size} bytes: its header alone has {RECORDS_AT}", path=self._path,
                                     position=position)

    def put(self, bytes text not None):
        """Print `text` as it is."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(text)
        memcpy(self._reserve(n), PyBytes_AS_STRING(text), n)
        self._size += n

    def follow(self, int64_t offset):
        """Take note of a record's offset that was printed elsewhere."""
        self._follow(offset)

    def flush(self):
        """Hand over what is ready."""
        cdef Py_ssize_t size = self._size
        if size:
            self._size = 0
            self._write(PyMemoryView_FromMemory(<char *> self._out, size, PyBUF_READ))

    cdef uint8_t *_reserve(self, Py_ssize_t n) except NULL:
        cdef Py_ssize_t capacity
        cdef uint8_t *out
        if n > self._capacity - self._size:
            capacity = self._size + n
            capacity += capacity // 2 + FLUSH_BYTES
            out = <uint8_t *> PyMem_RawRealloc(self._out, capacity)
            if out == NULL:
                raise MemoryError(f"no {capacity} bytes for the text of a batch")
            self._out = out
            self._capacity = capacity
        return self._out + self._size

    cdef inline int _follow(self, int64_t offset) except -1:
        if offset != wrapping_add(self._previous, 1):
            self.gaps[self._previous] = offset
        self._previous = offset
        return 0

    cdef int _line(self, const uint8_t *p, int64_t position, int64_t size, bint valid) except -1:
        cdef int attributes = load16(p + ATTRIBUTES_AT)
        cdef int32_t last_delta = load32(p + LAST_OFFSET_DELTA_AT)
        cdef int32_t sequence = load32(p + BASE_SEQUENCE_AT)
        cdef int codec = attributes & CODEC_MASK
        cdef bytes name
        cdef uint8_t *start = self._reserve(BATCH_LINE_BYTES)
        cdef uint8_t *out = start
        out = ks_put_int(put(out, b"baseOffset: ", 12), load64(p))
        out = ks_put_int(put(out, b" lastOffset: ", 13), wrapping_add(load64(p), last_delta))
        out = ks_put_int(put(out, b" count: ", 8), load32(p + RECORDS_COUNT_AT))
        out = ks_put_int(put(out, b" baseSequence: ", 15), sequence)
        out = ks_put_int(put(out, b" lastSequence: ", 15), sequence_at(sequence, last_delta))
        out = ks_put_int(put(out, b" producerId: ", 13), load64(p + PRODUCER_ID_AT))
        out = ks_put_int(put(out, b" producerEpoch: ", 16), load16(p + PRODUCER_EPOCH_AT))
        out = ks_put_int(put(out, b" partitionLeaderEpoch: ", 23), load32(p + LEADER_EPOCH_AT))
        out = put_flag(put(out, b" isTransactional: ", 18), attributes & TRANSACTIONAL_BIT != 0)
        out = put_flag(put(out, b" isControl: ", 12), attributes & CONTROL_BIT != 0)
        out = put(out, b" deleteHorizonMs: OptionalLong", 30)
        if attributes & DELETE_HORIZON_BIT:
            out = ks_put_int(put(out, b"[", 1), load64(p + BASE_TIMESTAMP_AT))
            out = put(out, b"]", 1)
        else:
            out = put(out, b".empty", 6)
        if codec >= <int> len(CODEC_NAMES):
            self._size += out - start
            raise CorruptRecordError(f"compression type {codec}: 0 to 4 are known", path=self._path, position=position)
        out = ks_put_int(put(out, b" position: ", 11), position)
        if attributes & TIMESTAMP_TYPE_BIT:
            out = put(out, b" LogAppendTime: ", 16)
        else:
            out = put(out, b" CreateTime: ", 13)
        out = ks_put_int(out, load64(p + MAX_TIMESTAMP_AT))
        out = ks_put_int(put(out, b" size: ", 7), size)
        out = ks_put_int(put(out, b" magic: ", 8), <int8_t> p[MAGIC_AT])
        name = CODEC_NAMES[codec]
        out = put(put(out, b" compresscodec: ", 16), PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        out = ks_put_int(put(out, b" crc: ", 6), <uint32_t> load32(p + CRC_AT))
        out = put_flag(put(out, b" isvalid: ", 10), valid)
        out = put(out, b"\n", 1)
        self._size += out - start
        return 0

    cdef int _records(self, const uint8_t *batch, int64_t size, int64_t position) except -1:
        cdef int32_t count = load32(batch + RECORDS_COUNT_AT)
        cdef const uint8_t *p = batch + RECORDS_AT
        cdef const uint8_t *end = batch + size
        cdef bytes section
        cdef ks_record r
        cdef int32_t i
        if count < 0:
            raise CorruptRecordError(f"{count} records in a batch", path=self._path, position=position)
        if count == 0:
            return 0
        if load16(batch + ATTRIBUTES_AT) & CODEC_MASK:
            section = record_section(batch, size, compression.MAX_DECOMPRESSED_BYTES, self._path, position)
            p = <const uint8_t *> PyBytes_AS_STRING(section)
            end = p + PyBytes_GET_SIZE(section)
            # Kafka takes such a batch apart before it prints the first of its records.
            self._step_over(p, end, count, position)
        for i in range(count):
            p = ks_parse_record(p, end, &r)
            if p == NULL or (i == count - 1 and p != end):
                raise self._fault(p == NULL, r.fault, position)
            self._record(batch, &r)
            if self._size >= FLUSH_BYTES:
                self.flush()
        return 0

    cdef int _step_over(self, const uint8_t *p, const uint8_t *end, int32_t count, int64_t position) except -1:
        cdef ks_record r
        cdef int32_t i
        for i in range(count):
            p = ks_parse_record(p, end, &r)
            if p == NULL or (i == count - 1 and p != end):
                raise self._fault(p == NULL, r.fault, position)
        return 0

    cdef object _fault(self, bint bad_record, int fault, int64_t position):
        if bad_record and fault == KS_ENDS_EARLY:
            reason = "Incorrect declared batch size, premature EOF reached"
        elif bad_record:
            reason = fault_text(fault)
        else:
            reason = "Incorrect declared batch size, records still remaining in file"
        return CorruptRecordError(reason, path=self._path, position=position)

    cdef int _record(self, const uint8_t *batch, const ks_record *r) except -1:
        cdef int attributes = load16(batch + ATTRIBUTES_AT)
        cdef bint control = attributes & CONTROL_BIT != 0
        cdef int64_t offset = wrapping_add(load64(batch), r.offset_delta)
        cdef uint8_t *start = NULL
        cdef uint8_t *out
        cdef bint printed = self._metadata
        self._follow(offset)
        if self._metadata:
            start = self._reserve(RECORD_LINE_BYTES)
            out = ks_put_int(put(start, b"| offset: ", 10), offset)
            if attributes & TIMESTAMP_TYPE_BIT:
                out = put(out, b" LogAppendTime: ", 16)
                out = ks_put_int(out, load64(batch + MAX_TIMESTAMP_AT))
            else:
                out = put(out, b" CreateTime: ", 13)
                out = ks_put_int(out, wrapping_add(load64(batch + BASE_TIMESTAMP_AT), r.timestamp_delta))
            out = ks_put_int(put(out, b" keySize: ", 10), max(r.key_size, -1))
            out = ks_put_int(put(out, b" valueSize: ", 12), max(r.value_size, -1))
            out = ks_put_int(put(out, b" sequence: ", 11),
                             sequence_at(load32(batch + BASE_SEQUENCE_AT), r.offset_delta))
            out = put(out, b" headerKeys: [", 14)
            self._size += out - start
            if r.headers_count:
                self._header_names(r)
            self.put(b"]")
            if control:
                self.put(self._control(_field(r.key, r.key_size), _field(r.value, r.value_size)))
        if self._contents and not control:
            if self._decode is not None:
                self._decoded(self._decode(offset, _field(r.key, r.key_size), _field(r.value, r.value_size)))
            else:
                if r.key_size >= 0:
                    self._text(b" key: " if printed else b"| key: ", 6 if printed else 7, r.key, r.key_size)
                    printed = True
                if r.value_size >= 0:
                    self._text(b" payload: " if printed else b"| payload: ", 10 if printed else 11, r.value,
                               r.value_size)
        self._reserve(1)[0] = c"\n"
        self._size += 1
        return 0

    cdef int _decoded(self, tuple texts) except -1:
        """Print what a decoder made of a key and a value."""
        cdef bint printed = self._metadata
        key, value = texts
        if key is not None:
            self.put((b" key: " if printed else b"| key: ") + key)
            printed = True
        if value is not None:
            self.put((b" payload: " if printed else b"| payload: ") + value)
        return 0

    cdef int _header_names(self, const ks_record *r) except -1:
        cdef const uint8_t *p = r.headers
        cdef const uint8_t *key
        cdef const uint8_t *value
        cdef int32_t key_size, value_size, i
        cdef int fault
        for i in range(r.headers_count):
            p = ks_parse_header(p, r.end, &key, &key_size, &value, &value_size, &fault)
            if p == NULL:          # only if somebody wrote into the buffer meanwhile
                raise CorruptRecordError(fault_text(fault), path=self._path)
            self._text(b",", 1 if i else 0, key, key_size)
        return 0

    cdef inline int _text(self, const char *label, size_t label_size, const uint8_t *p, Py_ssize_t n) except -1:
        """Print a label and bytes that should be UTF-8."""
        cdef uint8_t *out = self._reserve(label_size + 3 * max(n, 0))
        self._size = ks_put_utf8(put(out, label, label_size), p, max(n, 0)) - self._out
        return 0


def java_text(bytes data not None):
    """UTF-8 of any bytes, with a replacement character where Java's decoder puts one; thread-safe."""
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 3 * n)
    cdef uint8_t *start = <uint8_t *> PyBytes_AS_STRING(out)
    return out[:ks_put_utf8(start, <const uint8_t *> PyBytes_AS_STRING(data), n) - start]


cdef object _field(const uint8_t *p, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *> p, size)
