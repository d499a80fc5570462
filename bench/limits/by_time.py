"""What a search by time cannot leave out: the header of the batch that its index entry names, and the batch behind it.

The header shows that the entry is right; a log that stays open reads it once for each entry. The batch behind it is
read whole, as its CRC covers all of it; without the CRC a damaged time would give a wrong offset, and a read that ends
there never opens the batch. Two reads of a file that is in the page cache, or the second one alone, at places that are
in no cache of the processor: no search in an index, no CRC, no record is parsed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

HEADER_BYTES = 256


def reads(fd: int, places: Sequence[tuple[int, int]], batch_bytes: int) -> None:
    """Read at each place, which is (position of a batch, position of the next), a header and a batch."""
    header, batch = [bytearray(HEADER_BYTES)], [bytearray(batch_bytes)]
    preadv = os.preadv
    for position, following in places:
        preadv(fd, header, position)
        preadv(fd, batch, following)


def batches(fd: int, places: Sequence[tuple[int, int]], batch_bytes: int) -> None:
    """Read at each place the batch alone."""
    batch = [bytearray(batch_bytes)]
    preadv = os.preadv
    for _, following in places:
        preadv(fd, batch, following)
