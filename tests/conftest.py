"""Fixtures that every test file shares: a clock to move, directories to write in, golden sets to damage, time to spend.

Random choices are new with every commit: they follow from a seed, which is the commit's hash unless `KSTORE_SEED` gives
another. The header prints it, and a test that fails says how to repeat it.

Settings of a run come from the environment: `KSTORE_SEED` (hexadecimal digits) replays a run's random choices,
`KSTORE_BUDGET` (set by `make soak`) multiplies the seconds of time-boxed tests and the examples that others try,
`KSTORE_BUILD` names the directory that the package must have come from (so that a sanitizer run cannot test the wrong
build), and `KSTORE_KAFKA_REQUIRED=1` turns a skip of a test marked `kafka` into a failure (CI installs what they need).
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import secrets
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis.core
import pytest
from hypothesis import HealthCheck, settings

# A checked build stands before all else, also before the directory that `python -m pytest` has put first.
if "KSTORE_BUILD" in os.environ:
    sys.path.insert(0, str(Path(os.environ["KSTORE_BUILD"]).resolve()))

import kstore
from kstore.disk import fs
from kstore.testing import clock as testing_clock
from tests.golden import goldensets
from tests.kafka.kafka_jvm import kafka as kafka

# Processes that tests start import the same copy of kstore, and helpers of the tests.
PATHS = [str(Path(kstore.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*PATHS, str(Path(__file__).parents[1])])))

BUDGET = float(os.environ.get("KSTORE_BUDGET", "1"))


def _draw_seed() -> str:
    """Eight hexadecimal digits: the commit's hash begins so; random ones for a soak and outside of a checkout."""
    if BUDGET <= 1:
        asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        with contextlib.suppress(OSError):
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout[:8]
    return secrets.token_hex(4)


# In the environment, so that the workers of a parallel run and child processes have the same.
SEED = os.environ["KSTORE_SEED"] = os.environ.get("KSTORE_SEED") or _draw_seed()


def examples(share: float) -> settings:
    """For a test whose examples are dear: it tries this share of what others try, with every budget."""
    return settings(max_examples=max(1, int(settings.default.max_examples * share)))


# Seconds that each file may take on two cores, summed over its tests; what is not named gets DEFAULT_SECONDS. The last
# table of a run shows what was used. A file that wants more asks `budget`, and gets it in `make soak`. The files that
# are named run first, so a file that takes many seconds is named.
DEFAULT_SECONDS = 30
SECONDS = {
    "test_adopt_objects.py": 45,
    "test_staged_objects.py": 90,
    "test_browser.py": 60,
    "test_bulk_loads_crash.py": 30,
    "test_backup_each_request.py": 45,
    "test_bombs.py": 90,
    "test_hostile_files.py": 45,
    "test_cleaned_logs.py": 45,
    "test_compaction_beside.py": 60,
    "test_crash.py": 90,
    "test_full_store.py": 60,
    "test_flipped_bytes.py": 60,
    "test_datasets_beside.py": 30,
    "test_remote_dataset.py": 40,
    "test_scan_url.py": 45,
    "test_examples.py": 30,
    "test_fuzz.py": 90,
    "test_golden_damaged.py": 10,
    "test_guide.py": 40,
    "test_golden_read.py": 30,
    "test_golden_recovery.py": 15,
    "test_golden_write.py": 20,
    "test_killed.py": 120,
    "test_local_tier_kafka.py": 60,
    "test_log_start.py": 30,
    "test_recheck.py": 60,
    "test_machine.py": 90,
    "test_machine_compaction.py": 60,
    "test_machine_producers.py": 30,
    "test_kafka_beside_us.py": 180,
    "test_kafka_failovers.py": 30,
    "test_kafka_mounts_us.py": 60,
    "test_kafka_opens_restored.py": 30,
    "test_kafka_oracle.py": 60,
    "test_kafka_reads_us.py": 90,
    "test_kafka_transactions.py": 60,
    "test_openfiles.py": 30,
    "test_permissions.py": 30,
    "test_plugin.py": 30,
    "test_predicates.py": 60,
    "test_processes.py": 60,
    "test_random_interrupts.py": 20,
    "test_readers_elsewhere.py": 30,
    "test_recovery.py": 90,
    "test_remote_faults.py": 90,
    "test_prefixes.py": 60,
    "test_repair_random.py": 15,
    "test_restore_damage.py": 30,
    "test_urls.py": 40,
    "test_services.py": 30,
    "test_spark.py": 90,
    "test_spark_connect.py": 60,
    "test_spark_ingest.py": 30,
    "test_spark_kafka_source.py": 30,
    "test_spark_killed.py": 60,
    "test_spark_speculation.py": 60,
    "test_stream_example.py": 30,
    "test_store_processes.py": 45,
    "test_stream_crashes.py": 60,
    "test_store_machine.py": 30,
    "test_testing_spark.py": 60,
    "test_tutorials.py": 45,
    "test_store_machine_transactions.py": 30,
    "test_swap.py": 30,
}

# No deadlines: a busy machine is no bug. A failing example prints the blob that replays it.
hypothesis.core.global_force_seed = int(SEED, 16)
settings.register_profile(
    "test",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("long", settings.get_profile("test"), max_examples=5_000)
# The checked builds are many times slower.
settings.register_profile("short", settings.get_profile("test"), max_examples=25)
settings.load_profile("long" if BUDGET > 1 else "short" if BUDGET < 0.5 else "test")

_seconds: dict[Path, float] = defaultdict(float)  # of each file, by its path below the root
_counts: dict[str, int] = defaultdict(int)  # what tests record with `record_property`, summed over them


class ManualClock(testing_clock.ManualClock):
    """Milliseconds that move only when told: pass it as `clock=` to `Log.open`."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        super().__init__(now)


@pytest.fixture
def clock() -> ManualClock:
    """A clock at 1,700,000,000,000 ms that only the test moves."""
    return ManualClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory of logs, as one entry of `log.dirs`."""
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def partition(root: Path) -> Path:
    """The path of a partition `events-0` that does not exist yet."""
    return root / "events-0"


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """`golden("canary-16k")`: a private copy of that set, unpacked where the test may damage it."""

    def unpack(name: str) -> Path:
        into = tmp_path / "golden"
        into.mkdir(exist_ok=True)
        return goldensets.copy_set(name, into)

    return unpack


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    path = tmp_path / "small"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk: for tests that ask what is in the files and not what survives a power cut."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(fs, name, lambda fd: None)
    monkeypatch.setattr(fs, "sync_directory", lambda path, *, missing_ok=False: None)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random choices that depend only on the run's seed and the test's name."""
    return random.Random(f"{SEED}:{request.node.nodeid}")


@pytest.fixture(scope="session")
def budget() -> Callable[[float], float]:
    """`budget(20)`: how many seconds a time-boxed test may take that takes 20 in `make test`."""
    return lambda seconds: seconds * BUDGET


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker of a parallel run is left alone with one of them at the end."""
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (-SECONDS.get(item.path.name, 0), -counts[item.path], item.path))


def pytest_report_header() -> list[str]:
    checked = "".join(f" with {library}" for library in SANITIZERS.values() if sanitized(library))
    return [f"kstore: {Path(kstore.__file__).parent}{checked}", f"KSTORE_SEED={SEED} KSTORE_BUDGET={BUDGET:g}"]


SANITIZERS = {"ASAN_OPTIONS": "libasan", "TSAN_OPTIONS": "libtsan"}


def sanitized(library: str = "libasan") -> bool:
    """Whether a sanitizer's run-time library is in this process, the address sanitizer's by default."""
    maps = Path("/proc/self/maps")
    return maps.exists() and library in maps.read_text()


def pytest_configure(config: pytest.Config) -> None:
    # Many tests choose unusual settings and small timestamps; the tests about these warnings turn them on.
    for name in ("ConfigWarning", "TimestampWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::kstore.errors.{name}")
    wanted = os.environ.get("KSTORE_BUILD")
    found = Path(kstore.__file__).resolve()
    if wanted and not found.is_relative_to(Path(wanted).resolve()):
        raise pytest.UsageError(f"the tests would run against {found}, not against the build in {wanted}")
    for variable, library in SANITIZERS.items():
        if variable in os.environ and not sanitized(library):
            raise pytest.UsageError(f"{variable} is set, but {library} is not in this process")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        again = f"KSTORE_SEED={SEED} KSTORE_BUDGET={BUDGET:g} python -m pytest '{item.nodeid}'"
        report.sections.append(("the same random choices again", again))
    if report.skipped and item.get_closest_marker("kafka") and os.environ.get("KSTORE_KAFKA_REQUIRED") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped where it must not: {report.longrepr}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[Path(report.nodeid.split("::")[0])] += report.duration
    if report.when == "call":
        for name, value in report.user_properties:
            if isinstance(value, int):
                _counts[name] += value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _counts:
        terminalreporter.section(f"counted with KSTORE_SEED={SEED}")
        for name, value in sorted(_counts.items()):
            terminalreporter.write_line(f"{name:32} {value:8,}")
    parts: dict[Path, float] = defaultdict(float)
    for file, used in _seconds.items():
        parts[file.parent] += used
    terminalreporter.section("seconds by part, and by file (budget)")
    for part, total in sorted(parts.items(), key=lambda pair: -pair[1]):
        terminalreporter.write_line(f"{total:8.1f}  {part}: {purpose(terminalreporter.config.rootpath / part)}")
        for file, used in sorted(_seconds.items(), key=lambda pair: -pair[1]):
            if file.parent == part and used >= 2:
                allowed = SECONDS.get(file.name, DEFAULT_SECONDS) * max(BUDGET, 1)
                over = "  OVER" if used > allowed else ""
                terminalreporter.write_line(f"{used:20.1f}  {file.name} ({allowed:g}){over}")


def purpose(part: Path) -> str:
    """What the tests in a folder are for: the docstring of its `__init__.py`."""
    path = part / "__init__.py"
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" if path.exists() else ""
