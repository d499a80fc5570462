"""The sink of `df.writeStream.format("kstore")`: each micro-batch is a load whose transaction is (query, batch).

Spark makes a writer for each micro-batch, pickles it into the tasks, and makes another one that commits. So the query
and the batch travel in the messages of the tasks. The module can be imported without Spark.

Invariant: a batch that Spark commits again after a crash changes nothing, and `abort` keeps the files of a batch that
is decided, or that waits for a store that another process holds.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kstore.disk import fs
from kstore.errors import ConfigError, KStoreError, LogLockedError
from kstore.files import load_files, names
from kstore.objects import staged_objects
from kstore.spark.load_driver import commit, discard
from kstore.spark.load_writer import stage_of
from kstore.spark.object_staging import clear_batches, discard_but_published, publish
from kstore.spark.spark_options import WriteOptions
from kstore.spark.staging import MANIFEST_FILE, renamed, running_task
from kstore.store.bulk_loads.load_manifest import Staged
from kstore.store.catalog import look

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

    HAS_ARROW_SINK = True
except ImportError:  # PySpark 4.0, or none
    HAS_ARROW_SINK = False
    if not TYPE_CHECKING:
        DataSourceStreamArrowWriter = WriterCommitMessage = object

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger("kstore")


def stream_writer(root: str, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Return the writer of a micro-batch; raise `ConfigError` for what a log cannot take."""
    if overwrite:
        raise ConfigError(
            'outputMode("complete") is not for logs: it replaces all rows with each batch, and records are appended; '
            'use outputMode("append"), or foreachBatch with ks.ingest'
        )
    if not HAS_ARROW_SINK:
        raise ConfigError(
            "a stream into kstore needs PySpark 4.1 or newer; before it use foreachBatch with "
            "ks.ingest(batch, root, txn=(name, batch_id))"
        )
    parsed = WriteOptions.parse(options)
    if parsed.txn is not None:
        raise ConfigError(
            "txnAppId and txnVersion are not for streams: the transaction of a micro-batch is its query and its number"
        )
    return StreamWriter(root, parsed, schema)


@dataclass
class WrittenBatch(WriterCommitMessage):
    """What one task of a micro-batch has staged. `query` and `batch` are Spark's, from the task's context."""

    staged: tuple[Staged, ...]
    query: str
    batch: int


class StreamWriter(DataSourceStreamArrowWriter):
    """Stages in the tasks of a micro-batch, and commits it on the driver's host, in a process that Spark starts."""

    def __init__(self, root: str, options: WriteOptions, schema: StructType) -> None:
        self._root = root
        self._options = options
        self._stage = stage_of(root, options, schema)

    def write(self, iterator: Iterator[Any]) -> WrittenBatch:
        """Stage the rows of one task, in a directory of the batch."""
        _, query, batch = running_task()
        if query is None or batch is None:
            raise ConfigError("the task knows no streaming query and no batch")
        staged = renamed(self._stage, _job(query, batch)).write(iterator)
        return WrittenBatch(tuple(staged), query, batch)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit a micro-batch, unless it is committed already; after an error Spark calls `abort`."""
        query = _query_of(messages, batchId)
        if query is None:
            return  # no task has run
        manifest = [row for message in messages if message is not None for row in message.staged]
        options = self._options
        application = f"{load_files.STREAM_PREFIX}{query}"
        self._check_order(application, query, batchId, manifest)
        if manifest:
            try:
                commit(
                    self._root,
                    manifest,
                    txn=(application, batchId),
                    staging_dir=options.staging_dir,
                    storage=options.storage,
                    commit_timeout=options.commit_timeout,
                )
            except LogLockedError as error:
                if self._is_remote:
                    job = os.path.dirname(manifest[0].directory)
                    url = publish(job, manifest, (application, batchId), options.storage)
                    error.__notes__ = [
                        f"batch {batchId} of the query is staged in {url}. Restart the query when the store is free; "
                        f"or have the process that holds it call store.adopt({url!r})"
                    ]
                    raise
                path = self._keep(manifest)
                area = "" if options.staging_dir is None else f", staging_dir={self._area!r}"
                error.__notes__ = [
                    f"batch {batchId} of the query is staged, and its manifest is {path}. Restart the query when the "
                    f"store is free; or have the process that holds it commit the batch: "
                    f"store.adopt(json.load(open({path!r})), txn={(application, batchId)!r}{area})"
                ]
                raise
        self._clear(query, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Delete the staged files of a micro-batch, except those of a decided load and of one that waits."""
        query = _query_of(messages, batchId)
        if query is None:
            return  # the next batch that is committed deletes what failed tasks left
        job = f"{self._area}/{_job(query, batchId)}"
        if self._is_remote:
            rows = [row for message in messages if message is not None for row in message.staged]
            discard_but_published(job, rows, self._options.storage)
            return
        if not fs.exists(f"{job}/{MANIFEST_FILE}"):
            discard(self._root, job=job)
            return
        # A restart has staged the batch once more; these files would add up with each restart.
        kept = {row["directory"] for row in json.loads(fs.read_file(f"{job}/{MANIFEST_FILE}"))}
        rows = [row for message in messages if message is not None for row in message.staged]
        again = [row for row in rows if row.directory not in kept]
        discard(self._root, again, staging_dir=self._options.staging_dir)

    def _check_order(self, application: str, query: str, batch: int, manifest: Sequence[Staged]) -> None:
        """Raise `ConfigError` if the query is behind what it has committed; warn if it is a new one.

        Spark repeats no batch but the last one. An older number comes from a checkpoint that was restored from a copy:
        to skip it would lose rows, and to append it would repeat rows.
        """
        done = load_files.read_done([self._root] if fs.exists(self._root) else []).applications
        last = done.get(application)
        if last is not None and batch < last:
            raise ConfigError(
                f"query {query} has committed batch {last} into {self._root}, and now commits batch {batch}: its "
                f"checkpoint is older than the logs. Start a query with a new checkpoint, and with startingOffsets "
                f"that continue after batch {last}"
            )
        if last is None and any(load_files.is_stream(name) for name in done):
            for topic in sorted({row.topic for row in manifest}):
                if _has_records(self._root, topic):
                    logger.warning(
                        "%s: query %s is new here, and the topic %s has records: if its checkpoint was deleted, it "
                        "writes again what the earlier query has written",
                        self._root,
                        query,
                        topic,
                    )

    @property
    def _area(self) -> str:
        return os.path.dirname(self._stage.directory)

    @property
    def _is_remote(self) -> bool:
        return staged_objects.is_url(self._area)

    def _keep(self, manifest: Sequence[Staged]) -> str:
        """Write the manifest of a batch beside its staged files, so that `abort` keeps them; the first one stays."""
        path = f"{os.path.dirname(manifest[0].directory)}/{MANIFEST_FILE}"
        if not fs.exists(path):
            fs.write_atomically(path, json.dumps([asdict(row) for row in manifest]).encode())
        return path

    def _clear(self, query: str, batch: int) -> None:
        """Delete what is left of the query's batches up to this one: files of attempts that were not used."""
        try:
            if self._is_remote:
                clear_batches(self._area, query, batch, self._options.storage)
                return
            for entry in fs.scandir(self._area) if fs.exists(self._area) else ():
                number = entry.name.removeprefix(f"{query}-")
                if number.isdecimal() and entry.name == _job(query, int(number)) and int(number) <= batch:
                    discard(self._root, job=entry.path, staging_dir=self._options.staging_dir)
        except KStoreError as error:
            logger.warning("%s: staged files stay behind: %s", self._area, error)


def _job(query: str, batch: int) -> str:
    return f"{query}-{batch}"


def _query_of(messages: Sequence[Any], batch: int) -> str | None:
    """Return the query that the tasks were of; None if there is no message."""
    found = {(message.query, message.batch) for message in messages if message is not None}
    if not found:
        return None
    if len(found) > 1 or next(iter(found))[1] != batch:
        raise ConfigError(f"the tasks staged for {sorted(found)}, and batch {batch} is to be committed")
    return str(next(iter(found))[0])


def _has_records(root: str, topic: str) -> bool:
    """Return whether a segment of the topic is not empty."""
    partitions = [entry.path for entry in look([root]).entries if entry.topic == topic]
    files = (file for path in partitions for file in fs.scandir(path))
    return any(file.name.endswith(names.LOG) and file.stat().st_size > 0 for file in files)
