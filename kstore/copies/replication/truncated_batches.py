"""Saves the batches that a follower truncates as `DIR/orders-0/<base offset>.log`, which tools for segments can read.

Invariant: a file is synced before its batches are truncated, and is never overwritten.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from kstore.copies.replication.common_batch import Found, batches_from
from kstore.disk import fs, newfiles
from kstore.files import names
from kstore.log.reading.view import View
from kstore.log.segments.segment import Segment

_PIECE_BYTES = 1 << 20


def save(view: View, directory: str, partition: str, offset: int) -> list[str]:
    """Write the batch that holds `offset` and all later batches, one file for each segment; return the paths."""
    folder = os.path.join(directory, partition)
    paths = []
    for first, last in _runs(batches_from(view, offset, view.log_end_offset)):
        fs.make_directories(folder)
        path = _free_name(folder, first.place.base_offset)
        end = last.place.position + last.place.size_bytes
        with newfiles.written(path, _pieces(first.segment, first.place.position, end)):
            pass  # the file has its final name from the start
        paths.append(path)
    if paths:
        fs.sync_directory(folder)
    return paths


def _runs(batches: Iterator[Found]) -> Iterator[tuple[Found, Found]]:
    """Yield the first and the last batch of each segment."""
    run: tuple[Found, Found] | None = None
    for found in batches:
        if run is not None and found.segment is not run[0].segment:
            yield run
            run = None
        run = found if run is None else run[0], found
    if run is not None:
        yield run


def _free_name(folder: str, base_offset: int) -> str:
    plain = os.path.join(folder, names.log_name(base_offset))
    paths = itertools.chain([plain], (f"{plain}.{number}" for number in itertools.count(1)))
    return next(path for path in paths if not fs.exists(path))


def _pieces(segment: Segment, position: int, end: int) -> Iterator[bytes]:
    while position < end:
        data = segment.file.read(position, min(_PIECE_BYTES, end - position))
        position += len(data)
        yield data
