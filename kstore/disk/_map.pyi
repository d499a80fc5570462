"""`Map`: a read-only map of a file that finds the file's current length with one short system call."""

from types import TracebackType

from typing_extensions import disjoint_base

@disjoint_base
class Map:
    """A map of the first `size` bytes of a file, at least 1, for reading.

    The map holds a duplicate of `fd`, which shares the file offset, so reads of `fd` must name the position (`pread`).
    Raises `OSError`, and `ValueError` if the file is shorter. Thread-safe except for `close`.
    """
    def __init__(self, fd: int, size: int) -> None: ...
    def size(self) -> int:
        """Return the present length of the file; reading mapped bytes beyond it raises SIGBUS."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def close(self) -> None:
        """Unmap the file and close the descriptor; raise `BufferError` while a buffer is exported. Idempotent."""
    def __enter__(self) -> Map: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
