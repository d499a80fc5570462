"""What Spark itself takes for a Python source and a Python sink. Spark's processes import this module.

`format("trivial")` is a stream of ready rows into a sink that drops them, with no I/O at all. `format("ready")` is a
stream of `rows` that are there: batches of the shape that the logs in its `path` have, made once in each of 16 tasks
and given again and again.
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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from kstore.spark.option_reader import COLUMN_TYPES
from kstore.spark.scanning import Scan, ddl, plan
from kstore.spark.spark_options import ReadOptions

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


TASKS = 16
COLUMNS = tuple(COLUMN_TYPES)[:-1]  # all but the headers


class ReadySource(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, root: str, rows: int) -> None:
        self._root = root
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"next": self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        [first, *_] = plan(self._root, ReadOptions.parse({"subscribe": "t"}))
        return [InputPartition(first) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        left = -(-self._rows // TASKS)
        [batch, *_] = Scan(COLUMNS).batches(partition.value)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


class ReadyFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return ddl(COLUMNS)

    def streamReader(self, schema: Any) -> ReadySource:
        return ReadySource(self.options["path"], int(self.options["rows"]))
