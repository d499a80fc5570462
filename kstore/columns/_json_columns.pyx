# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Columns as JSON: one JSON object for each row, written without Python objects.

Invariant: whatever bytes the columns hold, each row becomes one line with one JSON object in UTF-8.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from kstore.columns._arrow cimport Column, ks_bytes, ks_column
from kstore.columns._native cimport (
    KS_ABSENT, KS_DICTIONARY, KS_LIST32, KS_LIST64, KS_OFFSETS32, KS_OFFSETS64, KS_POINTERS, KS_STRIDED, KS_TIMES, KS_VIEWS,
)

import json

from kstore.errors import InvalidColumnError

cdef extern from "columns/gather.h" nogil:
    enum:
        KS_COLUMN_FINE
    int ks_any_row(const ks_column *c, int64_t row, ks_bytes *out) noexcept
    int ks_list_row(const ks_column *c, int64_t row, int64_t *first, int64_t *last) noexcept
    int64_t ks_number(const uint8_t *p, int64_t width, int is_unsigned) noexcept
    int ks_bit(const uint8_t *bits, int64_t i) noexcept

cdef extern from "text.h" nogil:
    uint8_t *ks_put_int(uint8_t *out, int64_t value) noexcept

cdef extern from "json.h" nogil:
    enum:
        KS_JSON_GROWTH
    uint8_t *ks_put_json_text(uint8_t *out, const uint8_t *p, size_t n) noexcept
    uint8_t *ks_put_base64(uint8_t *out, const uint8_t *p, size_t n) noexcept
    int ks_is_json_number(const uint8_t *p, size_t n) noexcept

# How a field is written: bytes as text, or as base64 under another name if they are not UTF-8; bytes that are already
# JSON; bytes that may be a number; integers; headers.
cdef enum Kind:
    TEXT_FIELD
    RAW_FIELD
    NUMBER_FIELD
    INT_FIELD
    HEADERS_FIELD

cdef dict KINDS = {
    "text": TEXT_FIELD, "raw": RAW_FIELD, "number": NUMBER_FIELD, "int": INT_FIELD, "headers": HEADERS_FIELD,
}

cdef enum Fault:
    FINE
    NO_MEMORY
    UNSOUND

ctypedef struct Field:
    const ks_column *c
    int kind
    const char *name                   # with quotes and colon
    size_t name_size
    const char *other                  # the name for base64
    size_t other_size

ctypedef struct Out:
    uint8_t *data
    size_t used
    size_t room


@cython.final
cdef class Text:
    """A buffer of JSON objects, with or without line ends; `ends` holds 0 and the end of each object (int64)."""

    cdef Out out
    cdef uint8_t *_ends
    cdef Py_ssize_t rows

    def __cinit__(self):
        self.hold(0)

    cdef int hold(self, int64_t rows) except -1:
        """Allocate the ends of `rows` rows."""
        cdef uint8_t *ends = <uint8_t *> PyMem_RawRealloc(self._ends, 8 * <size_t> (rows + 1))
        if ends == NULL:
            raise MemoryError
        self._ends = ends
        self.rows = rows
        (<int64_t *> ends)[0] = 0
        return 0

    def __dealloc__(self):
        PyMem_RawFree(self.out.data)
        PyMem_RawFree(self._ends)

    def __len__(self):
        return self.out.used

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.out.data if self.out.data != NULL else <void *> b"", self.out.used, 1, flags)

    @property
    def ends(self) -> Ends:
        return Ends.__new__(Ends, self)


@cython.final
cdef class Ends:
    """The ends of a `Text`: a buffer of bytes, eight for each row and eight before them."""

    cdef Text text

    def __cinit__(self, Text text):
        self.text = text

    def __len__(self):
        return 8 * (self.text.rows + 1)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.text._ends, 8 * (self.text.rows + 1), 1, flags)


cdef inline int reserve(Out *out, size_t more) noexcept nogil:
    cdef size_t room = out.room
    cdef void *data
    if room - out.used >= more:
        return FINE
    while room - out.used < more:
        room = 2 * room + 65536
    data = PyMem_RawRealloc(out.data, room)
    if data == NULL:
        return NO_MEMORY
    out.data = <uint8_t *> data
    out.room = room
    return FINE


cdef inline void put(Out *out, const char *text, size_t n) noexcept nogil:
    memcpy(out.data + out.used, text, n)
    out.used += n


cdef int put_text(Out *out, const ks_bytes *cell, const char *name, size_t name_size, const char *other,
                  size_t other_size) noexcept nogil:
    """Write the name and the bytes as text, or the other name and the bytes as base64."""
    cdef uint8_t *end
    if reserve(out, name_size + other_size + KS_JSON_GROWTH * <size_t> max(cell.n, 0) + 16):
        return NO_MEMORY
    if cell.n < 0:
        put(out, name, name_size)
        put(out, b"null", 4)
        return FINE
    end = out.data + out.used
    memcpy(end, name, name_size)
    end = ks_put_json_text(end + name_size, cell.p, <size_t> cell.n)
    if end == NULL:
        put(out, other, other_size)
        end = ks_put_base64(out.data + out.used, cell.p, <size_t> cell.n)
    out.used = end - out.data
    return FINE


cdef int put_headers(Out *out, const ks_column *c, int64_t row) noexcept nogil:
    cdef int64_t first = 0, last = 0, i
    cdef ks_bytes name, value
    cdef int fault
    if ks_list_row(c, row, &first, &last) != KS_COLUMN_FINE:
        return UNSOUND
    if reserve(out, 2):
        return NO_MEMORY
    put(out, b"[", 1)
    for i in range(first, last):
        if ks_any_row(c.names, i, &name) != KS_COLUMN_FINE or ks_any_row(c.items, i, &value) != KS_COLUMN_FINE:
            return UNSOUND
        if reserve(out, 2):
            return NO_MEMORY
        put(out, b",{" if i > first else b"{", 2 if i > first else 1)
        fault = put_text(out, &name, b'"key":', 6, b'"key_base64":', 13)
        if not fault:
            fault = put_text(out, &value, b',"value":', 9, b',"value_base64":', 16)
        if fault:
            return fault
        put(out, b"}", 1)              # put_text has reserved space for it
    if reserve(out, 2):
        return NO_MEMORY
    put(out, b"]", 1)
    return FINE


cdef int put_int(Out *out, const ks_column *c, int64_t row) noexcept nogil:
    cdef int64_t at = c.offset + row
    if c.layout == KS_ABSENT or (c.validity != NULL and not ks_bit(c.validity, at)):
        put(out, b"null", 4)
        return FINE
    out.used = ks_put_int(out.data + out.used, ks_number(c.data + at * c.stride, c.width, c.is_unsigned)) - out.data
    return FINE


cdef int put_field(Out *out, const Field *field, int64_t row) noexcept nogil:
    cdef ks_bytes cell
    cdef bint is_json = field.kind == RAW_FIELD
    if field.kind == INT_FIELD or field.kind == HEADERS_FIELD:
        if reserve(out, field.name_size + 32):
            return NO_MEMORY
        put(out, field.name, field.name_size)
        return put_int(out, field.c, row) if field.kind == INT_FIELD else put_headers(out, field.c, row)
    if ks_any_row(field.c, row, &cell) != KS_COLUMN_FINE:
        return UNSOUND
    if cell.n >= 0 and field.kind == NUMBER_FIELD:
        is_json = ks_is_json_number(cell.p, <size_t> cell.n)
    if cell.n >= 0 and is_json:
        if reserve(out, field.name_size + <size_t> cell.n + 16):
            return NO_MEMORY
        put(out, field.name, field.name_size)
        put(out, <const char *> cell.p, <size_t> cell.n)
        return FINE
    return put_text(out, &cell, field.name, field.name_size, field.other, field.other_size)


cdef int render(Out *out, const Field *fields, int64_t count, int64_t rows, const char *prefix, size_t prefix_size,
                bint lines, int64_t *ends, int64_t *at) noexcept nogil:
    cdef int64_t row, i
    cdef int fault
    for row in range(rows):
        at[0] = row
        if reserve(out, prefix_size + 8):
            return NO_MEMORY
        put(out, b"{", 1)
        put(out, prefix, prefix_size)
        for i in range(count):
            if i > 0:
                put(out, b",", 1)      # each field has reserved space for it
            fault = put_field(out, &fields[i], row)
            if fault:
                return fault
        if reserve(out, 2):
            return NO_MEMORY
        put(out, b"}\n", 2 if lines else 1)
        ends[row + 1] = <int64_t> out.used
    return FINE


cdef bint fits(int kind, int layout):
    if kind == INT_FIELD:
        return layout in (KS_TIMES, KS_ABSENT)
    if kind == HEADERS_FIELD:
        return layout in (KS_LIST32, KS_LIST64, KS_ABSENT)
    return layout in (KS_ABSENT, KS_STRIDED, KS_OFFSETS32, KS_OFFSETS64, KS_VIEWS, KS_POINTERS, KS_DICTIONARY)


def are_numbers(Column column) -> bool:
    """Return whether a column of bytes holds only JSON numbers and nulls, and at least one number."""
    cdef int64_t row
    cdef ks_bytes cell
    cdef bint has_number = False
    if not fits(NUMBER_FIELD, column.c.layout):
        return False
    for row in range(column.c.length):
        if ks_any_row(&column.c, row, &cell) != KS_COLUMN_FINE:
            return False
        if cell.n >= 0:
            if not ks_is_json_number(cell.p, <size_t> cell.n):
                return False
            has_number = True
    return has_number


# stub: _Kind: TypeAlias = Literal["text", "number", "raw", "int", "headers"]


def render_rows(fields: Iterable[tuple[str, _Kind, Column]], *, bytes prefix=b"", bint lines=False) -> Text:
    """Write an object for each row of the columns, up to the end of the shortest one.

    `fields` are (name, kind, `Column`). The kinds are "text" (bytes, written as a string; if they are not UTF-8, as
    base64 under the name with `_base64` appended), "number" (bytes, written unchanged if they are a JSON number,
    otherwise as text), "raw" (bytes that are JSON), "int" (times or other integers) and "headers". `prefix` is written
    before the first field of each object. With `lines` each object is a line. Raises `InvalidColumnError` for a row of
    unsound Arrow data. Releases the GIL: the columns must not change during the call.
    """
    cdef list held = []
    cdef Py_ssize_t count = len(fields), i
    cdef int64_t rows = -1, at = 0
    cdef Column column
    cdef bytes name, other
    cdef int fault, kind
    cdef Text text = Text.__new__(Text)
    cdef const char *before = PyBytes_AS_STRING(prefix)
    cdef size_t before_size = PyBytes_GET_SIZE(prefix)
    cdef Field *table = <Field *> PyMem_Malloc(<size_t> max(count, 1) * sizeof(Field))
    if table == NULL:
        raise MemoryError
    try:
        for i, (named, way, column) in enumerate(fields):
            kind = KINDS[way]
            if not fits(kind, column.c.layout):
                raise TypeError(f"{column.what} cannot be written as {way}")
            name = json.dumps(named, ensure_ascii=False).encode() + b":"
            other = json.dumps(named + "_base64", ensure_ascii=False).encode() + b":"
            held.append((name, other, column))
            table[i].c = &column.c
            table[i].kind = kind
            table[i].name, table[i].name_size = PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            table[i].other, table[i].other_size = PyBytes_AS_STRING(other), PyBytes_GET_SIZE(other)
            rows = column.c.length if rows < 0 else min(rows, column.c.length)
        text.hold(max(rows, 0))
        with nogil:
            fault = render(&text.out, table, count, text.rows, before, before_size, lines, <int64_t *> text._ends, &at)
    finally:
        PyMem_Free(table)
    if fault == NO_MEMORY:
        raise MemoryError
    if fault == UNSOUND:
        raise InvalidColumnError(f"row {at} is no sound Arrow data")
    return text
