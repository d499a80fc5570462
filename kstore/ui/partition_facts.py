"""What the pages about one partition show: its explanation, its batches, its producers, the findings of a check."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from kstore.codec.compression import NAMES
from kstore.disk import fs
from kstore.errors import KStoreError
from kstore.explained.explanation import Explanation
from kstore.log.log import Log
from kstore.tools.check.findings import Finding
from kstore.tools.check.verify import Report, verify
from kstore.ui.query_values import BadRequestError
from kstore.ui.viewed_store import Place, ViewedStore, log_bytes

__all__ = ["BatchRow", "Batches", "Checked", "Explanations", "SizeClass", "batches_from", "check_segments"]

PAGE_BATCHES = 100
BATCH_OFFSETS = 20_000
"""The offsets whose batches one request looks at, at most."""
CHECK_BYTES = 256 << 20
"""The most bytes that one request checks."""
_KEPT = 8  # explanations
_MAX_AGE_S = 2.0


class Explanations:
    """The newest explanations; one is used again for a moment, because that of a log of many segments takes long.

    Thread-safe.
    """

    def __init__(self, viewed: ViewedStore) -> None:
        self._viewed = viewed
        self._lock = threading.Lock()
        self._kept: OrderedDict[Place, tuple[float, tuple[int, ...], Explanation]] = OrderedDict()

    def of(self, place: Place) -> Explanation:
        """Return the explanation of a partition as it is now; raises the errors of `Log.explain`."""
        view = self._viewed.view(place)
        state = (view.guard.version, view.log_start_offset, view.log_end_offset, view.recovery_point)
        with self._lock:
            kept = self._kept.get(place)
        if kept is not None and kept[1] == state and time.monotonic() - kept[0] < _MAX_AGE_S:
            return kept[2]
        found = self._viewed.log(place).explain(at=self._viewed.clock())
        with self._lock:
            self._kept[place] = time.monotonic(), state, found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch in a list. Immutable, so threads may share it."""

    base_offset: int
    last_offset: int
    count: int
    position: int
    size_bytes: int
    segment_base_offset: int
    max_timestamp: int
    codec: int
    producer_id: int
    is_transactional: int
    is_control: int
    magic: int
    leader_epoch: int

    @property
    def compression(self) -> str:
        """The codec's name."""
        return codec_name(self.codec)


_COLUMNS = {name: name for name in BatchRow.__annotations__} | {
    "codec": "compression",
    "leader_epoch": "partition_leader_epoch",
}


def codec_name(code: int) -> str:
    """Return the name of a codec; a damaged header may have the number of none."""
    return NAMES[code] if 0 <= code < len(NAMES) else f"codec {code}"


class SizeClass(NamedTuple):
    """Batches of similar size: `[low, 2 * low)` bytes."""

    low: int
    batches: int
    by_codec: dict[str, int]


@dataclass(frozen=True, slots=True)
class Batches:
    """A list of batches, and statistics of all batches that were looked at. Immutable, so threads may share it."""

    rows: list[BatchRow]
    next_offset: int
    is_end: bool
    looked_at: int
    records: int
    size_bytes: int
    codecs: dict[str, int]
    classes: list[SizeClass]
    end_offset: int
    """One past the offsets that were looked at."""


def batches_from(log: Log, offset: int, rows: int = PAGE_BATCHES) -> Batches:
    """Return the batches from an offset on; the offset must be in the log. Raises the errors of `Log.batch_table`."""
    end = log.log_end_offset
    until = min(offset + BATCH_OFFSETS, end)
    table = log.batch_table(offset, end_offset=until)
    sizes, codes = table["size_bytes"], table["compression"]
    counts, last_offsets = table["count"], table["last_offset"]
    columns = {name: table[column][:rows].tolist() for name, column in _COLUMNS.items()}
    shown = [BatchRow(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    next_offset = until if len(sizes) <= rows else int(last_offsets[rows - 1]) + 1
    by_class: dict[int, dict[str, int]] = {}
    codecs: dict[str, int] = {}
    for size, code in zip(sizes.tolist(), codes.tolist(), strict=True):
        name = codec_name(code)
        codecs[name] = codecs.get(name, 0) + 1
        of_class = by_class.setdefault(1 << (max(int(size), 1).bit_length() - 1), {})
        of_class[name] = of_class.get(name, 0) + 1
    return Batches(
        shown,
        next_offset,
        next_offset >= end,
        len(sizes),
        int(counts[counts > 0].sum()),
        int(sizes.sum()),
        codecs,
        [SizeClass(low, sum(found.values()), found) for low, found in sorted(by_class.items())],
        until,
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings of a check. Immutable, so threads may share it."""

    findings: list[Finding]
    left_out: int
    """Findings that are not in the list."""
    report: Report


_checking = threading.Lock()
_MOST_FINDINGS = 200


def check_segments(viewed: ViewedStore, place: Place, base_offset: int | None) -> Checked:
    """Check a partition, or one segment of it, as `kstore verify` does.

    Raises `BadRequestError` for more than `CHECK_BYTES` or an unknown segment, and `KStoreError` while another check
    runs.
    """
    view = viewed.view(place)
    path, size_bytes = view.directory, log_bytes(view.directory)
    if base_offset is not None:
        segment = next((each for each in view.segments.items if each.base_offset == base_offset), None)
        if segment is None:
            raise BadRequestError(f"{place} has no segment {base_offset}")
        path, size_bytes = segment.path, fs.stat(segment.path).st_size
    if size_bytes > CHECK_BYTES:
        raise BadRequestError(
            f"{size_bytes} bytes are to be checked, and {CHECK_BYTES} is the most here: check one segment, or run "
            f"kstore verify {path}"
        )
    if not _checking.acquire(blocking=False):
        raise KStoreError("another check is running; look again when it is done")
    try:
        report = verify([path], deep=True, threads=1)
    finally:
        _checking.release()
    ordered = sorted(report.findings, key=lambda finding: finding.severity)
    return Checked(ordered[:_MOST_FINDINGS], max(len(ordered) - _MOST_FINDINGS, 0), report)
