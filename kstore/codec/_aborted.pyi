"""Batches of aborted transactions: which ones a reader of committed records leaves out."""

from collections.abc import Iterable
from typing import final

from _typeshed import ReadableBuffer

@final
class AbortedFilter:
    """Aborted transactions; tells of each batch whether it belongs to one.

    A transactional batch of a producer does, if it lies between the first batch and the marker of an aborted
    transaction of that producer. Made of (producer id, first offset, last offset); never changed.
    """
    def __init__(self, transactions: Iterable[tuple[int, int, int]]) -> None: ...
    def __len__(self) -> int: ...
    def kept(self, data: ReadableBuffer) -> list[tuple[int, int]]:
        """The ranges [(start, end)] of whole batches in memory that hold no aborted ones."""
