"""Reads at one offset: the offset index, one `pread`, the CRC, a walk to the record. Compiled, since that is so little."""

from typing import Any, Final, final

from kstore.files.log_file import LogFile
from kstore.log.reading.read_only_view import DirectoryState
from kstore.log.reading.view import View
from kstore.log.segments.segment import Segment

UNKNOWN: Final[object]
"""The answer if the iterators must read the record."""

def kept_bytes() -> int:
    """Return the memory of all kept batches of the process."""

@final
class PointReads:
    """The reads at one offset of a log, with the batches that they keep. Thread-safe."""
    def __init__(self, directory: str, root: str, is_own: bool) -> None: ...
    def find(self, view: View, offset: object, committed: bool = False, waits: bool = True) -> Any:
        """Return the record at an offset, None if no record has it, or `UNKNOWN` if the iterators must read it.

        With `committed` the answer is also `UNKNOWN` unless the record is certainly committed. Without `waits` the answer is also `UNKNOWN` if the file's bytes are not in the page cache.
        """
    def first_batch(self, view: View, offset: int) -> tuple[bytes, Segment, int, int, int] | None:
        """Return the batch that holds an offset, or the next one, or None if the iterators must find it.

        Returns the bytes, the segment, the position in its file, and the first and last offset.
        """
    def fetch(
        self, view: View, offset: int, max_bytes: int, min_one_message: bool
    ) -> tuple[bytes, Segment, LogFile, int, int, int, int] | None:
        """Return the first `max_bytes` from the batch that holds an offset on, or None if it must be found otherwise.

        Returns the bytes, the segment, its file, the position in it, the first batch's base offset and size, and an
        offset above those of the segment. No CRC is checked. For a log that no other process changes.
        """
    def stands(self, view: View, state: DirectoryState) -> bool:
        """Return whether the directories and the last segment of another process's log are as in `state`."""
