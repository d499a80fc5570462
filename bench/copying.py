"""A process that makes copies, for `bench_copies.py`: `python copying.py KIND ARGUMENT ...`.

follow SRC DST COUNT     follows SRC, in which another process appends to `events`: each value begins with the time of
                         its append, in nanoseconds of the clock that all processes share. Prints a line when it
                         follows, then a line of JSON: the delay of each record in seconds until it could be read in
                         DST, and the share of a processor that following and reading took
keep-up SRC DST          follows SRC and prints a line when it does; ends with its standard input
replicate SRC DST        copies SRC once; prints by how many bytes the peak of resident memory grew over the imports
back-up DIR URL          the same of a backup
restore URL DIR          the same of a restore
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kstore
from kstore.copies.backups.backup import back_up_directory


def follow(source: str, target: str, count: str) -> None:
    lags: list[float] = []
    with kstore.replicate(source, target, follow=True) as replication:
        assert replication.wait_caught_up(60)
        print("ready", flush=True)
        begun, used = time.perf_counter(), time.process_time()
        for record in replication.store.log("events", 0).read(follow=True, timeout=60):
            now = time.monotonic_ns()
            assert record.value is not None
            lags.append((now - int(record.value[:20])) / 1e9)
            if len(lags) == int(count):
                break
        share = (time.process_time() - used) / (time.perf_counter() - begun)
    print(json.dumps({"lags": lags, "share": share}), flush=True)


def keep_up(source: str, target: str) -> None:
    with kstore.replicate(source, target, follow=True) as replication:
        assert replication.wait_caught_up(60)
        print("ready", flush=True)
        sys.stdin.read()


def replicate(source: str, target: str) -> None:
    kstore.replicate(source, target)


def back_up(directory: str, url: str) -> None:
    back_up_directory([directory], url).close()


def restore(url: str, directory: str) -> None:
    kstore.restore(url, directory)


def growth_of(act: Callable[..., None], *arguments: str) -> None:
    """Print by how much the resident memory grows at its peak, in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = _peak_bytes()
    act(*arguments)
    print(max(_peak_bytes() - before, 1), flush=True)


def _peak_bytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "follow":
        follow(*arguments)
    elif kind == "keep-up":
        keep_up(*arguments)
    else:
        growth_of({"replicate": replicate, "back-up": back_up, "restore": restore}[kind], *arguments)


if __name__ == "__main__":
    main()
