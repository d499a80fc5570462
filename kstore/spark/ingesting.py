"""What runs on the driver: commits, and whole loads.

Opens a store where a path is given, waits for its lock, and calls `Store.adopt`; needs no Spark but what it is handed.
The hardest rule: whoever is refused the lock keeps what was staged, and is told how to go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from kstore import arguments, fs, loads
from kstore.adopt import Adopted, Manifest, Staged, Transaction, check_transaction, remove_staged
from kstore.errors import KStoreError, LogLockedError
from kstore.spark import needs
from kstore.spark.rows import COLUMNS
from kstore.spark.staging import MANIFEST, partitions_of, stage, staging_directory
from kstore.store import Store

logger = logging.getLogger("kstore")

COMMIT_TIMEOUT = 60.0
_PAUSE = 0.05  # between two looks at a lock; nobody wakes us

Root = str | os.PathLike[str] | Store


def commit(
    root: Root,
    manifest: Manifest,
    *,
    txn: Transaction | None = None,
    commit_timeout: float = COMMIT_TIMEOUT,
) -> Adopted:
    """Make what was staged part of the logs; exactly once for a `txn`, else for this manifest.

    Waits up to `commit_timeout` seconds while another process holds the store, then raises `LogLockedError`, whose
    `manifest` stays valid: commit it later, or hand it to who holds the store (`Store.adopt`). Otherwise raises what
    `Store.adopt` raises.
    """
    rows = [Staged.of(row) for row in manifest]
    check_transaction(txn)
    if isinstance(root, Store):
        return root.adopt(rows, txn=txn)
    deadline = time.monotonic() + (arguments.seconds("commit_timeout", commit_timeout) or 0.0)
    path = os.path.realpath(os.fspath(root))
    while True:
        try:
            with Store.open(path, background=False) as store:
                return store.adopt(rows, txn=txn)
        except LogLockedError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                error.manifest = tuple(rows)
                error.add_note(
                    f"what was staged for {path} is kept: commit the error's manifest later, or have the process that "
                    f"has the store call store.adopt(manifest, txn=...)"
                )
                raise
            time.sleep(min(_PAUSE, left))


def discard(root: Root, manifest: Manifest = (), *, job: str | None = None) -> None:
    """Give up what was staged: the directories of `manifest`, or all of a `job`; nothing that a load is decided for.

    `job` is a job's name, or the directory of one that stages elsewhere than beside the root (`Stage.directory`).
    """
    rows = [Staged.of(row) for row in manifest]
    with root._adopting if isinstance(root, Store) else contextlib.nullcontext():  # a load may be on its way there
        _discard(root, rows, job)


def _discard(root: Root, rows: list[Staged], job: str | None) -> None:
    paths = root.paths if isinstance(root, Store) else (os.path.realpath(os.fspath(root)),)
    needed: set[str] = set()
    for path in paths:
        record = loads.read_commit(path) if fs.exists(path) else None
        needed |= set() if record is None else set(map(os.path.basename, record.directories))  # the root may have moved
    directories = list(dict.fromkeys(row.directory for row in rows))
    if job is not None:
        place = job if os.path.isabs(job) else f"{staging_directory(paths, None)}/{job}"
        if os.path.basename(job) != os.path.basename(place) or os.path.basename(job) in ("", ".", ".."):
            raise ValueError(f"{job!r} is neither the name of a job nor its directory")
        if fs.exists(place):
            directories += [entry.path for entry in fs.scandir(place)] or [f"{place}/none"]
    remove_staged(each for each in directories if os.path.basename(each) not in needed)


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
) -> Adopted:
    """Pour a DataFrame, or an RDD of rows, into logs, exactly once with a `txn`; where it went.

    A DataFrame has the columns of Spark's Kafka sink (value, key, headers, topic, partition) and timestamp, and goes
    through Arrow; an RDD what `stage` says of rows. Each partition of a topic gets its records in the order of the
    DataFrame's partitions, and of the rows in them. With a `txn` that has been committed nothing is computed.

    Raises what `stage` and `commit` raise; what is wrong with the schema or the topic is said before any task runs.
    When the store stays locked, `LogLockedError` has the `manifest`, and the staged files are kept.
    """
    application, version = check_transaction(txn)
    made = stage(
        root,
        topic=topic,
        partitions=partitions,
        compression=compression,
        batch_bytes=batch_bytes,
        config=config,
        staging_dir=staging_dir,
    )
    schema = getattr(data, "schema", None)
    if schema is not None and hasattr(data, "mapInArrow"):
        needs.pyarrow("ingest")
        made.check([(each.name, each.dataType.simpleString()) for each in schema.fields])
        wanted = [each.name for each in schema.fields if each.name in COLUMNS and (each.name != "topic" or not topic)]
        if len(wanted) < len(schema.fields):
            data = data.select(*wanted)
    elif not hasattr(data, "mapPartitions"):
        raise TypeError(f"a DataFrame or an RDD is taken, not {type(data).__name__}")
    if application is not None and _is_done(root, application, version):
        return Adopted(duplicate=True)
    try:
        if schema is not None and hasattr(data, "mapInArrow"):
            manifest = data.mapInArrow(made, MANIFEST).collect()
        else:
            manifest = data.mapPartitions(made).collect()
        done = commit(root, manifest, txn=txn, commit_timeout=commit_timeout)
    except LogLockedError:
        raise
    except BaseException:
        _clear(root, made.directory)
        raise
    _clear(root, made.directory)  # of attempts that lost
    return done


def _clear(root: Root, directory: str) -> None:
    """Discard what a job has left. What that meets is logged: it changes nothing about whether the load took place."""
    try:
        discard(root, job=directory)
    except KStoreError as error:
        logger.warning("%s: staged files stay behind: %s", directory, error)


def _is_done(root: Root, application: str, version: int) -> bool:
    """Whether a transaction has been committed, as far as that can be seen without the store's lock."""
    if isinstance(root, Store):
        return root._done.has("", application, version)
    path = os.path.realpath(os.fspath(root))
    return fs.exists(path) and loads.read_done([path]).has("", application, version)


def partition_of(key: Any, partitions: int) -> Any:
    """The column that says where Kafka's default partitioner sends a `key`, by an Arrow UDF; null for a null key.

    `key` is a column of strings or bytes, or its name.
    """
    arguments.integer("partitions", partitions, 1, arguments.INT_MAX)
    functions = needs.pyspark("partition_of", "pyspark.sql.functions")
    pa = needs.pyarrow("partition_of")
    column = functions.col(key) if isinstance(key, str) else key

    def arrow(keys: Any) -> Any:
        return _partitions(pa, keys, partitions)

    def pandas(keys: Any) -> Any:
        return _partitions(pa, pa.Array.from_pandas(keys), partitions).to_pandas()

    if hasattr(functions, "arrow_udf"):
        arrow.__annotations__ = {"keys": pa.Array, "return": pa.Array}  # Spark decides by these what is called how
        return functions.arrow_udf(arrow, returnType="int")(column)
    series = needs.pandas("partition_of").Series  # Spark 4.0
    pandas.__annotations__ = {"keys": series, "return": series}
    return functions.pandas_udf(pandas, returnType="int")(column)


def _partitions(pa: Any, keys: Any, partitions: int) -> Any:
    """The partitions of an Arrow array of keys."""
    if pa.types.is_null(keys.type):
        return pa.nulls(len(keys), pa.int32())
    found = np.frombuffer(partitions_of(keys, partitions), np.int32)
    return pa.array(found, pa.int32(), mask=found < 0)
