"""What do idle partitions cost? `python bench/idle.py [partitions] [directory]`

Opens a store of so many partitions (10,000) in a process of its own, and prints at each step what a partition takes of
memory (resident bytes above those of the store with no partition open), of open files, and of time:

  listed      the store knows of it
  opened      `store.log(...)` was called
  appended    one record was appended, as a user would: above the budget of open files kstore parks logs by itself
  parked      every log was parked
  looked up   each was searched for a timestamp, which opens its index again
  closed up   nothing is open any more

then what an append costs that has to bring a parked log back. Syncs are left out: how long they take is the disk's.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kstore
from kstore.disk import fs, openfiles

STEPS = ("listed", "opened", "appended", "parked", "looked up", "closed up", "brought back")
Costs = dict[str, dict[str, float]]


def idle_partitions(count: int = 10_000, directory: str | None = None) -> Costs:
    """Measure in a fresh process: for each step the `bytes` and `files` and `seconds` of one partition."""
    with tempfile.TemporaryDirectory(dir=directory) as root:
        done = subprocess.run([sys.executable, __file__, "--measure", str(count), root], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: Costs = json.loads(done.stdout)
    return found


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _measure(count: int, root: str) -> Costs:
    fs.fsync = fs.fdatasync = lambda fd: None
    fs.sync_directory = lambda path, *, missing_ok=False: None
    costs: Costs = {}
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("warm", 1)
        store.log("warm", 0).append(b"x")
        store.log("warm", 0).max_timestamp()
        store.log("warm", 0).flush()
        before = _resident_bytes(), _open_files()
        logs: list[kstore.Log] = []
        store.create_topic("idle", count)

        def step(name: str, act: Callable[[], object]) -> None:
            start = time.perf_counter()
            act()
            seconds = time.perf_counter() - start
            costs[name] = {
                "bytes": (_resident_bytes() - before[0]) / count,
                "files": (_open_files() - before[1]) / count,
                "seconds": seconds / count,
            }

        def each(act: Callable[[kstore.Log], object]) -> Callable[[], object]:
            return lambda: [act(log) for log in logs].clear()

        step("listed", lambda: None)
        step("opened", lambda: logs.extend(store.log("idle", number) for number in range(count)))
        step("appended", each(lambda log: log.append(b"v" * 100)))
        step("parked", each(_park))
        step("looked up", each(lambda log: log.offset_for_timestamp(1)))
        step("closed up", lambda: openfiles.set_limit(openfiles.LEAST))
        openfiles.set_limit(None)
        step("brought back", each(lambda log: log.append(b"v" * 100)))
    return costs


def _park(log: kstore.Log) -> None:
    assert log._writer is not None
    log._writer.park()


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(_measure(int(sys.argv[2]), sys.argv[3])))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    costs = idle_partitions(count, sys.argv[2] if len(sys.argv) > 2 else None)
    print(f"{count} partitions, a budget of {openfiles.limit()} open files; of one partition:")
    for name in STEPS:
        cost = costs[name]
        print(f"{name:14}{cost['bytes']:10,.0f} bytes{cost['files']:8.2f} files{cost['seconds'] * 1e6:10,.0f} us")


if __name__ == "__main__":
    main()
