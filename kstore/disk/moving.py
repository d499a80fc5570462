"""Files of a log that get other names while readers use them: a reader opens the file that it means, under any name.

A swap of segments gives each of their files another name, twice, and a file that takes its place the old one. The
object that reads a file says where the file is now; who renames it holds `renaming()` until that object knows.
Invariant: a file that was opened under a name that has changed meanwhile may be another file, and is not used.
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
    """For a block that renames files and tells their objects; not for a sync."""
    with _names.mutex:
        yield


def at_its_path(use: Callable[[str], T], path_of: Callable[[], str], drop: Callable[[T], object] | None = None) -> T:
    """Return `use(path_of())`, once more where the path has changed meanwhile; `drop` gives back what was not used.

    Raises `MissingFileError` where no file is at a path that has not changed.
    """
    path = path_of()
    while True:
        try:
            result = use(path)
        except fs.MissingFileError:
            with _names.mutex:  # a file that is being renamed has its new path behind this
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
