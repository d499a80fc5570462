# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Batches to columns: what `Log.read_columns` builds, and how other libraries take it.

A `Reader` turns the batches of files into rows without the GIL (columns.h, columnread.h) and hands them over as
`Columns`, whose memory is shared with whoever takes it through the Arrow C data interface. Hardest rule: bytes that are
not a sound v2 batch are read by `_core`'s record reader, so that columns and records never judge differently.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strerror

from kstore._arrowc cimport (
    ARRAY_CAPSULE, ARROW_FLAG_NULLABLE, SCHEMA_CAPSULE, STREAM_CAPSULE, ArrowArray, ArrowArrayStream, ArrowSchema,
)
from kstore._core cimport Buffer, Record, record_section

import numpy as np

from kstore import compression
from kstore._core import RecordIterator, decode_batches
from kstore.errors import CorruptRecordError, StorageError

ks_pool_setup()

cdef int64_t NO_LIMIT = 0x7fffffffffffffff
MAX_BINARY_BYTES = 0x7fffffff
MAX_HEADER_BYTES = 0x7fffffff // 3     # a name's bytes may each become three

# ---- What columns there are. Fixed ones in the order of ks_fixed.

cdef tuple FIXED = (
    ("offset", "l", "int64"),
    ("timestamp", "l", "int64"),
    ("partition_leader_epoch", "i", "int32"),
    ("producer_id", "l", "int64"),
    ("producer_epoch", "s", "int16"),
    ("base_sequence", "i", "int32"),
    ("sequence", "i", "int32"),
    ("base_offset", "l", "int64"),
    ("timestamp_type", "c", "int8"),
    ("compression", "c", "int8"),
    ("is_transactional", "b", "bool"),
)
cdef dict FIXED_NUMBERS = {name: number for number, (name, _, _) in enumerate(FIXED)}
COLUMN_NAMES = ("offset", "timestamp", "key", "value", "headers", *(name for name, _, _ in FIXED[2:]))
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value")
cdef dict ATTRIBUTES = {"offsets": "offset", "timestamps": "timestamp", "keys": "key", "values": "value"}
LAYOUTS = {"binary": KS_BINARY, "large_binary": KS_LARGE, "view": KS_VIEW}
cdef dict FORMATS = {KS_BINARY: "z", KS_LARGE: "Z", KS_VIEW: "vz"}
cdef dict LAYOUT_OF = {"z": KS_BINARY, "u": KS_BINARY, "Z": KS_LARGE, "U": KS_LARGE, "vz": KS_VIEW, "vu": KS_VIEW}


# ---- Memory that results share.


@cython.final
cdef class Memory:
    """A part of a block, as a read-only buffer; the block lives as long as anybody has a part of it."""

    cdef ks_block *block
    cdef const uint8_t *p
    cdef Py_ssize_t size

    def __dealloc__(self):
        ks_block_drop(self.block)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> self.p, self.size, 1, flags)


cdef Memory _memory(ks_block *block, const void *p, Py_ssize_t size):
    """A new share in `block`, which stays whoever's it was."""
    cdef Memory memory = Memory.__new__(Memory)
    memory.block = ks_block_hold(block)
    memory.p = <const uint8_t *> p
    memory.size = size
    return memory


cdef Memory _new_memory(Py_ssize_t size):
    cdef ks_block *block = ks_block_new(<size_t> size)
    cdef Memory memory
    if block == NULL:
        raise MemoryError(f"{size} bytes for a column")
    memory = _memory(block, block.data, size)
    ks_block_drop(block)
    return memory


cdef Memory _vec_memory(const ks_vec *v, Py_ssize_t size):
    if v.p == NULL:
        if size == 0:
            return _new_memory(0)
        raise MemoryError(f"{size} bytes for a column")
    return _memory(v.block, v.p, size)


def memory_in_use():
    """How many blocks are held by results and readers, and how many bytes the pool keeps for the next ones."""
    return ks_pool_live, ks_pool_bytes


def give_back_memory():
    """Return the pool's idle memory to the system."""
    ks_pool_shrink(0)


# ---- Columns of byte strings.


@cython.final
cdef class BinaryColumn:
    """A column of `bytes` or None: a sequence, and an Arrow array for whoever takes one without a copy.

    `column[i]` is `bytes` or None, a slice is a list of them; `to_pylist()` gives all. `null_count` counts the nulls,
    `validity` is a NumPy array of bool or None where there are none. In the layouts `"binary"` and `"large_binary"`,
    `data` is one buffer of all values and `offsets` the NumPy array of where each begins and the last ends. Immutable;
    thread-safe.
    """

    cdef readonly Py_ssize_t null_count
    cdef int _layout
    cdef Py_ssize_t _n
    cdef Memory _places
    cdef Memory _data                  # not for views
    cdef Memory _valid                 # None without nulls
    cdef list _buffers                 # of Memory: what views point into

    def __init__(self, *args, **kwargs):
        raise TypeError("a column comes from reading a log")

    def __len__(self):
        return self._n

    @property
    def layout(self):
        """One of "binary", "large_binary", "view"."""
        return next(name for name, layout in LAYOUTS.items() if layout == self._layout)

    @property
    def nbytes(self):
        """Bytes of memory that the column refers to; views may share theirs with other columns."""
        parts = [self._places, self._data, self._valid, *(self._buffers or ())]
        return sum([(<Memory> part).size for part in parts if part is not None])

    @property
    def validity(self):
        if self._valid is None:
            return None
        return np.unpackbits(np.frombuffer(self._valid, "u1"), count=self._n, bitorder="little").view("bool")

    @property
    def offsets(self):
        if self._layout == KS_VIEW:
            raise AttributeError("views have no offsets; read with layout='binary' or 'large_binary'")
        return np.frombuffer(self._places, "int32" if self._layout == KS_BINARY else "int64")

    @property
    def data(self):
        if self._layout == KS_VIEW:
            raise AttributeError("views have no data of their own; read with layout='binary' or 'large_binary'")
        return memoryview(self._data)

    @property
    def lengths(self):
        """The values' lengths, 0 for null."""
        if self._layout == KS_VIEW:
            return np.frombuffer(self._places, "int32")[::4].copy()
        return np.diff(self.offsets)

    cdef bint _is_null(self, Py_ssize_t i) noexcept:
        return self._valid is not None and not self._valid.p[i >> 3] >> (i & 7) & 1

    cdef const uint8_t *_find(self, Py_ssize_t i, Py_ssize_t *size) noexcept:
        cdef const ks_view *view
        cdef Py_ssize_t begin, end
        if self._layout == KS_VIEW:
            view = <const ks_view *> self._places.p + i
            size[0] = view.size
            if view.size <= 12:
                return view.prefix
            return (<Memory> self._buffers[view.buffer]).p + view.offset
        if self._layout == KS_BINARY:
            begin = (<const int32_t *> self._places.p)[i]
            end = (<const int32_t *> self._places.p)[i + 1]
        else:
            begin = (<const int64_t *> self._places.p)[i]
            end = (<const int64_t *> self._places.p)[i + 1]
        size[0] = end - begin
        return self._data.p + begin

    cdef object _item(self, Py_ssize_t i):
        cdef Py_ssize_t size
        cdef const uint8_t *p
        if self._is_null(i):
            return None
        p = self._find(i, &size)
        return PyBytes_FromStringAndSize(<const char *> p, size)

    def __getitem__(self, index):
        cdef Py_ssize_t i
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(self._n))]
        i = index
        if i < 0:
            i += self._n
        if not 0 <= i < self._n:
            raise IndexError(f"row {index} of {self._n}")
        return self._item(i)

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(self._n):
            yield self._item(i)

    def to_pylist(self):
        """All values, each `bytes` or None."""
        cdef Py_ssize_t i
        return [self._item(i) for i in range(self._n)]

    def __array__(self, dtype=None, copy=None):
        out = np.empty(self._n, dtype=object)
        out[:] = self.to_pylist()
        return out if dtype is None else out.astype(dtype)

    def __eq__(self, other):
        if isinstance(other, BinaryColumn):
            return self.to_pylist() == other.to_pylist()
        return NotImplemented

    __hash__ = None

    def __repr__(self):
        return f"<BinaryColumn of {self._n} rows, {self.null_count} null, layout={self.layout!r}>"

    def __arrow_c_schema__(self):
        return _schema_capsule(("", FORMATS[self._layout]))

    def __arrow_c_array__(self, requested_schema=None):
        field = ("", FORMATS[self._layout])
        if requested_schema is not None:
            wanted = _read_schema(requested_schema)
            if wanted[1] in LAYOUT_OF:
                field = (wanted[0], wanted[1])
            elif wanted[1] != field[1]:
                raise ValueError(f"a column of bytes cannot be had as Arrow format {wanted[1]!r}")
        return _schema_capsule(field), _array_capsule(self, field)

    # Other layouts, for whoever asks for them.

    cdef BinaryColumn _as(self, int layout):
        if layout == self._layout:
            return self
        return self._as_views() if layout == KS_VIEW else self._gathered(layout)

    cdef BinaryColumn _gathered(self, int layout):
        """The values one behind the other, with offsets of the wanted width."""
        cdef BinaryColumn out = BinaryColumn.__new__(BinaryColumn)
        cdef Py_ssize_t i, size, total = 0
        cdef const uint8_t *p
        cdef uint8_t *to
        cdef bint moves = self._layout == KS_VIEW
        for i in range(self._n):
            self._find(i, &size)
            total += size
        if layout == KS_BINARY and total > MAX_BINARY_BYTES:
            raise ValueError(f"{total} bytes of values do not fit the 32-bit offsets of layout 'binary'")
        out._layout, out._n, out._valid, out.null_count = layout, self._n, self._valid, self.null_count
        out._places = _new_memory((self._n + 1) * (4 if layout == KS_BINARY else 8))
        out._data = _new_memory(total) if moves else self._data
        to = <uint8_t *> out._data.p
        total = 0
        for i in range(self._n + 1):
            if layout == KS_BINARY:
                (<int32_t *> out._places.p)[i] = <int32_t> total
            else:
                (<int64_t *> out._places.p)[i] = total
            if i < self._n:
                p = self._find(i, &size)
                if moves:
                    memcpy(to + total, p, <size_t> size)
                total += size
        return out

    cdef BinaryColumn _as_views(self):
        """Views of the same bytes; each buffer begins a GiB after the one before, so that 31 bits reach every value."""
        cdef BinaryColumn out = BinaryColumn.__new__(BinaryColumn)
        cdef Py_ssize_t i, size, at, buffer
        cdef const uint8_t *p
        cdef ks_view *view
        out._layout, out._n, out._valid, out.null_count = KS_VIEW, self._n, self._valid, self.null_count
        out._places = _new_memory(self._n * <Py_ssize_t> sizeof(ks_view))
        out._buffers = [
            _memory(self._data.block, self._data.p + at, self._data.size - at)
            for at in range(0, self._data.size, 1 << 30)
        ]
        for i in range(self._n):
            p = self._find(i, &size)
            view = <ks_view *> out._places.p + i
            memset(view, 0, sizeof(ks_view))
            view.size = <int32_t> size
            if size <= 12:
                memcpy(<uint8_t *> view + 4, p, <size_t> size)
            else:
                memcpy(view.prefix, p, 4)
                at = p - self._data.p
                buffer = at >> 30
                view.buffer = <int32_t> buffer
                view.offset = <int32_t> (at - (buffer << 30))
        return out

    cdef int _check_text(self) except -1:
        """Raise `ValueError` unless every value is UTF-8."""
        cdef Py_ssize_t i, size
        cdef const uint8_t *p
        for i in range(self._n):
            p = self._find(i, &size)
            try:
                PyUnicode_DecodeUTF8(<const char *> p, size, NULL)
            except UnicodeDecodeError as error:
                raise ValueError(f"row {i} is not UTF-8, and cannot be had as a string: {error}") from None
        return 0

    cdef int _export(self, ArrowArray *out, str format) except -1:
        cdef BinaryColumn column = self._as(LAYOUT_OF[format])
        cdef Memory memory, sizes
        cdef Py_ssize_t i, count
        if format in ("u", "U", "vu"):
            self._check_text()
        count = 3 if column._layout != KS_VIEW else 3 + len(column._buffers)
        if ks_make_array(out, column._n, column.null_count, count, 0):
            raise MemoryError("an Arrow array")
        if column._valid is not None:
            ks_set_buffer(out, 0, column._valid.p, column._valid.block)
        ks_set_buffer(out, 1, column._places.p, column._places.block)
        if column._layout != KS_VIEW:
            ks_set_buffer(out, 2, column._data.p, column._data.block)
            return 0
        sizes = _new_memory(8 * len(column._buffers))
        for i, memory in enumerate(column._buffers):
            ks_set_buffer(out, 2 + i, memory.p, memory.block)
            (<int64_t *> sizes.p)[i] = memory.size
        ks_set_buffer(out, count - 1, sizes.p, sizes.block)
        return 0


cdef BinaryColumn _binary_column(const ks_var *v, Py_ssize_t n, list buffers):
    cdef BinaryColumn column = BinaryColumn.__new__(BinaryColumn)
    column._layout = v.layout
    column._n = n
    column.null_count = v.nulls
    if v.layout == KS_VIEW:
        column._places = _vec_memory(&v.places, n * <Py_ssize_t> sizeof(ks_view))
        column._buffers = buffers
    else:
        column._places = _vec_memory(&v.places, (n + 1) * (4 if v.layout == KS_BINARY else 8))
        column._data = _vec_memory(&v.data, v.used)
    if v.nulls:
        column._valid = _vec_memory(&v.valid, (n + 7) // 8)
    return column


@cython.final
cdef class HeadersColumn:
    """A column of headers: each row a tuple of (str, bytes or None), as in `Record`.

    A name that is not UTF-8 has U+FFFD in the place of what is wrong, as in Kafka's consumers; to Arrow it is a list of
    structs of `key` and `value`. `keys` and `values` are the headers of all rows one after the other, and `offsets` says
    where each row's begin. Immutable; thread-safe.
    """

    cdef Py_ssize_t _n
    cdef Memory _places
    cdef readonly BinaryColumn keys
    cdef readonly BinaryColumn values

    def __init__(self, *args, **kwargs):
        raise TypeError("a column comes from reading a log")

    def __len__(self):
        return self._n

    @property
    def offsets(self):
        return np.frombuffer(self._places, "int32")

    @property
    def nbytes(self):
        """Bytes of memory that the column refers to."""
        return self._places.size + self.keys.nbytes + self.values.nbytes

    cdef tuple _item(self, Py_ssize_t i):
        cdef Py_ssize_t j
        cdef const int32_t *places = <const int32_t *> self._places.p
        return tuple([
            ((<bytes> self.keys._item(j)).decode(), self.values._item(j)) for j in range(places[i], places[i + 1])
        ])

    def __getitem__(self, index):
        cdef Py_ssize_t i
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(self._n))]
        i = index
        if i < 0:
            i += self._n
        if not 0 <= i < self._n:
            raise IndexError(f"row {index} of {self._n}")
        return self._item(i)

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(self._n):
            yield self._item(i)

    def to_pylist(self):
        """All rows, each a tuple of (str, bytes or None)."""
        cdef Py_ssize_t i
        return [self._item(i) for i in range(self._n)]

    def __eq__(self, other):
        if isinstance(other, HeadersColumn):
            return self.to_pylist() == other.to_pylist()
        return NotImplemented

    __hash__ = None

    def __repr__(self):
        return f"<HeadersColumn of {self._n} rows, {len(self.keys)} headers>"

    def __arrow_c_schema__(self):
        return _schema_capsule(("", "+l"))

    def __arrow_c_array__(self, requested_schema=None):
        return _schema_capsule(("", "+l")), _array_capsule(self, ("", "+l"))

    cdef int _export(self, ArrowArray *out) except -1:
        if ks_make_array(out, self._n, 0, 2, 1):
            raise MemoryError("an Arrow array")
        ks_set_buffer(out, 1, self._places.p, self._places.block)
        if ks_make_array(out.children[0], len(self.keys), 0, 1, 2):
            raise MemoryError("an Arrow array")
        self.keys._export(out.children[0].children[0], "z")
        self.values._export(out.children[0].children[1], "z")
        return 0


@cython.final
cdef class Columns:
    """The columns of some records of a log, in the order in which they were asked for.

    `offsets` and `timestamps` are NumPy arrays of int64, `keys` and `values` columns of `bytes` or None; any column can
    be had by its name, `columns["value"]`, and those that are not of byte strings are NumPy arrays. `next_offset` says
    where to go on. Arrow takes it as a record batch: `pyarrow.record_batch(columns)`, `polars.DataFrame(columns)`.
    Its memory is its own: it stays valid and as it is whatever becomes of the log. Immutable; thread-safe.
    """

    cdef readonly tuple names
    """The columns' names."""
    cdef readonly int64_t next_offset
    """The offset to go on from."""
    cdef Py_ssize_t _n
    cdef tuple _fields
    cdef dict _columns
    cdef dict _memories                # of the NumPy arrays

    def __init__(self, *args, **kwargs):
        raise TypeError("Columns come from reading a log")

    def __len__(self):
        return self._n

    def __getitem__(self, name):
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.names)}") from None

    def __getattr__(self, name):
        column = ATTRIBUTES.get(name, name)
        if column in self._columns:
            return self._columns[column]
        if column in COLUMN_NAMES:
            raise AttributeError(f"column {column!r} was not asked for; there are {', '.join(self.names)}")
        raise AttributeError(f"Columns have no attribute {name!r}")

    @property
    def offsets(self):
        return self.__getattr__("offset")

    @property
    def timestamps(self):
        return self.__getattr__("timestamp")

    @property
    def keys(self):
        return self.__getattr__("key")

    @property
    def values(self):
        return self.__getattr__("value")

    @property
    def headers(self):
        return self.__getattr__("headers")

    @property
    def partition_leader_epoch(self):
        return self.__getattr__("partition_leader_epoch")

    @property
    def producer_id(self):
        return self.__getattr__("producer_id")

    @property
    def nbytes(self):
        """Bytes of memory that the columns refer to."""
        return sum([column.nbytes for column in self._columns.values()])

    def __repr__(self):
        return f"<Columns of {self._n} rows: {', '.join(self.names)}; next_offset={self.next_offset}>"

    def __arrow_c_schema__(self):
        return _schema_capsule(("", "+s", self._fields))

    def __arrow_c_array__(self, requested_schema=None):
        fields = _choose(self._fields, requested_schema)
        return _schema_capsule(("", "+s", fields)), _array_capsule(self, ("", "+s", fields))

    cdef int _export(self, ArrowArray *out, tuple fields) except -1:
        cdef Memory memory
        if ks_make_array(out, self._n, 0, 1, len(fields)):
            raise MemoryError("an Arrow array")
        for number, (name, format) in enumerate(fields):
            column = self._columns[name]
            if type(column) is BinaryColumn:
                (<BinaryColumn> column)._export(out.children[number], format)
            elif type(column) is HeadersColumn:
                (<HeadersColumn> column)._export(out.children[number])
            else:
                memory = self._memories[name] if format != "b" else _packed_bits(column)
                if ks_make_array(out.children[number], self._n, 0, 2, 0):
                    raise MemoryError("an Arrow array")
                ks_set_buffer(out.children[number], 1, memory.p, memory.block)
        return 0


cdef Memory _packed_bits(column):
    cdef bytes bits = np.packbits(column, bitorder="little").tobytes()
    cdef Memory memory = _new_memory(len(bits))
    memcpy(<uint8_t *> memory.p, PyBytes_AS_STRING(bits), <size_t> len(bits))
    return memory


# ---- Capsules. A field is (name, format) or (name, format, fields of the children).


cdef void _free_schema(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *> PyCapsule_GetPointer(capsule, SCHEMA_CAPSULE)
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void _free_array(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *> PyCapsule_GetPointer(capsule, ARRAY_CAPSULE)
    if array.release != NULL:
        array.release(array)
    free(array)


cdef tuple _HEADERS = (("item", "+s", (("key", "u"), ("value", "z"))),)


cdef int _fill_schema(ArrowSchema *out, tuple field, bint nullable) except -1:
    cdef tuple children = field[2] if len(field) > 2 else _HEADERS if field[1] == "+l" else ()
    cdef bytes name = field[0].encode(), format = field[1].encode()
    if ks_make_schema(out, format, name, ARROW_FLAG_NULLABLE if nullable else 0, len(children)):
        raise MemoryError("an Arrow schema")
    for number, child in enumerate(children):
        _fill_schema(out.children[number], child, child[0] == "value" or (child[0] == "key" and child[1] != "u"))
    return 0


cdef object _schema_capsule(tuple field):
    cdef ArrowSchema *schema = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError("an Arrow schema")
    capsule = PyCapsule_New(schema, SCHEMA_CAPSULE, _free_schema)
    _fill_schema(schema, field, field[1] in LAYOUT_OF)
    return capsule


cdef object _array_capsule(column, tuple field):
    cdef ArrowArray *array = <ArrowArray *> calloc(1, sizeof(ArrowArray))
    if array == NULL:
        raise MemoryError("an Arrow array")
    capsule = PyCapsule_New(array, ARRAY_CAPSULE, _free_array)
    _export(column, array, field)
    return capsule


cdef int _export(column, ArrowArray *out, tuple field) except -1:
    if type(column) is Columns:
        return (<Columns> column)._export(out, field[2])
    if type(column) is HeadersColumn:
        return (<HeadersColumn> column)._export(out)
    return (<BinaryColumn> column)._export(out, field[1])


cdef tuple _fields_of(const ArrowSchema *schema):
    children = tuple([_fields_of(schema.children[i]) for i in range(schema.n_children)])
    return (schema.name or b"").decode(errors="replace"), (schema.format or b"").decode(errors="replace"), children


cdef tuple _read_schema(capsule):
    if not PyCapsule_IsValid(capsule, SCHEMA_CAPSULE):
        raise TypeError(f"requested_schema must be an Arrow schema capsule, not {type(capsule).__name__}")
    cdef ArrowSchema *schema = <ArrowSchema *> PyCapsule_GetPointer(capsule, SCHEMA_CAPSULE)
    if schema.release == NULL:
        raise ValueError("requested_schema has been released")
    return _fields_of(schema)


cdef tuple _choose(tuple fields, requested_schema):
    """The fields that a requested schema asks for: some of ours, in its order; bytes in any layout, or as strings.

    `ValueError` for a column that we do not have, or that cannot be had so.
    """
    if requested_schema is None:
        return fields
    cdef dict ours = {name: format for name, format in fields}
    _, format, children = _read_schema(requested_schema)
    if format != "+s":
        raise ValueError(f"the requested schema has the Arrow format {format!r}; a struct, '+s', is what there is")
    chosen = []
    for name, wanted, _ in children:
        if name not in ours:
            raise ValueError(f"the requested schema has a column {name!r}; there are {', '.join(ours)}")
        have = ours[name]
        if have in LAYOUT_OF and wanted in LAYOUT_OF or have == "l" and wanted.startswith("tsm:"):
            chosen.append((name, wanted))
        elif wanted == have:
            chosen.append((name, have))
        else:
            raise ValueError(f"column {name!r} has the Arrow format {have!r}, and cannot be had as {wanted!r}")
    return tuple(chosen)


def fields_of(columns, layout, requested_schema=None):
    """(name, Arrow format) of the columns as they would be built, or as a requested schema wants them."""
    formats = {name: format for name, format, _ in FIXED}
    formats.update(key=FORMATS[LAYOUTS[layout]], value=FORMATS[LAYOUTS[layout]], headers="+l")
    return _choose(tuple([(name, formats[name]) for name in columns]), requested_schema)


# ---- Reading.


@cython.final
cdef class Reader:
    """Builds columns of the batches that it is pointed at, one `Columns` after the other.

    `columns` are names of COLUMN_NAMES, `layout` one of LAYOUTS. `seek` says which offsets are wanted, `begin` opens the
    next `Columns`, `read` goes over the batches of a stretch of a file, `finish` hands over. Not thread-safe.
    """

    cdef ks_reader _r
    cdef ks_rows _out
    cdef ks_mark _mark
    cdef tuple _mark_place
    cdef int _layout
    cdef tuple _columns
    cdef int64_t _max_decompressed
    cdef bytes _plain                  # records of the batch at `position`, decompressed by a library
    cdef object _slow                  # a RecordIterator over the batches in _slow_data
    cdef bytes _slow_data
    cdef int64_t _slow_position
    cdef Record _slow_record           # taken from it, and not yet used
    cdef Buffer _memory                # what is read instead of a file
    cdef int64_t _memory_at            # the position of its first byte, as errors say it
    cdef readonly object path

    def __init__(self, columns, layout, *, bint check_crc=True, max_decompressed_bytes=None):
        self._columns = tuple(columns)
        self._layout = LAYOUTS[layout]
        self._max_decompressed = min(
            compression.MAX_DECOMPRESSED_BYTES if max_decompressed_bytes is None else max_decompressed_bytes, 0x7fffffff)
        self._r.check_crc = check_crc
        self._r.out = &self._out
        self._r.last_position = self._r.last_base = -1
        self._r.fd = -1
        self._dress(&self._out, False)
        self._dress(&self._r.staged, True)

    cdef int _dress(self, ks_rows *rows, bint staged) except -1:
        """Say which columns are to be built."""
        for name in self._columns:
            if name in FIXED_NUMBERS:
                rows.wanted |= <uint32_t> 1 << <int> FIXED_NUMBERS[name]
            elif name == "key":
                rows.key.layout = self._layout
            elif name == "value":
                rows.value.layout = self._layout
            else:
                rows.headers = True
                rows.header_key.layout = rows.header_value.layout = KS_BINARY
        if staged or rows.wanted >> KS_SEQUENCE & 1:
            rows.wanted |= <uint32_t> 1 << KS_OFFSET
        rows.measured = staged
        return 0

    def __dealloc__(self):
        ks_rows_clear(&self._out, False)
        ks_rows_clear(&self._r.staged, False)
        ks_block_drop(self._r.plain_block)
        ks_window_close(&self._r)

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
        self._plain = None
        self._slow = self._slow_record = self._slow_data = None
        self._r.last_position = -1
        ks_window_close(&self._r)
        self._r.ahead = KS_FIRST_LOOK
        return 0

    def begin(self, int64_t most_rows, int64_t most_bytes):
        """Open the next `Columns`, of so many rows and bytes of records at the most, but one row whatever its size."""
        ks_rows_clear(&self._out, False)
        self._r.expected = False
        self._r.most_rows = most_rows
        self._r.most_bytes = most_bytes

    def open(self, int fd, int64_t position, object path):
        """Go to a batch of a file."""
        self._r.fd = fd
        self._r.position = position
        self._r.last_position = -1
        self.path = path
        ks_window_close(&self._r)

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

    def back(self):
        """Forget the rows since `mark`; a `seek` must follow."""
        ks_rows_back(&self._out, &self._mark)

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
        while True:
            with nogil:
                stop = ks_read(r)
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
            self._unpack()

    cdef int _unpack(self) except -1:
        """Decompress the records of the batch at `position`, which is in the window and whose CRC holds."""
        cdef ks_reader *r = &self._r
        cdef const uint8_t *p = ks_look(r, r.position, KS_AT_RECORDS)
        cdef Py_ssize_t size = 12 + <Py_ssize_t> ks_size(p)
        p = ks_look(r, r.position, <size_t> size)
        self._plain = record_section(p, size, self._max_decompressed, self.path, self._memory_at + r.position)
        size = PyBytes_GET_SIZE(self._plain)
        ks_block_drop(r.plain_block)
        r.plain_block = NULL
        r.plain = <const uint8_t *> PyBytes_AS_STRING(self._plain)
        if self._layout == KS_VIEW:
            r.plain_block = ks_block_new(<size_t> size)
            if r.plain_block == NULL:
                raise MemoryError(f"{size} bytes of a batch")
            memcpy(r.plain_block.data, r.plain, <size_t> size)
            r.plain = r.plain_block.data
        r.plain_end = r.plain_safe = r.plain + size
        return 0

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
        ks_rows_finish(out)
        columns._n = out.n
        columns.names = self._columns
        columns._fields = fields_of(self._columns, next(name for name in LAYOUTS if LAYOUTS[name] == self._layout))
        columns.next_offset = self._r.next_offset if next_offset is None else next_offset
        columns._columns, columns._memories = {}, {}
        buffers = [_memory(out.buffers[i], out.buffers[i].data, out.extents[i]) for i in range(out.buffers_n)]
        for name in self._columns:
            if name == "key":
                column = _binary_column(&out.key, out.n, buffers)
            elif name == "value":
                column = _binary_column(&out.value, out.n, buffers)
            elif name == "headers":
                headers = HeadersColumn.__new__(HeadersColumn)
                headers._n = out.n
                headers._places = _vec_memory(&out.header_places, 4 * (out.n + 1))
                headers.keys = _binary_column(&out.header_key, out.headers_n, None)
                headers.values = _binary_column(&out.header_value, out.headers_n, None)
                column = headers
            else:
                number = FIXED_NUMBERS[name]
                dtype = np.dtype(FIXED[number][2])
                memory = _vec_memory(&out.fixed[number], out.n * <Py_ssize_t> dtype.itemsize)
                columns._memories[name] = memory
                column = np.frombuffer(memory, dtype)
            columns._columns[name] = column
        ks_rows_clear(out, False)
        return columns


def decode_columns(buffer, *, columns=None, layout="binary", bint check_crc=True, path=None, int64_t position=0,
                   max_decompressed_bytes=None):
    """The records of the batches in `buffer`, of any format, as `Columns`; control records are left out.

    `columns` and `layout` are as in `Log.read_columns`. A batch that is cut off by the end of the buffer is left out in
    silence, as `decode_batches` does it. Raises `CorruptRecordError`, and `ValueError` for 2 GiB and more of records in
    the layout "binary". `path` and `position` go into errors.
    """
    cdef Reader reader = Reader(DEFAULT_COLUMNS if columns is None else columns, layout, check_crc=check_crc,
                                max_decompressed_bytes=max_decompressed_bytes)
    cdef ks_reader *r = &reader._r
    cdef Py_ssize_t size
    most_bytes = MAX_BINARY_BYTES if layout == "binary" else MAX_HEADER_BYTES if "headers" in reader._columns else NO_LIMIT
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
