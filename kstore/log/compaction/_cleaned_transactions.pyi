"""Transactions on a cleaner's way through a log: aborted data, and markers that nothing needs any more."""

from collections.abc import Iterable
from typing import final

from _typeshed import ReadableBuffer

from kstore.files.txnindex import AbortedTxn

@final
class CleanedTransactions:
    """The aborted and committed transactions of one pass over a log (SEMANTICS 7.15, 7.16).

    The pass gives it each segment's aborted transactions before the segment's batches, and then each batch, in offset
    order. What is open stays over segments and groups. Not thread-safe.
    """
    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Take in aborted transactions of the next segment; one that is known already does no harm."""
    def take_retained(self) -> list[AbortedTxn]:
        """The aborted transactions whose markers were kept since the last call: entries of the new segment's index."""
    def visit(
        self,
        batch: ReadableBuffer,
        *,
        path: str | None = None,
        position: int = 0,
        max_decompressed_bytes: int | None = None,
    ) -> bool:
        """Go on to the next batch; whether it is data of an aborted transaction, or a marker that nothing needs.

        `batch` is a whole batch. Raises `CorruptRecordError` for a control batch whose first record is no control record.
        """
