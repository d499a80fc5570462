"""Server-Sent Events: the values of a page that change while it is open. A stream ends when its client goes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from kstore.base import optional
from kstore.base.numbers import size
from kstore.errors import KStoreError
from kstore.ui import query_values
from kstore.ui.directory_facts import PartitionRow, directory_rows, row_of, version_of
from kstore.ui.directory_pages import asked_rows, disk_version
from kstore.ui.page_templates import USER, clock_time, count, lag, per_second, total
from kstore.ui.partition_pages import named_place
from kstore.ui.query_values import NotFoundError
from kstore.ui.viewed_store import ViewedStore

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from kstore.ui.access import App, Receive, Scope, Send

__all__ = ["LiveEvents"]

MAX_STREAMS = 16
_EVENTS = "text/event-stream"
_LOOKS = 10
_QUIET_S = 15.0
"""A comment is sent after so many seconds without an event, so that a connection that is gone is noticed."""


class News(NamedTuple):
    """The content of one event."""

    values: dict[str, str]
    """The text of each element that shows a value."""
    version: str = ""
    """If it differs from the one that the page has, the parts of the page are loaded again."""
    problem: str = ""
    """Why there are no values now."""


class LiveEvents:
    """The endpoints of streams of events. Used by one event loop."""

    def __init__(self, viewed: ViewedStore, *, interval: float = 1.0) -> None:
        """Look at the logs every `interval` seconds."""
        self._viewed = viewed
        self._interval = interval
        self._streams = 0
        self._stopping = False

    def stop(self) -> None:
        """End all streams at their next look."""
        self._stopping = True

    async def directory(self, request: Request) -> Response:
        """Stream the values of the rows that a page of the directory shows, and the totals."""
        asked = asked_rows(request)

        def look() -> News:
            found = directory_rows(self._viewed, asked)
            values = {"total": total(found.total_bytes)}
            for row, lags in found.rows:
                values |= _values(row, f"{row.place}/")
                values[f"{row.place}/lag"] = lag(lags)
            return News(values, found.version)

        return self._stream(request, look)

    async def disk(self, request: Request) -> Response:
        """Stream how far the search for what takes the space is."""

        def look() -> News:
            version = disk_version(self._viewed)
            done, every = self._viewed.disk_progress
            return News({"progress": f"{done:,} of {every:,} partitions"}, version)

        return self._stream(request, look)

    async def partition(self, request: Request) -> Response:
        """Stream the values of a partition; with `watch=no` the parts of the page are not loaded again."""
        place = named_place(request)
        watches = query_values.choice(request, "watch", "yes", "no") == "yes"
        speed = _Speed()

        def look() -> News:
            self._viewed.place(*place)
            row = row_of(self._viewed, place)
            if row.error is not None:
                return News({}, problem=row.error)
            values = _values(row)
            values["now"] = per_second(speed.of(row.end))
            return News(values, version_of(row) if watches else "")

        return self._stream(request, look)

    def _stream(self, request: Request, look: Callable[[], News]) -> Response:
        responses = optional.starlette(USER, "starlette.responses")
        if request.method == "HEAD":
            return responses.Response(media_type=_EVENTS)  # type: ignore[no-any-return]
        if self._streams >= MAX_STREAMS:
            return responses.PlainTextResponse("too many pages are open", 503)  # type: ignore[no-any-return]
        self._streams += 1  # now, and not when it begins: other requests may be answered in between
        stream = responses.StreamingResponse(self._events(look), media_type=_EVENTS)
        return cast("Response", _Counted(stream, self._end))

    def _end(self) -> None:
        self._streams -= 1

    async def _events(self, look: Callable[[], News]) -> AsyncIterator[bytes]:
        before, quiet = None, 0.0
        yield b"retry: 2000\n\n"
        while not self._stopping:
            now = await asyncio.to_thread(_news, look)
            if now != before:
                yield f"data: {json.dumps(now._asdict())}\n\n".encode()
                before, quiet = now, 0.0
            elif quiet >= _QUIET_S:
                yield b": quiet\n\n"
                quiet = 0.0
            await asyncio.sleep(self._interval)
            quiet += self._interval


class _Counted:
    """An answer that calls a function when it has ended, however it ends."""

    def __init__(self, answer: App, end: Callable[[], None]) -> None:
        self._answer = answer
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._end()


class _Speed:
    """The rate at which a log end rises, over the last looks. For one stream."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    def of(self, end: int) -> float | None:
        """Return records for each second up to this log end; None at the first look."""
        self._seen.append((time.monotonic(), end))
        (before, first), (now, last) = self._seen[0], self._seen[-1]
        return max(last - first, 0) / (now - before) if now > before else None


def _news(look: Callable[[], News]) -> News:
    """Return what `look` returns; a log or directory that cannot be read is a problem, and is looked at again."""
    try:
        return look()
    except NotFoundError as error:
        return News({}, problem=str(error))
    except KStoreError as error:
        return News({}, problem=f"{type(error).__name__}: {error}")


def _values(row: PartitionRow, prefix: str = "") -> dict[str, str]:
    """Return the texts of a row's values by name."""
    if row.error is not None:
        return {}
    return {
        f"{prefix}start": count(row.start),
        f"{prefix}end": count(row.end),
        f"{prefix}records": count(row.records),
        f"{prefix}size": size(row.size_bytes),
        f"{prefix}segments": count(row.segments),
        f"{prefix}rate": per_second(row.rate),
        f"{prefix}newest": clock_time(row.newest_ms),
    }
