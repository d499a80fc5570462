"""Builds the directory that a machine may find after a power cut, from the steps of a recorded disk.

The functions of `fs` are imported by name, against the rule of that module: then an image is written with the real
functions even while a recorder replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from kstore.disk.fs import close, make_directory, pwrite, truncate
from kstore.disk.fs import open as open_file
from kstore.testing.plans import Fate, Plan
from kstore.testing.steps import ROOT, Adopt, Data, Link, Name, Op, Sync, SyncDirectory, Truncate, Unlink, Write


class _Content:
    """A file's bytes and size; zeros after the last written byte are not stored."""

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

    def write_to(self, path: str) -> None:
        fd = open_file(path, new=True)
        try:
            if self.data:
                pwrite(fd, self.data, 0)
            if self.size != len(self.data):
                truncate(fd, self.size)
        finally:
            close(fd)


class Disk:
    """The durable state and the pending changes after some steps of a trace. Not thread-safe."""

    def __init__(self) -> None:
        self._files: dict[int, _Content] = {}
        self._live: dict[int, _Content] = {}
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._pending_data: dict[int, list[Data]] = {}
        self._doomed: set[int] = set()  # the `id` of each write that was pending at a failed sync
        self._pending_names: list[Name] = []

    def apply(self, op: Op) -> None:
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
                    if isinstance(name, Link):  # a rename replaces the pending names of the same file
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

    def cut_power(self, into: str, plan: Plan) -> None:
        """Write to the new directory `into` the tree as it may be found after a power cut now."""
        names = {number: dict(entries) for number, entries in self._names.items()}
        for name in self._pending_names:
            if plan.of_names(name):
                _rename(names, name)
        self._write_directory(into, ROOT, names, plan)

    def _write_directory(self, into: str, number: int, names: dict[int, dict[str, int]], plan: Plan) -> None:
        make_directory(into)
        for name, child in names[number].items():
            if child in self._files and plan.alive:
                self._live[child].write_to(os.path.join(into, name))
            elif child in self._files:
                content = self._files[child].copy()
                for op in self._pending_data[child]:
                    content.apply(op, plan.of_data(op), plan.cut)
                content.write_to(os.path.join(into, name))
            else:
                self._write_directory(os.path.join(into, name), child, names, plan)


def _rename(names: dict[int, dict[str, int]], op: Name) -> None:
    if isinstance(op, Unlink):
        names[op.parent].pop(op.name, None)
        return
    if op.source is not None:  # remove the old name wherever it is: no file has two names
        for entries in names.values():
            for name in [name for name, number in entries.items() if number == op.number]:
                del entries[name]
    names[op.parent][op.name] = op.number
