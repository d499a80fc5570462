"""krabka-log, a Rust crate that reads and writes Kafka's segments: a program of ours around it, built and run.

`bench/krabka` holds the program; what each of its ways does stands at the head of `src/main.rs`. It is built once a
run, with cargo, in `bench/krabka/target`; the first time that takes minutes and the network.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from common import Question, report

PROJECT = Path(__file__).parent / "krabka"
PROGRAM = PROJECT / "target" / "release" / "krabka-bench"
NEWEST_ASKED = (1, 98)  # the rustc that krabka-log's parts ask for

WAYS = {
    "raw": "krabka-log, raw: no CRC, no records",
    "records": "krabka-log, raw; CRC and records",
    "memory": "krabka-log, memory; CRC and records",
    "append": "krabka-log, from values",
    "encode": "krabka-log, from ready records",
    "ready": "krabka-log, ready batches",
}


@functools.cache
def why_missing() -> str | None:
    """Builds the program; returns the missing tool if that is not possible."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path.home() / ".cargo" / "bin")])
    cargo, rustc = shutil.which("cargo", path=path), shutil.which("rustc", path=path)
    if cargo is None or rustc is None:
        return "no `cargo` for krabka-log: install Rust"
    environment = {**os.environ, "PATH": path}
    told = subprocess.run([rustc, "--version"], capture_output=True, text=True, check=False, cwd=PROJECT).stdout
    found = re.match(r"rustc (\d+)\.(\d+)", told)
    if found is not None and (int(found[1]), int(found[2])) < NEWEST_ASKED:
        environment["RUSTC_WRAPPER"] = str(PROJECT / "rustc.sh")
    run = [cargo, "build", "--release", "--locked", "--ignore-rust-version", "--quiet"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=PROJECT, env=environment)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
        return f"krabka-log could not be had or built: {(errors or ['cargo said nothing'])[0]}"
    return None


def ask(questions: dict[str, tuple[Question, ...]], *arguments: object) -> dict[str, int]:
    """Run the program and enter its measurements: `questions` has those of each way; the records of each."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rounds: dict[str, list[float]] = {}
    counts: dict[str, tuple[int, int]] = {}
    for line in done.stdout.splitlines():
        way, seconds, records, size = line.split()
        rounds.setdefault(way, []).append(float(seconds))
        counts[way] = int(records), int(size)
    for way, asked in questions.items():
        for question in asked:
            report(question, WAYS[way], rounds[way], operations=counts[way][0], size_bytes=counts[way][1])
    return {way: records for way, (records, _) in counts.items()}
