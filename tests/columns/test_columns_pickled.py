"""Columns in a pickle, as between processes: whole, in each layout, without a copy where the protocol allows it."""

from __future__ import annotations

import copy
import ctypes
import gc
import mmap
import multiprocessing
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.columns import _columns

LAYOUTS = ["binary", "large_binary", "view"]
PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
ROWS = [
    (None, b"", -1, []),
    (b"", None, 0, [("a", None)]),
    (b"key", b"x" * 12, 1, [("é", b""), ("b", b"x" * 40)]),
    (b"k" * 13, b"x" * 100_000, 2, []),
]


def columns_of(rows: Any = ROWS, layout: Any = "binary", compression: Any = "none") -> kstore.Columns:
    data = kstore.encode_batch(
        [kstore.Record(0, 1, *row) if len(row) == 2 else row for row in rows], compression=compression
    )
    return kstore.decode_columns(data, columns=_columns.COLUMN_NAMES, layout=layout)


def content(columns: kstore.Columns) -> dict[str, Any]:
    names = {name: columns[name] for name in columns.names}
    return {
        name: column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
        for name, column in names.items()
    }


def same(one: kstore.Columns, other: kstore.Columns) -> bool:
    assert (one.names, one.next_offset, len(one), one.nbytes) == (
        other.names,
        other.next_offset,
        len(other),
        other.nbytes,
    )
    for name in one.names:
        assert type(one[name]) is type(other[name])
        assert getattr(one[name], "dtype", None) == getattr(other[name], "dtype", None)
        assert getattr(one[name], "layout", None) == getattr(other[name], "layout", None)
        assert getattr(one[name], "null_count", None) == getattr(other[name], "null_count", None)
    return content(one) == content(other)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_columns_come_back_whole(layout: str, protocol: int, compression: str) -> None:
    columns = columns_of(layout=layout, compression=compression)
    back = pickle.loads(pickle.dumps(columns, protocol))
    assert same(columns, back)
    assert same(columns, pickle.loads(pickle.dumps(back, protocol)))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=20),
            st.none() | st.binary(max_size=40),
            st.integers(0, 2**40),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=20)), max_size=3),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_columns_of_any_records_come_back_whole(layout: str, rows: Any) -> None:
    columns = columns_of(rows, layout)
    assert same(columns, pickle.loads(pickle.dumps(columns, 5)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_of_no_record_come_back(partition: Path, layout: Any) -> None:
    with kstore.Log.open(partition) as log:
        for columns in (log.read_columns(columns=_columns.COLUMN_NAMES, layout=layout), log.batch_table()):
            assert same(columns, pickle.loads(pickle.dumps(columns)))


def test_a_table_of_batches_and_columns_of_a_store_come_back(root: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        for number in range(20):
            store.append("t", b"%d" % number, key=b"%d" % (number % 5), timestamp=number)
        for columns in (store.log("t", 0).batch_table(), store.table("t").columns()):
            assert same(columns, pickle.loads(pickle.dumps(columns)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_protocol_5_sends_the_bytes_beside_the_pickle_and_copies_none(layout: str) -> None:
    columns = columns_of(layout=layout)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(columns, 5, buffer_callback=buffers.append)
    assert len(data) < 3000
    assert sum(len(memoryview(buffer)) for buffer in buffers) >= 100_000
    addresses = {np.frombuffer(buffer, "u1").ctypes.data for buffer in buffers}
    back = pickle.loads(data, buffers=buffers)
    assert same(columns, back)
    assert back.offsets.ctypes.data == columns.offsets.ctypes.data
    assert back.offsets.ctypes.data in addresses
    if layout != "view":
        assert np.frombuffer(back.values.data, "u1").ctypes.data == np.frombuffer(columns.values.data, "u1").ctypes.data


def test_what_both_columns_point_into_is_sent_once() -> None:
    columns = columns_of(layout="view")
    assert len(pickle.dumps(columns, 5)) < columns.nbytes


def test_columns_outlive_the_pickle_and_give_the_memory_back() -> None:
    pa = pytest.importorskip("pyarrow")
    gc.collect()
    before = _columns.memory_in_use()[0]
    columns = columns_of()
    expected = content(columns)
    buffers: list[Any] = []
    data = pickle.dumps(columns, 5, buffer_callback=buffers.append)
    buffers = [bytearray(buffer) for buffer in buffers]
    back = pickle.loads(data, buffers=buffers)
    with pytest.raises(BufferError):
        buffers[0].append(0)  # held
    del columns, data, buffers
    table = pa.record_batch(back)
    del back
    gc.collect()
    assert table.column("value").to_pylist() == expected["value"]
    del table
    gc.collect()
    assert _columns.memory_in_use()[0] == before


@pytest.mark.parametrize("shift", range(9))
def test_buffers_may_begin_anywhere(shift: int) -> None:
    columns = columns_of()
    buffers: list[Any] = []
    data = pickle.dumps(columns, 5, buffer_callback=buffers.append)
    moved = [memoryview(bytes(shift) + bytes(buffer))[shift:] for buffer in buffers]
    assert same(columns, pickle.loads(data, buffers=moved))


def guarded(data: bytes) -> memoryview:
    """A copy of the bytes that ends where a page begins that cannot be read: a read behind them ends the process."""
    end = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, end + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + end), mmap.PAGESIZE, 0) == 0
    pages[end - len(data) : end] = data
    return memoryview(pages)[end - len(data) : end]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_byte_behind_a_buffer_is_read(layout: str, root: Path) -> None:
    """kstore's own blocks have room behind their end for copies in whole words; a buffer of a pickle has none."""
    pa = pytest.importorskip("pyarrow")
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t", 3)
        for size in (8, 16, 56, 64, 72):  # the buffers end where the page does, and begin at a multiple of 8
            rows = [(b"k" * size, b"v" * size, 1, [("h" * 8, b"x" * size)])] * 8
            columns = columns_of(rows, layout)
            buffers: list[Any] = []
            data = pickle.dumps(columns, 5, buffer_callback=buffers.append)
            back = pickle.loads(data, buffers=[guarded(bytes(buffer)) for buffer in buffers])
            assert same(columns, back)
            assert pa.record_batch(back).column("value").to_pylist() == [row[1] for row in rows]
            for compression in ("none", "zstd"):
                store.append_columns("t", back.values, keys=back.keys, headers=back.headers, compression=compression)
        assert len(list(store.read("t"))) == 80


def test_parts_of_columns_and_copies(tmp_path: Path) -> None:
    columns = columns_of()
    for part in (columns.keys, columns.values, columns.headers):
        assert pickle.loads(pickle.dumps(part)) == part
    for made in (copy.copy(columns), copy.deepcopy(columns)):
        assert same(columns, made)


def _sizes(columns: kstore.Columns) -> tuple[int, int]:
    return len(columns), sum(map(len, columns.values))  # type: ignore[arg-type]


def test_columns_go_to_another_process() -> None:
    rows = [(b"k", b"x" * 100, number, None) for number in range(10_000)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sizes, (columns_of(rows),)) == (10_000, 1_000_000)


# --- a pickle says anything -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_buffers_that_were_changed_are_an_error_or_columns_that_can_be_read(layout: str, rng: random.Random) -> None:
    """No byte outside of the buffers is read: under AddressSanitizer that would end the process."""
    columns = columns_of(layout=layout)
    buffers: list[Any] = []
    data = pickle.dumps(columns, 5, buffer_callback=buffers.append)
    refused = 0
    for _ in range(300):
        changed = [bytearray(buffer) for buffer in buffers]
        one = changed[rng.randrange(len(changed))]
        if rng.random() < 0.3:
            del one[rng.randrange(len(one) + 1) :]
        elif one:
            at = rng.randrange(min(len(one), 64))
            one[at] = rng.randrange(256)
        try:
            back = pickle.loads(data, buffers=changed)
        except (ValueError, TypeError):
            refused += 1
        else:
            content(back)
    assert refused > 20


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        ("_unpickled_binary", ("binary", 1, 0, b"\0" * 4, b"", None, None)),
        ("_unpickled_binary", ("binary", 1, 0, b"\0\0\0\0\x01\0\0\0", b"", None, None)),
        ("_unpickled_binary", ("binary", 2, 0, b"\x01\0\0\0\0\0\0\0\x01\0\0\0", b"x", None, None)),
        ("_unpickled_binary", ("binary", 1, 1, b"\0" * 8, b"", None, None)),
        ("_unpickled_binary", ("binary", 9, 1, b"\0" * 40, b"", b"\0", None)),
        ("_unpickled_binary", ("binary", -1, 0, b"", b"", None, None)),
        ("_unpickled_binary", ("binary", 0, 0, b"\0" * 4, None, None, None)),
        ("_unpickled_binary", ("nonsense", 0, 0, b"\0" * 4, b"", None, None)),
        ("_unpickled_binary", ("view", 1, 0, b"\0" * 15, None, None, [])),
        ("_unpickled_binary", ("view", 1, 0, b"\0" * 16, None, None, None)),
        ("_unpickled_binary", ("view", 1, 0, b"\x0d" + b"\0" * 15, None, None, [])),
        ("_unpickled_binary", ("view", 1, 0, b"\x0d" + b"\0" * 15, None, None, [b"x" * 12])),
        ("_unpickled", (1, 0, (("offset", "l"),), [b"\0" * 16])),
        ("_unpickled", (1, 0, (("offset", "?"),), [b"\0" * 8])),
        ("_unpickled", (1, 0, (("offset", "l"), ("offset", "l")), [b"\0" * 8, b"\0" * 8])),
        ("_unpickled", (1, 0, (("offset", "l"),), [])),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(make: str, arguments: tuple[Any, ...]) -> None:
    memory = _columns._unpickled_memory  # type: ignore[attr-defined]

    def stored(part: Any) -> Any:
        return memory(part) if isinstance(part, bytes) else [*map(stored, part)] if isinstance(part, list) else part

    with pytest.raises(ValueError, match=r"does not fit together|shorter|longer"):
        getattr(_columns, make)(*map(stored, arguments))
