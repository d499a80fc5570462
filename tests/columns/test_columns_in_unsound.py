"""Arrow data that is not what it says: an error that says so, never a stray read (run it under the sanitizer).

What cannot be told from the structs cannot be tested either: that a buffer of bytes is as long as the last offset says,
and that a bitmap, offsets, views or indices are there for as many rows as the array has.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.errors import InvalidColumnError, KStoreError
from tests.support import arrowstructs as arrow

T = 1_700_000_000_000


def packed(values: Any, keys: Any = None, timestamps: Any = None, headers: Any = None) -> Packer:
    """What the columns give in batches of 1,000 bytes."""
    packer = Packer(1000, 1 << 24, now_ms=T)
    for rows in ColumnInput(values, keys, timestamps, headers, T):
        assert _column_encoder.pack(packer, rows, 1 << 31) is False
    _column_encoder.close(packer)
    return packer


@pytest.fixture(autouse=True)
def _everything_is_given_back() -> Any:
    before = arrow.alive()
    yield
    assert arrow.alive() == before


def damaged(array: arrow.Array, damage: Callable[[arrow.CArray], object]) -> arrow.Array:
    array.damage = damage
    return array


def setting(**fields: Any) -> Callable[[Any], None]:
    def set_fields(made: Any) -> None:
        for name, value in fields.items():
            setattr(made, name, value)

    return set_fields


def no_buffer(number: int) -> Callable[[arrow.CArray], None]:
    def forget(made: arrow.CArray) -> None:
        made.buffers[number] = None

    return forget


ROWS = [b"a", None, b"ccc", b"d" * 20]

# ---- the struct itself

STRUCTS = {
    "no rows at all": setting(length=-1),
    "a negative offset": setting(offset=-1),
    "more rows than memory": setting(length=1 << 62),
    "an offset beyond memory": setting(offset=1 << 62),
    "an offset that overflows": setting(offset=(1 << 63) - 1),
    "a buffer too few": setting(n_buffers=1),
    "a buffer too many": setting(n_buffers=9),
    "less than no buffers": setting(n_buffers=-1),
    "no array of buffers": setting(buffers=ctypes.POINTER(ctypes.c_void_p)()),
    "a child": setting(n_children=1),
    "less than no children": setting(n_children=-1),
    "no data": no_buffer(1),
}

ARRAYS: dict[str, Callable[[], arrow.Array]] = {
    "binary": lambda: arrow.binary(ROWS),
    "large": lambda: arrow.binary(ROWS, "Z"),
    "fixed": lambda: arrow.fixed([b"abc", None], 3),
    "dictionary": lambda: arrow.dictionary(ROWS),
    "views": lambda: arrow.views(ROWS),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("what", STRUCTS)
def test_a_struct_that_cannot_be_is_refused(kind: str, what: str) -> None:
    if kind == "views" and what == "a buffer too many":
        return  # nothing says how many there are
    array = damaged(ARRAYS[kind](), STRUCTS[what])
    with pytest.raises(InvalidColumnError, match="values"):
        packed(array)


@pytest.mark.parametrize("what", STRUCTS)
def test_a_struct_of_times_that_cannot_be_is_refused(what: str) -> None:
    with pytest.raises(InvalidColumnError, match="timestamps"):
        packed([b"x"] * 2, None, damaged(arrow.numbers([1, None]), STRUCTS[what]))


@pytest.mark.parametrize("what", [what for what in STRUCTS if what not in ("a child", "no data")])
def test_a_struct_of_headers_that_cannot_be_is_refused(what: str) -> None:
    with pytest.raises(InvalidColumnError, match="headers"):
        packed([b"x"] * 2, None, None, damaged(arrow.headers([[(b"a", b"b")], None]), STRUCTS[what]))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("what", STRUCTS)
def test_a_column_of_headers_that_cannot_be_is_refused(what: str, which: int) -> None:
    headers = arrow.headers([[(b"a", b"b")], None])
    damaged(headers.children[0].children[which], STRUCTS[what])
    with pytest.raises(InvalidColumnError, match=f"{'keys' if which == 0 else 'values'} of headers"):
        packed([b"x"] * 2, None, None, headers)


def test_a_dictionary_must_be_there_exactly_where_the_type_has_one() -> None:
    with pytest.raises(InvalidColumnError, match="dictionary is missing"):
        packed(damaged(arrow.dictionary(ROWS), setting(dictionary=ctypes.POINTER(arrow.CArray)())))
    other = arrow.binary(ROWS)
    keep: list[object] = []
    with pytest.raises(InvalidColumnError, match="dictionary is unexpected"):
        packed(damaged(other, lambda made: setattr(made, "dictionary", ctypes.pointer(arrow.nulls(1).array(keep, 0)))))


@pytest.mark.parametrize("what", STRUCTS)
def test_a_dictionary_that_cannot_be_is_refused(what: str) -> None:
    array = arrow.dictionary(ROWS)
    assert array.dictionary is not None
    damaged(array.dictionary, STRUCTS[what])
    with pytest.raises(InvalidColumnError, match="dictionary of values"):
        packed(array)


@pytest.mark.parametrize("release", ["schema", "array"])
def test_what_was_released_is_refused(release: str) -> None:
    array = arrow.binary(ROWS)
    if release == "schema":
        array.damage_schema = setting(release=None)
    else:
        array.damage = setting(release=None)
    with pytest.raises(InvalidColumnError, match="released"):
        packed(array)
    arrow.forget_unreleased()


def test_a_capsule_is_taken_once() -> None:
    class Again:
        def __init__(self, capsules: Any) -> None:
            self.capsules = capsules

        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return self.capsules

    again = Again(arrow.binary(ROWS).__arrow_c_array__())
    assert packed(again).records == 4
    with pytest.raises(InvalidColumnError, match="released"):
        packed(again)
    for bad in (None, (), again.capsules[:1], again.capsules[::-1], (object(), object()), "ab"):
        with pytest.raises((TypeError, ValueError)):
            packed(Again(bad))


def test_a_stream_capsule_is_taken_once_and_must_be_one() -> None:
    class Again:
        def __init__(self, capsule: Any) -> None:
            self.capsule = capsule

        def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
            return self.capsule

    again = Again(arrow.Stream([arrow.binary(ROWS)], like=arrow.binary([])).__arrow_c_stream__())
    assert packed(again).records == 4
    with pytest.raises(InvalidColumnError, match="released"):
        packed(again)
    for bad in (None, object(), "capsule"):
        with pytest.raises((TypeError, ValueError)):
            packed(Again(bad))


# ---- rows


def offsets(*numbers: int, format: str = "z", data: bytes = b"0123456789") -> arrow.Array:
    code = "q" if format == "Z" else "i"
    return arrow.Array(format, len(numbers) - 1, [None, struct.pack(f"={len(numbers)}{code}", *numbers), data])


@pytest.mark.parametrize("format", ["z", "Z"])
@pytest.mark.parametrize(
    "bad",
    [(-1, 2, 3), (5, 4, 3), (4, 5, 3), (0, 7, 6, 10), (0, 11, 10), (3, 2, 10), (0, -1, 10), (3, 0, 10),
     (0, -(2**31), 10), (0, 2**31 - 1, 10), (-(2**31), 2**31 - 1)],
)  # fmt: skip
def test_offsets_that_fall_or_leave_their_range_are_refused(format: str, bad: tuple[int, ...]) -> None:
    with pytest.raises(InvalidColumnError, match="offsets"):
        packed(offsets(*bad, format=format))


def test_offsets_beyond_any_memory_are_refused() -> None:
    for last in ((1 << 47) + 1, (1 << 63) - 1):
        with pytest.raises(InvalidColumnError, match="offsets"):
            packed(offsets(0, 3, last, format="Z"))
    with pytest.raises(InvalidColumnError, match="row 1: its Arrow offsets"):
        packed(offsets(0, 3, (1 << 63) - 1, -(1 << 63), 10, format="Z"))


def test_the_row_of_a_bad_offset_is_named() -> None:
    good = list(range(0, 8000, 10))
    good[701] = 6999
    with pytest.raises(InvalidColumnError, match="values, row 700: its Arrow offsets fall"):
        packed(offsets(*good, data=bytes(8000)))


def view(size: int, number: int = 0, start: int = 0, *, buffers: tuple[bytes, ...] = (b"x" * 100,)) -> arrow.Array:
    first = struct.pack("=i12s", 2, b"ok")
    sizes = struct.pack(f"={len(buffers)}q", *map(len, buffers))
    return arrow.Array("vz", 2, [None, first + struct.pack("=iiii", size, 0, number, start), *buffers, sizes])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (view(-1), "negative size"),
        (view(-(2**31)), "negative size"),
        (view(13, 1), "missing buffer"),
        (view(13, -1), "missing buffer"),
        (view(13, 2**31 - 1), "missing buffer"),
        (view(13, 0, buffers=()), "missing buffer"),
        (view(13, 0, -1), "leaves the buffer"),
        (view(13, 0, 88), "leaves the buffer"),
        (view(101, 0, 0), "leaves the buffer"),
        (view(2**31 - 1, 0, 2**31 - 1), "leaves the buffer"),
    ],
)
def test_views_that_lead_astray_are_refused(array: arrow.Array, message: str) -> None:
    with pytest.raises(InvalidColumnError, match=f"values, row 1: .*{message}"):
        packed(array)


def test_views_at_the_borders_of_their_buffer_are_taken() -> None:
    for sound in (view(12), view(13, 0, 87), view(100)):
        assert packed(sound).records == 2


@pytest.mark.parametrize("sizes", [[-1], [-(2**63)]])
def test_buffers_of_views_have_sizes(sizes: list[int]) -> None:
    array = view(13)
    array.buffers[3] = struct.pack("=q", *sizes)
    with pytest.raises(InvalidColumnError, match="buffer 0 of -"):
        packed(array)


def test_buffers_of_views_are_there_if_they_have_a_size() -> None:
    with pytest.raises(InvalidColumnError, match="buffer 0 of 100 bytes"):
        packed(damaged(view(2), no_buffer(2)))
    with pytest.raises(InvalidColumnError, match="without its buffer 3"):
        packed(damaged(view(2), no_buffer(3)))


@pytest.mark.parametrize(("format", "bad"), [("b", -1), ("b", 2), ("B", 255), ("q", 2**63 - 1), ("Q", 2**64 - 1)])
def test_indices_outside_of_the_dictionary_are_refused(format: str, bad: int) -> None:
    names = {"b": "c", "B": "C", "q": "l", "Q": "L"}
    words = arrow.binary([b"a", b"b"])
    array = arrow.Array(names[format], 2, [None, struct.pack(f"=2{format}", 1, bad)], dictionary=words)
    with pytest.raises(InvalidColumnError, match="values, row 1: its dictionary has no such index"):
        packed(array)


def test_nobody_looks_at_what_is_null() -> None:
    array = view(-1)
    array.buffers[0] = b"\x01"
    assert packed(array).records == 2
    words = arrow.binary([b"a", b"b"])
    assert packed(arrow.Array("c", 2, [b"\x01", b"\x00\xff"], dictionary=words)).records == 2


def test_bad_words_of_a_dictionary_are_refused_where_they_are_used() -> None:
    words = offsets(0, 5, 3, 10)
    array = arrow.Array("c", 3, [None, b"\x00\x02\x01"], dictionary=words)
    with pytest.raises(InvalidColumnError, match=r"row [12]: its Arrow offsets"):
        packed(array)


# ---- headers and tables


def test_a_header_without_a_key_is_refused() -> None:
    def nullable(rows: Any) -> arrow.Array:
        return arrow.binary([None if row == b"!" else row for row in rows])

    with pytest.raises(InvalidColumnError, match="headers, row 1: a header has no key"):
        packed([b"x"] * 2, None, None, arrow.headers([[(b"a", None)], [(b"!", b"x")]], make=nullable))


def test_a_null_entry_of_headers_is_refused() -> None:
    headers = arrow.headers([[(b"a", b"b"), (b"c", b"d")]])
    headers.children[0].buffers[0] = b"\x07"
    with pytest.raises(InvalidColumnError, match="entry 1 is null"):
        packed([b"x"], None, None, headers)


@pytest.mark.parametrize("bad", [(0, 3), (1, 0), (-1, 1), (3, 3), (-1, -1)])
@pytest.mark.parametrize("format", ["+m", "+L"])
def test_headers_beyond_their_entries_are_refused(bad: tuple[int, int], format: str) -> None:
    headers = arrow.headers([[(b"a", b"b"), (b"c", b"d")]], format)
    headers.buffers[1] = struct.pack("=2q" if format == "+L" else "=2i", *bad)
    with pytest.raises(InvalidColumnError, match="offsets"):
        packed([b"x"], None, None, headers)


def test_columns_of_headers_shorter_than_their_entries_are_refused() -> None:
    headers = arrow.headers([[(b"a", b"b"), (b"c", b"d")]])
    headers.children[0].children[1].length = 3
    with pytest.raises(InvalidColumnError, match="values of headers: 4 rows are wanted of an Arrow array of 3"):
        packed([b"x"], None, None, headers)


def table(**damage: Any) -> arrow.Array:
    return damaged(
        arrow.table({"value": arrow.binary([b"a", b"b", b"c"]), "key": arrow.views([None, b"k", b"l"])}, 3),
        setting(**damage),
    )


@pytest.mark.parametrize("damage", [{"length": 4}, {"offset": 1}, {"n_children": 1}, {"n_children": 3}, {"length": -1}])
def test_a_table_that_does_not_fit_its_columns_is_refused(damage: dict[str, int]) -> None:
    with pytest.raises(InvalidColumnError, match="values"):
        packed(table(**damage))


def test_a_row_that_is_null_as_a_whole_is_refused() -> None:
    rows = table()
    rows.buffers[0] = b"\x05"
    with pytest.raises(InvalidColumnError, match="row 1 is null as a whole"):
        packed(rows)


def test_a_table_without_one_of_its_columns_is_refused() -> None:
    rows = table()
    rows.damage = lambda made: made.children.__setitem__(1, ctypes.POINTER(arrow.CArray)())
    with pytest.raises(InvalidColumnError, match="released"):
        packed(rows)


# ---- types

FORMATS = [
    "",
    "w",
    "w:",
    "w:-1",
    "w:x",
    "w:2147483648",
    "w:99999999999999999999",
    "w:¹",
    "z" * 100,
    "\xff",
    "vx",
    "+s",
    "+w:2",
]


@pytest.mark.parametrize("format", FORMATS)
def test_a_type_that_is_none_is_refused(format: str) -> None:
    array = arrow.binary(ROWS)
    array.damage_schema = lambda made: setattr(made, "format", format.encode())
    with pytest.raises((TypeError, ValueError), match=r"Arrow type|column 'value'"):
        packed(array)


@pytest.mark.parametrize("format", ["ts", "ts:", "tsx:", "tsm", "+", "td", "tdX", "tsm" * 50])
def test_a_type_of_times_that_is_none_is_refused(format: str) -> None:
    array = arrow.numbers([1])
    array.damage_schema = lambda made: setattr(made, "format", format.encode())
    with pytest.raises(TypeError, match="Arrow type"):
        packed([b"x"], None, array)


def test_a_type_without_a_format_or_without_its_children_is_refused() -> None:
    array = arrow.binary(ROWS)
    array.damage_schema = setting(format=None)
    with pytest.raises(InvalidColumnError, match="schema"):
        packed(array)
    for damage in ({"n_children": 0}, {"n_children": 2}, {"children": ctypes.POINTER(ctypes.POINTER(arrow.CSchema))()}):
        headers = arrow.headers([None])
        headers.damage_schema = setting(**damage)
        with pytest.raises(InvalidColumnError, match="children"):
            packed([b"x"], None, None, headers)


# ---- streams


def test_a_stream_that_cannot_tell_its_type_is_refused() -> None:
    with pytest.raises(InvalidColumnError, match="failed after 0 rows: the disk is on fire"):
        packed(arrow.Stream([], like=arrow.binary([]), schema_code=5))


def test_a_chunk_that_is_not_of_the_streams_type_is_refused() -> None:
    for chunk in (arrow.fixed([b"abc"], 3), arrow.dictionary(ROWS), table()):
        with pytest.raises(InvalidColumnError, match="values"):
            packed(arrow.Stream([arrow.binary(ROWS), chunk], like=arrow.binary([])))


# ---- anything at all


def mutated(rng: random.Random) -> tuple[Any, ...]:
    """Columns with a few numbers changed, of those that can be checked."""
    rows = [
        None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 3, 12, 13, 40])) for _ in range(rng.randrange(9))
    ]
    skip = rng.choice([0, 1, 9])

    def some(kind: str) -> arrow.Array:
        if kind == "dictionary":
            return arrow.dictionary(
                rows, rng.choice("cCsSiIlL"), skip=skip, make=rng.choice([arrow.binary, arrow.views])
            )
        return arrow.views(rows, skip=skip) if kind == "views" else arrow.binary(rows, rng.choice("zZ"), skip=skip)

    def spoil(array: arrow.Array, kind: str) -> arrow.Array:
        width = {"views": 4, "dictionary": 1}.get(kind, 8 if array.format in ("Z", "+L") else 4)
        data = bytearray(array.buffers[1] or b"")
        # An offset beyond the end of the bytes cannot be told from a sound one, when it is the last.
        most = len(array.buffers[2] or b"") if kind == "binary" else (1 << 8 * width - 1) - 1
        for _ in range(rng.randrange(3)):
            if len(data) >= width:
                at = rng.randrange(len(data) // width) * width
                number = rng.choice([-(1 << 8 * width - 1), -1, 0, 1, most, rng.randrange(most + 1)])
                data[at : at + width] = number.to_bytes(width, "little", signed=True)
        array.buffers[1] = bytes(data)
        changes = [
            {},
            {"null_count": rng.choice([-1, 0, 1, -(2**63)])},
            {"length": rng.randrange(-2, array.length + 1)},
            {"n_buffers": rng.randrange(-1, 4)} if kind != "views" else {"n_buffers": rng.randrange(-1, 3)},
            {"n_children": rng.randrange(-1, 3)},
            {"offset": rng.choice([-1, 0, array.offset, 1 << 62])},
            {"dictionary": ctypes.POINTER(arrow.CArray)()},
        ]
        return damaged(array, setting(**rng.choice(changes)))

    kind = rng.choice(["binary", "views", "dictionary"])
    values = spoil(some(kind), kind)
    headers = None
    if rng.random() < 0.5:
        pairs: Any = [rng.choice([None, [], [(b"n" * rng.randrange(20), None)], [(b"a", b"b" * 15)] * 3]) for _ in rows]
        headers = arrow.headers(
            pairs, rng.choice(["+m", "+l", "+L"]), skip=skip, make=rng.choice([arrow.binary, arrow.views])
        )
        spoil(headers, "list")
        if rng.random() < 0.3:
            below = headers.children[0].children[rng.randrange(2)]
            spoil(below, "views" if below.format == "vz" else "binary")
    times = arrow.numbers([rng.choice([None, 0, T, -5]) for _ in rows]) if rng.random() < 0.2 else None
    return values, None, times, headers


def test_any_numbers_whatever_give_records_or_a_named_error(
    rng: random.Random, budget: Callable[[float], float]
) -> None:
    end = time.monotonic() + budget(3)
    taken = refused = 0
    while time.monotonic() < end or 0 in (taken, refused):  # both kinds of answer are met
        for _ in range(100):
            try:
                packed(*mutated(rng))
                taken += 1
            except (KStoreError, TypeError):
                refused += 1


def test_memory_that_changes_while_it_is_read_is_no_danger(budget: Callable[[float], float]) -> None:
    """Another thread writes nonsense over offsets, views and indices: each is loaded once, and checked."""
    count = 2000
    cells = np.zeros((count, 2), np.int64)
    cells.view(np.int32)[:, 0] = 13
    stop = threading.Event()

    class Shared:
        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            array = arrow.Array("vz", count, [None, b"", b"x" * 100, struct.pack("=q", 100)])
            array.damage = lambda made: made.buffers.__setitem__(1, cells.ctypes.data)
            return array.__arrow_c_array__()

    def scribble() -> None:
        words = cells.view(np.int32)
        noise = np.random.default_rng(1)
        while not stop.is_set():
            words[noise.integers(0, count, 50), noise.integers(0, 4, 50)] = noise.integers(-(2**31), 2**31, 50)
            words[:, 0], words[:, 2], words[:, 3] = 13, 0, 5

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        end = time.monotonic() + budget(1)
        while time.monotonic() < end:
            with contextlib.suppress(InvalidColumnError):
                packed(Shared())
    finally:
        stop.set()
        writer.join()
