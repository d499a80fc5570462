"""`AvroValues`: what Confluent's serializer writes is read, by schemas of a registry or of its topic."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.errors import ConfigError, InvalidRecordError

ADDRESS = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "home", "type": ADDRESS},
        {"name": "work", "type": ["null", "shop.Address"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "number", "type": ["int", "double"]},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
ROW: dict[str, Any] = {
    "id": 5,
    "user": "anna",
    "at": datetime(2026, 11, 2, 10, tzinfo=UTC),
    "day": date(2026, 11, 2),
    "price": Decimal("12.50"),
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "state": "SENT",
    "home": {"city": "Berne"},
    "work": None,
    "hash": b"12",
    "number": 1.5,
    "uuid": "7b0014e8-37cf-4367-902a-12ead5269f86",
}


def framed(schema: Any, row: Any, number: int) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, row)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": one} for i, one in enumerate(fields)]}


def decoded(decoder: kstore.AvroValues, values: list[bytes | None]) -> tuple[list[Any], list[str | None]]:
    array = pa.array([b"before", *values], pa.binary()).slice(1)
    found = decoder._bind(lambda: array).columns(array, ["value", "value_error"], str)
    found["value"].validate(full=True)
    return found["value"].to_pylist(), found["value_error"].to_pylist()


def test_what_confluents_serializer_writes_is_read(root: Path) -> None:
    registry = SchemaRegistryClient.new_client({"url": "mock://avro"})
    serializer = AvroSerializer(registry, json.dumps(ORDER))
    rows = [{**ROW, "id": i, "user": None if i % 3 else f"u{i}"} for i in range(20)]
    with kstore.Store.open(root) as store:
        store.create_topic("orders")
        for row in rows:
            store.append("orders", serializer(row, SerializationContext("orders", MessageField.VALUE)))
    schemas = {1: registry.get_schema(1).schema_str}
    table = kstore.dataset(root, "orders", decode=kstore.AvroValues(schemas)).to_table()
    table.validate(full=True)
    wanted = [{**row, "counts": [("x", 1)]} for row in rows]
    assert table["value"].to_pylist() == wanted
    assert table["value_error"].null_count == len(rows)
    columns = kstore.dataset(root, "orders", decode=kstore.AvroValues(schemas, columns=True))
    assert columns.schema.names[5:8] == ["value", "id", "user"]
    assert duckdb.sql("select sum(id), max(home.city), sum(price) from columns where user is not null").fetchall() == [
        (63, "Berne", Decimal("87.50"))
    ]


def test_values_of_several_schemas_are_resolved_to_the_newest() -> None:
    old = record("int")
    new = {**old, "fields": [{"name": "f0", "type": "long"}, {"name": "f1", "type": "string", "default": "none"}]}
    values = [framed(old, {"f0": 1}, 3), framed(new, {"f0": 2, "f1": "x"}, 9), None, framed(old, {"f0": 3}, 3)]
    rows, errors = decoded(kstore.AvroValues({3: old, 9: new}), values)
    assert rows == [{"f0": 1, "f1": "none"}, {"f0": 2, "f1": "x"}, None, {"f0": 3, "f1": "none"}]
    assert errors == [None] * 4
    assert decoded(kstore.AvroValues({3: old, 9: new}, schema=json.dumps(old)), values)[0][0] == {"f0": 1}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "no frame of a schema registry"),
        (b"\0\0\0\0", "no frame of a schema registry"),
        (b"\1\0\0\0\3\2\2a", "no frame of a schema registry"),
        (b"\0\0\0\0\4\2\2a", "no schema has the id 4"),
        (b"\0\0\0\0\5\2\2a", "schema 5: the Avro schema of values is that of a record"),
        (b"\0\0\0\0\3\2", "EOFError"),
        (b"\0\0\0\0\3\2\2", "EOFError: Expected 1 bytes, read 0"),
        (b"\0\0\0\0\3\2\2ab", "1 bytes are left after the Avro record"),
        (b"\0\0\0\0\3\2\2\xff", "UnicodeDecodeError"),
        (b"\0\0\0\0\3\2\1a", "EOFError"),
    ],
)
def test_a_value_that_cannot_be_decoded_is_null_and_told(value: bytes, reason: str) -> None:
    schema = record("long", "string")
    good = framed(schema, {"f0": 1, "f1": "a"}, 3)
    rows, errors = decoded(kstore.AvroValues({3: schema, 5: '"int"'}, schema=schema), [good, value, good])
    assert rows == [{"f0": 1, "f1": "a"}, None, {"f0": 1, "f1": "a"}]
    assert errors[0] is errors[2] is None
    assert str(errors[1]).startswith(reason)


def test_with_raise_a_bad_value_is_an_error_that_names_its_offset(root: Path) -> None:
    schema = record("long")
    with kstore.Store.open(root) as store:
        store.create_topic("orders")
        store.append("orders", framed(schema, {"f0": 1}, 3))
        store.append("orders", b"bad")
    found = kstore.dataset(root, "orders", decode=kstore.AvroValues({3: schema}, errors="raise"))
    with pytest.raises(InvalidRecordError, match=r"^orders-0, offset 1: no frame of a schema registry$"):
        found.to_table()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (record(["null", "R"]), "recursive: R"),
        (record({"type": "array", "items": "null"}), "an array whose items have no byte"),
        (record({"type": "array", "items": record("null", name="Empty")}), "an array whose items have no byte"),
        (record(["string", "int"]), "field f0 is a union of several types"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 77, "scale": 2}), "precision 77"),
        ("string", "is that of a record"),
        ({"type": "recrd"}, "is invalid: "),
        (record({"type": "record", "name": "A0", "fields": []},
                *[record(f"A{i}", name=f"A{i + 1}") for i in range(100)]), "within each other"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_decoded_safely_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kstore.AvroValues({}, schema=json.dumps(schema))._bind(lambda: pa.array([], pa.binary()))


def test_without_a_known_schema_one_has_to_be_given() -> None:
    with pytest.raises(ConfigError, match=r"AvroValues\(schema=\.\.\.\) gives one"):
        kstore.AvroValues({3: record("int")})._bind(lambda: pa.array([b"\0\0\0\0\4\2"], pa.binary()))


MUTATED = framed(ORDER, ROW, 3)
EDITS = st.lists(st.tuples(st.integers(5, len(MUTATED) - 1), st.binary(max_size=3)), max_size=4)


@given(st.lists(EDITS, max_size=6), st.sampled_from([ORDER["fields"], ORDER["fields"][:2], ORDER["fields"][-2:]]))
def test_damaged_values_give_rows_or_reasons_and_do_not_touch_others(edits: list[Any], fields: list[Any]) -> None:
    values: list[bytes | None] = []
    for edit in edits:
        value = MUTATED
        for at, piece in edit:
            value = value[:at] + piece + value[at + 1 :]
        values += [value, MUTATED]
    decoder = kstore.AvroValues({3: ORDER}, schema={**ORDER, "fields": fields})
    rows, errors = decoded(decoder, values)
    for row in range(len(values)):
        alone = decoded(decoder, [values[row]])
        assert (rows[row], errors[row] is None) == (alone[0][0], alone[1][0] is None)
        assert errors[row] is None or row % 2 == 0


def test_a_cell_beyond_arrows_range_is_null_and_the_others_are_read() -> None:
    schema = record({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "long")
    body = b"\0\0\0\0\3" + b"\6\x7f\xff\xff" + b"\4"
    rows, errors = decoded(kstore.AvroValues({3: schema}), [body])
    assert rows in ([{"f0": None, "f1": 2}], [None])
    assert errors[0]


# ---- Where schemas come from.

NESTED = record("long", "shop.Address", name="Nested")
STORED = [
    ({"keytype": "NOOP", "magic": 0}, None),
    ({"keytype": "SCHEMA", "subject": "address", "version": 1, "magic": 1}, {"id": 1, "schema": json.dumps(ADDRESS)}),
    ({"keytype": "SCHEMA", "subject": "orders-value", "version": 1, "magic": 1},
     {"id": 2, "schema": json.dumps(NESTED),
      "references": [{"name": "shop.Address", "subject": "address", "version": 1}]}),
    ({"keytype": "SCHEMA", "subject": "lost", "version": 1, "magic": 1},
     {"id": 3, "schema": json.dumps(NESTED), "references": [{"name": "x", "subject": "gone", "version": 1}]}),
    ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "BACKWARD"}),
]  # fmt: skip
VALUE = framed(fastavro.parse_schema(NESTED, {"shop.Address": fastavro.parse_schema(ADDRESS)}),
               {"f0": 1, "f1": {"city": "Rome"}}, 2)  # fmt: skip


@pytest.fixture
def stored(root: Path) -> Path:
    with kstore.Store.open(root) as store:
        store.create_topic("_schemas", config={"cleanup.policy": "compact"})
        for key, value in STORED:
            full = None if value is None else {"subject": key.get("subject"), "version": 1, "deleted": False, **value}
            store.append("_schemas", None if full is None else json.dumps(full).encode(), key=json.dumps(key).encode())
        store.append("_schemas", b"\xff{", key=b"?")
    return root


def test_schemas_of_the_topic_of_a_registry_are_read_offline(stored: Path) -> None:
    for source in (stored, str(stored)):
        assert decoded(kstore.AvroValues(source), [VALUE]) == ([{"f0": 1, "f1": {"city": "Rome"}}], [None])
    with kstore.Store.open(stored) as store:
        decoder = kstore.AvroValues(store)
    rows, errors = decoded(decoder, [VALUE, b"\0\0\0\0\3\2"])
    assert rows == [{"f0": 1, "f1": {"city": "Rome"}}, None]
    assert errors == [None, "the schema 3 refers to gone 1, which is not there"]


def test_a_directory_without_the_topic_is_refused(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("orders")
    with pytest.raises(ConfigError, match="no topic _schemas"):
        kstore.AvroValues(root)


@contextmanager
def registry(answers: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            answer = answers.get(self.path)
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_registry_is_asked_once_for_each_schema() -> None:
    answers = {
        "/at/schemas/ids/2": {"schema": json.dumps(NESTED), "references": [{"subject": "a/b", "version": 4}]},
        "/at/subjects/a%2Fb/versions/4": {"schema": json.dumps(ADDRESS), "id": 1, "version": 4},
    }
    with registry(answers) as (host, asked):
        decoder = kstore.AvroValues(f"http://me:se%40cret@{host}/at/")
        rows, errors = decoded(decoder, [VALUE, VALUE, b"\0\0\0\0\7\2", b"\0\0\0\0\7\2"])
        decoded(decoder, [VALUE])
    assert rows[:2] == [{"f0": 1, "f1": {"city": "Rome"}}] * 2
    assert rows[2:] == [None, None]
    assert errors[2:] == [f"http://{host}/at has no /schemas/ids/7"] * 2
    paths = [path for path, _ in asked]
    assert sorted(paths) == ["/at/schemas/ids/2", "/at/schemas/ids/7", "/at/subjects/a%2Fb/versions/4"]
    assert {sent for _, sent in asked} == {"Basic " + base64.b64encode(b"me:se@cret").decode()}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"<html>", "Expecting value"),
        ([1], "answers with no JSON object"),
        ({"id": 2}, "answers without a schema"),
        ({"schema": "{}", "references": [{"subject": "a"}]}, "a reference without a subject and a version"),
    ],
)
def test_an_answer_that_is_none_is_an_error_without_the_password(answer: Any, words: str) -> None:
    with registry({"/schemas/ids/2": answer}) as (host, _), pytest.raises(ConfigError, match=words) as caught:
        decoded(kstore.AvroValues(f"http://me:secret@{host}"), [VALUE])
    assert "secret" not in str(caught.value)


def test_a_registry_that_is_not_there_is_an_error() -> None:
    with registry({}) as (host, _):
        pass
    with pytest.raises(ConfigError, match="refused"):
        decoded(kstore.AvroValues(f"http://{host}"), [VALUE])
    with pytest.raises(ConfigError, match="begins with http:// or https://"):
        kstore.AvroValues("ftp://me:secret@host")
