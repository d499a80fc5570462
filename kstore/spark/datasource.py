"""`format("kstore")`: Spark's Python Data Source API, with the functions of `ks.scan` and `ks.ingest`.

The module can be imported without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kstore.errors import ConfigError
from kstore.spark.load_writer import Writer
from kstore.spark.option_reader import OF_STREAMS, OptionReader, plain
from kstore.spark.scan_reader import PushdownReader, Reader
from kstore.spark.scanning import ddl, directories, roots_of
from kstore.spark.spark_options import READ_OPTIONS, WRITE_OPTIONS, ReadOptions, WriteOptions
from kstore.spark.stream_sink import StreamWriter, stream_writer
from kstore.spark.stream_source import RefusedReader, stream_reader

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    if not TYPE_CHECKING:
        DataSource = object

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


class KStoreSource(DataSource):
    """The format: logs in a directory, with the schema and the options of Spark's Kafka source and sink."""

    @classmethod
    def name(cls) -> str:
        return "kstore"

    def schema(self) -> str:
        """Return the columns of a read whose caller gives no schema."""
        return ddl(OptionReader(self.options, "read", (*READ_OPTIONS, *OF_STREAMS), WRITE_OPTIONS).columns())

    def reader(self, schema: StructType) -> Reader:
        """Return a reader of the columns of `schema`, which may be a selection by the caller."""
        options = ReadOptions.parse(self.options)
        # Two reader classes: Spark refuses a reader with `pushFilters` if Spark's setting for push-down is off.
        return (PushdownReader if options.pushdown else Reader)(self._source(), options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Return a writer that appends; raise `ConfigError` for `mode("overwrite")`."""
        if overwrite:
            raise ConfigError('mode("overwrite") is not for logs: records are appended; write with mode("append")')
        return Writer(self._root(), WriteOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the source of a streaming query."""
        try:
            return stream_reader(self._source(), self.options, schema)
        except ConfigError as error:
            # After an error here, PySpark calls stop() on an unbound variable, which hides the error.
            return RefusedReader(str(error))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the sink of a micro-batch; raise `ConfigError` for the output mode `complete`."""
        return stream_writer(self._root(), self.options, schema, overwrite=overwrite)

    def _root(self) -> str:
        return directories(self._path())[0]

    def _source(self) -> str:
        """Return the directory or the URL to read."""
        return roots_of(self._path())[0]

    def _path(self) -> str:
        by_name = {name.lower(): value for name, value in plain(self.options).items()}
        path = by_name.get("path") or by_name.get("location")
        if not path:
            raise ConfigError('the log directory is missing: load("<directory>") or save("<directory>")')
        return path
