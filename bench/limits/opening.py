"""What no opening after a crash can leave out: the files that Kafka's recovery leaves behind in each partition.

    python bench/limits/opening.py [PARTITIONS]

Makes so many partitions (1,000) as a crash leaves them, each with a record, and opens a store over them, in processes
of their own. Then does only the system calls over the same kind of directory: list it, read the log and its leader
epochs, cut both indexes, write the closing time entry, grow them to full size, and make the producer snapshot
(SEMANTICS 8.13 to 8.18). No checksum, no object, no decision. By turns; prints the least processor time of a partition
for both, user and system.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import kstore

FILL = """
import os, sys, kstore
from kstore.disk import fs
fs._full_sync = os.fdatasync = lambda fd: None
store = kstore.Store.open(sys.argv[1], background=False)
store.create_topic("events", int(sys.argv[2]))
for number in range(int(sys.argv[2])):
    store.log("events", number).append(b"x" * 100)
os._exit(0)
"""
ROUNDS, INDEX_BYTES = 7, 10 << 20


def system_calls(root: str) -> None:
    """Leave in each partition the files that a recovery leaves, and nothing else of it."""
    for name in os.listdir(root):  # noqa: PTH208
        if not name.startswith("events-"):
            continue
        at = f"{root}/{name}"
        os.listdir(at)  # noqa: PTH208
        for read in ("leader-epoch-checkpoint", "00000000000000000000.log"):
            fd = os.open(f"{at}/{read}", os.O_RDWR)
            os.pread(fd, 4096, 0)
            os.close(fd)
        for index in ("index", "timeindex"):
            fd = os.open(f"{at}/00000000000000000000.{index}", os.O_RDWR)
            os.pread(fd, 16, INDEX_BYTES - 16)  # as at full size?
            os.ftruncate(fd, 0)
            if index == "timeindex":
                os.pwrite(fd, b"0123456789ab", 0)
            os.ftruncate(fd, INDEX_BYTES)
            os.close(fd)
        fd = os.open(f"{at}/00000000000000000001.snapshot", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        os.pwrite(fd, b"0123456789", 0)
        os.close(fd)


def opening(root: str) -> None:
    """Open a store over the partitions; the death of the process closes it."""
    kstore.Store.open(root, background=False)


def measure(act: Callable[[str], None], crashed: str) -> tuple[float, float]:
    """User and system seconds of `act` over a fresh copy, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=Path(crashed).parent) as place:
        root = shutil.copytree(crashed, f"{place}/root", copy_function=_copy_sparse)
        child = os.fork()
        if child == 0:
            began = resource.getrusage(resource.RUSAGE_SELF)
            act(root)
            ended = resource.getrusage(resource.RUSAGE_SELF)
            with open(f"{place}/took", "w") as file:
                file.write(f"{ended.ru_utime - began.ru_utime} {ended.ru_stime - began.ru_stime}")
            os._exit(0)
        os.waitpid(child, 0)
        with open(f"{place}/took") as file:
            user, system = map(float, file.read().split())
        return user, system


def _copy_sparse(source: str, target: str) -> None:
    """Copy a file whose end may be a hole."""
    with open(source, "rb") as old, open(target, "wb") as new:
        head = old.read(4096)
        new.write(head if any(head) else b"")
        new.truncate(os.fstat(old.fileno()).st_size)


def main() -> None:
    """Print both, by turns, the least of several rounds."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as place:
        crashed = f"{place}/crashed"
        for root, partitions in ((crashed, count), (f"{place}/first", 2)):
            subprocess.run([sys.executable, "-c", FILL, root, str(partitions)], check=True)
        kstore.Store.open(f"{place}/first", background=False).close()  # imports what an opening needs
        least: dict[str, tuple[float, float]] = {}
        for _ in range(ROUNDS):
            for act in (opening, system_calls):
                took = measure(act, crashed)
                least[act.__name__] = min(least.get(act.__name__, took), took, key=sum)
    for name, (user, system) in least.items():
        total = (user + system) / count * 1e6
        print(f"{name:14}{total:8.0f} us of a processor a partition (user {user / count * 1e6:.0f}, system "
              f"{system / count * 1e6:.0f})")  # fmt: skip


if __name__ == "__main__":
    main()
