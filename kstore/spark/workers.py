"""Whether Spark's workers on this machine are a Python that has kstore, asked before a job begins.

Without `PYSPARK_PYTHON` Spark runs the first `python3` of the path. Where a virtual environment is not activated, this
is another Python than that of the driver, and each task ends with "No module named 'kstore'".
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


def refuse_other_python(spark: Any) -> None:
    """Raise `ConfigError` where the workers of a local session cannot import kstore.

    `spark` is a session, or the context of an RDD. Nothing is known of the machines of a cluster, of a Spark Connect
    server, and of workers that are sent files or archives with packages in them.
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
    """Whether this is the interpreter of the driver: of one directory, since environments share one program."""
    here = os.path.realpath(os.path.dirname(sys.executable)), os.path.realpath(sys.executable)
    return (os.path.realpath(os.path.dirname(path)), os.path.realpath(path)) == here


@cache
def _has_kstore(path: str) -> bool:
    """Whether an interpreter finds kstore; True where it does not say."""
    program = "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec('kstore') is None else 0)"
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return True
    return done.returncode != 3
