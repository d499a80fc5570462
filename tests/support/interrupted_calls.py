"""Calls a store in many ways, interrupts the calls at random moments, and calls all again in another thread.

    python tests/support/interrupted_calls.py DIRECTORY SECONDS SEED

Ends with exit code 1, and with the stacks of all threads, once a call waits for longer than `PATIENCE`. What a call
raises does not matter: an interrupt may fail a log, which says so until it is opened again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kstore

PATIENCE = 30.0  # seconds
CALLS_BETWEEN = 40  # interrupts, after which all is called again
LIVES = 10  # times that all is called again, after which all is closed and opened again


class Interrupted(BaseException):
    """As `KeyboardInterrupt`."""


class Opened:
    """A store with its clients and copies, and all calls of it."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory
        self.store = kstore.Store.open(directory / "store", background=number % 2 == 1, segment_bytes=4096)
        for topic, policy in (("t", "delete"), ("c", "compact")):
            with contextlib.suppress(kstore.TopicExistsError):
                self.store.create_topic(topic, 2, config={"cleanup.policy": policy})
        self.backup = kstore.backup(self.store, str(directory / f"backup-{number}"), every=0.05)
        self.replication = kstore.replicate(
            directory / "store", directory / f"copy-{number}", topics=["t", "c"], follow=True
        )
        self.consumer = self.store.consumer("g", "t")
        self.producer = self.store.producer()
        self.transactional = self.store.producer(transactional_id="id")

    def calls(self) -> dict[str, Callable[[], object]]:
        store, log = self.store, self.store.log("t", 0)
        return {
            "append": lambda: store.append("t", b"v"),
            "append to a log": lambda: log.append(b"v"),
            "append, sync": lambda: log.append(b"v", sync=True),
            "append many": lambda: store.append_many("t", [b"v"] * 20),
            "append, compacted": lambda: store.append("c", b"v" * 100, key=b"k"),
            "produce": lambda: self.producer.append("t", b"v"),
            "transaction": self.transaction,
            "flush": store.flush,
            "read": lambda: list(store.read("t")),
            "follow": lambda: list(log.read(log.log_end_offset, follow=True, timeout=0.002)),
            "columns": lambda: log.read_columns(log.log_start_offset),
            "table": lambda: len(store.table("c")),
            "poll": lambda: self.consumer.poll(0.002),
            "commit": self.consumer.commit,
            "commit offsets": lambda: store.commit_offsets("other", {("t", 0): 0}),
            "delete records": lambda: log.delete_records(max(log.log_end_offset - 50, log.log_start_offset)),
            "truncate": lambda: log.truncate_to(max(log.log_end_offset - 1, log.log_start_offset)),
            "roll": log.roll,
            "compact": lambda: store.compact("c"),
            "housekeeping": store.run_housekeeping,
            "topic": self.topic,
            "config": lambda: store.update_topic_config("t", {"segment.bytes": "5000"}),
            "stats": store.stats,
            "back up": self.backup.flush,
            "catch up": lambda: self.replication.wait_caught_up(0.05),
            "backup's stats": self.backup.stats,
            "replication's stats": self.replication.stats,
        }

    def transaction(self) -> None:
        with self.transactional.transaction() as transaction:
            transaction.append("t", b"v")
            transaction.append("c", b"v", key=b"k")

    def topic(self) -> None:
        if "passing" in self.store.topics:
            self.store.delete_topic("passing")
        self.store.create_topic("passing")

    def renew(self) -> None:
        """Have new clients where an interrupt has ended the old ones."""
        self.producer = self.store.producer()
        self.transactional = self.store.producer(transactional_id="id")
        self.consumer.close()
        self.consumer = self.store.consumer("g", "t")

    def close(self) -> None:
        for close in (self.backup.close, self.replication.close, self.store.close):
            with contextlib.suppress(kstore.KStoreError):
                close()


class Interrupter:
    """Interrupts calls, each at a moment within its usual time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self._is_armed = False
        self._longest: dict[str, float] = {}
        signal.signal(signal.SIGALRM, self._act)

    def _act(self, *_: object) -> None:
        if self._is_armed:
            self._is_armed = False
            raise Interrupted

    def call(self, name: str, call: Callable[[], object]) -> None:
        longest = self._longest.get(name, 1e-3)
        began = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-6, longest))
            self._is_armed = True
            call()
            self._is_armed = False
        except Interrupted:
            self.counts[name] += 1
        except Exception:
            pass
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._longest[name] = min(max(longest * 0.9, 2 * (time.monotonic() - began), 2e-5), 0.2)


def call_again(opened: Opened) -> None:
    """Call all in another thread, which no lock that is left taken lets pass."""

    def act() -> None:
        with contextlib.suppress(Exception):
            opened.renew()
        for name, call in opened.calls().items():
            where[0] = name
            with contextlib.suppress(Exception):
                call()

    where = [""]
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        print(f"{where[0]!r} waits for ever", flush=True)
        faulthandler.dump_traceback()
        raise SystemExit(1)


def main(directory: Path, seconds: float, seed: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda *_: None  # an interrupt in a finalizer
    interrupter = Interrupter(random.Random(seed))
    ends, life = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        life += 1
        faulthandler.dump_traceback_later(3 * PATIENCE, exit=True)
        opened = Opened(directory, life)
        for _ in range(LIVES):
            calls: list[tuple[str, Any]] = list(opened.calls().items())
            for _ in range(CALLS_BETWEEN):
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
                interrupter.call(*interrupter.rng.choice(calls))
                if time.monotonic() > ends:
                    break
            faulthandler.dump_traceback_later(3 * PATIENCE, exit=True)
            call_again(opened)
            if time.monotonic() > ends:
                break
        opened.close()
    faulthandler.cancel_dump_traceback_later()
    print(f"{interrupter.counts.total()} interrupts in {life} lives: {dict(interrupter.counts)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
