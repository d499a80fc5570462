"""Lets a reader open the right file while files of a log are renamed.

A swap of segments renames each of their files twice, and another file then gets the old name. The object that reads a
file knows its present path; code that renames a file holds `renaming()` until it has updated that object. Invariant: if
the path has changed during an open, the opened file may be another one and is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kstore.base.threads import ForkLock
from kstore.disk import fs

T = TypeVar("T")

_names = ForkLock()


@contextmanager
def renaming() -> Iterator[None]:
    """Enter a block that renames files and updates the paths in their objects; the block must not sync."""
    with _names.mutex:
        yield


def at_its_path(use: Callable[[str], T], path_of: Callable[[], str], drop: Callable[[T], object] | None = None) -> T:
    """Return `use(path_of())`; repeat if the path changed during the call, after `drop` releases the unused result.

    Raises `MissingFileError` if there is no file and the path has not changed.
    """
    path = path_of()
    while True:
        try:
            result = use(path)
        except fs.MissingFileError:
            with _names.mutex:  # wait for a rename in progress to update the path
                now = path_of()
            if now == path:
                raise
        else:
            now = path_of()
            if now == path:
                return result
            if drop is not None:
                drop(result)
        path = now
