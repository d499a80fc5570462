"""Recovery's scan: checks every batch of a `.log` file and collects what recovery needs."""

from typing import Any, NamedTuple, final

from _typeshed import StrPath

class ProducerSpan(NamedTuple):
    """The header of a batch with a producer id."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int
    attributes: int

@final
class ScanResult:
    """The result of a scan: what it collected from the sound batches of `[position, end_position)`, and why it stopped.

    `stop` is "end" (all is sound), "torn" (the file ends inside a batch), "size", "magic", "crc" (corrupt), "order"
    (offsets do not rise), "gap" (see `scan`) or "range" (an offset that the segment's indexes cannot hold). `reason`
    describes the stop, and is None for "end". `next_offset` is None if there is no batch. The index entries are those
    of SEMANTICS 8.16 without the closing time entry. Immutable.
    """
    @property
    def position(self) -> int: ...
    @property
    def end_position(self) -> int: ...
    @property
    def stop(self) -> str: ...
    @property
    def reason(self) -> Any: ...
    @property
    def batches(self) -> int: ...
    @property
    def last_position(self) -> int: ...
    @property
    def next_offset(self) -> Any: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def index_entries(self) -> bytes: ...
    @property
    def time_entries(self) -> bytes: ...
    @property
    def epochs(self) -> list[tuple[int, int]]: ...
    @property
    def producer_batches(self) -> list[ProducerSpan]: ...

def scan(
    fd: int,
    position: int,
    end: int,
    base_offset: int,
    *,
    index_interval_bytes: int = 4096,
    latest_epoch: int = -1,
    flushed_end: int = -1,
    check_crc: bool = True,
    path: StrPath | None = None,
) -> ScanResult:
    """Check every batch of `[position, end)` and collect what recovery needs (SEMANTICS 8.16), without the GIL.

    `base_offset` is the segment's, or the end offset of the batch before `position`. Data was flushed up to the offset
    `flushed_end` (-1: not known); the scan stops ("gap") before a gap that contains this offset or ends at it. Collects
    epochs above `latest_epoch` as (epoch, base offset), and batches with a producer id as `ProducerSpan`s. Memory: one
    window and the collected items. Raises `StorageError` if a read fails; the `ScanResult` describes bad bytes.
    """
