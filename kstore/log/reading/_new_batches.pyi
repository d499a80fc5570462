"""One look at the end of a log that another process writes: finds the batches that were appended since the last look."""

from typing import NamedTuple

from kstore.log.reading.read_only_view import DirectoryState

class NewBatches(NamedTuple):
    """Sound batches at the end of a segment, preceded by the last batch that was known before."""

    data: bytes
    position: int
    last_position: int
    next_offset: int
    maximum: tuple[int, int]
    changed_ns: int

def new_batches(
    root: bytes,
    directory: bytes,
    path: bytes,
    fd: int,
    marked_ns: int,
    listed_ns: int,
    state: DirectoryState,
    base_offset: int,
) -> NewBatches | bool:
    """Return the batches behind the end of `state`, True if there are none, False if a refresh must find out more.

    The directories must have the times of modification `marked_ns` and `listed_ns`, and `fd` must be the last segment's
    file. All new batches must have format 2, and each must start where the batch before ends.
    """
