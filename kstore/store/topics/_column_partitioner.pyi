"""Rows of columns over the partitions of a topic: hashed, sorted and packed in C, without an object for each."""

from typing import final

from kstore.columns._column_encoder import Rows
from kstore.store.topics._partitioner import BaseSplitter

@final
class ColumnSplitter(BaseSplitter):
    """Packs rows for all partitions of a topic; its packers have no codec."""
    def pack(self, rows: Rows) -> bool:
        """Pack rows until enough batches are `ready`; False once all rows are in.

        The last batches stay open for rows to come: `close` them. What was ready is to be taken away first. Raises
        what `_encode.pack` does; that drops every open batch, the finished ones stay `ready`.
        """

def partitions_of(rows: Rows, partitions: int) -> bytes:
    """Where Kafka's default partitioner sends each row's key, as native int32 in bytes; -1 for a row without one.

    The rows are used up: they cannot be packed afterwards. Raises what `_encode.pack` does for an unsound key.
    """
