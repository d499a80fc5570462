"""The soak runs test files again and again with new choices, and its report says how to repeat what failed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.search import soak

CHOOSES = """
import os
def test_of_a_seed(record_property):
    record_property("choices", 3)
    with open({told!r}, "a") as file:
        file.write(os.environ["KSTORE_SEED"] + "\\n")
    assert {holds}
# SEED
"""


def soaked(tmp_path: Path, file: Path, runs: int) -> tuple[int, str, list[str]]:
    """Soak with one file until so many runs of it have ended; the exit code, the report, the seeds."""
    out, seeds = tmp_path / "out", tmp_path / "seeds"
    command = [sys.executable, soak.__file__, "--into", str(out), "--budget", "1", "--jobs", "1", str(file)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        while not seeds.exists() or len(seeds.read_text().split()) <= runs:
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        report, _ = process.communicate(timeout=120)
    assert (out / "report.txt").read_text() == report
    return process.returncode, report, seeds.read_text().split()


def written(tmp_path: Path, holds: str) -> Path:
    path = tmp_path / "test_one.py"
    path.write_text(CHOOSES.format(told=str(tmp_path / "seeds"), holds=holds))
    return path


def test_each_run_of_a_file_has_a_seed_of_its_own(tmp_path: Path) -> None:
    code, report, seeds = soaked(tmp_path, written(tmp_path, "True"), 2)
    assert len(set(seeds)) == len(seeds) > 2
    assert code == 0
    runs = int(report.partition(" runs of 1 test files")[0])
    assert runs in (len(seeds) - 1, len(seeds))  # the last one may have been interrupted
    assert f"{3 * runs:12,} choices" in report
    assert "0 failures" in report


def test_a_failure_is_reported_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    path = written(tmp_path, "False")
    code, report, seeds = soaked(tmp_path, path, 1)
    assert code == 1
    assert f"KSTORE_SEED={seeds[0]} KSTORE_BUDGET=1 python -m pytest '{path}::test_of_a_seed'" in report
    [kept] = (tmp_path / "out").glob("0-test_one.txt")
    assert "assert False" in kept.read_text()


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_soak_that_is_interrupted_reports_what_has_run(tmp_path: Path, by: signal.Signals) -> None:
    path = tmp_path / "test_two.py"
    path.write_text(f"import time\ndef test_long():\n    open({str(tmp_path / 'begun')!r}, 'w')\n    time.sleep(100)\n")
    command = [sys.executable, soak.__file__, "--into", str(tmp_path / "out"), "--budget", "1", str(path)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(by)
        report, _ = process.communicate(timeout=120)
    assert report.startswith("0 runs of 0 test files")
    assert report.endswith("0 failures\n")
    assert process.returncode == 0


def test_files_with_random_choices_come_again_and_the_others_once() -> None:
    files = sorted(soak.TESTS.rglob("test_*.py"))
    following = soak.order(files)
    assert sorted(next(following) for _ in files) == files
    again = {next(following).name for _ in range(3 * len(files))}
    assert {"test_machine.py", "test_fuzz.py", "test_kafka_beside_us.py", "test_crash.py"} <= again
    assert "test_docs.py" not in again
