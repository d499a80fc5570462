"""The offset of each key's newest record, from columns of keys; c/columns/latest.c does the work, without the GIL."""

from collections.abc import Iterable
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt
from _typeshed import ReadableBuffer

from kstore.columns._columns import Columns

COLUMNS: Final[tuple[str, ...]]
SECRET_BYTES: Final[int]

def new_secret() -> bytes:
    """Return a random secret for `LatestOffsets`."""

@final
class LatestOffsets:
    """Maps each key to the offset of its newest added record, unless that record is a tombstone.

    All offsets are in `[first_offset, end_offset)`; `add` raises `ValueError` for other offsets. `share_keys` compares
    only objects with the same secret. One thread at a time may add; after the last `add`, thread-safe.
    """
    def __new__(cls, secret: bytes, first_offset: int, end_offset: int, *, _hash_bits: int = 96) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """The bytes of memory of the map and the offsets."""
    def add(self, columns: Columns) -> None:
        """Add records that come after those added before; needs COLUMNS, with keys in the layout "binary".

        Raises `MemoryError`, also for more than 2^32 - 2 keys; the object must not be used after that.
        """
    def find(self, key: ReadableBuffer) -> int:
        """Return the offset of a key's newest record, or -1; a collision of hashes (very rare) finds another key."""
    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offsets of the newest records of all keys, in rising order."""

def share_keys(tables: Iterable[LatestOffsets]) -> bool:
    """Return whether some key may have records in two of the tables; False is certain."""
