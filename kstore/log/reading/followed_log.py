"""A log that is followed look by look: whether it has grown since the last look, and the records that have come.

For a reader that waits for several logs, or in an event loop; one that waits for one log in its thread is a `LogReader`
with `follow`.
"""

from __future__ import annotations

from collections.abc import Callable

from kstore._core import ReaderPosition, RecordIterator
from kstore.errors import OffsetOutOfRangeError
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.view import View, out_of_range


class FollowedLog:
    """One log of a follower, and where the last look has seen it end. Belongs to one thread or task at a time."""

    __slots__ = ("durable", "end_offset", "records", "version", "view")

    def __init__(self, view: View, records: RecordIterator | None, durable: bool) -> None:
        self.view = view
        self.records = records
        self.durable = durable
        self.end_offset = self.version = -1  # not looked at yet

    def has_news(self) -> bool:
        """Whether the log has grown or changed otherwise since the last look."""
        view = self.view
        if not isinstance(view, ReadOnlyView) or not view.catch_up():
            view.refresh()
        return self._end > self.end_offset or view.guard.version != self.version

    @property
    def _end(self) -> int:
        return self.view.durable_end_offset if self.durable else self.view.log_end_offset

    def look(self, start: Callable[[], RecordIterator] | None = None) -> RecordIterator | None:
        """The records that have come since the last look; None without any. `start` begins to read, the first time.

        When it raises, it does so again.
        """
        if not self.has_news():
            return None
        version, end_offset = self.view.guard.version, self._end
        if self.records is None:
            assert start is not None
            self.records = start()
        else:
            self.records.resume(end_offset)
        self.version, self.end_offset = version, end_offset
        return self.records

    def lost(self, offset: int) -> OffsetOutOfRangeError | None:
        """Why reading may not go on at `offset`: since the last look records before it have been cut."""
        view = self.view
        if not isinstance(view, ReadOnlyView):
            overtaken = view.has_overtaken(ReaderPosition(offset, self.version, -1, 0))
            return out_of_range(offset, view.log_start_offset, view.log_end_offset) if overtaken else None
        try:
            assert self.records is not None
            self.records.resume(self._end)
        except OffsetOutOfRangeError as error:
            return error
        return None
