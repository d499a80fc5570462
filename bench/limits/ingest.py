"""What no ingest from Spark can leave out: that each task writes its bytes into a file for each partition and syncs it.

Usage: python bench/limits/ingest.py [rows [rounds]], by default 5,000,000 and 5

The job drains its rows; or it writes the buffers of each Arrow batch, in turn, into one of 16 files of its task, and
syncs these together; or it is the job of `ks.ingest` without the commit; or `ks.ingest`. Nothing is hashed, parsed,
encoded or checksummed for the second, and nothing is committed. The four go in turns: printed are the medians, and the
median over the rounds of the drain's time divided by each one's.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.extend([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
from spark_common import PARTITIONS, drained, fresh, session, warm_up, write_parquet

from kstore import spark as ks


def written(batches: Iterator[Any], place: str) -> Iterator[Any]:
    directory = Path(place) / uuid.uuid4().hex
    directory.mkdir(parents=True)
    fds = [os.open(directory / str(number), os.O_CREAT | os.O_RDWR) for number in range(PARTITIONS)]
    count = 0
    for number, batch in enumerate(batches):
        for column in batch.columns:
            os.write(fds[number % PARTITIONS], column.buffers()[-1])
        count += batch.num_rows
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(os.fdatasync, fds))
    for fd in fds:
        os.close(fd)
    yield pa.record_batch([pa.array([count])], ["n"])


def race(spark: Any, rows: int, rounds: int, place: Path) -> None:
    (place / "parquet").mkdir()
    write_parquet(place / "parquet", rows)
    frame = spark.read.parquet(str(place / "parquet"))
    warm_up(frame)
    again = fresh(place / "roots")

    def drain(root: Path) -> None:
        frame.mapInArrow(drained, "n long").collect()

    def write(root: Path) -> None:
        target = str(root)
        frame.mapInArrow(lambda batches: written(batches, target), "n long").collect()

    def stage(root: Path) -> None:
        frame.mapInArrow(ks.stage(root, topic="t", partitions=PARTITIONS), ks.MANIFEST).collect()

    def ingest(root: Path) -> None:
        ks.ingest(frame, root, topic="t", partitions=PARTITIONS)

    contestants: dict[str, Callable[[Path], None]] = {
        "drain": drain,
        "drain, write, sync": write,
        "ks.stage": stage,
        "ks.ingest": ingest,
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            (root,), _ = again()
            begun = time.perf_counter()
            run(root)
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - begun)
    for name, of_it in times.items():
        ratio = statistics.median(drain / it for drain, it in zip(times["drain"], of_it, strict=True))
        print(
            f"{name:20} {statistics.median(of_it):6.2f} s, the least {min(of_it):6.2f} s; {ratio:.2f} times the drain"
        )


if __name__ == "__main__":
    arguments = [int(given or default) for given, default in zip_longest(sys.argv[1:], (5_000_000, 5))]
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as temporary,
        contextmanager(session)(sys.modules[__name__]) as started,
    ):
        race(started, *arguments, Path(temporary))
