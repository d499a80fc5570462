"""A replacement of `fs` that records what reaches the disk below one directory, and can stop after some steps.

`with Recorder(root) as disk:` replaces the primitives of `kstore.disk.fs` and the `pwrite` of the compiled writer.
Changes are still made on the real disk, syncs are not; both are recorded in `disk.trace`, in order. From the trace it
builds a directory as a machine may find it after a power cut at any step. Synced data is kept. Each other write is
kept, lost, cut short or read as zeros, as a `Plan` decides, so later writes may survive earlier ones. Each new, changed
or removed name is certain only after a sync of its directory.

Locks, and reads in the compiled modules, are not recorded. Files that other code creates below `root`, such as a test
that copies them, count as durable when they are first seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from errno import EIO
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from kstore._core import crc32c
from kstore.disk import fs
from kstore.disk.fs import pread
from kstore.log.writing import _appender
from kstore.testing.images import Disk
from kstore.testing.plans import LOST, Plan
from kstore.testing.steps import ROOT, Adopt, Link, Op, Sync, SyncDirectory, Truncate, Unlink, Write

_open, _close = fs.open, fs.close  # the real functions, also while a recorder replaces them


class Recorder:
    """Records the changes and syncs below one root as steps in `trace`.

    Recorders may be nested; the inner one must be uninstalled first. Thread-safe.
    """

    CHANGES = ("open", "pwrite", "copy", "truncate", "rename", "unlink", "make_directory", "rmdir")
    SYNCS = ("fsync", "fdatasync", "sync_directory")
    READS = ("pread", "pread_into")

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.realpath(root))
        self.trace: list[Op] = []
        self.stopped = ""
        """The first step that was refused after `stop_after`, in words; "" if none was."""
        self._last: int | None = None  # the number of steps after which all others are refused
        self._lock = threading.RLock()
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._numbers: dict[tuple[int, int], int] = {}  # (device, inode) of an existing file -> its number
        self._next = ROOT + 1
        self._real: dict[str, Callable[..., Any]] = {}
        self._set_hook: Callable[[object], object] = lambda _: None
        self._adopt_children(ROOT, str(self.root))

    def install(self, writer: ModuleType = _appender) -> Self:
        """Replace the primitives of `kstore.disk.fs` and of the compiled writer (a module with `set_pwrite_hook`)."""
        for name in (*self.CHANGES, *self.SYNCS, *self.READS):
            self._real[name] = getattr(fs, name)
            setattr(fs, name, getattr(self, f"_{name}"))
        self._set_hook = getattr(writer, "set_pwrite_hook", self._set_hook)
        self._set_hook(self.pwrite_hook)
        return self

    def uninstall(self) -> None:
        self._set_hook(None)
        for name, real in self._real.items():
            setattr(fs, name, real)

    def __enter__(self) -> Self:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    @property
    def step(self) -> int:
        """The number of steps so far; a crash image of this step includes all of them."""
        return len(self.trace)

    def stop_after(self, steps: int) -> None:
        """Allow this many further steps; every later one raises `StorageError` (EIO) and changes nothing."""
        with self._lock:
            self._last = len(self.trace) + steps

    def crash_image(self, into: Path, step: int | None = None, plan: Plan = LOST) -> Path:
        """Build the root as it may be after a power cut at `step` in the new directory `into`, and return `into`.

        If `step` is None, the power cut is now, or at the step where the recorder stopped.
        """
        disk = Disk()
        for op in self.trace[: self._last if step is None else step]:
            disk.apply(op)
        disk.cut_power(str(into), plan)
        return into

    def _meet(self, call: str, path: str | None) -> None:
        """Do nothing; a derived class may count the call, or raise instead of it."""

    def _go_on(self, call: str, path: str | None) -> None:
        """Raise if no further step is allowed."""
        if self._last is not None and len(self.trace) >= self._last:
            self.stopped = self.stopped or f"{call} {os.path.relpath(path or self.root, self.root)}"
            raise fs.storage_error(OSError(EIO, f"the machine has stopped before: {self.stopped}"), path)

    # The primitives, each under the name of the function that it replaces

    def _open(self, path: str | os.PathLike[str], **how: bool) -> int:
        with self._lock:
            self._meet("open", os.fspath(path))
            number, where = self._find(path), self._locate(path)
            if (number is None and where is not None and how.keys() & {"create", "new", "empty"}) or (
                number is not None and how.get("empty")
            ):
                self._go_on("open", os.fspath(path))
            fd: int = self._real["open"](path, **how)
            if number is None and where is not None:
                self._link(Link(*where, self._new(fs.identity(fd)), False))
            elif number is not None and how.get("empty"):
                self.trace.append(Truncate(number, os.fspath(path), 0))
            return fd

    def _pwrite(self, fd: int, data: Any, position: int) -> None:
        view = memoryview(data).cast("B")
        written = 0
        while True:
            try:
                written += self.pwrite_hook(fd, view[written:], position + written)
            except OSError as error:
                raise fs.storage_error(error, fd) from error
            if written == len(view):
                return

    def pwrite_hook(self, fd: int, data: bytes | memoryview, position: int) -> int:
        """Write and record it; the compiled writer calls this instead of the system's `pwrite`."""
        with self._lock:
            path = fs.path_of(fd)
            number = self._number(fd)  # before the write: a file's bytes count as durable when it is first seen
            self._meet("pwrite", path)
            return self._write(number, path, fd, data, position)

    def _write(self, number: int | None, path: str | None, fd: int, data: bytes | memoryview, position: int) -> int:
        if number is not None:
            self._go_on("pwrite", path)
        self._real["pwrite"](fd, data, position)
        if number is not None and len(data):
            self.trace.append(Write(number, path or "", position, bytes(data)))
        return len(data)

    def _copy(self, source: int, position: int, length: int, target: int, at: int) -> tuple[int, int]:
        self._meet("copy", fs.path_of(target))
        copied, crc = 0, 0
        while copied < length and (data := self._pread(source, min(length - copied, 1 << 20), position + copied)):
            self._pwrite(target, data, at + copied)
            copied, crc = copied + len(data), crc32c(data, crc)
        return copied, crc

    def _truncate(self, fd: int, size: int) -> None:
        with self._lock:
            path = fs.path_of(fd)
            self._meet("truncate", path)
            number = self._number(fd)
            if number is not None:
                self._go_on("truncate", path)
            self._real["truncate"](fd, size)
            if number is not None:
                self.trace.append(Truncate(number, path or "", size))

    def _fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _sync(self, call: str, fd: int) -> None:
        with self._lock:
            path = fs.path_of(fd)
            number = self._number(fd)
            if number is not None:
                self._go_on(call, path)
            failed = True
            try:
                self._meet(call, path)
                failed = False
            finally:
                if number is not None:
                    self.trace.append(Sync(number, path or "", failed=failed))

    def _sync_directory(self, path: str | os.PathLike[str], *, missing_ok: bool = False) -> None:
        with self._lock:
            self._meet("sync_directory", os.fspath(path))
            if not os.path.isdir(path):
                self._real["sync_directory"](path, missing_ok=missing_ok)
                return
            number = self._find(path)
            if number is not None:
                self._go_on("sync_directory", os.fspath(path))
                self.trace.append(SyncDirectory(number, os.fspath(path)))

    def _rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        with self._lock:
            self._meet("rename", os.fspath(source))
            number = self._find(source)
            old, new = self._locate(source), self._locate(target)
            is_directory = os.path.isdir(source)
            if number is not None:
                self._go_on("rename", os.fspath(source))
            self._real["rename"](source, target)
            if number is not None and old is not None and new is not None:
                del self._names[old[0]][old[1]]
                self._link(Link(*new, number, is_directory, old))

    def _unlink(self, path: str | os.PathLike[str], **how: int | None) -> bool:
        return self._remove("unlink", path, **how)

    def _rmdir(self, path: str | os.PathLike[str], **how: int | None) -> bool:
        return self._remove("rmdir", path, **how)

    def _remove(self, call: str, path: str | os.PathLike[str], **how: int | None) -> bool:
        with self._lock:
            self._meet(call, os.fspath(path))
            number, where = self._find(path), self._locate(path)
            if number is not None:
                self._go_on(call, os.fspath(path))
            removed: bool = self._real[call](path, **how)
            if removed and number is not None and where is not None:
                self._names[where[0]].pop(where[1], None)
                self.trace.append(Unlink(*where))
            return removed

    def _make_directory(self, path: str | os.PathLike[str]) -> bool:
        with self._lock:
            self._meet("make_directory", os.fspath(path))
            where = self._locate(path)
            if where is not None and not os.path.lexists(path):
                self._go_on("make_directory", os.fspath(path))
            made: bool = self._real["make_directory"](path)
            if made and where is not None:
                status = fs.stat(path)
                number = self._new((status.st_dev, status.st_ino))
                self._names[number] = {}
                self._link(Link(*where, number, True))
            return made

    def _pread(self, fd: int, size: int, position: int) -> bytes:
        self._meet("pread", fs.path_of(fd))
        data: bytes = self._real["pread"](fd, size, position)
        return data

    def _pread_into(self, fd: int, buffer: Any, position: int) -> int:
        self._meet("pread_into", fs.path_of(fd))
        got: int = self._real["pread_into"](fd, buffer, position)
        return got

    # Which file is which

    def _link(self, op: Link) -> None:
        self._names[op.parent][op.name] = op.number
        self.trace.append(op)

    def _new(self, identity: tuple[int, int]) -> int:
        number, self._next = self._next, self._next + 1
        self._numbers[identity] = number
        return number

    def _locate(self, path: str | os.PathLike[str]) -> tuple[int, str] | None:
        """Return the number of the path's directory and the name in it; None outside of the root."""
        parent, name = os.path.split(os.path.abspath(path))
        number = self._find(parent)
        return None if number is None else (number, name)

    def _find(self, path: str | os.PathLike[str]) -> int | None:
        """Return the number of a file or directory, adopted if it is new; None if it does not exist in the root."""
        at, here, number = os.path.realpath(path), str(self.root), ROOT
        if at != here and not at.startswith(f"{here}/"):
            return None
        for name in at[len(here) :].split("/")[1:]:
            here = f"{here}/{name}"
            if not fs.exists(here):
                return None
            status = fs.stat(here)
            known = self._names[number].get(name)
            if known is None or self._numbers.get((status.st_dev, status.st_ino)) != known:
                known = self._adopt(number, here)
            number = known
        return number

    def _number(self, fd: int) -> int | None:
        """Return the number of an open file, which may be unlinked already; None for one outside of the root."""
        known = self._numbers.get(fs.identity(fd))
        return known if known is not None else self._find(fs.path_of(fd) or "/")

    def _adopt(self, parent: int, path: str) -> int:
        status = fs.stat(path)
        number = self._new((status.st_dev, status.st_ino))
        name = os.path.basename(path)
        self._names[parent][name] = number
        if os.path.isdir(path):
            self._names[number] = {}
            self.trace.append(Adopt(number, parent, name, None))
            self._adopt_children(number, path)
        else:
            self.trace.append(Adopt(number, parent, name, _read(path)))
        return number

    def _adopt_children(self, number: int, path: str) -> None:
        for name in fs.listdir(path):
            if name != fs.LOCK_FILE:
                self._adopt(number, f"{path}/{name}")


def _read(path: str) -> bytes:
    fd = _open(path)
    try:
        return pread(fd, fs.size(fd), 0)
    finally:
        _close(fd)
