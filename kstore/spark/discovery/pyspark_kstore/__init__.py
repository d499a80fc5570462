"""What makes Spark know `format("kstore")` by itself: it looks for `DefaultSource` in packages called pyspark_*."""

from kstore.spark.datasource import KStoreSource as DefaultSource

__all__ = ["DefaultSource"]
