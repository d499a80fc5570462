"""`kstore dump` loads what it needs to read files, and no more: most of the time of a small file's dump are imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kstore import Log

PROGRAM = """
import sys
from kstore.cli import main
main(["dump", sys.argv[1]])
writers = [name for name in sys.modules if name.split(".")[:2] in (["kstore", "log"], ["kstore", "columns"])]
print("loaded:", sorted(writers), "numpy" in sys.modules)
"""


def test_a_dump_loads_neither_the_code_of_logs_nor_numpy(tmp_path: Path) -> None:
    with Log.open(tmp_path / "events-0") as log:
        log.append(b"value")
    (path,) = (tmp_path / "events-0").glob("*.log")
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    assert "baseOffset: 0 lastOffset: 0" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded: [] False"
