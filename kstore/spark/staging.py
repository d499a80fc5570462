"""What runs in Spark's tasks: rows in, private segment files out, one manifest row for each partition that got any.

A `Stage` is made on the driver, checks there what can be checked, and is pickled into tasks; it holds no file and no
lock. Which columns there may be is in rows.py; encoding and files are in attempts.py. The hardest rule: a task attempt
writes into a directory of its own and nowhere else, so that one that fails, or comes too late, has changed nothing.

Memory: a task holds one record batch of Spark's (64 MiB at the most by Spark's default) and copies of `SLICE_BYTES` of
it, or a block of rows, beside what attempts.py holds, however much a task sees; docs/spark.md has figures.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kstore import _columnroute, _route, arguments, fs, loads, names
from kstore import compression as codecs
from kstore.adopt import Staged, remove_staged
from kstore.columnsources import Columns
from kstore.config import TOPIC_NAMES, LogConfig
from kstore.errors import (
    ConfigError,
    InvalidRecordError,
    LogLockedError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from kstore.settings import check_known
from kstore.spark import needs
from kstore.spark.attempts import Attempt, Topic
from kstore.spark.rows import COLUMNS, Row, Types, blocks, check, check_stamps, from_pandas, simple_name
from kstore.store import MAX_PARTITIONS, Store

MANIFEST = (
    "job string, directory string, task long, topic string, partition int, partitions int, records long, batches long, "
    "bytes long, max_timestamp long, segments string, config string, query string, batch long"
)
"""The schema of a manifest, for `df.mapInArrow(stage, MANIFEST)`."""

SUFFIX = ".kstore-staging"
STALE_SECONDS = 7 * 24 * 3600
"""What nobody has touched for a week, and no load mentions, is garbage: no job runs that long between two files."""

SLICE_BYTES = 8 << 20  # of a record batch at a time


@dataclass(frozen=True, slots=True)
class _Plan:
    """What every task of a load goes by. Plain values only."""

    root: str
    job: str
    directory: str
    topic: str | None
    topics: Mapping[str, Topic]
    unknown: Topic | None  # what topics have that are not there yet
    compression: str | None
    batch_bytes: int | None


class Stage:
    """A picklable callable that stages what one task sees. Make it with `stage`.

    `job` names the load: every attempt of every task stages below `directory`, which is the job's own. Thread-safe.
    """

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    @property
    def job(self) -> str:
        """The name of the load."""
        return self._plan.job

    @property
    def directory(self) -> str:
        """Where all of its tasks stage."""
        return self._plan.directory

    @property
    def root(self) -> str:
        """The log directory that it is for."""
        return self._plan.root

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        """Stage the rows of one task; its manifest rows, in kind: record batches, pandas frames, or `Staged`.

        `items` are Arrow record batches (mapInArrow), pandas frames (mapInPandas), or rows: tuples `(key, value[,
        partition[, timestamp[, headers]]])`, Spark's Rows by name, or bytes, which are values.
        """
        found, iterator = _first(items)
        if found is _NOTHING:
            return
        kind = _kind(found)
        if kind == "arrow":
            staged = self.write(iterator)
            if staged:
                yield _manifest_batch(staged)
        elif kind == "pandas":
            pa = needs.pyarrow("mapInPandas")
            staged = self.write(from_pandas(pa, frame) for frame in iterator)
            if staged:
                yield type(found)([asdict(row) for row in staged])
        else:
            with self._attempt() as attempt:
                for block in blocks(iterator):
                    self._append_rows(attempt, block)
                staged = attempt.finish()
            yield from staged

    def write(self, batches: Iterable[Any]) -> list[Staged]:
        """Stage Arrow record batches; what was staged, durably. A refused row raises and leaves nothing behind."""
        with self._attempt() as attempt:
            iterator = iter(batches)
            while (batch := next(iterator, None)) is not None:
                # What is at hand is copied into batches of its partitions before any of these is written.
                step = max(batch.num_rows * SLICE_BYTES // max(batch.nbytes, 1), 1)
                for start in range(0, batch.num_rows, step):
                    self._append_batch(attempt, batch.slice(start, step), start)
                batch = None  # the next one need not find it in memory
            return attempt.finish()

    def check(self, types: Types) -> None:
        """Refuse columns that do not fit, by name and Spark's simple type name: see `rows.check`."""
        check(types, wants_topic=self._plan.topic is None)

    # In a task.

    def _attempt(self) -> Attempt:
        plan = self._plan
        task, query, batch = _whoami()
        return Attempt(
            plan.directory,
            plan.job,
            task,
            compression=plan.compression,
            batch_bytes=plan.batch_bytes,
            query=query,
            batch=batch,
        )

    def _topic(self, name: Any) -> Topic:
        if name is None:
            raise InvalidRecordError(
                "null topic present in the data. Use the topic option for setting a default topic."
            )
        name = str(name)
        found = self._plan.topics.get(name)
        if found is None:
            default = self._plan.unknown
            if default is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name[:300]!r}, and partitions is not given")
            found = Topic(names.check_topic(name), default.partitions, default.settings, default.config)
        return found

    def _append_batch(self, attempt: Attempt, batch: Any, first: int) -> None:
        """Append a record batch whose row 0 is row `first` of the one that it was cut from."""
        pa = needs.pyarrow("staging record batches")
        pc = importlib.import_module("pyarrow.compute")
        self.check([(field.name, simple_name(pa, field.type)) for field in batch.schema if field.name in COLUMNS])
        columns = {name: batch.column(name) for name in COLUMNS if batch.schema.get_field_index(name) >= 0}
        if (stamps := columns.get("timestamp")) is not None:
            check_stamps(pa, stamps, first)
        if self._plan.topic is not None:
            self._append_columns(pa, attempt, self._topic(self._plan.topic), columns)
            return
        topics = columns["topic"]
        for name in pc.unique(topics):
            topic = self._topic(name.as_py())
            rows = pc.equal(topics, name)
            self._append_columns(
                pa,
                attempt,
                topic,
                {key: _taken(pa, column).filter(rows) for key, column in columns.items() if key != "topic"},
            )

    def _append_columns(self, pa: Any, attempt: Attempt, topic: Topic, columns: dict[str, Any]) -> None:
        """Append rows of one topic: to the partitions that they name, else by their keys, else in turns."""
        partitions = columns.get("partition")
        if partitions is None or partitions.null_count == len(partitions):
            attempt.append(topic, _in_step(pa, attempt, columns))
            return
        wanted = np.where(
            partitions.is_null().to_numpy(zero_copy_only=False),
            _by_key(pa, attempt, topic, columns),
            partitions.fill_null(-1).to_numpy(zero_copy_only=False),
        )
        order = np.argsort(wanted, kind="stable")
        wanted = wanted[order]
        columns = {name: _taken(pa, column).take(pa.array(order)) for name, column in columns.items()}
        borders = [0, *(np.flatnonzero(np.diff(wanted)) + 1).tolist(), len(wanted)]
        keyless = 0
        for start, end in itertools.pairwise(borders):
            stretch = {name: column.slice(start, end - start) for name, column in columns.items()}
            number = int(wanted[start])
            if number == _KEYLESS:
                keyless = end
                continue
            attempt.append(topic, _in_step(pa, attempt, stretch), number)
        if keyless:
            attempt.append(
                topic, _in_step(pa, attempt, {name: column.slice(0, keyless) for name, column in columns.items()})
            )

    def _append_rows(self, attempt: Attempt, rows: list[Row]) -> None:
        """Append a block of rows that are Python objects."""
        groups: dict[tuple[str | None, int | None], list[Row]] = {}
        explicit = any(row.partition is not None for row in rows)
        name = self._plan.topic
        for row in rows:
            number = row.partition
            if explicit and number is None and row.key is not None:
                topic = self._topic(row.topic if name is None else name)
                number = _route.partition_of(row.key, topic.partitions)
            groups.setdefault((row.topic if name is None else name, number), []).append(row)
        for (topic_name, number), group in groups.items():
            stamps = [row.timestamp for row in group]
            headers = [row.headers for row in group]
            attempt.append(
                self._topic(topic_name),
                attempt.columns(
                    [row.value for row in group],
                    [row.key for row in group],
                    stamps if any(each is not None for each in stamps) else None,
                    headers if any(headers) else None,
                ),
                number,
            )


_KEYLESS = -(2**40)  # what no partition column can say


def _by_key(pa: Any, attempt: Attempt, topic: Topic, columns: dict[str, Any]) -> Any:
    """Where each row's key sends it, `_KEYLESS` without one."""
    keys = columns.get("key")
    rows = len(columns["value"])
    if keys is None:
        return np.full(rows, _KEYLESS, np.int64)
    found = np.frombuffer(partitions_of(_plain(pa, keys), topic.partitions, attempt), np.int32).astype(np.int64)
    return np.where(found < 0, _KEYLESS, found)


def partitions_of(keys: Any, partitions: int, attempt: Attempt | None = None) -> bytes:
    """Where Kafka's default partitioner sends the keys of an Arrow array: native int32, -1 for a null."""
    now_ms = 0 if attempt is None else attempt.now_ms
    parts = [_columnroute.partitions_of(rows, partitions) for rows in Columns(keys, keys, None, None, now_ms)]
    return b"".join(parts)


def _in_step(pa: Any, attempt: Attempt, columns: dict[str, Any]) -> Any:
    """The columns of an Arrow batch that make a record."""
    parts = {name: column for name, column in columns.items() if name == "value" or not pa.types.is_null(column.type)}
    return attempt.columns(_plain(pa, parts["value"]), parts.get("key"), parts.get("timestamp"), parts.get("headers"))


def _plain(pa: Any, column: Any) -> Any:
    return column.cast(pa.binary()) if pa.types.is_null(column.type) else column


def _taken(pa: Any, column: Any) -> Any:
    """A column in a layout whose rows can be taken out of order; Arrow cannot with views."""
    if pa.types.is_binary_view(column.type) or pa.types.is_string_view(column.type):
        return column.cast(pa.large_binary() if pa.types.is_binary_view(column.type) else pa.large_string())
    return column


_NOTHING = object()  # None is a row: a record without a value


def _first(items: Iterable[Any]) -> tuple[Any, Iterator[Any]]:
    """The first item, `_NOTHING` without one, and an iterator of all of them."""
    iterator = iter(items)
    found = next(iterator, _NOTHING)
    return found, iterator if found is _NOTHING else itertools.chain((found,), iterator)


def _kind(item: Any) -> str:
    module = type(item).__module__.partition(".")[0]
    if module == "pyarrow":
        return "arrow"
    return "pandas" if module == "pandas" else "rows"


def _manifest_batch(staged: list[Staged]) -> Any:
    pa = needs.pyarrow("a manifest")
    kinds = {"string": pa.string(), "long": pa.int64(), "int": pa.int32()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (each.split() for each in MANIFEST.split(", "))])
    return pa.RecordBatch.from_pylist([asdict(row) for row in staged], schema=schema)


def _whoami() -> tuple[int, str | None, int | None]:
    """The number of Spark's task, and of a stream its query and batch; 0 where there is no task."""
    try:
        context = importlib.import_module("pyspark").TaskContext.get()
    except ImportError:
        context = None
    if context is None:
        return 0, None, None
    batch = context.getLocalProperty("streaming.sql.batchId")
    return (
        context.partitionId(),
        context.getLocalProperty("sql.streaming.queryId"),
        None if batch is None else int(batch),
    )


# On the driver.


def stage(
    root: str | os.PathLike[str] | Store,
    *,
    topic: str | None = None,
    partitions: int | None = None,
    compression: str | None = None,
    batch_bytes: int | None = None,
    config: Mapping[str, object] | None = None,
    staging_dir: str | os.PathLike[str] | None = None,
    columns: Iterable[str] | None = None,
    job: str | None = None,
) -> Stage:
    """Make the callable that goes into `df.mapInArrow`, `df.mapInPandas` or `rdd.mapPartitions`.

    `topic` is where all rows go; without it each has a column `topic`. `partitions` is needed for a topic that is not
    there, and must be the number of its partitions where it is. `config` are settings of Kafka's for a topic that is
    to be made. `staging_dir` is `<root>.kstore-staging` unless given: on the file system of `root`, and outside of it.
    Of `columns`, if they are given, it is said here whether they make records.

    Raises `ConfigError` for all that does not fit together, `UnknownTopicOrPartitionError`, and `StorageError` for a
    directory that a running broker has, or that files cannot be renamed into.
    """
    if topic is not None:
        names.check_topic(topic)
        if topic in names.INTERNAL_TOPICS:
            raise ConfigError(f"{topic} is its coordinator's own topic")
    if partitions is not None:
        arguments.integer("partitions", partitions, 1, MAX_PARTITIONS)
    if batch_bytes is not None:
        arguments.integer("batch_bytes", batch_bytes, low=1)
    if compression is not None:
        codecs.type_id(compression)
    if columns is not None:
        columns = tuple(columns)
        check(((name, None) for name in columns), wants_topic=topic is None)
    paths, topics, defaults = _look(root, topic)
    overrides: dict[str, str] = {}
    if config is not None:
        check_known(config, TOPIC_NAMES)
        changed = defaults.for_topic(config)
        changed.check_for_writing()
        overrides = {name: text for name, text in changed.to_kafka().items() if name in config}
        defaults = changed
    unknown = None
    if partitions is not None:
        unknown = Topic("", partitions, defaults.to_kafka(), json.dumps(overrides) if overrides else None)
    if topic is not None:
        found = topics.get(topic)
        if found is None and unknown is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}; partitions=... makes it")
        if found is not None and partitions is not None and found.partitions != partitions:
            raise ConfigError(f"topic {topic} has {found.partitions} partitions, and partitions is {partitions}")
    refuse_broker(paths[0])
    staging = staging_directory(paths, staging_dir)
    remove_stale(paths, staging)
    job = uuid.uuid4().hex if job is None else names.check_topic(job)
    return Stage(_Plan(paths[0], job, f"{staging}/{job}", topic, topics, unknown, compression, batch_bytes))


def _look(
    root: str | os.PathLike[str] | Store, topic: str | None
) -> tuple[tuple[str, ...], dict[str, Topic], LogConfig]:
    """The directories, this topic or all that there are, and what holds for one without settings of its own."""
    if isinstance(root, Store):
        return root.paths, _topics(root, topic), root.config
    path = os.path.realpath(os.fspath(root))
    if not fs.exists(path):
        return (path,), {}, LogConfig()
    with Store.open(path, "r") as store:
        return store.paths, _topics(store, topic), store.config


def _topics(store: Store, topic: str | None) -> dict[str, Topic]:
    return {
        name: Topic(name, store._count_of(name), store.topic_config(name).to_kafka())
        for name in store.topics
        if name not in names.INTERNAL_TOPICS and topic in (None, name)
    }


def refuse_broker(root: str) -> None:
    """Raise `StorageError` while a broker runs on a directory: what is staged for it could never be committed."""
    if not fs.exists(f"{root}/meta.properties"):
        return
    try:
        fs.lock_root(root, shared=True).release()
    except LogLockedError as error:
        if error.pid is None or _is_java(error.pid):
            raise StorageError(
                error.errno or 11, "a broker runs on this log directory: only the broker may write there", root
            ) from None


def _is_java(pid: int) -> bool:
    try:
        return fs.read_file(f"/proc/{pid}/comm").strip() == b"java"
    except StorageError:
        return True


def staging_directory(paths: Iterable[str], given: str | os.PathLike[str] | None) -> str:
    """Where tasks stage, as an absolute path; `ConfigError` inside a log directory, `StorageError` elsewhere."""
    roots = list(paths)
    path = f"{roots[0]}{SUFFIX}" if given is None else os.path.realpath(os.fspath(given))
    for root in roots:
        if path == root or path.startswith(root + os.sep):
            raise ConfigError(
                f"the staging directory {path} is inside of the log directory {root}: a broker would not start there"
            )
    if fs.stat(_there(path)).st_dev != fs.stat(_there(roots[0])).st_dev:
        raise StorageError(
            18,
            f"the staging directory is on another file system than the log directory {roots[0]}, and files cannot be "
            f"renamed over there; give staging_dir",
            path,
        )
    return path


def _there(path: str) -> str:
    """The path, or the nearest directory above it that is there."""
    while not fs.exists(path):
        path = os.path.dirname(path)
    return path


def remove_stale(paths: Iterable[str], staging: str, *, now: float | None = None) -> list[str]:
    """Remove what jobs have left that nobody has touched for `STALE_SECONDS` and no pending load needs; what went."""
    if not fs.exists(staging):
        return []
    needed = set()
    for root in paths:
        record = loads.read_commit(root) if fs.exists(root) else None
        needed |= set() if record is None else {os.path.basename(os.path.dirname(each)) for each in record.directories}
    limit = (time.time() if now is None else now) - STALE_SECONDS
    gone = []
    for job in fs.scandir(staging):
        if job.name in needed or not job.is_dir(follow_symlinks=False):
            continue
        try:
            newest = max([fs.stat(job.path).st_mtime, *(fs.stat(each.path).st_mtime for each in fs.scandir(job.path))])
            if newest < limit:
                remove_staged([each.path for each in fs.scandir(job.path)] or [f"{job.path}/none"])
                gone.append(job.path)
        except StorageError:  # its job removes it just now
            continue
    return gone
