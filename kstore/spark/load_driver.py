"""The driver's part of a load: commits, and whole loads.

Invariant: if the store remains locked, the staged files are kept and the error says how to commit them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kstore.base import arguments, optional
from kstore.base.numbers import INT_MAX
from kstore.disk import fs
from kstore.errors import KStoreError, LogLockedError
from kstore.files import load_files
from kstore.objects import staged_objects
from kstore.objects.remote_prefix import refuse_to_write
from kstore.spark.object_staging import discard_objects
from kstore.spark.spark_options import COMMIT_TIMEOUT
from kstore.spark.spark_rows import COLUMNS
from kstore.spark.staging import MANIFEST, MANIFEST_FILE, Stage, partitions_of, stage, staging_directory
from kstore.spark.workers import refuse_other_files, refuse_other_python
from kstore.store.bulk_loads.load_manifest import TASK_PREFIX, Adopted, Manifest, Staged, Transaction, check_transaction
from kstore.store.bulk_loads.staged_files import remove_job, remove_staged
from kstore.store.store import Store, loads_of

logger = logging.getLogger("kstore")

_PAUSE = 0.05  # seconds between two attempts to lock the store

Root = str | os.PathLike[str] | Store


def commit(
    root: Root,
    manifest: Manifest,
    *,
    txn: Transaction | None = None,
    commit_timeout: float = COMMIT_TIMEOUT,
    staging_dir: str | os.PathLike[str] | None = None,
    storage: Mapping[str, Any] | None = None,
) -> Adopted:
    """Add staged files to the logs, atomically and exactly once.

    Args:
        root: The log directory, or an open store.
        manifest: The rows that tasks returned. Records get offsets in the order of the rows.
        txn: An application's name and a version. The load is skipped unless its version is above the last committed
            one; without `txn`, the same manifest is committed once.
        commit_timeout: Seconds to wait while another process holds the store.
        staging_dir: The argument of `stage`. Staged files must be there or in `<root>.kstore-staging`; those in an
            object store are fetched, and deleted there after the load.
        storage: The argument of `stage`.

    Returns:
        The offsets of the new records.

    Raises:
        LogLockedError: If another process still holds the store. The error's `manifest` stays valid: commit it later,
            or let that process call `Store.adopt`.
        KStoreError: Any other error of `Store.adopt`.
        ValueError: If a row is invalid, or the manifest does not fit the topics.

    Example:
        >>> manifest = frame.mapInArrow(ks.stage("data", topic="orders", partitions=2), ks.MANIFEST).collect()
        >>> ks.commit("data", manifest, txn=("daily-load", 20261128)).records
        2
    """
    rows = [Staged.of(row) for row in manifest]
    check_transaction(txn)
    if isinstance(root, Store):
        return root.adopt(rows, txn=txn, staging_dir=staging_dir, storage=storage)
    refuse_to_write(root)
    own_area = None if staged_objects.is_url(staging_dir) else staging_dir
    deadline = time.monotonic() + (arguments.seconds("commit_timeout", commit_timeout) or 0.0)
    path = arguments.real_path("root", root)
    while True:
        try:
            with Store.open(path, background=False, staging_dir=own_area) as store:
                return store.adopt(rows, txn=txn, staging_dir=staging_dir, storage=storage)
        except LogLockedError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                error.manifest = tuple(rows)
                error.add_note(
                    f"the files staged for {path} are kept: commit the error's manifest later, or have the process "
                    f"that has the store call store.adopt(manifest, txn=...)"
                )
                raise
            time.sleep(min(_PAUSE, left))


def discard(
    root: Root,
    manifest: Manifest = (),
    *,
    job: str | None = None,
    staging_dir: str | os.PathLike[str] | None = None,
    storage: Mapping[str, Any] | None = None,
) -> None:
    """Delete staged files: those of a manifest, of a job, or of both. Files of a decided load are kept.

    Args:
        root: The log directory, or an open store.
        manifest: The rows whose directories are deleted.
        job: The name of a job whose directories are deleted, or the job's own directory (`Stage.directory`).
        staging_dir: The argument of `stage`. Staged files must be there or in `<root>.kstore-staging`.
        storage: The argument of `stage`.

    Raises:
        ConfigError: If the manifest names a directory outside of these.
        BackupError: If the object store does not answer.
        ValueError: If `job` is neither a name nor a directory of a job.

    Example:
        >>> import os
        >>> manifest = frame.mapInArrow(ks.stage("data", topic="orders", partitions=2), ks.MANIFEST).collect()
        >>> ks.discard("data", manifest)
        >>> os.path.exists(manifest[0]["directory"])
        False
    """
    rows = [Staged.of(row) for row in manifest]
    if staged_objects.is_url(staging_dir):
        discard_objects(str(staging_dir), rows, job, storage)
        return
    loading = loads_of(root).loading if isinstance(root, Store) else contextlib.nullcontext()
    with loading:  # wait for a load of this store
        _discard(root, rows, job, staging_dir)


def _discard(root: Root, rows: list[Staged], job: str | None, staging_dir: str | os.PathLike[str] | None) -> None:
    paths = root.paths if isinstance(root, Store) else (arguments.real_path("root", root),)
    records = [load_files.read_commit(path) for path in paths if fs.exists(path)]
    # Compare directories by name, since the root may have moved.
    needed = {os.path.basename(directory) for record in records if record for directory in record.directories}
    named = () if staging_dir is None else (arguments.real_path("staging_dir", staging_dir),)
    areas = load_files.staging_areas(paths, named)
    directories = list(dict.fromkeys(row.directory for row in rows))
    for directory in directories:
        load_files.check_staged(directory, areas)
    if job is not None:
        path = job if os.path.isabs(job) else f"{staging_directory(paths, staging_dir)}/{job}"
        if os.path.basename(job) != os.path.basename(path) or os.path.basename(job) in ("", ".", ".."):
            raise ValueError(f"{job!r} is neither the name of a job nor its directory")
        areas = load_files.staging_areas((), (*areas, os.path.dirname(path)))
        if fs.exists(path):
            fs.refuse_links(path, below=os.path.dirname(path))
            directories += [entry.path for entry in fs.scandir(path) if entry.name.startswith(TASK_PREFIX)]
            fs.unlink(f"{path}/{MANIFEST_FILE}")
            remove_job(path, os.path.dirname(path))
    remove_staged([directory for directory in directories if os.path.basename(directory) not in needed], areas)


def ingest(
    data: Any,
    root: Root,
    *,
    topic: str | None = None,
    partitions: int | None = None,
    txn: Transaction | None = None,
    compression: str | None = None,
    batch_bytes: int | None = None,
    config: Mapping[str, object] | None = None,
    staging_dir: str | os.PathLike[str] | None = None,
    commit_timeout: float = COMMIT_TIMEOUT,
    shared_files: bool = False,
    storage: Mapping[str, Any] | None = None,
) -> Adopted:
    """Append a DataFrame or an RDD of rows to logs, exactly once with a `txn`.

    Each partition of a topic gets its records in the order of the DataFrame's partitions, and of the rows in them.
    Errors of the schema or the topic are raised before any task runs. If `txn` was committed before, nothing is
    computed.

    Args:
        data: A DataFrame with the columns of Spark's Kafka sink (value, key, headers, topic, partition) and timestamp,
            which is passed as Arrow batches; or an RDD with rows as for `Stage.__call__`.
        root: The log directory, or an open store.
        topic: The topic of all rows; if None, the rows have a column `topic`.
        partitions: The number of partitions of a topic that the load creates; an existing `topic` must have as many.
        txn: An application's name and a version. The load is skipped unless its version is above the last committed
            one.
        compression: The codec of the batches if the topic's `compression.type` is "producer"; no compression if None.
        batch_bytes: The size up to which batches are filled, before compression. If None, it is between 64 KiB and
            1 MiB, and less for more partitions.
        config: Kafka's settings for topics that the load creates.
        staging_dir: The directory in which tasks stage; `<root>.kstore-staging` if None. Or a URL like
            `s3://bucket/prefix`: tasks then upload what they stage, and only the driver needs `root`.
        commit_timeout: Seconds to wait while another process holds the store.
        shared_files: Whether a client of Spark Connect and its server have the same files at the same path. A load is
            planned and committed in the client's process, and is refused otherwise. Other sessions do not need it.
        storage: Options of the object store, as in `kstore.backup`; the environment's if None.

    Returns:
        The offsets of the new records.

    Raises:
        LogLockedError: If another process still holds the store. The staged files are kept, and the error has their
            `manifest` for a later `commit`. After other errors the staged files are deleted.
        ConfigError: If arguments or columns do not fit, Spark's local workers cannot import kstore, or the session is
            one of Spark Connect and `shared_files` is false.
        TypeError: If `data` is neither a DataFrame nor an RDD.
        KStoreError: Any other error of `stage` and `commit`.

    Example:
        >>> report = ks.ingest(frame, "data", topic="orders", partitions=2, txn=("daily-load", 20261128))
        >>> report.records, report.offsets
        (2, {('orders', 0): (0, 1), ('orders', 1): (0, 1)})
        >>> ks.ingest(frame, "data", topic="orders", partitions=2, txn=("daily-load", 20261128)).duplicate
        True
    """
    application, version = check_transaction(txn)
    instead = 'df.write.format("kstore")'
    is_shared = shared_files or staged_objects.is_url(staging_dir)  # then only this process needs `root`
    refuse_other_files(data, is_shared, what="ks.ingest plans and commits a load", instead=instead)
    made = stage(
        root,
        topic=topic,
        partitions=partitions,
        compression=compression,
        batch_bytes=batch_bytes,
        config=config,
        staging_dir=staging_dir,
        storage=storage,
    )
    run = job_of(data, made, topic)
    if application is not None and _is_done(root, application, version):
        return Adopted(duplicate=True)
    refuse_other_python(getattr(data, "sparkSession", None) or getattr(data, "ctx", None))
    try:
        done = commit(root, run(), txn=txn, commit_timeout=commit_timeout, staging_dir=staging_dir, storage=storage)
    except LogLockedError:
        raise
    except BaseException:
        _clear(root, made)
        raise
    _clear(root, made)  # files of attempts that Spark did not use
    return done


def job_of(data: Any, made: Stage, topic: str | None) -> Callable[[], list[Any]]:
    """Return what runs Spark's job and returns its manifest, after a check of the columns."""
    schema: Any = getattr(data, "schema", None)
    if schema is not None and hasattr(data, "mapInArrow"):
        optional.pyarrow("ingest", extra="spark")
        made.check([(column.name, column.dataType.simpleString()) for column in schema.fields])
        names = [column.name for column in schema.fields]
        wanted = [name for name in names if name in COLUMNS and (name != "topic" or not topic)]
        frame = data.select(*wanted) if len(wanted) < len(names) else data
        return lambda: list(frame.mapInArrow(made, MANIFEST).collect())
    if not hasattr(data, "mapPartitions"):
        raise TypeError(f"a DataFrame or an RDD is needed, not {type(data).__name__}")
    return lambda: list(data.mapPartitions(made).collect())


def _clear(root: Root, made: Stage) -> None:
    """Delete a job's staged files; only log an error, since the load is done or has failed already."""
    try:
        discard_job(root, made)
    except KStoreError as error:
        logger.warning("%s: staged files stay behind: %s", made.directory, error)


def discard_job(root: Root, made: Stage) -> None:
    """Delete what all attempts of a job have staged, except for a decided load."""
    area = made.directory.rpartition("/")[0] if staged_objects.is_url(made.directory) else None
    discard(root, job=made.directory, staging_dir=area, storage=made.storage)


def _is_done(root: Root, application: str, version: int) -> bool:
    """Return whether files show, without the store's lock, that a transaction was committed."""
    if isinstance(root, Store):
        return loads_of(root).has(application, version)
    path = arguments.real_path("root", root)
    return fs.exists(path) and load_files.read_done([path]).has("", application, version)


def partition_of(key: Any, partitions: int) -> Any:
    """Return a column with the partition to which Kafka's default partitioner sends each key.

    An Arrow UDF computes the column; in Spark 4.0, a pandas UDF.

    Args:
        key: A column of strings or bytes, or its name.
        partitions: The number of partitions of the topic.

    Returns:
        A column of integers; null for a null key.

    Raises:
        ConfigError: If PySpark or PyArrow is missing.

    Example:
        >>> placed = frame.select("key", ks.partition_of("key", 2).alias("partition"))
        >>> {row["key"]: row["partition"] for row in placed.collect()}
        {b'alice': 1, b'bob': 0}
    """
    arguments.integer("partitions", partitions, 1, INT_MAX)
    functions = optional.pyspark("partition_of", "pyspark.sql.functions")
    pa = optional.pyarrow("partition_of", extra="spark")
    column = functions.col(key) if isinstance(key, str) else key

    def arrow(keys: Any) -> Any:
        return _partitions(pa, keys, partitions)

    def pandas(keys: Any) -> Any:
        return _partitions(pa, pa.Array.from_pandas(keys), partitions).to_pandas()

    if hasattr(functions, "arrow_udf"):
        arrow.__annotations__ = {"keys": pa.Array, "return": pa.Array}  # Spark chooses the kind of UDF by these
        return functions.arrow_udf(arrow, returnType="int")(column)
    series = optional.pandas("partition_of").Series  # Spark 4.0
    pandas.__annotations__ = {"keys": series, "return": series}
    return functions.pandas_udf(pandas, returnType="int")(column)


def _partitions(pa: Any, keys: Any, partitions: int) -> Any:
    if pa.types.is_null(keys.type):
        return pa.nulls(len(keys), pa.int32())
    numbers = np.frombuffer(partitions_of(keys, partitions), np.int32)
    return pa.array(numbers, pa.int32(), mask=numbers < 0)
