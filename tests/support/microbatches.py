"""Spark's micro-batches without Spark: a query from one topic into another, with a checkpoint, that can be killed.

`Query.run` takes the steps of Spark's driver: it plans a batch, journals its end, has tasks stage and a process commit,
and journals that the batch is done. `live` does so in a forked child, which dies at a call of `kstore.disk.fs`.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kstore import Store
from kstore.disk import fs
from kstore.log.writing import _appender
from kstore.spark.scanning import Piece, Scan
from kstore.spark.spark_options import WriteOptions
from kstore.spark.stream_offsets import StreamOffsets
from kstore.spark.stream_options import StreamOptions
from kstore.spark.stream_planner import StreamPlanner
from kstore.spark.stream_sink import StreamWriter
from kstore.testing.recorder import Recorder

PARTITIONS = 2
NEVER = 1 << 30  # no process makes so many calls

pa.array(np.zeros(1))  # imports pandas, which would take a second in each forked child

# What a writer asks of the schema that Spark gives it.
_BINARY = SimpleNamespace(simpleString=lambda: "binary")
SCHEMA: Any = SimpleNamespace(fields=[SimpleNamespace(name=name, dataType=_BINARY) for name in ("key", "value")])


class Journal:
    """A directory with a file for each batch, like `offsets` and `commits` of Spark's checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def batches(self) -> list[int]:
        return sorted(int(path.name) for path in self.path.glob("*") if path.name.isdecimal())

    def latest(self) -> int | None:
        return max(self.batches(), default=None)

    def add(self, batch: int, value: Any) -> None:
        fs.make_directories(self.path)
        fs.write_atomically(self.path / str(batch), json.dumps(value).encode())

    def get(self, batch: int) -> Any:
        return json.loads((self.path / str(batch)).read_bytes())


class Fate:
    """Ends this process, or stops it, before a call that changes something; writes to `told` which call it was.

    `at` is how many calls pass, or what the text of the call contains: its name, a space and the path. Syncs are
    neither counted nor made, since what a killed process has written is there.
    """

    def __init__(
        self,
        at: int | str,
        told: int,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL),
        *,
        torn: bool = False,
    ) -> None:
        self._at, self._told, self._end, self._torn = at, told, end, torn
        self._lock = threading.Lock()

    def install(self) -> None:
        for name in Recorder.CHANGES:
            setattr(fs, name, self._counted(name, getattr(fs, name)))
        for name in Recorder.SYNCS:
            setattr(fs, name, lambda *_, **__: None)
        _appender.set_pwrite_hook(self._pwrite)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            if name == "open" and not any(how.get(each) for each in ("create", "new", "empty")):
                return real(*args, **how)
            with self._lock:
                self._meet(name, fs.path_of(args[0]) if isinstance(args[0], int) else args[0])
                return real(*args, **how)

        return call

    def _pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        with self._lock:
            if self._at == 0 and self._torn:
                os.pwrite(fd, data[: len(data) // 2], position)
            self._meet("append", fs.path_of(fd))
            return os.pwrite(fd, data, position)

    def _meet(self, name: str, path: Any) -> None:
        call = f"{name} {path}"
        if isinstance(self._at, str):
            is_here = self._at in call
        else:
            self._at -= 1
            is_here = self._at < 0
        if is_here:
            os.write(self._told, call.encode())
            self._at = NEVER  # once, for a process that is only stopped
            self._end()


class Life(NamedTuple):
    """How a life of a driver ended: the exit code, at which call it was killed, and its error."""

    code: int
    place: str
    error: str


Step = Callable[[], Any]


@dataclass(frozen=True)
class Query:
    """A query from the topic `source` into the topic `sink` of the same directory, in batches of `most` records."""

    root: Path
    checkpoint: Path
    id: str
    source: str = "in"
    sink: str = "out"
    most: int = 6
    commit_timeout: float = 0.0
    staging_dir: str | None = None
    apart: dict[str, Callable[[Step], Any]] = field(default_factory=dict)  # how steps run that have a process

    @property
    def offsets(self) -> Journal:
        return Journal(self.checkpoint / "offsets")

    @property
    def commits(self) -> Journal:
        return Journal(self.checkpoint / "commits")

    @property
    def application(self) -> str:
        return f"spark:{self.id}"

    @property
    def staging(self) -> Path:
        return self.root.with_name(f"{self.root.name}.kstore-staging")

    def run(self) -> None:
        """Process what the source has now, as Spark does with the trigger AvailableNow."""
        options = StreamOptions.parse({"subscribe": self.source, "startingOffsets": "earliest"})
        planner = StreamPlanner(str(self.root), options)
        planner.freeze()
        batch, committed, available = self._begin()
        while True:
            if available is None:
                begin = planner.initial() if committed is None else StreamOffsets.parse(committed)
                available = planner.latest(begin, self.most, None).to_json()
                if available == committed:
                    break
                self.offsets.add(batch, available)
            start = planner.initial() if committed is None else StreamOffsets.parse(committed)
            self._run_batch(batch, planner.pieces(start, StreamOffsets.parse(available)))
            self.commits.add(batch, {})
            batch, committed, available = batch + 1, available, None
        planner.close()

    def _begin(self) -> tuple[int, Any, Any]:
        """The batch to run, the end of the one before it, and its own end if it was planned before."""
        last = self.offsets.latest()
        if last is None:
            return 0, None, None
        if self.commits.latest() == last:
            return last + 1, self.offsets.get(last), None
        return last, None if last == 0 else self.offsets.get(last - 1), self.offsets.get(last)

    def _run_batch(self, batch: int, pieces: list[Piece]) -> None:
        messages: list[Any] = [None] * len(pieces)
        writer = pickle.dumps(self.writer())
        try:
            for task, piece in enumerate(pieces):
                messages[task] = self._step("task", lambda t=task, p=piece: self._write(writer, t, batch, p))
            self._step("commit", lambda: self.writer().commit(messages, batch))
        except Exception:
            self._step("abort", lambda: self.writer().abort(messages, batch))
            raise

    def writer(self) -> StreamWriter:
        options = {"topic": self.sink, "partitions": str(PARTITIONS), "commitTimeout": f"{self.commit_timeout}s"}
        if self.staging_dir is not None:
            options["stagingDir"] = self.staging_dir
        return StreamWriter(str(self.root), WriteOptions.parse(options), SCHEMA)

    def _step(self, name: str, step: Step) -> Any:
        return self.apart[name](step) if name in self.apart else step()

    def _write(self, writer: bytes, task: int, batch: int, piece: Piece) -> Any:
        """What a task does: it reads a piece, puts the query's name before each value, and stages the rows."""
        with in_task(task, self.id, batch):
            rows = Scan(("key", "value")).batches(piece)
            message = cast(StreamWriter, pickle.loads(writer)).write(self._named(batch) for batch in rows)
            return pickle.loads(pickle.dumps(message))

    def _named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.compute.binary_join_element_wise(self.id[:1].encode(), rows["value"], b":")
        return pa.RecordBatch.from_arrays([rows["key"], values], ["key", "value"])


@contextmanager
def in_task(task: int, query: str, batch: int) -> Iterator[None]:
    """Be in a task of a micro-batch, for the modules that ask Spark."""
    with (
        mock.patch("kstore.spark.staging.running_task", return_value=(task, query, batch)),
        mock.patch("kstore.spark.stream_sink.running_task", return_value=(task, query, batch)),
    ):
        yield


class Child:
    """A forked child that calls a function; it returns the function's result, or the text of its error."""

    def __init__(self, work: Callable[[int], Any]) -> None:
        told, self._tell = os.pipe()
        result, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(told)
            code = 1
            try:
                value: Any = work(self._tell)
                code = 0
            except BaseException:
                value = traceback.format_exc()
            with os.fdopen(answer, "wb") as file:
                pickle.dump(value, file)
            os._exit(code)
        os.close(answer)
        os.close(self._tell)
        self._told, self._result = told, result

    def is_stopped(self) -> bool:
        """Wait until the child stops or ends; whether it is stopped."""
        info = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert info is not None
        return info.si_code == os.CLD_STOPPED

    def end(self) -> tuple[Life, Any]:
        """Wait for the end of the child; its result is None if it had an error or was killed."""
        with os.fdopen(self._result, "rb") as file:
            answer = file.read()
        with os.fdopen(self._told, "rb") as file:
            place = file.read().decode()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        value = pickle.loads(answer) if answer else None
        return Life(code, place, "" if code == 0 else str(value)), value if code == 0 else None


def start(query: Query, at: int | str = NEVER, how: signal.Signals = signal.SIGKILL, *, torn: bool = False) -> Child:
    """Start a driver that is killed, with all its processes, before the call `at` (see `Fate`)."""

    def life(told: int) -> None:
        Fate(at, told, lambda: os.kill(os.getpid(), how), torn=torn).install()
        query.run()

    return Child(life)


def live(query: Query, at: int | str = NEVER, *, torn: bool = False) -> Life:
    """Run a driver until it has processed the source, or is killed before the call `at` (see `Fate`)."""
    return start(query, at, torn=torn).end()[0]


def live_apart(query: Query, fates: Mapping[str, int]) -> Life:
    """Run a driver whose processes for some steps, "task", "commit" or "abort", are killed alone; Spark then aborts."""

    def life(told: int) -> None:
        Fate(NEVER, told).install()  # no syncs
        for name, at in fates.items():
            query.apart[name] = partial(apart, name, at)
        query.run()

    def apart(name: str, at: int, step: Step) -> Any:
        def work(told: int) -> Any:
            Fate(at, told).install()
            return step()

        ended, value = Child(work).end()
        if ended.code != 0:
            raise RuntimeError(f"the process of the {name} ended: {ended.code} {ended.place} {ended.error}")
        return value

    return Child(life).end()[0]


def feed(root: Path, count: int, source: str = "in") -> None:
    """Append so many records to each partition of the source; each names its place, and has one of four keys."""
    with Store.open(root, background=False, flush_messages=1 << 60) as store:
        if source not in store.topics:
            store.create_topic(source, PARTITIONS)
        for partition in range(PARTITIONS):
            first = store.log(source, partition).log_end_offset
            for offset in range(first, first + count):
                store.append(source, b"%d-%d" % (partition, offset), key=b"%d" % (offset % 4), partition=partition)


def read(root: Path, topic: str) -> list[list[bytes]]:
    """The values of each partition, in the order of their offsets, which have no gap."""
    found = []
    with Store.open(root, "r") as store:
        for partition in store.partitions(topic) if topic in store.topics else ():
            records = list(store.log(topic, partition).read())
            assert [record.offset for record in records] == list(range(len(records)))
            found.append([record.value or b"" for record in records])
    return found
