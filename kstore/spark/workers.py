"""Checks before a job: that the Python of Spark's local workers has kstore, and that they have the driver's files.

Without `PYSPARK_PYTHON`, Spark runs the first `python3` on the PATH. If the driver's virtual environment is not
activated, this is another Python, and each task fails with "No module named 'kstore'". A client of Spark Connect runs
what is the driver's part elsewhere, and may be on another machine than the server and its tasks; and the server's
Python processes work in a temporary directory for each session.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from typing import Any

from kstore.errors import ConfigError

_PATIENCE_S = 30
_CONNECT = "pyspark.sql.connect."


def refuse_other_files(owner: Any, shared_files: bool, *, what: str, instead: str) -> None:
    """Raise `ConfigError` for a session of Spark Connect unless its client and its server share the files.

    `owner` is a session or a DataFrame. `what` names the call and what it does in this process, and `instead` the call
    that does it on the server.
    """
    if shared_files or not any(base.__module__.startswith(_CONNECT) for base in type(owner).__mro__):
        return
    raise ConfigError(
        f"this is a session of Spark Connect, and {what} in the process of the client: the tasks of the server may "
        f"have other files at the same path. Use {instead}, for which the server does that; or pass shared_files=True "
        f"if client and server have the same files at the same path"
    )


def refuse_lost_path(path: str) -> None:
    """Raise `ConfigError` for a relative path if Spark has made the working directory, and will delete it.

    In its Python processes, Spark names a session whose files it keeps apart by this variable.
    """
    if os.path.isabs(path) or os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") == "default":
        return
    raise ConfigError(
        f"{path!r} is relative to {os.getcwd()}, a directory that Spark has made for a session of Spark Connect and "
        f"deletes when it stops: give an absolute path"
    )


def refuse_other_python(spark: Any) -> None:
    """Raise `ConfigError` if the workers of a local session cannot import kstore.

    `spark` is a session, or the context of an RDD. Clusters, Spark Connect servers, and workers that get files or
    archives with packages are not checked.
    """
    try:
        context = getattr(spark, "sparkContext", spark)
        is_local = str(context.master).startswith("local")
        command, sent = str(context.pythonExec), [*context._python_includes, *context.listArchives]
    except Exception:  # Spark Connect has no context; the other attributes are Spark's own
        return
    found = shutil.which(command)
    if not is_local or sent or found is None or _is_own(found) or _has_kstore(found):
        return
    raise ConfigError(
        f"Spark's workers run {found}, which has no kstore; the driver runs {sys.executable}. Set "
        f"PYSPARK_PYTHON={sys.executable} in the environment, or activate the virtual environment, before the session "
        f"starts"
    )


def _is_own(path: str) -> bool:
    """Return whether the path is the driver's interpreter; also compare directories, as environments share one file."""
    here = os.path.realpath(os.path.dirname(sys.executable)), os.path.realpath(sys.executable)
    return (os.path.realpath(os.path.dirname(path)), os.path.realpath(path)) == here


@cache
def _has_kstore(path: str) -> bool:
    """Return whether an interpreter finds kstore; True if that cannot be determined."""
    program = "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec('kstore') is None else 0)"
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return True
    return done.returncode != 3
