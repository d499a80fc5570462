"""What no program can leave out of some of the questions of bench/, done by itself: the bounds beside kstore's rows.

Each file says in its docstring what it does and what it leaves out. What is written in C is compiled when it is asked
for, by the machine's own compiler.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "kstore" / "c"


@functools.cache
def compiled(source: str, *core: str, optimised: tuple[str, ...] = ("-O2",)) -> ctypes.CDLL:
    """A file of this directory with some of kstore/c, as a library; compiled once in a process. Needs a C compiler."""
    build = HERE.parents[1] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as made:
        library = f"{made}/{source}.so"
        sources = [str(HERE / source), *(str(CORE / each) for each in core)]
        command = ["cc", *optimised, "-shared", "-fPIC", "-pthread", f"-I{CORE}", "-o", library, *sources]
        subprocess.run(command, check=True)
        return ctypes.CDLL(library)
