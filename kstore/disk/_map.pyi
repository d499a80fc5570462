"""`Map`: a file's bytes where the system keeps them, and how long the file is, by one short system call."""

from types import TracebackType

from typing_extensions import disjoint_base

@disjoint_base
class Map:
    """The first `size` bytes of a file for reading, at least 1; thread-safe, but for `close`.

    It holds a descriptor of its own, which shares its place with `fd`: whoever reads `fd` names the place. Raises
    `OSError`, and `ValueError` for a file that is shorter.
    """
    def __init__(self, fd: int, size: int) -> None: ...
    def size(self) -> int:
        """How many bytes the file has now: a touch of those that were cut is a SIGBUS."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def close(self) -> None:
        """Give the map back; `BufferError` while it is exported. Idempotent."""
    def __enter__(self) -> Map: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
