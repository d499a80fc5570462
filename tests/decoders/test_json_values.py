"""`JsonValues`: each value is decoded by itself, whatever stands before and after it; what does not fit is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kstore
from kstore.decoders import json_values
from kstore.decoders.json_values import JsonReader
from kstore.errors import ConfigError, InvalidRecordError

SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string(), "x": pa.float64(), "b": pa.bool_(), "l": pa.list_(pa.int64())})


def binary(values: list[bytes | None]) -> Any:
    """The values as a slice of a longer array."""
    return pa.array([b"before", *values, b"after"], pa.binary()).slice(1, len(values))


def read(values: list[bytes | None], names: list[str] | None = None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    found = JsonReader(SCHEMA).read(binary(values), names or SCHEMA.names)
    for name, array in found.columns.items():
        array.validate(full=True)
        assert len(array) == len(values)
        assert array.type == SCHEMA.field(name).type
    rows = [{name: array[row].as_py() for name, array in found.columns.items()} for row in range(len(values))]
    assert [row for row, is_null in enumerate(found.is_null) if is_null] == [
        row for row in range(len(values)) if values[row] is None or (all(v is None for v in rows[row].values())
        and row in found.reasons and found.is_null[row])
    ]  # fmt: skip
    return rows, found.reasons


def test_fields_are_read_and_what_a_value_lacks_is_null() -> None:
    rows, reasons = read(
        [b'{"n": 1, "s": "a", "x": 2.5, "b": true, "l": [1, null]}', b" {}\n", None, b'{"s":null,"?":1}']
    )
    assert rows[0] == {"n": 1, "s": "a", "x": 2.5, "b": True, "l": [1, None]}
    assert all(set(row.values()) == {None} for row in rows[1:])
    assert not reasons


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b"17", "no JSON object"),
        (b'{"n":1', "no JSON object"),
        (b'{"n":1}{"n":2}', "more than one JSON object"),
        (b'{"n":}', "Invalid value."),
        (b'{"n":1,}', "Missing a name for object member."),
        (b'{"n":1}\0{}', "a byte 0 in JSON"),
        (b'{"s":"\xff"}', "no UTF-8: invalid start byte at byte 6"),
        (b'{"s":"\n"}', "Invalid encoding in string."),
        (b'{"s":"\\ud800"}', "The surrogate pair in string is invalid."),
    ],
)
def test_a_value_that_is_no_object_is_null_and_told(value: bytes, reason: str) -> None:
    good = b'{"n":1}'
    rows, reasons = read([good, value, good])
    assert reasons == {1: reason}
    assert [row["n"] for row in rows] == [1, None, 1]
    assert read([good, value, good], ["s"])[1] == reasons, "the reason does not depend on the fields that are asked"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"n":"x","s":"a"}', "n is no int64"),
        (b'{"n":1.0,"s":"a"}', "n is no int64"),
        (b'{"n":true,"s":"a"}', "n is no int64"),
        (
            b'{"n":9223372036854775808,"s":"a"}',
            "n: Failed to convert JSON to int64, couldn't parse:9223372036854775808",
        ),
        (b'{"x":"1","s":"a"}', "x is no double"),
        (b'{"b":1,"x":"2","s":"a"}', "x is no double; b is no bool"),
        (b'{"l":[1,"x"],"s":"a"}', "l: Column(/l/[]) changed from number to string"),
        (b'{"n":1,"n":2,"s":"a"}', "n: Column(/n) was specified twice"),
    ],
)
@pytest.mark.parametrize("count", [1, 10])
def test_a_field_that_does_not_fit_is_null_and_the_others_are_read(value: bytes, reason: str, count: int) -> None:
    rows, reasons = read([b'{"s":"a","n":1}', *[value] * count, b'{"s":"a","n":1}'])
    assert reasons == dict.fromkeys(range(1, count + 1), reason)
    assert [row["s"] for row in rows] == ["a"] * (count + 2)
    assert [row["n"] for row in (rows[0], rows[-1])] == [1, 1]
    assert not read([value], ["s"])[1], "a field that is not asked is not looked at"


PIECES = st.sampled_from(
    [b'{"n":1}', b'{"s":"a"}', b"{", b"}", b'"', b"\n", b",", b":", b"[", b"]", b" ", b'"n"', b"1", b"\\", b'{"l":[1]}',
     b"\xff",      b'{"x":', b'{"s":"', b"null", b"\0", b"-", b".5", b"/**/", b'"b":true']
)  # fmt: skip
VALUES = st.none() | st.lists(PIECES, max_size=5).map(b"".join)


@given(st.lists(VALUES, max_size=12))
@example([b'{"s":"}', b'{":1}'])
@example([b'{"n":1}{"n":2}', b'{"l":[', b"1]}"])
@example([b'{"n":{"s":1}', b'{"n":2}}'])
def test_each_value_is_decoded_as_if_it_were_alone(values: list[bytes | None]) -> None:
    rows, reasons = read(values)
    for row, value in enumerate(values):
        alone, why = read([value])
        assert rows[row] == alone[0]
        assert reasons.get(row) == why.get(0)
        if value is None:
            continue
        try:
            known = json.loads(value.decode(), parse_constant=lambda _: 1 / 0)
        except (ValueError, ZeroDivisionError):
            assert row in reasons
            continue
        if not isinstance(known, dict):
            assert row in reasons
        elif row not in reasons:
            assert rows[row] == {name: known.get(name) for name in SCHEMA.names}


def test_pieces_and_blocks_are_joined_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "PIECE_BYTES", 3000)
    monkeypatch.setattr(json_values, "BLOCK_BYTES", 200)
    values = [b'{"n":%d,"s":"%s"}' % (i, b"\\n" * (i % 7)) for i in range(1000)]
    values[500:510] = [b'{"n":\n%d}' % i for i in range(500, 510)]
    values[700] = b"bad"
    rows, reasons = read(list(values))
    assert [row["n"] for row in rows] == [None if i == 700 else i for i in range(1000)]
    assert reasons == {700: "no JSON object"}


def test_times_and_decimals_are_read_from_their_texts() -> None:
    schema = pa.schema({"at": pa.timestamp("ms", "UTC"), "price": pa.decimal128(9, 2)})
    found = JsonReader(schema).read(binary([b'{"at":"2026-11-02T10:00:00Z","price":"1.25"}']), schema.names)
    assert found.columns["at"][0].as_py() == datetime(2026, 11, 2, 10, tzinfo=UTC)
    assert found.columns["price"][0].as_py() == Decimal("1.25")


# ---- In a dataset.

ORDERS = [b'{"user":"u%d","amount":%d.5,"country":"%s"}' % (i % 7, i, b"DE" if i % 3 else b"FR") for i in range(100)]
FIELDS = pa.schema({"user": pa.string(), "amount": pa.float64(), "country": pa.string()})


@pytest.fixture
def orders(root: Path) -> Path:
    with kstore.Store.open(root) as store:
        store.create_topic("orders", partitions=2)
        store.append_many("orders", [(b"%d" % i, value) for i, value in enumerate(ORDERS)])
        store.append("orders", b"no json", partition=1)
        store.append("orders", None, key=b"1")
    return root


def test_a_struct_stands_for_the_value_and_an_error_beside_it(orders: Path) -> None:
    found = kstore.dataset(orders, "orders", decode=kstore.JsonValues(FIELDS))
    assert found.schema.field("value").type == pa.struct(list(FIELDS))
    assert found.schema.names == [
        "partition", "offset", "timestamp", "timestamp_type", "key", "value", "value_error", "headers"
    ]  # fmt: skip
    assert duckdb.sql("select sum(value.amount), count(*), count(value), count(value_error) from found").fetchall() == [
        (sum(i + 0.5 for i in range(100)), 102, 100, 1)
    ]
    table = found.to_table()
    table.validate(full=True)
    assert [row["value"] for row in table.to_pylist() if row["value_error"]] == [None]


@pytest.mark.parametrize("scan", [kstore.dataset, kstore.scan_polars])
def test_fields_are_columns_that_engines_filter(orders: Path, scan: Callable[..., Any]) -> None:
    found = scan(orders, "orders", decode=kstore.JsonValues(FIELDS, columns=True))
    if isinstance(found, pl.LazyFrame):
        rows = found.filter(pl.col("country") == "FR").group_by("user").agg(pl.col("amount").sum()).collect().rows()
        assert found.select(pl.col("value_error").drop_nulls()).collect().rows() == [("no JSON object",)]
    else:
        rows = duckdb.sql("select user, sum(amount) from found where country = 'FR' group by all").fetchall()
        assert found.count_rows(pc.field("value_error") == "no JSON object") == 1
        assert found.count_rows(pc.field("value") == ORDERS[3]) == 1
    wanted: dict[str, float] = {}
    for order in map(json.loads, ORDERS):
        if order["country"] == "FR":
            wanted[order["user"]] = wanted.get(order["user"], 0.0) + order["amount"]
    assert dict(rows) == wanted


def test_a_query_of_two_fields_decodes_two(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    read = JsonReader.read

    def noting(self: JsonReader, values: Any, names: Any) -> Any:
        asked.append(list(names))
        return read(self, values, names)

    monkeypatch.setattr(JsonReader, "read", noting)
    found = kstore.dataset(orders, "orders", decode=kstore.JsonValues(FIELDS, columns=True))
    assert found.schema.names[6:9] == FIELDS.names
    duckdb.sql("select sum(amount) from found where country = 'FR'").fetchall()
    assert {tuple(sorted(names)) for names in asked} == {("amount", "country")}
    asked.clear()
    duckdb.sql('select count(*), max("offset"), max(key) from found where partition = 1').fetchall()
    assert asked == []


def test_with_raise_the_first_bad_value_ends_the_scan_and_is_named(orders: Path) -> None:
    found = kstore.dataset(orders, "orders", decode=kstore.JsonValues(FIELDS, errors="raise"))
    assert "value_error" not in found.schema.names
    with kstore.Log.open(orders / "orders-1", "r") as log:
        offset = next(record.offset for record in log.read() if record.value == b"no json")
    with pytest.raises(InvalidRecordError, match=f"^orders-1, offset {offset}: no JSON object$"):
        found.to_table()
    assert found.to_table(["key"]).num_rows == 102


def test_without_a_schema_the_first_values_show_it(orders: Path) -> None:
    found = kstore.dataset(orders, "orders", decode=kstore.JsonValues(columns=True))
    assert found.schema.field("amount").type == pa.float64()
    assert found.schema.names[6:9] == ["user", "amount", "country"]
    with kstore.Store.open(orders) as store:
        store.create_topic("mixed")
        store.append_many("mixed", [(None, b'{"a":1,"z":null}'), (None, b"?"), (None, b'{"a":2.5,"o":{"p":null}}')])
        store.create_topic("none")
    mixed = kstore.dataset(orders, "mixed", decode=kstore.JsonValues(columns=True))
    kinds = {name: str(mixed.schema.field(name).type) for name in ("a", "z", "o")}
    assert kinds == {"a": "double", "z": "string", "o": "struct<p: string>"}
    assert mixed.to_table()["a"].to_pylist() == [1.0, None, 2.5]
    with pytest.raises(ConfigError, match="no value shows the fields of JSON objects"):
        kstore.dataset(orders, "none", decode=kstore.JsonValues())


def test_fields_of_several_types_need_a_schema_and_times_are_text(root: Path) -> None:
    values = [b'{"a":1,"t":"2026-01-01T00:00:00Z","o":{},"p":[{}]}', b'{"a":2}']
    with kstore.Store.open(root) as store:
        for topic, more in (
            ("one", []),
            ("several", [b'{"a":"x"}']),
            ("deep", [b'{"d":' + b"[" * 99 + b"]" * 99 + b"}"]),
        ):
            store.create_topic(topic)
            store.append_many(topic, [(None, value) for value in [*values, *more]])
    one, deep = (kstore.dataset(root, topic, decode=kstore.JsonValues()) for topic in ("one", "deep"))
    assert str(one.schema.field("value").type) == "struct<a: int64, t: string>"
    assert deep.schema == one.schema, "a value of many levels shows nothing"
    with pytest.raises(
        ConfigError, match=r"values have no common schema, so one is to be given: .*a has incompatible types"
    ):
        kstore.dataset(root, "several", decode=kstore.JsonValues())


@pytest.mark.parametrize("size", [2100 << 10, 20 << 20])
def test_a_value_that_is_larger_than_a_block_is_read(size: int) -> None:
    large = b'{"s":"' + b"x" * size + b'","n":7}'
    for values in ([large], [b'{"n":1}', large, b'{"n":\r2}']):
        rows, reasons = read(list(values))
        assert not reasons
        assert [row["n"] for row in rows] == [7] if len(values) == 1 else [1, 7, 2]


def test_many_kinds_of_misfits_are_told_field_by_field() -> None:
    fields = [f"f{i}" for i in range(12)]
    reader = JsonReader(pa.schema({name: pa.int64() for name in fields}))
    values = [{name: 1 if number >> i & 1 else "x" for i, name in enumerate(fields)} for number in range(300)]
    found = reader.read(pa.array([json.dumps(value).encode() for value in values] + [b"{?}"], pa.binary()), fields)
    for row, value in enumerate(values):
        wrong = [name for name in fields if value[name] == "x"]
        assert [name for name in fields if found.columns[name][row].as_py() is None] == wrong
        assert found.reasons.get(row, "") == "; ".join(f"{name} is no int64" for name in wrong)
    assert found.reasons[300] == "Missing a name for object member."
    assert all(found.columns[name][300].as_py() is None for name in fields)


def test_what_cannot_be_decoded_is_refused_at_once(orders: Path) -> None:
    with pytest.raises(ConfigError, match="the field m is of type map<string, int64>, which is not read from JSON"):
        kstore.JsonValues({"m": pa.map_(pa.string(), pa.int64())})
    with pytest.raises(ConfigError, match="errors is 'ignore'; it is 'null' or 'raise'"):
        kstore.JsonValues(FIELDS, errors="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="values have a field 'key', which is a column of records"):
        kstore.dataset(orders, "orders", decode=kstore.JsonValues({"key": pa.string()}, columns=True))
    with pytest.raises(ConfigError, match="values have a field 'Offset'"):
        kstore.dataset(orders, "orders", decode=kstore.JsonValues({"Offset": pa.int64()}, columns=True))
    for kind in (pa.date32(), pa.list_(pa.time64("us")), pa.string_view()):
        with pytest.raises(ConfigError, match=r"the field x is of type .*, which is not read from JSON"):
            kstore.JsonValues({"x": kind})
    assert "key" in kstore.dataset(orders, "orders", decode=kstore.JsonValues({"key": pa.string()})).schema.names
    with pytest.raises(ConfigError, match="at least one is wanted, and each once"):
        kstore.dataset(orders, "orders", decode=kstore.JsonValues(pa.schema([])))


def test_latest_reads_decoded_states(orders: Path) -> None:
    found = kstore.dataset(orders, "orders", latest=True, decode=kstore.JsonValues(FIELDS, columns=True))
    assert found.count_rows(pc.field("amount") > 0) == 99  # of the key 1 the newest is a tombstone
