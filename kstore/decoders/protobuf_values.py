"""`ProtobufValues`: values that are Protobuf messages become Arrow columns, by ptars."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kstore.base import optional
from kstore.columns.value_decoding import Decoded, Decoding, Errors, checked_errors, nullable
from kstore.decoders.binary_arrays import indices, offsets_and_bytes
from kstore.decoders.confluent_frame import framed
from kstore.disk import fs
from kstore.errors import ConfigError

USER = "ProtobufValues"
MOST_BYTES = 64 << 20  # of a descriptor's file
VARINT = 10  # bytes of a varint at most
GROUP = 3  # the wire type that begins a group
MOST_GROUPS = 1000  # beginnings of groups in a message that is not checked
END = (1 << 31) - 1  # of a slice: PyArrow 26 fails without it


class ProtobufValues:
    r"""Decodes values that are Protobuf messages, for `decode=`.

    A value that begins with a byte 0 has the frame of Confluent's serializers: the id of a schema and the place of the
    message in its file. The frame is removed; the place must be that of `message` in the descriptor. Other values are
    plain messages. Enums become text: the name, or the number if the descriptor does not have it. Timestamps are
    microseconds in UTC. A message that contains its own type stays binary there. A field that is missing in a message
    has Protobuf's default. Thread-safe.

    Args:
        descriptor: The compiled schema: the bytes or the file of `protoc --include_imports --descriptor_set_out=FILE`.
        message: The full name of the message, as "shop.Order".
        columns: Each field becomes a column beside `value`, so that a query that needs two fields decodes two. Without
            it, `value` becomes a struct.
        errors: What becomes of a value that cannot be decoded. "null": a field that cannot be decoded is null, and so
            are all fields of a damaged message; the column `value_error` says why. "raise": an error when it is read.

    Raises:
        ConfigError: If ptars, Protobuf or PyArrow is not installed, an argument is invalid, or the descriptor does not
            have the message.
        StorageError: If the file cannot be read.
        InvalidRecordError: In a scan with `errors="raise"`, if a value cannot be decoded.

    Example:
        >>> from google.protobuf import descriptor_pb2
        >>> compiled = descriptor_pb2.FileDescriptorSet()  # as protoc writes it
        >>> file = compiled.file.add(name="shop.proto", package="shop", syntax="proto3")
        >>> message = file.message_type.add(name="Fruit")
        >>> field = message.field.add(name="kind", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> info = store.append("orders", b"\n\x04pear")
        >>> fruit = kstore.ProtobufValues(compiled.SerializeToString(), "shop.Fruit")
        >>> kstore.dataset(store, "orders", decode=fruit).to_table()["value"].to_pylist()
        [{'kind': 'pear'}]
    """

    def __init__(
        self,
        descriptor: bytes | str | os.PathLike[str],
        message: str,
        *,
        columns: bool = False,
        errors: Errors = "null",
    ) -> None:
        self._columns, self._errors = bool(columns), checked_errors(errors)
        if not isinstance(descriptor, bytes):
            descriptor = fs.read_file(descriptor, most_bytes=MOST_BYTES, follow=True)
        self._reader = ProtobufReader(descriptor, message)

    def _bind(self, sample: Callable[[], Any]) -> Decoding:
        """Return the decoding of a table; the descriptor says all."""
        return Decoding(self._reader, as_columns=self._columns, errors=self._errors)


class ProtobufReader:
    """Reads fields of Protobuf messages. Thread-safe."""

    def __init__(self, descriptor: bytes, message: str) -> None:
        self._pa = optional.pyarrow(USER, "compute", extra="protobuf")
        self._descriptor, self._message = descriptor, message
        self._handlers: dict[tuple[str, ...], Any] = {}
        self._checked: Any = None
        whole, self._path = _handler(descriptor, message, None)
        self.schema = nullable(self._pa, whole.schema())

    def read(self, values: Any, names: Sequence[str]) -> Decoded:
        pa = self._pa
        is_null = ~values.is_valid().to_numpy(zero_copy_only=False)
        reasons: dict[int, str] = {}
        present = np.flatnonzero(~is_null)
        rows, messages = self._messages(values, present, reasons)
        rows, messages = self._shallow(messages, rows, reasons)
        parts = self._parts(messages, rows, tuple(names), reasons)
        order = np.array([row for part, _ in parts for row in part], np.int64)
        is_null[:] = True
        is_null[order] = False
        places = indices(pa, len(values), order)
        columns = {}
        for name in names:
            kind = self.schema.field(name).type
            columns[name] = pa.concat_arrays([pa.nulls(0, kind), *(part[name] for _, part in parts)]).take(places)
        return Decoded(columns, reasons, is_null)

    def _handler(self, names: tuple[str, ...]) -> Any:
        """Return what decodes these fields and skips the others."""
        if names not in self._handlers:
            self._handlers[names] = _handler(self._descriptor, self._message, names)[0]
        return self._handlers[names]

    def _shallow(self, messages: Any, rows: NDArray[np.intp], reasons: dict[int, str]) -> tuple[NDArray[np.intp], Any]:
        """Return the messages without those of deeply nested groups, on which ptars would use up the stack."""
        offsets, data = offsets_and_bytes(messages)
        deep = []
        for i in np.flatnonzero(np.diff(offsets) > MOST_GROUPS).tolist():
            value = data[offsets[i] : offsets[i + 1]]
            if np.count_nonzero(value & 7 == GROUP) > MOST_GROUPS:
                if self._checked is None:
                    self._checked = _checked_class(self._descriptor, self._message)
                try:
                    self._checked.FromString(value.tobytes())
                except optional.protobuf(USER, "message").DecodeError as error:
                    reasons[int(rows[i])] = str(error)
                    deep.append(i)
        if not deep:
            return rows, messages
        kept = np.delete(np.arange(len(rows)), deep)
        return rows[kept], messages.take(self._pa.array(kept))

    def _messages(self, values: Any, rows: NDArray[np.intp], reasons: dict[int, str]) -> tuple[NDArray[np.intp], Any]:
        """Return the messages of some rows without their frames, and in which rows they are."""
        pa, frames = self._pa, framed(values)
        prefixes: dict[int, list[int]] = {}
        for row in rows[frames.ids[rows] >= 0].tolist():
            start, end = int(frames.starts[row]), int(frames.ends[row])
            if start < end and frames.data[start] == 0 and self._path == (0,):
                prefixes.setdefault(6, []).append(row)
                continue
            path, size = _message_path(bytes(frames.data[start : min(end, start + 100)]))
            if path == self._path:
                prefixes.setdefault(5 + size, []).append(row)
            else:
                reasons[row] = f"the frame names the message {list(path)} of its schema, not {list(self._path)}"
        if not prefixes:
            kept = np.array([row for row in rows.tolist() if row not in reasons], np.int64) if reasons else rows
            return kept, values if len(kept) == len(values) else values.take(pa.array(kept, pa.int64()))
        plain = rows[frames.ids[rows] < 0]
        found, places = [values.take(pa.array(plain, pa.int64()))], [plain]
        for size, members in prefixes.items():
            found.append(pa.compute.binary_slice(values.take(pa.array(members, pa.int64())), size, END))
            places.append(np.array(members, np.int64))
        return np.concatenate(places), pa.concat_arrays(found)

    def _parts(
        self, messages: Any, rows: NDArray[np.intp], names: tuple[str, ...], reasons: dict[int, str]
    ) -> list[tuple[list[int], dict[str, Any]]]:
        """Return rows with the columns of their messages; halves what is refused as a whole."""
        if not len(messages):
            return []
        found = self._columns(messages, names)
        if not isinstance(found, str):
            return [(rows.tolist(), found)]
        if len(messages) == 1:
            return self._one(messages, int(rows[0]), names, reasons)
        middle = len(messages) // 2
        return [
            *self._parts(messages.slice(0, middle), rows[:middle], names, reasons),
            *self._parts(messages.slice(middle), rows[middle:], names, reasons),
        ]

    def _one(
        self, message: Any, row: int, names: tuple[str, ...], reasons: dict[int, str]
    ) -> list[tuple[list[int], dict[str, Any]]]:
        """Return the fields of a message that can be decoded: what a field is does not depend on the others."""
        malformed = self._columns(message, ())
        if isinstance(malformed, str):
            reasons[row] = malformed
            return []
        columns, wrong = {}, []
        for name in names:
            found = self._columns(message, (name,))
            wrong += [f"{name}: {found}"] if isinstance(found, str) else []
            columns[name] = self._pa.nulls(1, self.schema.field(name).type) if isinstance(found, str) else found[name]
        if wrong:
            reasons[row] = "; ".join(wrong)
        return [([row], columns)]

    def _columns(self, messages: Any, names: tuple[str, ...]) -> dict[str, Any] | str:
        """Return these fields of the messages, or why ptars refuses them."""
        try:
            batch = self._handler(names).array_to_record_batch(messages)
        except ValueError as error:
            return str(error).removeprefix("failed to decode Protobuf message: ")
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, for some lengths; no Exception
                raise
            return str(error)
        arrays = {name: batch.column(batch.schema.get_field_index(name)) for name in names}
        return {name: array.cast(self.schema.field(name).type) for name, array in arrays.items()}


def _handler(descriptor: bytes, message: str, names: tuple[str, ...] | None) -> tuple[Any, tuple[int, ...]]:
    """Return ptars' decoder of these fields of a message, all for None, and the place of the message in its file."""
    ptars = optional.ptars(USER)
    messages = optional.protobuf(USER, "message")
    files = optional.protobuf(USER, "descriptor_pb2").FileDescriptorSet()
    try:
        files.ParseFromString(descriptor)
    except messages.DecodeError as error:
        raise ConfigError(f"the Protobuf descriptor is invalid: {error}") from None
    found = [(path, one) for file in files.file for path, name, one in _messages_of(file) if name == message]
    if not found:
        known = sorted(name for file in files.file for _, name, _ in _messages_of(file))
        raise ConfigError(
            f"the Protobuf descriptor has no message {message!r}; it has {', '.join(known[:20]) or 'none'}"
        )
    path, definition = found[0]
    if names is not None:
        _keep(definition, names)
    pool = optional.protobuf(USER, "descriptor_pool").DescriptorPool()
    try:
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        kind = pool.FindMessageTypeByName(message)
        config = ptars.PtarsConfig(
            timestamp_unit="us",
            duration_unit="us",
            enum_repr="string",
            list_nullable=True,
            map_nullable=True,
            list_value_nullable=True,
            map_value_nullable=True,
        )
        return ptars.HandlerPool([kind.file], config).get_for_message(kind), path
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"the Protobuf descriptor is invalid (protoc needs --include_imports): {error}") from None


def _checked_class(descriptor: bytes, message: str) -> Any:
    """Return Google's class of a message, which refuses groups of more than 100 levels; text is not checked."""
    files = optional.protobuf(USER, "descriptor_pb2").FileDescriptorSet.FromString(descriptor)
    pool = optional.protobuf(USER, "descriptor_pool").DescriptorPool()
    for file in files.file:
        for _, _, one in _messages_of(file):
            for field in one.field if not one.options.map_entry else ():
                if field.type == field.TYPE_STRING:
                    field.type = field.TYPE_BYTES
        pool.AddSerializedFile(file.SerializeToString())
    return optional.protobuf(USER, "message_factory").GetMessageClass(pool.FindMessageTypeByName(message))


def _messages_of(file: Any) -> list[tuple[tuple[int, ...], str, Any]]:
    """Return the messages of a file: the place in it, the full name and the definition."""
    found: list[tuple[tuple[int, ...], str, Any]] = []
    waiting: list[tuple[tuple[int, ...], str, Any]] = [
        ((i,), file.package, one) for i, one in enumerate(file.message_type)
    ]
    while waiting:
        path, outer, one = waiting.pop()
        name = f"{outer}.{one.name}" if outer else one.name
        found.append((path, name, one))
        waiting += [((*path, i), name, inner) for i, inner in enumerate(one.nested_type)]
    return found


def _keep(message: Any, names: Sequence[str]) -> None:
    """Remove the other fields of a message's definition, and the choices that are empty then."""
    fields = [field for field in message.field if field.name in names]
    used = sorted({field.oneof_index for field in fields if field.HasField("oneof_index")})
    choices = [message.oneof_decl[number] for number in used]
    for field in fields:
        if field.HasField("oneof_index"):
            field.oneof_index = used.index(field.oneof_index)
    copies = [type(field).FromString(field.SerializeToString()) for field in fields]
    kept = [type(choice).FromString(choice.SerializeToString()) for choice in choices]
    del message.field[:], message.oneof_decl[:]
    message.field.extend(copies)
    message.oneof_decl.extend(kept)


def _message_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the place of a message that a frame names, and its size in bytes; an empty place if it is damaged."""
    numbers: list[int] = []
    at = 0
    while not numbers or len(numbers) <= numbers[0]:
        number = shift = 0
        while True:
            if at >= len(data) or shift >= 7 * VARINT:
                return (), 0
            number |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 0x80:
                break
        numbers.append((number >> 1) ^ -(number & 1))
    return (tuple(numbers[1:]) or (0,)) if numbers[0] >= 0 else (), at
