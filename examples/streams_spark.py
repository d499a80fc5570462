"""CSV files arrive, a stream takes them into a topic, another one counts per window: each row once, over restarts.

    python examples/streams_spark.py DIRECTORY      # make demo-spark runs it with a year of real flights

The first query is stopped while files are still unread. Then the rest arrives, and both queries go on from their
checkpoints. What the topics then hold is compared with the CSV files, which Python's csv reads.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import kstore

# Java from the system, else from PyPI, as in the tests.
sys.path.append(str(Path(__file__).parents[1]))
from tests.spark.spark_session import start, to_its_end

COLUMNS = ("carrier", "distance", "at")
Row = tuple[str, int, datetime]


def main(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    spark = start()
    try:
        run(spark, directory, made_up(4, 2000))
    finally:
        spark.stop()


def run(spark: Any, directory: Path, files: Sequence[Sequence[Row]]) -> None:
    """Run the pipeline over files that arrive one after the other; raise `AssertionError` if a row is lost or twice.

    Args:
        spark: A session whose tasks run on this machine.
        directory: An empty or missing directory for the files, the store and the checkpoints.
        files: The rows of each file; the times rise from file to file.
    """
    delay = timedelta(days=2 + max((rows[-1][2] - rows[0][2]).days for rows in files))
    half = (len(files) + 1) // 2
    arrive(directory, files[:half], 0)
    enough = sum(map(len, files[: half - 1]))
    to_its_end(
        lambda: pour(spark, directory, processingTime="0 seconds"),
        until=lambda: rows_in(directory, "flights") >= enough,
    )
    print(f"stopped: {rows_in(directory, 'flights'):,} rows are in the topic, and not all files are read")
    to_its_end(lambda: count(spark, directory, delay, availableNow=True))
    print(f"counted: {rows_in(directory, 'days'):,} days of carriers are over")

    arrive(directory, files[half:], half)
    to_its_end(lambda: pour(spark, directory, availableNow=True))
    to_its_end(lambda: count(spark, directory, delay, availableNow=True))
    compare(directory, delay)


def pour(spark: Any, directory: Path, **trigger: Any) -> Any:
    """Start the query that takes files into the topic `flights`, one file in each micro-batch."""
    rows = (
        spark.readStream.schema("carrier string, distance int, at timestamp")
        .option("header", True)
        .option("maxFilesPerTrigger", 1)
        .csv(str(directory / "incoming"))
    )
    records = rows.select(
        F.col("carrier").alias("key"),
        F.to_json(F.struct("carrier", "distance")).alias("value"),
        F.col("at").alias("timestamp"),
    )
    return (
        records.writeStream.format("kstore")
        .option("topic", "flights")
        .option("partitions", 4)
        .option("checkpointLocation", str(directory / "checkpoints" / "flights"))
        .trigger(**trigger)
        .start(str(directory / "data"))
    )


def count(spark: Any, directory: Path, delay: timedelta, **trigger: Any) -> Any:
    """Start the query that counts the flights of each carrier and day into the topic `days`.

    A day is written once, when the watermark is past its end. The watermark follows the newest row of all partitions,
    and a commit reaches the partitions one after the other. So the delay has to be longer than the time of a file.
    """
    flights = (
        spark.readStream.format("kstore")
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("columns", "key,timestamp")
        .option("groupId", "days")
        .load(str(directory / "data"))
    )
    days = (
        flights.withWatermark("timestamp", f"{delay.days} days")
        .groupBy(F.window("timestamp", "1 day").alias("day"), "key")
        .agg(F.count("*").alias("flights"))
    )
    records = days.select(
        "key", F.to_json(F.struct(F.unix_millis("day.start").alias("day_ms"), "flights")).alias("value")
    )
    return (
        records.writeStream.format("kstore")
        .option("topic", "days")
        .option("partitions", 1)
        .option("checkpointLocation", str(directory / "checkpoints" / "days"))
        .trigger(**trigger)
        .start(str(directory / "data"))
    )


def arrive(directory: Path, files: Sequence[Sequence[Row]], first: int) -> None:
    """Put files into the directory that `pour` watches: each is written elsewhere and then renamed."""
    incoming = directory / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(files, first):
        path = directory / f"{number:03}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows((carrier, distance, at.isoformat()) for carrier, distance, at in rows)
        path.rename(incoming / path.name)


def rows_in(directory: Path, topic: str) -> int:
    if not (directory / "data").exists():
        return 0
    with kstore.Store.open(directory / "data", mode="r") as store:
        return sum(1 for _ in store.read(topic)) if topic in store.topics else 0


def compare(directory: Path, delay: timedelta) -> None:
    """Compare both topics with the files."""
    expected: Counter[Row] = Counter()
    for path in sorted((directory / "incoming").iterdir()):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                expected[row["carrier"], int(row["distance"]), datetime.fromisoformat(row["at"])] += 1
    watermark = max(at for _, _, at in expected) - delay

    found: Counter[Row] = Counter()
    days: Counter[tuple[str, datetime, int]] = Counter()
    with kstore.Store.open(directory / "data", mode="r") as store:
        for record in store.read("flights"):
            value = json.loads(record.value or b"")
            found[value["carrier"], value["distance"], time_of(record.timestamp)] += 1
        for record in store.read("days"):
            value = json.loads(record.value or b"")
            days[(record.key or b"").decode(), time_of(value["day_ms"]), value["flights"]] += 1
    assert found == expected

    flights: Counter[tuple[str, datetime]] = Counter()
    for (carrier, _, at), count in expected.items():
        day = at.replace(hour=0, minute=0, second=0, microsecond=0)
        if day + timedelta(days=1) <= watermark:
            flights[carrier, day] += count
    assert days == Counter((carrier, day, count) for (carrier, day), count in flights.items())
    print(f"{found.total():,} rows of the files are in the topic, and {days.total():,} days are counted, each once")


def time_of(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def made_up(files: int, rows: int) -> list[list[Row]]:
    """Return rows of as many files, five minutes apart."""
    began = datetime(2013, 1, 1, tzinfo=UTC)
    carriers = ("AA", "B6", "DL", "EV", "UA")
    made = [(carriers[n * 7 % 5], 100 + n * 37 % 2000, began + timedelta(minutes=5 * n)) for n in range(files * rows)]
    return [made[n * rows : (n + 1) * rows] for n in range(files)]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo/streams"))
