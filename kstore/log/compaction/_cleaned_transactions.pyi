"""Finds the aborted data, and the markers that are not needed any more, during a cleaning."""

from collections.abc import Iterable
from typing import final

from _typeshed import ReadableBuffer

from kstore.files.txnindex import AbortedTxn

@final
class CleanedTransactions:
    """The aborted and committed transactions of one pass over a log (SEMANTICS 7.15, 7.16).

    It gets each segment's aborted transactions before the segment's batches, and then each batch, in offset order. Open
    transactions carry over segments and groups. Not thread-safe.
    """
    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Add aborted transactions of the next segment. Adding one twice is harmless."""
    def take_retained(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose markers were kept since the last call, for the new segment's index."""
    def visit(
        self,
        batch: ReadableBuffer,
        *,
        path: str | None = None,
        position: int = 0,
        max_decompressed_bytes: int | None = None,
    ) -> bool:
        """Process the next batch. Return whether it is data of an aborted transaction, or a marker that nothing needs.

        `batch` is whole. Raises `CorruptRecordError` for a control batch whose first record is not a control record.
        """
