# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Columns as results: `Log.read_columns` returns them, and other libraries import them.

Columns lie in counted blocks of memory (blocks.h) that NumPy arrays and Arrow arrays share. Invariant: a block lives
until the last of these arrays is released, on any thread and in any order.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strerror

from kstore.columns._arrowc cimport (
    ARRAY_CAPSULE, ARROW_FLAG_NULLABLE, SCHEMA_CAPSULE, STREAM_CAPSULE, ArrowArray, ArrowArrayStream, ArrowSchema,
)
from kstore.columns._native cimport (
    KS_OFFSETS32, KS_OFFSETS64, KS_VIEWS, ks_block, ks_block_drop, ks_block_hold, ks_block_new, ks_block_of,
    ks_make_array, ks_make_schema, ks_pool_shrink, ks_pool_use, ks_set_buffer, ks_view,
)
from kstore._core cimport Buffer, check_headers

from kstore.base.optional import Late

np = Late("numpy")

# stub: _Header: TypeAlias = tuple[str, bytes | None]

cdef extern from "Python.h":
    bint Py_IsInitialized() nogil
    object PyPickleBuffer_FromObject(object owner)

MAX_BINARY_BYTES = 0x7fffffff


# ---- The known columns. Fixed-width ones have the order of ks_fixed.

FIXED = (  # type: tuple[tuple[str, str, str], ...]
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
    ("is_tombstone", "b", "bool"),
)
COLUMN_NAMES = ("offset", "timestamp", "key", "value", "headers", *(name for name, _, _ in FIXED[2:]))  # type: tuple[str, ...]
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value")  # type: tuple[str, ...]
cdef dict ATTRIBUTES = {"offsets": "offset", "timestamps": "timestamp", "keys": "key", "values": "value"}
LAYOUTS = {"binary": KS_OFFSETS32, "large_binary": KS_OFFSETS64, "view": KS_VIEWS}  # type: dict[str, int]
cdef dict FORMATS = {KS_OFFSETS32: "z", KS_OFFSETS64: "Z", KS_VIEWS: "vz"}
cdef dict LAYOUT_OF = {"z": KS_OFFSETS32, "u": KS_OFFSETS32, "Z": KS_OFFSETS64, "U": KS_OFFSETS64, "vz": KS_VIEWS, "vu": KS_VIEWS}


# ---- Shared memory.


@cython.final
cdef class Memory:
    """A part of a block, as a read-only buffer; the block lives as long as any of its parts."""

    def __dealloc__(self):
        ks_block_drop(self.block)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> self.p, self.size, 1, flags)

    def __reduce_ex__(self, protocol):
        return _unpickled_memory, (PyPickleBuffer_FromObject(self) if protocol >= 5 else bytes(self),)


cdef void _let_go(void *owner) noexcept nogil:
    """Release the owner of a buffer, on any thread; after the interpreter has ended the memory is not freed."""
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object> owner)


def _unpickled_memory(data):
    """Return pickled memory, without a copy if it is aligned: from `bytes`, or from an out-of-band buffer."""
    cdef Buffer buffer = Buffer(data)
    cdef Memory memory
    cdef ks_block *block
    if <size_t> buffer.p & 7:              # numbers must lie at multiples of their size
        memory = new_memory(buffer.size)
        memcpy(<uint8_t *> memory.p, buffer.p, <size_t> buffer.size)
        return memory
    block = ks_block_of(buffer.p, <size_t> buffer.size, _let_go, <PyObject *> buffer)
    if block == NULL:
        raise MemoryError("a column")
    Py_INCREF(buffer)
    memory = share(block, buffer.p, buffer.size)
    ks_block_drop(block)
    return memory


cdef Memory share(ks_block *block, const void *p, Py_ssize_t size):
    """Return a new reference to a part of `block`; the caller keeps its own reference."""
    cdef Memory memory = Memory.__new__(Memory)
    memory.block = ks_block_hold(block)
    memory.p = <const uint8_t *> p
    memory.size = size
    return memory


cdef Memory new_memory(Py_ssize_t size):
    cdef ks_block *block = ks_block_new(<size_t> size)
    cdef Memory memory
    if block == NULL:
        raise MemoryError(f"{size} bytes for a column")
    memory = share(block, block.data, size)
    ks_block_drop(block)
    return memory


def memory_in_use() -> tuple[int, int]:
    """Return the number of blocks that results and readers hold, and the idle bytes in the pool."""
    cdef int64_t live = 0, idle_bytes = 0
    ks_pool_use(&live, &idle_bytes)
    return live, idle_bytes


def give_back_memory() -> None:
    """Return the pool's idle memory to the system."""
    ks_pool_shrink(0)


# ---- Columns of byte strings.


@cython.final
cdef class BinaryColumn:  # type: Sequence[bytes | None]
    """A column of `bytes` or `None`: a sequence, and an Arrow array that other libraries import without a copy.

    `column[i]` is `bytes` or `None`, a slice is a list of them, and `to_pylist()` returns them all. `null_count` is the
    number of nulls; `validity` is a NumPy array of bool, or `None` if no row is null. In the layouts "binary" and
    "large_binary", `data` is one buffer of all values, and `offsets` is a NumPy array of the positions in `data` where
    each value starts and where the last value ends.

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples"), (None, b"1 pear")])
        >>> column = kstore.decode_columns(batch).keys
        >>> len(column), column[0], column.null_count
        (2, b'alice', 1)

    Immutable; thread-safe.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("a column comes from reading a log")

    def __len__(self):
        return self.n

    @property
    def layout(self) -> str:
        """The layout in memory: "binary", "large_binary" or "view"."""
        return next(name for name, layout in LAYOUTS.items() if layout == self.layout_number)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the column refers to; views may share them with other columns."""
        parts = [self.places, self.bytes_, self.valid, *(self.buffers or ())]
        return sum([(<Memory> part).size for part in parts if part is not None])

    @property
    def validity(self) -> npt.NDArray[np.bool_] | None:
        """For each row whether it has a value, as a NumPy array; `None` if no row is null."""
        if self.valid is None:
            return None
        return np.unpackbits(np.frombuffer(self.valid, "u1"), count=self.n, bitorder="little").view("bool")

    @property
    def offsets(self) -> npt.NDArray[np.int32 | np.int64]:
        """The positions in `data` where each value starts and where the last one ends.

        Raises:
            AttributeError: If the layout is "view".
        """
        if self.layout_number == KS_VIEWS:
            raise AttributeError("views have no offsets; read with layout='binary' or 'large_binary'")
        return np.frombuffer(self.places, "int32" if self.layout_number == KS_OFFSETS32 else "int64")

    @property
    def data(self) -> memoryview:
        """The concatenated bytes of all values.

        Raises:
            AttributeError: If the layout is "view".
        """
        if self.layout_number == KS_VIEWS:
            raise AttributeError("views have no data of their own; read with layout='binary' or 'large_binary'")
        return memoryview(self.bytes_)

    @property
    def lengths(self) -> npt.NDArray[np.int32 | np.int64]:
        """The lengths of the values in bytes, 0 for null."""
        if self.layout_number == KS_VIEWS:
            return np.frombuffer(self.places, "int32")[::4].copy()
        return np.diff(self.offsets)

    cdef bint _is_null(self, Py_ssize_t i) noexcept:
        return self.valid is not None and not self.valid.p[i >> 3] >> (i & 7) & 1

    cdef const uint8_t *_find(self, Py_ssize_t i, Py_ssize_t *size) noexcept:
        cdef const ks_view *view
        cdef Py_ssize_t begin, end
        if self.layout_number == KS_VIEWS:
            view = <const ks_view *> self.places.p + i
            size[0] = view.size
            if view.size <= 12:
                return view.prefix
            return (<Memory> self.buffers[view.buffer]).p + view.offset
        if self.layout_number == KS_OFFSETS32:
            begin = (<const int32_t *> self.places.p)[i]
            end = (<const int32_t *> self.places.p)[i + 1]
        else:
            begin = (<const int64_t *> self.places.p)[i]
            end = (<const int64_t *> self.places.p)[i + 1]
        size[0] = end - begin
        return self.bytes_.p + begin

    cdef object _item(self, Py_ssize_t i):
        cdef Py_ssize_t size
        cdef const uint8_t *p
        if self._is_null(i):
            return None
        p = self._find(i, &size)
        return PyBytes_FromStringAndSize(<const char *> p, size)

    # stub: @overload
    # stub: def __getitem__(self, index: SupportsIndex, /) -> bytes | None: ...
    # stub: @overload
    # stub: def __getitem__(self, index: slice, /) -> list[bytes | None]: ...
    def __getitem__(self, index):
        cdef Py_ssize_t i
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(self.n))]
        i = index
        if i < 0:
            i += self.n
        if not 0 <= i < self.n:
            raise IndexError(f"row {index} of {self.n}")
        return self._item(i)

    def __iter__(self) -> Iterator[bytes | None]:
        cdef Py_ssize_t i
        for i in range(self.n):
            yield self._item(i)

    def to_pylist(self) -> list[bytes | None]:
        """Return all values as a list.

        Returns:
            `bytes` or `None` for each row.

        Example:
            >>> column.to_pylist()
            [b'alice', None]
        """
        cdef Py_ssize_t i
        return [self._item(i) for i in range(self.n)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        out = np.empty(self.n, dtype=object)
        out[:] = self.to_pylist()
        return out if dtype is None else out.astype(dtype)

    def __eq__(self, other):
        if isinstance(other, BinaryColumn):
            return self.to_pylist() == other.to_pylist()
        return NotImplemented

    __hash__ = None

    def __repr__(self):
        return f"<BinaryColumn of {self.n} rows, {self.null_count} null, layout={self.layout!r}>"

    def __reduce_ex__(self, protocol):
        return _unpickled_binary, (
            self.layout, self.n, self.null_count, self.places, self.bytes_, self.valid, self.buffers)

    def __arrow_c_schema__(self) -> object:
        return _schema_capsule(("", FORMATS[self.layout_number]))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        field = ("", FORMATS[self.layout_number])
        if requested_schema is not None:
            wanted = _read_schema(requested_schema)
            if wanted[1] in LAYOUT_OF:
                field = (wanted[0], wanted[1])
            elif wanted[1] != field[1]:
                raise ValueError(f"a column of bytes cannot be had as Arrow format {wanted[1]!r}")
        return _schema_capsule(field), _array_capsule(self, field)

    # Conversion to other layouts.

    cdef BinaryColumn _as(self, int layout):
        if layout == self.layout_number:
            return self
        return self._as_views() if layout == KS_VIEWS else self._gathered(layout)

    cdef BinaryColumn _gathered(self, int layout):
        """Return the values concatenated, with offsets of the wanted width."""
        cdef BinaryColumn out = BinaryColumn.__new__(BinaryColumn)
        cdef Py_ssize_t i, size, total = 0
        cdef const uint8_t *p
        cdef uint8_t *to
        cdef bint moves = self.layout_number == KS_VIEWS
        for i in range(self.n):
            self._find(i, &size)
            total += size
        if layout == KS_OFFSETS32 and total > MAX_BINARY_BYTES:
            raise ValueError(f"{total} bytes of values do not fit the 32-bit offsets of layout 'binary'")
        out.layout_number, out.n, out.valid, out.null_count = layout, self.n, self.valid, self.null_count
        out.places = new_memory((self.n + 1) * (4 if layout == KS_OFFSETS32 else 8))
        out.bytes_ = new_memory(total) if moves else self.bytes_
        to = <uint8_t *> out.bytes_.p
        total = 0
        for i in range(self.n + 1):
            if layout == KS_OFFSETS32:
                (<int32_t *> out.places.p)[i] = <int32_t> total
            else:
                (<int64_t *> out.places.p)[i] = total
            if i < self.n:
                p = self._find(i, &size)
                if moves:
                    memcpy(to + total, p, <size_t> size)
                total += size
        return out

    cdef BinaryColumn _as_views(self):
        """Return views of the same bytes; buffers start 1 GiB apart, so that 31 bits address every value."""
        cdef BinaryColumn out = BinaryColumn.__new__(BinaryColumn)
        cdef Py_ssize_t i, size, at, buffer
        cdef const uint8_t *p
        cdef ks_view *view
        out.layout_number, out.n, out.valid, out.null_count = KS_VIEWS, self.n, self.valid, self.null_count
        out.places = new_memory(self.n * <Py_ssize_t> sizeof(ks_view))
        out.buffers = [
            share(self.bytes_.block, self.bytes_.p + at, self.bytes_.size - at)
            for at in range(0, self.bytes_.size, 1 << 30)
        ]
        for i in range(self.n):
            p = self._find(i, &size)
            view = <ks_view *> out.places.p + i
            memset(view, 0, sizeof(ks_view))
            view.size = <int32_t> size
            if size <= 12:
                memcpy(<uint8_t *> view + 4, p, <size_t> size)
            else:
                memcpy(view.prefix, p, 4)
                at = p - self.bytes_.p
                buffer = at >> 30
                view.buffer = <int32_t> buffer
                view.offset = <int32_t> (at - (buffer << 30))
        return out

    cdef int _check_text(self) except -1:
        """Raise `ValueError` unless every value is UTF-8."""
        cdef Py_ssize_t i, size
        cdef const uint8_t *p
        for i in range(self.n):
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
        count = 3 if column.layout_number != KS_VIEWS else 3 + len(column.buffers)
        if ks_make_array(out, column.n, column.null_count, count, 0):
            raise MemoryError("an Arrow array")
        if column.valid is not None:
            ks_set_buffer(out, 0, column.valid.p, column.valid.block)
        ks_set_buffer(out, 1, column.places.p, column.places.block)
        if column.layout_number != KS_VIEWS:
            ks_set_buffer(out, 2, column.bytes_.p, column.bytes_.block)
            return 0
        sizes = new_memory(8 * len(column.buffers))
        for i, memory in enumerate(column.buffers):
            ks_set_buffer(out, 2 + i, memory.p, memory.block)
            (<int64_t *> sizes.p)[i] = memory.size
        ks_set_buffer(out, count - 1, sizes.p, sizes.block)
        return 0


@cython.final
cdef class HeadersColumn:  # type: Sequence[tuple[_Header, ...]]
    """A column of headers: each row is a tuple of pairs `(str, bytes or None)`, as in `Record`.

    Bytes of a name that are not UTF-8 are replaced by U+FFFD, as in Kafka's consumers. In Arrow the column is a list of
    structs of `key` and `value`. `keys` and `values` are the concatenated headers of all rows, and `offsets` are the
    positions in both columns where each row's headers start.

    Example:
        >>> batch = kstore.encode_batch([(b"alice", b"3 apples", None, {"trace": b"1"}), (b"bob", b"1 pear")])
        >>> column = kstore.decode_columns(batch, columns=["headers"])["headers"]
        >>> len(column), column[0]
        (2, (('trace', b'1'),))

    Immutable; thread-safe.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("a column comes from reading a log")

    def __len__(self):
        return self.n

    @property
    def offsets(self) -> npt.NDArray[np.int32]:
        """The positions in `keys` and `values` where each row's headers start and where those of the last row end."""
        return np.frombuffer(self.places, "int32")

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the column refers to."""
        return self.places.size + self.keys.nbytes + self.values.nbytes

    cdef tuple _item(self, Py_ssize_t i):
        cdef Py_ssize_t j
        cdef const int32_t *places = <const int32_t *> self.places.p
        check_headers(places[i + 1] - places[i], "row", i)
        return tuple([
            ((<bytes> self.keys._item(j)).decode(), self.values._item(j)) for j in range(places[i], places[i + 1])
        ])

    # stub: @overload
    # stub: def __getitem__(self, index: SupportsIndex, /) -> tuple[_Header, ...]: ...
    # stub: @overload
    # stub: def __getitem__(self, index: slice, /) -> list[tuple[_Header, ...]]: ...
    def __getitem__(self, index):
        cdef Py_ssize_t i
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(self.n))]
        i = index
        if i < 0:
            i += self.n
        if not 0 <= i < self.n:
            raise IndexError(f"row {index} of {self.n}")
        return self._item(i)

    def __iter__(self) -> Iterator[tuple[_Header, ...]]:
        cdef Py_ssize_t i
        for i in range(self.n):
            yield self._item(i)

    def to_pylist(self) -> list[tuple[_Header, ...]]:
        """Return all rows as a list.

        Returns:
            A tuple of pairs `(str, bytes or None)` for each row.

        Example:
            >>> column.to_pylist()
            [(('trace', b'1'),), ()]
        """
        cdef Py_ssize_t i
        return [self._item(i) for i in range(self.n)]

    def __eq__(self, other):
        if isinstance(other, HeadersColumn):
            return self.to_pylist() == other.to_pylist()
        return NotImplemented

    __hash__ = None

    def __repr__(self):
        return f"<HeadersColumn of {self.n} rows, {len(self.keys)} headers>"

    def __reduce_ex__(self, protocol):
        return _unpickled_headers, (self.n, self.places, self.keys, self.values)

    def __arrow_c_schema__(self) -> object:
        return _schema_capsule(("", "+l"))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return _schema_capsule(("", "+l")), _array_capsule(self, ("", "+l"))

    cdef int _export(self, ArrowArray *out) except -1:
        if ks_make_array(out, self.n, 0, 2, 1):
            raise MemoryError("an Arrow array")
        ks_set_buffer(out, 1, self.places.p, self.places.block)
        if ks_make_array(out.children[0], len(self.keys), 0, 1, 2):
            raise MemoryError("an Arrow array")
        self.keys._export(out.children[0].children[0], "z")
        self.values._export(out.children[0].children[1], "z")
        return 0


@cython.final
cdef class Columns:
    """The columns of some records of a log, in the order of the request.

    `offsets` and `timestamps` are NumPy arrays of int64, `keys` and `values` are columns of `bytes` or `None`.
    `columns["value"]` returns any column by its name; `key` and `value` are `BinaryColumn`s, `headers` is a
    `HeadersColumn`, all others are NumPy arrays. `next_offset` is the offset at which the next read continues. Arrow
    imports the object as a record batch: `pyarrow.record_batch(columns)`, `polars.DataFrame(columns)`.

    The object does not share memory with the log: it stays valid and unchanged even if the log is changed, closed or
    deleted. It can be pickled; protocol 5 can send the memory out of band, without a copy.

    Example:
        >>> log = kstore.Log.open("data/orders-0")
        >>> info = log.append_many([(b"alice", b"3 apples"), (b"bob", b"1 pear")])
        >>> columns = log.read_columns(columns=["offset", "value"])
        >>> columns.names, columns.next_offset
        (('offset', 'value'), 2)
        >>> columns.offsets, columns["value"].to_pylist()
        (array([0, 1]), [b'3 apples', b'1 pear'])

    Immutable; thread-safe.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("Columns come from reading a log")

    def __len__(self):
        return self.n

    def __getitem__(self, name: str, /) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.names)}") from None

    def __getattr__(self, name: str, /) -> Any:
        column = ATTRIBUTES.get(name, name)
        if column in self.columns:
            return self.columns[column]
        if column in COLUMN_NAMES:
            raise AttributeError(f"column {column!r} was not requested; there are {', '.join(self.names)}")
        raise AttributeError(f"Columns have no attribute {name!r}")

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The records' offsets."""
        return self.__getattr__("offset")

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """The records' timestamps in milliseconds since the epoch; -1 for a record without one."""
        return self.__getattr__("timestamp")

    @property
    def keys(self) -> BinaryColumn:
        """The records' keys."""
        return self.__getattr__("key")

    @property
    def values(self) -> BinaryColumn:
        """The records' values."""
        return self.__getattr__("value")

    @property
    def headers(self) -> HeadersColumn:
        """The records' headers."""
        return self.__getattr__("headers")

    @property
    def partition_leader_epoch(self) -> npt.NDArray[np.int32]:
        """For each record the leader epoch of its batch; -1 if it is not known."""
        return self.__getattr__("partition_leader_epoch")

    @property
    def producer_id(self) -> npt.NDArray[np.int64]:
        """For each record the producer id of its batch; -1 if the batch has none."""
        return self.__getattr__("producer_id")

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the columns refer to."""
        return sum([column.nbytes for column in self.columns.values()])

    def __repr__(self):
        return f"<Columns of {self.n} rows: {', '.join(self.names)}; next_offset={self.next_offset}>"

    def __reduce_ex__(self, protocol):
        parts = [self.memories.get(name, self.columns[name]) for name in self.names]
        return _unpickled, (self.n, self.next_offset, self.fields, parts)

    def __arrow_c_schema__(self) -> object:
        return _schema_capsule(("", "+s", self.fields))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        fields = _choose(self.fields, requested_schema)
        return _schema_capsule(("", "+s", fields)), _array_capsule(self, ("", "+s", fields))

    cdef int _export(self, ArrowArray *out, tuple fields) except -1:
        cdef Memory memory
        if ks_make_array(out, self.n, 0, 1, len(fields)):
            raise MemoryError("an Arrow array")
        for number, (name, format) in enumerate(fields):
            column = self.columns[name]
            if type(column) is BinaryColumn:
                (<BinaryColumn> column)._export(out.children[number], format)
            elif type(column) is HeadersColumn:
                (<HeadersColumn> column)._export(out.children[number])
            else:
                memory = self.memories[name] if format != "b" else _packed_bits(column)
                if ks_make_array(out.children[number], self.n, 0, 2, 0):
                    raise MemoryError("an Arrow array")
                ks_set_buffer(out.children[number], 1, memory.p, memory.block)
        return 0


# ---- Columns from a pickle. A pickle is not trusted: everything that is later used without a check is checked here.


cdef dict _DTYPES = {"l": "int64", "i": "int32", "s": "int16", "c": "int8", "b": "bool", "I": "uint32"}


cdef int _expect(bint sound, what) except -1:
    if not sound:
        raise ValueError(f"a pickle of columns that does not fit together: {what}")
    return 0


def _unpickled_binary(layout, Py_ssize_t n, Py_ssize_t null_count, Memory places not None, Memory bytes_, Memory valid,
                      list buffers):
    cdef BinaryColumn column = BinaryColumn.__new__(BinaryColumn)
    _expect(layout in LAYOUTS and n >= 0 and 0 <= null_count <= n, "a number of rows or nulls")
    column.layout_number, column.n, column.null_count = LAYOUTS[layout], n, null_count
    column.places, column.bytes_, column.valid, column.buffers = places, bytes_, valid, buffers
    _expect((valid is None) == (null_count == 0) and (valid is None or valid.size >= (n + 7) // 8), "the nulls")
    if column.layout_number == KS_VIEWS:
        _expect(buffers is not None and places.size == n * <Py_ssize_t> sizeof(ks_view), "the views")
        sizes = np.array([(<Memory?> buffer).size for buffer in buffers] or [0])
        views = np.frombuffer(places, "int32").reshape(n, 4)
        _expect((views[:, 0] >= 0).all(), "a view's size")
        far = views[views[:, 0] > 12].astype("int64")
        _expect(((far[:, 2] >= 0) & (far[:, 2] < len(sizes)) & (far[:, 3] >= 0)).all(), "a view's buffer")
        _expect((far[:, 3] + far[:, 0] <= sizes[far[:, 2]]).all(), "a view's end")
        return column
    _expect(bytes_ is not None and places.size == (n + 1) * (4 if column.layout_number == KS_OFFSETS32 else 8),
            "the values' offsets")
    at = column.offsets
    _expect(at[0] >= 0 and at[n] <= bytes_.size and (at[1:] >= at[0:n]).all(), "a value's offset")
    return column


def _unpickled_headers(Py_ssize_t n, Memory places not None, BinaryColumn keys not None, BinaryColumn values not None):
    cdef HeadersColumn column = HeadersColumn.__new__(HeadersColumn)
    column.n, column.places, column.keys, column.values = n, places, keys, values
    _expect(n >= 0 and places.size == 4 * (n + 1), "the headers' offsets")
    _expect(keys.valid is None, "a header's name")
    keys._check_text()
    at = column.offsets
    _expect(at[0] >= 0 and at[n] <= min(keys.n, values.n) and (at[1:] >= at[0:n]).all(), "a header's offset")
    return column


def _unpickled(Py_ssize_t n, int64_t next_offset, tuple fields not None, list parts not None):
    cdef Columns columns = Columns.__new__(Columns)
    columns.n, columns.next_offset = n, next_offset
    columns.names, columns.fields = tuple([name for name, _ in fields]), fields
    columns.columns, columns.memories = {}, {}
    _expect(len(set(columns.names)) == len(fields), "the columns' names")
    for (name, format), part in zip(fields, parts, strict=True):
        if format in _DTYPES:
            columns.memories[name] = <Memory?> part
            columns.columns[name] = np.frombuffer(part, _DTYPES[format])
        else:
            _expect(type(part) is (HeadersColumn if format == "+l" else BinaryColumn), "a column's type")
            _expect(format == "+l" or format in LAYOUT_OF, "a column's format")
            columns.columns[name] = part
        _expect(len(columns.columns[name]) == n, f"the rows of {name!r}")
    return columns


cdef Memory _packed_bits(column):
    cdef bytes bits = np.packbits(column, bitorder="little").tobytes()
    cdef Memory memory = new_memory(len(bits))
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


cdef int fill_schema(ArrowSchema *out, tuple field, bint nullable) except -1:
    cdef tuple children = field[2] if len(field) > 2 else _HEADERS if field[1] == "+l" else ()
    cdef bytes name = field[0].encode(), format = field[1].encode()
    if ks_make_schema(out, format, name, ARROW_FLAG_NULLABLE if nullable else 0, len(children)):
        raise MemoryError("an Arrow schema")
    for number, child in enumerate(children):       # a header's name is never null
        fill_schema(out.children[number], child, child[0] == "value" or (child[0] == "key" and field[0] != "item"))
    return 0


cdef object _schema_capsule(tuple field):
    cdef ArrowSchema *schema = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError("an Arrow schema")
    capsule = PyCapsule_New(schema, SCHEMA_CAPSULE, _free_schema)
    fill_schema(schema, field, field[1] in LAYOUT_OF)
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
    """Return the fields of a requested schema, in its order: some of `fields`, with bytes in any layout or as strings.

    Raises `ValueError` for a column that is not in `fields`, or that cannot be converted to the requested format.
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


def fields_of(columns: Sequence[str], layout: str, requested_schema: object = None) -> tuple[tuple[str, str], ...]:
    """Return (name, Arrow format) for each column of this layout, or for each that a requested schema selects."""
    formats = {name: format for name, format, _ in FIXED}
    formats.update(key=FORMATS[LAYOUTS[layout]], value=FORMATS[LAYOUTS[layout]], headers="+l",
                   partition="i")
    return _choose(tuple([(name, formats[name]) for name in columns]), requested_schema)


def layout_of(format: str) -> Literal["binary", "large_binary", "view"]:
    """Return the layout of an Arrow format of bytes or text."""
    return next(name for name, layout in LAYOUTS.items() if layout == LAYOUT_OF[format])


def schema_capsule(tuple fields: tuple[tuple[str, str], ...]) -> object:
    """Return an `arrow_schema` capsule of a struct of these fields."""
    return _schema_capsule(("", "+s", fields))
