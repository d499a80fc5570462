"""Engines get the same rows from a dataset, into which they push conditions, as from the whole table in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st

import kstore
from kstore.datasets import table_scan
from kstore.datasets.pruning import Condition as Pruned
from kstore.datasets.pruning import Interval
from tests.conftest import SEED, examples
from tests.support import predicates
from tests.support.predicates import LATENESS, Condition, conditions

WAYS: dict[str, dict[str, Any]] = {
    "nothing promised": {},
    "committed": {"isolation": "read_committed"},
    "late by a known time": {"max_lateness": LATENESS},
    "partitioned by key": {"partitioned_by_key": True, "max_lateness": LATENESS},
    "latest": {"latest": True},
}
SOME = st.sampled_from([["offset"], ["partition"], ["value", "offset"], ["headers", "key"], ["timestamp", "partition"]])


@dataclass
class Asked:
    """A dataset and a frame of Polars, and all their rows in memory."""

    dataset: Any
    frame: Any
    table: Any


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("asked")
    predicates.fill(path, int(SEED, 16))
    return path


@pytest.fixture(scope="module", params=WAYS)
def asked(root: Path, request: pytest.FixtureRequest) -> Iterator[Asked]:
    how = WAYS[request.param]
    dataset = kstore.dataset(root, "events", **how)
    with pytest.MonkeyPatch.context() as patch:
        if request.param in ("nothing promised", "partitioned by key"):
            patch.setattr(table_scan, "TOGETHER", 0)  # piece by piece, as many rows are
        yield Asked(dataset, kstore.scan_polars(root, "events", **how), dataset.to_table())


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with duckdb.connect() as connection:
        yield connection


def skip_unknown(asked: Asked, condition: Condition) -> None:
    """Skip a condition on a column that the newest record of each key does not have."""
    assume("timestamp_type" in asked.dataset.schema.names or "timestamp_type" not in condition.sql)


def ordered(table: Any) -> list[Any]:
    """Rows in a fixed order, whatever columns they have."""
    return sorted(table.to_pylist(), key=repr)


@given(condition=conditions(), columns=SOME)
@examples(0.6)
def test_duckdb_gets_the_rows_of_the_whole_table(
    asked: Asked, engine: Any, condition: Condition, columns: list[str]
) -> None:
    skip_unknown(asked, condition)
    chosen = ", ".join(f'"{name}"' for name in columns)
    found, wanted = (
        engine.sql(f"select {chosen} from given where {condition.sql}").to_arrow_table()
        for given in (asked.dataset, asked.table)
    )
    assert ordered(found) == ordered(wanted)


@given(condition=conditions())
@examples(0.3)
def test_duckdb_counts_and_groups_the_rows_of_the_whole_table(asked: Asked, engine: Any, condition: Condition) -> None:
    skip_unknown(asked, condition)
    found, wanted = (
        engine.sql(
            f'select partition, count(*), sum("offset"), min(timestamp) from given where {condition.sql} group by 1'
        ).fetchall()
        for given in (asked.dataset, asked.table)
    )
    assert sorted(found) == sorted(wanted)


@given(condition=conditions(), columns=SOME)
@examples(0.6)
def test_polars_gets_the_rows_of_the_whole_table(asked: Asked, condition: Condition, columns: list[str]) -> None:
    skip_unknown(asked, condition)
    whole: Any = pl.from_arrow(asked.table)
    wanted = whole.lazy().filter(condition.polars).select(columns).collect()
    found = asked.frame.filter(condition.polars).select(columns).collect()
    assert ordered(found.to_arrow()) == ordered(wanted.to_arrow())


@given(condition=conditions(), columns=SOME)
@examples(0.3)
def test_polars_scans_the_dataset_for_the_same_rows(asked: Asked, condition: Condition, columns: list[str]) -> None:
    skip_unknown(asked, condition)
    whole: Any = pl.from_arrow(asked.table)
    wanted = whole.lazy().filter(condition.polars).select(columns).collect()
    found = pl.scan_pyarrow_dataset(asked.dataset).filter(condition.polars).select(columns).collect()
    assert ordered(found.to_arrow()) == ordered(wanted.to_arrow())


@given(condition=conditions(), columns=SOME)
@examples(0.6)
def test_pyarrow_gets_the_rows_of_the_whole_table(asked: Asked, condition: Condition, columns: list[str]) -> None:
    skip_unknown(asked, condition)
    try:
        wanted = asked.table.filter(condition.pyarrow).select(columns)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:  # PyArrow has no function for these types
        with pytest.raises(type(error)):
            asked.dataset.to_table(columns=columns, filter=condition.pyarrow)
        return
    assert ordered(asked.dataset.to_table(columns=columns, filter=condition.pyarrow)) == ordered(wanted)
    assert asked.dataset.count_rows(filter=condition.pyarrow) == wanted.num_rows


@given(condition=conditions())
@examples(2)
def test_an_interval_contains_every_value_that_a_filter_selects(root: Path, condition: Condition) -> None:
    table = kstore.dataset(root, "events").to_table()
    try:
        selected = table.filter(condition.pyarrow)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return
    asked = Pruned(table.schema, condition.pyarrow)
    note(f"{asked.times()} {asked.offsets(Interval(-10, 1000))} {asked.keys()}")
    for column, intervals in (("timestamp", asked.times()), ("offset", asked.offsets(Interval(-10, 1000)))):
        for value in selected[column].cast(pa.int64()).to_pylist():
            assert any(low <= value <= high for low, high in intervals)
    keys = asked.keys()
    assert keys is None or set(selected["key"].to_pylist()) <= set(keys)


LEAST, MOST = -(2**63), 2**63 - 1
TIME = pc.field("timestamp")


def at(milliseconds: float, unit: str = "ms") -> Any:
    factor = {"s": 1000, "ms": 1, "us": 0.001, "ns": 0.000001}[unit]
    return pa.scalar(round(milliseconds / factor), pa.timestamp(unit, "UTC"))


FORMS = [
    (at(5000) == TIME, [(5000, 5000)]),
    (at(5000) > TIME, [(LEAST, 4999)]),
    ((at(5000) <= TIME) & (at(6000) > TIME), [(5000, 5999)]),
    (~((at(5000) < TIME) & (at(6000) > TIME)), [(LEAST, 5000), (6000, MOST)]),
    (TIME.isin(pa.array([5000, 7000], pa.timestamp("ms", "UTC"))), [(5000, 5000), (7000, 7000)]),
    ((at(5000) == TIME) | (at(9000) < TIME), [(5000, 5000), (9001, MOST)]),
    (at(5000.5, "us") <= TIME, [(5000, MOST)]),
    (at(5000.000001, "ns") > TIME, [(LEAST, 5000)]),
    (at(5000, "s") > TIME, [(LEAST, 4999)]),
    ((at(5000) < TIME) & (pc.binary_length(pc.field("key")) > 3), [(5001, MOST)]),
    (TIME.is_null(), []),
    (at(5000) != TIME, [(LEAST, MOST)]),
]


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_each_form_of_condition_narrows_the_times(root: Path, number: int) -> None:
    expression, intervals = FORMS[number]
    assert Pruned(kstore.dataset(root, "events").schema, expression).times() == intervals


def test_constants_of_duckdb_and_polars_narrow_the_offsets(root: Path, engine: Any) -> None:
    dataset = kstore.dataset(root, "events")
    seen = []

    class Watched(type(dataset)):  # type: ignore[misc]
        def scanner(self, columns: Any = None, filter: Any = None, **how: Any) -> Any:
            seen.append(Pruned(self.schema, filter).offsets(Interval(0, 10**6)))
            return super().scanner(columns, filter, **how)

    watched = Watched(dataset._table)
    engine.sql('select count(*) from watched where "offset" in (3, 900)').fetchall()
    pl.scan_pyarrow_dataset(watched).filter(pl.col("offset").is_in([3, 900])).collect()
    assert [list(map(tuple, each)) for each in seen] == [[(3, 3), (900, 900)]] * 2
