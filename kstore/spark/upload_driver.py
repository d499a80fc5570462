"""`upload`: stages a DataFrame in an object store, for a log directory on a machine that Spark does not see.

Invariant: a job has a manifest only if all its tasks have ended, so what can be adopted is whole.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from kstore.config.log_config import LogConfig
from kstore.errors import KStoreError
from kstore.spark.load_driver import job_of
from kstore.spark.object_staging import discard_objects, publish
from kstore.spark.staging import check_load, made_of, open_area
from kstore.spark.workers import refuse_other_python
from kstore.store.bulk_loads.load_manifest import Staged, Transaction, check_transaction

logger = logging.getLogger("kstore")


def upload(
    data: Any,
    url: str,
    *,
    partitions: int,
    topic: str | None = None,
    txn: Transaction | None = None,
    compression: str | None = None,
    batch_bytes: int | None = None,
    config: Mapping[str, object] | None = None,
    storage: Mapping[str, Any] | None = None,
) -> str:
    """Stage a DataFrame or an RDD of rows in an object store, for `Store.adopt` or `kstore adopt` on another machine.

    Tasks stage on their own disks and upload the files; a manifest is written last. Nothing is appended until the job
    is adopted. The settings of the topics there are not known here: give those that concern staged batches
    (`compression.type`, `message.timestamp.type`, `max.message.bytes`, `segment.bytes`) in `config`.

    Args:
        data: The rows, as for `ingest`.
        url: Where to stage: a URL like `s3://bucket/prefix`. Each job gets a prefix of its own below it.
        partitions: How many partitions the topics have, or get if the adoption creates them.
        topic: The topic of all rows; if None, the rows have a column `topic`.
        txn: An application's name and a version, for the adoption. The load is then skipped unless its version is above
            the last committed one; without `txn`, the same job is adopted once.
        compression: The codec of the batches if `compression.type` is "producer"; no compression if None.
        batch_bytes: The size up to which batches are filled, before compression.
        config: Kafka's settings for topics that the adoption creates, and for staging.
        storage: Options of the object store, as in `kstore.backup`; the environment's if None. They are sent to Spark's
            tasks.

    Returns:
        The URL of the job.

    Raises:
        ConfigError: If arguments or columns do not fit, obstore is missing, or Spark's local workers cannot import
            kstore.
        TypeError: If `data` is neither a DataFrame nor an RDD.
        BackupError: If the object store does not answer.
        KStoreError: Any other error of `stage`. What was staged is deleted after an error.

    Example:
        >>> import os
        >>> import kstore
        >>> url = ks.upload(frame, f"file://{os.getcwd()}/bucket", topic="orders", partitions=2)
        >>> with kstore.Store.open("data") as store:
        ...     print(store.adopt(url).records, store.adopt(url).duplicate)
        2 True
    """
    check_transaction(txn)
    planned = check_load(topic, partitions, compression, batch_bytes, config, None, {}, LogConfig())
    made = made_of(planned, "", open_area(url, storage), uuid.uuid4().hex, storage)
    run = job_of(data, made, topic)
    refuse_other_python(getattr(data, "sparkSession", None) or getattr(data, "ctx", None))
    try:
        return publish(made.directory, [Staged.of(row) for row in run()], txn, storage)
    except BaseException:
        stage = made.directory.rpartition("/")[0]
        try:
            discard_objects(stage, (), made.job, storage)
        except KStoreError as error:
            logger.warning("%s: staged objects stay behind: %s", made.directory, error)
        raise
