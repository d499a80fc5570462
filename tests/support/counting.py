"""A writer of compare-and-append on a counter, in a thread or as a process: what test_counters.py judges.

    python counting.py PARTITION log|store ROUNDS

The process looks at the log, says so, waits for a line, and goes on: it opens the log or its store for each append, as
soon as no other process has the lock. At its end it prints a report.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kstore
from kstore import LogLockedError, UnexpectedOffsetError

MARKERS = 8  # at most so many, one of each thread, are behind the newest value

Append = Callable[[bytes, int], int]


def look(log: kstore.Log) -> tuple[int, int]:
    """The newest value and the offset behind it, markers included."""
    end = log.log_end_offset
    *_, newest = log.read(max(end - MARKERS - 1, 0), end_offset=end)
    return int(newest.value or b""), end


class Counter:
    """One writer: its rounds, the offsets that it got, and how often it was refused."""

    def __init__(self, look: Callable[[], tuple[int, int]], append: Append) -> None:
        self._look, self._append = look, append
        self.offsets: list[int] = []
        self.refused = 0
        self.first_was_refused = False

    def count(self, rounds: int, all_have_looked: Callable[[], object]) -> None:
        for number in range(rounds):
            while True:
                value, end = self._look()
                if number == self.refused == 0:
                    all_have_looked()
                try:
                    self.offsets.append(self._append(b"%d" % (value + 1), end))
                    break
                except UnexpectedOffsetError:
                    self.refused += 1
                    self.first_was_refused = self.first_was_refused or number == 0

    def report(self) -> dict[str, Any]:
        return {"offsets": self.offsets, "refused": self.refused, "first_was_refused": self.first_was_refused}


@contextmanager
def turn(path: Path, kind: str) -> Iterator[kstore.Log]:
    """The log for writing, as soon as no other process has it."""
    while True:
        try:
            if kind == "log":
                with kstore.Log.open(path) as log:
                    yield log
            else:
                with kstore.Store.open(path.parent, background=False) as store:
                    yield store.log("counter", 0)
            return
        except LogLockedError:
            time.sleep(0.001)


def main(path: Path, kind: str, rounds: int) -> None:
    def look_beside() -> tuple[int, int]:
        with kstore.Log.open(path, "r") as reader:
            return look(reader)

    def append(value: bytes, end: int) -> int:
        with turn(path, kind) as log:
            return log.append(value, expected_offset=end)

    def all_have_looked() -> None:
        print("looked", flush=True)
        sys.stdin.readline()

    counter = Counter(look_beside, append)
    counter.count(rounds, all_have_looked)
    print(json.dumps(counter.report()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
