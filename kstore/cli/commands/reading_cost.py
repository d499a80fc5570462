"""`--explain`: how many requests, and bytes, a reading of an object store takes, before it is read."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NamedTuple

from kstore.cli import output
from kstore.cli.command_options import UsageError
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.reading.remote_view import RemoteView
from kstore.store.catalog import Entry

__all__ = ["PartitionCost", "add_option", "of", "show"]


class PartitionCost(NamedTuple):
    """What the reading of one partition takes."""

    topic: str
    partition: int
    requests: int
    bytes: int


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--explain",
        action="store_true",
        help="of a URL: print how many requests and bytes the reading takes if nothing is cached, and end",
    )


def of(
    entry: Entry,
    log: Log,
    offset: int | None = None,
    *,
    start_timestamp: int | None = None,
    end_offset: int | None = None,
) -> PartitionCost:
    """Return what a reading takes; the arguments are those of `Log.read`. An index may be fetched for its start."""
    view = HostedLog(log).view
    if not isinstance(view, RemoteView):
        raise UsageError(f"--explain is about the requests to an object store, and {entry.path} is a directory")
    end = log.log_end_offset if end_offset is None else min(end_offset, log.log_end_offset)
    start = log.log_start_offset if offset is None else offset
    if start_timestamp is not None:
        first = log.offset_for_timestamp(start_timestamp)
        start = end if first is None else first.offset
    return PartitionCost(entry.topic, entry.partition, *(view.cost(start, end) if start < end else (0, 0)))


def show(costs: Iterable[PartitionCost], *, as_json: bool, times: int = 1) -> None:
    """Print the cost of each partition and the sum; everything is read `times` times."""
    found = [each._replace(requests=each.requests * times, bytes=each.bytes * times) for each in costs]
    requests, size = sum(each.requests for each in found), sum(each.bytes for each in found)
    if as_json:
        output.json_line({"requests": requests, "bytes": size, "partitions": [each._asdict() for each in found]})
        return
    for each in found:
        print(f"{each.topic}-{each.partition}: {_told(each.requests, each.bytes)}")
    if len(found) > 1:
        print(f"together: {_told(requests, size)}")


def _told(requests: int, size: int) -> str:
    return f"{output.count(requests, 'request')}, {output.size(size)}"
