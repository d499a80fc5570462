"""Decompression and compression in C, without the GIL; and the libraries whose functions it takes."""

from typing import Final

ZSTD_COMPRESSES: Final[bool]
ZSTD_LIBRARY: Final[str | None]
LZ4_COMPRESSES: Final[bool]
ZSTD_OF_COLUMNS: Final[str]
"""What decompresses zstd, in words: the path of that library, or the package."""

def unpack(codec: int, data: bytes, limit: int) -> bytes | None:
    """What our own decompressors make of a payload; None where they leave it to the libraries."""
