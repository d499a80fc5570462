"""The columns of a load and their types, and the conversion of Python rows and pandas frames.

Names, types and error texts are those of Spark's Kafka sink. Invariant: ambiguous input (a name twice, a timestamp that
means "none" in Kafka) is refused.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kstore.base import arguments, optional
from kstore.errors import ConfigError, InvalidColumnError, InvalidTimestampError
from kstore.spark.option_reader import COLUMN_TYPES

BLOCK_ROWS = 10_000  # rows of Python objects that are converted to columns at a time
BLOCK_BYTES = 16 << 20

_BYTES = ("string", "binary")
TYPES = {"value": _BYTES, "key": _BYTES} | {
    name: (COLUMN_TYPES[name],) for name in ("headers", "topic", "partition", "timestamp")
}
"""The columns of a load, and Spark's names of the types that each may have."""
COLUMNS = tuple(TYPES)

Types = Mapping[str, str] | Iterable[tuple[str, str | None]]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def check(types: Types, *, wants_topic: bool) -> None:
    """Raise `ConfigError` for a missing column, a wrong type, or two columns with the same known name.

    `types` are names with Spark's simple type names (None for a type that is not known yet). Columns with other names
    are ignored, as in Spark's sink.
    """
    pairs = list(types.items() if isinstance(types, Mapping) else types)
    check_once(name for name, _ in pairs)
    by_name = dict(pairs)
    if "value" not in by_name:
        raise no_value()
    if wants_topic and "topic" not in by_name:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    for name, wanted in TYPES.items():
        kind = by_name.get(name)
        if kind is not None and kind.lower().replace(" ", "") not in (*wanted, "void"):
            raise _wrong_type(name, kind)


def check_once(names: Iterable[Any]) -> None:
    for name, count in Counter(names).items():
        if count > 1 and name in TYPES:
            raise ConfigError(f"there are {count} columns of the name {name!r}, and each may be there once")


def no_value() -> ConfigError:
    return ConfigError("Required attribute 'value' not found.")


def _wrong_type(name: str, kind: str) -> ConfigError:
    wanted = " or ".join(allowed.upper() for allowed in TYPES[name])
    return ConfigError(f"{name} attribute unsupported type {kind.upper()}. {name} must be a(n) {wanted}.")


def simple_name(pa: Any, kind: Any) -> str:
    """Return Spark's name of an Arrow type; for a type that no column may have, return Arrow's name."""
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
        inner = ",".join(f"{child.name}:{simple_name(pa, child.type)}" for child in kind.value_type)
        return f"array<struct<{inner}>>"
    return str(kind)


def check_stamps(pa: Any, stamps: Any, first: int) -> None:
    """Raise `InvalidTimestampError` for a time before 1970 in an Arrow column; errors count rows from `first`.

    Kafka has no times before 1970: the last millisecond before 1970 is -1, which means "no timestamp".
    """
    if not pa.types.is_timestamp(stamps.type):
        return
    pc = optional.pyarrow("a column of timestamps", "compute", extra="spark").compute
    numbers = stamps.view(pa.int64())
    least = pc.min(numbers).as_py()
    if least is not None and least < 0:
        row = first + pc.index(pc.less(numbers, 0), True).as_py()
        raise _too_early(row, f"{numbers[row - first].as_py()} {stamps.type.unit} from 1970 on")


def _too_early(row: int, shown: str) -> InvalidTimestampError:
    return InvalidTimestampError(
        f"timestamp of row {row} is {shown}: Kafka has no times before 1970",
        record_errors=((row, "timestamp before 1970"),),
    )


def from_pandas(pa: Any, frame: Any) -> Any:
    """Convert a pandas frame to a record batch.

    A column `partition` may have integers of another width, or floats (pandas: if numbers are missing). Datetimes
    without a zone are refused, because kstore would have to guess the zone.
    """
    check_once(frame.columns)
    batch = pa.RecordBatch.from_pandas(frame, preserve_index=False)
    place = batch.schema.get_field_index("partition")
    column = batch.column(place) if place >= 0 else None
    if column is None or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return batch
    try:
        return batch.set_column(place, "partition", column.cast(pa.int32()))
    except pa.ArrowInvalid as error:
        raise InvalidColumnError(f"column partition: {error}; whole numbers of 32 bits are taken") from None


@dataclass(slots=True)
class Row:
    """One row: a record, and its topic and partition if they are given."""

    value: Any
    key: Any = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Any = None
    topic: str | None = None


def blocks(items: Iterable[Any]) -> Iterator[list[Row]]:
    """Yield rows in blocks of at most `BLOCK_ROWS` and about `BLOCK_BYTES`."""
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
    """Make one row; raise `TypeError` if `item` cannot be a row."""
    if isinstance(item, bytes | bytearray | memoryview) or item is None:
        return Row(item)
    if not isinstance(item, tuple):
        raise TypeError(f"a row is bytes, a tuple, or a Row of Spark's, not {type(item).__name__}")
    if named := getattr(item, "__fields__", None):  # one of Spark's Rows
        fields = dict(zip(named, item, strict=True))
        if len(fields) < len(named):
            check_once(named)
        if "value" not in fields:
            raise no_value()
    elif 2 <= len(item) <= 5:
        fields = dict(zip(("key", "value", "partition", "timestamp", "headers"), item, strict=False))
    else:
        raise TypeError(
            f"a tuple of {len(item)}; rows are (key, value[, partition[, timestamp[, headers]]]), by position"
        )
    partition, headers = fields.get("partition"), fields.get("headers")
    return Row(
        _data("value", fields["value"]),
        _data("key", fields.get("key")),
        None if partition is None else arguments.integer("partition", partition, low=0),
        _stamp(fields.get("timestamp"), number),
        None if not headers else [(name, value) for name, value in headers],
        fields.get("topic"),
    )


def _data(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return value
    raise _wrong_type(name, type(value).__name__)


def _stamp(timestamp: Any, number: int) -> int | None:
    """Return milliseconds, or None for None; a datetime without a zone comes from Spark, in this machine's zone."""
    if isinstance(timestamp, datetime.datetime):
        milliseconds = (timestamp.astimezone(datetime.UTC) - _EPOCH) // _MILLISECOND
        if milliseconds < 0:
            raise _too_early(number, str(timestamp))
        return milliseconds
    return None if timestamp is None else arguments.whole("timestamp", timestamp)
