"""`LogSource`: the new records of one log, for a stream that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from kstore._core import Record, RecordIterator
from kstore.log.async_stream import Stream
from kstore.log.log_watch import await_news
from kstore.log.reading.followed_log import FollowedLog
from kstore.log.reading.log_reader import iterate_records
from kstore.log.reading.read_options import ReadOptions
from kstore.log.reading.view import View


class LogSource:
    """A `Source` of one log's new records, up to the options' `end_offset`."""

    def __init__(self, view: View, records: RecordIterator, options: ReadOptions) -> None:
        self._view = view
        self._followed = FollowedLog(view, records, options.durable)
        self._end_offset = options.end_offset
        self._committed = options.committed
        self.is_over = False

    def look(self) -> Sequence[RecordIterator]:
        records = self._followed.look()
        if records is None:
            return ()
        if self._end_offset is not None:
            end = self._followed.end_offset
            if self._committed:
                end = min(end, self._view.stable_end_offset)
            self.is_over = end >= self._end_offset
            if self._followed.end_offset > self._end_offset:
                records.resume(self._end_offset)
        return (records,)

    async def news(self, deadline: float) -> bool:
        return await await_news((self._view,), self._followed.has_news, deadline - monotonic())


def stream_records(view: View, options: ReadOptions, owner: object) -> Stream[Record]:
    """Iterate over records with `async for`; see `Log.aread`."""
    records = iterate_records(view, options._replace(follow=False), owner)
    if not options.follow:
        return Stream([records])
    return Stream([], LogSource(view, records, options), options.timeout)
