"""Prints the tables of `common.table` after a run."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common
import pytest


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not common.RESULTS:
        return
    terminalreporter.section("kstore and its peers")
    terminalreporter.write_line(machine())
    for line in common.table(common.RESULTS):
        terminalreporter.write_line(line)


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Beside pytest-benchmark's own figures, the rows of the tables."""
    output_json["results"] = [asdict(result) for result in common.RESULTS]


def machine() -> str:
    """The processor and the versions, in one line."""
    try:
        cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    return f"{cpu.split(':')[-1].strip()}, {platform.system()} {platform.release()}, Python {sys.version.split()[0]}"
