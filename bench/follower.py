"""A process that follows what another one writes: `python follower.py KIND PATH COUNT`.

Each value begins with the time at which it was appended, in nanoseconds of the clock that all processes share. Prints a
line when it waits, then a line of JSON: the lag of each record in seconds, and the share of a processor that it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.005  # as kstore's


def follow_kstore(path: str) -> Iterator[bytes]:
    import kstore

    log = kstore.Store.open(path, "r").log("events", 0)
    print("ready", flush=True)
    for record in log.read(follow=True, timeout=60):
        assert record.value is not None
        yield record.value


def follow_pipe(path: str) -> Iterator[bytes]:
    fd = os.open(f"{path}/pipe", os.O_RDONLY)
    print("ready", flush=True)
    while True:
        data = os.read(fd, 100 * 100)
        yield from (data[at : at + 100] for at in range(0, len(data), 100))


def follow_peer(kind: str, path: str) -> Iterator[bytes]:
    import peers

    store = peers.Sqlite(Path(path), synchronous="normal", exists=True) if kind == "sqlite" else peers.Lmdb(Path(path))
    print("ready", flush=True)
    count, pause = 0, FIRST_PAUSE
    while True:
        found = store.after(count)
        yield from found
        count += len(found)
        pause = FIRST_PAUSE if found else min(pause * 1.5, LONGEST_PAUSE)
        time.sleep(pause)


def main() -> None:
    kind, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if kind == "kstore":
        values = follow_kstore(path)
    else:
        values = follow_pipe(path) if kind == "pipe" else follow_peer(kind, path)
    lags: list[float] = []
    begun, used = 0.0, 0.0
    for value in values:
        now = time.monotonic_ns()
        if not lags:
            begun, used = time.perf_counter(), time.process_time()
        lags.append((now - int(value[:20])) / 1e9)
        if len(lags) == count:
            break
    share = (time.process_time() - used) / (time.perf_counter() - begun)
    print(json.dumps({"lags": lags, "share": share}), flush=True)


if __name__ == "__main__":
    main()
