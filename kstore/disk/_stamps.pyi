"""`Stamps`: which of many files and directories have changed, by one system call for each that stands still."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from typing_extensions import disjoint_base

_K = TypeVar("_K", bound=Hashable)

@disjoint_base
class Stamps(Generic[_K]):
    """Pairs of files or directories, each under a key. For one thread at a time: another's call raises `RuntimeError`."""
    def __len__(self) -> int: ...
    def add(self, key: _K, first: str, second: str) -> None:
        """Watch two paths from now on; those that the key had are forgotten."""
    def remove(self, key: _K) -> None:
        """Watch the paths of a key no longer; nothing for one that has none."""
    def take_changed(self) -> list[_K]:
        """The keys of which a path has another inode, size or time of change than when it was added, or has come or
        gone, or was too new to be sure. They are watched no longer.
        """
