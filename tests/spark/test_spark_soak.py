"""A stream runs for long beside a writer, retention and compaction: each record comes once, and memory stays flat.

All are in one directory: the stream reads two topics and writes two others, and a writer in another process holds the
store's lock for a part of the time. The writer waits for the stream, so that retention does not overtake it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from kstore import Store
from tests.spark.spark_session import environment
from tests.support.processes import anonymous_kib, below, command
from tests.support.staging import leftovers

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of processes in /proc"),
]

PARTITIONS = 2
GROWTH_KIB = 8 << 10
KINDS = {  # the ends of the command lines of Spark's Python processes
    "planner": "python_streaming_source_runner",
    "committer": "python_streaming_sink_runner",
    "workers": "pyspark.daemon pyspark.worker",
}

WRITER = """
import sys, time
from kstore import LogLockedError, Store
from kstore.files.stream_positions import read_positions

root, seconds, partitions, keys, lead, size = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])
ends = dict.fromkeys(range(partitions), 0)
blocked = 0

def lag():
    found = read_positions(root)
    offsets = found[0].offsets if found else {}
    return max(end - offsets.get(("events", number), 0) for number, end in ends.items())

tasks = dict(log_initial_task_delay_ms=0, log_retention_check_interval_ms=100, log_cleaner_backoff_ms=100)
deadline = time.monotonic() + seconds
while time.monotonic() < deadline:
    try:
        with Store.open(root, file_delete_delay_ms=0, **tasks) as store:
            for _ in range(5):
                for number in ends if lag() < lead else ():
                    numbers = range(ends[number], ends[number] + 500)
                    rows = [(b"%d" % (n % keys), b"%0*d" % (size, n)) for n in numbers]
                    store.append_many("events", rows, partition=number)
                    store.append_many("table", rows[:100], partition=number)
                    ends[number] += 500
                time.sleep(0.1)
    except LogLockedError:
        blocked += 1
    time.sleep(0.1)
print(ends[0], blocked)
"""

STREAM = """
import os, sys
from tests.spark.spark_session import start, to_its_end

root, partitions = sys.argv[1:]
session = start()
frame = (session.readStream.format("kstore")
         .options(subscribe="events,table", startingOffsets="earliest", maxOffsetsPerTrigger=3000, groupId="soak")
         .load(root).selectExpr("key", "value", "partition", "concat('out-', topic) as topic"))

def begin(**trigger):
    return (frame.writeStream.format("kstore").options(partitions=partitions)
            .option("checkpointLocation", "checkpoint").trigger(**trigger).start(root))

to_its_end(lambda: begin(processingTime="200 milliseconds"), lambda: os.path.exists("written"))
last = to_its_end(lambda: begin(availableNow=True))
print(last.lastProgress.batchId)
session.stop()
"""

KEYS = 50
LEAD = 4_000  # records of a partition that the stream may be behind
SIZE = 100
RETENTION = 4 * LEAD * SIZE  # bytes


def numbers(store: Store, topic: str, partition: int) -> Iterator[tuple[bytes, int]]:
    for record in store.log(topic, partition).read():
        yield record.key or b"", int(record.value or b"")


def test_a_long_stream_has_each_record_once_and_its_memory_is_flat(
    tmp_path: Path, budget: Callable[[float], float]
) -> None:
    root, seconds = tmp_path / "logs", budget(120)
    with Store.open(root) as store:
        store.create_topic("events", PARTITIONS, config={"retention.bytes": RETENTION, "segment.bytes": 1 << 17})
        cleaned = {"cleanup.policy": "compact", "segment.bytes": 1 << 16, "min.cleanable.dirty.ratio": 0.1}
        store.create_topic("table", PARTITIONS, config=cleaned)
    wanted = [str(root), str(seconds), *map(str, (PARTITIONS, KEYS, LEAD, SIZE))]
    with (
        started(tmp_path, "writer", WRITER, *wanted) as writer,
        started(tmp_path, "stream", STREAM, str(root), str(PARTITIONS)) as stream,
    ):
        memory = Memory()
        while stream.poll() is None:
            if writer.poll() is None:
                memory.look({"writer": [writer.pid], **kinds(stream.pid)})
            else:
                (tmp_path / "written").touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                stream.wait(1)
    assert (writer.returncode, stream.returncode) == (0, 0), (tmp_path / "stream.txt").read_text()[-8000:]
    print(memory)
    end, blocked = map(int, (tmp_path / "writer.out").read_text().split())
    batches = int((tmp_path / "stream.out").read_text())
    print(f"{end} records of a partition, {batches} batches, the writer found the store locked {blocked} times")

    with Store.open(root, "r") as store:
        for partition in range(PARTITIONS):
            found = [number for _, number in numbers(store, "out-events", partition)]
            assert found == list(range(end))
            assert store.log("events", partition).log_start_offset > 0, "retention has deleted segments"
            kept = list(numbers(store, "table", partition))
            assert len(kept) < end // 5, "compaction has removed records"
            streamed = list(numbers(store, "out-table", partition))
            assert [number for _, number in streamed] == sorted({number for _, number in streamed})
            assert dict(streamed) == dict(kept)
    assert leftovers(root) == []
    for kind in ("writer", *KINDS):
        early, late = memory.early_and_late(kind)
        assert late < early + GROWTH_KIB, kind


@contextlib.contextmanager
def started(directory: Path, name: str, script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a script in a directory; ended with the block."""
    path = directory / f"{name}.py"
    path.write_text(script)
    with open(directory / f"{name}.out", "wb") as out, open(directory / f"{name}.txt", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, path, *arguments],
            cwd=directory,
            env=os.environ | environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def kinds(stream: int) -> dict[str, list[int]]:
    """The processes below the driver, by what they do."""
    commands = {pid: command(pid) for pid in below(stream)}
    return {kind: [pid for pid in commands if commands[pid].endswith(end)] for kind, end in KINDS.items()}


class Memory:
    """Anonymous memory in KiB of processes of several kinds, the largest of each kind, over time."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._found: dict[str, list[int]] = defaultdict(list)

    def look(self, processes: dict[str, list[int]]) -> None:
        for kind, pids in processes.items():
            if sizes := [size for pid in pids if (size := anonymous_kib(pid))]:
                self._found[kind].append(max(sizes))

    def early_and_late(self, kind: str) -> tuple[int, int]:
        """The median in the second quarter of the time, and in the last."""
        found = self._found[kind]
        quarter = len(found) // 4
        return int(median(found[quarter : 2 * quarter])), int(median(found[-quarter:]))

    def __str__(self) -> str:
        return "\n".join(
            f"{kind}: {[f'{size / 1024:.1f}' for size in found[:: max(1, len(found) // 12)]]} MiB"
            for kind, found in self._found.items()
        )
