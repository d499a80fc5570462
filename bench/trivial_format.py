"""`format("trivial")`: a stream of ready rows into a sink that drops them, as Spark runs them with no I/O at all.

A micro-batch of it takes what Spark itself needs for a Python source and a Python sink. Spark's processes import this
module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

ROWS = 1000  # of a micro-batch
BATCH = pa.record_batch(
    [pa.array([b"k" * 16] * ROWS, pa.binary()), pa.array([b"v" * 100] * ROWS, pa.binary())], names=["key", "value"]
)


class TrivialSource(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"next": start["next"] + ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(start["next"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield BATCH


class TrivialSink(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[Any], batchId: int) -> None:
        pass

    def abort(self, messages: list[Any], batchId: int) -> None:
        pass


class TrivialFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> str:
        return "key binary, value binary"

    def streamReader(self, schema: Any) -> TrivialSource:
        return TrivialSource()

    def streamWriter(self, schema: Any, overwrite: bool) -> TrivialSink:
        return TrivialSink()
