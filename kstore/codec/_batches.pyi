"""Whole batches in memory: where they end, whether they follow one another, and a leader's check of their records."""

from typing import final

from _typeshed import ReadableBuffer

@final
class BatchCheck:
    """The result of `check_batch`: `count`, the true `max_timestamp`, whether deltas are `consecutive`, `errors`.

    `outside` is the offset delta of the first record that lies outside of the batch, None without one.

    `errors` lists (index, reason, whether it is the timestamp), at most one of a record, and of tens of thousands only
    the first and the first that is about the timestamp. Immutable.
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
    """Look at every record of the v2 batch at `position` of `data` as a leader does (SEMANTICS 1.15 to 1.17).

    `create_time` is the topic's timestamp type. The batch's size and CRC have been checked. A broken structure is an
    `InvalidRecordError`, data that does not decompress a `CorruptRecordError`.
    """

def whole_batches(buffer: ReadableBuffer) -> tuple[int, int]:
    """(bytes of the whole batches at the start of `buffer`, size of the batch that is cut off or 0).

    Answers (n, -1) when what stands at n is no batch: a declared size below the smallest there is (FORMAT 2.7).
    """

def chained(buffer: ReadableBuffer, least: int, most: int, following: int = ...) -> tuple[int, int, int]:
    """Walk the headers of whole batches that are to follow one another: (end of the sound ones, last of them, least).

    The first batch may begin at `least` or above, and all must end below `most`; one behind a gap must end before the
    next begins, and the last before `following`. All that is wrong with a base offset shows so, which no CRC covers. The
    answer: how many bytes of the buffer stand the test, where the last batch in these begins (0 without one), and what
    the least base offset is of what follows. What is no frame of a batch stands the test: readers say what it is.
    """

def plain_run(buffer: ReadableBuffer) -> tuple[int, int, int, int, int] | None:
    """Check all of a follower's append at once: (count, last of them, last offset, greatest timestamp, codec), or None.

    None says nothing but that the batches have to be looked at one by one: not all are whole and sound, of format 2,
    of one leader epoch and without a producer, with offsets that rise. Holds no GIL.
    """
