"""What does a wake-up of a follower take, and what does its writer pay? `python bench/limits/wakes.py [directory]`

Each way of `wakes.c`, 1,000 and 10,000 writes a second between two processes. Linux, and a C compiler.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from limits import compiled

WAYS = ("inotify, one event a watch", "futex in shared memory", "inotify, permanent", "nobody waits")


class Wakes(NamedTuple):
    """Seconds."""

    p50: float
    p99: float
    writer: float  # of a write with its wake-up


def wakes(directory: Path, way: str, rate: float, count: int) -> Wakes:
    """Wake a process so often."""
    call = compiled("wakes.c").wakes
    call.restype = ctypes.c_double
    lags = (ctypes.c_double * count)()
    writer = call(str(directory).encode(), WAYS.index(way), ctypes.c_double(rate), count, lags)
    assert writer >= 0, "a write failed"
    found = sorted(lag for lag in lags if lag > 0) or [0.0]  # a record that was read with the next one has none
    return Wakes(found[len(found) // 2], found[len(found) * 99 // 100], writer)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        for rate in (1_000, 10_000):
            for way in WAYS:
                found = wakes(Path(directory), way, rate, 2 * rate)
                microseconds = ", ".join(f"{name} {value * 1e6:.1f}" for name, value in found._asdict().items())
                print(f"{rate:,} writes a second, {way}: {microseconds} µs")


if __name__ == "__main__":
    main()
