"""Decompresses and compresses in C without the GIL, by liblz4 and libzstd where `setup.py` has linked them."""

from typing import Final, final

LZ4_VERSION: Final[str | None]
"""The version of liblz4; None if it is not linked."""
ZSTD_VERSION: Final[str | None]
"""The version of libzstd; None if it is not linked."""

def unpack(codec: int, data: bytes, limit: int) -> bytes | None:
    """Decompress a payload in C; return None if `compression` must handle it."""

def pack(codec: int, level: int, data: bytes) -> bytes | None:
    """Compress a payload in C at the library's `level`; return None if `compression` must handle it."""

@final
class ZstdStream:
    """Decompresses consecutive zstd frames piece by piece, by libzstd. Not thread-safe."""
    @property
    def inside(self) -> bool:
        """Whether the bytes so far end within a frame."""
    def read(self, data: bytes, at: int, most: int) -> tuple[bytes, int]:
        """Decompress from `data[at:]`; return at most `most` (1 or more) bytes and where the rest of `data` begins.

        The next call returns first what was more. Raises `ValueError` for damaged data.
        """
