"""Run the tests that make random choices for hours, each time with new ones, and say at the end what was found.

    python tests/search/soak.py --hours 8               from the top of the checkout; `make soak HOURS=8`
    python tests/search/soak.py --hours 1 test_fuzz.py  these files only

The first round runs every file, the ones after it those with random choices, in a new order each time. A file runs in
a process of its own with a seed of its own and with ten times the budget of `make test`. The report names, for each
test that failed, the command that makes the same choices again; it is printed and kept in `build/soak/report.txt`.
Ctrl-C or SIGTERM ends the soak early, with a report. The exit code is 0 when nothing failed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parents[1]
CHOICES = re.compile(r"\bhypothesis\b|\brng\b|\bbudget\b|\bSEED\b")


@dataclass
class Soak:
    """What has run so far. Its methods are called by several threads, under `lock`."""

    into: Path
    budget: float
    ends: float
    runs: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def work(self, files: Iterator[Path]) -> None:
        """Run one file after the other until the time is over."""
        while True:
            with self.lock:
                if self.stopped or time.monotonic() > self.ends:
                    return
                file = next(files)
                number = self.runs.total() + len(self.processes)
            self._run(file, self.into / f"{number}-{file.stem}")

    def _run(self, file: Path, name: Path) -> None:
        seed = secrets.token_hex(4)
        set_to = {"KSTORE_SEED": seed, "KSTORE_BUDGET": f"{self.budget:g}"}
        said, told = name.with_suffix(".txt"), name.with_suffix(".xml")
        command = [sys.executable, "-m", "pytest", str(file), f"--junitxml={told}", "-o", "timeout=7200", "-q"]
        began = time.monotonic()
        with said.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | set_to,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the soak alone, which then ends them
            )
            with self.lock:
                self.processes.add(process)
                if self.stopped:
                    process.terminate()
            code = process.wait()
        with self.lock:
            self.processes.remove(process)
            if self.stopped:
                return
            self.runs[file.name] += 1
            self.seconds[file.name] += round(time.monotonic() - began)
            again = " ".join(f"{key}={value}" for key, value in set_to.items())
            failed = self._read(told, file)
            if code not in (0, 5) and not failed:  # 5: the file has no tests here
                failed = [f"{file} (pytest ended with {code})"]
            self.failures += [f"{again} python -m pytest '{test}'\n    {said}" for test in failed]
            if not failed:
                said.unlink()
                told.unlink(missing_ok=True)

    def _read(self, path: Path, file: Path) -> list[str]:
        """Count what pytest tells; the tests that failed."""
        if not path.exists():
            return []
        failed = []
        for case in ET.parse(path).iter("testcase"):
            self.counts["tests"] += 1
            for told in case.iter("property"):
                if told.get("value", "").isdecimal():
                    self.counts[told.get("name", "")] += int(told.get("value", "0"))
            if any(child.tag in ("failure", "error") for child in case):
                failed.append(f"{file}::{case.get('name')}")
        return failed

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.processes:
                process.terminate()

    def report(self, seconds: float) -> str:
        lines = [f"{self.runs.total()} runs of {len(self.runs)} test files in {seconds / 3600:.1f} hours"]
        lines += [f"{value:12,} {name}" for name, value in sorted(self.counts.items())]
        lines += [f"{self.seconds[name]:10} s {name} ({runs} times)" for name, runs in self.runs.most_common()]
        lines += [f"{len(self.failures)} failures", *self.failures]
        return "\n".join(lines) + "\n"


def order(files: Sequence[Path]) -> Iterator[Path]:
    """Every file once, then those with random choices again and again."""
    chance = random.Random()
    yield from chance.sample(files, len(files))
    choosing = [file for file in files if CHOICES.search(file.read_text())] or list(files)
    while True:
        yield from chance.sample(choosing, len(choosing))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run tests with random choices for hours.")
    parser.add_argument("files", nargs="*", help="names of test files; all if none is given")
    parser.add_argument("--hours", type=float, default=8, help="no file is begun after so many hours")
    parser.add_argument("--jobs", type=int, default=2, help="how many files run at the same time")
    parser.add_argument("--budget", type=float, default=10, help="KSTORE_BUDGET of each run")
    parser.add_argument("--into", type=Path, default=Path("build/soak"), help="the directory for the report")
    given = parser.parse_args(arguments)
    named = [Path(name) for name in given.files]
    files = [path for name in named for path in ([name] if name.exists() else sorted(TESTS.rglob(name.name)))]
    if named and not files:
        parser.error(f"no such test file: {', '.join(given.files)}")
    files = files or sorted(TESTS.rglob("test_*.py"))
    shutil.rmtree(given.into, ignore_errors=True)
    given.into.mkdir(parents=True)
    began = time.monotonic()
    soak = Soak(given.into, given.budget, began + given.hours * 3600)
    shared = order(files)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    threads = [threading.Thread(target=soak.work, args=(shared,)) for _ in range(given.jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the report comes at once
        soak.stop()
        for thread in threads:
            thread.join()
    report = soak.report(time.monotonic() - began)
    (given.into / "report.txt").write_text(report)
    print(report, end="")
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
