"""Gives batches that a bulk load's task has staged their offsets in the log, in the staged file itself."""

from _typeshed import StrPath

def rebase(
    fd: int, end: int, base_offset: int, leader_epoch: int, *, write: bool = True, path: StrPath | None = None
) -> tuple[int, int, int]:
    """Give the v2 batches of `[0, end)` of a file the offsets from `base_offset` on, and a leader epoch, in place.

    (next offset, batches, CRC of the first batch). Only what no CRC covers is written, 16 bytes of each batch, without
    the GIL; the offsets that are there do not count, so that it may be done again. With `write` false it only looks.
    Raises `CorruptRecordError` for bytes that are no whole batches without a producer, and `StorageError`.
    """
