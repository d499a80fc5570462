"""A file to which text is written, compressed with gzip or not."""

from __future__ import annotations

import gzip
from typing import Any, BinaryIO

__all__ = ["PackedFile"]

_STEP_BYTES = 1 << 20  # the bytes compressed in one step; an interrupt waits for the step


class PackedFile:
    """Writes into a file object, which stays open. Not thread-safe."""

    def __init__(self, file: BinaryIO, codec: str) -> None:
        self._file: Any = gzip.GzipFile("", "wb", 6, file, 0) if codec == "gzip" else file

    def write(self, data: Any) -> None:
        """Write all bytes of a buffer."""
        view = memoryview(data)
        for start in range(0, len(view), _STEP_BYTES):
            self._file.write(view[start : start + _STEP_BYTES])

    def close(self) -> None:
        """Write the end of what is compressed."""
        if isinstance(self._file, gzip.GzipFile):
            self._file.close()
