"""Prints the tables of `common.table` after a run, and keeps them and what is known of the run for `tables.py`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common
import pytest

BEGUN = time.time()
LOAD_BEFORE = os.getloadavg()[0]


FAILED: list[str] = []
SKIPPED: list[str] = []  # because something is missing on this machine


def pytest_configure(config: pytest.Config) -> None:
    for name in ("ConfigWarning", "TimestampWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::kstore.errors.{name}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        FAILED.append(report.nodeid.removeprefix("bench/"))
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith("asked of") and reason not in SKIPPED:
            SKIPPED.append(reason)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not common.RESULTS:
        return
    terminalreporter.section("kstore and its peers")
    terminalreporter.write_line(machine())
    for line in common.table(common.RESULTS):
        terminalreporter.write_line(line)


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Beside pytest-benchmark's own figures, the rows of the tables, and the run."""
    output_json["results"] = [asdict(result) for result in common.RESULTS]
    output_json["run"] = run()


def machine() -> str:
    """The processor and the versions, in one line."""
    try:
        cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    return f"{cpu.split(':')[-1].strip()}, {platform.system()} {platform.release()}, Python {sys.version.split()[0]}"


def run() -> dict[str, Any]:
    """Machine, date and commit, scale, threads, and how busy the machine was."""
    changed = git("status", "--porcelain", "--", "kstore", "bench", "setup.py")
    return {
        "machine": machine(),
        "processors": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / common.GIB),
        "date": time.strftime("%d %B %Y, %H:%M UTC", time.gmtime(BEGUN)),
        "commit": git("rev-parse", "--short=12", "HEAD") + (" with changes that are not committed" if changed else ""),
        "commit_date": git("show", "--no-patch", "--format=%cs", "HEAD"),
        "command": os.environ.get("KSTORE_BENCH_COMMAND", "pytest bench"),
        "minutes": round((time.time() - BEGUN) / 60),
        "scale": common.SCALE,
        "threads": common.THREADS,
        "load_before": round(LOAD_BEFORE, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "failed": FAILED,
        "skipped": SKIPPED,
    }


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
    )
    return done.stdout.strip() or ("" if arguments[0] == "status" else "unknown")
