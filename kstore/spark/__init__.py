"""Spark's DataFrames into logs exactly once, and logs into DataFrames.

Imports neither Spark nor PyArrow before the first use; without them a `ConfigError` then says which extra is missing.
Tasks stage private files (staging.py), and one commit on the driver makes them part of the logs (`kstore.adopt`). The
room starts no jobs and shuffles no rows.
"""

from __future__ import annotations

from kstore.spark.load_driver import commit, discard, ingest, partition_of
from kstore.spark.scanning import scan
from kstore.spark.staging import MANIFEST, Stage, stage
from kstore.store.bulk_loads.load_manifest import Adopted, Staged

__all__ = ["MANIFEST", "Adopted", "Stage", "Staged", "commit", "discard", "ingest", "partition_of", "scan", "stage"]
