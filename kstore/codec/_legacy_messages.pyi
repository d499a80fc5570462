"""Records that others have sent, in bulk and without the GIL: old messages checked, and written anew as v2."""

from typing import final

from _typeshed import ReadableBuffer

from kstore.codec._pack import Packer

def survey(data: ReadableBuffer, most_bytes: int) -> tuple[int, int, int, int, bool] | None:
    """Look at the heads and CRCs of uncompressed entries of formats 0 and 1, one after the other
    (SEMANTICS 1.4 to 1.8).

    (entries, bytes, last offset, greatest timestamp, whether offsets increase); None where anything else is there, or
    something is wrong: a slower look says what. An entry has at most `most_bytes`; a torn one at the end is left out.
    """

def frame(data: ReadableBuffer, *, position: int = 0) -> tuple[int, int]:
    """Look through the messages inside of a wrapper; how many are whole, and the offset of the last, -1 for none.

    A torn one at the end is left out. Raises `CorruptRecordError`, with the wrapper's `position`, for a message that
    declares a size of less than 14 bytes.
    """

@final
class Messages:
    """Messages of one append: those inside of one wrapper, or uncompressed entries one after the other.

    `data` are their bytes, whose framing has been checked. Of a wrapper, `append_time` is its time if it says
    LogAppendTime. `rules` is (magic, create_time, now_ms, before_max_ms, after_max_ms, require_key). Immutable.
    """
    def __init__(
        self,
        data: ReadableBuffer,
        rules: tuple[int, bool, int, int, int, bool],
        *,
        wrapped: bool,
        append_time: int | None = None,
        position: int = 0,
    ) -> None: ...
    def check(self) -> list[tuple[int, str, bool]]:
        """Look at every message (SEMANTICS 1.14 to 1.17); the faults of the first batch that has some: (index, reason,
        is of time).

        A wrapper is a batch, and so is each entry that is in none. Raises `InvalidRecordError` and `CorruptRecordError`
        for what refuses the append whatever else there is.
        """
    def pack(self, packer: Packer, count: int, *, check: bool) -> list[tuple[int, str, bool]]:
        """Write these `count` messages into one batch of `packer`; the faults of the first that is refused, as `check`.

        With `check` each is looked at just before its fields are. Raises what `check` does, `InvalidRecordError` for a
        field that is not whole, `InvalidTimestampError` for a negative timestamp and `RecordTooLargeError`.
        """

def repack(packer: Packer, data: ReadableBuffer) -> None:
    """Write the records of the v2 batch `data`, whose structure has been checked, into one batch of `packer`.

    Their offsets count from 0 then, and a header's name that is not UTF-8 has U+FFFD in the place of what is wrong, as
    Kafka writes it. Raises `InvalidTimestampError` for a negative timestamp, `InvalidRecordError`,
    `CorruptRecordError` for data that does not decompress, and `RecordTooLargeError`.
    """
