"""How fast is the dump tool? A segment of 256 MiB, values of 100 bytes in batches-16k, to /dev/null.

Kafka's own tool stands beside where a JVM and `make jvm` are: as a process, its start included, the way it is used.

Workloads by name (the rest is in `common`):
  text-100        100 characters of ASCII, no key: a log of JSON lines
  text-100-utf8   a third of the letters beyond ASCII
  values-100      random bytes: half of them become replacement characters
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from common import KIB, MIB, VALUE, Question, measure, report, scaled, timed_rows
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore.tools.dump.dump_options import DumpOptions
from kstore.tools.dump.full_dump import FullDump, file_source
from kstore.tools.dump.kafka_dump import Dump

sys.path.append(str(Path(__file__).parents[1]))
from tests.kafka.kafka_jvm import command, why_missing

SIZE = 256 * MIB
RECORDS = scaled(2_470_000)
VALUES = {
    "text-100": b'{"n":1234567,"state":"paid","pad":"'.ljust(98, b"x") + b'"}',
    "text-100-utf8": ("naïve Größe 漢字 " * 4).encode().ljust(100),
    "values-100": VALUE,
}
CONTENTS = {
    name: Question(f"dump --deep-iteration --print-data-log of 256 MiB, {name}", "time", limit)
    for name, limit in (("text-100", 0.5), ("text-100-utf8", None), ("values-100", None))
}
JSON = {
    name: Question(f"dump --json --print-data-log of 256 MiB, {name}", "time", limit)
    for name, limit in (("text-100", 1.0), ("text-100-utf8", None), ("values-100", None))
}
KAFKA = "Kafka's tool"
DEEP = Question("dump --deep-iteration of 256 MiB, text-100", "time")
SHALLOW = Question("dump of 256 MiB, text-100, batch lines alone", "time")


@pytest.fixture(scope="module", params=list(VALUES))
def segment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The workload's name, and its segment."""
    path = tmp_path_factory.mktemp("dump") / "bench-0"
    with kstore.Log.open(path, segment_bytes=2 * SIZE) as log:
        log.append_many(timed_rows(RECORDS, VALUES[request.param]), batch_bytes=16 * KIB)
    return request.param, next(path.glob("*.log"))


def dumper(path: Path, options: DumpOptions) -> Callable[[], None]:
    def dump() -> None:
        with Path(os.devnull).open("wb", buffering=0) as out:
            Dump(options, out, lambda text: None).run([os.fspath(path)])

    return dump


def test_dump_keys_and_values(benchmark: BenchmarkFixture, segment: tuple[str, Path]) -> None:
    name, path = segment
    size = path.stat().st_size
    options = DumpOptions(deep=True, contents=True)
    measure(benchmark, CONTENTS[name], "kstore", dumper(path, options), operations=1, size_bytes=size)


def test_dump_keys_and_values_as_json(benchmark: BenchmarkFixture, segment: tuple[str, Path]) -> None:
    name, path = segment

    def dump() -> None:
        with Path(os.devnull).open("wb", buffering=0) as out:
            run = FullDump(DumpOptions(deep=True, contents=True), out, lambda *damage: None, as_json=True)
            run.run(file_source(os.fspath(path)))
            assert not run.damages

    measure(benchmark, JSON[name], "kstore", dump, operations=1, size_bytes=path.stat().st_size)


def test_dump_keys_and_values_by_kafka(segment: tuple[str, Path]) -> None:
    name, path = segment
    missing = why_missing()
    if missing is not None:
        pytest.skip(missing)
    run = [*command("org.apache.kafka.tools.DumpLogSegments", quick=False), "--print-data-log", "--files", str(path)]
    rounds = []
    for _ in range(2):
        started = time.perf_counter()
        subprocess.run(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        rounds.append(time.perf_counter() - started)
    for question in (CONTENTS[name], JSON[name]):  # it has no JSON: the same records as text
        report(question, KAFKA, rounds, operations=1, size_bytes=path.stat().st_size)


@pytest.mark.parametrize(
    ("question", "options"), [(DEEP, DumpOptions(deep=True)), (SHALLOW, DumpOptions())], ids=["deep", "shallow"]
)
def test_dump_without_values(
    benchmark: BenchmarkFixture, segment: tuple[str, Path], question: Question, options: DumpOptions
) -> None:
    name, path = segment
    if name != "text-100":
        pytest.skip("values are not printed")
    measure(benchmark, question, "kstore", dumper(path, options), operations=1, size_bytes=path.stat().st_size)
