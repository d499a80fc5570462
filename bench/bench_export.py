"""How fast do files get into a log and out of it? `kstore ingest` and `kstore export` beside others.

Workloads: `random`, values-100 of `common` with keys of 16 bytes; `rows`, the rows of a table of nine columns as JSON,
about 130 bytes each, as ingesting whole rows makes them. Logs and source files are in the page cache; every contestant
syncs what it writes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common import MIB, Question, measure, scaled, settle
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore import cli

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
arrow_csv = pytest.importorskip("pyarrow.csv")

ROWS = scaled(1_000_000)
FROM_MEMORY = "PyArrow, the same table from memory"
PYTHON_JSON = "json.dumps of each record"
PYTHON_CSV = "csv, json.dumps, append_many"
READ = "PyArrow, reading the file alone"
SHAPES = ("random", "rows")


def exporting(shape: str) -> Question:
    return Question(f"log to Parquet, {shape}", "rate", None, ((FROM_MEMORY, 0.7),))


LINES = Question("log to JSON lines, rows", "rate", None, ((PYTHON_JSON, 3.0),))
ROWS_AS_JSON = Question("CSV into a topic of 4 partitions, whole rows as JSON", "rate", None, ((PYTHON_CSV, 3.0),))
FROM_PARQUET = Question("Parquet into a topic of 4 partitions, whole rows as JSON", "rate")


def run(*arguments: object) -> None:
    """One run of the command line, in this process."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main([str(each) for each in arguments]) == 0


def table(rows: int) -> Any:
    """Flights, more or less."""
    random = np.random.default_rng(1)

    def one_of(names: str) -> Any:
        words = names.split()
        return pa.DictionaryArray.from_arrays(random.integers(0, len(words), rows), words).dictionary_decode()

    return pa.table(
        {
            "year": np.full(rows, 2013), "month": random.integers(1, 13, rows), "day": random.integers(1, 29, rows),
            "dep_delay": random.integers(-20, 300, rows), "distance": random.random(rows) * 3000,
            "carrier": one_of("UA AA DL B6"), "origin": one_of("JFK LGA EWR"),
            "tailnum": pa.array([f"N{number}" for number in random.integers(10_000, 99_999, rows)]),
            "time": pa.array(np.arange(rows) * 1000 + 1_370_000_000_000).cast(pa.timestamp("ms")),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log of each shape, and the table as files."""
    root = tmp_path_factory.mktemp("logs")
    found = table(ROWS)
    arrow_csv.write_csv(found, root / "rows.csv")
    pq.write_table(found, root / "rows.parquet")
    run("ingest", root / "rows.parquet", "--to", root, "--topic", "rows", "--key-column", "tailnum")
    random = np.random.default_rng(2)
    with kstore.Log.open(root / "random-0") as log:
        values, keys = (random.integers(0, 256, (ROWS, size), np.uint8) for size in (100, 16))
        log.append_columns(values, keys=keys, batch_bytes=MIB)
    settle(root)
    return root


def size_of(logs: Path, shape: str) -> int:
    return sum(path.stat().st_size for path in (logs / f"{shape}-0").glob("*.log"))


@pytest.mark.parametrize("shape", SHAPES)
def test_export_to_parquet(benchmark: BenchmarkFixture, logs: Path, tmp_path: Path, shape: str) -> None:
    measure(
        benchmark, exporting(shape), "kstore",
        lambda: run("export", logs / f"{shape}-0", "--to", tmp_path / "x.parquet", "--force"),
        operations=ROWS, size_bytes=size_of(logs, shape),
    )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_pyarrow_from_memory(benchmark: BenchmarkFixture, logs: Path, tmp_path: Path, shape: str) -> None:
    run("export", logs / f"{shape}-0", "--to", tmp_path / "x.parquet")
    group = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).num_rows
    found = pq.read_table(tmp_path / "x.parquet")

    def write() -> None:
        pq.write_table(found, tmp_path / "y.parquet", row_group_size=group)
        sync(tmp_path / "y.parquet")

    measure(benchmark, exporting(shape), FROM_MEMORY, write, operations=ROWS, size_bytes=size_of(logs, shape))


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def test_export_to_json_lines(benchmark: BenchmarkFixture, logs: Path, tmp_path: Path) -> None:
    measure(
        benchmark, LINES, "kstore",
        lambda: run("export", logs / "rows-0", "--to", tmp_path / "x.jsonl", "--force"),
        operations=ROWS, size_bytes=size_of(logs, "rows"),
    )  # fmt: skip


def test_json_of_each_record(benchmark: BenchmarkFixture, logs: Path, tmp_path: Path) -> None:
    rows = ROWS // 5

    def write() -> None:
        with kstore.Log.open(logs / "rows-0", "r") as log, (tmp_path / "y.jsonl").open("w") as file:
            for record in log.read(end_offset=rows):
                offset, timestamp, key, value, headers = record
                line = {
                    "topic": "rows", "partition": 0, "offset": offset, "timestamp": timestamp,
                    "key": None if key is None else key.decode(), "value": None if value is None else value.decode(),
                    "headers": list(headers),
                }  # fmt: skip
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    measure(benchmark, LINES, PYTHON_JSON, write, operations=rows, size_bytes=size_of(logs, "rows") // 5, rounds=3)


def emptied(path: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(path, ignore_errors=True)


def options(path: Path) -> list[object]:
    return ["--to", path, "--topic", "t", "--partitions", 4, "--key-column", "tailnum", "--timestamp-column", "time"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ingest(benchmark: BenchmarkFixture, logs: Path, tmp_path: Path, kind: str) -> None:
    file = logs / f"rows.{kind}"
    measure(
        benchmark, ROWS_AS_JSON if kind == "csv" else FROM_PARQUET, "kstore",
        lambda: run("ingest", file, *options(tmp_path / "store")),
        operations=ROWS, size_bytes=file.stat().st_size, setup=emptied(tmp_path / "store"),
    )  # fmt: skip


def test_csv_in_python(benchmark: BenchmarkFixture, logs: Path, tmp_path: Path) -> None:
    rows = ROWS // 5

    def load() -> None:
        with kstore.Store.open(tmp_path / "store", background=False) as store, (logs / "rows.csv").open() as file:
            store.create_topic("t", 4)
            found = (row for row, _ in zip(csv.DictReader(file), range(rows), strict=False))
            store.append_many(
                "t",
                ((row["tailnum"].encode(), json.dumps(row, ensure_ascii=False).encode()) for row in found),
                sync=True,
            )

    measure(
        benchmark, ROWS_AS_JSON, PYTHON_CSV, load, operations=rows,
        size_bytes=(logs / "rows.csv").stat().st_size // 5, setup=emptied(tmp_path / "store"), rounds=3,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_reading_alone(benchmark: BenchmarkFixture, logs: Path, kind: str) -> None:
    file = logs / f"rows.{kind}"
    read = arrow_csv.read_csv if kind == "csv" else pq.read_table
    measure(
        benchmark, ROWS_AS_JSON if kind == "csv" else FROM_PARQUET, READ, lambda: read(file),
        operations=ROWS, size_bytes=file.stat().st_size,
    )  # fmt: skip
