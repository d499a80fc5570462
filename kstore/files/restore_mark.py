"""The marker of an unfinished restore: `kstore-restore.json` in the directory that a backup is restored into.

It records the backup, the backup's round and the user's choices, so that an interrupted restore continues with the same
ones. Invariant: while the file exists, the directory holds only a part of a store, and only the restore opens logs in
it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kstore.base.numbers import LONG_MAX
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import json_file

__all__ = ["RESTORE_FILE", "Progress", "finishing", "read_progress", "refuse_unfinished", "remove_progress",
           "write_progress"]  # fmt: skip

RESTORE_FILE = "kstore-restore.json"

MAX_FILE_BYTES = 64 << 10

_VERSION = 1

_finishing: set[str] = set()  # the directories that a restore in this process opens as its last step


class Progress(NamedTuple):
    """The state of a restore: the backup's id and round, a digest of the choices, and whether all files are there."""

    backup: str
    round: int
    choices: str
    complete: bool
    """Whether all files have been restored; the restore then opens the store once, which changes them."""
    source: str = ""
    """A digest of the URL."""


def read_progress(root: str) -> Progress | None:
    """Return the progress of a restore into this directory, None without one; raise `StorageError` if damaged."""
    fields = json_file.read(os.path.join(root, RESTORE_FILE), MAX_FILE_BYTES, _VERSION)
    if fields is None:
        return None
    progress = Progress(
        backup=fields.text("backup"),
        round=fields.integer("round", 0, LONG_MAX),
        choices=fields.text("choices"),
        complete=fields.flag("complete"),
        source=fields.text("source"),
    )
    fields.end()
    return progress


def write_progress(root: str, progress: Progress) -> None:
    """Write the file, durably."""
    data = {"version": _VERSION, **progress._asdict()}
    fs.write_atomically(os.path.join(root, RESTORE_FILE), f"{json.dumps(data, indent=1)}\n".encode())


def remove_progress(root: str) -> None:
    """Remove the file, durably; the last step of a restore."""
    if fs.unlink(os.path.join(root, RESTORE_FILE)):
        fs.sync_directory(root)


def refuse_unfinished(root: str) -> None:
    """Raise `StorageError` if a restore into this directory is not finished."""
    path = os.path.join(root, RESTORE_FILE)
    if fs.exists(path) and os.path.realpath(root) not in _finishing:
        raise StorageError(
            errno.EBUSY,
            "a restore into this directory is not finished; the same `kstore restore` again goes on with it, and "
            "removing the directory gives it up",
            path,
        )


@contextmanager
def finishing(root: str) -> Iterator[None]:
    """Allow this process to open logs in the directory, as its restore does once all files are there."""
    real = os.path.realpath(root)
    _finishing.add(real)
    try:
        yield
    finally:
        _finishing.discard(real)
