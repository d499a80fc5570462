"""The package's recorder of a disk, which also fails where it is told to: for crash tests and tests of faults.

`FaultFS` counts the calls that reach the disk, and fails the n-th of a kind. What it records, and how a crash image is
built from it, is `kstore.testing.recorder`'s and `kstore.testing.images`' business.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kstore.disk import fs
from kstore.errors import StorageError
from kstore.testing.images import Disk as Disk
from kstore.testing.plans import DATA_LOST as DATA_LOST
from kstore.testing.plans import DATA_SHORT as DATA_SHORT
from kstore.testing.plans import DATA_ZEROS as DATA_ZEROS
from kstore.testing.plans import KEPT as KEPT
from kstore.testing.plans import LOST as LOST
from kstore.testing.plans import NAMES_LOST as NAMES_LOST
from kstore.testing.plans import PLANS as PLANS
from kstore.testing.plans import Fate as Fate
from kstore.testing.plans import Plan as Plan
from kstore.testing.plans import shuffled as shuffled
from kstore.testing.recorder import Recorder
from kstore.testing.steps import ROOT as ROOT
from kstore.testing.steps import Adopt as Adopt
from kstore.testing.steps import Link as Link
from kstore.testing.steps import Op as Op
from kstore.testing.steps import Sync as Sync
from kstore.testing.steps import SyncDirectory as SyncDirectory
from kstore.testing.steps import Truncate as Truncate
from kstore.testing.steps import Unlink as Unlink
from kstore.testing.steps import Write as Write


@dataclass(slots=True)
class _Fault:
    calls: tuple[str, ...]
    error: int
    after: int
    times: int
    path: str
    partial: int


class FaultFS(Recorder):
    """A recorder that counts calls and fails some. Thread-safe.

    `calls` counts calls by the function's name, those that failed too.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.calls: Counter[str] = Counter()
        self._faults: list[_Fault] = []

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

    def crash_images(self, into: Path, *plans: Plan, since: int = 0) -> Iterator[tuple[int, Plan, Path]]:
        """Build the image of every step from `since` on under every plan; each goes when the next is asked for."""
        disk = Disk()
        for step in range(len(self.trace) + 1):
            if step >= since:
                for number, plan in enumerate(plans or PLANS):
                    image = into / f"{step:05d}-{number}"
                    disk.cut_power(str(image), plan)
                    yield step, plan, image
                    shutil.rmtree(image)
            if step < len(self.trace):
                disk.apply(self.trace[step])

    def pwrite_hook(self, fd: int, data: bytes | memoryview, position: int) -> int:
        with self._lock:
            path = fs.path_of(fd)
            number = self._number(fd)
            fault = self._fault_of("pwrite", path)
            if fault is None:
                return self._write(number, path, fd, data, position)
            self._write(number, path, fd, data[: fault.partial], position)
            raise OSError(fault.error, os.strerror(fault.error))

    def _meet(self, call: str, path: str | None) -> None:
        fault = self._fault_of(call, path)
        if fault is not None:
            raise _storage_error(fault.error, path, of_sync=call in self.SYNCS)

    def _fault_of(self, call: str, path: str | None) -> _Fault | None:
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


def _storage_error(number: int, path: str | None, *, of_sync: bool = False) -> StorageError:
    return fs.storage_error(OSError(number, os.strerror(number)), path, of_sync=of_sync)
