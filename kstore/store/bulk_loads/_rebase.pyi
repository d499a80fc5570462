"""Writes into a staged file the offsets that its batches get in the log."""

from _typeshed import StrPath

def rebase(
    fd: int, end: int, base_offset: int, leader_epoch: int, *, write: bool = True, path: StrPath | None = None
) -> tuple[int, int, int]:
    """Write offsets from `base_offset` on and a leader epoch into the v2 batches of `[0, end)` of a file, in place.

    Returns (next offset, number of batches, CRC of the first batch). Writes only the 16 bytes of each batch that no CRC
    covers, without the GIL. Ignores the present offsets, so a call may be repeated. If `write` is false, only checks
    the batches. Raises `StorageError`; raises `CorruptRecordError` if the bytes are not whole batches without a
    producer.
    """
