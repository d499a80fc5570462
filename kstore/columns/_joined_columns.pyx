# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Concatenation of several `Columns`, with an optional column for the partition, and selection of rows.

The keys, values and headers of a single part are shared, not copied.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from kstore.columns._columns cimport BinaryColumn, Columns, HeadersColumn, Memory, new_memory
from kstore.columns._native cimport KS_OFFSETS32
from kstore._core cimport Buffer

from kstore.base.optional import Late
from kstore.columns import _columns

np = Late("numpy")

cdef int64_t MAX_BINARY_BYTES = _columns.MAX_BINARY_BYTES
cdef dict FORMATS = {"partition": ("i", "int32"), **{name: (format, dtype) for name, format, dtype in _columns.FIXED}}


cdef Memory _placed(list parts, Py_ssize_t n):
    """Concatenate the 32-bit offsets of several columns."""
    cdef Memory memory = new_memory((n + 1) * 4)
    cdef int32_t *to = <int32_t *> memory.p
    cdef const int32_t *begin
    cdef int64_t used = 0
    cdef Py_ssize_t i, count
    cdef Memory places
    to[0] = 0
    for places, count in parts:
        begin = <const int32_t *> places.p
        for i in range(count):
            to[i + 1] = <int32_t> (begin[i + 1] - begin[0] + used)
        used += begin[count] - begin[0]
        to += count
    return memory


cdef BinaryColumn _joined_binary(list parts):
    """Concatenate columns of the layout "binary"."""
    cdef BinaryColumn column = BinaryColumn.__new__(BinaryColumn), part
    cdef Py_ssize_t at = 0, i, begin
    cdef int64_t size = 0
    cdef uint8_t *bits
    column.layout_number = KS_OFFSETS32
    for part in parts:
        if part.layout_number != KS_OFFSETS32:
            raise ValueError("columns are joined in the layout 'binary' alone")
        size += (<const int32_t *> part.places.p)[part.n] - (<const int32_t *> part.places.p)[0]
        column.n += part.n
        column.null_count += part.null_count
    if size > MAX_BINARY_BYTES:
        raise ValueError(
            f"{size} bytes of keys or values; one column takes {MAX_BINARY_BYTES}: take the chunks one by one")
    column.places = _placed([(part.places, part.n) for part in parts], column.n)
    column.bytes_ = new_memory(size)
    for part in parts:
        begin = (<const int32_t *> part.places.p)[0]
        i = (<const int32_t *> part.places.p)[part.n] - begin
        memcpy(<uint8_t *> column.bytes_.p + at, part.bytes_.p + begin, <size_t> i)
        at += i
    if column.null_count:
        column.valid = new_memory((column.n + 7) // 8)
        bits = <uint8_t *> column.valid.p
        memset(bits, 0, <size_t> (column.n + 7) // 8)
        at = 0
        for part in parts:
            for i in range(part.n):
                if not part._is_null(i):
                    bits[(at + i) >> 3] |= 1 << ((at + i) & 7)
            at += part.n
    return column


cdef HeadersColumn _joined_headers(list parts):
    cdef HeadersColumn column = HeadersColumn.__new__(HeadersColumn), part
    for part in parts:
        column.n += part.n
    column.places = _placed([(part.places, part.n) for part in parts], column.n)
    column.keys = _joined_binary([part.keys for part in parts])
    column.values = _joined_binary([part.values for part in parts])
    return column


def joined(parts: Iterable[Columns], tuple names: tuple[str, ...], *,
           partitions: Iterable[int] | None = None) -> Columns:
    """Concatenate several `Columns`, each of which has the columns `names`.

    `partitions` has each part's partition number; `names` may then include "partition". The result has the
    `next_offset` of the last part. Raises `ValueError` for more bytes than one column of the layout "binary" holds.
    """
    cdef Columns columns = Columns.__new__(Columns), part
    cdef list whole = list(parts)
    cdef list numbers = None if partitions is None else list(partitions)
    cdef int64_t n = 0
    for part in whole:
        n += part.n
    columns.n = n
    columns.names = names
    columns.next_offset = (<Columns> whole[len(whole) - 1]).next_offset
    columns.columns, columns.memories = {}, {}
    fields = []
    for name in names:
        if name in ("key", "value", "headers"):
            of_parts = [(<Columns> part).columns[name] for part in whole]
            if len(of_parts) > 1:
                column = _joined_headers(of_parts) if name == "headers" else _joined_binary(of_parts)
            else:
                column = of_parts[0]
            fields.append((name, "+l" if name == "headers" else "z"))
        else:
            format, dtype = FORMATS[name]
            if name == "partition":
                rows = np.repeat(np.array(numbers, dtype), [len(part) for part in whole])
            else:
                rows = np.concatenate([(<Columns> part).columns[name] for part in whole])
            memory = _stored(rows)
            column = np.frombuffer(memory, dtype)
            columns.memories[name] = memory
            fields.append((name, format))
        columns.columns[name] = column
    columns.fields = tuple(fields)
    return columns


cdef Memory _stored(rows):
    """Return a copy of the numbers of an array."""
    cdef Buffer buffer = Buffer(rows)
    cdef Memory memory = new_memory(buffer.size)
    memcpy(<uint8_t *> memory.p, buffer.p, <size_t> buffer.size)
    return memory


def selected(Columns columns not None, rows: npt.NDArray[np.int64]) -> Columns:
    """Return the rows with these numbers, in this order; columns of bytes must have the layout "binary"."""
    cdef Columns chosen = Columns.__new__(Columns)
    numbers = np.ascontiguousarray(rows, np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < columns.n:
        raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {columns.n}")
    chosen.n = len(numbers)
    chosen.names, chosen.fields, chosen.next_offset = columns.names, columns.fields, columns.next_offset
    chosen.columns, chosen.memories = {}, {}
    for name, column in columns.columns.items():
        if type(column) is BinaryColumn:
            chosen.columns[name] = _selected_binary(column, numbers)
        elif type(column) is HeadersColumn:
            chosen.columns[name] = _selected_headers(column, numbers)
        else:
            memory = chosen.memories[name] = _stored(column[numbers])
            chosen.columns[name] = np.frombuffer(memory, column.dtype)
    return chosen


cdef BinaryColumn _selected_binary(BinaryColumn source, numbers):
    cdef BinaryColumn column = BinaryColumn.__new__(BinaryColumn)
    cdef Buffer rows = Buffer(numbers)
    cdef const int64_t *row = <const int64_t *> rows.p
    cdef Py_ssize_t n = rows.size // 8, i, size = 0
    cdef int64_t total = 0
    cdef const uint8_t *p
    cdef int32_t *places
    cdef uint8_t *to
    cdef uint8_t *bits = NULL
    if source.layout_number != KS_OFFSETS32:
        raise ValueError("rows are selected in the layout 'binary' alone")
    for i in range(n):
        total += (<const int32_t *> source.places.p)[row[i] + 1] - (<const int32_t *> source.places.p)[row[i]]
    if total > MAX_BINARY_BYTES:
        raise ValueError(f"{total} bytes of keys or values; one column takes {MAX_BINARY_BYTES}")
    column.layout_number = KS_OFFSETS32
    column.n = n
    column.places = new_memory((n + 1) * 4)
    column.bytes_ = new_memory(total)
    if source.null_count:
        column.valid = new_memory((n + 7) // 8)
        bits = <uint8_t *> column.valid.p
        memset(bits, 0, <size_t> (n + 7) // 8)
    places = <int32_t *> column.places.p
    to = <uint8_t *> column.bytes_.p
    places[0] = 0
    for i in range(n):
        p = source._find(row[i], &size)
        memcpy(to, p, <size_t> size)
        to += size
        places[i + 1] = <int32_t> (places[i] + size)
        if source._is_null(row[i]):
            column.null_count += 1
        elif bits != NULL:
            bits[i >> 3] |= 1 << (i & 7)
    if column.null_count == 0:
        column.valid = None
    return column


cdef HeadersColumn _selected_headers(HeadersColumn source, numbers):
    cdef HeadersColumn column = HeadersColumn.__new__(HeadersColumn)
    begins = np.frombuffer(source.places, np.int32).astype(np.int64)
    counts = np.diff(begins)[numbers]
    ends = np.cumsum(counts)
    of_rows = np.repeat(begins[numbers] - (ends - counts), counts) + np.arange(counts.sum())
    column.n = len(numbers)
    column.places = _stored(np.concatenate([[0], ends]).astype(np.int32))
    column.keys = _selected_binary(source.keys, of_rows)
    column.values = _selected_binary(source.values, of_rows)
    return column
