"""Stages rows in Spark's tasks: writes private segment files, and returns a manifest row for each filled partition.

A `Stage` is made on the driver, which checks its arguments, and is pickled into tasks. Invariant: a task attempt writes
only into its own directory. Memory does not grow with the number of rows: it holds one of Spark's record batches (64
MiB by default) and copies of a slice of it, or a block of rows; an attempt's memory (task_attempt.py) is added.
"""

from __future__ import annotations

import itertools
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from kstore.base import arguments, optional
from kstore.codec import compression as codecs
from kstore.columns.column_input import ColumnInput
from kstore.config.log_config import TOPIC_NAMES, LogConfig
from kstore.config.settings import check_known
from kstore.disk import fs
from kstore.errors import ConfigError, InvalidRecordError, LogLockedError, StorageError, UnknownTopicOrPartitionError
from kstore.files import load_files, names
from kstore.files.follower_file import read_role
from kstore.files.topic_files import MAX_PARTITIONS
from kstore.objects import staged_objects
from kstore.objects.open_objects import open_objects
from kstore.objects.remote_prefix import refuse_to_write
from kstore.spark.spark_rows import COLUMNS, Row, Types, blocks, check, check_stamps, from_pandas, simple_name
from kstore.spark.storage_options import StorageOptions
from kstore.spark.task_attempt import Attempt, Topic
from kstore.spark.task_upload import upload
from kstore.store.bulk_loads.load_manifest import TASK_PREFIX, Staged
from kstore.store.bulk_loads.staged_files import remove_job, remove_staged
from kstore.store.store import Store, partition_count
from kstore.store.topics import _column_partitioner, _partitioner

MANIFEST = (
    "job string, directory string, task long, topic string, partition int, partitions int, records long, batches long, "
    "bytes long, max_timestamp long, segments string, config string, query string, batch long, objects string"
)
"""The schema of a manifest, for `df.mapInArrow(stage, MANIFEST)`."""

STALE_SECONDS = 7 * 24 * 3600
"""Staged files that were not changed for a week are deleted if no load needs them: no running job pauses that long."""

MANIFEST_FILE = "manifest.json"
"""The manifest of a stream's batch that could not be committed, in the directory of its job."""

SLICE_BYTES = 8 << 20  # a record batch is staged in slices of this size


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments that all tasks of a load get. Plain values only."""

    root: str
    job: str
    directory: str
    topic: str | None
    topics: Mapping[str, Topic]
    unknown: Topic | None  # a template of the topics that the commit creates
    compression: str | None
    batch_bytes: int | None
    storage: StorageOptions | None = None


class Stage:
    """A picklable callable that stages the rows of one task, for `df.mapInArrow` and the like; `stage` makes it.

    `job` identifies the load: every attempt of every task stages in a directory below the job's `directory`.
    Thread-safe.

    Example:
        >>> stage = ks.stage("data", topic="orders", partitions=2)
        >>> manifest = frame.mapInArrow(stage, ks.MANIFEST).collect()
        >>> {row["job"] for row in manifest} == {stage.job}
        True
    """

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    @property
    def job(self) -> str:
        """The name of the load."""
        return self._plan.job

    @property
    def directory(self) -> str:
        """The directory in which all tasks of the load stage; in an object store a URL."""
        return self._plan.directory

    @property
    def root(self) -> str:
        """The log directory that the load is for; "" for an upload, which is for any."""
        return self._plan.root

    @property
    def storage(self) -> Mapping[str, Any] | None:
        """The options of the object store. Its text has only their names."""
        return self._plan.storage

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        """Stage the rows of one task; yield manifest rows in the form of the items: batches, frames, or `Staged`.

        `items` are Arrow record batches (mapInArrow), pandas frames (mapInPandas), or rows: tuples `(key, value[,
        partition[, timestamp[, headers]]])`, Spark's Rows with the names of columns, or values as bytes.
        """
        iterator = iter(items)
        first: Any = next(iterator, _NOTHING)
        if first is _NOTHING:
            return
        iterator = itertools.chain((first,), iterator)
        module = type(first).__module__.partition(".")[0]
        if module == "pyarrow":
            if staged := self.write(iterator):
                yield _manifest_batch(staged)
        elif module == "pandas":
            pa = optional.pyarrow("mapInPandas", extra="spark")
            if staged := self.write(from_pandas(pa, frame) for frame in iterator):
                yield type(first)([asdict(row) for row in staged])
        else:
            with self._attempt() as attempt:
                for block in blocks(iterator):
                    self._append_rows(attempt, block)
                staged = self._finish(attempt)
            yield from staged

    def write(self, batches: Iterable[Any]) -> list[Staged]:
        """Stage the rows of one task durably.

        Args:
            batches: Arrow record batches.

        Returns:
            A manifest row for each partition that got rows.

        Raises:
            InvalidRecordError: If the topic refuses a row. No file is left then, as after any error.
            RecordTooLargeError: If a record exceeds `max.message.bytes`.
            ConfigError: If the columns do not fit.
            UnknownTopicOrPartitionError: If a row's topic does not exist and the load cannot create it.
            StorageError: If the files cannot be written.
            BackupError: If the object store in which the tasks stage does not take them.

        Example:
            >>> rows = stage.write(frame.toArrow().to_batches())
            >>> sum(row.records for row in rows)
            2
        """
        with self._attempt() as attempt:
            iterator = iter(batches)
            while (batch := next(iterator, None)) is not None:
                # A slice is copied into the batches of all its partitions before any of these is written.
                step = max(batch.num_rows * SLICE_BYTES // max(batch.nbytes, 1), 1)
                for start in range(0, batch.num_rows, step):
                    self._append_batch(attempt, batch.slice(start, step), start)
                batch = None  # release this batch before the next one is fetched
            return self._finish(attempt)

    def check(self, types: Types) -> None:
        """Check the names and types of columns.

        Args:
            types: Names of columns with Spark's simple names of their types; None for a type that is not known.

        Raises:
            ConfigError: If a column is missing, has the wrong type, or occurs twice.

        Example:
            >>> stage.check(frame.dtypes)
            >>> stage.check(frame.drop("value").dtypes)
            Traceback (most recent call last):
            ...
            kstore.errors.ConfigError: ...
        """
        check(types, wants_topic=self._plan.topic is None)

    @contextmanager
    def _attempt(self) -> Iterator[Attempt]:
        """Yield an attempt, which stages in the job's directory, or for an object store in a temporary one."""
        plan = self._plan
        task, query, batch = running_task()
        own = TemporaryDirectory(prefix="kstore-staging-") if self._is_remote else nullcontext()
        with (
            own as temporary,
            Attempt(
                plan.directory if temporary is None else f"{temporary}/{plan.job}",
                plan.job,
                task,
                compression=plan.compression,
                batch_bytes=plan.batch_bytes,
                query=query,
                batch=batch,
            ) as attempt,
        ):
            yield attempt

    @property
    def _is_remote(self) -> bool:
        return staged_objects.is_url(self._plan.directory)

    def _finish(self, attempt: Attempt) -> list[Staged]:
        staged = attempt.finish()
        if not self._is_remote:
            return staged
        return upload(staged, self._plan.directory.rpartition("/")[0], self._plan.job, self._plan.storage)

    def _topic(self, name: Any) -> Topic:
        if name is None:
            raise InvalidRecordError(
                "null topic present in the data. Use the topic option for setting a default topic."
            )
        name = str(name)
        topic = self._plan.topics.get(name)
        if topic is None:
            default = self._plan.unknown
            if default is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name[:300]!r}, and partitions is not given")
            topic = Topic(names.check_topic(name), default.partitions, default.settings, default.config)
        return topic

    def _append_batch(self, attempt: Attempt, batch: Any, first: int) -> None:
        """Append a slice of a record batch, whose row 0 is row `first` of the batch."""
        pa = optional.pyarrow("staging record batches", "compute", extra="spark")
        self.check([(field.name, simple_name(pa, field.type)) for field in batch.schema if field.name in COLUMNS])
        columns = {name: batch.column(name) for name in COLUMNS if batch.schema.get_field_index(name) >= 0}
        if (stamps := columns.get("timestamp")) is not None:
            check_stamps(pa, stamps, first)
        if self._plan.topic is not None:
            self._append_columns(pa, attempt, self._topic(self._plan.topic), columns)
            return
        topics = columns["topic"]
        for name in pa.compute.unique(topics):
            topic = self._topic(name.as_py())
            rows = pa.compute.equal(topics, name)
            of_topic = {key: _taken(pa, column).filter(rows) for key, column in columns.items() if key != "topic"}
            self._append_columns(pa, attempt, topic, of_topic)

    def _append_columns(self, pa: Any, attempt: Attempt, topic: Topic, columns: dict[str, Any]) -> None:
        """Append rows of one topic to the partition that they name, else by key, else to changing partitions."""
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
            rows = {name: column.slice(start, end - start) for name, column in columns.items()}
            partition = int(wanted[start])
            if partition == _KEYLESS:
                keyless = end
                continue
            attempt.append(topic, _in_step(pa, attempt, rows), partition)
        if keyless:
            rows = {name: column.slice(0, keyless) for name, column in columns.items()}
            attempt.append(topic, _in_step(pa, attempt, rows))

    def _append_rows(self, attempt: Attempt, rows: list[Row]) -> None:
        """Append a block of rows that are Python objects."""
        groups: dict[tuple[str | None, int | None], list[Row]] = {}
        explicit = any(row.partition is not None for row in rows)
        name = self._plan.topic
        for row in rows:
            partition = row.partition
            if explicit and partition is None and row.key is not None:
                topic = self._topic(row.topic if name is None else name)
                partition = _partitioner.partition_of(row.key, topic.partitions)
            groups.setdefault((row.topic if name is None else name, partition), []).append(row)
        for (topic_name, partition), group in groups.items():
            stamps = [row.timestamp for row in group]
            headers = [row.headers for row in group]
            attempt.append(
                self._topic(topic_name),
                attempt.columns(
                    [row.value for row in group],
                    [row.key for row in group],
                    stamps if any(stamp is not None for stamp in stamps) else None,
                    headers if any(headers) else None,
                ),
                partition,
            )


_KEYLESS = -(2**40)  # not a 32-bit number, so it is in no partition column


def _by_key(pa: Any, attempt: Attempt, topic: Topic, columns: dict[str, Any]) -> Any:
    """Return the partition of each row's key; `_KEYLESS` for a row without a key."""
    keys = columns.get("key")
    rows = len(columns["value"])
    if keys is None:
        return np.full(rows, _KEYLESS, np.int64)
    partitions = np.frombuffer(partitions_of(_plain(pa, keys), topic.partitions, attempt), np.int32).astype(np.int64)
    return np.where(partitions < 0, _KEYLESS, partitions)


def partitions_of(keys: Any, partitions: int, attempt: Attempt | None = None) -> bytes:
    """Return the partition that Kafka's default partitioner gives each key: native int32, -1 for null."""
    columns = ColumnInput(keys, keys, None, None, 0 if attempt is None else attempt.now_ms)
    return b"".join(_column_partitioner.partitions_of(rows, partitions) for rows in columns)


def _in_step(pa: Any, attempt: Attempt, columns: dict[str, Any]) -> Any:
    """Return the columns of an Arrow batch in the form that `Attempt.append` takes."""
    parts = {name: column for name, column in columns.items() if name == "value" or not pa.types.is_null(column.type)}
    return attempt.columns(_plain(pa, parts["value"]), parts.get("key"), parts.get("timestamp"), parts.get("headers"))


def _plain(pa: Any, column: Any) -> Any:
    return column.cast(pa.binary()) if pa.types.is_null(column.type) else column


def _taken(pa: Any, column: Any) -> Any:
    """Return the column in a layout that Arrow can filter and reorder; Arrow cannot do this with view types."""
    if pa.types.is_binary_view(column.type) or pa.types.is_string_view(column.type):
        return column.cast(pa.large_binary() if pa.types.is_binary_view(column.type) else pa.large_string())
    return column


def renamed(made: Stage, job: str) -> Stage:
    """Return a stage for the same load under another name of the job."""
    plan = made._plan
    return Stage(replace(plan, job=job, directory=f"{os.path.dirname(plan.directory)}/{names.check_topic(job)}"))


_NOTHING = object()  # None cannot be used: it is a row without a value


def _manifest_batch(staged: list[Staged]) -> Any:
    pa = optional.pyarrow("a manifest", extra="spark")
    kinds = {"string": pa.string(), "long": pa.int64(), "int": pa.int32()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in MANIFEST.split(", "))])
    return pa.RecordBatch.from_pylist([asdict(row) for row in staged], schema=schema)


def running_task() -> tuple[int, str | None, int | None]:
    """Return the number of Spark's task (0 outside of a task), and a stream's query and micro-batch."""
    pyspark = optional.pyspark_if_installed()
    context = None if pyspark is None else pyspark.TaskContext.get()
    if context is None:
        return 0, None, None
    query, batch = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
    return context.partitionId(), query, None if batch is None else int(batch)


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
    storage: Mapping[str, Any] | None = None,
) -> Stage:
    """Return the callable to pass to `df.mapInArrow`, `df.mapInPandas` or `rdd.mapPartitions`.

    Args:
        root: The log directory, or an open store.
        topic: The topic of all rows; if None, the rows have a column `topic`.
        partitions: The number of partitions of a topic that the load creates; an existing `topic` must have as many.
        compression: The codec of the batches if the topic's `compression.type` is "producer"; no compression if None.
        batch_bytes: The size up to which batches are filled, before compression. If None, it is between 64 KiB and
            1 MiB, and less for more partitions.
        config: Kafka's settings for topics that the load creates.
        staging_dir: The directory in which tasks stage: on the file system of `root`, but not inside of `root`.
            `<root>.kstore-staging` if None. Or a URL like `s3://bucket/prefix`: tasks then stage on their own disks and
            upload, and `commit` fetches the files.
        columns: The names of the columns that will be staged; they are checked now if given.
        job: A name for the load; a unique one if None.
        storage: Options of the object store, as in `kstore.backup`; the environment's if None.

    Returns:
        A `Stage`, whose results are the manifest for `commit`.

    Raises:
        ConfigError: If a setting or a column is bad, or arguments do not fit together.
        InvalidTopicError: If `topic` or `job` is not a valid name of a topic.
        ValueError: If a number is out of range, or the compression is unknown.
        UnknownTopicOrPartitionError: If the topic does not exist and `partitions` is None.
        NotLeaderError: If the directory is a follower's.
        StorageError: If a running broker has locked the directory, or files cannot be renamed into it.
        BackupError: If the object store does not answer.

    Example:
        >>> stage = ks.stage("data", topic="orders", partitions=2)
        >>> manifest = frame.mapInArrow(stage, ks.MANIFEST).collect()
        >>> ks.commit("data", manifest).records
        2
    """
    paths, topics, defaults = _look(root, topic)
    planned = check_load(topic, partitions, compression, batch_bytes, config, columns, topics, defaults)
    refuse_others(paths[0])
    if staged_objects.is_url(staging_dir):
        if not fs.exists(paths[0]):
            raise ConfigError(
                f"there is no directory {paths[0]} here, where a load from {staging_dir} would be committed: make it, "
                f"or upload with ks.upload and adopt where it is"
            )
        staging = open_area(str(staging_dir), storage)
    elif storage:
        raise ConfigError("options of an object store are given, and the staging directory is no URL")
    else:
        staging = staging_directory(paths, staging_dir)
        remove_stale(paths, staging)
    job = uuid.uuid4().hex if job is None else names.check_topic(job)
    return made_of(planned, paths[0], staging, job, storage)


class Planned(NamedTuple):
    """The checked arguments of a load."""

    topic: str | None
    topics: Mapping[str, Topic]
    unknown: Topic | None
    compression: str | None
    batch_bytes: int | None


def made_of(planned: Planned, root: str, staging: str, job: str, storage: Mapping[str, Any] | None) -> Stage:
    options = None if storage is None else StorageOptions(storage)
    return Stage(_Plan(root, job, f"{staging}/{job}", *planned, options))


def open_area(url: str, storage: Mapping[str, Any] | None) -> str:
    """Return the staging URL in its plain form, after a look that deletes jobs that ended a week ago."""
    staging = staged_objects.check_url(url)
    with open_objects(staging, storage, create=True) as objects:
        staged_objects.remove_stale(objects)
    return staging


def check_load(
    topic: str | None,
    partitions: int | None,
    compression: str | None,
    batch_bytes: int | None,
    config: Mapping[str, object] | None,
    columns: Iterable[str] | None,
    topics: Mapping[str, Topic],
    defaults: LogConfig,
) -> Planned:
    """Check the arguments of `stage` against the topics that exist."""
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
    overrides: dict[str, str] = {}
    if config is not None:
        check_known(config, TOPIC_NAMES)
        defaults = defaults.for_topic(config)
        defaults.check_for_writing()
        overrides = {name: text for name, text in defaults.to_kafka().items() if name in config}
    unknown = None
    if partitions is not None:
        unknown = Topic("", partitions, defaults.to_kafka(), json.dumps(overrides) if overrides else None)
    if topic is not None:
        existing = topics.get(topic)
        if existing is None and unknown is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}; partitions=... makes it")
        if existing is not None and partitions is not None and existing.partitions != partitions:
            raise ConfigError(f"topic {topic} has {existing.partitions} partitions, and partitions is {partitions}")
    return Planned(topic, topics, unknown, compression, batch_bytes)


def _look(
    root: str | os.PathLike[str] | Store, topic: str | None
) -> tuple[tuple[str, ...], dict[str, Topic], LogConfig]:
    """Return the directories, the topics (or only `topic`), and the settings of topics that have none of their own."""
    if isinstance(root, Store):
        return root.paths, _topics(root, topic), root.config
    refuse_to_write(root)
    path = arguments.real_path("root", root)
    if not fs.exists(path):
        return (path,), {}, LogConfig()
    with Store.open(path, "r") as store:
        return store.paths, _topics(store, topic), store.config


def _topics(store: Store, topic: str | None) -> dict[str, Topic]:
    return {
        name: Topic(name, partition_count(store, name), store.topic_config(name).to_kafka())
        for name in store.topics
        if name not in names.INTERNAL_TOPICS and topic in (None, name)
    }


def refuse_others(root: str) -> None:
    """Raise `NotLeaderError` for a follower's directory, and `StorageError` if a broker uses the directory."""
    follows = read_role(root)
    if follows is not None:
        raise follows.refusal(root)
    if not fs.exists(f"{root}/meta.properties"):
        return
    try:
        fs.lock_root(root, shared=True).release()
    except LogLockedError as error:
        if error.pid is None or _is_java(error.pid):
            reason = "a broker runs on this log directory: only the broker may write there"
            raise StorageError(error.errno or 11, reason, root) from None


def _is_java(pid: int) -> bool:
    try:
        return fs.read_file(f"/proc/{pid}/comm").strip() == b"java"
    except StorageError:
        return True


def staging_directory(paths: Iterable[str], given: str | os.PathLike[str] | None) -> str:
    """Return the staging directory. `ConfigError`: it is in a log directory; `StorageError`: on another file system."""
    roots = list(paths)
    path = load_files.staging_areas(roots)[0] if given is None else arguments.real_path("staging_dir", given)
    fs.refuse_links(path, below=path)
    for root in roots:
        if path == root or path.startswith(root + os.sep):
            raise ConfigError(
                f"the staging directory {path} is inside of the log directory {root}: a broker would not start there"
            )
    if fs.stat(_nearest(path)).st_dev != fs.stat(_nearest(roots[0])).st_dev:
        what = f"the staging directory is on another file system than the log directory {roots[0]}"
        raise StorageError(18, f"{what}, and files cannot be renamed over there; give staging_dir", path)
    return path


def _nearest(path: str) -> str:
    """Return the path, or its nearest parent directory that exists."""
    while not fs.exists(path):
        path = os.path.dirname(path)
    return path


def remove_stale(paths: Iterable[str], staging: str, *, now: float | None = None) -> list[str]:
    """Delete and return jobs' directories that are older than `STALE_SECONDS` and not needed by a pending load."""
    if not fs.exists(staging):
        return []
    records = [load_files.read_commit(root) for root in paths if fs.exists(root)]
    directories = [directory for record in records if record for directory in record.directories]
    needed = {os.path.basename(os.path.dirname(directory)) for directory in directories}
    limit = (time.time() if now is None else now) - STALE_SECONDS
    removed = []
    for job in fs.scandir(staging):
        if job.name in needed or not job.is_dir(follow_symlinks=False):
            continue
        try:
            left = fs.scandir(job.path)
            paths_of_job = [job.path, *(entry.path for entry in left)]
            newest = max(fs.stat(path, follow=False).st_mtime for path in paths_of_job)
            if newest < limit and all(entry.name.startswith((TASK_PREFIX, MANIFEST_FILE)) for entry in left):
                fs.unlink(f"{job.path}/{MANIFEST_FILE}")
                remove_staged([entry.path for entry in left if entry.name.startswith(TASK_PREFIX)], [staging])
                remove_job(job.path, staging)
                removed.append(job.path)
        except StorageError:  # the job itself is removing it
            continue
    return removed
