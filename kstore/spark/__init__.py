"""Write Spark's DataFrames to logs exactly once, and read logs as DataFrames.

Tasks stage private files, and one commit on the driver adds them to the logs. Spark and PyArrow are imported at their
first use; if one is missing, a `ConfigError` names the extra to install.

Example:
    >>> from kstore import spark as ks
    >>> rows = [(b"alice", b"3 apples"), (b"bob", b"1 pear")]
    >>> frame = spark.createDataFrame(rows, "key binary, value binary")
"""

from __future__ import annotations

from kstore.spark.load_driver import commit, discard, ingest, partition_of
from kstore.spark.scanning import scan
from kstore.spark.staging import MANIFEST, Stage, stage
from kstore.spark.upload_driver import upload
from kstore.store.bulk_loads.load_manifest import Adopted, Staged

__all__ = [
    "MANIFEST",
    "Adopted",
    "Stage",
    "Staged",
    "commit",
    "discard",
    "ingest",
    "partition_of",
    "scan",
    "stage",
    "upload",
]
