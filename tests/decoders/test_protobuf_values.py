"""`ProtobufValues`: messages with and without Confluent's frame are read by their descriptor."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.decoders.protobuf_values import ProtobufReader
from kstore.errors import ConfigError, InvalidRecordError

FIELD = descriptor_pb2.FieldDescriptorProto


def descriptor() -> descriptor_pb2.FileDescriptorSet:
    """What protoc makes of a file with a message that has most kinds of fields, and one with an inner message."""
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    order, other = file.message_type.add(name="Order"), file.message_type.add(name="Other")
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="SENT", number=1)
    item = order.nested_type.add(name="Item")
    item.field.add(name="name", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    for name, number, kind, label, named in [
        ("id", 1, FIELD.TYPE_INT64, FIELD.LABEL_OPTIONAL, ""),
        ("user", 2, FIELD.TYPE_STRING, FIELD.LABEL_OPTIONAL, ""),
        ("numbers", 3, FIELD.TYPE_INT32, FIELD.LABEL_REPEATED, ""),
        ("item", 4, FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".shop.Order.Item"),
        ("state", 5, FIELD.TYPE_ENUM, FIELD.LABEL_OPTIONAL, ".shop.State"),
        ("at", 6, FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
        ("parent", 7, FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".shop.Order"),
    ]:
        order.field.add(name=name, number=number, type=kind, label=label, type_name=named or None)
    order.oneof_decl.add(name="contact")
    order.oneof_decl.add(name="_note")
    order.field.add(name="mail", number=8, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL, oneof_index=0)
    order.field.add(
        name="note", number=9, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL, oneof_index=1, proto3_optional=True
    )
    inner = other.nested_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=FIELD.TYPE_DOUBLE, label=FIELD.LABEL_OPTIONAL)
    return files


FILES = descriptor()
COMPILED = FILES.SerializeToString()
POOL = descriptor_pool.DescriptorPool()
for one in FILES.file:
    POOL.AddSerializedFile(one.SerializeToString())
Order: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))
Inner: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Other.Inner"))

AT = datetime(2026, 11, 2, 10, tzinfo=UTC)
ORDER = Order(id=5, user="anna", numbers=[1, 2], item={"name": "pear"}, state=1, note="n", mail="m")
ORDER.at.FromDatetime(AT)
ROW = {
    "id": 5, "user": "anna", "numbers": [1, 2], "item": {"name": "pear"}, "state": "SENT",
    "at": AT, "parent": None, "mail": "m", "note": "n",
}  # fmt: skip


def decoded(values: list[bytes | None], message: str = "shop.Order") -> tuple[list[Any], list[str | None]]:
    array = pa.array([b"before", *values], pa.binary()).slice(1)
    decoding = kstore.ProtobufValues(COMPILED, message)._bind(lambda: array)
    found = decoding.columns(array, ["value", "value_error"], str)
    found["value"].validate(full=True)
    return found["value"].to_pylist(), found["value_error"].to_pylist()


def serializer(kind: Any) -> Any:
    registry = SchemaRegistryClient.new_client({"url": "mock://protobuf"})
    made = ProtobufSerializer(kind, registry, {"use.deprecated.format": False})
    return lambda message: made(message, SerializationContext("orders", MessageField.VALUE))


def test_what_confluents_serializer_writes_is_read(root: Path) -> None:
    write = serializer(Order)
    with kstore.Store.open(root) as store:
        store.create_topic("orders")
        for i in range(20):
            store.append("orders", write(Order(id=i, user=f"u{i % 3}")))
        store.append("orders", write(ORDER))
        store.append("orders", ORDER.SerializeToString())
    table = kstore.dataset(root, "orders", decode=kstore.ProtobufValues(COMPILED, "shop.Order")).to_table()
    table.validate(full=True)
    assert table["value"].to_pylist()[20:] == [ROW, ROW]
    columns = kstore.dataset(root, "orders", decode=kstore.ProtobufValues(COMPILED, "shop.Order", columns=True))
    assert columns.schema.names[5:8] == ["value", "id", "user"]
    query = "select user, sum(id) from columns where user != 'anna' group by all order by all"
    assert duckdb.sql(query).fetchall() == [        ("u0", 63), ("u1", 70), ("u2", 57)
    ]  # fmt: skip


def test_the_frame_of_an_inner_message_names_its_place() -> None:
    inner, order = serializer(Inner)(Inner(x=1.5)), serializer(Order)(ORDER)
    assert inner[5:8] == b"\4\2\0"
    rows, errors = decoded([inner, order], "shop.Other.Inner")
    assert rows == [{"x": 1.5}, None]
    assert errors == [None, "the frame names the message [0] of its schema, not [1, 0]"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff", "unexpected EOF in varint"),
        (b"\x12\x05ab", "unexpected EOF"),
        (b"\x12" + b"\xff" * 9 + b"\x01", "invalid field number 0"),
        (b"\xfb\x01" * 500_000, "Error parsing message with type"),
        (b"\xfb\x01" * 300_000 + b"\xfc\x01" * 300_000, "Error parsing message with type"),
        (b"\0\0", "invalid field number 0"),
        (b"\0\0\0\0\1", "the frame names the message [] of its schema, not [0]"),
        (
            b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            "the frame names the message [] of its schema, not [0]",
        ),
    ],
)
def test_a_value_that_cannot_be_decoded_is_null_and_told(value: bytes, reason: str) -> None:
    good = ORDER.SerializeToString()
    rows, errors = decoded([good, value, None, good])
    assert rows == [ROW, None, None, ROW]
    assert [errors[0], *errors[2:]] == [None] * 3
    assert str(errors[1]).startswith(reason)


def test_a_field_that_cannot_be_decoded_is_null_whatever_others_are_asked() -> None:
    value = b"\x08\x05\x12\x02\xff\xfe"
    rows, errors = decoded([value])
    assert (rows[0]["id"], rows[0]["user"], errors) == (5, None, ["user: invalid UTF-8"])
    reader = ProtobufReader(COMPILED, "shop.Order")
    for names in (["id"], ["user", "id"], ["user"]):
        found = reader.read(pa.array([value], pa.binary()), names)
        assert {name: found.columns[name][0].as_py() for name in names} == {name: rows[0][name] for name in names}


def test_times_far_away_are_what_they_are() -> None:
    for moment in (datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)):
        order = Order()
        order.at.FromDatetime(moment)
        assert decoded([order.SerializeToString()])[0][0]["at"] == moment


def test_with_raise_a_bad_value_is_an_error_that_names_its_offset(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("orders")
        store.append_many("orders", [(None, b"\x08\x01"), (None, b"\xff")])
    found = kstore.dataset(root, "orders", decode=kstore.ProtobufValues(COMPILED, "shop.Order", errors="raise"))
    with pytest.raises(InvalidRecordError, match=r"^orders-0, offset 1: unexpected EOF in varint$"):
        found.to_table()


def test_only_the_fields_that_are_asked_are_decoded() -> None:
    reader = ProtobufReader(COMPILED, "shop.Order")
    for names in (["mail"], ["note", "id"], ["item"], ["at"], ["state", "mail"]):
        found = reader.read(pa.array([ORDER.SerializeToString()], pa.binary()), names)
        assert {name: array[0].as_py() for name, array in found.columns.items()} == {name: ROW[name] for name in names}
        assert set(reader._handler(tuple(names)).schema().names) == set(names)


MESSAGE = ORDER.SerializeToString()
EDITS = st.lists(st.tuples(st.integers(0, len(MESSAGE) - 1), st.binary(max_size=3)), max_size=4)


@given(st.lists(EDITS, max_size=6))
def test_damaged_values_give_rows_or_reasons_and_do_not_touch_others(edits: list[Any]) -> None:
    values: list[bytes | None] = []
    for edit in edits:
        value = MESSAGE
        for at, piece in edit:
            value = value[:at] + piece + value[at + 1 :]
        values += [value, MESSAGE]
    rows, errors = decoded(values)
    for row, value in enumerate(values):
        assert (rows[row], errors[row]) == tuple(one[0] for one in decoded([value]))
        assert errors[row] is None or row % 2 == 0


def test_a_descriptor_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no message 'shop.Orders'; it has .*shop.Order, shop.Order.Item"):
        kstore.ProtobufValues(COMPILED, "shop.Orders")
    with pytest.raises(ConfigError, match="the Protobuf descriptor is invalid: "):
        kstore.ProtobufValues(b"\xff", "shop.Order")
    alone = descriptor_pb2.FileDescriptorSet()
    alone.file.append(FILES.file[1])
    with pytest.raises(ConfigError, match="protoc needs --include_imports"):
        kstore.ProtobufValues(alone.SerializeToString(), "shop.Order")
    with pytest.raises(FileNotFoundError):
        kstore.ProtobufValues(tmp_path / "none", "shop.Order")
    (tmp_path / "shop.pb").write_bytes(COMPILED)
    kstore.ProtobufValues(tmp_path / "shop.pb", "shop.Order")
