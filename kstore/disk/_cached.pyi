"""`read` and `read_into` copy bytes of a file from the page cache while they hold the GIL."""

from _typeshed import WriteableBuffer

def read(fd: int, size: int, position: int) -> bytes | None:
    """Return the `size` bytes at `position`; None unless all exist, are in the page cache and are at most 1 MiB."""

def read_into(fd: int, buffer: WriteableBuffer, position: int) -> int:
    """Fill `buffer` from `position` on; return its size, or 0 if `read` would return None."""
