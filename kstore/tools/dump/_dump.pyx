# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Prints v2 batches and their records as text or JSON, without a Python object for each record (DUMP 3).

`batch_walk` reads the file, and `legacy_dump` prints formats 0 and 1. Invariant: if Kafka's tool stops in the middle of
a line, the output has the same part of the line when the error is raised.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kstore._core cimport Buffer, check_headers, fault_text, ks_parse_header, ks_parse_record, ks_record, record_section
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, CODEC_MASK, CONTROL_BIT, CRC_AT,
    DELETE_HORIZON_BIT, HEADER_UP_TO_MAGIC, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LOG_OVERHEAD, MAGIC_AT,
    MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, load16, load32, load64, wrapping_add,
)

from kstore.codec import compression
from kstore.errors import CorruptRecordError

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN

cdef extern from "record.h" nogil:
    enum:
        KS_ENDS_EARLY

cdef extern from "text.h" nogil:
    uint8_t *ks_put_int(uint8_t *out, int64_t value) noexcept
    uint8_t *ks_put_utf8(uint8_t *out, const uint8_t *p, size_t n) noexcept

cdef extern from "json.h" nogil:
    uint8_t *ks_put_json(uint8_t *out, const uint8_t **p, const uint8_t *until, const uint8_t *end) noexcept
    uint8_t *ks_put_base64_digits(uint8_t *out, const uint8_t *p, size_t n) noexcept

cdef enum:
    FLUSH_BYTES = 262144          # small enough that the text is written while it is in the second-level cache
    BATCH_LINE_BYTES = 1024       # more than the longest batch line
    RECORD_LINE_BYTES = 512       # more than a record line without its keys, values and header names
    JSON_PIECE_BYTES = 65536      # bytes that are escaped at a time: the space for the escaped text is reserved first
    JSON_ROOM = 16                # more than enough for a character that crosses the end of a piece

cdef list CODEC_NAMES = [name.encode() for name in compression.NAMES]


cdef inline uint8_t *put(uint8_t *out, const char *text, size_t n) noexcept nogil:
    memcpy(out, text, n)
    return out + n


cdef inline uint8_t *put_flag(uint8_t *out, bint flag) noexcept nogil:
    return put(out, b"true", 4) if flag else put(out, b"false", 5)


cdef inline int32_t sequence_at(int32_t base, int32_t delta) noexcept nogil:
    """Return the sequence number `delta` records after `base`, wrapped from 2^31 - 1 to 0; -1 if there is none."""
    if base == -1:
        return -1
    if base > <int32_t> (<uint32_t> 0x7fffffff - <uint32_t> delta):
        return <int32_t> (<uint32_t> delta - (<uint32_t> 0x7fffffff - <uint32_t> base) - 1)
    return <int32_t> (<uint32_t> base + <uint32_t> delta)


cdef class LogText:
    """Prints the batches of one `.log` file as text, and passes the text to `write` piece by piece.

    `deep` prints record lines, `contents` the keys and values in them, `metadata` the part of such a line before the
    key. `control(key, value)` returns the text of a control record, `decode(offset, key, value)` the texts of a
    record's key and value, all as bytes; without `decode`, keys and values are text already. `gaps` maps the offset
    before each gap to the offset after it. After an error, `flush` writes the text printed before it.

    With `tolerant` the walk stops at bytes that are no sound v2 batch instead of printing them or raising, and `gaps`
    is empty; `print_batch` can still print them as a batch. An error is then about the records of the batch at
    `position`, which has `needed` bytes; `settle` ends the unfinished line, and the walk may continue after the batch.
    Not thread-safe.
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
    cdef bint _tolerant
    cdef int64_t _previous
    cdef int64_t _start_offset
    cdef int64_t _end_offset
    cdef readonly dict gaps  # type: dict[int, int]
    cdef readonly list disorder  # type: list[tuple[int, int, int, int]]
    """With `tolerant`: position, base and last offset, and last offset before it, of each batch out of order."""
    cdef readonly str stop
    """Why `feed` returned: "more" (bytes needed), "end" (of the batches), "legacy" or "short" (kind of the next batch).

    "legacy" is format 0 or 1, "short" is a batch smaller than its header. With `tolerant` also "unsound" (a batch with
    a wrong CRC, format or size) or "lost" (no batch can start here).
    """
    cdef readonly Py_ssize_t needed
    """The size of the next batch, if `stop` is not "end"."""
    cdef readonly int64_t position
    """The position of the last batch that was read."""
    cdef public int64_t last_offset
    """With `tolerant`: the last offset of the last sound batch."""

    def __cinit__(self):
        self._previous = -1
        self.gaps = {}
        self.disorder = []
        self.last_offset = -1
        self._start_offset = INT64_MIN
        self._end_offset = 0x7fffffffffffffff
        self.stop = "more"
        self.needed = HEADER_UP_TO_MAGIC

    def __init__(self, write: Callable[[memoryview], object], *, path: StrPath | None,
                 control: Callable[[bytes | None, bytes | None], bytes],
                 decode: Callable[[int, bytes | None, bytes | None], tuple[bytes | None, bytes | None]] | None = None,
                 bint deep=False, bint contents=False, bint metadata=True, bint tolerant=False):
        self._tolerant = tolerant
        self._write = write
        self._path = path
        self._control = control
        self._decode = decode
        self._deep = deep
        self._contents = contents
        self._metadata = metadata

    def __dealloc__(self):
        PyMem_RawFree(self._out)

    def feed(self, data: ReadableBuffer, Py_ssize_t size, int64_t position, int64_t end) -> int:
        """Print the batches in the first `size` bytes of `data`, which are at `position` of a file of `end` bytes.

        Returns the size of those batches; `stop` says why it ended. Raises `CorruptRecordError` if Kafka's tool stops.
        """
        cdef Buffer buffer = Buffer(data)
        cdef const uint8_t *p = buffer.p
        cdef const uint8_t *limit
        cdef int64_t at, length
        cdef bint valid
        cdef int magic
        if not 0 <= size <= buffer.size:
            raise ValueError(f"size {size} of a buffer of {buffer.size} bytes")
        limit = p + size
        while True:
            at = position + (p - buffer.p)
            self.position = at
            self.needed = HEADER_UP_TO_MAGIC
            if at >= end - HEADER_UP_TO_MAGIC:
                self.stop = "end"
                break
            if limit - p < HEADER_UP_TO_MAGIC:
                self.stop = "more"
                break
            length = load32(p + BATCH_LENGTH_AT)
            if length < MIN_V0_MESSAGE:
                if self._tolerant:
                    self.stop = "lost"
                    break
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
            magic = <int8_t> p[MAGIC_AT]
            if magic in (0, 1) or (magic < 0 and not self._tolerant):
                self.stop = "legacy"
                break
            if length < RECORDS_AT:
                self.stop = "unsound" if self._tolerant else "short"
                break
            valid = <uint32_t> load32(p + CRC_AT) == ks_crc32c(0, p + ATTRIBUTES_AT, <size_t> (length - ATTRIBUTES_AT))
            if self._tolerant:
                if not valid or magic != 2:
                    self.stop = "unsound"
                    break
                self._rise(load64(p), wrapping_add(load64(p), load32(p + LAST_OFFSET_DELTA_AT)))
            self._batch(p, at, length, valid)
            p += length
            if self._size >= FLUSH_BYTES:
                self.flush()
        return p - buffer.p

    def short_batch(self, header: ReadableBuffer, int64_t position, Py_ssize_t size) -> None:
        """Print the line of a batch that is smaller than its header, from the 61 bytes at its start."""
        cdef Buffer buffer = Buffer(header)
        if buffer.size < RECORDS_AT:
            raise CorruptRecordError(f"the file ends within the header of a batch of {size} bytes", path=self._path,
                                     position=position)
        self._line(buffer.p, position, size, False)
        if self._deep:
            raise CorruptRecordError(f"batch of {size} bytes: its header alone has {RECORDS_AT}", path=self._path,
                                     position=position)

    def print_batch(self, data: ReadableBuffer, int64_t position) -> None:
        """Print at least 61 bytes as a v2 batch; the line says whether its CRC matches."""
        cdef Buffer buffer = Buffer(data)
        cdef bint valid
        if buffer.size < RECORDS_AT:
            raise CorruptRecordError(f"batch of {buffer.size} bytes: its header alone has {RECORDS_AT}",
                                     path=self._path, position=position)
        self.position = position
        self.needed = buffer.size
        valid = <uint32_t> load32(buffer.p + CRC_AT) == ks_crc32c(
            0, buffer.p + ATTRIBUTES_AT, <size_t> (buffer.size - ATTRIBUTES_AT))
        self._batch(buffer.p, position, buffer.size, valid)

    def between(self, int64_t start_offset, int64_t end_offset) -> None:
        """Print only batches and records with offsets in `[start_offset, end_offset)`."""
        self._start_offset = start_offset
        self._end_offset = end_offset

    def settle(self) -> None:
        """End the line that an error interrupted."""
        if self._size and self._out[self._size - 1] != c"\n":
            self.put(b"\n")

    def put(self, bytes text not None) -> None:
        """Print `text` as it is."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(text)
        memcpy(self._reserve(n), PyBytes_AS_STRING(text), n)
        self._size += n

    def follow(self, int64_t offset) -> None:
        """Record the offset of a record that the caller has printed."""
        self._follow(offset)

    def flush(self) -> None:
        """Pass the text printed so far to `write`."""
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
        if self._tolerant:
            return 0
        if offset != wrapping_add(self._previous, 1):
            self.gaps[self._previous] = offset
        self._previous = offset
        return 0

    cdef int _rise(self, int64_t base_offset, int64_t last_offset) except -1:
        """Record a batch's offsets, which should be above the offsets before the batch."""
        if base_offset <= self.last_offset or last_offset < base_offset:
            self.disorder.append((self.position, base_offset, last_offset, self.last_offset))
        self.last_offset = max(last_offset, -1)
        return 0

    cdef int _batch(self, const uint8_t *p, int64_t position, int64_t size, bint valid) except -1:
        """Print a batch, and with `deep` its records."""
        cdef int64_t base = load64(p)
        if base >= self._end_offset or wrapping_add(base, load32(p + LAST_OFFSET_DELTA_AT)) < self._start_offset:
            return 0
        if self._batches_are_wanted():
            self._line(p, position, size, valid)
        if self._deep:
            self._records(p, size, position)
        return 0

    cdef bint _batches_are_wanted(self) noexcept:
        return True

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
        cdef int64_t offset
        cdef int32_t i
        if count < 0:
            raise CorruptRecordError(f"{count} records in a batch", path=self._path, position=position)
        if count == 0:
            return 0
        if load16(batch + ATTRIBUTES_AT) & CODEC_MASK:
            section = record_section(batch, size, compression.MAX_DECOMPRESSED_BYTES, self._path, position)
            p = <const uint8_t *> PyBytes_AS_STRING(section)
            end = p + PyBytes_GET_SIZE(section)
            # Kafka parses all records of a compressed batch before it prints the first.
            self._step_over(p, end, count, position)
        for i in range(count):
            p = ks_parse_record(p, end, &r)
            if p == NULL or (i == count - 1 and p != end):
                raise self._fault(p == NULL, r.fault, position)
            offset = wrapping_add(load64(batch), r.offset_delta)
            if self._start_offset <= offset < self._end_offset:
                self._record(batch, &r, offset)
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

    cdef int _record(self, const uint8_t *batch, const ks_record *r, int64_t offset) except -1:
        cdef int attributes = load16(batch + ATTRIBUTES_AT)
        cdef bint control = attributes & CONTROL_BIT != 0
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
        """Print the decoded key and value."""
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
            if p == NULL:          # only if another thread writes into the buffer
                raise CorruptRecordError(fault_text(fault), path=self._path)
            self._text(b",", 1 if i else 0, key, key_size)
        return 0

    cdef inline int _text(self, const char *label, size_t label_size, const uint8_t *p, Py_ssize_t n) except -1:
        """Print a label and bytes that should be UTF-8."""
        cdef uint8_t *out = self._reserve(label_size + 3 * max(n, 0))
        self._size = ks_put_utf8(put(out, label, label_size), p, max(n, 0)) - self._out
        return 0


@cython.final
cdef class LogJson(LogText):
    """Prints the batches, or with `deep` their records, as JSON objects, one on each line.

    `file` is a member of each object, as JSON. `control` returns a control record's value as JSON, `decode` the members
    for a key and a value. Not thread-safe.
    """

    cdef bytes _file

    def __init__(self, write: Callable[[memoryview], object], *, bytes file not None, path: StrPath | None,
                 control: Callable[[bytes | None, bytes | None], bytes],
                 decode: Callable[[int, bytes | None, bytes | None], bytes] | None = None, bint deep=False,
                 bint contents=False, bint metadata=True, bint tolerant=True):
        LogText.__init__(self, write, path=path, control=control, decode=decode, deep=deep, contents=contents,
                         metadata=metadata, tolerant=tolerant)
        self._file = file

    def settle(self) -> None:
        """Remove the line that an error interrupted."""
        while self._size and self._out[self._size - 1] != c"\n":     # no JSON string has a line feed
            self._size -= 1

    cdef bint _batches_are_wanted(self) noexcept:
        return not self._deep

    cdef int _line(self, const uint8_t *p, int64_t position, int64_t size, bint valid) except -1:
        cdef int attributes = load16(p + ATTRIBUTES_AT)
        cdef int32_t last_delta = load32(p + LAST_OFFSET_DELTA_AT)
        cdef int32_t sequence = load32(p + BASE_SEQUENCE_AT)
        cdef int codec = attributes & CODEC_MASK
        cdef bytes name = CODEC_NAMES[codec] if codec < <int> len(CODEC_NAMES) else None
        cdef uint8_t *start
        cdef uint8_t *out
        self.put(b'{"type":"batch",')
        self.put(self._file)
        start = self._reserve(BATCH_LINE_BYTES)
        out = ks_put_int(put(start, b',"position":', 12), position)
        out = ks_put_int(put(out, b',"size_bytes":', 14), size)
        out = ks_put_int(put(out, b',"base_offset":', 15), load64(p))
        out = ks_put_int(put(out, b',"last_offset":', 15), wrapping_add(load64(p), last_delta))
        out = ks_put_int(put(out, b',"count":', 9), load32(p + RECORDS_COUNT_AT))
        out = ks_put_int(put(out, b',"partition_leader_epoch":', 26), load32(p + LEADER_EPOCH_AT))
        out = ks_put_int(put(out, b',"base_timestamp":', 18), load64(p + BASE_TIMESTAMP_AT))
        out = ks_put_int(put(out, b',"max_timestamp":', 17), load64(p + MAX_TIMESTAMP_AT))
        out = self._timestamp_type(out, attributes)
        out = ks_put_int(put(out, b',"producer_id":', 15), load64(p + PRODUCER_ID_AT))
        out = ks_put_int(put(out, b',"producer_epoch":', 18), load16(p + PRODUCER_EPOCH_AT))
        out = ks_put_int(put(out, b',"base_sequence":', 17), sequence)
        out = ks_put_int(put(out, b',"last_sequence":', 17), sequence_at(sequence, last_delta))
        out = put_flag(put(out, b',"is_transactional":', 20), attributes & TRANSACTIONAL_BIT != 0)
        out = put_flag(put(out, b',"is_control":', 14), attributes & CONTROL_BIT != 0)
        out = put(out, b',"delete_horizon_ms":', 21)
        if attributes & DELETE_HORIZON_BIT:
            out = ks_put_int(out, load64(p + BASE_TIMESTAMP_AT))
        else:
            out = put(out, b"null", 4)
        out = put(out, b',"compression":', 15)
        if name is None:
            out = put(out, b"null", 4)
        else:
            out = put(put(put(out, b'"', 1), PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)), b'"', 1)
        out = ks_put_int(put(out, b',"attributes":', 14), attributes)
        out = ks_put_int(put(out, b',"magic":', 9), <int8_t> p[MAGIC_AT])
        out = ks_put_int(put(out, b',"crc":', 7), <uint32_t> load32(p + CRC_AT))
        out = put_flag(put(out, b',"is_valid":', 12), valid)
        out = put(out, b"}\n", 2)
        self._size += out - start
        if name is None:
            raise CorruptRecordError(f"compression type {codec}: 0 to 4 are known", path=self._path, position=position)
        return 0

    cdef uint8_t *_timestamp_type(self, uint8_t *out, int attributes) noexcept:
        if attributes & TIMESTAMP_TYPE_BIT:
            return put(out, b',"timestamp_type":"LogAppendTime"', 33)
        return put(out, b',"timestamp_type":"CreateTime"', 30)

    cdef int _record(self, const uint8_t *batch, const ks_record *r, int64_t offset) except -1:
        cdef int attributes = load16(batch + ATTRIBUTES_AT)
        cdef bint control = attributes & CONTROL_BIT != 0
        cdef Py_ssize_t file_size = PyBytes_GET_SIZE(self._file)
        cdef uint8_t *start = self._reserve(RECORD_LINE_BYTES + file_size)
        cdef uint8_t *out = put(start, b'{"type":"record"', 16)
        if self._metadata:
            out = put(put(out, b",", 1), PyBytes_AS_STRING(self._file), file_size)
            out = ks_put_int(put(out, b',"position":', 12), self.position)
            out = ks_put_int(put(out, b',"offset":', 10), offset)
            out = put(out, b',"timestamp":', 13)
            if attributes & TIMESTAMP_TYPE_BIT:
                out = ks_put_int(out, load64(batch + MAX_TIMESTAMP_AT))
            else:
                out = ks_put_int(out, wrapping_add(load64(batch + BASE_TIMESTAMP_AT), r.timestamp_delta))
            out = self._timestamp_type(out, attributes)
            out = ks_put_int(put(out, b',"sequence":', 12), sequence_at(load32(batch + BASE_SEQUENCE_AT), r.offset_delta))
            out = ks_put_int(put(out, b',"key_size":', 12), max(r.key_size, -1))
            out = ks_put_int(put(out, b',"value_size":', 14), max(r.value_size, -1))
        self._size += out - start
        if control and self._metadata:
            self.put(b',"control":')
            self.put(self._control(_field(r.key, r.key_size), _field(r.value, r.value_size)))
        if self._contents and not control:
            if self._decode is not None:
                self.put(b",")
                self.put(self._decode(offset, _field(r.key, r.key_size), _field(r.value, r.value_size)))
            else:
                self._octets(b',"key', 5, r.key, r.key_size)
                self._octets(b',"value', 7, r.value, r.value_size)
        if self._metadata:
            check_headers(r.headers_count, "the record at offset", offset)
            self._header_list(r)
        put(self._reserve(2), b"}\n", 2)
        self._size += 2
        return 0

    cdef int _header_list(self, const ks_record *r) except -1:
        cdef const uint8_t *p = r.headers
        cdef const uint8_t *key
        cdef const uint8_t *value
        cdef int32_t key_size, value_size, i
        cdef int fault
        self.put(b',"headers":[')
        for i in range(r.headers_count):
            p = ks_parse_header(p, r.end, &key, &key_size, &value, &value_size, &fault)
            if p == NULL:          # only if another thread writes into the buffer
                raise CorruptRecordError(fault_text(fault), path=self._path)
            self._octets(b',{"key' if i else b'{"key', 6 if i else 5, key, key_size)
            if self._contents:
                self._octets(b',"value', 7, value, value_size)
            self.put(b"}")
        self.put(b"]")
        return 0

    cdef int _octets(self, const char *name, size_t name_size, const uint8_t *p, Py_ssize_t n) except -1:
        """Print bytes as a member: text if they are UTF-8, otherwise base64 under the name with `_base64` appended.

        `name` includes the text before the name, and ends before the closing quote.
        """
        cdef Py_ssize_t start = self._size
        cdef const uint8_t *end = p + max(n, 0)
        cdef const uint8_t *at = p
        cdef const uint8_t *until
        cdef uint8_t *out = put(self._reserve(name_size + 8), name, name_size)
        out = put(out, b'":null' if n < 0 else b'":"', 6 if n < 0 else 3)
        self._size = out - self._out
        if n < 0:
            return 0
        while at < end:
            until = at + min(end - at, <Py_ssize_t> JSON_PIECE_BYTES)
            out = ks_put_json(self._reserve(6 * (until - at) + JSON_ROOM), &at, until, end)
            if out == NULL:
                self._size = start
                out = put(self._reserve(name_size + 16 + 4 * ((n + 2) // 3)), name, name_size)
                out = ks_put_base64_digits(put(out, b'_base64":"', 10), p, n)
                self._size = out - self._out
                break
            self._size = out - self._out
        self._reserve(1)[0] = c'"'
        self._size += 1
        return 0


def java_text(bytes data not None) -> bytes:
    """Return any bytes as valid UTF-8, with replacement characters as from Java's decoder; thread-safe."""
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 3 * n)
    cdef uint8_t *start = <uint8_t *> PyBytes_AS_STRING(out)
    return out[:ks_put_utf8(start, <const uint8_t *> PyBytes_AS_STRING(data), n) - start]


cdef object _field(const uint8_t *p, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *> p, size)
