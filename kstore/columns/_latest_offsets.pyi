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
    """A secret for `LatestOffsets`."""

@final
class LatestOffsets:
    """For each key the offset of its newest record, of those that were added; none for a tombstone.

    All offsets are in `[first_offset, end_offset)`; one record that is not is a `ValueError`.
    Those that are to be compared need the same secret. Adding is for one thread at a time; after that, thread-safe.
    """
    def __new__(cls, secret: bytes, first_offset: int, end_offset: int, *, _hash_bits: int = 96) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """Memory of the map and of the offsets."""
    def add(self, columns: Columns) -> None:
        """Take the records of columns that come after those added before; COLUMNS are needed, keys as "binary".

        Raises `MemoryError`, for more than 2^32 - 2 keys too; the object is of no further use then.
        """
    def find(self, key: ReadableBuffer) -> int:
        """The offset of a key's newest record, -1 where there is none; another key may have it, but hardly ever."""
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offsets of all of them, in order."""

def share_keys(tables: Iterable[LatestOffsets]) -> bool:
    """Whether a key may have a record in two of these; False only if none has."""
