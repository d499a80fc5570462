"""Splits the rows of columns over the partitions of a topic: hashes, sorts and packs them in C, without objects."""

from typing import final

from kstore.columns._column_encoder import Rows
from kstore.store.topics._partitioner import BaseSplitter

@final
class ColumnSplitter(BaseSplitter):
    """Packs rows for all partitions of a topic; its packers have no codec."""
    def pack(self, rows: Rows) -> bool:
        """Pack rows until enough batches are `ready`; return False when all rows are packed.

        The caller must have taken the batches that were ready. The last batches stay open for more rows until `close`.
        Raises the errors of `_column_encoder.pack`; then all open batches are dropped, and finished ones stay `ready`.
        """

def partitions_of(rows: Rows, partitions: int) -> bytes:
    """Return the partition of each row by Kafka's default partitioner, as native int32; -1 for a row without a key.

    This consumes the rows: they cannot be packed afterwards. Raises the errors of `_column_encoder.pack` for bad keys.
    """
