"""Libraries that only some commands need, imported when they are used; who lacks one is told which extra has it."""

from __future__ import annotations

import importlib
from typing import Any

from kstore.errors import ConfigError

__all__ = ["pyarrow"]


def pyarrow(what: str, *modules: str) -> Any:
    """Import PyArrow with these modules of it; `what` needs it, says the `ConfigError` otherwise."""
    try:
        for name in modules:
            importlib.import_module(f"pyarrow.{name}")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(f"{what} needs PyArrow: pip install 'kstore[arrow]' ({error})") from None
