"""Whole batches in memory: where they end, whether their offsets are in order, and a leader's check of their records."""

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

    `create_time` is the topic's timestamp type. The batch's size and CRC have been checked. Raises `InvalidRecordError`
    for a broken structure, `CorruptRecordError` for data that does not decompress.
    """

def whole_batches(buffer: ReadableBuffer) -> tuple[int, int]:
    """Return (bytes of the whole batches at the start of `buffer`, size of the batch that is cut off or 0).

    Returns (n, -1) if the bytes at n are not a batch: they declare a size below the smallest possible (FORMAT 2.7).
    """

def chained(buffer: ReadableBuffer, least: int, most: int, following: int = ...) -> tuple[int, int, int]:
    """Check that the offsets of whole batches are in order; return (end of the sound batches, last of them, least).

    The first base offset must be at least `least`, all offsets below `most`. A batch after a gap must end before the
    next one starts, and the last one before `following`. This finds every wrong base offset, which no CRC covers.
    The result is the number of bytes that pass, the position of the last batch in them (0 if there is none), and the
    least base offset of the next batch. Bytes that do not frame a batch pass: readers report them.
    """

def plain_run(buffer: ReadableBuffer) -> tuple[int, int, int, int, int] | None:
    """Check a follower's append in bulk: (count, last position, last offset, greatest timestamp, codec), or None.

    Returns None unless all batches are whole and sound, of format 2, of one leader epoch and without a producer id, and
    their offsets rise; the caller must then check them one by one. Releases the GIL.
    """
