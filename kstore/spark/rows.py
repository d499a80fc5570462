"""What a load may be given: which columns, of which types, and rows that are no record batches yet.

Names and types are those of Spark's Kafka sink, and `timestamp`; refusals are in its words. Frames of pandas become
record batches here, and Python objects blocks of `Row`s. Imports neither Spark nor PyArrow. The hardest rule: what
could be meant in two ways (a name twice, a moment that would read as none) is refused, not guessed.
"""

from __future__ import annotations

import datetime
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kstore import arguments
from kstore.errors import ConfigError, InvalidColumnError, InvalidTimestampError
from kstore.spark.options import COLUMN_TYPES

BLOCK_ROWS = 10_000  # of Rows, tuples and bytes, that become columns at a time
BLOCK_BYTES = 16 << 20

_BYTES = ("string", "binary")
TYPES = {"value": _BYTES, "key": _BYTES} | {
    name: (COLUMN_TYPES[name],) for name in ("headers", "topic", "partition", "timestamp")
}
"""The columns that a load takes, and Spark's names of the types that each may have."""
COLUMNS = tuple(TYPES)

Types = Mapping[str, str] | Iterable[tuple[str, str | None]]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def check(types: Types, *, wants_topic: bool) -> None:
    """Refuse columns that do not fit, by name and Spark's simple type name (None where it is not known yet).

    Raises `ConfigError`, also for a known name that is there twice. Columns of other names are left out, as Spark's
    sink leaves them out.
    """
    pairs = list(types.items() if isinstance(types, Mapping) else types)
    check_once(name for name, _ in pairs)
    known = dict(pairs)
    if "value" not in known:
        raise no_value()
    if wants_topic and "topic" not in known:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    for name, wanted in TYPES.items():
        found = known.get(name)
        if found is not None and found.lower().replace(" ", "") not in (*wanted, "void"):
            raise _wrong_type(name, found)


def check_once(given: Iterable[Any]) -> None:
    """Refuse names of which a known one is there more than once: nobody could say which column is meant."""
    for name, count in Counter(given).items():
        if count > 1 and name in TYPES:
            raise ConfigError(f"there are {count} columns of the name {name!r}, and each may be there once")


def no_value() -> ConfigError:
    """The refusal of rows without a column `value`."""
    return ConfigError("Required attribute 'value' not found.")


def _wrong_type(name: str, found: str) -> ConfigError:
    wanted = " or ".join(each.upper() for each in TYPES[name])
    return ConfigError(f"{name} attribute unsupported type {found.upper()}. {name} must be a(n) {wanted}.")


# Record batches.


def simple_name(pa: Any, kind: Any) -> str:
    """Spark's name for an Arrow type, else Arrow's own."""
    types = pa.types
    if types.is_null(kind):
        return "void"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_int32(kind):
        return "int"
    if types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if (types.is_list(kind) or types.is_large_list(kind)) and types.is_struct(kind.value_type):
        inner = ",".join(f"{each.name}:{simple_name(pa, each.type)}" for each in kind.value_type)
        return f"array<struct<{inner}>>"
    return str(kind)


def check_stamps(pa: Any, stamps: Any, first: int) -> None:
    """Refuse a moment before 1970 in an Arrow column of timestamps, whose row 0 is called row `first`.

    Kafka has no such times; the last millisecond before 1970 would read as "no timestamp".
    """
    if not pa.types.is_timestamp(stamps.type):
        return
    pc = importlib.import_module("pyarrow.compute")
    numbers = stamps.view(pa.int64())
    least = pc.min(numbers).as_py()
    if least is not None and least < 0:
        row = first + pc.index(pc.less(numbers, 0), True).as_py()
        raise _too_early(row, f"{numbers[row - first].as_py()} {stamps.type.unit} from 1970 on")


def _too_early(row: int, found: str) -> InvalidTimestampError:
    return InvalidTimestampError(
        f"timestamp of row {row} is {found}: Kafka has no times before 1970",
        record_errors=((row, "timestamp before 1970"),),
    )


def from_pandas(pa: Any, frame: Any) -> Any:
    """A frame of pandas as a record batch.

    pandas makes floats of whole numbers that may be missing: a column `partition` of those, or of integers of another
    width, is taken. Datetimes without a zone are not: they would have to be guessed about.
    """
    check_once(frame.columns)
    batch = pa.RecordBatch.from_pandas(frame, preserve_index=False)
    place = batch.schema.get_field_index("partition")
    if place < 0 or not (
        pa.types.is_integer(batch.column(place).type) or pa.types.is_floating(batch.column(place).type)
    ):
        return batch
    try:
        return batch.set_column(place, "partition", batch.column(place).cast(pa.int32()))
    except pa.ArrowInvalid as error:
        raise InvalidColumnError(f"column partition: {error}; whole numbers of 32 bits are taken") from None


# Rows that are Python objects.


@dataclass(slots=True)
class Row:
    """What becomes a record."""

    value: Any
    key: Any = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Any = None
    topic: str | None = None


def blocks(items: Iterable[Any]) -> Iterator[list[Row]]:
    """Rows in blocks that are bounded by their number and their bytes."""
    block: list[Row] = []
    size = 0
    for number, item in enumerate(items):
        row = _row(item, number)
        block.append(row)
        size += len(row.value or b"") + len(row.key or b"")
        if len(block) >= BLOCK_ROWS or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _row(item: Any, number: int) -> Row:
    """One row; `TypeError` that says what is taken."""
    if isinstance(item, bytes | bytearray | memoryview) or item is None:
        return Row(item)
    if isinstance(item, tuple):
        named = getattr(item, "__fields__", None)
        if named:  # a Row of Spark's
            found = dict(zip(named, item, strict=True))
            if len(found) < len(named):
                check_once(named)
            if "value" not in found:
                raise no_value()
            return Row(
                _data("value", found["value"]),
                _data("key", found.get("key")),
                _number(found.get("partition")),
                _stamp(found.get("timestamp"), number),
                _pairs(found.get("headers")),
                found.get("topic"),
            )
        if 2 <= len(item) <= 5:
            rest = (*item[2:], None, None, None)
            return Row(
                _data("value", item[1]),
                _data("key", item[0]),
                _number(rest[0]),
                _stamp(rest[1], number),
                _pairs(rest[2]),
            )
        raise TypeError(
            f"a tuple of {len(item)}; rows are (key, value[, partition[, timestamp[, headers]]]), by position"
        )
    raise TypeError(f"a row is bytes, a tuple, or a Row of Spark's, not {type(item).__name__}")


def _data(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return value
    raise _wrong_type(name, type(value).__name__)


def _number(partition: Any) -> int | None:
    return None if partition is None else arguments.integer("partition", partition, low=0)


def _stamp(timestamp: Any, number: int) -> int | None:
    """Milliseconds, -1 for none; a datetime without a zone is Spark's, in the zone of this machine."""
    if isinstance(timestamp, datetime.datetime):
        found = (timestamp.astimezone(datetime.UTC) - _EPOCH) // _MILLISECOND
        if found < 0:
            raise _too_early(number, str(timestamp))
        return found
    return None if timestamp is None else arguments.whole("timestamp", timestamp)


def _pairs(headers: Any) -> Any:
    return None if not headers else [(name, value) for name, value in headers]
