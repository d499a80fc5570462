"""`Lock`: the owner of a locked descriptor, which unlocks and closes it."""

from collections.abc import Callable
from types import TracebackType

from typing_extensions import disjoint_base

@disjoint_base
class Lock:
    """A lock on a file or directory; released by `release`, by its `with` block, on collection or at process exit.

    The constructor opens the descriptor and locks nothing: the caller locks the byte `byte` of `fd`, or all of it with
    flock if `byte` is -1. With `give_back` there is no descriptor: `release` calls `give_back`, perhaps twice. A forked
    child does not hold the lock: its copy of the descriptor is closed without unlocking the parent's. Thread-safe.
    """
    @property
    def path(self) -> str: ...
    @property
    def held(self) -> bool: ...
    @property
    def fd(self) -> int: ...
    def __init__(
        self, path: str, flags: int = 0, byte: int = -1, give_back: Callable[[], object] | None = None
    ) -> None: ...
    def release(self) -> None:
        """Release the lock. Idempotent. Keeps the file: if it were deleted, two processes could lock two files."""
    def __enter__(self) -> Lock: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __del__(self) -> None: ...
