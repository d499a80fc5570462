"""Libraries that Spark's side needs, imported when they are used; who lacks one is told which extra has it."""

from __future__ import annotations

import importlib
from typing import Any

from kstore.errors import ConfigError


def pyarrow(what: str) -> Any:
    """Import PyArrow; `what` needs it, says the `ConfigError` otherwise."""
    return _library("pyarrow", "PyArrow", what)


def pyspark(what: str, module: str = "pyspark") -> Any:
    """Import PySpark, or a module of it; `what` needs it, says the `ConfigError` otherwise."""
    return _library(module, "PySpark", what)


def pandas(what: str) -> Any:
    """Import pandas; `what` needs it, says the `ConfigError` otherwise."""
    return _library("pandas", "pandas", what)


def _library(module: str, name: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{what} needs {name}: pip install 'kstore[spark]' ({error})") from None
