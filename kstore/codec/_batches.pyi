"""Checks whole batches in memory: their ends, the order of their offsets, and their records as a leader does."""

from typing import final

from _typeshed import ReadableBuffer

@final
class BatchCheck:
    """The result of `check_batch`: `count`, the true `max_timestamp`, whether deltas are `consecutive`, `errors`.

    `outside` is the offset delta of the first record outside the batch, or None. `errors` lists (index, reason, whether
    it is about the timestamp) for up to MOST_ERRORS records, and always the first error about a timestamp. Immutable.
    """
    @property
    def count(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def consecutive(self) -> bool: ...
    @property
    def outside(self) -> int | None: ...
    @property
    def errors(self) -> list[tuple[int, str, bool]]: ...

def check_batch(
    data: ReadableBuffer,
    *,
    position: int = 0,
    create_time: bool = True,
    now_ms: int = 0,
    before_max_ms: int = 0x7FFFFFFFFFFFFFFF,
    after_max_ms: int = 0x7FFFFFFFFFFFFFFF,
    require_key: bool = False,
    max_decompressed_bytes: int | None = None,
) -> BatchCheck:
    """Check every record of the v2 batch at `position` of `data` as a leader does (SEMANTICS 1.15 to 1.17).

    `create_time` says whether the topic's timestamp type is CreateTime. The batch's size and CRC have been checked.
    Raises `InvalidRecordError` for a broken structure, `CorruptRecordError` for data that does not decompress.
    """

def whole_batches(buffer: ReadableBuffer) -> tuple[int, int]:
    """Return (bytes of the whole batches at the start of `buffer`, size of the cut-off batch after them or 0).

    Returns (n, -1) if the bytes at n are not a batch: they declare a size below the smallest possible (FORMAT 2.7).
    """

def chained(buffer: ReadableBuffer, least: int, most: int, following: int = ...) -> tuple[int, int, int]:
    """Check that the offsets of whole batches are in order; return (bytes that pass, last position, next offset).

    The first base offset must be at least `least`, and all offsets must be below `most`. The last offset of a batch
    after a gap must be below the base offset of the next batch, or below `following` if there is no next batch. This
    finds every wrong base offset; no CRC covers base offsets. The last position is that of the last batch that passes
    (0 if there is none), and the next offset is the least base offset that the next batch may have. Bytes that are not
    framed as a batch pass: readers report them.
    """

def plain_run(buffer: ReadableBuffer) -> tuple[int, int, int, int, int] | None:
    """Check a follower's append in bulk; return (count, last position, last offset, greatest timestamp, codec) or None.

    Returns None unless all batches are whole and sound, of format 2, of one leader epoch and without a producer id, and
    their offsets rise. After None the caller must check the batches one by one. Releases the GIL.
    """
