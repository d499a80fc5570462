"""Leaks of our own out of LeakSanitizer's reports: `make leaks` calls it with the files that it wrote.

A leak is ours when one of our modules allocated it by itself, without running Python on the way: those are frames of
`kstore/*.so` above the first frame of the interpreter's loop. What Python, NumPy and others leave behind at the end of
a process is not ours, and is counted only.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

LOOP = "_PyEval_EvalFrameDefault"
OURS = re.compile("[ /(]kstore/")


def is_ours(stack: list[str]) -> bool:
    """Whether the frames, the innermost first, show an allocation of a module of kstore."""
    for frame in stack:
        if LOOP in frame:
            return False
        if OURS.search(frame) and (".so" in frame or "/c/" in frame or "kstore/_" in frame):
            return True
    return False


def leaks(report: str) -> list[tuple[str, list[str]]]:
    """Each leak of a report: what it says, and the frames."""
    found: list[tuple[str, list[str]]] = []
    stack: list[str] | None = None
    for line in report.splitlines():
        if " leak of " in line:
            stack = []
            found.append((line.strip(), stack))
        elif stack is not None and line.strip().startswith("#"):
            stack.append(line.strip())
        else:
            stack = None
    return found


def main(paths: list[str]) -> int:
    found = [leak for path in paths for leak in leaks(Path(path).read_text(errors="replace"))]
    ours = [leak for leak in found if is_ours(leak[1])]
    for what, stack in ours:
        print(what, *stack, "", sep="\n    ")
    counts = Counter("ours" if is_ours(stack) else "of others" for _, stack in found)
    print(f"leaks: {counts['ours']} ours, {counts['of others']} of others, in {len(paths)} processes")
    return 1 if ours or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
