"""`Lock`: the owner of a locked descriptor, which unlocks and closes it."""

from collections.abc import Callable
from types import TracebackType

from typing_extensions import disjoint_base

@disjoint_base
class Lock:
    """A lock on a file or directory, held until `release`, the end of its `with` block, its collection or the process.

    It opens the descriptor, and locks nothing: the caller locks the byte `byte` of `fd`, or all of it with flock where
    `byte` is -1. With `give_back` there is no descriptor: releasing calls it, perhaps twice. In a forked child the lock
    is not held: the child's copy of the descriptor is closed without unlocking the parent's. Thread-safe.
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
        """Release the lock. Idempotent. The file stays: once deleted, two processes could lock two different files."""
    def __enter__(self) -> Lock: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __del__(self) -> None: ...
