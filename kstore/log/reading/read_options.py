"""`ReadOptions`: the checked arguments of one pass over a log."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple

from kstore.base import arguments, times

Isolation = Literal["read_uncommitted", "read_committed"]
OnLag = Literal["raise", "start"]


class ReadOptions(NamedTuple):
    """The arguments of one pass over a log."""

    offset: int | None = None  # None: the log start, or the offset of `start_timestamp`
    end_offset: int | None = None  # None: the log end at the start of the pass; no end if `follow`
    start_timestamp: int | None = None  # start at the first record at or after this time
    end_timestamp: int | None = None  # end before the first record at or after this time
    committed: bool = False  # only committed records
    durable: bool = False  # only flushed records
    follow: bool = False  # wait for more records at the end
    timeout: float | None = None  # if `follow`, end after this many seconds without a new record
    skip_deleted: bool = False  # if records at the reader's offset were deleted, continue at the log start


def wants_committed(isolation: Isolation) -> bool:
    """Return whether `isolation` leaves out open and aborted transactions; raise `ValueError` for an unknown one."""
    if isolation not in ("read_uncommitted", "read_committed"):
        raise ValueError(f"isolation is {isolation!r}; 'read_uncommitted' and 'read_committed' are allowed")
    return isolation == "read_committed"


def check_on_lag(on_lag: OnLag) -> None:
    if on_lag not in ("raise", "start"):
        raise ValueError(f"on_lag is {on_lag!r}; 'raise' and 'start' are allowed")


def checked_end(end_timestamp: int | datetime | None, follow: bool) -> int | None:
    """Return the time at which a pass ends, in milliseconds; raise `ValueError` if the pass follows."""
    if end_timestamp is None:
        return None
    if follow:
        raise ValueError("give follow or an end_timestamp, not both")
    return times.moment("end_timestamp", end_timestamp)


def read_options(
    offset: int | None,
    end_offset: int | None,
    start_timestamp: int | datetime | None,
    end_timestamp: int | datetime | None,
    isolation: Isolation,
    durable: bool,
    follow: bool = False,
    timeout: float | None = None,
    on_lag: OnLag = "raise",
) -> ReadOptions:
    """Check the arguments of a pass over a log."""
    committed = isolation != "read_uncommitted" and wants_committed(isolation)
    if on_lag != "raise":
        check_on_lag(on_lag)
    if timeout is not None:
        timeout = arguments.seconds("timeout", timeout)
    if end_offset is not None:
        end_offset = arguments.integer("end_offset", end_offset)
    if offset is not None:
        offset = arguments.whole("offset", offset)
    if start_timestamp is not None:
        if offset is not None:
            raise ValueError("give an offset or a start_timestamp, not both")
        start_timestamp = times.moment("start_timestamp", start_timestamp)
    end_timestamp = checked_end(end_timestamp, follow)
    return ReadOptions(
        offset, end_offset, start_timestamp, end_timestamp, committed, durable, follow, timeout, on_lag == "start"
    )
