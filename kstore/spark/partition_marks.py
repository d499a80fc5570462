"""`Marks`: what the planning of a scan asks of a partition."""

from __future__ import annotations

from typing import Protocol


class Marks(Protocol):
    """The offsets of one partition at the time of planning; they do not change."""

    @property
    def start(self) -> int:
        """The log start offset."""

    @property
    def end(self) -> int:
        """The offset after the last record that the isolation level makes visible."""

    def at_time(self, timestamp: int) -> int | None:
        """Return the lowest offset whose timestamp is at or after `timestamp`."""

    def end_by(self, timestamp: int, max_lateness_ms: int) -> int | None:
        """Return the offset from which on all records are at or after `timestamp`, if none is later than promised."""

    def border(self, offset: int) -> int:
        """Return the base offset of the batch that contains `offset`, or `offset` if the batch is not known."""
