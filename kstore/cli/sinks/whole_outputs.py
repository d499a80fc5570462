"""Makes files and directories that appear as a whole: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

from kstore.disk import fs
from kstore.errors import ConfigError

__all__ = ["new_directory", "new_file"]


@contextlib.contextmanager
def new_file(path: str, naming: AbstractContextManager[None], *, force: bool) -> Iterator[BinaryIO]:
    """Open a new file, which gets its name when it is complete and synced. After an error it is deleted.

    It gets its name inside of the context `naming`. With `force` it replaces an existing file, following a symbolic
    link, and keeps that file's mode.
    """
    mode = _mode_of(path)
    target = os.path.realpath(path) if force else os.path.abspath(path)
    directory, name = os.path.split(target)
    temporary = _temporary(directory, name)
    try:
        with _named(path, temporary):
            with _new(temporary, directory) as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                yield file
                file.flush()
                os.fsync(file.fileno())
            with naming:
                if force:
                    os.replace(temporary, target)
                else:
                    _link(temporary, target)
                fs.sync_directory(directory)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


@contextlib.contextmanager
def new_directory(path: str, naming: AbstractContextManager[None]) -> Iterator[str]:
    """Make a directory and yield its temporary path; it gets its name when the block ends.

    After an error it is deleted. The block syncs the files that it writes. The directory gets its name inside of the
    context `naming`. Raises `ConfigError` if the name exists.
    """
    _refuse_existing(path)
    target = os.path.abspath(path)
    parent, name = os.path.split(target)
    temporary = _temporary(parent, name)
    try:
        with _named(path, temporary):
            try:
                os.mkdir(temporary)
            except OSError as error:
                error.filename = parent
                raise
            yield temporary
            for directory, _, _ in os.walk(temporary, topdown=False):
                fs.sync_directory(directory)
            with naming:
                _refuse_existing(path)
                os.rename(temporary, target)
                fs.sync_directory(parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(directory: str, name: str) -> str:
    """Return the path under which a file or directory is written; remove those of processes that were killed."""
    for entry in fs.scandir(directory) if os.path.isdir(directory) else ():
        found = re.fullmatch(rf"\.{re.escape(name)}\.([0-9]+)\.tmp", entry.name)
        if found and not _is_running(int(found[1])):
            left = os.path.join(directory, entry.name)
            shutil.rmtree(left, ignore_errors=True) if os.path.isdir(left) else os.unlink(left)
    return os.path.join(directory, f".{name}.{os.getpid()}.tmp")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


@contextlib.contextmanager
def _named(path: str, temporary: str) -> Iterator[None]:
    """Let an `OSError` name the path that the user gave, for example if the disk is full."""
    try:
        yield
    except OSError as error:
        where = error.filename
        if error.errno is not None and (where is None or str(where).startswith(temporary)):
            error.filename = path
        raise


def _mode_of(path: str) -> int | None:
    """Return the permissions of a file, None if there is none; raises `ConfigError` if it is not a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is a directory; a file is wanted")
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is no regular file, and an export replaces only a regular file")
    return stat.S_IMODE(mode)


def _refuse_existing(path: str) -> None:
    if os.path.lexists(path):
        raise ConfigError(f"{path} is there, and a directory is never written over: remove it, or give another name")


def _new(temporary: str, directory: str) -> BinaryIO:
    try:
        return open(temporary, "xb", buffering=1 << 20)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EROFS):
            error.filename = directory
        raise


def _link(temporary: str, path: str) -> None:
    """Give a file its name; `ConfigError` if the name exists. Without hard links, an existing file is replaced."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise ConfigError(f"{path} is there: --force writes over it") from None
    except OSError:
        os.replace(temporary, path)
