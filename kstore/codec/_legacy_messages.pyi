"""Checks old messages, and rewrites old messages and v2 records as new v2 batches, in bulk and without the GIL."""

from typing import final

from _typeshed import ReadableBuffer

from kstore.codec._pack import Packer

def survey(data: ReadableBuffer, most_bytes: int) -> tuple[int, int, int, int, bool] | None:
    """Check the heads and CRCs of uncompressed entries of formats 0 and 1 in bulk (SEMANTICS 1.4 to 1.8).

    Returns (entries, bytes, last offset, greatest timestamp, whether offsets increase). Returns None if there is no
    whole entry, or if an entry has a fault, a codec, another format or more than `most_bytes`; the caller must then
    check the entries one by one. Leaves out a torn entry at the end.
    """

def frame(data: ReadableBuffer, *, position: int = 0) -> tuple[int, int]:
    """Return the number of whole messages inside a wrapper, and the offset of the last one (-1 if there is none).

    Does not count a torn message at the end. Raises `CorruptRecordError`, with the wrapper's `position`, if a message
    declares a size of less than 14 bytes.
    """

@final
class Messages:
    """Messages of one append: those inside one wrapper, or uncompressed entries.

    The framing of `data` has been checked. `append_time` is the time of a wrapper that says LogAppendTime, else None.
    `rules` is (magic, create_time, now_ms, before_max_ms, after_max_ms, require_key). Immutable.
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
        """Check every message (SEMANTICS 1.14 to 1.17); return the faults of the first batch that has any.

        A fault is (index, reason, whether it is about the timestamp). A wrapper is one batch; each entry outside a
        wrapper is one, too. Raises `InvalidRecordError` or `CorruptRecordError` if a fault refuses the whole append.
        """
    def pack(self, packer: Packer, count: int, *, check: bool) -> list[tuple[int, str, bool]]:
        """Write these `count` messages into one batch of `packer`; return a list with the first fault, if any.

        If `check` is true, checks each message before writing it, with the faults and errors of the method `check`.
        Also raises `InvalidRecordError` for a field that extends past its message, `InvalidTimestampError` for a
        timestamp below -1, and `RecordTooLargeError` if the batch would be too large.
        """

def repack(packer: Packer, data: ReadableBuffer) -> None:
    """Write the records of the v2 batch `data`, whose structure has been checked, into one batch of `packer`.

    New offsets start at 0, and bytes of a header's name that are not UTF-8 become U+FFFD, as in Kafka. Raises
    `CorruptRecordError` for data that does not decompress, `InvalidTimestampError` for a timestamp below -1,
    `InvalidRecordError` for an invalid record, and `RecordTooLargeError` if the new batch would be too large.
    """
