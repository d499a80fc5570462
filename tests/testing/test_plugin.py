"""The pytest plugin, as users have it: found by its entry point, in runs of pytest inside of a test."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import kstore
import kstore.testing  # the runs in this process find it imported, and leave it
import kstore.testing.spark

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).parents[2]
DISCOVERY = REPOSITORY / "kstore" / "testing" / "discovery"


Run: TypeAlias = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """`run(source)` runs pytest in this process, with the plugin."""
    pytester.syspathinsert(str(DISCOVERY))

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess("-p", "pytest_kstore", "-p", "no:cacheprovider", *arguments)

    return run


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs of pytest in processes of their own, where the project's entry points are installed."""
    metadata = pytester.mkdir("site") / "installed-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {value}" for name, value in declared.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    package = Path(kstore.__file__).parents[1]
    there = [str(metadata.parent), str(package), str(DISCOVERY), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in there if path))
    return pytester


def test_a_log_and_a_store_are_there_with_their_settings(run: Run) -> None:
    result = run(
        """
        import pytest

        pytestmark = pytest.mark.kstore_log(segment_bytes=1000, index_interval_bytes=100)

        def test_log(kstore_log):
            assert kstore_log.append(b"value") == 0
            assert kstore_log.config.segment_bytes == 1000

        @pytest.mark.kstore_log(segment_bytes=2000)
        def test_the_nearest_marker_wins(kstore_log):
            assert (kstore_log.config.segment_bytes, kstore_log.config.index_interval_bytes) == (2000, 100)

        @pytest.mark.kstore_store(topics={"orders": 4}, config={"log.segment.bytes": "16384"})
        def test_store(kstore_store):
            assert kstore_store.topics == ("orders",)
            assert kstore_store.partitions("orders") == (0, 1, 2, 3)
            assert kstore_store.config.segment_bytes == 16384
            kstore_store.append("orders", b"value", key=b"k")

        @pytest.mark.parametrize("size", [
            pytest.param(100, marks=pytest.mark.kstore_log(segment_bytes=100)),
            pytest.param(200, marks=pytest.mark.kstore_log(segment_bytes=200)),
        ])
        def test_parameters(kstore_log, size):
            assert kstore_log.config.segment_bytes == size

        def test_both(kstore_log, kstore_store):
            assert kstore_log.log_end_offset == 0
            assert kstore_store.topics == ()
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=6)


def test_a_corrupt_log_fails_its_test_and_the_report_says_what_verify_found(run: Run) -> None:
    result = run(
        """
        from pathlib import Path

        def damage(log):
            path = Path(log.path) / "00000000000000000000.log"
            log.close()
            data = bytearray(path.read_bytes())
            data[65] ^= 1
            path.write_bytes(data)

        def test_log(kstore_log):
            kstore_log.append(b"value")
            damage(kstore_log)

        def test_store(kstore_store):
            kstore_store.create_topic("orders")
            kstore_store.append("orders", b"value")
            log = kstore_store.log("orders", 0)
            kstore_store.close()
            damage(log)

        def test_sound(kstore_log, kstore_store):
            kstore_log.append(b"value")
        """
    )
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_log*",
            "E*AssertionError: * is not sound at the end of the test:",
            "E*test-0/00000000000000000000.log:0: error: the CRC of the batch does not hold*",
            "*ERROR at teardown of test_store*",
            "E*orders-0/00000000000000000000.log:0: error: the CRC of the batch does not hold*",
        ]
    )
    assert "checked.py" not in result.stdout.str()


def test_retention_and_rolls_follow_the_clock(run: Run) -> None:
    result = run(
        """
        from datetime import timedelta
        import pytest

        WEEK = timedelta(days=7)

        @pytest.mark.kstore_log(retention_ms=WEEK // timedelta(milliseconds=1), segment_ms=86_400_000)
        def test_log(kstore_log, kstore_clock):
            kstore_log.append(b"old")
            kstore_clock.advance(timedelta(days=2))
            kstore_log.append(b"new")
            assert len(kstore_log.segments) == 2
            kstore_clock.advance(timedelta(days=6))
            assert [record.value for record in kstore_log.read()] == [b"new"]

        @pytest.mark.kstore_store(topics={"orders": 1}, config={"log.retention.hours": 168, "log.roll.hours": 24})
        def test_store(kstore_clock, kstore_store):
            kstore_store.append("orders", b"value")
            kstore_clock.advance(WEEK)
            assert len(list(kstore_store.read("orders"))) == 1
            kstore_clock.advance(1)
            assert list(kstore_store.read("orders")) == []
        """
    )
    result.assert_outcomes(passed=2)


def test_a_crash_at_each_write_finds_what_was_confirmed_too_early(run: Run) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.parametrize("is_careful", [True, False])
        def test_orders(kstore_crash, is_careful):
            for crash in kstore_crash():
                confirmed = []
                with crash.log() as log:
                    for number in range(2):
                        log.append(b"%d" % number)
                        if is_careful:
                            log.flush()
                        confirmed.append(b"%d" % number)
                with crash.reopened() as log:
                    found = [record.value for record in log.read()]
                    assert found[:len(confirmed)] == confirmed
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*test_orders?False?*", "E*after a crash before step *: the power was cut, and only what was synced is there"]
    )


def test_the_log_and_the_store_of_a_crash_take_the_settings_of_the_markers(run: Run) -> None:
    result = run(
        """
        import pytest

        pytestmark = [
            pytest.mark.kstore_log(segment_bytes=1000),
            pytest.mark.kstore_store(topics={"orders": 2}, segment_bytes=2000),
        ]

        def test_log(kstore_crash):
            for crash in kstore_crash("kill"):
                with crash.log(retention_ms=5) as log:
                    assert (log.config.segment_bytes, log.config.retention_ms) == (1000, 5)
                with crash.reopened() as log:
                    assert log.config.segment_bytes == 1000

        def test_store(kstore_crash):
            for crash in kstore_crash("kill"):
                with crash.store() as store:
                    assert (store.partitions("orders"), store.config.segment_bytes) == ((0, 1), 2000)
                    store.append("orders", b"value")
                with crash.reopened() as store:
                    assert list(store.topics) == ["orders"]

        def test_arguments_of_the_call_come_first(kstore_crash):
            for crash in kstore_crash("kill"):
                with crash.store(topics={"others": 1}, segment_bytes=3000) as store:
                    assert (list(store.topics), store.config.segment_bytes) == (["others"], 3000)
        """
    )
    result.assert_outcomes(passed=3)


def test_classes_of_pytest_and_of_unittest_get_the_fixtures(run: Run) -> None:
    result = run(
        """
        import unittest
        import pytest

        @pytest.mark.kstore_log(segment_bytes=100)
        class TestPlain:
            def test_log(self, kstore_log):
                assert kstore_log.config.segment_bytes == 100

        class TestUnit(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _log(self, kstore_log):
                self.log = kstore_log

            def test_one(self):
                self.assertEqual(self.log.append(b"value"), 0)

            @pytest.mark.kstore_log(segment_bytes=200)
            def test_two(self):
                self.assertEqual(self.log.append(b"value"), 0)
                self.assertEqual(self.log.config.segment_bytes, 200)
        """
    )
    result.assert_outcomes(passed=3)


def test_a_marker_without_keywords_is_an_error_that_says_so(run: Run) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.kstore_log({"segment.bytes": 1000})
        def test_positional(kstore_log):
            pass

        @pytest.mark.kstore_log(segment_byte=1000)
        def test_unknown(kstore_log):
            pass
        """
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*the marker kstore_log takes keywords only, not {'segment.bytes': 1000}*"])
    result.stdout.fnmatch_lines(["*segment_byte*segment_bytes*"])


def test_the_entry_point_brings_fixtures_and_imports_nothing_before_their_use(
    installed: pytest.Pytester,
) -> None:
    installed.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            assert "pytest_kstore" in sys.modules
            assert not {"kstore", "numpy"} & sys.modules.keys()

        def test_fixtures(kstore_log, kstore_store, kstore_clock, kstore_crash):
            assert "kstore" in sys.modules
            assert "pyspark" not in sys.modules
        """
    )
    # Plugins of this run's other libraries may import NumPy.
    result = installed.runpytest_subprocess("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_it_can_be_left_out(installed: pytest.Pytester) -> None:
    installed.makepyfile("def test_log(kstore_log): pass")
    for name in ("no:kstore", "no:pytest_kstore"):
        result = installed.runpytest_subprocess("-p", name, "-p", "no:cacheprovider")
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*fixture 'kstore_log' not found*"])


def test_workers_of_a_parallel_run_have_logs_of_their_own(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_log(kstore_log, kstore_store, number):
            assert kstore_log.append(b"value") == 0
            assert kstore_store.topics == ()
        """
    )
    result = installed.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)


def test_a_test_of_spark_is_skipped_without_pyspark(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = run("def test_frame(kstore_spark): pass", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*kstore_spark needs PySpark: pip install 'kstore?spark?'*"])
