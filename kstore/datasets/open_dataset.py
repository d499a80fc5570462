"""`kstore.dataset` and `kstore.scan_polars`: logs as tables into which query engines push columns and filters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kstore.base import optional
from kstore.columns.value_decoding import SAMPLED, Decoder
from kstore.datasets.table_scan import Table
from kstore.datasets.table_source import Source, TableOptions, TableSource, table_options
from kstore.errors import ConfigError
from kstore.log.reading.read_options import Isolation
from kstore.objects.remote_prefix import RemoteOptions

if TYPE_CHECKING:
    import polars
    import pyarrow.dataset  # type: ignore[import-untyped]


def dataset(
    source: Source,
    topic: str | Iterable[str] | re.Pattern[str] | None = None,
    *,
    decode: Decoder | None = None,
    isolation: Isolation = "read_uncommitted",
    as_of: int | datetime | Mapping[int, int] | None = None,
    latest: bool = False,
    max_lateness: int | timedelta | None = None,
    partitioned_by_key: bool = False,
    threads: int | None = None,
    storage: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    until: int | datetime | None = None,
    with_deleted: bool = False,
) -> pyarrow.dataset.Dataset:
    """Open logs as a PyArrow dataset: a table of which a query reads only the columns and ranges that it needs.

    DuckDB, PyArrow, DataFusion and Polars (`polars.scan_pyarrow_dataset`) pass the columns and the filter of a query to
    the dataset. Conditions on `partition`, `offset` and `timestamp` become ranges by the names of segments and their
    indexes. The whole filter is applied to every row that is read.

    The columns are `partition` (int32), `offset` (int64), `timestamp` (timestamp in milliseconds, UTC; -1 for a record
    without one), `timestamp_type` (int8: 0 the producer's, 1 the log's), `key`, `value` (binary) and `headers` (a list
    of structs of `key` and `value`). Unless one topic is named, the last column is `topic`. In SQL, `offset` is a
    reserved word: write `"offset"`.

    Each scan reads up to the end of each log at the time when the scan starts. A log may be written meanwhile, by this
    or another process; no lock is taken. A prefix of an object store is read in its state when the dataset was opened.

    Args:
        source: A log directory or several, the directory of a partition, the URL of a prefix of an object store as in
            `Store.open` or a directory that holds a backup, or an open `Store` or `Log`. Logs that the dataset opens
            itself are closed when it is garbage-collected.
        topic: A topic, several, a compiled regular expression that matches the whole name, or `None` for all topics but
            internal ones, whose names begin with `__`. New partitions, and new topics that match, are in the next scan.
        decode: How values become a struct or columns: `JsonValues`, `AvroValues` or `ProtobufValues`.
        isolation: "read_uncommitted" or "read_committed".
        as_of: Read an earlier state: the records before the first one after this time (a `datetime` with a time zone),
            or those below an offset: an int for all partitions, or `{partition: offset}`; the others are read to their
            ends.
        latest: Read the newest record of each key, as `Store.table` does: committed records only, without the column
            `timestamp_type`. The table is in memory while it is scanned.
        max_lateness: The promise that no record is older by more than this (milliseconds or a `timedelta`) than a
            record before it in its partition, and that every record has a timestamp. An upper bound of `timestamp`
            then ends the reading. Without the promise a late record may follow, so a first scan reads the timestamps of
            all records after the lower bound, and fetches them from an object store; later scans of the same dataset
            know them. A topic with `message.timestamp.type=LogAppendTime` has 0 as long as the broker's clock does not
            step back.
        partitioned_by_key: The promise that each record with a key is in the partition that Kafka's default partitioner
            chooses for the present number of partitions. A condition on `key` with `=` or `IN` then reads only these
            partitions. Other producers may use other partitioners, and a topic may have got more partitions.
        threads: The most threads that decode; by default one per core and at most 4.
        storage: obstore's settings for a URL; see `Store.open`.
        cache: A directory for fetched bytes of a URL; see `Store.open`.
        until: The time of a backup's state; see `Store.open`.
        with_deleted: Whether a backup's deleted segments are read; see `Store.open`.

    Returns:
        The dataset. It cannot be pickled; its methods are those of `pyarrow.dataset.Dataset`, and `cost(filter)`, which
        returns the requests and bytes that a scan takes of an object store. A scan raises `InvalidTimestampError` for a
        record that breaks `max_lateness`, if it reads the record, and otherwise the errors of `Log.iter_columns`.
        DuckDB reports them as errors of its own.

    Raises:
        ConfigError: If PyArrow is not installed, or an argument is invalid.
        UnknownTopicOrPartitionError: If the topic does not exist.
        StorageError: If a directory cannot be read.

    Example:
        >>> import duckdb
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders", partitions=2)
        >>> appended = store.append_many("orders", [(b"alice", b"3 apples"), (b"bob", b"1 pear")])
        >>> orders = kstore.dataset(store, "orders")
        >>> duckdb.sql("select partition, value from orders where key = 'bob'::blob").fetchall()
        [(0, b'1 pear')]
    """
    optional.pyarrow("a dataset", "compute", "dataset", "acero")
    from kstore.datasets.log_dataset import LogDataset

    options = table_options(isolation, as_of, latest, max_lateness, partitioned_by_key, threads)
    remote = RemoteOptions(storage, cache, until, with_deleted)
    return LogDataset(_table(TableSource(source, topic, remote), options, decode))


def scan_polars(
    source: Source,
    topic: str | Iterable[str] | re.Pattern[str] | None = None,
    *,
    decode: Decoder | None = None,
    isolation: Isolation = "read_uncommitted",
    as_of: int | datetime | Mapping[int, int] | None = None,
    latest: bool = False,
    max_lateness: int | timedelta | None = None,
    partitioned_by_key: bool = False,
    threads: int | None = None,
    storage: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    until: int | datetime | None = None,
    with_deleted: bool = False,
) -> polars.LazyFrame:
    """Open logs as a Polars `LazyFrame`, which reads only the columns and ranges that a query needs.

    It differs from `polars.scan_pyarrow_dataset(kstore.dataset(...))` in two ways: Polars passes conditions on keys and
    values, too, and `head` stops the reading. Takes the arguments of `dataset`; the columns and errors are the same.

    Returns:
        The frame.

    Raises:
        ConfigError: If Polars or PyArrow is not installed, or an argument is invalid.
        UnknownTopicOrPartitionError: If the topic does not exist.
        StorageError: If a directory cannot be read.

    Example:
        >>> import polars as pl
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders", partitions=2)
        >>> appended = store.append_many("orders", [(b"alice", b"3 apples"), (b"bob", b"1 pear")])
        >>> orders = kstore.scan_polars(store, "orders")
        >>> orders.filter(pl.col("key") == b"bob").select("partition", "value").collect().rows()
        [(0, b'1 pear')]
    """
    optional.pyarrow("scan_polars", extra="polars")
    optional.polars("scan_polars")
    from kstore.datasets.polars_scan import scan

    options = table_options(isolation, as_of, latest, max_lateness, partitioned_by_key, threads)
    remote = RemoteOptions(storage, cache, until, with_deleted)
    return scan(_table(TableSource(source, topic, remote), options, decode))


def _table(source: TableSource, options: TableOptions, decode: Decoder | None) -> Table:
    pa = optional.pyarrow("a dataset")
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    fields = [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("timestamp_type", pa.int8()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("item", header, nullable=False))),
    ]
    if options.latest:
        fields = [field for field in fields if field.name != "timestamp_type"]
    if source.has_topics:
        fields.append(pa.field("topic", pa.string()))
    if decode is not None and not hasattr(decode, "_bind"):
        raise ConfigError(f"decode is {decode!r}; JsonValues, AvroValues or ProtobufValues is wanted")
    decoding = None if decode is None else decode._bind(lambda: _sample(pa, source))
    if decoding is not None:
        fields = decoding.fields_with(fields)
    return Table(source, pa.schema(fields), options, decoding)


def _sample(pa: Any, source: TableSource) -> Any:
    """Return the first values of the partitions, as a binary array."""
    found, count = [pa.array([], pa.binary())], 0
    for place in source.places():
        columns = source.log(*place).read_columns(columns=("value",), max_records=SAMPLED - count)
        found.append(pa.record_batch(columns).column("value"))
        count += len(columns)
        if count >= SAMPLED:
            break
    return pa.concat_arrays(found)
