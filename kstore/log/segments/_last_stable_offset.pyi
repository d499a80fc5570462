"""The last stable offset: where the earliest open transaction begins, else the log's end (SEMANTICS 0.2, 9.13)."""

from typing import final

@final
class OpenTransactions:
    """The open transactions of one log.

    The log's mutex guards what changes them. `last_stable_offset` may be asked from any thread.
    """
    @property
    def size_bytes(self) -> int:
        """Bytes of memory that they take."""
    def last_stable_offset(self, log_start: int, log_end: int) -> int:
        """The last stable offset of a log with this start and end: nothing below it is undecided."""
