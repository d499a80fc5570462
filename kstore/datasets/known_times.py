"""The least timestamps of ranges of offsets, as scans have found them.

No file says how old the records of a segment may be; only the greatest timestamps are in the time index. Invariant: no
record in a noted range, as long as the log only grows, is older than the noted timestamp.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from kstore.datasets.spans import Span
from kstore.log.hosted_log import HostedLog

if TYPE_CHECKING:
    from kstore.columns._columns import Columns
    from kstore.log.log import Log

PIECE_ROWS = 2048  # rows of one range
MOST_PIECES = 32_768  # of a log; beyond that, every two become one


class KnownTimes:
    """The noted ranges of one log. Thread-safe."""

    def __init__(self) -> None:
        self._version = -1
        self._pieces = np.empty((3, 0), np.int64)  # first offsets, ends, least timestamps; the ranges rise
        self._noting = threading.Lock()

    @staticmethod
    def version(log: Log) -> int:
        """Return a number that changes when records are removed from the log."""
        return HostedLog(log).view.guard.version

    def note(self, version: int, start: int, chunk: Columns) -> None:
        """Note the timestamps of a chunk of all records from `start` on, which was read at this version of the log."""
        stamps, offsets = chunk.timestamps, chunk.offsets
        if not len(stamps):
            return
        firsts = np.arange(0, len(stamps), PIECE_ROWS)
        starts = offsets[firsts]
        starts[0] = start
        found = np.array([starts, [*starts[1:], chunk.next_offset], np.minimum.reduceat(stamps, firsts)], np.int64)
        with self._noting:
            known = self._pieces if version == self._version else self._pieces[:, :0]
            at = int(np.searchsorted(known[0], start))
            if (at and known[1, at - 1] > start) or (at < known.shape[1] and known[0, at] < chunk.next_offset):
                return
            pieces = np.concatenate([known[:, :at], found, known[:, at:]], axis=1)
            self._pieces = pieces if pieces.shape[1] <= MOST_PIECES else _halved(pieces)
            self._version = version

    def without_newer(self, log: Log, span: Span, high: int) -> list[Span]:
        """Return what is left of a range of offsets without the noted ranges whose records are all after `high`."""
        with self._noting:
            pieces, version = self._pieces, self._version
        if version != self.version(log):
            return [span]
        newer = pieces[:2, pieces[2] > high]
        newer = newer[:, (newer[1] > span.start) & (newer[0] < span.end)]
        starts = np.concatenate([[span.start], newer[1]])
        ends = np.concatenate([newer[0], [span.end]])
        return [Span(int(start), int(end)) for start, end in zip(starts, ends, strict=True) if start < end]


def _halved(pieces: np.ndarray) -> np.ndarray:
    """Join every two ranges that follow one another."""
    first, second = pieces[:, :-1:2], pieces[:, 1::2]
    follow = first[1] == second[0]
    joined = np.stack([first[0], second[1], np.minimum(first[2], second[2])])[:, follow]
    kept = [joined, first[:, ~follow], second[:, ~follow], pieces[:, pieces.shape[1] // 2 * 2 :]]
    merged = np.concatenate(kept, axis=1)
    return merged[:, np.argsort(merged[0])]
