"""Counts the instructions of pieces of work by valgrind's callgrind: what instructions.py and conditional.py share.

One process under callgrind does each piece once to warm it up, and `TIMES` times more, of which the least counts. In
between it calls `os.getpgid`, at which callgrind writes down what it has counted since the last time: so the start of
Python is not in it.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import kstore

TIMES = 2

Counted = tuple[int, Callable[[int], object]]  # how many records or calls are counted, and what does so many


def do_all(pieces: Mapping[str, Counted]) -> None:
    """In callgrind, in an empty directory: each piece between marks, whose counts `counted` reads; ends the process."""
    marked, none = os.getpgid, lambda count: None
    gc.collect()
    gc.disable()  # when it comes depends on how much was made before
    for count, run in ((0, none), *pieces.values()):
        run(count)
        marked(0)
        for _ in range(TIMES):
            run(count)
            marked(0)
    features: dict[str, bool] = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    told = {"pieces": {name: count for name, (count, _) in pieces.items()}}
    print(json.dumps({**told, "features": sorted(name for name, there in features.items() if there)}), flush=True)
    os._exit(0)  # the end of Python is not counted, either


def counted(program: Path) -> tuple[dict[str, float], list[str]]:
    """Instructions of each record or call that `python PROGRAM do` does by `do_all`, and the processor's features."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        # Modules that the process compiles, what malloc learns from what is freed, and long names of directories
        # would move all that follows in memory, and so which buffers grow in place.
        for name, there in (("kstore", Path(kstore.__file__).parent), ("bench", program.parent), ("venv", sys.prefix)):
            Path(made, name).symlink_to(Path(there).resolve())
        quiet = {
            "PYTHONHASHSEED": "0",
            "PYTHONPYCACHEPREFIX": f"{made}/compiled",
            "MALLOC_MMAP_THRESHOLD_": "33554432",
            "MALLOC_TRIM_THRESHOLD_": "1073741824",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": made,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        marks = ["--dump-before=getpgid", "--dump-before=__getpgid"]  # one function by both its names
        valgrind = [
            shutil.which("valgrind") or "valgrind",
            "--tool=callgrind",
            *marks,
            f"--callgrind-out-file={made}/out",
        ]
        do = [f"{made}/venv/bin/python", f"{made}/bench/{program.name}", "do"]
        for name, command in (("once", do), ("work", [*valgrind, *do])):  # once without, to compile the modules
            Path(made, name).mkdir()
            done = subprocess.run(command, capture_output=True, text=True, cwd=f"{made}/{name}", env=quiet, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr[-4000:])
        told = json.loads(done.stdout)

        def between(mark: int) -> int:
            return int(re.findall(r"^totals: (\d+)", Path(made, f"out.{mark + 1}").read_text(), re.MULTILINE)[-1])

        firsts = range(1, (len(told["pieces"]) + 1) * (TIMES + 1), TIMES + 1)
        found = [min(map(between, range(first, first + TIMES))) for first in firsts]
    empty, *rest = found
    each = zip(told["pieces"].items(), rest, strict=True)
    return {name: round((total - empty) / count, 1) for (name, count), total in each}, told["features"]
