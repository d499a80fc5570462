"""Joins, top-N, LIMIT and dynamic filters: each engine gets from datasets what it gets from tables in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.compute as pc
import pytest

import kstore
from tests.conftest import SEED
from tests.support import predicates


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engines")
    predicates.fill(path, int(SEED, 16))
    return path


@pytest.fixture(scope="module")
def events(root: Path) -> Any:
    return kstore.dataset(root, "events", max_lateness=predicates.LATENESS)


@pytest.fixture(scope="module")
def table(events: Any) -> Any:
    return events.to_table()


@pytest.fixture
def engine() -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.sql("create table few as select '\\x61'::blob as key, 7 as n union all select 'k1'::blob, 8")
        yield connection


QUERIES = {
    "join": 'select n, count(*), sum("offset") from given join few using (key) group by n order by n',
    "join on itself": """
        select count(*) from given a join given b on a.key = b.key and a.partition = b.partition
        where a."offset" < 30 and b."offset" between 10 and 50
    """,
    "semi join": "select count(*) from given where key in (select key from few)",
    "anti join": "select count(*) from given where key not in (select key from few) or key is null",
    "left join": 'select count(n), count(*) from given left join few using (key) where "offset" % 3 = 0',
    "greatest": 'select partition, "offset" from given order by timestamp desc, partition, "offset" limit 5',
    "least": 'select partition, "offset" from given where key is not null order by key, partition, "offset" limit 7',
    "limit": 'select count(*) from (select * from given where "offset" > 20 limit 11)',
    "limit and offset": "select count(*) from (select * from given limit 11 offset 700)",
    "greatest value": 'select max(timestamp), min("offset"), max(key) from given where partition = 1',
    "newest of each key": """
        select key, partition, "offset" from given
        qualify row_number() over (partition by key order by timestamp desc, partition, "offset") = 1 order by key
    """,
    "bounds from a table": """
        select count(*) from given, (select min(timestamp) as first from given where partition = 2) as least
        where given.timestamp <= least.first + interval 20 second
    """,
    "distinct": "select count(distinct key), approx_count_distinct(partition) from given where timestamp_type = 0",
    "union": "select count(*) from (select key from given where partition = 0 union all select key from given)",
}


@pytest.mark.parametrize("name", QUERIES)
def test_duckdb_answers_as_it_does_over_a_table(engine: Any, events: Any, table: Any, name: str) -> None:
    found, wanted = (engine.sql(QUERIES[name]).fetchall() for given in (events, table) if given is not None)
    assert found == wanted


def test_duckdb_answers_the_same_in_one_thread_and_with_prepared_values(engine: Any, events: Any, table: Any) -> None:
    query = 'select count(*) from given where "offset" < ? and key = ?'
    answers = []
    for threads in (1, 4):
        engine.sql(f"set threads = {threads}")
        for given in (events, table):
            assert given is not None
            answers.append(engine.execute(query, [40, b"k1"]).fetchall())
    assert answers == [answers[0]] * 4


LAZY = {
    "join": lambda lf: lf.join(pl.LazyFrame({"key": [b"a", b"k1"], "n": [7, 8]}), on="key").group_by("n").len(),
    "semi join": lambda lf: lf.join(pl.LazyFrame({"key": [b"a"]}), on="key", how="semi").select(pl.len()),
    "join on itself": lambda lf: (
        lf.filter(pl.col("offset") < 30)
        .join(lf.filter(pl.col("offset").is_between(10, 50)), on=["key", "partition"])
        .select(pl.len())
    ),
    "greatest": lambda lf: lf.top_k(5, by=["timestamp", "partition", "offset"]).select("partition", "offset"),
    "head": lambda lf: lf.head(9).select("partition", "offset"),
    "slice": lambda lf: lf.slice(650, 20).select("partition", "offset"),
    "tail": lambda lf: lf.tail(4).select("partition", "offset"),
    "head of a condition": lambda lf: lf.filter(pl.col("offset") > 20).head(6).select("partition", "offset"),
    "condition on a head": lambda lf: lf.head(50).filter(pl.col("offset") > 20).select("partition", "offset"),
    "newest of each key": lambda lf: (
        lf.sort("timestamp", "partition", "offset")
        .unique("key", keep="last", maintain_order=True)
        .select("key", "offset")
    ),
    "no column": lambda lf: lf.select(pl.len()),
    "row numbers": lambda lf: lf.with_row_index("row").filter(pl.col("row") == 100).select("partition", "offset"),
}


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("name", LAZY)
def test_polars_answers_as_it_does_over_a_frame(root: Path, table: Any, name: str, engine: Any) -> None:
    whole: Any = pl.from_arrow(table)
    wanted = LAZY[name](whole.lazy()).collect()
    lazy = kstore.scan_polars(root, "events", max_lateness=predicates.LATENESS)
    found = LAZY[name](lazy).collect(engine=engine)
    assert sorted(found.rows(), key=repr) == sorted(wanted.rows(), key=repr)


def test_pandas_gets_a_part_of_a_dataset(events: Any, table: Any) -> None:
    condition = (pc.field("partition") == 1) & (pc.field("offset") < 20)
    frame = events.to_table(columns=["key", "timestamp"], filter=condition).to_pandas()
    assert len(frame) == table.filter(condition).num_rows
    assert str(frame["timestamp"].dtype) == "datetime64[ms, UTC]"


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from given",
        'select partition, count(*), max("offset") from given where "offset" < 20 group by partition order by 1',
        "select count(*) from given where key = X'6131' or key = X'61'",
        "select count(*) from given where timestamp < to_timestamp_millis(1700000060000) and value is not null",
        'select partition, "offset" from given order by timestamp, partition, "offset" limit 7',
    ],
)
def test_datafusion_answers_as_it_does_over_a_table(events: Any, table: Any, query: str) -> None:
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext()
    context.register_dataset("given", events)
    found = context.sql(query).to_pydict()
    context.deregister_table("given")
    context.register_record_batches("given", [table.to_batches()])
    assert found == context.sql(query).to_pydict()
