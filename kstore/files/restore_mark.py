"""The mark of a restore that is not finished: `kstore-restore.json` in the directory that a backup is restored into.

It says which backup, which round and which choices, so that a restore that was interrupted goes on with the same.
Invariant: while it is there, only the restore opens a log in the directory, which holds a part of a store.
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

_finishing: set[str] = set()  # the directories that a restore of this process opens as its last step


class Progress(NamedTuple):
    """What is being restored: the backup's id, the round, and a digest of the choices; and how far it has come."""

    backup: str
    round: int
    choices: str
    complete: bool
    """Whether all files are there; then the store is opened once, which changes them."""
    source: str = ""
    """A digest of the URL."""


def read_progress(root: str) -> Progress | None:
    """The progress of a restore into this directory; None without one, `StorageError` for a file that is damaged."""
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
    """Write it, durably."""
    data = {"version": _VERSION, **progress._asdict()}
    fs.write_atomically(os.path.join(root, RESTORE_FILE), f"{json.dumps(data, indent=1)}\n".encode())


def remove_progress(root: str) -> None:
    """Take it away, durably: the last step of a restore."""
    if fs.unlink(os.path.join(root, RESTORE_FILE)):
        fs.sync_directory(root)


def refuse_unfinished(root: str) -> None:
    """Raise `StorageError` for a directory into which a restore is not finished."""
    path = os.path.join(root, RESTORE_FILE)
    if os.path.realpath(root) not in _finishing and fs.exists(path):
        raise StorageError(
            errno.EBUSY,
            "a restore into this directory is not finished; the same `kstore restore` again goes on with it, and "
            "removing the directory gives it up",
            path,
        )


@contextmanager
def finishing(root: str) -> Iterator[None]:
    """Let this process open what is in the directory meanwhile: its restore does so once all files are there."""
    real = os.path.realpath(root)
    _finishing.add(real)
    try:
        yield
    finally:
        _finishing.discard(real)
