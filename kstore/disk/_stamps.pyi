"""`Stamps`: finds which of many files and directories have changed, with one system call for each unchanged path."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from typing_extensions import disjoint_base

_K = TypeVar("_K", bound=Hashable)

@disjoint_base
class Stamps(Generic[_K]):
    """Pairs of paths, each pair with a key. For one thread at a time; otherwise a call may raise `RuntimeError`."""
    def __len__(self) -> int: ...
    def add(self, key: _K, first: str, second: str) -> None:
        """Watch two paths from now on, in place of the key's earlier paths."""
    def remove(self, key: _K) -> None:
        """Stop watching the paths of a key, if it has any."""
    def take_changed(self) -> list[_K]:
        """Return the keys with a changed path, and stop watching them.

        A path counts as changed if its inode, size or modification time has changed, or if the time is too recent.
        """

def is_at(fd: int, path: str) -> bool | None:
    """Return whether the path names the file that the descriptor has open; None if one of the calls fails."""
