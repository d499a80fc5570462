"""`copy` copies bytes from one open file to another and computes their CRC-32C, in one call without the GIL."""

def copy(source: int, position: int, length: int, target: int, at: int) -> tuple[int, int, int, bool]:
    """Copy `length` bytes at `position` to `at`; return (bytes copied, CRC-32C, errno or 0, whether the target failed).

    Without an error, fewer bytes are copied only if the source ends. After an error, more bytes than the returned
    number may have been written. Thread-safe.
    """
