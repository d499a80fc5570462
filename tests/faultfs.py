"""fs.py's twin for crash tests: it records what reaches the disk, fails where it is told to, and cuts the power.

`with FaultFS(root) as disk:` puts itself over the primitives of `kstore.fs`, and over the compiled writer's `pwrite`;
all but the syncs still happens on the real disk below `root`, and is noted in `disk.trace`, in order. From the trace it
builds, for any step, a directory as a machine may find it after a power cut there: what was synced stands; what was
not is kept, lost, cut short or read as zeros, each write by itself (so that later ones may survive earlier ones), as
a `Plan` decides; a name that was made, changed or removed holds only once its directory was synced.

Reads in the compiled modules and locks pass by unseen. Files that come below `root` through another door (a test that
copies them there) count as durable from the moment that they are first met.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import importlib
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from kstore import fs
from kstore.errors import StorageError

ROOT = 0
"""The number of the root's own directory; files and directories are numbered as they are met, and never again."""


# What is recorded


@dataclass(frozen=True, slots=True)
class Adopt:
    """A file (with its bytes) or a directory (None) that was there before it was met: durable."""

    number: int
    parent: int
    name: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Write:
    number: int
    path: str
    position: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Truncate:
    number: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """An fsync or fdatasync; one that failed makes nothing durable, and may have lost what it was to write."""

    number: int
    path: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A name made: a file's or directory's creation, or a rename, which takes the old name away in the same step."""

    parent: int
    name: str
    number: int
    is_directory: bool
    source: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Unlink:
    parent: int
    name: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    number: int
    path: str


Data: TypeAlias = Write | Truncate
Name: TypeAlias = Link | Unlink
Op: TypeAlias = Adopt | Write | Truncate | Sync | Link | Unlink | SyncDirectory


# What a power cut does


class Fate(Enum):
    """What becomes of one write or truncation that was not synced."""

    KEPT = "kept"
    LOST = "lost"
    SHORT = "short"
    """Only a beginning of it is there."""
    ZEROS = "zeros"
    """The file has grown, and what was to be written reads as zeros."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Decides about each write and each name that was not synced when the power went."""

    name: str
    of_data: Callable[[Data], Fate]
    of_names: Callable[[Name], bool]
    cut: Callable[[int], int] = lambda size: size // 2
    """Where a `SHORT` write of so many bytes ends."""
    alive: bool = False
    """Whether the machine goes on: then what a failed sync has lost on the disk is still in its memory."""

    def __repr__(self) -> str:
        return self.name


LOST = Plan("LOST", lambda _: Fate.LOST, lambda _: False)
"""Only what was synced is there, under names that were synced."""
KEPT = Plan("KEPT", lambda _: Fate.KEPT, lambda _: True, alive=True)
"""All is there, as after the death of the process alone."""
DATA_LOST = Plan("DATA_LOST", lambda _: Fate.LOST, lambda _: True)
"""Names are ahead of the bytes: files that were just made or renamed are empty or old."""
NAMES_LOST = Plan("NAMES_LOST", lambda _: Fate.KEPT, lambda _: False)
"""The bytes are ahead of the names."""
DATA_ZEROS = Plan("DATA_ZEROS", lambda _: Fate.ZEROS, lambda _: True)
"""Sizes and names are ahead of the bytes: files end in zeros."""
DATA_SHORT = Plan("DATA_SHORT", lambda _: Fate.SHORT, lambda _: True)
"""Each write that was not synced is there by half."""
PLANS = (LOST, KEPT, DATA_LOST, NAMES_LOST, DATA_ZEROS, DATA_SHORT)


def shuffled(rng: random.Random) -> Plan:
    """A plan that decides each by chance; it shows the fates of later writes to be independent of earlier ones'."""
    fates = list(Fate)

    def cut(size: int) -> int:
        at = rng.randint(0, size)
        return at - at % 512 if rng.random() < 0.5 else at

    return Plan("shuffled", lambda _: rng.choice(fates), lambda _: rng.random() < 0.5, cut)


class _Content:
    """A file's bytes and length; the bytes past those that were written are zeros, and are not kept."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data = bytearray(data)
        self.size = len(data)

    def copy(self) -> _Content:
        made = _Content(self.data)
        made.size = self.size
        return made

    def apply(self, op: Data, fate: Fate = Fate.KEPT, cut: Callable[[int], int] = int) -> None:
        if fate is Fate.LOST:
            return
        if isinstance(op, Truncate):  # all or nothing
            del self.data[op.size :]
            self.size = op.size
            return
        data = op.data
        if fate is Fate.SHORT:
            data = data[: cut(len(data))]
        end = op.position + len(data)
        if fate is not Fate.ZEROS and data:
            self.data.extend(bytes(max(op.position - len(self.data), 0)))
            self.data[op.position : end] = data
        self.size = max(self.size, end)

    def write_to(self, path: Path) -> None:
        with open(path, "wb") as file:
            file.write(self.data)
            file.truncate(self.size)


class Disk:
    """What is durable, and what is pending, after some steps of a trace."""

    def __init__(self) -> None:
        self._files: dict[int, _Content] = {}
        self._live: dict[int, _Content] = {}
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._pending_data: dict[int, list[Data]] = {}
        self._doomed: set[int] = set()  # by identity: writes that a failed sync was to write
        self._pending_names: list[Name] = []

    def apply(self, op: Op) -> None:
        """Go on by one step."""
        match op:
            case Adopt():
                self._names[op.parent][op.name] = op.number
                self._make(op.number, op.data)
            case Write() | Truncate():
                self._pending_data[op.number].append(op)
                self._live[op.number].apply(op)
            case Sync(failed=True):
                self._doomed |= {id(each) for each in self._pending_data[op.number]}
            case Sync():
                for each in self._pending_data[op.number]:
                    if id(each) not in self._doomed:
                        self._files[op.number].apply(each)
                self._pending_data[op.number] = []
            case Link():
                if op.source is None:
                    self._make(op.number, None if op.is_directory else b"")
                self._pending_names.append(op)
            case Unlink():
                self._pending_names.append(op)
            case SyncDirectory():
                pending, self._pending_names = self._pending_names, []
                for name in pending:
                    if name.parent != op.number:
                        self._pending_names.append(name)
                        continue
                    _rename(self._names, name)
                    if isinstance(name, Link):  # a rename takes what was pending of the same file's names along
                        self._pending_names = [
                            each
                            for each in self._pending_names
                            if isinstance(each, Unlink) or each.number != name.number
                        ]

    def _make(self, number: int, data: bytes | None) -> None:
        if data is None:
            self._names.setdefault(number, {})
        else:
            self._files[number] = _Content(data)
            self._live[number] = _Content(data)
            self._pending_data[number] = []

    def cut_power(self, into: Path, plan: Plan) -> None:
        """Write the tree as it may be found now, below `into`."""
        names = {number: dict(entries) for number, entries in self._names.items()}
        for name in self._pending_names:
            if plan.of_names(name):
                _rename(names, name)
        self._write_directory(into, ROOT, names, plan)

    def _write_directory(self, into: Path, number: int, names: dict[int, dict[str, int]], plan: Plan) -> None:
        into.mkdir(exist_ok=True)
        for name, child in names[number].items():
            if child in self._files and plan.alive:
                self._live[child].write_to(into / name)
            elif child in self._files:
                content = self._files[child].copy()
                for op in self._pending_data[child]:
                    content.apply(op, plan.of_data(op), plan.cut)
                content.write_to(into / name)
            else:
                self._write_directory(into / name, child, names, plan)


def _rename(names: dict[int, dict[str, int]], op: Name) -> None:
    if isinstance(op, Unlink):
        names[op.parent].pop(op.name, None)
        return
    if op.source is not None:  # wherever the file was: nothing has two names
        for entries in names.values():
            for name in [name for name, number in entries.items() if number == op.number]:
                del entries[name]
    names[op.parent][op.name] = op.number


# The twin


@dataclass(slots=True)
class _Fault:
    calls: tuple[str, ...]
    error: int
    after: int
    times: int
    path: str
    partial: int


class FaultFS:
    """The recording file layer over one root. `trace` has a step for each change and each sync that was made.

    `calls` counts calls by the function's name, those that failed too. Thread-safe.
    """

    CHANGES = ("open", "pwrite", "truncate", "rename", "unlink", "make_directory", "rmdir")
    SYNCS = ("fsync", "fdatasync", "sync_directory")
    READS = ("pread", "pread_into")

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.realpath(root))
        self.trace: list[Op] = []
        self.calls: Counter[str] = Counter()
        self._faults: list[_Fault] = []
        self._lock = threading.RLock()
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._numbers: dict[tuple[int, int], int] = {}  # (device, inode) of what is there now -> its number
        self._next = ROOT + 1
        self._real: dict[str, Callable[..., Any]] = {}
        self._set_hook: Callable[[object], object] = lambda _: None
        self._adopt_children(ROOT, self.root)

    def install(self, writer: ModuleType | None = None) -> FaultFS:
        """Put this over `kstore.fs`, and over the compiled writer (any module with `set_pwrite_hook`)."""
        for name in (*self.CHANGES, *self.SYNCS, *self.READS):
            self._real[name] = getattr(fs, name)
            setattr(fs, name, getattr(self, f"_{name}"))
        if writer is None:
            with contextlib.suppress(ImportError):
                writer = importlib.import_module("kstore._writer")
        self._set_hook = getattr(writer, "set_pwrite_hook", self._set_hook)
        self._set_hook(self.pwrite_hook)
        return self

    def uninstall(self) -> None:
        """Put everything back."""
        self._set_hook(None)
        for name, real in self._real.items():
            setattr(fs, name, real)

    def __enter__(self) -> FaultFS:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    @property
    def step(self) -> int:
        """How many steps there are now: a crash image of this step has all that was done so far."""
        return len(self.trace)

    def fail(
        self,
        *calls: str,
        error: int = errno.EIO,
        after: int = 0,
        times: int = 1,
        path: str = "*",
        partial: int = 0,
    ) -> None:
        """Fail calls of these functions (of all that change or sync when none is named), once `after` have passed.

        `times` of them fail (-1: all from then on), of files whose path or name matches the pattern `path`. A write
        that fails has written `partial` bytes before.
        """
        self._faults.append(_Fault(calls or (*self.CHANGES, *self.SYNCS), error, after, times, path, partial))

    def heal(self) -> None:
        """Let every call succeed again."""
        self._faults.clear()

    # Crash images

    def crash_image(self, into: Path, step: int | None = None, plan: Plan = LOST) -> Path:
        """Build, in a directory that does not exist, the root as it may be after a power cut at `step` (now: None)."""
        disk = Disk()
        for op in self.trace[:step]:
            disk.apply(op)
        disk.cut_power(into, plan)
        return into

    def crash_images(self, into: Path, *plans: Plan, since: int = 0) -> Iterator[tuple[int, Plan, Path]]:
        """Build the image of every step from `since` on under every plan; each goes when the next is asked for."""
        disk = Disk()
        for step in range(len(self.trace) + 1):
            if step >= since:
                for number, plan in enumerate(plans or PLANS):
                    image = into / f"{step:05d}-{number}"
                    disk.cut_power(image, plan)
                    yield step, plan, image
                    shutil.rmtree(image)
            if step < len(self.trace):
                disk.apply(self.trace[step])

    # Faults

    def _meet(self, call: str, path: str | None) -> _Fault | None:
        """Count a call; the fault that it meets."""
        self.calls[call] += 1
        for fault in self._faults:
            name = path or ""
            if call not in fault.calls or not any(
                fnmatch.fnmatch(n, fault.path) for n in (name, os.path.basename(name))
            ):
                continue
            if fault.after:
                fault.after -= 1
            elif fault.times:
                fault.times -= 1
                return fault
        return None

    def _refuse(self, call: str, path: str | None) -> None:
        fault = self._meet(call, path)
        if fault is not None:
            raise _storage_error(fault.error, path)

    # The primitives, each under the name of the one it replaces

    def _open(self, path: str | os.PathLike[str], **how: bool) -> int:
        with self._lock:
            self._refuse("open", os.fspath(path))
            number, where = self._find(path), self._locate(path)
            fd: int = self._real["open"](path, **how)
            if number is None and where is not None:
                self._link(Link(*where, self._new(os.fstat(fd)), False))
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
        """Write as `os.pwrite` does, on record; what the compiled writer calls in its place."""
        with self._lock:
            path = fs.path_of(fd)
            number = self._number(fd)  # before the write, which must not count as having been there
            fault = self._meet("pwrite", path)
            if fault is not None:
                data = data[: fault.partial]
            n = os.pwrite(fd, data, position)
            if number is not None and n:
                self.trace.append(Write(number, path or "", position, bytes(data[:n])))
            if fault is not None:
                raise OSError(fault.error, os.strerror(fault.error))
            return n

    def _truncate(self, fd: int, size: int) -> None:
        with self._lock:
            path = fs.path_of(fd)
            self._refuse("truncate", path)
            number = self._number(fd)
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
            fault = self._meet(call, path)
            if number is not None:
                self.trace.append(Sync(number, path or "", failed=fault is not None))
            if fault is not None:
                raise _storage_error(fault.error, path)

    def _sync_directory(self, path: str | os.PathLike[str], *, missing_ok: bool = False) -> None:
        with self._lock:
            self._refuse("sync_directory", os.fspath(path))
            if not os.path.isdir(path):
                self._real["sync_directory"](path, missing_ok=missing_ok)
                return
            number = self._find(path)
            if number is not None:
                self.trace.append(SyncDirectory(number, os.fspath(path)))

    def _rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        with self._lock:
            self._refuse("rename", os.fspath(source))
            number = self._find(source)
            old, new = self._locate(source), self._locate(target)
            is_directory = os.path.isdir(source)
            self._real["rename"](source, target)
            if number is not None and old is not None and new is not None:
                del self._names[old[0]][old[1]]
                self._link(Link(*new, number, is_directory, old))

    def _unlink(self, path: str | os.PathLike[str]) -> bool:
        return self._remove("unlink", path)

    def _rmdir(self, path: str | os.PathLike[str]) -> bool:
        return self._remove("rmdir", path)

    def _remove(self, call: str, path: str | os.PathLike[str]) -> bool:
        with self._lock:
            self._refuse(call, os.fspath(path))
            number, where = self._find(path), self._locate(path)
            removed: bool = self._real[call](path)
            if removed and number is not None and where is not None:
                self._names[where[0]].pop(where[1], None)
                self.trace.append(Unlink(*where))
            return removed

    def _make_directory(self, path: str | os.PathLike[str]) -> bool:
        with self._lock:
            self._refuse("make_directory", os.fspath(path))
            where = self._locate(path)
            made: bool = self._real["make_directory"](path)
            if made and where is not None:
                number = self._new(os.stat(path))
                self._names[number] = {}
                self._link(Link(*where, number, True))
            return made

    def _pread(self, fd: int, size: int, position: int) -> bytes:
        self._refuse("pread", fs.path_of(fd))
        data: bytes = self._real["pread"](fd, size, position)
        return data

    def _pread_into(self, fd: int, buffer: Any, position: int) -> int:
        self._refuse("pread_into", fs.path_of(fd))
        got: int = self._real["pread_into"](fd, buffer, position)
        return got

    # Which file is which

    def _link(self, op: Link) -> None:
        self._names[op.parent][op.name] = op.number
        self.trace.append(op)

    def _new(self, status: os.stat_result) -> int:
        number, self._next = self._next, self._next + 1
        self._numbers[status.st_dev, status.st_ino] = number
        return number

    def _locate(self, path: str | os.PathLike[str]) -> tuple[int, str] | None:
        """The number of the directory that the path lies in, and the name there; None outside the root."""
        parent, name = os.path.split(os.path.abspath(path))
        number = self._find(parent)
        return None if number is None else (number, name)

    def _find(self, path: str | os.PathLike[str]) -> int | None:
        """The number of what is at the path, adopted where it is first met; None if nothing is, or outside the root."""
        at = Path(os.path.realpath(path))
        if not at.is_relative_to(self.root):
            return None
        number, here = ROOT, self.root
        for name in at.relative_to(self.root).parts:
            here = here / name
            if not here.exists():
                return None
            status = here.stat()
            known = self._names[number].get(name)
            if known is None or self._numbers.get((status.st_dev, status.st_ino)) != known:
                known = self._adopt(number, here)
            number = known
        return number

    def _number(self, fd: int) -> int | None:
        """The number of an open file, which may have lost its name by now; None for one outside the root."""
        status = os.fstat(fd)
        known = self._numbers.get((status.st_dev, status.st_ino))
        return known if known is not None else self._find(fs.path_of(fd) or "/")

    def _adopt(self, parent: int, path: Path) -> int:
        number = self._new(path.stat())
        self._names[parent][path.name] = number
        if path.is_dir():
            self._names[number] = {}
            self.trace.append(Adopt(number, parent, path.name, None))
            self._adopt_children(number, path)
        else:
            self.trace.append(Adopt(number, parent, path.name, path.read_bytes()))
        return number

    def _adopt_children(self, number: int, path: Path) -> None:
        for child in sorted(path.iterdir()):
            if child.name != fs.LOCK_FILE:
                self._adopt(number, child)


def _storage_error(number: int, path: str | None) -> StorageError:
    return fs.storage_error(OSError(number, os.strerror(number)), path)
