"""The writer of `df.write.format("kstore")`: stages in the tasks, and commits on the driver's host.

Spark pickles these objects, so they hold plain values only. The module can be imported without Spark. Invariant: Spark
may call `abort` after a successful commit and while tasks write, so `abort` keeps the files of a job that belong to a
decided load (one with a durable COMMIT record).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kstore.errors import LogLockedError
from kstore.spark.load_driver import commit, discard_job
from kstore.spark.spark_options import WriteOptions
from kstore.spark.staging import Stage, stage
from kstore.store.bulk_loads.load_manifest import Staged

try:
    from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
except ImportError:
    if not TYPE_CHECKING:
        DataSourceArrowWriter = WriterCommitMessage = object

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    """The manifest rows of the files that one task has staged."""

    staged: tuple[Staged, ...]


def stage_of(root: str, options: WriteOptions, schema: StructType) -> Stage:
    """Return what stages rows of `schema` in tasks; raises the errors of `stage` and `Stage.check`."""
    types = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    made = stage(
        root,
        topic=options.topic,
        partitions=options.partitions,
        compression=options.compression,
        batch_bytes=options.batch_bytes,
        config=options.config,
        staging_dir=options.staging_dir,
        storage=options.storage,
        columns=[name for name, _ in types],
    )
    made.check(types)
    return made


class Writer(DataSourceArrowWriter):
    """Stages in the tasks, and commits on the driver's host, in a process that Spark starts."""

    def __init__(self, root: str, options: WriteOptions, schema: StructType) -> None:
        self._root = root
        self._options = options
        self._stage = stage_of(root, options, schema)

    def write(self, iterator: Iterator[Any]) -> Written:
        return Written(tuple(self._stage.write(iterator)))

    def commit(self, messages: list[Any]) -> None:
        """Commit the staged files in the order of the DataFrame's partitions; after an error Spark calls `abort`."""
        manifest = [row for message in messages if message is not None for row in message.staged]
        options = self._options
        try:
            commit(
                self._root,
                manifest,
                txn=options.txn,
                staging_dir=options.staging_dir,
                storage=options.storage,
                commit_timeout=options.commit_timeout,
            )
        except LogLockedError as error:
            error.__notes__ = ["the staged files are removed; ks.ingest keeps them, for the process that has the store"]
            raise

    def abort(self, messages: list[Any]) -> None:
        """Delete the job's staged files, except those of a decided load."""
        discard_job(self._root, self._stage)
