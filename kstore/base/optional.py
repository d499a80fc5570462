"""Imports optional libraries on use. If a library is missing, the error names the extra that installs it."""

from __future__ import annotations

import importlib
from typing import Any

from kstore.errors import ConfigError


class Late:
    """A module that is imported when the first of its names is looked up. Thread-safe."""

    def __init__(self, module: str) -> None:
        self.__module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self.__module), name)
        setattr(self, name, found)
        return found


def pyarrow(user: str, *modules: str, extra: str = "arrow") -> Any:
    """Import PyArrow and these modules of it, or raise a `ConfigError` that names `user` and the `extra`."""
    for name in modules:
        _library(user, f"pyarrow.{name}", "PyArrow", extra)
    return _library(user, "pyarrow", "PyArrow", extra)


def polars(user: str) -> Any:
    """Import Polars and its plugins, or raise a `ConfigError` that names `user`."""
    _library(user, "polars.io.plugins", "Polars", "polars")
    return _library(user, "polars", "Polars", "polars")


def fastavro(user: str) -> Any:
    """Import fastavro, or raise a `ConfigError` that names `user`."""
    return _library(user, "fastavro", "fastavro", "avro")


def ptars(user: str) -> Any:
    """Import ptars, or raise a `ConfigError` that names `user`."""
    return _library(user, "ptars", "ptars", "protobuf")


def protobuf(user: str, module: str) -> Any:
    """Import a module of Google's Protobuf, or raise a `ConfigError` that names `user`."""
    return _library(user, f"google.protobuf.{module}", "Protobuf", "protobuf")


def pyspark(user: str, module: str = "pyspark") -> Any:
    """Import PySpark or a module of it, or raise a `ConfigError` that names `user`."""
    return _library(user, module, "PySpark", "spark")


def pyspark_if_installed() -> Any:
    """Import PySpark; return None if it is not installed."""
    try:
        return importlib.import_module("pyspark")
    except ImportError:
        return None


def obstore(user: str, *modules: str) -> Any:
    """Import obstore and these modules of it, or raise a `ConfigError` that names `user`."""
    for name in modules:
        _library(user, f"obstore.{name}", "obstore", "backup")
    return _library(user, "obstore", "obstore", "backup")


def pandas(user: str) -> Any:
    """Import pandas, or raise a `ConfigError` that names `user`."""
    return _library(user, "pandas", "pandas", "spark")


def prometheus_client(user: str) -> Any:
    """Import prometheus_client, or raise a `ConfigError` that names `user`."""
    _library(user, "prometheus_client.metrics_core", "prometheus_client", "prometheus")
    return _library(user, "prometheus_client", "prometheus_client", "prometheus")


def opentelemetry_metrics(user: str) -> Any:
    """Import OpenTelemetry's API for metrics, or raise a `ConfigError` that names `user`."""
    return _library(user, "opentelemetry.metrics", "OpenTelemetry", "opentelemetry")


def starlette(user: str, module: str = "starlette") -> Any:
    """Import Starlette or a module of it, or raise a `ConfigError` that names `user`."""
    return _library(user, module, "Starlette", "ui")


def jinja2(user: str) -> Any:
    """Import Jinja2, or raise a `ConfigError` that names `user`."""
    return _library(user, "jinja2", "Jinja2", "ui")


def uvicorn(user: str, module: str = "uvicorn") -> Any:
    """Import uvicorn or a module of it, or raise a `ConfigError` that names `user`."""
    return _library(user, module, "uvicorn", "ui")


def _library(user: str, module: str, name: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{user} needs {name}: pip install 'kstore[{extra}]' ({error})") from None
