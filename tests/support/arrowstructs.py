"""Arrow data made by hand with ctypes: every layout, sound or not, without an Arrow library.

Buffers are allocated one by one and exactly as large as they need to be, so that the sanitizer build sees a read past
any of them. `Array` and `Stream` speak the PyCapsule interface; `RELEASED` counts what was given back.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Rows = Sequence[bytes | None]

RELEASED: Counter[str] = Counter()
_alive: dict[int, object] = {}  # by the address of the struct that owns it


class CSchema(ctypes.Structure):
    pass


class CArray(ctypes.Structure):
    pass


class CStream(ctypes.Structure):
    pass


_SCHEMA_RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(CSchema))
_ARRAY_RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(CArray))
_STREAM_RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(CStream))
_GET_SCHEMA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(CStream), ctypes.POINTER(CSchema))
_GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(CStream), ctypes.POINTER(CArray))
_LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CStream))

CSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(CSchema))),
    ("dictionary", ctypes.POINTER(CSchema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
CArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(CArray))),
    ("dictionary", ctypes.POINTER(CArray)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
CStream._fields_ = [
    ("get_schema", ctypes.c_void_p),
    ("get_next", ctypes.c_void_p),
    ("get_last_error", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@_SCHEMA_RELEASE
def _release_schema(schema: Any) -> None:
    RELEASED["schema"] += 1
    _alive.pop(schema[0].private_data, None)
    schema[0].release = None


@_ARRAY_RELEASE
def _release_array(array: Any) -> None:
    RELEASED["array"] += 1
    _alive.pop(array[0].private_data, None)
    array[0].release = None


@_STREAM_RELEASE
def _release_stream(stream: Any) -> None:
    RELEASED["stream"] += 1
    _alive.pop(stream[0].private_data, None)
    stream[0].release = None


def _pointer(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_handed_over: deque[ctypes.Structure] = deque(maxlen=1000)


def _capsule(made: ctypes.Structure, name: bytes) -> object:
    """A capsule with a copy of the struct, which lives on for a while after its release, as a capsule's does."""
    copy = type(made).from_buffer_copy(made)
    _handed_over.append(copy)
    return _new_capsule(ctypes.addressof(copy), name, None)


def buffer(data: bytes) -> Any:
    """Memory of exactly this size, of its own."""
    return (ctypes.c_uint8 * len(data)).from_buffer_copy(data) if data else None


class Array:
    """One Arrow array and its type, as plain attributes to be damaged; handed over once, or once for each call."""

    def __init__(
        self,
        format: str,
        length: int,
        buffers: Sequence[bytes | None],
        children: Sequence[Array] = (),
        *,
        dictionary: Array | None = None,
        offset: int = 0,
        null_count: int = -1,
        name: str = "",
    ) -> None:
        self.format, self.length, self.buffers, self.children = format, length, list(buffers), list(children)
        self.dictionary, self.offset, self.null_count, self.name = dictionary, offset, null_count, name
        self.damage: Callable[[CArray], object] = lambda array: None
        self.damage_schema: Callable[[CSchema], object] = lambda schema: None

    def named(self, name: str) -> Array:
        self.name = name
        return self

    def schema(self, keep: list[object], owner: int) -> CSchema:
        made = CSchema(format=self.format.encode(), name=self.name.encode(), flags=2, n_children=len(self.children))
        children = [child.schema(keep, owner) for child in self.children]
        if children:
            made.children = (ctypes.POINTER(CSchema) * len(children))(*map(ctypes.pointer, children))
        if self.dictionary is not None:
            made.dictionary = ctypes.pointer(self.dictionary.schema(keep, owner))
        made.release, made.private_data = _pointer(_release_schema), owner
        self.damage_schema(made)
        keep.append((made, children, self.dictionary))
        return made

    def array(self, keep: list[object], owner: int) -> CArray:
        memory = [None if data is None else buffer(data) for data in self.buffers]
        made = CArray(
            length=self.length,
            null_count=self.null_count,
            offset=self.offset,
            n_buffers=len(memory),
            n_children=len(self.children),
        )
        pointers = (ctypes.c_void_p * max(len(memory), 1))()
        for number, one in enumerate(memory):
            pointers[number] = None if one is None else ctypes.addressof(one)
        made.buffers = pointers
        children = [child.array(keep, owner) for child in self.children]
        if children:
            made.children = (ctypes.POINTER(CArray) * len(children))(*map(ctypes.pointer, children))
        if self.dictionary is not None:
            made.dictionary = ctypes.pointer(self.dictionary.array(keep, owner))
        made.release, made.private_data = _pointer(_release_array), owner
        self.damage(made)
        keep.append((made, memory, pointers, children))
        return made

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return export(self.schema, b"arrow_schema"), export(self.array, b"arrow_array")


def export(make: Callable[[list[object], int], Any], capsule: bytes) -> object:
    """A capsule with a struct whose memory lives until its release is called."""
    keep: list[object] = []
    made = make(keep, id(keep))
    _alive[id(keep)] = keep
    keep.append(made)
    return _capsule(made, capsule)


class Stream:
    """A stream of arrays of one type; `fail_at` makes the chunk of that number fail, `schema_code` the schema."""

    def __init__(self, chunks: Iterable[Array], *, like: Array, fail_at: int = -1, schema_code: int = 0) -> None:
        self.chunks, self.like, self.fail_at, self.schema_code = iter(chunks), like, fail_at, schema_code
        self.given = 0

    def _get_schema(self, stream: Any, out: Any) -> int:
        if self.schema_code:
            return self.schema_code
        ctypes.memmove(out, ctypes.byref(self._keep(self.like.schema)), ctypes.sizeof(CSchema))
        return 0

    def _get_next(self, stream: Any, out: Any) -> int:
        if self.given == self.fail_at:
            return 5
        self.given += 1
        chunk = next(self.chunks, None)
        if chunk is None:
            out[0].release = None
            return 0
        ctypes.memmove(out, ctypes.byref(self._keep(chunk.array)), ctypes.sizeof(CArray))
        return 0

    @staticmethod
    def _keep(make: Callable[[list[object], int], Any]) -> Any:
        keep: list[object] = []
        made = make(keep, id(keep))
        _alive[id(keep)] = keep
        keep.append(made)
        return made

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        text = ctypes.create_string_buffer(b"the disk is on fire")
        functions = (
            _GET_SCHEMA(self._get_schema),
            _GET_NEXT(self._get_next),
            _LAST_ERROR(lambda stream: ctypes.addressof(text)),
        )
        keep: list[object] = [functions, text]
        made = CStream(*map(_pointer, functions), _pointer(_release_stream), id(keep))
        keep.append(made)
        _alive[id(keep)] = keep
        return _capsule(made, b"arrow_array_stream")


def alive() -> int:
    """Structs that were handed out and not given back."""
    return len(_alive)


# ---- every layout


def validity(rows: Sequence[object], skip: int = 0) -> bytes | None:
    """A bitmap for the rows, `skip` rows of nulls before them; None where nothing is null."""
    if None not in rows:
        return None
    bits = [False] * skip + [row is not None for row in rows]
    return bytes(sum(bit << number for number, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def binary(rows: Rows, format: str = "z", *, skip: int = 0) -> Array:
    """z, u (offsets of 32 bits), Z, U (64); `skip` rows stand before, and are not part of it."""
    data = bytearray(b"before" * skip)
    offsets = [6 * number for number in range(skip + 1)]
    for row in rows:
        data += row or b""
        offsets.append(len(data))
    packed = struct.pack(f"={len(offsets)}{'q' if format in 'ZU' else 'i'}", *offsets)
    return Array(format, len(rows), [validity(rows, skip), packed, bytes(data)], offset=skip)


def views(rows: Rows, format: str = "vz", *, skip: int = 0, per_buffer: int = 3) -> Array:
    """Views: short rows in place, the others `per_buffer` to a buffer."""
    buffers: list[bytearray] = []
    packed = bytearray(b"\xff" * 16 * skip)
    long = 0
    for row in rows:
        if row is None:
            packed += b"\xfe" * 16  # must not be read
        elif len(row) <= 12:
            packed += struct.pack("=i12s", len(row), row)
        else:
            if long % per_buffer == 0:
                buffers.append(bytearray(b"pad"))
            long += 1
            packed += struct.pack("=i4sii", len(row), row[:4], len(buffers) - 1, len(buffers[-1]))
            buffers[-1] += row
    sizes = struct.pack(f"={len(buffers)}q", *map(len, buffers))
    return Array(format, len(rows), [validity(rows, skip), bytes(packed), *map(bytes, buffers), sizes], offset=skip)


def fixed(rows: Rows, width: int, *, skip: int = 0) -> Array:
    data = b"\xee" * width * skip + b"".join(b"\xdd" * width if row is None else row for row in rows)
    return Array(f"w:{width}", len(rows), [validity(rows, skip), data], offset=skip)


def dictionary(rows: Rows, format: str = "i", *, skip: int = 0, make: Callable[[Rows], Array] = binary) -> Array:
    words: list[bytes | None] = list(dict.fromkeys(row for row in rows if row is not None)) or [b"unused"]
    code = {"c": "b", "C": "B", "s": "h", "S": "H", "i": "i", "I": "I", "l": "q", "L": "Q"}[format]
    index = {word: number for number, word in enumerate(words)}
    indices = [0] * skip + [0 if row is None else index[row] for row in rows]
    return Array(
        format,
        len(rows),
        [validity(rows, skip), struct.pack(f"={len(indices)}{code}", *indices)],
        dictionary=make(words),
        offset=skip,
    )


def numbers(rows: Sequence[int | None], format: str = "l", *, skip: int = 0) -> Array:
    code = {"c": "b", "C": "B", "s": "h", "S": "H", "i": "i", "I": "I", "L": "Q", "tdD": "i"}.get(format, "q")
    whole = [0] * skip + [0 if row is None else row for row in rows]
    return Array(format, len(rows), [validity(rows, skip), struct.pack(f"={len(whole)}{code}", *whole)], offset=skip)


def nulls(count: int) -> Array:
    return Array("n", count, [])


Headers = Sequence[Sequence[tuple[bytes, bytes | None]] | None]


def headers(rows: Headers, format: str = "+m", *, skip: int = 0, make: Callable[[Rows], Array] = binary) -> Array:
    """+m (map), +l, +L: lists of pairs; two entries that belong to no row stand first in the entries' own columns."""
    pairs = [pair for row in rows if row is not None for pair in row]
    offsets = [0] * skip
    at = 0
    for row in rows:
        offsets.append(at)
        at += len(row or ())
    offsets.append(at)
    names = make([b"no", b"no", *(name for name, _ in pairs)]).named("key")
    items = make([None, b"no", *(value for _, value in pairs)]).named("value")
    entries = Array("+s", len(pairs), [None], [names, items], offset=2, name="entries")
    packed = struct.pack(f"={len(offsets)}{'q' if format == '+L' else 'i'}", *offsets)
    return Array(format, len(rows), [validity(rows, skip), packed], [entries], offset=skip)


def table(columns: dict[str, Array], length: int, *, offset: int = 0) -> Array:
    return Array("+s", length, [None], [column.named(name) for name, column in columns.items()], offset=offset)


def forget_unreleased() -> None:
    """Free structs whose release function a test has removed."""
    _alive.clear()
