"""Random conditions over the rows of a dataset, each written for DuckDB, Polars and PyArrow; and logs to ask.

The logs are hard to prune: timestamps are out of order, some records have no key or value, segments and batches are
small, and transactions are open and aborted.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import kstore

T = 1_700_000_000_000
PARTITIONS = 3
LATENESS = 40_000
KEYS = [b"", b"a", b"ab", b"b", b"k1", b"k2", b"k3", b"\x00", b"\xff\xfe", b"zz"]
VALUES = [b"", b"1", b"22", b"333", b'{"a": 1}', b"\x00\xff", b"x" * 300]
ZONES = [UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))]


def fill(root: Path, seed: int) -> None:
    """Write a topic `events` of three partitions whose records are late by at most LATENESS."""
    choose = random.Random(seed)
    with kstore.Store.open(root) as store:
        store.create_topic("events", partitions=PARTITIONS, config={"segment.bytes": 6000, "index.interval.bytes": 300})
        now = T
        for _ in range(60):
            now += choose.choice([0, 1, 500, 20_000])
            records = [
                (
                    choose.choice([None, *KEYS]),
                    choose.choice([None, *VALUES]),
                    now - choose.choice([0, 0, 0, choose.randrange(LATENESS)]),
                    [("h", b"1")] if choose.random() < 0.2 else [],
                )
                for _ in range(choose.randrange(1, 30))
            ]
            store.append_many("events", records, compression=choose.choice([None, "zstd", "lz4"]))
        for number in range(4):
            with suppress(Aborted), store.producer(transactional_id="t").transaction() as transaction:
                for key in KEYS:
                    transaction.append("events", b"in a transaction", key, timestamp=now)
                if number % 2:
                    raise Aborted


class Aborted(Exception):
    """Ends a transaction."""


@dataclass(frozen=True)
class Condition:
    """One condition, as each engine writes it."""

    sql: str
    polars: Any
    pyarrow: Any

    def __repr__(self) -> str:
        return self.sql


def blob(value: bytes) -> str:
    return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::blob"


def moment(milliseconds: int, microseconds: int, zone: timezone) -> datetime:
    return (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds, microseconds=microseconds)
    ).astimezone(zone)


OPERATORS = {
    "=": (lambda a, b: a == b),
    "!=": (lambda a, b: a != b),
    "<": (lambda a, b: a < b),
    "<=": (lambda a, b: a <= b),
    ">": (lambda a, b: a > b),
    ">=": (lambda a, b: a >= b),
}


@st.composite
def times(draw: st.DrawFn) -> tuple[datetime, str]:
    """A time near those of the records, of any zone, perhaps between two milliseconds; and its unit in PyArrow."""
    at = draw(st.integers(T - 60_000, T + 400_000))
    unit = draw(st.sampled_from(["ms", "us", "ns"]))
    micros = draw(st.sampled_from([0, 0, 1, 999])) if unit != "ms" else 0
    far = draw(st.sampled_from([None] * 12 + [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]))
    if far is not None:
        return far, "us"
    return moment(at, micros, draw(st.sampled_from(ZONES))), unit


def sql_time(when: datetime) -> str:
    return f"timestamptz '{when.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00'".replace("'1-", "'0001-")


@st.composite
def leaves(draw: st.DrawFn) -> Condition:
    kind = draw(
        st.sampled_from(["int", "int", "in", "time", "time", "time in", "bytes", "bytes in", "null", "function"])
    )
    name = draw(st.sampled_from(["partition", "offset", "timestamp_type"]))
    operator = draw(st.sampled_from(list(OPERATORS)))
    compare = OPERATORS[operator]
    numbers = {"partition": st.integers(-1, 3), "offset": st.integers(-5, 500), "timestamp_type": st.integers(-1, 1)}
    if kind == "int":
        number = draw(numbers[name])
        width = (
            draw(st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()]))
            if -128 <= number < 128
            else pa.int64()
        )
        cast = draw(st.sampled_from(["", "::smallint", "::bigint", "::hugeint", "::double"]))
        literal = draw(st.sampled_from([pl.lit(number), pl.lit(number, dtype=pl.Int64), pl.lit(float(number))]))
        return Condition(
            f'"{name}" {operator} {number}{cast}',
            compare(pl.col(name), literal),
            compare(pc.field(name), pa.scalar(number, width)),
        )
    if kind == "in":
        chosen = draw(st.lists(numbers[name], min_size=1, max_size=5))
        return Condition(
            f'"{name}" in ({", ".join(map(str, chosen))})',
            pl.col(name).is_in(chosen),
            pc.field(name).isin(chosen),
        )
    if kind == "time":
        when, unit = draw(times())
        return Condition(
            f"timestamp {operator} {sql_time(when)}",
            compare(pl.col("timestamp"), pl.lit(when.astimezone(UTC))),
            compare(pc.field("timestamp"), pa.scalar(when, pa.timestamp(unit if when.year < 2200 else "us", "UTC"))),
        )
    if kind == "time in":
        chosen_times = [T + 500 * step for step in draw(st.lists(st.integers(0, 400), min_size=1, max_size=4))]
        whens = [moment(each, 0, UTC) for each in chosen_times]
        return Condition(
            f"timestamp in ({', '.join(map(sql_time, whens))})",
            pl.col("timestamp").is_in(pl.Series(whens, dtype=pl.Datetime("ms", "UTC")).implode()),
            pc.field("timestamp").isin(pa.array(whens, pa.timestamp("ms", "UTC"))),
        )
    column, known = draw(st.sampled_from([("key", KEYS), ("value", VALUES)]))
    if kind == "bytes":
        value = draw(st.sampled_from(known))
        return Condition(
            f"{column} {operator} {blob(value)}",
            compare(pl.col(column), pl.lit(value)),
            compare(pc.field(column), pa.scalar(value, draw(st.sampled_from([pa.binary(), pa.large_binary()])))),
        )
    if kind == "bytes in":
        several = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
        return Condition(
            f"{column} in ({', '.join(map(blob, several))})",
            pl.col(column).is_in(several),
            pc.field(column).isin(pa.array(several, pa.binary())),
        )
    if kind == "null":
        column = draw(st.sampled_from(["key", "value", "timestamp", "offset"]))
        if draw(st.booleans()):
            return Condition(f'"{column}" is null', pl.col(column).is_null(), pc.field(column).is_null())
        return Condition(f'"{column}" is not null', pl.col(column).is_not_null(), pc.field(column).is_valid())
    return draw(
        st.sampled_from(
            [
                Condition(
                    "octet_length(value) > 2",
                    pl.col("value").bin.size() > 2,
                    pc.binary_length(pc.field("value")) > 2,
                ),
                Condition('"offset" % 2 = 1', pl.col("offset") % 2 == 1, pc.bit_wise_and(pc.field("offset"), 1) == 1),
                Condition(
                    '"offset" + partition < 60',
                    pl.col("offset") + pl.col("partition") < 60,
                    pc.field("offset") + pc.field("partition") < 60,
                ),
                Condition(
                    "second(timestamp) < 20",
                    pl.col("timestamp").dt.second() < 20,
                    pc.second(pc.field("timestamp")) < 20,
                ),
                Condition("true", pl.lit(True), pc.scalar(True)),
                Condition("false", pl.lit(False), pc.scalar(False)),
            ]
        )
    )


def _and(one: Condition, other: Condition) -> Condition:
    return Condition(f"({one.sql} and {other.sql})", one.polars & other.polars, one.pyarrow & other.pyarrow)


def _or(one: Condition, other: Condition) -> Condition:
    return Condition(f"({one.sql} or {other.sql})", one.polars | other.polars, one.pyarrow | other.pyarrow)


def _not(one: Condition) -> Condition:
    return Condition(f"not ({one.sql})", ~one.polars, ~one.pyarrow)


def conditions() -> st.SearchStrategy[Condition]:
    """Random conditions: comparisons, IN, IS NULL, functions, and what AND, OR and NOT make of them."""
    return st.recursive(
        leaves(),
        lambda inner: st.one_of(
            st.builds(_and, inner, inner),
            st.builds(_and, inner, inner),
            st.builds(_or, inner, inner),
            st.builds(_not, inner),
        ),
        max_leaves=5,
    )
