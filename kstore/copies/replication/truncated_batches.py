"""What a follower cuts, kept in files beside: `DIR/orders-0/<base offset>.log`, which any tool for segments reads.

The hardest rule: a file is on the disk before its batches are cut, and is never written again. A name that is taken
gets a number behind it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from kstore.copies.replication.common_batch import Found, batches_from
from kstore.disk import fs, newfiles
from kstore.files import names
from kstore.log.reading.view import View
from kstore.log.segments.segment import Segment

_PIECE_BYTES = 1 << 20


def save(view: View, directory: str, partition: str, offset: int) -> list[str]:
    """Write the batches of a log that hold `offset` and more into a directory, a file for each segment; their paths."""
    folder = os.path.join(directory, partition)
    paths = []
    for first, last in _runs(batches_from(view, offset, view.log_end_offset)):
        fs.make_directories(folder)
        path = _free_name(folder, first.place.base_offset)
        end = last.place.position + last.place.size_bytes
        with newfiles.written(path, _pieces(first.segment, first.place.position, end)):
            pass  # it has its name from the beginning on
        paths.append(path)
    if paths:
        fs.sync_directory(folder)
    return paths


def _runs(batches: Iterator[Found]) -> Iterator[tuple[Found, Found]]:
    """The first and the last batch of each segment."""
    first = last = None
    for found in batches:
        if first is None or last is None or found.segment is not last.segment:
            if first is not None and last is not None:
                yield first, last
            first = found
        last = found
    if first is not None and last is not None:
        yield first, last


def _free_name(folder: str, base_offset: int) -> str:
    plain = os.path.join(folder, names.log_name(base_offset))
    path, number = plain, 0
    while fs.exists(path):
        number += 1
        path = f"{plain}.{number}"
    return path


def _pieces(segment: Segment, position: int, end: int) -> Iterator[bytes]:
    while position < end:
        data = segment.file.read(position, min(_PIECE_BYTES, end - position))
        position += len(data)
        yield data
