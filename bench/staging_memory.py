"""The peak memory of one staging task: run it with the name of a case, or without for all of them.

Each case runs in a process of its own and prints the growth of its peak resident memory over what the imports take, the
record batches that come in included. Cases: 100 topics of 16 partitions by a `topic` column, and 1000 partitions by a
`partition` column, both with record batches of 10,000 rows of 1000 bytes and of 64 MiB; values of 30 MiB, two to a
record batch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kstore import spark as ks

MIB = 1 << 20
CASES = ("topics", "topics-64", "partitions", "partitions-64", "large")


def values(count: int, size: int) -> Any:
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * size)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(np.random.bytes(count * size))])


def batches(case: str) -> Iterator[Any]:
    rows = 65_536 if case.endswith("-64") else 10_000
    for first in range(0, 300_000, rows):
        if case == "large":
            yield pa.RecordBatch.from_pydict(
                {"value": values(2, 30 * MIB), "partition": pa.array([first // rows % 16, 5], pa.int32())}
            )
        elif case.startswith("topics"):
            names = pa.array([f"t{row}" for row in range(100)]).take(pa.array(np.arange(rows) % 100))
            yield pa.RecordBatch.from_pydict({"value": values(rows, 1000), "key": values(rows, 8), "topic": names})
        else:
            numbers = pa.array((np.arange(rows, dtype=np.int32) + first) % 1000)
            yield pa.RecordBatch.from_pydict({"value": values(rows, 1000), "partition": numbers})


def peak() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024


def run(case: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        if case.startswith("topics"):
            made = ks.stage(f"{directory}/logs", partitions=16)
        elif case == "large":
            config = {"max.message.bytes": 100 * MIB}
            made = ks.stage(f"{directory}/logs", topic="t", partitions=16, config=config)
        else:
            made = ks.stage(f"{directory}/logs", topic="t", partitions=1000)
        before = peak()
        made.write(batches(case))
        print(f"{case:16} {(peak() - before) / MIB:5.0f} MiB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        for each in CASES:
            subprocess.run([sys.executable, __file__, each], check=True)
