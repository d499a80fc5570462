"""`copy` copies bytes from one open file to another and computes their CRC-32C, in one call without the GIL."""

def copy(source: int, position: int, length: int, target: int, at: int) -> tuple[int, int, int, bool]:
    """Copy `length` bytes at `position` to `at`; return (bytes copied, CRC-32C, errno or 0, error is in the target).

    Without an error, fewer are copied only if the source ends. After one, more may have been written. Thread-safe.
    """
