"""Pour a year of real flights through a Spark DataFrame into 16 partitions, and ask the log and pandas the same.

    make demo-spark                                 # or: python examples/flights_spark.py DIRECTORY

The data are those of flights.py. They go into a Parquet file, from there through `ks.ingest` into a topic, twice under
one transaction's name, and back through `ks.scan`; what Spark then says of each carrier is compared with pandas. Then
they arrive once more, as CSV files, and the streams of streams_spark.py take and count them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import streams_spark
from flights import FLIGHTS, Row, fetch_archive, read_flights, title
from pyspark.sql import functions as F

from kstore import spark as ks

# Java from the system, else from PyPI, as in the tests.
sys.path.append(str(Path(__file__).parents[1]))
from tests.spark.spark_session import start

PARTITIONS = 16
FILES = 6  # of the stream
SCHEMA = "carrier string, dep_delay double, distance double"


def main(directory: Path) -> None:
    began = time.perf_counter()
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "flights.parquet"
    rows = read_flights(fetch_archive(directory))
    keys, values, times, _ = zip(*rows, strict=True)
    stamps = pa.array(times, pa.timestamp("ms", tz="UTC"))
    pq.write_table(pa.table({"key": keys, "value": values, "timestamp": stamps}), source, row_group_size=1 << 16)
    root = directory / "spark"
    shutil.rmtree(root, ignore_errors=True)

    print("starting Spark", flush=True)
    spark = start(spark_driver_memory="1g")
    try:
        with progress(spark):
            pour(spark, source, root)
            found = ask(spark, root)
        compare(found, source)
        with progress(spark):
            stream(spark, rows, directory / "streams")
    finally:
        spark.stop()
    print(f"\n{time.perf_counter() - began:.0f} s in all; the topic is in {root}. Try:\n")
    print(f"  .venv/bin/kstore describe {root}")
    print(f"  .venv/bin/kstore describe {directory / 'streams' / 'data'}      # with the position of the second stream")
    print(f"  .venv/bin/kstore cat {root}/flights-3 --from 2013-07-04 --max 3")


def pour(spark: Any, source: Path, root: Path) -> None:
    """Ingest the flights, and again under the same name."""
    title(f"Ingest: a DataFrame into a topic of {PARTITIONS} partitions, exactly once")
    frame = spark.read.parquet(str(source)).select(
        F.expr("concat(CAST(key AS string), get_json_object(CAST(value AS string), '$.flight'))").alias("key"),
        "value",
        "timestamp",
    )
    for attempt in ("first", "again"):
        start_s = time.perf_counter()
        report = ks.ingest(frame, root, topic="flights", partitions=PARTITIONS, txn=("flights-demo", 1))
        took = time.perf_counter() - start_s
        if report.duplicate:
            print(f"{attempt}: the transaction is there already, nothing was written ({took:.2f} s)")
        else:
            written = f"{report.records:,} records, {report.bytes / 1e6:.1f} MB, in {len(report.offsets)} partitions"
            print(f"{attempt}: {written} ({took:.2f} s)")


def ask(spark: Any, root: Path) -> pd.DataFrame:
    """The figures of each carrier from the log."""
    title("Scan: the columns key and value, parsed and aggregated by Spark")
    start_s = time.perf_counter()
    scanned = ks.scan(spark, root, subscribe="flights", columns=("value",))
    parsed = scanned.selectExpr(f"from_json(CAST(value AS string), '{SCHEMA}') AS flight").select("flight.*")
    found: pd.DataFrame = (
        parsed.groupBy("carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"), F.sum("distance").alias("distance"))
        .orderBy("carrier")
        .toPandas()
    )
    print(f"{found['flights'].sum():,} flights of {len(found)} carriers ({time.perf_counter() - start_s:.2f} s)")
    return found


def compare(found: pd.DataFrame, source: Path) -> None:
    """The same from pandas alone, which has read no log."""
    flights = pd.DataFrame(map(json.loads, pq.read_table(source)["value"].to_pylist()))
    groups = flights.groupby("carrier")
    expected = pd.DataFrame(
        {
            "flights": groups.size(),
            "delay": groups["dep_delay"].mean(),
            "distance": groups["distance"].sum().astype(float),
        }
    ).reset_index()
    pd.testing.assert_frame_equal(found[list(expected)], expected, check_dtype=False)
    assert found["flights"].sum() == FLIGHTS
    print(found.sort_values("flights", ascending=False).head(5).to_string(index=False, float_format="{:,.1f}".format))
    print("pandas says the same of all carriers")


def stream(spark: Any, rows: list[Row], directory: Path) -> None:
    """Let the flights arrive in files of two months, and stop the streams in the middle."""
    title("Streams: CSV files into a topic, and its flights per carrier and day into another one")
    shutil.rmtree(directory, ignore_errors=True)
    start_s = time.perf_counter()
    flights = [
        (carrier.decode(), json.loads(value)["distance"], datetime.fromtimestamp(ms / 1000, UTC))
        for carrier, value, ms, _ in rows
    ]
    size = -(-len(flights) // FILES)
    streams_spark.run(spark, directory, [flights[at : at + size] for at in range(0, len(flights), size)])
    print(f"{time.perf_counter() - start_s:.2f} s")


@contextlib.contextmanager
def progress(spark: Any) -> Iterator[None]:
    """Print a line that says how many tasks are done, while Spark works, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def show() -> None:
        while not over.wait(0.2):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            text = ", ".join(f"{each.numCompletedTasks} of {each.numTasks} tasks" for each in stages if each)
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        over.set()
        shower.join()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
