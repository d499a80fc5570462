"""An interrupt at any moment of any call leaves nothing behind that a later call would wait for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import SEED

PROGRAM = Path(__file__).parents[1] / "support" / "interrupted_calls.py"


def test_no_call_waits_for_ever_after_calls_that_were_interrupted_at_random(
    tmp_path: Path, budget: Callable[[float], float]
) -> None:
    seconds = budget(8)
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path, str(seconds), SEED],
        capture_output=True,
        text=True,
        timeout=seconds + 300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interrupts in" in done.stdout
