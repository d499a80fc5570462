"""The last stable offset: the earliest open transaction's first offset, else the log's end (SEMANTICS 0.2, 9.13)."""

from typing import final

@final
class OpenTransactions:
    """The open transactions of one log.

    The log's mutex guards changes. `last_stable_offset` may be called from any thread.
    """
    @property
    def size_bytes(self) -> int: ...
    def last_stable_offset(self, log_start: int, log_end: int) -> int:
        """Return the last stable offset of a log with this start and end: below it every transaction has ended."""
