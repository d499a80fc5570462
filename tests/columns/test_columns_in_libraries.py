"""Columns in, from the libraries that people have: each hands over what it has, and the records are the same."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import Log, Store
from kstore.errors import InvalidColumnError
from tests.columns.test_columns_in import T, by_columns, row_by_row, values_in

pa = pytest.importorskip("pyarrow")

rows_of_bytes = st.lists(st.one_of(st.none(), st.binary(max_size=30)), max_size=40)

TYPES = {
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary of int8": pa.dictionary(pa.int8(), pa.binary()),
    "dictionary of uint32": pa.dictionary(pa.uint32(), pa.large_binary()),
}


@pytest.mark.parametrize("kind", TYPES)
@given(rows=rows_of_bytes, start=st.integers(0, 5), cut=st.integers(0, 40))
def test_pyarrow_arrays_slices_and_chunks_of_any_type(
    kind: str, rows: list[bytes | None], start: int, cut: int
) -> None:
    whole = pa.array(rows, pa.binary()).cast(TYPES[kind]) if "dict" not in kind else pa.array(rows, TYPES[kind])
    wanted = row_by_row([(None, row) for row in rows[start:]], batch_bytes=100)
    assert by_columns(whole.slice(start), batch_bytes=100) == wanted
    chunks = pa.chunked_array([whole.slice(start)[:cut], whole.slice(start)[cut:]])
    assert by_columns(chunks, batch_bytes=100) == wanted


def test_pyarrow_text_of_any_type() -> None:
    words = ["", None, "grün", "a longer one than twelve"]
    wanted = [None if word is None else word.encode() for word in words]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert values_in(by_columns(pa.array(words, pa.string()).cast(kind))) == wanted


def test_pyarrow_fixed_size_and_nulls() -> None:
    assert values_in(by_columns(pa.array([b"abc", None, b"xyz"], pa.binary(3)))) == [b"abc", None, b"xyz"]
    assert values_in(by_columns(pa.nulls(2))) == [None, None]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_pyarrow_times_of_any_unit_and_zone(unit: str, zone: str | None) -> None:
    times = pa.array([0, None, T], pa.timestamp("ms", zone)).cast(pa.timestamp(unit, zone), safe=False)
    last = T // 1000 * 1000 if unit == "s" else T
    assert by_columns([None] * 3, None, times) == row_by_row([(None, None, time, None) for time in (0, None, last)])


def test_pyarrow_record_batches_tables_and_readers() -> None:
    pairs = [[("h", b"x")], None, [("a", None), ("b", b"")], []]
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.large_binary()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("headers", pa.map_(pa.string(), pa.binary())),
        ]
    )
    columns = [[b"a", None, b"c", b"d"], [b"1", b"2", None, b"4"], [5, 6, 7, 8], [1000, 2000, 3000, 4000], pairs]
    batch = pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema
    )
    wanted = list(zip(columns[0], columns[1], [1, 2, 3, 4], pairs, strict=True))
    assert by_columns(batch) == row_by_row(wanted)
    assert by_columns(batch.slice(1, 2)) == row_by_row(wanted[1:3])
    table = pa.Table.from_batches([batch, batch.slice(2)])
    assert by_columns(table, batch_bytes=90) == row_by_row(wanted + wanted[2:], batch_bytes=90)
    assert by_columns(table.to_reader(max_chunksize=1)) == row_by_row(wanted + wanted[2:])
    assert by_columns(batch.to_struct_array()) == row_by_row(wanted)


def test_pyarrow_headers_as_a_list_of_structs() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = [None, [("a", b"1"), ("b", None)], []]
    headers = pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in pairs], kind)
    assert by_columns([b"v"] * 3, None, None, headers) == row_by_row([(None, b"v", None, row) for row in pairs])
    assert by_columns([b"v"] * 2, None, None, headers[1:]) == row_by_row([(None, b"v", None, row) for row in pairs[1:]])


def test_what_a_pyarrow_reader_raises_is_told() -> None:
    def chunks() -> Any:
        yield pa.record_batch({"value": pa.array([b"a"])})
        raise KeyError("no such file")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), chunks())
    with pytest.raises(InvalidColumnError, match=r"failed after 1 rows: .*no such file"):
        by_columns(reader)


def polars_frame() -> Any:
    return pytest.importorskip("polars").DataFrame({"key": [b"a", None, b"c"], "value": [b"1", b"2" * 20, None]})


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas", minversion="2.2")
    return pandas.DataFrame({"key": [b"a", None, b"c"], "value": [b"1", b"2" * 20, None]})


def duckdb_relation() -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().sql(
        "select * from (values ('a'::blob, '1'::blob), (null, repeat('2', 20)::blob), ('c', null)) r(key, value)"
    )


@pytest.mark.parametrize("made", [polars_frame, pandas_frame, duckdb_relation])
def test_frames_of_other_libraries_are_taken_as_they_are(made: Callable[[], Any]) -> None:
    frame = made()
    assert hasattr(frame, "__arrow_c_stream__")
    assert by_columns(frame) == row_by_row([(b"a", b"1"), (None, b"2" * 20), (b"c", None)])


def test_polars_series_are_taken_as_they_are() -> None:
    polars = pytest.importorskip("polars")
    words = polars.Series(["a", None, "a longer one than twelve"])
    times = polars.Series([0, 1, 2]).cast(polars.Datetime("us", "UTC"))
    assert by_columns(words, words.cast(polars.Categorical), times) == row_by_row(
        [(b"a", b"a", 0, None), (None, None, 0, None), (b"a longer one than twelve",) * 2 + (0, None)]
    )


@pytest.mark.parametrize("role", ["value", "key", "timestamp", "headers"])
@pytest.mark.parametrize("form", ["series", "frame"])
@pytest.mark.parametrize("rows", [0, 2])
def test_polars_objects_are_refused_by_name_and_their_addresses_are_not_stored(
    tmp_path: Path, role: str, form: str, rows: int
) -> None:
    polars = pytest.importorskip("polars")
    objects = polars.Series([uuid.UUID(int=1), uuid.UUID(int=2)][:rows], dtype=polars.Object)
    argument = {"value": "values", "key": "keys", "timestamp": "timestamps", "headers": "headers"}[role]
    if form == "frame":
        given: dict[str, Any] = {"values": polars.DataFrame({"value": [b"1", b"2"][:rows]} | {role: objects})}
        told = f"column '{role}' of values: polars' type Object is not taken; "
    else:
        given = {"values": [b"1", b"2"][:rows]} | {argument: objects}
        told = f"{argument}: polars' type Object is not taken; "
    with Log.open(tmp_path / "t-0") as log, Store.open(tmp_path / "store") as store:
        store.create_topic("t", 2)
        for append in (log.append_columns, partial(store.append_columns, "t")):
            with pytest.raises(TypeError, match=re.escape(told)):
                append(given["values"], **{name: column for name, column in given.items() if name != "values"})
        assert log.log_end_offset == store.log("t", 0).log_end_offset == store.log("t", 1).log_end_offset == 0


def test_polars_objects_in_an_ignored_column_are_ignored() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"value": [b"1"], "topic": polars.Series([object()], dtype=polars.Object)})
    assert values_in(by_columns(frame)) == [b"1"]


def test_numpy_arrays_of_arrow_memory_are_the_same_column() -> None:
    rows = [b"%04d" % number for number in range(1000)]
    assert by_columns(np.array(rows)) == by_columns(pa.array(rows, pa.binary(4))) == by_columns(rows)
