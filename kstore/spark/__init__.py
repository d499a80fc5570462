"""Spark's DataFrames into logs exactly once, and logs into DataFrames.

Imports without Spark and without PyArrow: both are imported where they are first used, and a `ConfigError` says which
extra is missing. Tasks stage private files (staging.py), one commit on the driver makes them part of the logs
(`kstore.adopt`); nothing here schedules or shuffles.
"""

from __future__ import annotations

from kstore.adopt import Adopted, Staged
from kstore.spark.ingesting import commit, discard, ingest, partition_of
from kstore.spark.scanning import scan
from kstore.spark.staging import MANIFEST, Stage, stage

__all__ = ["MANIFEST", "Adopted", "Stage", "Staged", "commit", "discard", "ingest", "partition_of", "scan", "stage"]
