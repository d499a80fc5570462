"""`copy`: bytes from one open file to another, and their CRC-32C, by one call without the GIL."""

def copy(source: int, position: int, length: int, target: int, at: int) -> tuple[int, int, int, bool]:
    """Copy `length` bytes at `position` to `at`: (how many, their CRC-32C, the error's number, whether in the target).

    Without an error fewer only where the source ends. With one some more bytes may have been written. Thread-safe.
    """
