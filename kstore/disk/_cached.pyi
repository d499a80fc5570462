"""`read` and `read_into`: bytes of a file that lie in the page cache, copied while the interpreter is held."""

from _typeshed import WriteableBuffer

def read(fd: int, size: int, position: int) -> bytes | None:
    """Return the `size` bytes at `position`; None unless all are there, in the page cache, and are at most 1 MiB."""

def read_into(fd: int, buffer: WriteableBuffer, position: int) -> int:
    """Fill `buffer` from `position` on; return its size, or 0 where `read` would give None."""
