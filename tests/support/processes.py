"""Processes as Linux's /proc shows them: who started whom, and how much memory each has."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process has started, without those that have ended."""
    return [child for child, parent in _parents().items() if parent == pid]


def below(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have started."""
    parents = _parents()
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def anonymous_kib(pid: int) -> int:
    """The memory of a process in KiB without mapped files; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0


def command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").rstrip()
    return ""


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    found[int(entry.name)] = int(parent)
    return found
