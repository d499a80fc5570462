"""Decompresses and compresses in C without the GIL; finds the functions for zstd and lz4 in shared libraries."""

from typing import Final

ZSTD_COMPRESSES: Final[bool]
ZSTD_LIBRARY: Final[str | None]
LZ4_COMPRESSES: Final[bool]
ZSTD_OF_COLUMNS: Final[str]
"""The decompressor of zstd in words: the path of the library, or the package."""

def unpack(codec: int, data: bytes, limit: int) -> bytes | None:
    """Decompress a payload in C; return None if `compression` must handle it."""
