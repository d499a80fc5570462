"""Lives of a store's process, each ended by SIGKILL at a moment that was drawn beforehand: what test_killed.py judges.

    python lives.py      reads one JSON line for each life, and answers with one

This process imports everything once and forks for each life, so that a life begins within milliseconds. In a life the
store is opened, three threads work with it beside its housekeeping, and it is closed. Each thread writes into the
journal what it is about to do, and then that it is done: one line each, in one `write`, so that the journal is whole
whenever the process dies. A record's value says which operation wrote it, and carries a checksum.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kstore
from kstore.disk import fs

SETTINGS: dict[str, Any] = {
    "segment_bytes": 3000,
    "index_interval_bytes": 200,
    "segment_index_bytes": 1200,
    "file_delete_delay_ms": 5,
    "flush_ms": 20,
    "log_initial_task_delay_ms": 0,
    "log_retention_check_interval_ms": 10,
    "log_flush_offset_checkpoint_interval_ms": 10,
    "log_flush_start_offset_checkpoint_interval_ms": 15,
    "replica_high_watermark_checkpoint_interval_ms": 15,
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 10,
}
KEPT, RETAINED = "kept", "retained"  # topics that are always there: the second is cut by retention
RETENTION_BYTES = 9000
PASSING = ("passing-a", "passing-b", "passing-c")  # topics that come and go
IDS = ("loader", "mover")
STAGES = ("open", "work", "close")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


typical = {"open": 0.05, "work": 0.005, "close": 0.05}
"""Seconds that the stages of a life take here and now; of work, each step."""


def value_of(op: str, number: int, rng: random.Random) -> bytes:
    body = b"%s/%d/%s" % (op.encode(), number, b"x" * rng.choice((0, 20, 20, 100, 700)))
    return body + b"/%08x" % zlib.crc32(body)


def written_by(value: bytes) -> tuple[str, int]:
    """The operation that wrote this value, and which of its records it is; `ValueError` where it is not whole."""
    body, _, checksum = value.rpartition(b"/")
    if checksum != b"%08x" % zlib.crc32(body):
        raise ValueError(f"the value is not whole: {value!r}")
    op, number, _ = body.split(b"/")
    return op.decode(), int(number)


def die_after(calls: int) -> None:
    """SIGKILL with the call of a function, or the return from one, that comes after so many in this thread."""
    left = iter(range(calls))

    def count(*_: object) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


class Life:
    """What happens from one opening to one closing."""

    def __init__(
        self,
        roots: list[str],
        journal: str,
        seed: str,
        life: int,
        steps: int,
        syncs: bool,
        amid: tuple[str, int] | None,
        progress: int,
    ) -> None:
        if not syncs:  # a kill takes nothing from the page cache
            fs.fsync = fs.fdatasync = lambda fd: None
            fs.sync_directory = lambda path, *, missing_ok=False: None
        self.roots, self.seed, self.life, self.steps = roots, seed, life, steps
        self.amid = amid  # it dies in the middle of the first operation of this kind, so many calls after its begin
        self.progress = progress  # where it says that another stage begins
        self.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **line: Any) -> None:
        os.write(self.journal, json.dumps(line).encode() + b"\n")

    @contextmanager
    def noted(self, op: str, kind: str, **what: Any) -> Iterator[dict[str, Any]]:
        """Between two lines of the journal; what is put into the dictionary stands in the second."""
        self.write(at="begin", op=op, kind=kind, **what)
        answer: dict[str, Any] = {}
        dies = self.amid is not None and kind == self.amid[0]
        if self.amid is not None and dies:
            die_after(self.amid[1])
        yield answer
        if dies:  # it took fewer calls
            os.kill(os.getpid(), signal.SIGKILL)
        self.write(at="done", op=op, **answer)

    def run(self) -> None:
        with self.noted(f"{self.life}.open", "open"):
            self.store = kstore.Store.open(self.roots, seed=self.life, **SETTINGS)
        os.write(self.progress, b".")
        self.make_topics()
        workers = [threading.Thread(target=self.work, args=(each,)) for each in (Keeper, Appender, Transactor)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        os.write(self.progress, b".")
        with self.noted(f"{self.life}.close", "close"):
            self.store.close()

    def make_topics(self) -> None:
        for topic, config in ((KEPT, None), (RETAINED, {"retention.bytes": str(RETENTION_BYTES)})):
            if topic not in self.store.topics:
                topic_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.seed}:{topic}"))
                with self.noted(
                    f"{self.life}.{topic}", "create", topic=topic, partitions=2, topic_id=topic_id, config=config or {}
                ):
                    self.store.create_topic(topic, 2, config=config, topic_id=uuid.UUID(topic_id))

    def work(self, kind: type[Worker]) -> None:
        try:
            worker = kind(self)
            for _ in range(self.steps):
                worker.step()
            worker.end()
        except BaseException:
            self.write(at="fault", worker=kind.__name__, text=traceback.format_exc())
            raise


class Worker:
    """One thread's work. A life's seed says what it does."""

    def __init__(self, life: Life) -> None:
        self.life, self.store = life, life.store
        self.rng = random.Random(f"{life.seed}:{life.life}:{type(self).__name__}")
        self.count = 0

    def step(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """What is to be done before the store is closed."""

    def op(self) -> str:
        self.count += 1
        return f"{self.life.life}.{type(self).__name__}.{self.count}"

    def noted(self, kind: str, op: str | None = None, **what: Any) -> Any:
        return self.life.noted(op or self.op(), kind, **what)

    def records(self, op: str, count: int) -> list[tuple[bytes | None, bytes]]:
        keys = [None, b"a", b"b", b"c", b"d"]
        return [(self.rng.choice(keys), value_of(op, n, self.rng)) for n in range(count)]

    def append(self, to: Any, topic: str, topic_id: str, txn: str | None = None) -> None:
        """One record or many, by the store itself, a producer or a transaction; the answer says where they are."""
        op = self.op()
        what = {"topic": topic, "topic_id": topic_id, "txn": txn}
        if self.rng.random() < 0.6:
            [(key, value)] = self.records(op, 1)
            with self.noted("append", op, count=1, **what) as answer:
                where = to.append(topic, value, key=key)
                answer["places"] = {str(where.partition): [where.offset, where.offset]}
        else:
            records = self.records(op, self.rng.choice((2, 10, 40)))
            with self.noted("append", op, count=len(records), **what) as answer:
                found = to.append_many(topic, records, compression=self.rng.choice(CODECS), batch_bytes=1500)
                answer["places"] = {str(n): [info.first_offset, info.last_offset] for n, info in found.items()}

    def some_topic(self) -> tuple[str, str]:
        topic = self.rng.choice((KEPT, RETAINED))
        return topic, str(self.store.topic_id(topic))


class Keeper(Worker):
    """Makes and deletes topics, rolls, flushes, cuts the log's beginning, commits positions."""

    def step(self) -> None:
        there = [topic for topic in PASSING if topic in self.store.topics]
        kinds = [self.flush, self.roll, self.delete_records, self.commit_offsets, self.housekeeping]
        kinds += [self.create] * (3 - len(there))
        kinds += [self.append_to_passing, self.append_to_passing, self.add_partitions, self.configure, self.delete] * (
            len(there) > 0
        )
        self.rng.choice(kinds)()

    def passing(self) -> tuple[str, str]:
        topic = self.rng.choice([topic for topic in PASSING if topic in self.store.topics])
        return topic, str(self.store.topic_id(topic))

    def create(self) -> None:
        topic = self.rng.choice([topic for topic in PASSING if topic not in self.store.topics])
        topic_id = str(uuid.UUID(int=self.rng.getrandbits(128)))
        partitions, config = self.rng.choice((1, 3)), self.rng.choice(({}, {"segment.bytes": "2000"}))
        with self.noted("create", topic=topic, topic_id=topic_id, partitions=partitions, config=config):
            self.store.create_topic(topic, partitions, config=config, topic_id=uuid.UUID(topic_id))

    def delete(self) -> None:
        topic, topic_id = self.passing()
        with self.noted("delete", topic=topic, topic_id=topic_id):
            self.store.delete_topic(topic)

    def add_partitions(self) -> None:
        topic, topic_id = self.passing()
        partitions = len(self.store.partitions(topic)) + 1
        with self.noted("grow", topic=topic, topic_id=topic_id, partitions=partitions):
            self.store.add_partitions(topic, partitions)

    def configure(self) -> None:
        topic, topic_id = self.passing()
        config = {"segment.bytes": str(self.rng.randrange(1500, 4000))}
        with self.noted("configure", topic=topic, topic_id=topic_id, config=config):
            self.store.update_topic_config(topic, config)

    def append_to_passing(self) -> None:
        self.append(self.store, *self.passing())

    def flush(self) -> None:
        with self.noted("flush"):
            self.store.flush()

    def roll(self) -> None:
        topic, _ = self.some_topic()
        with self.noted("roll"):
            self.store.log(topic, self.rng.randrange(2)).roll()

    def delete_records(self) -> None:
        number = self.rng.randrange(2)
        log = self.store.log(KEPT, number)
        before = self.rng.randint(log.log_start_offset, log.high_watermark)
        with self.noted("cut", partition=number, before=before):
            log.delete_records(before)

    def commit_offsets(self) -> None:
        offset = self.rng.randrange(1000)
        with self.noted("position", offset=offset):
            self.store.commit_offsets("plain", {(KEPT, 0): offset}, sync=self.rng.random() < 0.2)

    def housekeeping(self) -> None:
        with self.noted("housekeeping"):
            self.store.run_housekeeping()


class Appender(Worker):
    """Appends, with numbers and without."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.producer = self.store.producer()

    def step(self) -> None:
        self.append(self.rng.choice((self.store, self.producer)), *self.some_topic())


class Transactor(Worker):
    """Commits and aborts transactions; one may be left open for the next life."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.id = self.rng.choice(IDS)
        with self.noted("init"):
            self.producer = self.store.producer(transactional_id=self.id)

    def step(self) -> None:
        txn = self.op()
        with self.noted("txn", txn):
            handle = self.producer.transaction()
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            self.append(handle, *self.some_topic(), txn=txn)
        offset = None
        if self.rng.random() < 0.5:
            offset = self.rng.randrange(1000)
            with self.noted("txn position"):
                handle.commit_offsets("in transactions", {(KEPT, 1): offset})
        if self.rng.random() < 0.7:
            with self.noted("commit", txn=txn, offset=offset):
                handle.commit(sync=self.rng.random() < 0.2)
        else:
            with self.noted("abort", txn=txn):
                handle.abort()

    def end(self) -> None:
        if self.rng.random() < 0.5:
            txn = self.op()
            with self.noted("txn", txn):
                handle = self.producer.transaction()
            self.append(handle, *self.some_topic(), txn=txn)


def live_and_die(order: dict[str, Any]) -> dict[str, Any]:
    """One life in a process of its own: killed in `stage`, after that `share` of what the stage takes; None spares it.

    A kill that was to come after a short stage falls into the one that follows. `amid` names an operation that the life
    ends in the middle of, whatever the machine's speed.
    """
    stage, share = order.pop("stage"), order.pop("share")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            Life(**order, progress=writing).run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    deadline = None
    for now in STAGES:
        begun = time.monotonic()
        units = order["steps"] if now == "work" else 1
        if now == stage:
            deadline = begun + share * units * typical[now]
        if not select.select([reading], [], [], None if deadline is None else max(0.0, deadline - begun))[0]:
            os.kill(child, signal.SIGKILL)
            break
        if not os.read(reading, 1) and now != STAGES[-1]:
            break
        typical[now] += 0.2 * ((time.monotonic() - begun) / max(units, 1) - typical[now])
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"killed": code == -signal.SIGKILL, "code": code}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(live_and_die(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
