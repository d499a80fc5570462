# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Columns of other libraries, read without a copy: Arrow data by its C interfaces, strided buffers, lists of bytes.

Types, lengths and missing buffers are checked once, on import; gather.h checks each row. Invariant: no memory outside
the buffers of the Arrow structures is read. Arrow has no buffer sizes: the last offset of bytes is trusted.
"""

cimport cython
from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t
from libc.string cimport memchr, memcpy, memset

from kstore.columns._arrowc cimport (
    ARRAY_CAPSULE, SCHEMA_CAPSULE, STREAM_CAPSULE, ArrowArray, ArrowArrayStream, ArrowSchema,
)
from kstore.columns._native cimport (
    KS_ABSENT, KS_DICTIONARY, KS_LIST32, KS_LIST64, KS_OFFSETS32, KS_OFFSETS64, KS_PADDED, KS_POINTERS, KS_STRIDED,
    KS_TIMES, KS_VIEWS,
)
from kstore._core cimport as_bytes

import os

from kstore.errors import InvalidColumnError

cdef extern from "columns/gather.h" nogil:
    int32_t ks_i32(const uint8_t *p, int64_t i) noexcept
    int64_t ks_i64(const uint8_t *p, int64_t i) noexcept
    int ks_bit(const uint8_t *bits, int64_t i) noexcept

cdef extern from *:
    """
    #include "columns/arrow_c.h"
    static inline int ks_stream_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out) {
        return stream->get_schema(stream, out);
    }
    static inline int ks_stream_next(struct ArrowArrayStream *stream, struct ArrowArray *out) {
        return stream->get_next(stream, out);
    }
    """
    # Without the GIL: the stream may wait for another thread that needs it.
    int stream_schema "ks_stream_schema"(ArrowArrayStream *stream, ArrowSchema *out) noexcept nogil
    int stream_next "ks_stream_next"(ArrowArrayStream *stream, ArrowArray *out) noexcept nogil

cdef enum:
    LONGEST_FORMAT = 64                # the longest part of a format that is read here is a time zone's name

cdef int64_t MAX_ROWS = <int64_t> 1 << 47      # and the most bytes: 64-bit machines address no more
cdef int64_t MAX_VIEW_BUFFERS = <int64_t> 1 << 31      # a view's buffer number is a signed 32-bit integer
cdef int64_t MAX_COLUMNS = 1 << 20             # of a table
cdef const uint8_t *NOTHING = b"\x00"

cdef enum Role:
    BYTES
    TIMES
    HEADERS

cdef dict ROLES = {"value": BYTES, "key": BYTES, "timestamp": TIMES, "headers": HEADERS}

# Further columns that a table of records may have: they describe where the records came from, and are not stored.
cdef frozenset IGNORED = frozenset((
    "offset", "partition", "topic", "timestamp_type", "timestampType", "partition_leader_epoch", "producer_id",
    "producer_epoch", "base_sequence", "sequence", "base_offset", "compression", "is_transactional", "is_tombstone",
))


@cython.final
cdef class Column:
    """One column of records, or a chunk of it: describes memory and keeps it alive.

    `len` is its number of rows, `what` its name in errors. This module's functions create it. Immutable; thread-safe.
    """

    def __len__(self):
        return self.c.length


cdef Column _column(str what, int layout, int64_t length, object owner):
    cdef Column column = Column.__new__(Column)
    memset(&column.c, 0, sizeof(column.c))
    column.what = what
    column.owner = owner
    column.c.layout = layout
    column.c.length = length
    column.c.data = NOTHING
    column.c.multiplier = column.c.divisor = 1
    return column


# ---- Memory of Python objects.

@cython.final
cdef class _View:
    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_STRIDED_RO)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


def fixed(str what, source: Any, valid: ReadableBuffer | None = None, *, bint padded=False) -> Column:
    """Return the rows of a buffer of one dimension, or of two if the bytes of each row are contiguous.

    With `padded`, NUL bytes at the end of a row are padding. `valid` is None or a bit for each row, 0 for null.
    """
    cdef _View held = _View(source)
    cdef Py_buffer *view = &held.view
    cdef Column column
    if view.ndim not in (1, 2) or (view.ndim == 2 and view.shape[1] > 1 and view.strides[1] != view.itemsize):
        raise ValueError(f"{what}: the rows of an array of {view.ndim} dimensions are not contiguous")
    column = _column(what, KS_PADDED if padded else KS_STRIDED, view.shape[0], held)
    column.c.width = view.itemsize * (view.shape[1] if view.ndim == 2 else 1)
    column.c.stride = view.strides[0]
    if column.c.width > 0x7fffffff:
        raise ValueError(f"{what}: rows of {column.c.width} bytes, where a record holds less than 2 GiB")
    if column.c.length and column.c.width:
        column.c.data = <const uint8_t *> view.buf
    else:
        column.c.stride = 0
    _set_valid(column, valid)
    return column


def times(str what, source: Any, valid: ReadableBuffer | None = None, *, int64_t multiplier=1, int64_t divisor=1,
          bint is_unsigned=False, bint has_nat=False) -> Column:
    """Return the numbers of a one-dimensional buffer; multiplied by `multiplier` / `divisor` they are milliseconds.

    With `has_nat`, the lowest 64-bit integer means null, as in NumPy's times.
    """
    cdef _View held = _View(source)
    cdef Column column
    if held.view.ndim != 1 or held.view.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"{what}: an array of one dimension is wanted, not of {held.view.ndim}")
    column = _column(what, KS_TIMES, held.view.shape[0], held)
    column.c.width = held.view.itemsize
    column.c.stride = held.view.strides[0]
    column.c.data = <const uint8_t *> held.view.buf if column.c.length else NOTHING
    column.c.multiplier = multiplier
    column.c.divisor = divisor
    column.c.is_unsigned = is_unsigned
    column.c.has_nat = has_nat
    _set_valid(column, valid)
    return column


cdef int _set_valid(Column column, object valid) except -1:
    cdef bytes bits
    if valid is not None:
        bits = bytes(valid)
        if len(bits) * 8 < column.c.length:
            raise ValueError(f"{column.what}: {len(bits)} bytes of validity for {column.c.length} rows")
        column.c.validity = <const uint8_t *> PyBytes_AS_STRING(bits)
        column.owner = (column.owner, bits)
    return 0


@cython.final
cdef class _Pointers:
    cdef ks_bytes *rows
    cdef list kept

    def __cinit__(self, Py_ssize_t count):
        self.rows = <ks_bytes *> PyMem_Malloc(<size_t> max(count, 1) * sizeof(ks_bytes))
        if self.rows == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.rows)


def pointers(str what, rows: Iterable[ReadableBuffer | None], int64_t first=0) -> Column:
    """Return a column of bytes-like rows or None; others raise `TypeError` with the row's number, from `first` on."""
    cdef list kept = list(rows)
    cdef Py_ssize_t i, count = len(kept)
    cdef _Pointers held = _Pointers(count)
    cdef object row
    cdef Column column
    held.kept = kept
    for i in range(count):
        row = kept[i]
        if row is None:
            held.rows[i].p = NULL
            held.rows[i].n = -1
            continue
        if type(row) is not bytes:
            row = kept[i] = as_bytes(row, f"row {first + i} of {what}")
        held.rows[i].p = <const uint8_t *> PyBytes_AS_STRING(row)
        held.rows[i].n = PyBytes_GET_SIZE(row)
    column = _column(what, KS_POINTERS, count, held)
    column.c.data = <const uint8_t *> held.rows
    return column


# ---- Arrow schemas.

@cython.final
cdef class _Shape:
    """The checked type of a column, which says how its arrays are read."""
    cdef int layout, is_unsigned
    cdef int64_t width, multiplier, divisor
    cdef _Shape items, names

    def __cinit__(self, int layout):
        self.layout = layout
        self.multiplier = self.divisor = 1


cdef str _format(const ArrowSchema *schema):
    cdef const char *end
    if schema == NULL or schema.release == NULL or schema.format == NULL:
        raise InvalidColumnError("an Arrow schema that has been released, or never was one")
    end = <const char *> memchr(schema.format, 0, LONGEST_FORMAT)
    return schema.format[:LONGEST_FORMAT if end == NULL else end - schema.format].decode("latin-1")


cdef const ArrowSchema *_child(const ArrowSchema *schema, int64_t number, int64_t count, str what) except NULL:
    if schema.n_children != count or schema.children == NULL or schema.children[number] == NULL:
        raise InvalidColumnError(f"{what}: an Arrow schema with {schema.n_children} children, where {count} are wanted")
    return schema.children[number]


cdef dict BYTES_FORMATS = {
    "n": KS_ABSENT, "z": KS_OFFSETS32, "u": KS_OFFSETS32, "Z": KS_OFFSETS64, "U": KS_OFFSETS64, "vz": KS_VIEWS,
    "vu": KS_VIEWS,
}
cdef dict NUMBERS = {
    "c": (1, False), "C": (1, True), "s": (2, False), "S": (2, True), "i": (4, False), "I": (4, True),
    "l": (8, False), "L": (8, True),
}
cdef dict UNITS = {"tss": (1000, 1), "tsm": (1, 1), "tsu": (1, 1000), "tsn": (1, 1_000_000)}
cdef dict DATES = {"tdD": (4, 86_400_000), "tdm": (8, 1)}


cdef dict WORDS = {
    "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32", "l": "int64",
    "L": "uint64", "e": "float16", "f": "float32", "g": "float64", "z": "binary", "Z": "large_binary", "u": "utf8",
    "U": "large_utf8", "vz": "binary_view", "vu": "utf8_view", "w:": "fixed-size binary", "d:": "decimal", "td": "date",
    "tt": "time", "ts": "timestamp", "tD": "duration", "ti": "interval", "+l": "list", "+L": "large_list",
    "+v": "list_view", "+w": "fixed-size list", "+s": "struct", "+m": "map", "+u": "union", "+r": "run-end encoded",
}


cdef str _told(str text):
    return f"Arrow type {text!r} ({WORDS[text[:2]]})" if text[:2] in WORDS else f"Arrow type {text!r}"


cdef _Shape _bytes_shape(const ArrowSchema *schema, str what):
    cdef str text = _format(schema)
    cdef _Shape shape
    if schema.dictionary != NULL:
        if text not in NUMBERS:
            raise InvalidColumnError(f"{what}: a dictionary with indices of {_told(text)}")
        _format(schema.dictionary)
        if schema.dictionary.dictionary != NULL:       # not followed: a dictionary might contain itself
            raise TypeError(f"{what}: a dictionary of dictionaries is not taken")
        shape = _Shape(KS_DICTIONARY)
        shape.width, shape.is_unsigned = NUMBERS[text]
        shape.items = _bytes_shape(schema.dictionary, what)
        return shape
    if text in BYTES_FORMATS:
        return _Shape(BYTES_FORMATS[text])
    if text.startswith("w:") and text[2:].isascii() and text[2:].isdigit() and int(text[2:]) <= 0x7fffffff:
        shape = _Shape(KS_STRIDED)
        shape.width = int(text[2:])
        return shape
    raise TypeError(
        f"{what}: {_told(text)} is not taken; binary, utf8, their large and view forms, fixed-size binary, "
        f"dictionaries of those and null are")


cdef _Shape _times_shape(const ArrowSchema *schema, str what):
    cdef str text = _format(schema)
    cdef _Shape shape = _Shape(KS_TIMES)
    if schema.dictionary == NULL:
        if text == "n":
            return _Shape(KS_ABSENT)
        if text in NUMBERS:
            shape.width, shape.is_unsigned = NUMBERS[text]
            return shape
        if text in DATES:
            shape.width, shape.multiplier = DATES[text]
            return shape
        if text[:3] in UNITS and text[3:4] == ":":
            shape.width = 8
            shape.multiplier, shape.divisor = UNITS[text[:3]]
            return shape
    raise TypeError(f"{what}: {_told(text)} is not taken; integers (milliseconds), timestamps and dates are")


cdef _Shape _headers_shape(const ArrowSchema *schema, str what):
    cdef str text = _format(schema)
    cdef _Shape shape
    cdef const ArrowSchema *entry
    cdef const ArrowSchema *pair[2]
    cdef int i
    if text == "n" and schema.dictionary == NULL:
        return _Shape(KS_ABSENT)
    if text not in ("+l", "+L", "+m") or schema.dictionary != NULL:
        raise TypeError(f"{what}: {_told(text)} is not taken; map<utf8, binary> and list<struct<key, value>> are")
    entry = _child(schema, 0, 1, what)
    if _format(entry) != "+s" or entry.dictionary != NULL or entry.n_children != 2:
        raise TypeError(f"{what}: headers are pairs, a struct of key and value each")
    for i in range(2):
        pair[i] = _child(entry, i, 2, what)
        _format(pair[i])
    if text != "+m" and _name(pair[0]) in ("value", "v") and _name(pair[1]) in ("key", "k", "name"):
        raise TypeError(f"{what}: headers are structs of key and value in this order")
    shape = _Shape(KS_LIST64 if text == "+L" else KS_LIST32)
    shape.names = _bytes_shape(pair[0], f"keys of {what}")
    shape.items = _bytes_shape(pair[1], f"values of {what}")
    return shape


cdef str _name(const ArrowSchema *schema):
    return "" if schema.name == NULL else (<const char *> schema.name).decode("utf-8", "replace")


cdef _Shape _shape(const ArrowSchema *schema, int role, str what):
    if role == BYTES:
        return _bytes_shape(schema, what)
    return _times_shape(schema, what) if role == TIMES else _headers_shape(schema, what)


# ---- Arrow arrays.

cdef int _check(const ArrowArray *array, str what, int64_t buffers, int64_t children, bint dictionary) except -1:
    """Check the rules for all arrays; if `buffers` is -1, the caller checks their number."""
    if array == NULL or array.release == NULL:
        raise InvalidColumnError(f"{what}: an Arrow array that has been released")
    if array.length < 0 or array.offset < 0 or array.length > MAX_ROWS or array.offset > MAX_ROWS:
        raise InvalidColumnError(f"{what}: an Arrow array of {array.length} rows at offset {array.offset}")
    if not -1 <= array.null_count <= array.length:
        raise InvalidColumnError(f"{what}: an Arrow array of {array.length} rows with {array.null_count} nulls")
    if buffers >= 0 and array.n_buffers != buffers:
        raise InvalidColumnError(f"{what}: an Arrow array of {array.n_buffers} buffers, where its type has {buffers}")
    if array.n_buffers < 0 or (array.n_buffers > 0 and array.buffers == NULL):
        raise InvalidColumnError(f"{what}: an Arrow array of {array.n_buffers} buffers that are not there")
    if array.n_children != children or (children > 0 and array.children == NULL):
        raise InvalidColumnError(f"{what}: an Arrow array with {array.n_children} children, where its type has {children}")
    if dictionary != (array.dictionary != NULL):
        raise InvalidColumnError(f"{what}: an Arrow array whose dictionary is {'missing' if dictionary else 'unexpected'}")
    return 0


cdef const uint8_t *_buffer(const ArrowArray *array, int64_t number, bint needed, str what) except NULL:
    cdef const uint8_t *p = <const uint8_t *> array.buffers[number]
    if p == NULL and needed:
        raise InvalidColumnError(f"{what}: an Arrow array of {array.length} rows without its buffer {number}")
    return NOTHING if p == NULL else p


cdef Column _import(_Shape shape, const ArrowArray *array, int64_t skip, int64_t length, object owner, str what):
    """Return rows [skip, skip + length) of an array of bytes, times or headers."""
    cdef Column column = _column(what, shape.layout, length, owner)
    cdef ks_column *c = &column.c
    cdef bint rows = length > 0
    if shape.layout == KS_ABSENT:
        _check(array, what, -1, 0, False)
    elif shape.layout == KS_VIEWS:
        _check(array, what, -1, 0, False)
        if not 3 <= array.n_buffers <= 3 + MAX_VIEW_BUFFERS:
            raise InvalidColumnError(f"{what}: an Arrow array of views with {array.n_buffers} buffers, where it has 3, and "
                                     f"up to {MAX_VIEW_BUFFERS} of data")
    elif shape.layout in (KS_OFFSETS32, KS_OFFSETS64):
        _check(array, what, 3, 0, False)
    elif shape.layout in (KS_LIST32, KS_LIST64):
        _check(array, what, 2, 1, False)
    else:
        _check(array, what, 2, 0, shape.layout == KS_DICTIONARY)
    if length < 0 or skip < 0 or array.length - skip < length:
        raise InvalidColumnError(f"{what}: {skip + length} rows are wanted of an Arrow array of {array.length}")
    c.offset = array.offset + skip
    c.width = c.stride = shape.width
    c.is_unsigned = shape.is_unsigned
    c.multiplier = shape.multiplier
    c.divisor = shape.divisor
    if shape.layout == KS_ABSENT:
        return column
    if c.width > 0 and c.offset + length > MAX_ROWS // c.width:
        raise InvalidColumnError(f"{what}: an Arrow array of {array.length} rows at offset {array.offset}")
    if array.null_count != 0:
        c.validity = <const uint8_t *> array.buffers[0]
        if array.null_count > 0 and c.validity == NULL:
            raise InvalidColumnError(f"{what}: an Arrow array with {array.null_count} nulls and no bitmap that shows them")
    if shape.layout in (KS_STRIDED, KS_TIMES):
        c.data = _buffer(array, 1, rows and c.width > 0, what)
    elif shape.layout == KS_VIEWS:
        _import_views(c, array, rows, what)
    elif shape.layout == KS_DICTIONARY:
        c.data = _buffer(array, 1, rows, what)
        words = f"dictionary of {what}"
        column.items = _import(shape.items, array.dictionary, 0, _length(array.dictionary, words), owner, words)
        c.items = &column.items.c
    else:
        c.offsets = _buffer(array, 1, rows, what)
        _import_range(c, shape.layout in (KS_OFFSETS32, KS_LIST32), what)
        if shape.layout in (KS_OFFSETS32, KS_OFFSETS64):
            c.data = _buffer(array, 2, c.high > c.low, what)
        else:
            _import_headers(column, shape, array, what)
    return column


cdef int64_t _length(const ArrowArray *array, str what) except -1:
    if array == NULL or array.release == NULL:
        raise InvalidColumnError(f"{what}: an Arrow array that has been released")
    if not 0 <= array.length <= MAX_ROWS:
        raise InvalidColumnError(f"{what}: an Arrow array of {array.length} rows")
    return array.length


cdef int _import_range(ks_column *c, bint narrow, str what) except -1:
    """Check the first and the last offset; each row's offsets are later checked to lie between them."""
    if c.length == 0:
        return 0
    c.low = ks_i32(c.offsets, c.offset) if narrow else ks_i64(c.offsets, c.offset)
    c.high = (ks_i32(c.offsets, c.offset + c.length) if narrow else ks_i64(c.offsets, c.offset + c.length))
    if not 0 <= c.low <= c.high <= MAX_ROWS:
        raise InvalidColumnError(f"{what}: Arrow offsets that go from {c.low} to {c.high}")
    return 0


cdef int _import_views(ks_column *c, const ArrowArray *array, bint rows, str what) except -1:
    cdef int64_t i, size
    c.data = _buffer(array, 1, rows, what)
    c.buffers_count = array.n_buffers - 3
    c.buffers = <const uint8_t *> (array.buffers + 2)
    c.sizes = _buffer(array, array.n_buffers - 1, c.buffers_count > 0, what)
    if c.offset + c.length > MAX_ROWS // 16:
        raise InvalidColumnError(f"{what}: an Arrow array of {array.length} rows at offset {array.offset}")
    for i in range(c.buffers_count):
        size = ks_i64(c.sizes, i)
        if size < 0 or (size > 0 and array.buffers[2 + i] == NULL):
            raise InvalidColumnError(f"{what}: Arrow views into a buffer {i} of {size} bytes")
    return 0


cdef int _import_headers(Column column, _Shape shape, const ArrowArray *array, str what) except -1:
    """Import the names and values of a list's entries; the list's offsets index both."""
    cdef const ArrowArray *entries = array.children[0]
    cdef int64_t i
    _check(entries, f"entries of {what}", 1, 2, False)
    if column.c.high > entries.length:
        raise InvalidColumnError(f"{what}: Arrow offsets up to {column.c.high} into {entries.length} entries")
    column.names = _import(shape.names, entries.children[0], entries.offset, entries.length, column.owner,
                           f"keys of {what}")
    column.items = _import(shape.items, entries.children[1], entries.offset, entries.length, column.owner,
                           f"values of {what}")
    # Not earlier: importing both columns has checked the number of entries.
    if entries.null_count != 0 and entries.buffers[0] != NULL:
        for i in range(column.c.low, column.c.high):
            if not ks_bit(<const uint8_t *> entries.buffers[0], entries.offset + i):
                raise InvalidColumnError(f"{what}: entry {i} is null, which no header can be")
    column.c.names = &column.names.c
    column.c.items = &column.items.c
    return 0


# ---- Arrays and streams of other libraries.

@cython.final
cdef class _Held:
    """An Arrow array that this module owns; released with the last column that reads it."""
    cdef ArrowArray array

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


@cython.final
cdef class Source:
    """Columns of an object with the Arrow PyCapsule interface: an iterator of chunks, each a dict of columns by role.

    `role` ("value", "key", "timestamp" or "headers") is the role of a single column. For "value" the source may be a
    struct (a record batch, a table) instead: each field with the name of a role is a column, and the fields in IGNORED
    (offset, partition, ...) are skipped. `roles` are the columns' roles; `rows` is the number of rows, -1 until it is
    known. Raises `TypeError` for a type that cannot be stored, `ValueError` for a missing or unknown column,
    `InvalidColumnError` for unsound Arrow data. Not thread-safe.
    """

    cdef ArrowSchema _schema
    cdef ArrowArrayStream _stream
    cdef _Held _array
    cdef str _what
    cdef list _fields                  # (role, number of the child or -1, shape)
    cdef readonly int64_t rows
    cdef int64_t _given

    def __init__(self, str what, str role, source: Any):
        cdef int code
        if self._what is not None:
            raise RuntimeError("a source is opened once")
        self._what = what
        self.rows = -1
        if hasattr(source, "__arrow_c_array__"):
            self._take_array(source.__arrow_c_array__())
            self.rows = _length(&self._array.array, what)
        else:
            self._take_stream(source.__arrow_c_stream__())
            with nogil:
                code = stream_schema(&self._stream, &self._schema)
            if code:
                self._schema.release = NULL
                self._failed(code)
        self._fields = self._read_schema(role)

    def __dealloc__(self):
        if self._stream.release != NULL:
            self._stream.release(&self._stream)
        if self._schema.release != NULL:
            self._schema.release(&self._schema)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple([field[0] for field in self._fields])

    cdef int _take_array(self, object capsules) except -1:
        cdef ArrowSchema *schema
        cdef ArrowArray *array
        if not isinstance(capsules, tuple) or len(capsules) != 2:
            raise TypeError(f"{self._what}: __arrow_c_array__ gave no pair of capsules")
        schema = <ArrowSchema *> PyCapsule_GetPointer(capsules[0], SCHEMA_CAPSULE)
        array = <ArrowArray *> PyCapsule_GetPointer(capsules[1], ARRAY_CAPSULE)
        if schema.release == NULL or array.release == NULL:
            raise InvalidColumnError(f"{self._what}: an Arrow array that has been released")
        self._schema = schema[0]
        schema.release = NULL
        self._array = _Held()
        self._array.array = array[0]
        array.release = NULL
        return 0

    cdef int _take_stream(self, object capsule) except -1:
        cdef ArrowArrayStream *stream = <ArrowArrayStream *> PyCapsule_GetPointer(capsule, STREAM_CAPSULE)
        if stream.release == NULL or stream.get_schema == NULL or stream.get_next == NULL:
            raise InvalidColumnError(f"{self._what}: an Arrow stream that has been released")
        self._stream = stream[0]
        stream.release = NULL
        return 0

    cdef int _failed(self, int code) except -1:
        cdef const char *text = NULL
        if self._stream.get_last_error != NULL:
            text = self._stream.get_last_error(&self._stream)
        reason = os.strerror(code) if text == NULL else (<const char *> text).decode("utf-8", "replace")
        raise InvalidColumnError(f"{self._what}: the Arrow stream failed after {self._given} rows: {reason}")

    cdef list _read_schema(self, str role):
        cdef list fields = []
        cdef set seen = set()
        cdef const ArrowSchema *child
        cdef int64_t i
        if _format(&self._schema) != "+s" or role != "value":
            return [(role, -1, _shape(&self._schema, ROLES[role], self._what))]
        if not 0 <= self._schema.n_children <= MAX_COLUMNS:
            raise InvalidColumnError(f"{self._what}: an Arrow schema with {self._schema.n_children} children, where up to "
                                     f"{MAX_COLUMNS} are taken")
        # One more than the known names is enough to find an unknown or repeated one.
        for i in range(min(self._schema.n_children, <int64_t> len(ROLES) + len(IGNORED) + 1)):
            child = _child(&self._schema, i, self._schema.n_children, self._what)
            _format(child)
            name = _name(child)
            if name in seen:
                raise ValueError(f"{self._what} has two columns {name!r}")
            seen.add(name)
            if name in ROLES:
                fields.append((name, i, _shape(child, ROLES[name], f"column {name!r} of {self._what}")))
            elif name not in IGNORED:
                raise ValueError(
                    f"{self._what} has a column {name!r}; value, key, timestamp and headers make a record, and "
                    f"{', '.join(sorted(IGNORED))} are ignored")
        if not any("value" == field[0] for field in fields):
            raise ValueError(f"{self._what} has no column 'value'")
        return fields

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Column]:
        cdef _Held held = self._array
        cdef const ArrowArray *array
        cdef const ArrowArray *child
        cdef int64_t i
        cdef int code
        self._array = None
        if held is None:
            if self._stream.release == NULL:
                raise StopIteration
            held = _Held()
            with nogil:
                code = stream_next(&self._stream, &held.array)
            if code:
                held.array.release = NULL
                self._failed(code)
            if held.array.release == NULL:
                self.rows = self._given
                self._stream.release(&self._stream)
                self._stream.release = NULL
                raise StopIteration
        array = &held.array
        chunk = {}
        if self._fields[0][1] < 0:
            role, _, shape = self._fields[0]
            chunk[role] = _import(shape, array, 0, _length(array, self._what), held, self._what)
        else:
            _check(array, self._what, 1, self._schema.n_children, False)
            for role, number, shape in self._fields:
                child = array.children[<int64_t> number]
                chunk[role] = _import(shape, child, array.offset, array.length, held, f"column {role!r} of {self._what}")
            # Not earlier: importing the columns has checked the number of rows.
            if array.null_count != 0 and array.buffers[0] != NULL:
                for i in range(array.length):
                    if not ks_bit(<const uint8_t *> array.buffers[0], array.offset + i):
                        raise InvalidColumnError(f"{self._what}: row {self._given + i} is null as a whole")
        self._given += array.length
        return chunk
