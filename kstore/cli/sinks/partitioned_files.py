"""Writes a directory of Parquet files, partitioned as Hive does: `topic=events/date=2013-06-01/part-0.parquet`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kstore.base import optional
from kstore.cli.sinks.arrow_batches import Batches
from kstore.cli.sinks.piece import Piece

__all__ = ["BY", "PartitionedFiles"]

BY = ("topic", "partition", "date")
"""What a directory can be partitioned by. The date is the day of a record's timestamp in UTC."""

_MOST_OPEN = 50  # files at a time; one that was closed for others is continued by the next one beside it
_DAY_MS = 86_400_000


class _Open(NamedTuple):
    file: BinaryIO
    writer: Any


class PartitionedFiles:
    """A writer that takes pieces, which need `timestamp` for a date. It syncs its files, not the directories.

    Without any row it writes no file: one beside the directories of columns would keep readers from reading them all.
    Not thread-safe.
    """

    def __init__(self, directory: str, codec: str, by: Sequence[str], batches: Batches) -> None:
        self._parquet = optional.pyarrow("a Parquet file", "parquet").parquet
        self._directory, self._codec, self._by = directory, codec, by
        self._batches = batches
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._parts: dict[str, int] = {}
        self._schema: Any = None
        self.size_bytes = 0

    def write(self, piece: Piece) -> None:
        batch = self._batches.of(piece)
        self._schema = batch.schema
        for place, rows in self._by_place(piece, batch):
            self._writer(place).write_batch(rows, row_group_size=rows.num_rows)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for _ in self._open:
                closing.callback(self._close_oldest)

    def _by_place(self, piece: Piece, batch: Any) -> Iterator[tuple[str, Any]]:
        """Yield the rows of each directory, in their order."""
        if not batch.num_rows:
            return
        values = {"topic": piece.topic, "partition": str(piece.partition)}
        if "date" not in self._by:
            yield self._place(values), batch
            return
        times = np.asarray(piece.column("timestamp")).astype(np.int64)
        days = (times if piece.kept is None else times[piece.kept]) // _DAY_MS
        if (days[1:] < days[:-1]).any():
            order = np.argsort(days, kind="stable")
            days, batch = days[order], batch.take(order)
        starts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for start, end in itertools.pairwise(starts):
            date = str(np.datetime64(int(days[start]), "D"))
            yield self._place({**values, "date": date}), batch.slice(start, end - start)

    def _place(self, values: dict[str, str]) -> str:
        return "/".join(f"{name}={values[name]}" for name in self._by)

    def _writer(self, place: str) -> Any:
        if place not in self._open:
            if len(self._open) == _MOST_OPEN:
                self._close_oldest()
            part = self._parts[place] = self._parts.get(place, -1) + 1
            directory = os.path.join(self._directory, place)
            os.makedirs(directory, exist_ok=True)
            with contextlib.ExitStack() as opened:
                file = opened.enter_context(open(os.path.join(directory, f"part-{part}.parquet"), "xb"))
                writer = self._parquet.ParquetWriter(file, self._schema, compression=self._codec)
                self._open[place] = _Open(file, writer)
                opened.pop_all()
        self._open.move_to_end(place)
        return self._open[place].writer

    def _close_oldest(self) -> None:
        _, (file, writer) = self._open.popitem(last=False)
        with file:
            writer.close()
            file.flush()
            os.fsync(file.fileno())
            self.size_bytes += os.fstat(file.fileno()).st_size
