"""Registers `format("kstore")`: Spark imports `DefaultSource` from every package named pyspark_*."""

from kstore.spark.datasource import KStoreSource as DefaultSource

__all__ = ["DefaultSource"]
