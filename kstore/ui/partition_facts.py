"""What the pages about one partition show: its explanation, its batches, its producers, the findings of a check."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from kstore.codec.compression import NAMES
from kstore.disk import fs
from kstore.errors import KStoreError
from kstore.explained.explanation import Explanation
from kstore.log.log import Log
from kstore.store.disk_usage import log_bytes
from kstore.tools.check.findings import Finding
from kstore.tools.check.verify import Report, verify
from kstore.ui.late_value import LateValue
from kstore.ui.query_values import BadRequestError
from kstore.ui.viewed_store import Place, ViewedStore

__all__ = ["BatchRow", "Batches", "Checked", "Explanations", "SizeClass", "batches_from", "check_segments"]

PAGE_BATCHES = 100
BATCH_OFFSETS = 20_000
"""The offsets whose batches one request looks at, at most."""
CHECK_BYTES = 256 << 20
"""The most bytes that one request checks."""
CHECK_SEGMENTS = 2000
"""The most segments that one request checks."""
_KEPT = 8  # explanations
_PATIENCES = 4
"""How many times longer a page waits for an explanation than for the sizes of a directory."""


class Explanations:
    """The newest explanations of partitions. That of a log of very many segments takes seconds, so threads find them.

    Thread-safe.
    """

    def __init__(self, viewed: ViewedStore) -> None:
        self._viewed = viewed
        self._lock = threading.Lock()
        self._kept: OrderedDict[Place, LateValue[Explanation | KStoreError]] = OrderedDict()

    def of(self, place: Place) -> Explanation | None:
        """Return the newest explanation of a partition; None if it is not found yet.

        Raises the errors of `Log.explain`.
        """
        with self._lock:
            value = self._kept.pop(place, None) or self._made(place)
            self._kept[place] = value
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        view = self._viewed.view(place)

        def is_as_now(found: Explanation | KStoreError) -> bool:
            state = view.log_start_offset, view.log_end_offset, view.recovery_point
            return isinstance(found, Explanation) and state == (
                found.log_start_offset,
                found.log_end_offset,
                found.recovery_point,
            )

        found = value.get(is_as_now)
        if isinstance(found, KStoreError):
            raise found
        return found

    def _made(self, place: Place) -> LateValue[Explanation | KStoreError]:
        def find() -> Explanation | KStoreError:
            try:
                return self._viewed.log(place).explain(at=self._viewed.clock())
            except KStoreError as error:
                return error

        return LateValue(find, patience=_PATIENCES * self._viewed.patience)


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

    Raises `BadRequestError` for more than `CHECK_BYTES` or `CHECK_SEGMENTS` and for an unknown segment, and
    `KStoreError` while another check runs.
    """
    view = viewed.view(place)
    path, size_bytes, segments = view.directory, log_bytes(view.directory), len(view.segments.items)
    if base_offset is not None:
        segment = next((each for each in view.segments.items if each.base_offset == base_offset), None)
        if segment is None:
            raise BadRequestError(f"{place} has no segment {base_offset}")
        path, size_bytes, segments = segment.path, fs.stat(segment.path).st_size, 1
    if size_bytes > CHECK_BYTES or segments > CHECK_SEGMENTS:
        raise BadRequestError(
            f"{size_bytes} bytes in {segments} segments are to be checked, and {CHECK_BYTES} in {CHECK_SEGMENTS} are "
            f"the most here: check one segment, or run kstore verify {path}"
        )
    if not _checking.acquire(blocking=False):
        raise KStoreError("another check is running; look again when it is done")
    try:
        report = verify([path], deep=True, threads=1)
    finally:
        _checking.release()
    ordered = sorted(report.findings, key=lambda finding: finding.severity)
    return Checked(ordered[:_MOST_FINDINGS], max(len(ordered) - _MOST_FINDINGS, 0), report)
