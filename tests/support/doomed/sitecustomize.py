"""Kills a process of Spark in the middle of a stream's step. Each Python imports this module that has it on its path.

The file that `KSTORE_TEST_DOOM` names says where, as JSON: the step, at which call (see `Fate`; "end" is after the
step), and whether the driver, whose process group is `KSTORE_TEST_DRIVER`, dies with it. The first process that reaches
the step removes the file.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN_STEPS = {  # what Python is started with in the processes that run steps
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.worker",
}

STEPS = {
    "latest": ("StreamPlanner", "latest"),
    "pieces": ("StreamPlanner", "pieces"),
    "write": ("StreamWriter", "write"),
    "commit": ("StreamWriter", "commit"),
    "abort": ("StreamWriter", "abort"),
}


def wrap(kind: type, step: str, method: str) -> None:
    real = getattr(kind, method)

    @functools.wraps(real)
    def call(*args: Any) -> Any:
        end = doom_of(step)
        result = real(*args)
        if end is not None:
            end()
        return result

    setattr(kind, method, call)


def doom_of(step: str) -> Callable[[], None] | None:
    """Return what kills this process at the end of the step, if it has not died before; None if it is to live."""
    from tests.support.microbatches import Fate

    file = Path(os.environ["KSTORE_TEST_DOOM"])
    try:
        doom = json.loads(file.read_bytes())
        if doom["step"] != step:
            return None
        file.unlink()
    except FileNotFoundError:
        return None
    told = os.open(file.with_suffix(".told"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(told, f"\n{step}: ".encode())

    def end() -> None:
        if doom["whole"]:
            os.killpg(int(os.environ["KSTORE_TEST_DRIVER"]), signal.SIGKILL)
            os.killpg(0, signal.SIGKILL)  # Spark's Python processes have a group of their own
        os.kill(os.getpid(), signal.SIGKILL)

    if doom["at"] != "end":
        Fate(doom["at"], told, end).install()
    return end


if "KSTORE_TEST_DRIVER" in os.environ and RUN_STEPS & set(sys.orig_argv):
    from kstore.spark import stream_planner, stream_sink

    for step, (kind, method) in STEPS.items():
        wrap(getattr(stream_planner, kind, None) or getattr(stream_sink, kind), step, method)
