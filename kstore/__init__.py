"""kstore: Kafka's commit log inside a Python process.

`Log` is one partition of a topic; `Store` is one or more directories of partitions. `LogConfig` has the settings of a
log, `errors` the exceptions. This package also has the classes of the small immutable values that calls return.
`kstore.spark` and `kstore.testing` are imported separately.
"""

import typing as _typing

from kstore import errors
from kstore.base.terminal import guard_messages as _guard_messages
from kstore.errors import *  # noqa: F403

if _typing.TYPE_CHECKING:
    from kstore._core import Record, RecordBatch, decode_batches
    from kstore.base.stats import (
        AnyStoreStats,
        BackupLag,
        BackupStats,
        CompactionStateStats,
        FollowerStats,
        HistogramStats,
        LogStats,
        ReplicationStats,
        StoreStats,
        TruncationStats,
    )
    from kstore.codec._pack import encode_batch
    from kstore.columns._column_reader import decode_columns
    from kstore.columns._columns import BinaryColumn, Columns, HeadersColumn
    from kstore.config.broker_config import BrokerConfig
    from kstore.config.log_config import LogConfig
    from kstore.copies.backups.backup import Backup, backup
    from kstore.copies.backups.restore import restore
    from kstore.copies.replication.replicate import Replication, replicate
    from kstore.datasets.open_dataset import dataset, scan_polars
    from kstore.decoders.avro_values import AvroValues
    from kstore.decoders.json_values import JsonValues
    from kstore.decoders.protobuf_values import ProtobufValues
    from kstore.explained.explained_disk import DiskExplanation, ExplainedPartition, HeldBytes, Remedy
    from kstore.explained.explained_plan import Load, Plan, PlannedRange, PlannedSegment
    from kstore.explained.explanation import (
        CheckTimes,
        DeletedFile,
        ExplainedRecord,
        ExplainedSegment,
        Explanation,
        LookupStep,
    )
    from kstore.log.async_stream import Stream
    from kstore.log.log import Log
    from kstore.log.log_table import LogTable
    from kstore.log.reading.fetch import FetchResult
    from kstore.log.segments.producer_state import KeptBatch, ProducerInfo
    from kstore.log.segments.recovery import Recovery
    from kstore.log.writing.retention import Deletion, Outlook
    from kstore.metrics.exporters import export_to_opentelemetry, export_to_prometheus
    from kstore.planning.plan import plan
    from kstore.store.bulk_loads.load_manifest import Adopted, Staged
    from kstore.store.coordinator.consumer import Consumer
    from kstore.store.coordinator.groups import CommittedOffset
    from kstore.store.coordinator.producer import Producer, Transaction, TransactionalProducer
    from kstore.store.store import Store
    from kstore.store.table import Table
    from kstore.store.topics._consume import ConsumerRecord
    from kstore.store.topics.topic_stream import TopicStream
    from kstore.types import (
        AppendInfo,
        CompactionOutlook,
        CompactionStats,
        RecordMetadata,
        Restored,
        RestoredPartition,
        SegmentInfo,
        TimestampOffset,
    )

__all__ = [
    "Adopted",
    "AnyStoreStats",
    "AppendInfo",
    "AvroValues",
    "Backup",
    "BackupLag",
    "BackupStats",
    "BinaryColumn",
    "BrokerConfig",
    "CheckTimes",
    "Columns",
    "CommittedOffset",
    "CompactionOutlook",
    "CompactionStateStats",
    "CompactionStats",
    "Consumer",
    "ConsumerRecord",
    "DeletedFile",
    "Deletion",
    "DiskExplanation",
    "ExplainedPartition",
    "ExplainedRecord",
    "ExplainedSegment",
    "Explanation",
    "FetchResult",
    "FollowerStats",
    "HeadersColumn",
    "HeldBytes",
    "HistogramStats",
    "JsonValues",
    "KeptBatch",
    "Load",
    "Log",
    "LogConfig",
    "LogStats",
    "LogTable",
    "LookupStep",
    "Outlook",
    "Plan",
    "PlannedRange",
    "PlannedSegment",
    "Producer",
    "ProducerInfo",
    "ProtobufValues",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "Recovery",
    "Remedy",
    "Replication",
    "ReplicationStats",
    "Restored",
    "RestoredPartition",
    "SegmentInfo",
    "Staged",
    "Store",
    "StoreStats",
    "Stream",
    "Table",
    "TimestampOffset",
    "TopicStream",
    "Transaction",
    "TransactionalProducer",
    "TruncationStats",
    "backup",
    "dataset",
    "decode_batches",
    "decode_columns",
    "encode_batch",
    "export_to_opentelemetry",
    "export_to_prometheus",
    "plan",
    "replicate",
    "restore",
    "scan_polars",
]
__all__ += errors.__all__

__version__: str
"""The version of the installed package."""


def __dir__() -> list[str]:
    return [*__all__, "__version__", "config", "errors"]


_OWNERS = {
    "kstore._core": ("Record", "RecordBatch", "decode_batches"),
    "kstore.base.stats": (
        "AnyStoreStats",
        "BackupLag",
        "BackupStats",
        "CompactionStateStats",
        "FollowerStats",
        "HistogramStats",
        "LogStats",
        "ReplicationStats",
        "StoreStats",
        "TruncationStats",
    ),
    "kstore.codec._pack": ("encode_batch",),
    "kstore.columns._columns": ("BinaryColumn", "Columns", "HeadersColumn"),
    "kstore.columns._column_reader": ("decode_columns",),
    "kstore.config.broker_config": ("BrokerConfig",),
    "kstore.config.log_config": ("LogConfig",),
    "kstore.copies.backups.backup": ("Backup", "backup"),
    "kstore.copies.replication.replicate": ("Replication", "replicate"),
    "kstore.copies.backups.restore": ("restore",),
    "kstore.datasets.open_dataset": ("dataset", "scan_polars"),
    "kstore.decoders.avro_values": ("AvroValues",),
    "kstore.decoders.json_values": ("JsonValues",),
    "kstore.decoders.protobuf_values": ("ProtobufValues",),
    "kstore.explained.explanation": (
        "CheckTimes",
        "DeletedFile",
        "ExplainedRecord",
        "ExplainedSegment",
        "Explanation",
        "LookupStep",
    ),
    "kstore.explained.explained_disk": (
        "DiskExplanation",
        "ExplainedPartition",
        "HeldBytes",
        "Remedy",
    ),
    "kstore.explained.explained_plan": ("Load", "Plan", "PlannedRange", "PlannedSegment"),
    "kstore.log.async_stream": ("Stream",),
    "kstore.log.log_table": ("LogTable",),
    "kstore.log.log": ("Log",),
    "kstore.log.segments.producer_state": ("KeptBatch", "ProducerInfo"),
    "kstore.log.segments.recovery": ("Recovery",),
    "kstore.log.writing.retention": ("Deletion", "Outlook"),
    "kstore.log.reading.fetch": ("FetchResult",),
    "kstore.metrics.exporters": ("export_to_opentelemetry", "export_to_prometheus"),
    "kstore.planning.plan": ("plan",),
    "kstore.store.coordinator.consumer": ("Consumer",),
    "kstore.store.coordinator.groups": ("CommittedOffset",),
    "kstore.store.coordinator.producer": ("Producer", "Transaction", "TransactionalProducer"),
    "kstore.store.bulk_loads.load_manifest": ("Adopted", "Staged"),
    "kstore.store.store": ("Store",),
    "kstore.store.table": ("Table",),
    "kstore.store.topics._consume": ("ConsumerRecord",),
    "kstore.store.topics.topic_stream": ("TopicStream",),
    "kstore.types": (
        "AppendInfo",
        "CompactionOutlook",
        "CompactionStats",
        "RecordMetadata",
        "Restored",
        "RestoredPartition",
        "SegmentInfo",
        "TimestampOffset",
    ),
}
"""The module of each name. It is imported when one of its names is first used, so that `import kstore` is fast."""

if not _typing.TYPE_CHECKING:  # a type checker would otherwise accept every name

    def __getattr__(name: str) -> object:
        """Import the module of a public name and return the object, or look up `__version__` (tens of milliseconds)."""
        import importlib

        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("kstore")
            except PackageNotFoundError:
                return "0+checkout"  # sources that are not installed
        for owner, names in _OWNERS.items():
            if name in names:
                found = globals()[name] = getattr(importlib.import_module(owner), name)
                return found
        if name == "config":
            return importlib.import_module("kstore.config")
        raise AttributeError(f"module 'kstore' has no attribute {name!r}")


_guard_messages()
