"""Kafka's own code as a contestant, in a Java process that measures itself after its hot loops are compiled.

Needs `make jvm` (a JDK and Maven); what asks is skipped without it. The questions are in
`tests/kafka/jvm/src/main/java/kstore/oracle/Bench.java`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from common import SCALE, Question, report

sys.path.append(str(Path(__file__).parents[1]))
from tests.kafka.kafka_jvm import command, why_missing

KAFKA = "Kafka's log in the JVM"


def _command() -> list[str]:
    return command("kstore.oracle.Bench", heap="2g", quick=False)


def answer(name: str, directory: Path, threads: int = 1) -> dict[str, Any]:
    """What Kafka measured of one question of `Bench`: "operations", "size_bytes", "rounds", "records" if it appends."""
    missing = why_missing()
    if missing is not None:
        pytest.skip(missing)
    run = [*_command(), name, str(directory), str(SCALE), str(threads)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


class Turns:
    """One question of `Bench`, warm; each call has it do a round, and gives the seconds of that.

    So contestants go by turns, and each meets the memory and the disk that the others have left. A context manager.
    """

    def __init__(self, name: str, directory: Path) -> None:
        run = [*_command(), name, str(directory), str(SCALE), "1", "turns"]
        self._process = subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        told = json.loads(self._line())
        self.operations, self.size_bytes = told["operations"], told["size_bytes"]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the Java process ended with {self._process.wait()}"
        return line

    def __call__(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


def ask(name: str, directory: Path, *questions: Question, threads: int = 1) -> None:
    """Have Kafka answer one question of `Bench`, and enter what it measured as its answer to `questions`."""
    told = answer(name, directory, threads)
    for question in questions:
        report(question, KAFKA, told["rounds"], operations=told["operations"], size_bytes=told["size_bytes"])
