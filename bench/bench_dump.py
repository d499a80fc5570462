"""How fast is the dump tool? A segment of 256 MiB, values of 100 bytes in batches-16k, to /dev/null.

Workloads by name (the rest is in `common`):
  text-100        100 characters of ASCII, no key: a log of JSON lines
  text-100-utf8   a third of the letters beyond ASCII
  values-100      random bytes: half of them become replacement characters
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from common import KIB, MIB, VALUE, Question, measure, scaled, timed_rows
from pytest_benchmark.fixture import BenchmarkFixture

import kstore
from kstore.dump import Dump, DumpOptions

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
