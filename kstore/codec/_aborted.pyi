"""Finds the batches of aborted transactions, which a reader of committed records leaves out."""

from collections.abc import Iterable
from typing import final

from _typeshed import ReadableBuffer

@final
class AbortedFilter:
    """Aborted transactions, each given as (producer id, first offset, last offset).

    A transactional batch is aborted if an aborted transaction has its producer id and the batch lies between the
    transaction's first batch and its marker. Immutable; thread-safe.
    """
    def __init__(self, transactions: Iterable[tuple[int, int, int]]) -> None: ...
    def __len__(self) -> int: ...
    def kept(self, data: ReadableBuffer) -> list[tuple[int, int]]:
        """Return the ranges `(start, end)` of `data` that hold no aborted batches."""
