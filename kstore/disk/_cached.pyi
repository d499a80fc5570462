from _typeshed import WriteableBuffer

def read(fd: int, size: int, position: int) -> bytes | None:
    """Return up to `size` bytes at `position`, fewer at the end of the file; None if some are not in the page cache."""

def read_into(fd: int, buffer: WriteableBuffer, position: int) -> int:
    """Fill `buffer` from `position` on up to the end of the file; return how many bytes, 0 if some are not in the page cache."""
