"""`FollowedLog`: looks for new records of a log. It serves readers that wait for several logs, or in an event loop.

A reader that waits for one log in its own thread uses a `LogReader` with `follow`.
"""

from __future__ import annotations

from collections.abc import Callable

from kstore._core import ReaderPosition, RecordIterator
from kstore.disk import watches
from kstore.errors import OffsetOutOfRangeError
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.log.reading.view import View, out_of_range


class FollowedLog:
    """A log that a reader follows, and the log's end at the last `look`. For one thread or task at a time."""

    __slots__ = ("durable", "end_offset", "records", "version", "view")

    def __init__(self, view: View, records: RecordIterator | None, durable: bool) -> None:
        self.view = view
        self.records = records
        self.durable = durable
        self.end_offset = self.version = -1  # `look` has not been called yet

    def __del__(self) -> None:
        if isinstance(view := getattr(self, "view", None), ReadOnlyView):
            watches.forget(view.directory)

    def has_news(self) -> bool:
        """Return whether the log has grown or otherwise changed since the last `look`."""
        view = self.view
        if not isinstance(view, ReadOnlyView) or not view.catch_up():
            view.refresh()
        return self._end > self.end_offset or view.guard.version != self.version

    @property
    def _end(self) -> int:
        return self.view.durable_end_offset if self.durable else self.view.log_end_offset

    def look(self, start: Callable[[], RecordIterator] | None = None) -> RecordIterator | None:
        """Return an iterator over the records that are new since the last call; None if there are no new records.

        The first call gets the iterator from `start`. If a call raises, the next call raises again.
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
        """Return an error if records below `offset` were cut since the last `look`: the caller must stop reading."""
        view = self.view
        if not isinstance(view, ReadOnlyView):
            overtaken = view.has_overtaken(ReaderPosition(offset, self.version, -1, 0))
            return out_of_range(offset, view.log_start_offset, view.log_end_offset) if overtaken else None
        assert self.records is not None
        view.refresh()  # it changes the guard's version if the last batch has gone
        try:
            self.records.resume(self._end)
        except OffsetOutOfRangeError as error:
            return error
        return None
